package report

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestReportForMachines: the document's figures are those of the steps, counted
// anew, and it reads back as it was written.
func TestReportForMachines(t *testing.T) {
	type total struct{ Count, SumNS, MaxNS uint64 }
	add := func(m map[string]total, k string, v uint64) {
		x := m[k]
		m[k] = total{x.Count + 1, x.SumNS + v, max(x.MaxNS, v)}
	}
	lanes, armed, kernels, steps := map[string]total{}, map[string]total{}, map[string]total{}, map[string]total{}
	r := New(Options{Top: 1})
	e := read(t, synth.Options{Duration: 2 * time.Second, FailEvery: 50, DropEvery: 60, DiffEvery: 100, Memory: true, LeakEvery: 3, ViolateAt: 20}, r,
		collector.ObserverFunc(func(s *collector.Step) {
			a, b := s.Bounds()
			if s.Armed {
				add(steps, "armed", uint64(b-a))
			} else {
				add(steps, "unarmed", uint64(b-a))
				add(steps, "host", uint64(s.HostNS()))
			}
			for i := range s.Spans {
				switch sp := &s.Spans[i]; {
				case sp.Kind == spanring.KindKernel:
					add(kernels, sp.Text.Text, sp.DurationNS())
				case s.Armed:
					add(armed, sp.Text.Text, sp.DurationNS())
				default:
					add(lanes, sp.Text.Text, sp.DurationNS())
				}
			}
		}))
	r.Ended(e)
	var b bytes.Buffer
	if err := (&Document{DocumentVersion, []*EngineReport{r.Report(e)}, []DeviceReport{}}).Write(&b); err != nil {
		t.Fatal(err)
	}
	var doc Document
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Report(e), doc.Engines[0]); diff != "" {
		t.Errorf("written and read back (-want +got):\n%s", diff)
	}
	got := doc.Engines[0]
	of := func(x Distribution) total {
		if x.P50NS > x.P99NS || x.P99NS > x.MaxNS || (x.Count > 0 && x.P50NS == 0) {
			t.Errorf("quantiles of %+v", x)
		}
		return total{x.Count, x.SumNS, x.MaxNS}
	}
	gotLanes, gotArmed, gotKernels := map[string]total{}, map[string]total{}, map[string]total{}
	for _, l := range got.Lanes {
		gotLanes[l.Lane] = of(l.Unarmed)
		if x := of(l.Armed); x.Count > 0 {
			gotArmed[l.Lane] = x
		}
	}
	for _, k := range got.Kernels {
		gotKernels[k.Kernel] = of(k.Distribution)
		if k.Queued+k.Starved != k.Count {
			t.Errorf("%+v: queued and starved are not all", k)
		}
	}
	gotSteps := map[string]total{"armed": of(got.Steps.Armed), "unarmed": of(got.Steps.Unarmed), "host": of(got.Steps.Host)}
	for _, x := range []struct {
		what      string
		want, got map[string]total
	}{{"lanes", lanes, gotLanes}, {"armed lanes", armed, gotArmed}, {"kernels", kernels, gotKernels}, {"steps", steps, gotSteps}} {
		if diff := cmp.Diff(x.want, x.got); diff != "" || len(x.want) < 2 {
			t.Errorf("%s (-want +got):\n%s", x.what, diff)
		}
	}
	c := e.Counters()
	if got.Counters["begun"] != c[spanring.CtrBegun] || got.Account.Producer.Begun != c[spanring.CtrBegun] || c[spanring.CtrBegun] == 0 {
		t.Errorf("begun %d and %d, want %d", got.Counters["begun"], got.Account.Producer.Begun, c[spanring.CtrBegun])
	}
	m := e.Memory()
	if got.Memory == nil || got.Memory.Live != m.Totals.LiveBytes || len(got.Memory.Sites) != len(m.Sites) || got.Memory.Live == 0 ||
		got.Bands.Violations != 1 || len(got.Bands.Last) != 1 || len(got.Leaks) != 1 {
		t.Errorf("memory %+v, bands %+v, leaks %+v", got.Memory, got.Bands, got.Leaks)
	}
	if got.Step == nil || !got.Step.Armed || len(got.Step.Spans) < 10 || len(got.Regions) != 1 || len(got.Contexts) != 1 || got.From == nil {
		t.Errorf("step %+v, regions %+v, contexts %+v", got.Step, got.Regions, got.Contexts)
	}
}

// TestNothingForMachines: of a run of which nothing was read every key is there,
// and no list is null.
func TestNothingForMachines(t *testing.T) {
	r := New(Options{})
	e := read(t, synth.Options{Duration: time.Nanosecond})
	var b bytes.Buffer
	if err := (&Document{DocumentVersion, []*EngineReport{r.Report(e)}, []DeviceReport{}}).Write(&b); err != nil {
		t.Fatal(err)
	}
	var nulls []string
	for l := range strings.Lines(b.String()) {
		if strings.Contains(l, "null") {
			nulls = append(nulls, strings.Trim(l, " ,\n"))
		}
	}
	if d := cmp.Diff([]string{`"from": null`, `"to": null`, `"memory": null`, `"step": null`}, nulls); d != "" {
		t.Errorf("null (-want +got):\n%s", d)
	}
	for _, want := range []string{`"in_flight": 0`, `"not_selected": {`, `"queue_full": 0`, `"capture": 0`, `"timeout": 0`, `"unbalanced": []`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}

// TestKeysAreDocumented: docs/report.md has every key.
func TestKeysAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/report.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	var walk func(reflect.Type)
	walk = func(ty reflect.Type) {
		switch ty.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(ty.Elem())
		case reflect.Struct:
			if ty == reflect.TypeFor[time.Time]() {
				return
			}
			for i := range ty.NumField() {
				f := ty.Field(i)
				if k := f.Tag.Get("json"); k != "" {
					keys++
					if !strings.Contains(string(doc), "`"+k+"`") {
						t.Errorf("docs/report.md does not say what %s is, of %s", k, ty.Name())
					}
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Document]())
	if keys < 90 {
		t.Errorf("%d keys seen", keys)
	}
}
