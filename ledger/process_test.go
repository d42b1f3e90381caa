package ledger

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

const childDir = "LEDGER_TEST_DIR"

// children are the parts a re-executed test binary can play.
var children = map[string]func() error{
	// hold makes some allocations, says what its own probe sees, and waits.
	"hold": func() error {
		l, w, err := childLedger()
		if err != nil {
			return err
		}
		for i := range uint64(300) {
			p := l.Begin(device, int64(1000+i))
			p.Done(1<<30 + i*1024)
		}
		for i := range uint64(100) {
			t := l.Take(1<<30 + 3*i*1024)
			t.Done(nil)
		}
		l.Arena(1<<40, 5<<20)
		fmt.Println("ring", w.Path())
		t, _ := l.Probe().Totals()
		m := l.Probe().Memory()
		fmt.Printf("totals %+v\n", t)
		for _, s := range m.Sites {
			fmt.Printf("site %d %d %s\n", s.Bytes, s.Count, s.Site)
		}
		fmt.Println("end")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	},
	// churn allocates and frees from several goroutines until it is killed.
	"churn": func() error {
		l, w, err := childLedger()
		if err != nil {
			return err
		}
		for g := range uint64(3) {
			go churn(l, g, func() bool { return true })
		}
		fmt.Println("ring", w.Path())
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	},
}

func childLedger() (*Ledger, *spanring.Writer, error) {
	geo := testGeometry
	geo.Allocs = 1024
	w, err := spanring.Create(spanring.Dir{Path: os.Getenv(childDir), Group: -1}, spanring.Options{Geometry: geo})
	if err != nil {
		return nil, nil, err
	}
	l, err := New(Options{})
	if err != nil {
		return nil, nil, err
	}
	l.Attach(w, 0, true)
	return l, w, nil
}

// churn keeps up to 40 allocations live, each at an address of its goroutine's
// own range, whose size follows from its address.
func churn(l *Ledger, g uint64, going func() bool) {
	base := (g + 1) << 40
	var live []uint64
	for n := uint64(1); going(); n++ {
		h := n * 0x9e3779b97f4a7c15
		if len(live) == 40 || len(live) > 0 && h>>60 < 7 {
			i := h >> 32 % uint64(len(live))
			t := l.Take(live[i])
			t.Done(nil)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		addr := base + n*4096
		p := l.Begin(device, churnBytes(addr))
		p.Done(addr)
		live = append(live, addr)
	}
	for _, a := range live {
		t := l.Take(a)
		t.Done(nil)
	}
}

func churnBytes(addr uint64) int64 { return int64(1 + addr*0xff51afd7ed558ccd>>42) }

// checkChurn fails the test for an allocation that churn did not make and for an
// exact scan that does not add up.
func checkChurn(t testing.TB, as []spanring.Alloc, s spanring.AllocScan) {
	t.Helper()
	sum := uint64(0)
	for _, a := range as {
		if int64(a.Bytes) != churnBytes(a.Addr) || a.Kind != device {
			t.Fatalf("torn: %+v", a)
		}
		sum += a.Bytes
	}
	if s.Approximate {
		return
	}
	tt := s.Totals
	if sum != tt.LiveBytes || uint64(len(as)) != tt.LiveCount || tt.Allocs+tt.FreesFailed != tt.Frees+tt.AllocsReplaced+tt.LiveCount {
		t.Fatalf("%d bytes in %d allocations, %+v", sum, len(as), tt)
	}
}

type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func start(t *testing.T, part string) *child {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
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
	c.lines = bufio.NewScanner(out)
	t.Cleanup(func() { in.Close(); c.kill() })
	return c
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

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

func openRing(t *testing.T, path string) *spanring.Reader {
	t.Helper()
	r, err := spanring.Open(path, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestOtherProcessSeesTheSame: a reader in another process sees what a probe in
// the engine sees, while the engine lives and after it was killed.
func TestOtherProcessSeesTheSame(t *testing.T) {
	c := start(t, "hold")
	r := openRing(t, c.say(t, "ring"))
	totals := c.say(t, "totals")
	var sites []string
	for c.lines.Scan() && c.lines.Text() != "end" {
		sites = append(sites, c.lines.Text())
	}
	if len(sites) != 1 || !strings.Contains(sites[0], "ledger/process_test.go:") {
		t.Fatalf("sites %q", sites)
	}
	check := func(when string) {
		t.Helper()
		as, s, err := r.Allocs(nil)
		if err != nil || s.State != spanring.AllocsPublished || s.Approximate {
			t.Fatalf("%s: %+v, %v", when, s, err)
		}
		m := FromRing(as, s, r.Name)
		if got := fmt.Sprintf("%+v", m.Totals); got != totals {
			t.Errorf("%s: totals\n%s, in the engine\n%s", when, got, totals)
		}
		if m.Totals.LiveCount != 200 || len(as) != 200 || m.Totals.ArenaBytes != 5<<20 {
			t.Errorf("%s: %d allocations, %+v", when, len(as), m.Totals)
		}
		var got []string
		for _, s := range m.Sites {
			got = append(got, fmt.Sprintf("site %d %d %s", s.Bytes, s.Count, s.Site))
		}
		if d := cmp.Diff(sites, got); d != "" {
			t.Errorf("%s: %s", when, d)
		}
		for _, a := range as {
			if i := (a.Addr - 1<<30) / 1024; a.Index != i || a.Bytes != 1000+i || i%3 == 0 || a.MonoNS <= 0 {
				t.Errorf("%s: %+v", when, a)
			}
		}
	}
	check("alive")
	c.kill()
	eventually(t, "the lock falls", func() bool { alive, err := r.Alive(); return err == nil && !alive })
	check("killed")
}

// TestKilledWhileAllocating: whatever an engine was doing when it was killed.
func TestKilledWhileAllocating(t *testing.T) {
	for range 3 {
		c := start(t, "churn")
		r := openRing(t, c.say(t, "ring"))
		exact := 0
		eventually(t, "scans of a table that changes", func() bool {
			as, s, err := r.Allocs(nil)
			if err != nil {
				t.Fatal(err)
			}
			checkChurn(t, as, s)
			if !s.Approximate && s.Totals.Allocs > 0 {
				exact++
			}
			return s.Totals.Allocs > 20000 && exact > 10
		})
		c.kill()
		eventually(t, "the lock falls", func() bool { alive, err := r.Alive(); return err == nil && !alive })
		as, s, err := r.Allocs(nil)
		if err != nil || s.State != spanring.AllocsPublished {
			t.Fatalf("%+v, %v", s, err)
		}
		checkChurn(t, as, s)
		m := FromRing(as, s, r.Name)
		if out := m.Report(5, 0); !strings.Contains(out, "ledger/process_test.go:") {
			t.Errorf("report:\n%s", out)
		}
	}
}
