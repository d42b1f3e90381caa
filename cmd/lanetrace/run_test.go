package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace"
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

// elfMachine is this machine's, as the test binary names it.
func elfMachine(t *testing.T) elf.Machine {
	t.Helper()
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	return f.Machine
}

// elfHeader is a file of that type with nothing in it.
func elfHeader(of elf.Type, machine elf.Machine) []byte {
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(of), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56, Shentsize: 64,
	}
	b, _ := binary.Append(nil, binary.LittleEndian, &h) // of fixed size
	return b
}

// TestRunEnvironment: what the program has in its environment, and what is said
// about it.
func TestRunEnvironment(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, agentName)
	blank := filepath.Join(dir, "a b", agentName)
	text := filepath.Join(dir, "text", agentName)
	foreign := filepath.Join(dir, "foreign", agentName)
	program := filepath.Join(dir, "program", agentName)
	for p, b := range map[string][]byte{
		lib: elfHeader(elf.ET_DYN, elfMachine(t)), blank: elfHeader(elf.ET_DYN, elfMachine(t)), text: []byte("no library"),
		foreign: elfHeader(elf.ET_DYN, elf.EM_S390), program: elfHeader(elf.ET_EXEC, elfMachine(t)),
	} {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kernel := lanetrace.LevelKernel
	names := []string{"LD_PRELOAD", "NVTX_INJECTION64_PATH", "LANETRACE_AGENT", "LANETRACE_DIR", "LANETRACE_GROUP", "LANETRACE_STEP", "LANETRACE_LANES", "LANETRACE_LEVEL", runMark}
	for _, c := range []struct {
		name string
		cmd  runCmd
		env  map[string]string
		want map[string]string
		said string
	}{
		{"plain", runCmd{Agent: lib}, nil, map[string]string{"LD_PRELOAD": lib, "NVTX_INJECTION64_PATH": lib, "LANETRACE_AGENT": lib}, ""},
		{
			"others are kept", runCmd{Agent: lib, Step: "step*", Lanes: "*", Level: &kernel, serviceFlags: serviceFlags{dirFlags: dirFlags{Dir: "/x", Group: "5"}}}, map[string]string{"LD_PRELOAD": "/y/a.so /y/b.so:" + lib},
			map[string]string{"LD_PRELOAD": lib + ":/y/a.so:/y/b.so", "NVTX_INJECTION64_PATH": lib, "LANETRACE_AGENT": lib, "LANETRACE_DIR": "/x", "LANETRACE_GROUP": "5", "LANETRACE_STEP": "step*", "LANETRACE_LANES": "*", "LANETRACE_LEVEL": "kernel"}, "",
		},
		{
			"another NVTX tool", runCmd{Agent: lib}, map[string]string{"NVTX_INJECTION64_PATH": "/y/nsys.so"},
			map[string]string{"LD_PRELOAD": lib, "NVTX_INJECTION64_PATH": "/y/nsys.so", "LANETRACE_AGENT": lib},
			"lanetrace: warning: NVTX_INJECTION64_PATH names /y/nsys.so: NVTX ranges go there, and steps cannot be told by them\n",
		},
		{"missing", runCmd{Agent: "/nowhere/x.so"}, nil, nil, "lanetrace: warning: no agent library at /nowhere/x.so (make agent builds it, --agent names it); the program runs without it\n"},
		{"text", runCmd{Agent: text}, nil, nil, fmt.Sprintf("lanetrace: warning: agent library %s: not a shared library; the program runs without it\n", text)},
		{"program", runCmd{Agent: program}, nil, nil, fmt.Sprintf("lanetrace: warning: agent library %s: not a shared library; the program runs without it\n", program)},
		{"another machine's", runCmd{Agent: foreign}, nil, nil, fmt.Sprintf("lanetrace: warning: agent library %s: made for EM_S390, this is %v; the program runs without it\n", foreign, elfMachine(t))},
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

func TestNoSteps(t *testing.T) {
	auto := "it marked none, and ended before something stood in for them; --step graph or window does so from the first launch"
	for setting, want := range map[string]string{
		"": auto, "auto": auto, "auto:500": auto, "none": "", "graph": "it launched no graph", "window": "it launched nothing",
		"window:20": "it launched nothing", "windows*": "no NVTX range of its matched --step windows*; docs/attach.md has what to type",
		"vllm": "no NVTX range of its matched --step vllm; docs/attach.md has what to type",
	} {
		if d := cmp.Diff(want, noSteps(setting)); d != "" {
			t.Errorf("--step %q (-want +got):\n%s", setting, d)
		}
	}
}

// TestRunSignals: a signal that is sent to lanetrace reaches the program once, and
// so does one that a terminal sends to both.
func TestRunSignals(t *testing.T) {
	at, err := makeAttachable()
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		name     string
		terminal bool
		send     func(t *testing.T, cmd *exec.Cmd, tty *os.File)
		want     string
	}{
		{"sent", false, func(t *testing.T, cmd *exec.Cmd, _ *os.File) {
			if err := cmd.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
		}, "signal 2\n"},
		{"typed", true, func(t *testing.T, _ *exec.Cmd, tty *os.File) {
			if _, err := tty.Write([]byte{3}); err != nil { // ^C
				t.Fatal(err)
			}
		}, "signal 2\n"},
		{"terminated", true, func(t *testing.T, cmd *exec.Cmd, _ *os.File) {
			if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}, "signal 15\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			outer, inner := openTerminal(t)
			cmd := exec.Command("lanetrace", "run", "--no-report", "--listen", "127.0.0.1:0", "--dir", dir, "--agent", at.agent, "--", at.engine, "1", "wait")
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(at.driver))
			cmd.Stdin = inner
			var out, errs output
			cmd.Stdout, cmd.Stderr = &out, &errs
			cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: c.terminal}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			eventually(t, "the engine waits", func() bool { return out.String() == "did 1 steps\n" })
			c.send(t, cmd, outer)
			select {
			case <-ended:
			case <-time.After(patience):
				cmd.Process.Kill()
				<-ended
				t.Fatalf("does not end; stderr:\n%s", errs.String())
			}
			if got := out.String(); got != "did 1 steps\n"+c.want || cmd.ProcessState.ExitCode() != 3 {
				t.Errorf("exit code %d, stdout:\n%s\nstderr:\n%s", cmd.ProcessState.ExitCode(), got, errs.String())
			}
		})
	}
}

// TestReap takes what has ended, and leaves what runs and the program.
func TestReap(t *testing.T) {
	start := func(args ...string) *os.Process {
		p, err := os.StartProcess("/bin/sh", append([]string{"sh", "-c"}, args...), &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	program, orphan, running := start("exit 4"), start("exit 5"), start("exec sleep 60")
	zombie := func(p *os.Process) bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		return err == nil && strings.Contains(string(b), ") Z ")
	}
	eventually(t, "two have ended", func() bool { return zombie(program) && zombie(orphan) })
	reap("/proc/self/task", program.Pid)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", orphan.Pid)); err == nil {
		t.Error("the orphan is still there")
	}
	if s, err := program.Wait(); err != nil || s.ExitCode() != 4 {
		t.Errorf("the program's end was taken: %v, %v", s, err)
	}
	if err := running.Kill(); err != nil {
		t.Errorf("what runs: %v", err)
	}
	if s, err := running.Wait(); err != nil || s.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("what ran: %v, %v", s, err)
	}
	orphan.Release()
}
