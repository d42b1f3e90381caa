// Package memprofile writes device memory as a profile that "go tool pprof"
// opens: live bytes and counts, by call site. It is apart from package ledger so
// that engines do not link what only reports need.
package memprofile

import (
	"fmt"
	"io"
	"math"
	"path"

	"github.com/google/pprof/profile"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// ErrNotTracked is returned for memory that no ledger knows: a profile without
// samples would say that there is none.
var ErrNotTracked = fmt.Errorf("device memory is not tracked")

// Write writes m as a compressed profile of what is live at a time of the wall
// clock in ns; 0 leaves the time out. The sample types are inuse_objects and
// inuse_space, and the latter is the default, as in a heap profile. A function is
// the engine's where the ledger knows it, else it is called after its site's label,
// or after its file and line. What was not listed is one sample of its own.
func Write(w io.Writer, m *ledger.Memory, unixNS int64) error {
	if m.State == spanring.AllocsNotTracked {
		return ErrNotTracked
	}
	p := Profile(m, unixNS)
	if err := p.Write(w); err != nil {
		return fmt.Errorf("write profile of device memory: %w", err)
	}
	return nil
}

// Profile is what Write writes.
func Profile(m *ledger.Memory, unixNS int64) *profile.Profile {
	p := &profile.Profile{
		SampleType:        []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}},
		DefaultSampleType: "inuse_space",
		PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
		Period:            1,
		TimeNanos:         unixNS,
	}
	t := &m.Totals
	p.Comments = []string{
		fmt.Sprintf("chunk slack: %d bytes", t.ChunkSlackBytes), fmt.Sprintf("rounding slack: %d bytes", t.RoundingSlackBytes),
		fmt.Sprintf("arenas: %d bytes in %d", t.ArenaBytes, t.ArenaCount),
	}
	if m.Approximate {
		p.Comments = append(p.Comments, "approximate: allocations were made or freed while this was read")
	}
	if m.State == spanring.AllocsStale {
		p.Comments = append(p.Comments, "telemetry is off: as of the moment when it was switched off")
	}
	add := func(s *ledger.SiteTotal) {
		file, line := s.File()
		fn := &profile.Function{ID: uint64(len(p.Function) + 1), Name: s.Function, SystemName: s.Function, Filename: file}
		switch {
		case s.Label != "": // with the range that tells it from others of its function
			fn.Name, fn.SystemName = s.Label, s.Site
		case fn.Name == "":
			fn.Name = path.Base(s.Site)
			fn.SystemName = s.Site
		}
		loc := &profile.Location{ID: uint64(len(p.Location) + 1), Line: []profile.Line{{Function: fn, Line: line}}}
		p.Function, p.Location = append(p.Function, fn), append(p.Location, loc)
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{loc}, Value: []int64{s.Count, s.Bytes}})
	}
	for i := range m.Sites {
		add(&m.Sites[i])
	}
	if t.UnlistedCount > 0 {
		add(&ledger.SiteTotal{
			Site: "not listed", Bytes: int64(min(t.UnlistedBytes, math.MaxInt64)), Count: int64(min(t.UnlistedCount, math.MaxInt64)),
		})
	}
	return p
}
