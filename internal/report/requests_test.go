package report

import (
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
	e := read(t, synth.Options{Duration: 500 * time.Millisecond, RequestEvery: 4, Model: "org/model"}, r, &requestObserver{func(q *collector.Request) {
		add(&want.Taken, q.EndNS-q.BeginNS)
		add(&want.GPULanes, q.GPULaneNS)
		want.Steps += uint64(q.Steps)
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
	if d := cmp.Diff(want, got); d != "" || got.Taken.Count < 10 {
		t.Errorf("(-want +got):\n%s", d)
	}
	if doc.Model != "org/model" || doc.Rank != (RankReport{-1, -1, -1, -1}) {
		t.Errorf("model %q, rank %+v", doc.Model, doc.Rank)
	}
	if doc.Step == nil || len(doc.Step.Requests) == 0 || len(doc.Step.Requests[0]) != 49 || doc.Step.LeftOut != 0 {
		t.Errorf("step %+v", doc.Step)
	}
	text := r.Text(e)
	for _, s := range []string{"  model   org/model", "REQUESTS (traced)", "lanes of their steps", "tokens generated from"} {
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
