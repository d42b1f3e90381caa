package flight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stuck is an engine in dir that ended three steps and has begun a fourth, whose
// lane the GPU does not complete.
func stuck(t *testing.T, dir string) *lanetrace.Hub {
	t.Helper()
	h, err := lanetrace.Open(lanetrace.Config{
		Dir: dir, Service: "stuck", RingBytes: 256 << 10, HarvestEvery: -1, NoCalibration: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = h.Close(ctx) // the GPU is stuck, which Close says
	})
	drv := scripted.New(scripted.Options{RealTime: true})
	dev, err := h.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	s := drv.NewStream()
	lane := h.Lane("decode")
	for range 3 {
		step := h.StepBegin()
		dev.LaneBegin(step, lane, s).End()
		step.End()
	}
	for end := time.Now().Add(time.Minute); h.Ring().Counter(spanring.CtrLanded) < 6; {
		h.Harvest()
		if time.Now().After(end) {
			t.Fatal("the lanes did not land")
		}
	}
	drv.Stall(s)
	step := h.StepBegin()
	dev.LaneBegin(step, lane, s).End()
	return h
}

func ringDir(t *testing.T) string {
	t.Helper()
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	return d.Path
}

// crashed is the ring of h as a crash would leave it: without lock and mark.
func crashed(t *testing.T, h *lanetrace.Hub) string {
	t.Helper()
	b, err := os.ReadFile(h.Ring().Path())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), h.Ring().Info().RunID.String()+spanring.Suffix)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRecordOfACrash(t *testing.T) {
	h := stuck(t, ringDir(t))
	k, err := New(Options{Dir: filepath.Join(t.TempDir(), "state", "flight"), Writer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	page, err := k.Keep(crashed(t, h), Died)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	id := h.Ring().Info().RunID.String()
	for _, want := range []string{
		"lanetrace flight record: stuck-gpu", " died\n", "run        " + id + "\n",
		"\nIn flight: 1; ages are when it last wrote\n",
		", died\n", "incomplete (engine_ended): 1,", "not ended on the host", "\nCounters\n", "  begun          8\n", "  landed         6\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var lane []string
	for _, l := range strings.Split(text, "\n") {
		if f := strings.Fields(l); slices.Contains(f, "lane") && slices.Contains(f, "decode") && slices.Contains(f, "ago") {
			lane = f
		}
	}
	// AGE (two words) KIND NAME LANE STEP STREAM
	if len(lane) < 7 || lane[2] != "lane" || lane[3] != "decode" || lane[4] != "decode" || lane[5] != "4" {
		t.Errorf("span in flight: %q in\n%s", lane, text)
	}
	f, err := recording.Open(strings.TrimSuffix(page, pageSuffix) + recording.Suffix)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Damage() != nil || len(f.Runs()) != 1 || f.Runs()[0].Info.RunID.String() != id {
		t.Errorf("recording: damage %v, runs %+v", f.Damage(), f.Runs())
	}
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	var steps []uint64
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) { steps = append(steps, s.Number) })}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(steps)
	if diff := cmp.Diff([]uint64{1, 2, 3, 4}, steps); diff != "" {
		t.Errorf("steps of the recording (-want +got):\n%s", diff)
	}

	// A restarted keeper knows the run.
	k2, err := New(Options{Dir: filepath.Dir(page)})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := k2.Keep(crashed(t, h), Died); again != "" || err != nil {
		t.Errorf("a second record of the run: %q, %v", again, err)
	}
}

// TestRecordOnlyBegun: what a process left of a record when it was killed is none.
func TestRecordOnlyBegun(t *testing.T) {
	h := stuck(t, ringDir(t))
	k, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(k.o.Dir, "20260101T000000.000Z-stuck-gpu-"+h.Ring().Info().RunID.String()+"-died")
	for _, left := range []string{".ltrec.tmp", ".ltrec", ".txt.tmp"} {
		if err := os.WriteFile(name+left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := k.Keep(crashed(t, h), Died); page == "" || err != nil {
		t.Errorf("no record: %q, %v", page, err)
	}
}

func TestRecordOfAHang(t *testing.T) {
	h := stuck(t, ringDir(t))
	r, err := spanring.Open(h.Ring().Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := collector.NewProcessor(collector.NewRingSource(r), collector.ProcessorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	f, ok := Oldest(p.Engine())
	if !ok || f.Slot.Step != 4 || f.Slot.Kind != spanring.KindLane || f.Age <= 0 || f.Age > time.Minute || SpanName(p.Engine().Source(), f.Slot) != "decode" {
		t.Errorf("oldest in flight: %+v, %v", f, ok)
	}
	k, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	page, err := k.Keep(h.Ring().Path(), Hung)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), " hung\n") || !strings.Contains(string(b), "In flight: 1; ages are now\n") {
		t.Errorf("%s", b)
	}
	// The same run may die later: that is another record.
	if page, err := k.Keep(crashed(t, h), Died); page == "" || err != nil {
		t.Errorf("its death: %q, %v", page, err)
	}
}

func TestIdleIsNotHung(t *testing.T) {
	h, err := lanetrace.Open(lanetrace.Config{Dir: ringDir(t), RingBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(context.Background())
	s := h.StepBegin()
	s.End()
	r, err := spanring.Open(h.Ring().Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := collector.NewProcessor(collector.NewRingSource(r), collector.ProcessorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if f, ok := Oldest(p.Engine()); ok {
		t.Errorf("in flight: %+v", f)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	dir := t.TempDir()
	add := func(i, bytes int) string {
		name := fmt.Sprintf("20260101T0000%02d.000Z-e-%032x-died", i, i)
		for s, n := range map[string]int{".ltrec": bytes, ".txt": 0} {
			if err := os.WriteFile(filepath.Join(dir, name+s), make([]byte, n), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return name
	}
	foreign := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(foreign, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 5 {
		names = append(names, add(i, 1000))
	}
	left := func() (out []string) {
		for _, n := range names {
			_, a := os.Stat(filepath.Join(dir, n+".ltrec"))
			_, b := os.Stat(filepath.Join(dir, n+".txt"))
			if (a == nil) != (b == nil) {
				t.Errorf("half of record %s is left", n)
			}
			if a == nil {
				out = append(out, n)
			}
		}
		return out
	}
	for _, tt := range []struct {
		records int
		bytes   int64
		want    []string
	}{
		{5, 5000, names},
		{3, 5000, names[2:]},
		{3, 2500, names[3:]},
		{3, 10, names[4:]},
	} {
		k, err := New(Options{Dir: dir, MaxRecords: tt.records, MaxBytes: tt.bytes})
		if err != nil {
			t.Fatal(err)
		}
		k.prune()
		if diff := cmp.Diff(tt.want, left()); diff != "" {
			t.Errorf("%d records, %d bytes (-want +got):\n%s", tt.records, tt.bytes, diff)
		}
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("somebody else's file: %v", err)
	}
}

func TestRingThatIsNoRing(t *testing.T) {
	k, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Keep(filepath.Join(t.TempDir(), "none.ring"), Died); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if ents, err := os.ReadDir(k.o.Dir); err != nil || len(ents) != 0 {
		t.Errorf("left behind: %v, %v", ents, err)
	}
}
