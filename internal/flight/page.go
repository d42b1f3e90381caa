package flight

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

// How much a page shows.
const (
	lastSteps = 16
	maxBusy   = 64
	pageWidth = 100
)

// read reads the ring to its end, or as far as it went when reading began, into the
// recording, and returns the page. What an engine that lives writes meanwhile is not
// waited for: it may write faster than this reads. It closes src.
func read(src collector.Source, why Reason, file string, w *recording.Writer) (text string, err error) {
	run := report.New(report.Options{Width: pageWidth})
	last := &tail{}
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{
		Observers: []collector.Observer{run, last}, Taps: []collector.Tap{w, run, last},
	})
	if err != nil {
		return "", errors.Join(err, src.Close())
	}
	e := p.Engine()
	if err := p.DrainToNow(); err != nil {
		return "", errors.Join(err, p.Close())
	}
	text = page(e, why, file, run, last)
	return text, p.Close()
}

// tail keeps the last steps that closed and the time of the newest entry.
type tail struct {
	steps  []*collector.Step
	lastNS int64
}

// list are the steps; a nil tail has none.
func (t *tail) list() []*collector.Step {
	if t == nil {
		return nil
	}
	return t.steps
}

// ObserveStep implements collector.Observer.
func (t *tail) ObserveStep(s *collector.Step) {
	t.steps = append(t.steps, s.Clone())
	if len(t.steps) > lastSteps {
		t.steps = slices.Delete(t.steps, 0, 1)
	}
}

// Entries implements collector.Tap.
func (t *tail) Entries(_ *collector.Engine, entries []spanring.Entry) {
	for i := range entries {
		w := &entries[i].Words
		at := int64(0)
		switch w.Kind() {
		case spanring.KindStepBegin:
			if b, err := w.StepBegin(); err == nil {
				at = b.MonoNS
			}
		case spanring.KindStepEnd:
			if e, err := w.StepEnd(); err == nil {
				at = e.MonoNS
			}
		case spanring.KindLane, spanring.KindKernel, spanring.KindGraph:
			if s, err := w.Span(); err == nil {
				at = s.EndMonoNS()
			}
		}
		t.lastNS = max(t.lastNS, at)
	}
}

// Ended implements collector.Tap.
func (t *tail) Ended(*collector.Engine) {}

