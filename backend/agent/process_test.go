package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// process is a running testdata/ringproc.c.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	errs  *os.File // a file: a pipe would be waited for until its children end too
}

// said is what the process has written to standard error.
func (p *process) said() string {
	b, err := os.ReadFile(p.errs.Name())
	return fmt.Sprint(string(b), err)
}

func startProcess(t *testing.T, bin string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(bin, args...)}
	p.cmd.Env = append(env, testdriver.TSan(t, "halt_on_error=1 die_after_fork=0"), "PATH="+os.Getenv("PATH"))
	var err error
	if p.errs, err = os.Create(filepath.Join(t.TempDir(), "stderr")); err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.errs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.in.Close()
		p.errs.Close()
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
	return p
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	if !p.lines.Scan() {
		p.cmd.Wait()
		t.Fatalf("no line from the process: %v, %s", p.cmd.ProcessState, p.said())
	}
	return p.lines.Text()
}

// end closes the process's input and waits for it to end well.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, p.said())
	}
}

func open(t *testing.T, path string) *spanring.Reader {
	t.Helper()
	r, err := spanring.Open(path, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// within polls until ok or ten seconds are over: another process's memory tells of no
// change.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

func alive(t *testing.T, r *spanring.Reader) bool {
	t.Helper()
	a, err := r.Alive()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// checkSealed refuses an entry that mixes two.
func checkSealed(e *spanring.Entry, seen map[uint64]bool) error {
	switch e.Words.Kind() {
	case spanring.KindAlloc, spanring.KindFree:
		_, err := e.Words.MemEvent()
		return err
	}
	a, err := e.Words.StepAttrs()
	if err != nil {
		return err
	}
	i := uint32(a.Step)
	if uint32(a.Step>>32) != a.PrefillTokens+1 || a.BatchSize != i || a.DecodeTokens != i^0x5a5a5a5a || uint32(a.GraphMode) != i%4 {
		return fmt.Errorf("mixed entry %+v", a)
	}
	if seen[a.Step] {
		return fmt.Errorf("step %#x twice", a.Step)
	}
	seen[a.Step] = true
	return nil
}

// drain reads until told to stop, then what is left, and until no sequence number is
// waited for any more: one that a writer gave up in the last lap takes a second.
func drain(t *testing.T, r *spanring.Reader, stop func() bool) {
	t.Helper()
	buf, seen := make([]spanring.Entry, 4096), map[uint64]bool{}
	var deadline time.Time
	for last := false; ; {
		n, err := r.Poll(buf, time.Now().UnixNano())
		if err != nil {
			t.Fatal(err)
		}
		for i := range buf[:n] {
			if err := checkSealed(&buf[i], seen); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := r.Allocs(nil); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if last && (r.Account().Pending == 0 || time.Now().After(deadline)) {
				return
			}
			if !last && stop() {
				last, deadline = true, time.Now().Add(10*time.Second)
			}
			runtime.Gosched()
		}
	}
}

func balanced(t *testing.T, r *spanring.Reader) spanring.Account {
	t.Helper()
	a := r.Account()
	if a.Pending != 0 || a.Published != a.Received+a.Lost+a.Missed {
		t.Errorf("account does not balance: %+v", a)
	}
	return a
}

// TestManyThreads has a reader look on while eight threads write.
func TestManyThreads(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		count string
	}{
		{"plain", nil, "40000"},
		{"thread sanitizer", []string{"-fsanitize=thread", "-Wno-tsan"}, "5000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := buildProgram(t, "ringproc.c", ringSources, c.flags...)
			dir := privateDir(t)
			p := startProcess(t, bin, []string{"LANETRACE_DIR=" + dir.Path, "LANETRACE_RING_BYTES=300000"}, "write", c.count)
			r := open(t, p.line(t))
			written := make(chan struct{})
			go func() { p.lines.Scan(); close(written) }()
			drain(t, r, func() bool {
				select {
				case <-written:
					return true
				default:
					return false
				}
			})
			a := balanced(t, r)
			k, _ := r.Counters()
			if a.Lost+a.Missed < k[spanring.CtrGivenUp] {
				t.Errorf("%d lost, %d missed, %d given up", a.Lost, a.Missed, k[spanring.CtrGivenUp])
			}
			var each uint64
			fmt.Sscan(c.count, &each)
			if k[spanring.CtrLaunches] != 8*each {
				t.Errorf("counter %d, want %d", k[spanring.CtrLaunches], 8*each)
			}
			names := map[string]bool{}
			for id := range spanring.NameID(1000) {
				if n, ok := r.Name(id); ok {
					if names[n.Text] || !strings.HasPrefix(n.Text, "kernel ") {
						t.Errorf("name %d is %q", id, n.Text)
					}
					names[n.Text] = true
				}
			}
			if want := min(100, int(each+63)/64); len(names) != want {
				t.Errorf("%d names, want %d", len(names), want)
			}
			list, scan, err := r.Allocs(nil)
			if err != nil {
				t.Fatal(err)
			}
			m := k.Memory()
			kept := (each+63)/64 - (each+127)/128
			if scan.State != spanring.AllocsPublished || scan.Approximate || m.LiveCount != 8*kept || uint64(len(list))+m.UnlistedCount != m.LiveCount ||
				m.Allocs != m.Frees+m.AllocsReplaced+m.LiveCount || m.LiveBytes != 512*m.LiveCount {
				t.Errorf("%d of %d listed, %+v, want %d live", len(list), m.LiveCount, scan, 8*kept)
			}
			if !alive(t, r) {
				t.Error("dead before its end")
			}
			p.end(t)
			if alive(t, r) {
				t.Error("alive after its end")
			}
			if i, _ := r.Info(); !i.Clean || i.Producer != "ringproc" || i.Executable != filepath.Base(bin) {
				t.Errorf("info %+v", i)
			}
		})
	}
}

// TestGivenUpLast: a sequence number that was given up, with none a lap later to show
// it, is lost once it has had its time, and what the other tests read to the end
// accounts for it.
func TestGivenUpLast(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	p := startProcess(t, bin, []string{"LANETRACE_DIR=" + privateDir(t).Path}, "gap")
	r := open(t, p.line(t))
	if l := p.line(t); l != "written" {
		t.Fatal(l)
	}
	drain(t, r, func() bool { return true })
	if a := balanced(t, r); a.Received != 6 || a.Lost != 1 {
		t.Errorf("account %+v, want 6 received and 1 lost", a)
	}
	p.end(t)
}

// TestKilled: what is killed in the middle of writing leaves a ring that reads and
// balances, and whose lock has fallen.
func TestKilled(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	dir := privateDir(t)
	p := startProcess(t, bin, []string{"LANETRACE_DIR=" + dir.Path}, "write", "0")
	r := open(t, p.line(t))
	within(t, "100,000 entries", func() bool {
		k, err := r.Counters()
		if err != nil {
			t.Fatal(err)
		}
		return k[spanring.CtrLaunches] > 100_000
	})
	if !alive(t, r) {
		t.Error("dead while it writes")
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.cmd.Wait()
	within(t, "the lock's fall", func() bool { return !alive(t, r) })
	drain(t, r, func() bool { return true })
	if a := balanced(t, r); a.Received == 0 {
		t.Errorf("nothing received: %+v", a)
	}
	if i, _ := r.Info(); i.Clean {
		t.Error("killed, but clean")
	}
}

// TestFork: a child neither keeps the parent's lock nor reaches its ring, whatever
// it calls.
func TestFork(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	dir := privateDir(t)
	p := startProcess(t, bin, []string{"LANETRACE_DIR=" + dir.Path}, "fork")
	r := open(t, p.line(t))
	own := p.line(t) // the second child's
	var child int
	if _, err := fmt.Sscanf(p.line(t), "child %d", &child); err != nil {
		t.Fatal(err)
	}
	if l := p.line(t); l != "forked" {
		t.Fatal(l)
	}
	if !alive(t, r) {
		t.Error("dead while the parent lives")
	}
	p.in.Write([]byte("x"))
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, p.said())
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Fatalf("the child did not outlive its parent: %v", err)
	}
	within(t, "the lock's fall while the child lives", func() bool { return !alive(t, r) })
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	k, _ := r.Counters()
	i, _ := r.Info()
	if k[spanring.CtrMisuse] != 0 || k[spanring.CtrAllocsFailed] != 0 || i.GPUUUID != "" || i.Clean {
		t.Errorf("the child wrote to its parent's ring: misuse %d, GPU %q, clean %v", k[spanring.CtrMisuse], i.GPUUUID, i.Clean)
	}
	if _, err := os.Lstat(r.Path()); err != nil {
		t.Errorf("the child removed its parent's ring: %v", err)
	}
	if i, err := open(t, own).Info(); err != nil || !i.Clean {
		t.Errorf("the second child's ring: %+v, %v", i, err)
	}
}

