package cudaevents_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// Many goroutines begin, end, switch and launch on streams of their own and on one
// that all share, streams come and go, handles are ended twice and by others, two
// goroutines harvest, and the recorder is replaced in the middle of it. Afterwards
// the account balances to the span.
func TestConcurrentUse(t *testing.T) {
	const workers, rounds = 6, 400
	d := scripted.New(scripted.Options{RealTime: true, LatencyNS: 1000, Concurrent: true})
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 16, Slots: 2048, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.Map // step -> its end
	o := cudaevents.Options{
		Pairs: 2048, Abandon: 40 * time.Millisecond, MaxAnchorAge: 5 * time.Millisecond,
		StepEnded: func(step uint64) (int64, bool) {
			v, ok := ended.Load(step)
			if !ok {
				return 0, false
			}
			return v.(int64), true
		},
	}
	first, err := cudaevents.New(d, w, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.EnsurePool(); err != nil {
		t.Fatal(err)
	}
	var cur atomic.Pointer[cudaevents.Recorder]
	cur.Store(first)
	shared := d.NewStream()

	stop := make(chan struct{})
	var harvesters, users sync.WaitGroup
	for range 2 {
		harvesters.Go(func() {
			pace := time.NewTicker(200 * time.Microsecond)
			defer pace.Stop()
			for {
				select {
				case <-stop:
					return
				case <-pace.C:
					cur.Load().Harvest()
				}
			}
		})
	}
	handles := make(chan cudaevents.Handle, 64) // ended by anybody
	var begun, done atomic.Int64
	for k := range workers {
		users.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(k), 9))
			own := d.NewStream()
			m := &cudaevents.Meta{Kind: spanring.KindLane, Ordinal: 1}
			for i := range rounds {
				r := cur.Load()
				s := own
				if rng.IntN(4) == 0 {
					s = shared
				}
				m.Step = uint64(k*rounds + i + 1)
				h, out := r.Begin(s, m)
				if out == cudaevents.BeginOK {
					begun.Add(1)
					d.Work(s, rng.Int64N(20_000))
					switch rng.IntN(8) {
					case 0: // never ended by us
						select {
						case handles <- h:
						default:
						}
					case 1:
						var h2 cudaevents.Handle
						if h2, out = r.Switch(h, m); out == cudaevents.BeginOK {
							begun.Add(1)
						}
						r.End(h2)
					case 2:
						r.End(h)
						r.End(h)
					case 3:
						select {
						case other := <-handles:
							r.End(other)
						default:
						}
						r.End(h)
					default:
						r.End(h)
					}
				}
				m.Kind = spanring.KindKernel
				if l, out := r.Reserve(s, m); out == cudaevents.BeginOK {
					if r.Launched(l, d.Launch(l.Pair, s, rng.Int64N(10_000))) {
						begun.Add(1)
					}
				}
				m.Kind = spanring.KindLane
				ended.Store(m.Step, spanring.MonoNS())
				done.Add(1)
				if i%50 == 49 { // for all recorders there are or were
					r.StreamDestroyed(own)
					if now := cur.Load(); now != r {
						now.StreamDestroyed(own)
					}
					d.DropStream(own)
					own = d.NewStream()
				}
			}
		})
	}
	users.Go(func() { // replaced half-way
		for done.Load() < workers*rounds/2 {
			runtime.Gosched()
		}
		old := cur.Load()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_ = old.Close(ctx) // callers may be inside the driver: their pairs stay alive
		next, err := cudaevents.NewReplacing(old, d, o)
		if err == nil {
			err = next.EnsurePool()
		}
		if err != nil {
			t.Error(err)
			return
		}
		cur.Store(next)
	})
	users.Wait()
	r := cur.Load()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.Drain(ctx); err != nil { // what was never ended is abandoned meanwhile
		t.Error(err)
	}
	close(stop)
	harvesters.Wait()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}

	c := w.Counters()
	if got := c.InFlight(); got != 0 {
		t.Errorf("begun %d, landed %d, failed %d, dropped %d: %d in flight", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped], got)
	}
	if got := c[spanring.CtrBegun] - c[spanring.CtrDropped]; got != uint64(begun.Load()) {
		t.Errorf("%d begun and not dropped, want %d", got, begun.Load())
	}
	if got, want := c[spanring.CtrDriverCalls], uint64(d.Calls()); got != want {
		t.Errorf("%d driver calls counted, %d made", got, want)
	}
	if c[spanring.CtrLanded] < workers*rounds/2 {
		t.Errorf("only %d landed", c[spanring.CtrLanded])
	}
	rd, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	landed, failed := count(t, rd)
	if uint64(landed) != c[spanring.CtrLanded] || uint64(failed) != c.Failed() {
		t.Errorf("%d spans and %d failed in the log, %d and %d counted", landed, failed, c[spanring.CtrLanded], c.Failed())
	}
	busy, err := rd.Busy()
	if err != nil || len(busy) != 0 {
		t.Errorf("busy slots %+v, %v", busy, err)
	}
	for _, v := range d.Violations() {
		t.Error(v)
	}
	t.Logf("begun %d, landed %d, failed %d, dropped %d, stale ends %d", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped], c[spanring.CtrStaleEnds])
}

// count counts landed and failed spans in the log.
func count(t *testing.T, rd *spanring.Reader) (landed, failed int) {
	t.Helper()
	buf := make([]spanring.Entry, 256)
	for {
		n, err := rd.Poll(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return landed, failed
		}
		for i := range buf[:n] {
			switch k := buf[i].Words.Kind(); {
			case k.IsSpan():
				if _, err := buf[i].Words.Span(); err != nil {
					t.Error(err)
				}
				landed++
			case k == spanring.KindSpanFailed:
				failed++
			}
		}
	}
}

// What is visible from outside is always one span's: never a slot half of which is
// its last one's.
func TestSlotsAreNeverTorn(t *testing.T) {
	d := scripted.New(scripted.Options{RealTime: true, LatencyNS: 1})
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 10, Slots: 2, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := cudaevents.New(d, w, cudaevents.Options{Pairs: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.EnsurePool(); err != nil {
		t.Fatal(err)
	}
	rd, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint32(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			m := &cudaevents.Meta{Kind: spanring.KindLane, Step: uint64(n), Ordinal: n, Name: spanring.NameID(n), Parent: n - 1, Lane: uint16(n)}
			if h, o := r.Begin(0, m); o == cudaevents.BeginOK {
				r.End(h)
			}
			r.Harvest()
		}
	})
	seen := 0
	for end := time.Now().Add(time.Minute); seen < 2000 && time.Now().Before(end); {
		busy, err := rd.Busy()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range busy {
			s := b.Slot
			if b.State == spanring.SlotDrain {
				continue // being filled, or accounted for
			}
			seen++
			if uint32(s.Step) != s.Ordinal || uint32(s.Name) != s.Ordinal || s.Parent != s.Ordinal-1 || s.Lane != uint16(s.Ordinal) {
				t.Fatalf("torn: %+v", b)
			}
		}
	}
	close(stop)
	wg.Wait()
	if seen < 2000 {
		t.Errorf("%d times a slot was seen busy", seen)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
}
