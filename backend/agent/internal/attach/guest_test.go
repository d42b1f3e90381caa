package attach

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestThreads begins and ends threads, each with ranges, a stream and memory of
// its own.
func TestThreads(t *testing.T) {
	engine := compileEngine(t, "engine.c", false)
	r := start(t, runOptions{settle: true, env: []string{"LANETRACE_STEP=step"}}, engine, "proc", "storm", "160")
	got := r.only(t)
	got.balanced(t)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("exit code %d, standard error %s", r.code, r.stderr)
	}
	if n := got.Counters[spanring.CtrStepsEnded]; n != 160 {
		t.Errorf("%d steps, want 160", n)
	}
	if len(got.Lanes) != 320 || len(got.Kernels) != 320 {
		t.Errorf("%d lanes and %d kernels, want 320 of each", len(got.Lanes), len(got.Kernels))
	}
	if m := got.Memory; m.LiveBytes != 3<<20 || m.Allocs != 161 || m.Frees != 160 {
		t.Errorf("%d bytes live, %d allocations, %d frees; want 3 MiB, 161, 160", m.LiveBytes, m.Allocs, m.Frees)
	}
}

// TestFork has a child of fork end, which must not end the parent's ring, and a
// program spawned.
func TestFork(t *testing.T) {
	engine := compileEngine(t, "engine.c", false)
	r := start(t, runOptions{settle: true, env: []string{"LANETRACE_STEP=step"}}, engine, "dlsym", "forks")
	if r.code != 0 || r.stderr != "" || !strings.Contains(r.stdout, "child 7\nspawned 9\n") {
		t.Fatalf("exit code %d, standard error %q, standard output %q", r.code, r.stderr, r.stdout)
	}
	got := r.only(t)
	got.balanced(t)
	if n := got.Counters[spanring.CtrStepsEnded]; n != 3 {
		t.Errorf("%d steps, want 3", n)
	}
}

// TestForkWhileLookingUp forks while other threads look the driver's functions up: a child
// that does so must not wait for what one of them held.
func TestForkWhileLookingUp(t *testing.T) {
	r := start(t, runOptions{}, compileEngine(t, "engine.c", false), "dlsym", "looking up")
	if r.code != 0 || r.stderr != "" || r.stdout != "hung 0\n" {
		t.Errorf("exit code %d, standard output %q, standard error %q", r.code, r.stdout, r.stderr)
	}
}

