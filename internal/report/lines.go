package report

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Lines writes steps as text, a line a span: when it began, which engine and
// step, its name indented under what it lies in, how long it took, and what else
// is known. It is a [collector.Exporter]; what was written counts as exported. Its
// methods may be called from any goroutine.
type Lines struct {
	mu   sync.Mutex
	w    *bufio.Writer
	b    []byte
	head bool
	err  error
}

// NewLines writes to w, buffered: Close flushes.
func NewLines(w io.Writer) *Lines { return &Lines{w: bufio.NewWriter(w)} }

// Widths of the columns of a line.
const (
	timeWidth   = 30
	engineWidth = 28
	stepWidth   = 9
	nameWidth   = 36
	lengthWidth = 14
)

// Export writes one step. After an error nothing more is written; the spans are
// dropped, and Close returns the error.
func (l *Lines) Export(s *collector.Step, reason collector.ExportReason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	units := s.Units()
	if l.err == nil {
		l.err = l.write(s, reason)
	}
	if l.err != nil {
		s.Engine.Ledger().Drop(collector.DropRefused, units)
		return
	}
	s.Engine.Ledger().Export(units)
}

// begin empties the buffer and, the first time, writes the header.
func (l *Lines) begin() {
	l.b = l.b[:0]
	if !l.head {
		l.head = true
		l.b = append(l.b, left("BEGIN (UTC)", timeWidth)+"  "+left("ENGINE", engineWidth)+"  "+right("STEP", stepWidth)+"  "+
			left("SPAN", nameWidth)+"  "+right("µs", lengthWidth)+"  DETAIL\n"...)
	}
}

func (l *Lines) write(s *collector.Step, reason collector.ExportReason) error {
	l.begin()
	start, end := s.Bounds()
	l.line(s, start, "step", 0, end-start, stepDetail(s, reason))
	if s.HasEnd {
		l.line(s, s.BeginMonoNS, "host", 1, s.HostNS(), "")
	}
	depth := make([]int, len(s.Spans))
	for i := range s.Spans {
		depth[i] = 1
		if p := s.ParentOf(i); p >= 0 {
			depth[i] = depth[p] + 1
		}
		sp := &s.Spans[i]
		l.line(s, sp.StartMonoNS, sp.Text.Title(), depth[i], int64(sp.DurationNS()), spanDetail(sp))
	}
	for i := range s.Failed {
		f := &s.Failed[i]
		l.line(s, f.EnqueueMonoNS, f.Text.Title(), 1, -1, f.SpanKind.String()+", failed: "+f.Reason.String())
	}
	for i := range s.LaunchDiffs {
		d := &s.LaunchDiffs[i]
		l.line(s, d.MonoNS, d.Text.String(), 1, -1, "launch diff: "+diffText(&d.LaunchDiff))
	}
	if _, err := l.w.Write(l.b); err != nil {
		return fmt.Errorf("write step %d: %w", s.Number, err)
	}
	return nil
}

func (l *Lines) line(s *collector.Step, startMonoNS int64, name string, depth int, lengthNS int64, detail string) {
	l.row(s.Engine, s.UnixNS(startMonoNS), strconv.FormatUint(s.Number, 10), name, depth, lengthNS, detail)
}

func (l *Lines) row(e *collector.Engine, unixNS int64, step, name string, depth int, lengthNS int64, detail string) {
	at := time.Unix(0, unixNS).UTC().Format("2006-01-02T15:04:05.000000000Z")
	length := "-"
	if lengthNS >= 0 {
		length = microseconds(lengthNS)
	}
	text := at + "  " + left(clip(e.Label(), engineWidth), engineWidth) + "  " + right(step, stepWidth) + "  " +
		left(spaces(2*depth)+clipMiddle(name, nameWidth-2*min(depth, nameWidth/4)), nameWidth) + "  " + right(length, lengthWidth) + "  " + detail
	l.b = append(l.b, strings.TrimRight(text, " ")...)
	l.b = append(l.b, '\n')
}

// microseconds is ns in µs with all its digits.
func microseconds(ns int64) string {
	return grouped(strconv.FormatInt(ns/1000, 10)) + fmt.Sprintf(".%03d", ns%1000)
}

// diffText is what a launch diff came to.
func diffText(d *spanring.LaunchDiff) string {
	s := fmt.Sprintf("%s operations before, %s after: %s inserted, %s removed, %s changed", Count(uint64(d.Before)), Count(uint64(d.After)),
		Count(uint64(d.Inserted)), Count(uint64(d.Removed)), Count(uint64(d.Changed)))
	if d.Partial {
		s += ", not all recorded"
	}
	return s
}

func stepDetail(s *collector.Step, reason collector.ExportReason) string {
	parts := []string{"why: " + reason.String()}
	if s.Armed {
		parts = append(parts, "armed")
	}
	if s.Untimed {
		parts = append(parts, "lanes not timed")
	}
	if s.HasAttrs {
		a := &s.Attrs
		parts = append(parts, fmt.Sprintf("batch %d, decode tokens %d, prefill tokens %d, %s", a.BatchSize, a.DecodeTokens, a.PrefillTokens, a.GraphMode))
	}
	if s.Incomplete != collector.Complete {
		parts = append(parts, "incomplete: "+s.Incomplete.String())
	}
	for _, c := range []struct {
		n    int
		name string
	}{{s.FailedCount, "failed"}, {int(s.Dropped), "dropped"}, {s.Missing(), "missing"}, {s.LeftOut, "left out"}, {len(s.Links) + s.LinksDropped(), "requests"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", c.name, c.n))
		}
	}
	return strings.Join(parts, ", ")
}

func spanDetail(sp *collector.Span) string {
	d := fmt.Sprintf("%s, stream %d, enqueued %s µs before", sp.Kind, sp.Stream, signedMicroseconds(sp.LeadNS))
	if sp.Kind == spanring.KindLane {
		return d
	}
	d += ", " + sp.Gap.String()
	if sp.CorrectionNS > 0 {
		d += fmt.Sprintf(", pair %s µs (%s)", microseconds(int64(sp.RawNS)), sp.Calibration)
	}
	if sp.Kind == spanring.KindGraph {
		d += fmt.Sprintf(", graph %d of %d nodes", sp.Text.GraphID, sp.Text.GraphNodes)
	}
	return d
}

func signedMicroseconds(ns int64) string {
	if ns < 0 {
		return "-" + microseconds(-ns)
	}
	return microseconds(ns)
}

// Close flushes and returns the first error there was.
func (l *Lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.w.Flush(); err != nil && l.err == nil {
		l.err = fmt.Errorf("write spans: %w", err)
	}
	return l.err
}

var _ collector.Exporter = (*Lines)(nil)
