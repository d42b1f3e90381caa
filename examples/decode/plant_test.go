package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestLeakIsSeenFromOutside: another process sees which line leaks while the
// engine runs, and after it was killed.
func TestLeakIsSeenFromOutside(t *testing.T) {
	dir := ringDir(t)
	cmd := exec.Command(os.Args[0], "--backend", "sim", "--dir", dir, "--leak", "--no-verify", "--duration", "60s")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := false
	defer func() {
		if !done {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	var r *spanring.Reader
	leaked := func() (bytes int64, exact bool) {
		if r == nil {
			paths, err := spanring.Dir{Path: dir, Group: -1}.List()
			if err != nil || len(paths) != 1 {
				return 0, false
			}
			if r, err = spanring.Open(paths[0], spanring.ReaderOptions{}); err != nil {
				r = nil
				return 0, false
			}
		}
		list, scan, err := r.Allocs(nil)
		if err != nil {
			t.Fatal(err)
		}
		m := ledger.FromRing(list, scan, r.Name)
		for _, s := range m.Sites {
			if strings.Contains(s.Site, "examples/decode/plant.go:") {
				return s.Bytes, !scan.Approximate
			}
		}
		return 0, false
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for n, exact := leaked(); !exact || n < 10*leakBytes; n, exact = leaked() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the leak does not show")
		}
	}
	defer r.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	done = true
	if n, _ := leaked(); n < 10*leakBytes || n%leakBytes != 0 {
		t.Errorf("%d bytes leaked when the engine was dead", n)
	}
}

// TestOverrunIsFound: the write past an allocation's end is in the summary, the
// log and the ring, and only where guard bands are.
func TestOverrunIsFound(t *testing.T) {
	dir := ringDir(t)
	got := decode(t, t.Context(), "--requests", "10", "--rate", "2000", "--dir", dir, "--overrun")
	if got.status != exitOK || got.sum.Memory.Violations != 1 {
		t.Fatalf("status %d, %+v: %s", got.status, got.sum.Memory, got.stderr)
	}
	if !strings.Contains(got.stderr, "guard band was written to") || !strings.Contains(got.stderr, "examples/decode/plant.go:") {
		t.Errorf("log: %s", got.stderr)
	}
	r, entries := readRing(t, dir)
	found := 0
	for i := range entries {
		w := &entries[i].Words
		if w.Kind() != spanring.KindViolation {
			continue
		}
		v, err := w.Violation()
		if err != nil {
			t.Fatal(err)
		}
		site, _ := r.Name(v.Site)
		if v.Bytes != 4*scratchWords || v.First != 0 || v.Last != 4*overrunWords-1 || v.GuardBytes != overrunBand || !strings.Contains(site.Text, "plant.go:") {
			t.Errorf("%+v at %q", v, site.Text)
		}
		found++
	}
	if found != 1 {
		t.Errorf("%d entries, want 1", found)
	}
	clean := decode(t, t.Context(), "--requests", "10", "--rate", "2000", "--dir", ringDir(t))
	if clean.sum.Memory.Violations != 0 || clean.sum.Memory.LiveBytes == 0 || strings.Contains(clean.stderr, "never freed") {
		t.Errorf("without: %+v, %s", clean.sum.Memory, clean.stderr)
	}
}
