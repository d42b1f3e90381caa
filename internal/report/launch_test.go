package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// The launch trace has a table when there was one, and none else.
func TestLaunchTable(t *testing.T) {
	r := New(Options{})
	e := read(t, synth.Options{Duration: 400 * time.Millisecond, DiffEvery: 100}, r)
	text := r.Text(e)
	// Steps 100, 200 and on differ, and the ones after them.
	var last, differing uint64
	steps := e.LaunchRegions()[0].Executions
	for n := uint64(100); n <= steps; n += 100 {
		last, differing = n, differing+1
		if n < steps {
			last, differing = n+1, differing+1
		}
	}
	begin := strings.Index(text, "\nLAUNCH TRACE")
	if begin < 0 || differing < 6 {
		t.Fatalf("%d differ of %d in:\n%s", differing, steps, text)
	}
	table, _, _ := strings.Cut(text[begin+1:], "\n\n") // to the next table, whichever it is
	got := strings.Fields(table)
	want := strings.Fields("LAUNCH TRACE executions differing operations last in step step " +
		strings.Join([]string{Count(steps), Count(differing), Count(6 * differing), Count(last)}, " ") +
		" step, last: 413 operations before, 412 after: 1 inserted, 2 removed, 3 changed")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, l := range strings.Split(text, "\n") {
		if width(l) > 80 {
			t.Errorf("line of %d cells: %s", width(l), l)
		}
	}
	r = New(Options{})
	if text := r.Text(read(t, synth.Options{Duration: 50 * time.Millisecond}, r)); strings.Contains(text, "LAUNCH") {
		t.Errorf("a table of nothing:\n%s", text)
	}
}

func TestLaunchDiffLine(t *testing.T) {
	var out bytes.Buffer
	l := NewLines(&out)
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 3 * time.Millisecond, DiffEvery: 2}), collector.ProcessorOptions{
		Exporter: l, Selector: collector.SelectAll{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if want := "  step                                             -  launch diff: 412 operations before, 413 after: 2 inserted, 1 removed, 3 changed\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in:\n%s", want, out.String())
	}
	if s := diffText(&spanring.LaunchDiff{Before: 2, After: 1, Removed: 1, Partial: true}); s != "2 operations before, 1 after: 0 inserted, 1 removed, 0 changed, not all recorded" {
		t.Errorf("%q", s)
	}
}
