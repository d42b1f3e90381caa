package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// requestsOf are the requests that a ring's reader makes out, by traceparent, and
// how many steps were linked to one.
func requestsOf(t *testing.T, dir string) (out map[string]collector.Request, linked int, model string) {
	t.Helper()
	paths, err := spanring.Dir{Path: dir, Group: -1}.List()
	if err != nil || len(paths) != 1 {
		t.Fatalf("rings in %s: %v, %v", dir, paths, err)
	}
	rd, err := spanring.Open(paths[0], spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := &requestObserver{requests: make(map[string]collector.Request)}
	p, err := collector.NewProcessor(collector.NewRingSource(rd), collector.ProcessorOptions{Observers: []collector.Observer{o}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if a := p.Engine().Account(); len(a.Unbalanced()) > 0 || a.Producer.Begun != a.Producer.Landed || a.Sidecar.Received != a.Producer.Landed {
		t.Errorf("account %+v", a)
	}
	return o.requests, o.linked, p.Engine().Info().Model
}

type requestObserver struct {
	requests map[string]collector.Request
	linked   int
}

func (o *requestObserver) ObserveStep(s *collector.Step) {
	if s.Linked() {
		o.linked++
	}
}

func (o *requestObserver) ObserveRequest(r *collector.Request) {
	o.requests[fmt.Sprintf("00-%x-%x-%02x", r.TraceID, r.SpanID, r.Flags)] = *r
}

// TestTracedRequests: from what a request's caller knows, its steps and their GPU
// time are found; in asynchronous mode with the step that ran ahead.
func TestTracedRequests(t *testing.T) {
	for _, mode := range []string{"--no-async", "--async"} {
		t.Run(mode, func(t *testing.T) {
			var first []traced
			for range 2 {
				dir := ringDir(t)
				args := []string{"--requests", "30", "--rate", "2000", "--dir", dir, "--no-verify", "--trace", "0.4"}
				if mode == "--async" {
					args = append(args, mode)
				}
				got := decode(t, context.Background(), args...)
				if got.status != exitOK {
					t.Fatalf("status %d: %s", got.status, got.stderr)
				}
				if n := got.sum.Requests.Traced; n != len(got.sum.Traced) || n < 5 || n > 25 {
					t.Fatalf("%d of 30 requests traced, %d named", n, len(got.sum.Traced))
				}
				rs, linked, model := requestsOf(t, dir)
				if len(rs) != len(got.sum.Traced) || linked == 0 || model != "decode-tiny" {
					t.Errorf("%d requests in the ring, %d traced, %d steps linked, model %q", len(rs), len(got.sum.Traced), linked, model)
				}
				for _, q := range got.sum.Traced {
					r, ok := rs[q.Traceparent]
					if !ok {
						t.Errorf("request %d, %s, is not in the ring", q.ID, q.Traceparent)
						continue
					}
					if int(r.PromptTokens) != q.PromptTokens || int(r.OutputTokens) != q.OutputTokens {
						t.Errorf("%+v, the ring says %d and %d tokens", q, r.PromptTokens, r.OutputTokens)
					}
					// A step for each token, more where the prompt took several or a step ran
					// ahead.
					if r.Steps < q.OutputTokens || r.StepsOpen != 0 || r.GPULaneNS <= 0 || r.EndNS <= r.BeginNS {
						t.Errorf("%+v came to %d steps, %d open, %d ns of lanes", q, r.Steps, r.StepsOpen, r.GPULaneNS)
					}
				}
				byID := map[int]traced{}
				for _, q := range got.sum.Traced {
					byID[q.ID] = q
				}
				for _, q := range first {
					if d := cmp.Diff(q, byID[q.ID]); d != "" {
						t.Errorf("the same seed gives another request:\n%s", d)
					}
				}
				first = got.sum.Traced
			}
		})
	}
	dir := ringDir(t)
	if got := decode(t, context.Background(), "--requests", "5", "--rate", "2000", "--dir", dir, "--no-verify"); got.sum.Requests.Traced != 0 || got.sum.Traced != nil {
		t.Errorf("without --trace %+v", got.sum.Traced)
	}
	if rs, linked, _ := requestsOf(t, dir); len(rs) != 0 || linked != 0 {
		t.Errorf("without --trace %d requests, %d steps linked", len(rs), linked)
	}
}
