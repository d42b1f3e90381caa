package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestReplayIsFlat replays what sidecar --keep kept to a receiver, as a process of
// its own, and looks at the memory it took at most. LANETRACE_TEST_SPANS says how
// many spans: 36,000,000 are an hour at 10,000 a second.
func TestReplayIsFlat(t *testing.T) {
	spans := 300_000
	if raceDetector {
		spans = 30_000 // what it takes is not looked at
	}
	if n, err := strconv.Atoi(os.Getenv("LANETRACE_TEST_SPANS")); err == nil {
		spans = n
	}
	dir := filepath.Join(t.TempDir(), "keep")
	s, err := recording.NewStore(recording.StoreOptions{Dir: dir, MaxBytes: 1 << 40, SegmentBytes: 16 << 20, QueueBytes: 1 << 30, FlushEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var counts collector.SidecarCounts
	// Engines of a minute each, one after the other, as restarts are.
	start := int64(1_000_000_000_000)
	offset := time.Now().Add(-2*time.Hour).UnixNano() - start // the same of all: one machine's
	for seed := uint64(0); counts.Received < uint64(spans); seed++ {
		left := time.Duration(float64(uint64(spans)-counts.Received)/9000*1e9) + time.Second
		src := synth.New(synth.Options{Seed: seed, Duration: min(left, time.Minute), StartMonoNS: start, WallOffsetNS: offset, KernelEvery: 16, Memory: true})
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{Taps: []collector.Tap{s}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		start = src.NowMonoNS() + 1_000_000_000
		counts.Received += p.Engine().Ledger().Counts().Received
		p.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	if st.Lost > 0 {
		t.Fatalf("stats %+v", st)
	}
	t.Logf("%d spans in %d entries, %d bytes, %d segments, generated in %v", counts.Received, st.Written, st.Bytes, st.Segments, time.Since(began))

	r, url := serveReceiver(t)
	r.discard.Store(true)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args = []string{"lanetrace", "replay", dir, "--since", "3h", "--otlp-endpoint", url, "--budget", "0"}
	cmd.Stderr = &out
	began = time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Not by rusage: that begins with what this process had at the fork.
	highest := 0
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-tick.C:
			highest = max(highest, highestRSS(cmd.Process.Pid))
			continue
		case err = <-ended:
		}
		break
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	took := time.Since(began)
	t.Logf("replayed in %v (%.0f spans/s, %.1f MB/s), CPU %v, at most %d KiB resident", took, float64(counts.Received)/took.Seconds(),
		float64(st.Bytes)/1e6/took.Seconds(), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), highest)
	if highest > 128<<10 && !raceDetector {
		t.Errorf("%d KiB resident", highest)
	}
	if n := r.discarded.Load(); n == 0 {
		t.Errorf("nothing was sent: %s", out.String())
	} else {
		t.Logf("%d spans sent", n)
	}
}

// highestRSS is the most that a process has had resident, in KiB, 0 when it is gone.
func highestRSS(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.Atoi(f[1]) // 0 is as good as gone
			return n
		}
	}
	return 0
}
