package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lanetrace/lanetrace/backend/agent"
	"github.com/lanetrace/lanetrace/internal/testdriver"
)

// attachable is what an attached program needs where there is no GPU: the agent,
// the stand-in driver and a program.
type attachable struct{ agent, driver, engine string }

// makeAttachable builds it once for all scripts, into a folder that the test
// binary's end removes.
var makeAttachable = sync.OnceValues(func() (at attachable, err error) {
	dir, err := os.MkdirTemp("", "lanetrace-run-test-")
	if err != nil {
		return at, err
	}
	builtDirs = append(builtDirs, dir)
	at = attachable{filepath.Join(dir, agent.Name), filepath.Join(dir, testdriver.Name), filepath.Join(dir, "engine")}
	if err := agent.BuildTo(at.agent); err != nil {
		return at, err
	}
	if err := testdriver.BuildTo(at.driver); err != nil {
		return at, err
	}
	cmd := exec.Command("gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", "../../backend/agent/include", "-o", at.engine, "testdata/run/engine.c", "-ldl")
	if out, err := cmd.CombinedOutput(); err != nil {
		return at, fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return at, nil
})

// builtDirs are removed at the end.
var builtDirs []string

// attachableCmd sets AGENT, ENGINE and the path on which the stand-in driver is
// found.
func attachableCmd(ts *testscript.TestScript, neg bool, args []string) {
	at, err := makeAttachable()
	ts.Check(err)
	ts.Setenv("AGENT", at.agent)
	ts.Setenv("ENGINE", at.engine)
	ts.Setenv("LD_LIBRARY_PATH", filepath.Dir(at.driver))
}

// code N CMD ARG... runs CMD and wants that exit code, whatever it says.
func exitsWith(ts *testscript.TestScript, neg bool, args []string) {
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		ee, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		got = ee.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit code %d, want %s\nstdout:\n%s\nstderr:\n%s", got, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// TestRunEnvironment: what the program has in its environment, and what is said
// about it.
func TestRunEnvironment(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, agentName)
	blank := filepath.Join(dir, "a b", agentName)
	for _, p := range []string{lib, blank} {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"LD_PRELOAD", "NVTX_INJECTION64_PATH", "LANETRACE_AGENT", "LANETRACE_DIR", "LANETRACE_GROUP", runMark}
	for _, c := range []struct {
		name string
		cmd  runCmd
		env  map[string]string
		want map[string]string
		said string
	}{
		{"plain", runCmd{Agent: lib}, nil, map[string]string{"LD_PRELOAD": lib, "NVTX_INJECTION64_PATH": lib, "LANETRACE_AGENT": lib}, ""},
		{
			"others are kept", runCmd{Agent: lib, dirFlags: dirFlags{Dir: "/x", Group: "5"}}, map[string]string{"LD_PRELOAD": "/y/a.so /y/b.so:" + lib},
			map[string]string{"LD_PRELOAD": lib + ":/y/a.so:/y/b.so", "NVTX_INJECTION64_PATH": lib, "LANETRACE_AGENT": lib, "LANETRACE_DIR": "/x", "LANETRACE_GROUP": "5"}, "",
		},
		{
			"another NVTX tool", runCmd{Agent: lib}, map[string]string{"NVTX_INJECTION64_PATH": "/y/nsys.so"},
			map[string]string{"LD_PRELOAD": lib, "NVTX_INJECTION64_PATH": "/y/nsys.so", "LANETRACE_AGENT": lib},
			"lanetrace: warning: NVTX_INJECTION64_PATH names /y/nsys.so: NVTX ranges go there, and steps cannot be told by them\n",
		},
		{"missing", runCmd{Agent: "/nowhere/x.so"}, nil, nil, "lanetrace: warning: no agent library at /nowhere/x.so (make agent builds it, --agent names it); the program runs without it\n"},
		{"blank", runCmd{Agent: blank}, nil, nil, fmt.Sprintf("lanetrace: warning: agent library %q: a path with a blank or a colon cannot be preloaded; the program runs without it\n", blank)},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range names {
				t.Setenv(n, c.env[n])
				if c.env[n] == "" {
					os.Unsetenv(n)
				}
			}
			var said bytes.Buffer
			env := environment(c.cmd.environ(&app{log: newLogger(&said)}, "m"))
			got := map[string]string{}
			for _, n := range names {
				if v := env.get(n); v != "" {
					got[n] = v
				}
			}
			want := map[string]string{runMark: "m"}
			for k, v := range c.want {
				want[k] = v
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("environment (-want +got):\n%s", d)
			}
			if said.String() != c.said {
				t.Errorf("said %q, want %q", said.String(), c.said)
			}
		})
	}
}
