package spanring

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var fullSpan = Span{
	Kind: KindKernel, Armed: true, SharedStart: true, InGraph: true, Gap: GapStarved, Calibration: CalibrationAssumed,
	Context: 15, Lane: math.MaxUint16, Stream: math.MaxUint16, Step: math.MaxUint64, Name: math.MaxUint32,
	Ordinal: math.MaxUint32, Parent: math.MaxUint32 - 1,
	StartMonoNS: math.MaxInt64 - max48, RawNS: max48, CorrectionNS: math.MaxUint16, LeadNS: maxLead,
	PlaceUncertaintyNS: 2047 << 31, DurationUncertaintyNS: 2047 << 31,
}

func TestSpanRoundTrip(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Span
	}{
		{"least", Span{Kind: KindLane, Ordinal: 1}},
		{"most", fullSpan},
		{"graph that began before its enqueue", Span{Kind: KindGraph, Ordinal: 3, Parent: 2, Step: 7, StartMonoNS: 1e9, RawNS: 5000, LeadNS: -1, PlaceUncertaintyNS: 1024, DurationUncertaintyNS: 32}},
		{"least lead", Span{Kind: KindLane, Ordinal: 1, LeadNS: minLead}},
		{"measured, queued", Span{Kind: KindKernel, Ordinal: 9, Calibration: CalibrationMeasured, Gap: GapQueued, RawNS: 8640, CorrectionNS: 3040}},
	} {
		w := c.s.Words()
		got, err := w.Span()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.s, got); d != "" {
			t.Errorf("%s (-written +read):\n%s", c.name, d)
		}
	}
}

func TestSpanDerived(t *testing.T) {
	for _, c := range []struct {
		s                 Span
		dur               uint64
		end, enqueueMonos int64
	}{
		{Span{StartMonoNS: 1000, RawNS: 500, CorrectionNS: 100, LeadNS: 300}, 400, 1500, 700},
		{Span{StartMonoNS: 1000, RawNS: 50, CorrectionNS: 100, LeadNS: -20}, 0, 1050, 1020},
		{fullSpan, max48 - math.MaxUint16, math.MaxInt64, math.MaxInt64 - max48 - maxLead},
	} {
		if d, e, q := c.s.DurationNS(), c.s.EndMonoNS(), c.s.EnqueueMonoNS(); d != c.dur || e != c.end || q != c.enqueueMonos {
			t.Errorf("%+v: duration %d, end %d, enqueue %d", c.s, d, e, q)
		}
	}
}

// TestSpanCuts: what does not fit its field is cut to its end, not wrapped.
func TestSpanCuts(t *testing.T) {
	s := Span{Kind: KindLane, Ordinal: 1, RawNS: 1 << 60, LeadNS: math.MaxInt64, PlaceUncertaintyNS: math.MaxUint64, DurationUncertaintyNS: 1 << 43}
	w := s.Words()
	got, err := w.Span()
	if err != nil || got.RawNS != max48 || got.LeadNS != maxLead || got.PlaceUncertaintyNS != 2047<<31 || got.DurationUncertaintyNS != 2047<<31 {
		t.Errorf("%+v, %v", got, err)
	}
	s.LeadNS = math.MinInt64
	w = s.Words()
	if got, _ := w.Span(); got.LeadNS != minLead {
		t.Errorf("lead %d", got.LeadNS)
	}
}