// TestForkStorm: forks while threads write, and the lock is the parent's.
func TestForkStorm(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	dir := privateDir(t)
	p := startProcess(t, bin, []string{"LANETRACE_DIR=" + dir.Path}, "forkstorm")
	r := open(t, p.line(t))
	if l := p.line(t); l != "written" {
		t.Fatal(l)
	}
	if !alive(t, r) {
		t.Error("dead while the parent lives")
	}
	drain(t, r, func() bool { return true })
	k, _ := r.Counters()
	if k[spanring.CtrLaunches] != 80_000 || k[spanring.CtrMisuse] != 0 {
		t.Errorf("%d launches, %d misuse", k[spanring.CtrLaunches], k[spanring.CtrMisuse])
	}
	p.end(t)
	if alive(t, r) {
		t.Error("alive after its end")
	}
}

// TestDirectory: what the Go library refuses of a directory, with the same words,
// and what a starting producer removes.
func TestDirectory(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	run := func(t *testing.T, env ...string) (string, error) {
		t.Helper()
		cmd := exec.Command(bin, "close")
		cmd.Env = env
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return "", errors.New(strings.TrimSpace(errs.String()))
		}
		return strings.TrimSpace(string(out)), nil
	}
	t.Run("refused", func(t *testing.T) {
		base := t.TempDir()
		file := filepath.Join(base, "file")
		link := filepath.Join(base, "link")
		open := filepath.Join(base, "open")
		good := filepath.Join(base, "good")
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(open, 0o700), os.Chmod(open, 0o755), os.Mkdir(good, 0o700), os.Symlink(good, link)); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{file, link, link + "/", open, filepath.Join(base, "missing")} {
			want := spanring.Dir{Path: dir, Group: -1}.Check()
			if want == nil {
				t.Fatalf("Go does not refuse %s", dir)
			}
			got, err := run(t, "LANETRACE_DIR="+dir)
			if err == nil || err.Error() != strings.ReplaceAll(want.Error(), "link/", "link") {
				t.Errorf("%s: C says %v %q, Go %v", dir, err, got, want)
			}
		}
		if err := os.Chmod(good, 0o770); err != nil {
			t.Fatal(err)
		}
		gid := fmt.Sprint(os.Getgid())
		_, err := run(t, "LANETRACE_DIR="+good, "LANETRACE_GROUP="+gid)
		if want := (spanring.Dir{Path: good, Group: os.Getgid()}).Check(); err == nil || err.Error() != want.Error() {
			t.Errorf("C says %v, Go %v", err, want)
		}
	})
	t.Run("group", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o770|os.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		path, err := run(t, "LANETRACE_DIR="+dir, "LANETRACE_GROUP="+fmt.Sprint(os.Getgid()))
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o640 {
			t.Errorf("ring has mode %v, %v", fi.Mode(), err)
		}
	})
	t.Run("relative", func(t *testing.T) {
		dir := privateDir(t).Path
		cmd := exec.Command(bin, "close")
		cmd.Dir = filepath.Dir(dir)
		cmd.Env = []string{"LANETRACE_DIR=" + filepath.Base(dir) + "//"}
		out, err := cmd.Output()
		if err != nil || !strings.HasPrefix(string(out), dir+"/") {
			t.Errorf("ring %s, %v, want it in %s", out, err, dir)
		}
	})
	t.Run("dead rings", func(t *testing.T) {
		dir := privateDir(t)
		live := startProcess(t, bin, []string{"LANETRACE_DIR=" + dir.Path}, "write", "1")
		kept := []string{live.line(t)}
		live.line(t)
		old := time.Now().Add(-time.Hour)
		plant := func(name string, at time.Time) {
			p := filepath.Join(dir.Path, name)
			if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Chtimes(p, at, at)); err != nil {
				t.Fatal(err)
			}
		}
		id := strings.Repeat("ab", 16)
		plant("."+id+".ring.tmp", old)
		plant("."+id+".ring.control.123.tmp", old)
		plant(id+".ring.control", old)
		var paths []string
		for i := range 4 {
			p, err := run(t, "LANETRACE_DIR="+dir.Path)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Now().Add(time.Duration(i-10) * time.Minute)
			if err := os.Chtimes(p, at, at); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, p)
		}
		// What is not a ring's by its name, or young, stays.
		for _, n := range []string{"notes.ring", strings.Repeat("AB", 16) + ".ring", "." + id + ".ring.control.x.tmp", id + ".ring.control.tmp"} {
			plant(n, old)
			kept = append(kept, filepath.Join(dir.Path, n))
		}
		young := "." + strings.Repeat("cd", 16) + ".ring.tmp"
		plant(young, time.Now())
		last, err := run(t, "LANETRACE_DIR="+dir.Path)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, paths[2], paths[3], last, filepath.Join(dir.Path, young))
		ents, err := os.ReadDir(dir.Path)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, e := range ents {
			got[filepath.Join(dir.Path, e.Name())] = true
		}
		for _, p := range kept {
			if !got[p] {
				t.Errorf("%s is gone", p)
			}
			delete(got, p)
		}
		for p := range got {
			t.Errorf("%s is still there", p)
		}
		live.end(t)
	})
	t.Run("no space", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("mounting a small file system needs root")
		}
		dir := privateDir(t).Path
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
			t.Skipf("mount: %v", err)
		}
		defer syscall.Unmount(dir, 0)
		if _, err := run(t, "LANETRACE_DIR="+dir); err == nil || !strings.Contains(err.Error(), "reserve") || !strings.Contains(err.Error(), "No space") {
			t.Errorf("error %v", err)
		}
		if ents, err := os.ReadDir(dir); err != nil || len(ents) != 0 {
			t.Errorf("left behind: %v, %v", ents, err)
		}
	})
}