// page is the text of a record.
func page(e *collector.Engine, why Reason, file string, run *report.Run, last *tail) string {
	var b strings.Builder
	i := e.Info()
	busy := slices.Clone(e.Busy())
	slices.SortFunc(busy, func(x, y spanring.SlotEntry) int { return cmp.Compare(x.Slot.EnqueueMonoNS, y.Slot.EnqueueMonoNS) })
	// Of an engine that died nobody knows when; the last it wrote tells most.
	nowNS, since := e.NowMonoNS(), "now"
	if why == Died {
		nowNS, since = last.lastNS, "when it last wrote"
		for _, s := range busy {
			nowNS = max(nowNS, s.Slot.EnqueueMonoNS, s.Slot.ClosedMonoNS)
		}
	}
	fmt.Fprintf(&b, "lanetrace flight record: %s %s\n\n", e.Label(), why)
	fmt.Fprintf(&b, "run        %s\nprocess    %d (%s)\nlevel      %s\n", i.RunID, i.PID, collector.CleanText(i.Executable), collector.LevelText(i.Level))
	if i.GPUUUID != "" {
		fmt.Fprintf(&b, "GPU        %s, %s\n", collector.CleanText(i.GPUName), i.GPUUUID)
	}
	fmt.Fprintf(&b, "last wrote %s\n", time.Unix(0, nowNS+e.Source().WallOffsetNS()).UTC().Format("2006-01-02 15:04:05.000 UTC"))
	fmt.Fprintf(&b, "recording  %s\n", file)

	fmt.Fprintf(&b, "\nIn flight: %d; ages are %s\n", len(busy), since)
	if len(busy) > 0 {
		t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "  AGE\tKIND\tNAME\tLANE\tSTEP\tSTREAM\tHOST'S END")
		for _, s := range busy[:min(len(busy), maxBusy)] {
			end := "not yet"
			if s.Slot.ClosedMonoNS != 0 {
				end = report.Duration(float64(nowNS-s.Slot.ClosedMonoNS)) + " ago"
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%d\t%d\t%s\n", report.Duration(float64(nowNS-s.Slot.EnqueueMonoNS)), s.Slot.Kind,
				SpanName(e.Source(), s.Slot), laneName(e, s.Slot, busy, last), s.Slot.Step, s.Slot.Stream, end)
		}
		_ = t.Flush() // into memory
		if n := len(busy) - maxBusy; n > 0 {
			fmt.Fprintf(&b, "  and %d more\n", n)
		}
	}

	fmt.Fprintf(&b, "\nLast steps\n")
	if len(last.steps) == 0 {
		fmt.Fprintf(&b, "  none\n")
	} else {
		t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "STEP\tBEGAN\tHOST\tSPANS LANDED\tFAILED\tDROPPED\tMISSING\t  STATE\t")
		for _, s := range last.steps {
			began, host, state := "-", "-", "complete"
			if s.HasBegin {
				began = report.Duration(float64(nowNS-s.BeginMonoNS)) + " before"
			}
			if s.HasEnd {
				host = report.Duration(float64(s.HostNS()))
			}
			switch {
			case s.Incomplete != collector.Complete && !s.HasEnd:
				state = "not ended on the host"
			case s.Incomplete != collector.Complete:
				state = "incomplete"
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\t%d\t%d\t  %s\t\n", s.Number, began, host, s.Landed(), s.FailedCount, s.Dropped, s.Missing(), state)
		}
		_ = t.Flush() // into memory
	}

	b.WriteString("\n" + strings.TrimRight(run.Text(e), "\n") + "\n")
	if m := e.Memory(); m.State != spanring.AllocsNotTracked {
		b.WriteString("\n" + strings.TrimRight(run.MemoryText(e, 0), "\n") + "\n")
	}

	b.WriteString("\nCounters\n")
	c := e.Counters()
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for n := range c {
		if k := spanring.Counter(n); k.String() != "reserved" && (c[n] != 0 || k.String() == "dropped") {
			fmt.Fprintf(t, "  %s\t%d\n", k, c[n])
		}
	}
	_ = t.Flush() // into memory
	return b.String()
}

// laneName is the name of the lane that a slot's span is or lies in, as far as one
// of that lane is in flight or landed lately; "-" for a span outside lanes.
func laneName(e *collector.Engine, s spanring.Slot, busy []spanring.SlotEntry, last *tail) string {
	if s.Kind == spanring.KindLane {
		return SpanName(e.Source(), s)
	}
	if s.Parent == 0 {
		return "-"
	}
	for _, b := range busy {
		if b.Slot.Kind == spanring.KindLane && b.Slot.Lane == s.Lane {
			return SpanName(e.Source(), b.Slot)
		}
	}
	for _, st := range last.list() {
		for i := range st.Spans {
			if sp := &st.Spans[i]; sp.Kind == spanring.KindLane && sp.Lane == s.Lane {
				return sp.Text.Label
			}
		}
	}
	return fmt.Sprintf("lane %d", s.Lane)
}

// Names are the names of a ring: an engine's source has them, and so has a reader.
type Names interface {
	Name(spanring.NameID) (spanring.Name, bool)
}

// SpanName is what a slot's span is called.
func SpanName(names Names, s spanring.Slot) string {
	n, ok := names.Name(s.Name)
	if !ok || n.Text == "" {
		return "unnamed"
	}
	if s.Kind == spanring.KindKernel {
		return collector.KernelLabel(n.Text)
	}
	return collector.CutText(collector.CleanText(n.Text), collector.MaxLabelBytes)
}
