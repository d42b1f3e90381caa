package spanring

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// children are the parts a re-executed test binary can play. Each works in the
// directory in childDir, says its lines on standard output, and ends when its
// standard input does.
var children = map[string]func() error{
	"idle": func() error { _, err := io.Copy(io.Discard, os.Stdin); return err },

	// write writes childCount entries and ends cleanly.
	"write": func() error {
		return asProducer(Geometry{LogEntries: 1 << 15, Slots: 8, NameBytes: 4096, Allocs: 8}, func(w *Writer) error {
			fmt.Println("ring", w.Path())
			for i := range uint64(childCount) {
				e := sealed(1, i)
				if !w.Append(&e) {
					return fmt.Errorf("entry %d given up", i)
				}
				if i%1000 == 0 {
					w.Name(NameKernel, "kernel "+strconv.FormatUint(i, 10))
				}
			}
			fmt.Println("written")
			_, err := io.Copy(io.Discard, os.Stdin)
			return errors.Join(err, w.Close())
		})
	},

	// torn writes ten entries, then one whose writer never comes back from
	// between claim and publish, then ten more.
	"torn": func() error {
		return asProducer(smallGeometry, func(w *Writer) error {
			for i := range uint64(10) {
				e := sealed(1, i)
				w.Append(&e)
			}
			stall(w, 10)
			for i := range uint64(10) {
				e := sealed(1, 11+i)
				w.Append(&e)
			}
			fmt.Println("ring", w.Path())
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	},

	// hammer writes from four goroutines until it is killed.
	"hammer": func() error {
		return asProducer(Geometry{LogEntries: 256, Slots: 8, NameBytes: 4096, Allocs: 8}, func(w *Writer) error {
			for g := range uint64(childWriters) {
				go func() {
					for i := uint64(0); ; i++ {
						e := sealed(g, i)
						w.Append(&e)
					}
				}()
			}
			fmt.Println("ring", w.Path())
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	},

	// allocate changes the table of allocations until it is killed: each
	// allocation's words belong together, and each change keeps its totals.
	"allocate": func() error {
		return asProducer(allocGeometry, func(w *Writer) error {
			for g := range uint64(childWriters) {
				go churn(w, g, func() bool { return true })
			}
			fmt.Println("ring", w.Path())
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	},

	// halfway stops in the middle of a change.
	"halfway": func() error {
		return asProducer(allocGeometry, func(w *Writer) error {
			at := w.Allocs()
			at.Lock()
			at.Track(1, 1)
			for i := range uint64(3) {
				a := sealedAlloc(0, i)
				at.Put(&a)
				at.Add(CtrMemLiveBytes, int64(a.Bytes))
				at.Add(CtrMemLiveCount, 1)
			}
			at.Unlock()
			at.Lock()
			at.Remove(1)
			fmt.Println("ring", w.Path())
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	},

	// parent leaves an idle child of its own behind when it is killed: one that
	// has called exec.
	"parent": func() error {
		return asProducer(smallGeometry, func(w *Writer) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			c := exec.Command(exe)
			c.Env = append(os.Environ(), childEnv+"=idle")
			c.Stdin = os.Stdin
			if err := c.Start(); err != nil {
				return err
			}
			fmt.Println("ring", w.Path())
			fmt.Println("grandchild", c.Process.Pid)
			return c.Wait()
		})
	},

	// forks leaves a child behind that never calls exec, as C programs have them.
	"forks": func() error {
		return asProducer(smallGeometry, func(w *Writer) error { return leaveFork(w, -1) })
	},

	// atfork does too, but its child closes Writer.FD first, as a child handler of
	// pthread_atfork would.
	"atfork": func() error {
		return asProducer(smallGeometry, func(w *Writer) error { return leaveFork(w, w.FD()) })
	},
}

const (
	childDir     = "SPANRING_TEST_DIR"
	childCount   = 20000
	childWriters = 4
)

func asProducer(geo Geometry, f func(w *Writer) error) error {
	w, err := Create(Dir{Path: os.Getenv(childDir), Group: -1}, Options{Geometry: geo})
	if err != nil {
		return err
	}
	return f(w)
}

func leaveFork(w *Writer, closeFD int) error {
	fmt.Println("ring", w.Path())
	pid, err := fork(closeFD)
	if err != 0 {
		return fmt.Errorf("fork: %w", err)
	}
	fmt.Println("grandchild", pid)
	_, rerr := io.Copy(io.Discard, os.Stdin)
	return rerr
}

// fork is fork without exec. The child closes closeFD unless it is -1 and lives
// until standard input ends, all in bare system calls: there is no Go runtime in
// it to rely on.
//
//go:norace
func fork(closeFD int) (pid uintptr, errno syscall.Errno) {
	var b [1]byte
	pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	if closeFD >= 0 {
		syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(closeFD), 0, 0)
	}
	syscall.RawSyscall(syscall.SYS_READ, 0, uintptr(unsafe.Pointer(&b)), 1)
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// stall does what Append does up to the middle of writing the payload, and
// returns what would finish it. The writer it stands for is paused, or dead.
func stall(w *Writer, n uint64) (finish func()) {
	seq := atomic.AddUint64(w.head, 1) - 1
	p := w.claim(seq)
	if p == nil {
		return func() {}
	}
	e := sealed(1, n)
	half := e
	half[4], half[5], half[6] = 0, 0, 0
	putWords(p, &half)
	return func() {
		putWords(p, &e)
		atomic.StoreUint64(&p[0], published(seq))
	}
}

// child is a running part.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

// start runs a part in dir. It has ended, and so has what it left behind, when
// the test has.
func start(t *testing.T, part, dir string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+part, childDir+"="+dir)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.stdin, c.lines = in, bufio.NewScanner(out)
	t.Cleanup(func() {
		in.Close()
		c.kill()
	})
	return c
}

// say reads the child's next line, which begins with key, and returns the rest.
func (c *child) say(t *testing.T, key string) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Fatalf("child ended before it said %q", key)
	}
	rest, ok := strings.CutPrefix(c.lines.Text(), key)
	if !ok {
		t.Fatalf("child said %q, want %q", c.lines.Text(), key)
	}
	return strings.TrimSpace(rest)
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// adopt makes this process the parent of what its children leave behind, and
// waits for it at the test's end.
func adopt(t *testing.T) (pid *int) {
	t.Helper()
	pid = new(int)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if *pid != 0 {
			unix.Wait4(*pid, nil, 0, nil)
		}
	})
	return pid
}

// TestSecondProcess reads while another process writes.
func TestSecondProcess(t *testing.T) {
	d := privateDir(t)
	c := start(t, "write", d.Path)
	r := open(t, c.say(t, "ring"))
	if alive, err := r.Alive(); !alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	i, err := r.Info()
	if err != nil {
		t.Fatal(err)
	}
	if int(i.PID) != c.cmd.Process.Pid || i.Clean || i.PIDNamespace == 0 || i.StartTicks == 0 || !strings.HasPrefix(filepath.Base(r.Path()), i.RunID.String()) {
		t.Errorf("info %+v of process %d", i, c.cmd.Process.Pid)
	}
	buf := make([]Entry, 100)
	next := uint64(0)
	eventually(t, "all entries read", func() bool {
		n, err := r.Poll(buf, MonoNS())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range buf[:n] {
			if e.Seq != next || e.Words != sealed(1, next) {
				t.Fatalf("entry %d: %+v", next, e)
			}
			next++
		}
		return next == childCount
	})
	c.say(t, "written")
	if n, ok := r.Name(1); !ok || n.Text != "kernel 0" {
		t.Errorf("name 1: %+v, %v", n, ok)
	}
	c.stdin.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if alive, err := r.Alive(); alive || err != nil {
		t.Errorf("after the clean end: alive %v, %v", alive, err)
	}
	if i, err := r.Info(); err != nil || !i.Clean {
		t.Errorf("after the clean end: %+v, %v", i, err)
	}
	want := Account{Published: childCount, Received: childCount}
	if a := r.Account(); a != want {
		t.Errorf("account %+v", a)
	}
}

// TestKilledBetweenClaimAndPublish: no reader stalls at the hole, and it is
// counted once the producer is known dead.
func TestKilledBetweenClaimAndPublish(t *testing.T) {
	d := privateDir(t)
	c := start(t, "torn", d.Path)
	path := c.say(t, "ring")
	before, after := open(t, path), open(t, path)

	const now = int64(5e9)
	got := pollAll(t, before, now)
	if len(got) != 20 || before.Account() != (Account{Published: 21, Received: 20, Pending: 1}) {
		t.Fatalf("while it lives: %d entries, %+v", len(got), before.Account())
	}
	c.kill()
	eventually(t, "the lock falls", func() bool {
		alive, err := before.Alive()
		if err != nil {
			t.Fatal(err)
		}
		return !alive
	})
	want := Account{Published: 21, Received: 20, Lost: 1, Holes: 1}
	if more := pollAll(t, before, now); len(more) != 0 || before.Account() != want {
		t.Errorf("after its death: %d entries, %+v", len(more), before.Account())
	}
	// One that comes later finds the same without waiting, whether it asks or is
	// told.
	after.MarkDead()
	got = pollAll(t, after, now)
	for i, e := range got {
		n := uint64(i)
		if i >= 10 {
			n++
		}
		if e.Seq != n || e.Words != sealed(1, n) {
			t.Errorf("entry %d: %+v", n, e)
		}
	}
	if after.Account() != want || len(got) != 20 {
		t.Errorf("a later reader: %d entries, %+v", len(got), after.Account())
	}
	if i, err := after.Info(); err != nil || i.Clean {
		t.Errorf("after its death: %+v, %v", i, err)
	}
}

// TestStalledWhileAlive: the same hole while the producer lives is given a second
// of the caller's clock.
func TestStalledWhileAlive(t *testing.T) {
	d := privateDir(t)
	c := start(t, "torn", d.Path)
	r := open(t, c.say(t, "ring"))
	const now = int64(5e9)
	if got := pollAll(t, r, now); len(got) != 20 {
		t.Fatalf("%d entries", len(got))
	}
	pollAll(t, r, now+int64(time.Second)-1)
	if a := r.Account(); a.Pending != 1 || a.Lost != 0 {
		t.Errorf("a moment before the second: %+v", a)
	}
	pollAll(t, r, now+int64(time.Second))
	if a := r.Account(); a != (Account{Published: 21, Received: 20, Lost: 1, Holes: 1}) {
		t.Errorf("after the second: %+v", a)
	}
	if alive, err := r.Alive(); !alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
}

// TestKilledWhileWriting: whatever a producer was doing when it was killed, all
// that is received is whole and the rest is counted.
func TestKilledWhileWriting(t *testing.T) {
	for range 5 {
		d := privateDir(t)
		c := start(t, "hammer", d.Path)
		r := open(t, c.say(t, "ring"))
		buf := make([]Entry, 64)
		check := func(n int) {
			for _, e := range buf[:n] {
				if !intact(&e.Words) || e.Words[1] >= childWriters {
					t.Fatalf("entry %d is torn: %+v", e.Seq, e.Words)
				}
			}
		}
		eventually(t, "some laps", func() bool {
			n, err := r.Poll(buf, MonoNS())
			if err != nil {
				t.Fatal(err)
			}
			check(n)
			return r.Account().Published > 20000
		})
		c.kill()
		eventually(t, "the lock falls", func() bool { alive, err := r.Alive(); return err == nil && !alive })
		for {
			n, err := r.Poll(buf, MonoNS())
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			check(n)
		}
		a := r.Account()
		balanced(t, a)
		ctr, err := r.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if a.Pending != 0 || a.Holes > ctr[CtrGivenUp]+childWriters {
			t.Errorf("%+v, %d given up by the producer", a, ctr[CtrGivenUp])
		}
	}
}

// TestLockFallsWithProducer kills a producer whose own child lives on.
func TestLockFallsWithProducer(t *testing.T) {
	d := privateDir(t)
	grandchild := adopt(t)
	c := start(t, "parent", d.Path)
	r := open(t, c.say(t, "ring"))
	var err error
	if *grandchild, err = strconv.Atoi(c.say(t, "grandchild")); err != nil {
		t.Fatal(err)
	}
	if alive, err := r.Alive(); !alive || err != nil {
		t.Fatalf("alive %v, %v", alive, err)
	}
	c.cmd.Process.Kill()
	eventually(t, "the lock falls", func() bool { alive, err := r.Alive(); return err == nil && !alive })
	if err := unix.Kill(*grandchild, 0); err != nil {
		t.Errorf("the child that was to live on: %v", err)
	}
}

// TestLockAndFork kills a producer whose child of fork, without exec, lives on.
// The child never has the mapping; unless it closes its copy of the descriptor,
// that alone keeps the lock, which is why Writer.FD is there.
func TestLockAndFork(t *testing.T) {
	for part, closes := range map[string]bool{"forks": false, "atfork": true} {
		grandchild := adopt(t)
		c := start(t, part, privateDir(t).Path)
		r := open(t, c.say(t, "ring"))
		pid := c.say(t, "grandchild")
		proc := "/proc/" + pid
		var err error
		if *grandchild, err = strconv.Atoi(pid); err != nil {
			t.Fatal(err)
		}
		holds := func() bool {
			t.Helper()
			fds, err := os.ReadDir(proc + "/fd")
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				if l, err := os.Readlink(proc + "/fd/" + fd.Name()); err == nil && l == r.Path() {
					return true
				}
			}
			return false
		}
		if closes {
			eventually(t, "the child closes the descriptor", func() bool { return !holds() })
		} else if !holds() {
			t.Errorf("%s: the child has no copy of the descriptor", part)
		}
		maps, err := os.ReadFile(proc + "/maps")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(maps), "[stack]") || strings.Contains(string(maps), r.Path()) {
			t.Errorf("%s: mappings of the child:\n%s", part, maps)
		}
		c.cmd.Process.Kill()
		c.cmd.Process.Wait()
		if alive, err := r.Alive(); alive == closes || err != nil {
			t.Errorf("%s: after the producer's death, its child living on: alive %v, %v", part, alive, err)
		}
		c.stdin.Close() // ends the child
		eventually(t, "the lock falls with the last copy", func() bool { alive, err := r.Alive(); return err == nil && !alive })
	}
}

// TestMappingStaysFromChildren looks at what the kernel says of the producer's
// mapping and descriptor.
func TestMappingStaysFromChildren(t *testing.T) {
	w := create(t, privateDir(t), smallGeometry)
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skipf("no smaps to look at: %v", err)
	}
	_, mapping, ok := strings.Cut(string(smaps), w.Path())
	if !ok {
		t.Fatalf("%s is not mapped", w.Path())
	}
	_, flags, _ := strings.Cut(mapping, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	if !strings.Contains(flags+" ", " dc ") {
		t.Errorf("flags of the mapping are%s: a child of fork would have it (dc, do not copy, is missing)", flags)
	}
	fl, err := unix.FcntlInt(uintptr(w.FD()), unix.F_GETFD, 0)
	if err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: a child of exec would have it", fl, err)
	}
}