func TestOtherEntriesRoundTrip(t *testing.T) {
	sf := SpanFailed{SpanKind: KindGraph, Reason: FailMisplaced, Context: 15, Lane: 3, Stream: 4, Step: 5, EnqueueMonoNS: math.MaxInt64, Name: 6, Ordinal: 8, Parent: 7}
	w := sf.Words()
	gotSF, err := w.SpanFailed()
	if d := cmp.Diff(sf, gotSF); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	sb := StepBegin{Step: 1, MonoNS: math.MaxInt64, Armed: true, Asked: true, Level: 3, Source: StepWindow}
	w = sb.Words()
	gotSB, err := w.StepBegin()
	if d := cmp.Diff(sb, gotSB); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	// An untimed step says that what is measured of it is what level basic measures.
	sb = StepBegin{Step: 1, MonoNS: 2, Level: 3, Untimed: true}
	w = sb.Words()
	sb.Level = 1
	gotSB, err = w.StepBegin()
	if d := cmp.Diff(sb, gotSB); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	se := StepEnd{Step: math.MaxUint64, Untimed: true, MonoNS: 9, BeginNS: 9, Armed: true, Opened: math.MaxUint32, Dropped: math.MaxUint32 - 1, Linked: math.MaxUint32}
	w = se.Words()
	gotSE, err := w.StepEnd()
	if d := cmp.Diff(se, gotSE); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	sa := StepAttrs{Step: 2, BatchSize: math.MaxUint32, DecodeTokens: 8, PrefillTokens: math.MaxUint32, GraphMode: GraphMixed}
	w = sa.Words()
	gotSA, err := w.StepAttrs()
	if d := cmp.Diff(sa, gotSA); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	an := Anchor{Context: 15, GPUNS: math.MinInt64, MonoNS: math.MaxInt64, RatePPB: -11800, ResidualNS: -300, UncertaintyNS: 3000}
	w = an.Words()
	gotAN, err := w.Anchor()
	if d := cmp.Diff(an, gotAN); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
}

func TestEntriesRefused(t *testing.T) {
	span := func(f func(*Span)) Words {
		s := Span{Kind: KindKernel, Ordinal: 2, Parent: 1, Step: 1}
		f(&s)
		return s.Words()
	}
	failed := func(f func(*SpanFailed)) Words {
		s := SpanFailed{SpanKind: KindLane, Reason: FailRecord, Ordinal: 2, Parent: 1}
		f(&s)
		return s.Words()
	}
	decode := map[string]func(*Words) error{
		"span":   func(w *Words) error { _, err := w.Span(); return err },
		"failed": func(w *Words) error { _, err := w.SpanFailed(); return err },
		"begin":  func(w *Words) error { _, err := w.StepBegin(); return err },
		"end":    func(w *Words) error { _, err := w.StepEnd(); return err },
		"attrs":  func(w *Words) error { _, err := w.StepAttrs(); return err },
		"anchor": func(w *Words) error { _, err := w.Anchor(); return err },
	}
	begin, end, attrs, anchor := StepBegin{}, StepEnd{}, StepAttrs{}, Anchor{}
	for _, c := range []struct {
		name, as string
		w        Words
	}{
		{"zero", "span", Words{}}, {"zero", "failed", Words{}}, {"zero", "begin", Words{}},
		{"zero", "end", Words{}}, {"zero", "attrs", Words{}}, {"zero", "anchor", Words{}},
		{"step as span", "span", Words{1: 1, 0: uint64(KindStepBegin)}},
		{"unknown kind", "span", span(func(s *Span) { s.Kind = 200 })},
		{"gap 3", "span", span(func(s *Span) { s.Gap = 3 })},
		{"calibration 3", "span", span(func(s *Span) { s.Calibration = 3 })},
		{"context 16", "span", span(func(s *Span) { s.Context = 16 })},
		{"before boot", "span", span(func(s *Span) { s.StartMonoNS = -1 })},
		{"end overflows", "span", span(func(s *Span) { s.StartMonoNS = math.MaxInt64 - max48 + 1 })},
		{"no ordinal", "span", span(func(s *Span) { s.Ordinal, s.Parent = 0, 0 })},
		{"inside itself", "span", span(func(s *Span) { s.Parent = 2 })},
		{"span as failed", "failed", span(func(*Span) {})},
		{"failed step", "failed", failed(func(s *SpanFailed) { s.SpanKind = KindStepBegin })},
		{"no reason", "failed", failed(func(s *SpanFailed) { s.Reason = FailNone })},
		{"unknown reason", "failed", failed(func(s *SpanFailed) { s.Reason = numReasons })},
		{"context 16", "failed", failed(func(s *SpanFailed) { s.Context = 16 })},
		{"before boot", "failed", failed(func(s *SpanFailed) { s.EnqueueMonoNS = -1 })},
		{"no ordinal", "failed", failed(func(s *SpanFailed) { s.Ordinal, s.Parent = 0, 0 })},
		{"inside itself", "failed", failed(func(s *SpanFailed) { s.Parent = 2 })},
		{"step 0", "begin", begin.Words()},
		{"before boot", "begin", (&StepBegin{Step: 1, MonoNS: -1}).Words()},
		{"step 0", "end", end.Words()},
		{"begin before boot", "end", (&StepEnd{Step: 1, BeginNS: -1}).Words()},
		{"ends before it begins", "end", (&StepEnd{Step: 1, BeginNS: 2, MonoNS: 1}).Words()},
		{"begin as end", "end", (&StepBegin{Step: 1}).Words()},
		{"step 0", "attrs", attrs.Words()},
		{"graph mode 4", "attrs", (&StepAttrs{Step: 1, GraphMode: 4}).Words()},
		{"end as attrs", "attrs", (&StepEnd{Step: 1}).Words()},
		{"context 16", "anchor", (&Anchor{Context: 16}).Words()},
		{"before boot", "anchor", (&Anchor{MonoNS: -1}).Words()},
		{"attrs as anchor", "anchor", (&StepAttrs{Step: 1}).Words()},
	} {
		if err := decode[c.as](&c.w); !errors.Is(err, ErrEntry) {
			t.Errorf("%s as %s: %v", c.name, c.as, err)
		}
	}
	good := map[string]Words{
		"span": span(func(*Span) {}), "failed": failed(func(*SpanFailed) {}), "begin": (&StepBegin{Step: 1}).Words(),
		"end": (&StepEnd{Step: 1}).Words(), "attrs": (&StepAttrs{Step: 1}).Words(), "anchor": anchor.Words(),
	}
	for as, w := range good {
		if err := decode[as](&w); err != nil {
			t.Errorf("good %s: %v", as, err)
		}
	}
}