// TestKilledWithChild kills an engine whose child of fork lives on: the ring's lock
// must have gone with the engine.
func TestKilledWithChild(t *testing.T) {
	engine := compileEngine(t, "engine.c", false)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(engine, "dlsym", "orphan")
	cmd.Env = runOptions{}.environment(t, dir, filepath.Join(t.TempDir(), "log"))
	childIn, childHeld, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer childHeld.Close() //nolint:errcheck // its end ends the child
	cmd.ExtraFiles = []*os.File{childIn}
	p := startWaiting(t, cmd)
	childIn.Close() //nolint:errcheck // the program has its own
	r := run{dir: dir}
	r.settle(t)
	ring, err := spanring.Open(r.rings(t)[0], spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close() //nolint:errcheck // read only
	if alive, err := ring.Alive(); err != nil || !alive {
		t.Fatalf("alive is %v, %v before the kill", alive, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()   //nolint:errcheck // killed
	p.in.Close() //nolint:errcheck // likewise
	for deadline := time.Now().Add(time.Second); ; {
		alive, err := ring.Alive()
		if err != nil {
			t.Fatal(err)
		}
		if !alive {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the engine is taken for alive a second after it was killed, its child holding on")
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestUnload closes the driver's library as often as it was opened, and a program
// that is unloaded itself is none of ours: nothing may call into what is gone.
func TestUnload(t *testing.T) {
	engine := compileEngine(t, "engine.c", false)
	r := start(t, runOptions{env: []string{"ENGINE_UNLOAD=1", "LANETRACE_STEP=step"}, settle: true}, engine, "dlsym", "steps")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("exit code %d, standard error %s", r.code, r.stderr)
	}
	r.only(t).balanced(t)
}

// TestExit ends a program with work in flight: from then on the driver hears from
// the program alone, and the ring has ended cleanly with its account in order.
func TestExit(t *testing.T) {
	engine := compileEngine(t, "engine.c", false)
	for range 5 {
		r := start(t, runOptions{env: []string{"LANETRACE_STEP=step"}}, engine, "dlsym", "exit")
		want := "done\ncalls after exit began: 0\ncalls for two of the program's: 2\n"
		if r.code != 0 || r.stderr != "" || r.stdout != want {
			t.Fatalf("exit code %d, standard error %q, standard output %q", r.code, r.stderr, r.stdout)
		}
		c := r.only(t).Counters
		// The step that never ended is all that is still open.
		if c.InFlight() != 1 || c[spanring.CtrStepsBegun] != 1 || c[spanring.FailClosed.Counter()] == 0 {
			t.Errorf("%d in flight, %d failed as closed", c.InFlight(), c[spanring.FailClosed.Counter()])
		}
	}
}

// TestWithoutCUDA runs programs that make no context: they leave nothing behind and
// hear nothing.
func TestWithoutCUDA(t *testing.T) {
	engine := compileEngine(t, "engine.c", false)
	for _, args := range [][]string{{engine, "dlsym", "nothing"}, {"/bin/sh", "-c", "exit 0"}, {engine, "dlsym", "absent"}} {
		r := start(t, runOptions{}, args[0], args[1:]...)
		if r.code != 0 || r.stderr != "" || len(r.rings(t)) != 0 {
			t.Errorf("%v: exit code %d, standard error %q, %d rings", args, r.code, r.stderr, len(r.rings(t)))
		}
	}
}

// TestSaidOnce runs programs for which something is missing: one line, and the
// program goes on.
func TestSaidOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		o          runOptions
		goesOn     bool // with the default, else the agent is off
	}{
		{name: "directory", o: runOptions{env: []string{"LANETRACE_DIR=/nowhere/to/be/found"}}, want: "/nowhere/to/be/found"},
		{name: "no directory", o: runOptions{env: []string{"LANETRACE_DIR=" + file}}, want: file},
		{name: "level", o: runOptions{level: "loud"}, want: "loud"},
		{name: "driver", o: runOptions{driver: testdriver.BuildWithout(t, "cuEventElapsedTime", "cuEventElapsedTime_v2")}, want: "cuEventElapsedTime"},
		{name: "window", o: runOptions{env: []string{"LANETRACE_STEP=window:never"}}, want: "window:never", goesOn: true},
		{name: "dots twice", o: runOptions{env: []string{"LANETRACE_STEP=a...b...c"}}, want: "a...b...c: want FIRST...LAST", goesOn: true},
		{name: "dots first", o: runOptions{env: []string{"LANETRACE_STEP=x,...b"}}, want: "want a pattern before", goesOn: true},
		{name: "no step", o: runOptions{env: []string{"LANETRACE_STEP=,"}}, want: "LANETRACE_STEP=,: want a pattern", goesOn: true},
		{name: "equals first", o: runOptions{env: []string{"LANETRACE_LANES==x"}}, want: "LANETRACE_LANES==x: want a pattern", goesOn: true},
		{name: "equals twice", o: runOptions{env: []string{"LANETRACE_LANES=a=b=c"}}, want: "want PATTERN=NAME", goesOn: true},
		{name: "two lines", o: runOptions{env: []string{"LANETRACE_LANES=a\n\x1b=b=c"}}, want: "LANETRACE_LANES=a??=b=c: want PATTERN=NAME", goesOn: true},
		{name: "no lane name", o: runOptions{env: []string{"LANETRACE_LANES=a="}}, want: "want PATTERN=NAME", goesOn: true},
		{name: "too many", o: runOptions{env: []string{"LANETRACE_LANES=" + strings.Repeat("a,", 65)}}, want: "want at most 64", goesOn: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			engine := compileEngine(t, "engine.c", false)
			r := start(t, tc.o, engine, "dlsym", "steps", "2")
			plain := start(t, runOptions{without: true, driver: tc.o.driver}, engine, "dlsym", "steps", "2")
			if diff := cmp.Diff(plain.stdout, r.stdout); diff != "" || r.code != plain.code {
				t.Errorf("exit code %d; the program saw (-without +with the agent):\n%s", r.code, diff)
			}
			lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
			want := 1
			if tc.name == "window" { // a second line says what stands in for steps
				want = 2
			}
			if len(lines) != want || !strings.HasPrefix(lines[0], "lanetrace: ") || !strings.Contains(lines[0], tc.want) {
				t.Errorf("standard error %q, want %d lines, the first with %q", r.stderr, want, tc.want)
			}
			if !tc.goesOn && len(r.rings(t)) != 0 {
				t.Errorf("%d rings, want none", len(r.rings(t)))
			}
			if tc.goesOn && r.only(t).Counters[spanring.CtrStepsBegun] == 0 {
				t.Error("no steps, as the default has them")
			}
		})
	}
}

// TestOtherInterposers loads the agent with another library that interposes dlsym
// and one of the driver's functions, before it and behind it: both see every call.
func TestOtherInterposers(t *testing.T) {
	other := filepath.Join(t.TempDir(), "libother.so")
	if said, err := exec.Command("gcc", "-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o", other,
		"testdata/other.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, said)
	}
	engine := compileEngine(t, "engine.c", false)
	linked := compileEngine(t, "engine.c", true)
	for _, order := range []string{"before", "behind"} {
		for _, way := range []struct{ name, program, how string }{{"dlsym", engine, "dlsym"}, {"linked", linked, "linked"}} {
			t.Run(order+"/"+way.name, func(t *testing.T) {
				preload := agentLibrary(t) + ":" + other
				if order == "before" {
					preload = other + ":" + agentLibrary(t)
				}
				seen := filepath.Join(t.TempDir(), "seen")
				o := runOptions{settle: true, env: []string{"LANETRACE_STEP=step", "LD_PRELOAD=" + preload, "OTHER_SEEN=" + seen}}
				r := start(t, o, way.program, way.how, "steps", "2")
				if r.code != 0 || r.stderr != "" {
					t.Fatalf("exit code %d, standard error %s", r.code, r.stderr)
				}
				got := r.only(t)
				got.balanced(t)
				if len(got.Kernels) != 10 {
					t.Errorf("%d kernels, want 10: %q", len(got.Kernels), got.Kernels)
				}
				text, err := os.ReadFile(seen)
				if err != nil {
					t.Fatal(err)
				}
				// Two fills in each of two steps, one in the capture.
				if string(text) != "5 launches\n" {
					t.Errorf("the other library saw %q, want 5 launches", text)
				}
			})
		}
	}
}

// TestDlsymKeepsItsCaller looks things up as programs do, with every kind of handle.
func TestDlsymKeepsItsCaller(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, "libnext.so")
	bin := filepath.Join(dir, "lookups")
	for _, args := range [][]string{
		{"-fPIC", "-shared", "-DLIBRARY", "-o", lib, "testdata/lookups.c", "-ldl"},
		{"-rdynamic", "-o", bin, "testdata/lookups.c", lib, "-ldl"},
	} {
		if said, err := exec.Command("gcc", append([]string{"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, said)
		}
	}
	env := []string{"LD_LIBRARY_PATH=" + filepath.Dir(testdriver.Build(t)) + ":" + dir}
	want := start(t, runOptions{without: true, env: env}, bin)
	got := start(t, runOptions{env: env}, bin)
	if want.code != 0 || !strings.Contains(want.stdout, "next") {
		t.Fatalf("without: exit code %d, %s%s", want.code, want.stdout, want.stderr)
	}
	if diff := cmp.Diff(want.stdout, got.stdout); diff != "" || got.stderr != "" {
		t.Errorf("look-ups (-without +with the agent):\n%s%s", diff, got.stderr)
	}
}

// BenchmarkExec is what the agent adds to a program that does nothing and uses no
// CUDA.
func BenchmarkExec(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("agent=%v", with), func(b *testing.B) {
			env := []string{"PATH=" + os.Getenv("PATH")}
			if with {
				env = append(env, "LD_PRELOAD="+agentLibrary(b))
			}
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				cmd.Env, cmd.Stdout = env, io.Discard
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
