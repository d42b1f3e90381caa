package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestPerturbIsNamed: the launch trace names the one argument that differs, in
// passes that are launched and in passes that are captured.
func TestPerturbIsNamed(t *testing.T) {
	for _, mode := range [][]string{nil, {"--graph"}, {"--level", "kernel"}} {
		t.Run(strings.Join(mode, " "), func(t *testing.T) {
			dir := ringDir(t)
			var out, errs bytes.Buffer
			begin := time.Now()
			args := append([]string{"--backend", "sim", "--dir", dir, "--perturb"}, mode...)
			if status := run(t.Context(), args, &out, &errs, func(string) string { return "" }); status != exitOK {
				t.Fatalf("status %d: %s", status, errs.String())
			}
			t.Logf("named after %v", time.Since(begin))
			for _, want := range []string{
				"step 4 of 6: argument 2 of the last swiglu is 159, not 160",
				"region decode, step 4 against step 3: 40 operations before, 40 after: 0 inserted, 0 removed, 1 changed\n" +
					"  changed #35 kernel decode::swiglu: arg2 0xa0 -> 0x9f (-1)\n",
				"  changed #35 kernel decode::swiglu: arg2 0x9f -> 0xa0 (+1)\n",
				"region decode, step 6 against step 5: 40 operations before, 40 after, no difference\n",
			} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			_, entries := readRing(t, dir)
			var diffs []uint32
			for i := range entries {
				if w := &entries[i].Words; w.Kind() == spanring.KindLaunchDiff {
					d, err := w.LaunchDiff()
					if err != nil {
						t.Fatal(err)
					}
					diffs = append(diffs, d.Changed)
				}
			}
			if d := cmp.Diff([]uint32{0, 0, 0, 1, 1, 0}, diffs); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
		})
	}
}

func TestPerturbJSON(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"--backend", "sim", "--dir", ringDir(t), "--perturb", "--graph", "--json"}
	if status := run(t.Context(), args, &out, &errs, func(string) string { return "" }); status != exitOK {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	var p perturbation
	if err := json.Unmarshal(out.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, s := range p.Steps {
		changed += s.Changed
	}
	if !p.Captured || len(p.Steps) != perturbSteps || changed != 2 || p.Steps[perturbedStep-1].Changed != 1 {
		t.Errorf("%+v", p)
	}
}

// TestGraphServesTheSame: what is generated does not depend on how kernels are
// launched, and steps say how they were.
func TestGraphServesTheSame(t *testing.T) {
	serve := func(args ...string) (summary, map[spanring.GraphMode]int) {
		dir := ringDir(t)
		got := decode(t, t.Context(), append([]string{"--requests", "30", "--rate", "2000", "--dir", dir}, args...)...)
		if got.status != exitOK {
			t.Fatalf("status %d: %s", got.status, got.stderr)
		}
		modes := make(map[spanring.GraphMode]int)
		_, entries := readRing(t, dir)
		for i := range entries {
			if w := &entries[i].Words; w.Kind() == spanring.KindStepAttrs {
				a, err := w.StepAttrs()
				if err != nil {
					t.Fatal(err)
				}
				modes[a.GraphMode]++
			}
		}
		return got.sum, modes
	}
	eager, modes := serve()
	if len(modes) != 1 || modes[spanring.GraphEager] == 0 {
		t.Errorf("eager: modes %v", modes)
	}
	for _, args := range [][]string{{"--graph"}, {"--graph", "--async"}, {"--graph", "--level", "kernel"}} {
		sum, modes := serve(args...)
		if sum.Tokens.Generated != eager.Tokens.Generated || sum.Requests.Served != 30 {
			t.Errorf("%v: %d tokens, want %d", args, sum.Tokens.Generated, eager.Tokens.Generated)
		}
		if modes[spanring.GraphReplay] == 0 {
			t.Errorf("%v: modes %v", args, modes)
		}
		if sum.Steps.Launches >= eager.Steps.Launches {
			t.Errorf("%v: %.1f launches a step, eager %.1f", args, sum.Steps.Launches, eager.Steps.Launches)
		}
		if sum.Telemetry.Failed != 0 || sum.Telemetry.Begun != sum.Telemetry.Landed {
			t.Errorf("%v: %+v", args, sum.Telemetry)
		}
	}
}