func TestUncertaintyPacking(t *testing.T) {
	for _, c := range []struct{ ns, want uint64 }{
		{0, 0}, {1, 1}, {2047, 2047}, {2048, 2048}, {2049, 2050}, {4094, 4094}, {4095, 4096}, {4097, 4100},
		{2047 << 31, 2047 << 31}, {2047<<31 - 1, 2047 << 31}, {2046<<31 + 1, 2047 << 31},
		{2047<<31 + 1, 2047 << 31}, {1 << 43, 2047 << 31}, {math.MaxUint64, 2047 << 31},
	} {
		if got := unpackUncertainty(packUncertainty(c.ns)); got != c.want {
			t.Errorf("%d ns came back as %d, want %d", c.ns, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		// Every magnitude alike.
		ns := rapid.Uint64().Draw(t, "ns") >> rapid.IntRange(20, 63).Draw(t, "shift")
		got := unpackUncertainty(packUncertainty(ns))
		if got < ns || float64(got-ns) > 0.001*float64(ns) {
			if ns <= 2047<<31 {
				t.Fatalf("%d ns came back as %d", ns, got)
			}
		}
		more := ns + rapid.Uint64Range(0, ns+1).Draw(t, "more")
		if packUncertainty(more) < packUncertainty(ns) {
			t.Fatalf("%d ns packs to %d, %d ns to %d", ns, packUncertainty(ns), more, packUncertainty(more))
		}
	})
}

func TestEntryTexts(t *testing.T) {
	got := []string{
		CalibrationNone.String(), CalibrationMeasured.String(), CalibrationAssumed.String(), Calibration(9).String(),
		GapUnknown.String(), GapQueued.String(), GapStarved.String(), Gap(9).String(),
		GraphUnknown.String(), GraphEager.String(), GraphReplay.String(), GraphMixed.String(), GraphMode(9).String(),
	}
	want := []string{
		"none", "measured", "assumed", "none", "unknown", "queued", "starved", "unknown",
		"unknown", "eager", "replay", "mixed", "unknown",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
