package flight

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// busySource is a ring whose engine writes more than a poll reads, at each poll.
type busySource struct {
	collector.Source
	w     *spanring.Writer
	polls int
}

// maxBusyPolls is more than what was there at first takes.
const maxBusyPolls = 100

func (s *busySource) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	if s.polls++; s.polls > maxBusyPolls {
		return 0, true, nil
	}
	n, done, err = s.Source.Poll(dst)
	for i := range uint64(len(dst) + 1) {
		e := spanring.StepBegin{Step: 1_000_000 + uint64(s.polls)*1000 + i, MonoNS: spanring.MonoNS()}
		words := e.Words()
		s.w.Append(&words)
	}
	return n, done, err
}

// TestRecordOfABusyEngine: a record ends where the ring ended when it was begun, also
// while its engine writes faster than it is read.
func TestRecordOfABusyEngine(t *testing.T) {
	w, err := spanring.Create(spanring.Dir{Path: ringDir(t), Group: -1}, spanring.Options{Info: spanring.Info{Service: "busy", Rank: spanring.NoRank}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const steps = 1000
	for n := uint64(1); n <= steps; n++ {
		b := spanring.StepBegin{Step: n, MonoNS: spanring.MonoNS()}
		words := b.Words()
		w.Append(&words)
	}
	r, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "busy.ltrec")
	rec, err := recording.Create(path, recording.Options{Writer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	src := &busySource{Source: collector.NewRingSource(r), w: w}
	text, err := read(src, Hung, "busy.ltrec", rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "lanetrace flight record: busy hung\n") {
		t.Errorf("page:\n%s", text)
	}
	if want := steps/256 + 1; src.polls != want {
		t.Errorf("%d polls of 256 entries for %d, want %d", src.polls, steps, want)
	}
}
