package chrome

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestRequests: each request that ended is an event with its times, and what it
// names as its steps names it.
func TestRequests(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	requests := map[string]collector.Request{}
	o := &observer{func(r *collector.Request) { requests[requestName(&r.TraceContext)] = *r }}
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 100 * time.Millisecond, RequestEvery: 5, LaneEvery: 4, Model: "org/model"}), collector.ProcessorOptions{
		Exporter: w, Selector: collector.SelectAll{}, Observers: []collector.Observer{o},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if a := p.Engine().Account(); len(a.Unbalanced()) > 0 || a.Sidecar.Exported != a.Producer.Landed {
		t.Errorf("account %+v", a)
	}
	d := parse(t, out.Bytes())
	type times struct{ startNS, endNS int64 }
	open, got := map[string]traceEvent{}, map[string]times{}
	stepsOf := map[string][]string{} // by request, as the steps say
	saidBy := map[string][]string{}  // as the requests say
	for _, e := range d.TraceEvents {
		switch {
		case e.Cat == "step" && e.Ph == "b":
			if rs, ok := e.Args["requests"].([]any); ok {
				for _, r := range rs {
					stepsOf[r.(string)] = append(stepsOf[r.(string)], fmt.Sprint(e.Args["step"]))
				}
			}
		case e.Cat == "request" && e.Ph == "b":
			open[e.Id2.Local] = e
		case e.Cat == "request" && e.Ph == "e":
			b := open[e.Id2.Local]
			name := b.Args["request"].(string)
			r := requests[name]
			got[name] = times{ns(t, b.Ts), ns(t, e.Ts)}
			for _, n := range b.Args["exported_steps"].([]any) {
				saidBy[name] = append(saidBy[name], n.(string))
			}
			for k, want := range map[string]int64{
				"prompt_tokens": int64(r.PromptTokens), "output_tokens": int64(r.OutputTokens), "steps": int64(r.Steps), "steps_open": 0,
				"gpu_lane_ns": r.GPULaneNS, "steps_lanes_untimed": int64(r.StepsUntimed), "exported_steps_left_out": 0,
			} {
				if s := fmt.Sprint(b.Args[k]); s != fmt.Sprint(want) {
					t.Errorf("%s of %s is %s, want %d", k, name, s, want)
				}
			}
		}
	}
	untimed := 0
	for _, r := range requests {
		untimed += r.StepsUntimed
	}
	if untimed == 0 {
		t.Error("no step's lanes were left out")
	}
	if len(got) != len(requests) || len(got) < 5 {
		t.Errorf("%d requests written of %d", len(got), len(requests))
	}
	for name, r := range requests {
		if g := got[name]; g.endNS-g.startNS != r.EndNS-r.BeginNS {
			t.Errorf("%s takes %d ns, want %d", name, g.endNS-g.startNS, r.EndNS-r.BeginNS)
		}
		if diff := cmp.Diff(stepsOf[name], saidBy[name]); diff != "" {
			t.Errorf("steps of %s (-by the steps +by the request):\n%s", name, diff)
		}
	}
	if !strings.Contains(out.String(), "org/model") {
		t.Error("the process does not name its model")
	}
}

type observer struct{ f func(*collector.Request) }

func (observer) ObserveStep(*collector.Step)            {}
func (o *observer) ObserveRequest(r *collector.Request) { o.f(r) }

var errFull = errors.New("disk full")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// TestRequestsThatCannotBeWritten are dropped, and so are those after the close.
func TestRequestsThatCannotBeWritten(t *testing.T) {
	for _, broken := range []bool{true, false} {
		var out bytes.Buffer
		w := NewWriter(&out)
		if broken {
			w = NewWriter(fullDisk{})
		} else if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 100 * time.Millisecond, RequestEvery: 5}), collector.ProcessorOptions{
			Exporter: w, Selector: collector.SelectAll{},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		a := p.Engine().Account()
		if len(a.Unbalanced()) > 0 || a.Sidecar.Pending != 0 || a.Sidecar.Dropped["refused"] == 0 {
			t.Errorf("account %+v", a.Sidecar)
		}
		if err := w.Close(); broken != errors.Is(err, errFull) {
			t.Errorf("close: %v", err)
		}
		p.Close()
	}
}
