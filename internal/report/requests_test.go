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
)

type requestObserver struct{ f func(*collector.Request) }

func (requestObserver) ObserveStep(*collector.Step)            {}
func (o *requestObserver) ObserveRequest(r *collector.Request) { o.f(r) }

func TestRequests(t *testing.T) {
	r := New(Options{})
	var want RequestsReport
	add := func(d *Distribution, ns int64) {
		d.Count++
		d.SumNS += uint64(ns)
		d.MaxNS = max(d.MaxNS, uint64(ns))
	}
	e := read(t, synth.Options{Duration: 500 * time.Millisecond, RequestEvery: 4, LaneEvery: 4, Model: "org/model"}, r, &requestObserver{func(q *collector.Request) {
		add(&want.Taken, q.EndNS-q.BeginNS)
		add(&want.GPULanes, q.GPULaneNS)
		want.Steps += uint64(q.Steps)
		want.Untimed += uint64(q.StepsUntimed)
		want.PromptTokens += uint64(q.PromptTokens)
		want.OutputTokens += uint64(q.OutputTokens)
	}})
	doc := r.Report(e)
	got := doc.Requests
	for _, d := range []*Distribution{&got.Taken, &got.GPULanes} {
		if d.P50NS == 0 || d.P50NS > d.P99NS || d.P99NS > d.MaxNS {
			t.Errorf("quantiles of %+v", d)
		}
		d.P50NS, d.P99NS = 0, 0
	}
	if d := cmp.Diff(want, got); d != "" || got.Taken.Count < 10 || got.Untimed == 0 || got.Untimed >= got.Steps {
		t.Errorf("(-want +got):\n%s", d)
	}
	if doc.Model != "org/model" || doc.Rank != (RankReport{-1, -1, -1, -1}) {
		t.Errorf("model %q, rank %+v", doc.Model, doc.Rank)
	}
	if doc.Step == nil || len(doc.Step.Requests) == 0 || len(doc.Step.Requests[0]) != 49 || doc.Step.LeftOut != 0 {
		t.Errorf("step %+v", doc.Step)
	}
	text := r.Text(e)
	for _, s := range []string{"  model   org/model", "REQUESTS (traced)", "lanes of their steps", "tokens generated from",
		"  of " + Count(got.Untimed) + " of their " + Count(got.Steps) + " steps the lanes were left out"} {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in:\n%s", s, text)
		}
	}
	// Without requests there is no table.
	r = New(Options{})
	e = read(t, synth.Options{Duration: 50 * time.Millisecond}, r)
	if s := r.Text(e); strings.Contains(s, "REQUESTS") || strings.Contains(s, "model") {
		t.Errorf("%s", s)
	}
}

// TestRequestLines: a line for each request that ended, and every step says how many
// it worked for.
func TestRequestLines(t *testing.T) {
	var out bytes.Buffer
	l := NewLines(&out)
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 60 * time.Millisecond, RequestEvery: 4, LaneEvery: 4}), collector.ProcessorOptions{
		Exporter: l, Selector: collector.SelectAll{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	a := p.Engine().Account()
	if a.Sidecar.Exported != a.Sidecar.Received || a.Sidecar.Received != a.Producer.Landed {
		t.Errorf("account %+v", a)
	}
	steps, requests, leftOut := 0, 0, 0
	for s := range strings.Lines(out.String()) {
		switch {
		case strings.Contains(s, "  request  ") && strings.Contains(s, " tokens from ") && strings.Contains(s, "  trace "):
			requests++
			if strings.Contains(s, " steps left out") {
				leftOut++
			}
		case strings.Contains(s, "  step  ") && strings.Contains(s, ", requests "):
			steps++
		}
	}
	if n := p.Engine().Requests().Ended; n == 0 || requests != int(n) || leftOut == 0 {
		t.Errorf("%d lines of %d requests, %d with lanes left out", requests, n, leftOut)
	}
	if n := a.Producer.Landed; steps == 0 || uint64(steps) > n {
		t.Errorf("%d steps say that they worked for requests", steps)
	}
	l = NewLines(&failing{2000})
	if p, err = collector.NewProcessor(synth.New(synth.Options{Duration: 60 * time.Millisecond, RequestEvery: 4}), collector.ProcessorOptions{
		Exporter: l, Selector: collector.SelectAll{},
	}); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Close: %v", err)
	}
	if a := p.Engine().Account(); a.Sidecar.Dropped["refused"] == 0 || a.Sidecar.Pending != 0 || len(a.Unbalanced()) > 0 {
		t.Errorf("account %+v", a.Sidecar)
	}
}
