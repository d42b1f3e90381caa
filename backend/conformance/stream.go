package conformance

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

var streamTests = []test{
	{"in order", inOrder},
	{"independent", independent},
	{"the driver's default stream", zeroStream},
	{"destroyed with work queued", destroyedBusy},
	{"events", events},
	{"recorded again", recordedAgain},
	{"waiting across streams", waiting},
	{"wait takes the record there is", waitsForLast},
	{"synchronize an event, not the stream", eventSync},
	{"bad handles", badHandles},
	{"goroutines that change threads", threads},
}

func inOrder(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n = 1000
	p := r.words(n, 1)
	want := uint32(1)
	r.spin(st, 2*time.Millisecond)
	for i := range 50 {
		f := i%5 + 2
		r.scale(st, p, f, n)
		want *= uint32(f)
		if i%10 == 9 {
			r.ok(r.gpu.MemsetAsync(p, byte(i), 4, st))
			r.ok(r.gpu.CopyHtoDAsync(p, le([]uint32{want}), st))
		}
	}
	r.wantAll("a chain of products", st, p, int(want), n)
}

func independent(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	a, b := r.stream(), r.stream()
	p := r.words(10, 0)
	e := r.event()
	seen(t, "one stream completes while another is busy", func() bool {
		r.spin(a, 50*time.Millisecond)
		r.ok(r.gpu.RecordEvent(e, a))
		r.fill(b, p, 8, 10)
		r.sync(b)
		done, err := r.gpu.EventQuery(e)
		r.ok(err)
		r.sync(a)
		return !done
	})
	r.wantAll("filled meanwhile", b, p, 8, 10)
}

func zeroStream(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	if r.gpu.DefaultStream() == 0 {
		t.Error("DefaultStream is the driver's own")
	}
	p := r.words(100, 2)
	r.scale(0, p, 21, 100)
	r.sync(0)
	r.wantAll("scaled on stream 0", 0, p, 42, 100)
	r.refused("destroying stream 0", invalidHandle, r.gpu.DestroyStream(0))
	r.refused("destroying the default stream", invalidHandle, r.gpu.DestroyStream(r.gpu.DefaultStream()))
}

func destroyedBusy(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, other := r.stream(), r.stream()
	p := r.words(10, 1)
	e := r.event()
	r.spin(st, 5*time.Millisecond)
	r.fill(st, p, 6, 10)
	r.ok(r.gpu.RecordEvent(e, st))
	r.ok(r.gpu.DestroyStream(st))
	r.refused("launching on it", invalidHandle, r.tryLaunch(st, kSpin, backend.U64(1)))
	r.refused("destroying it again", invalidHandle, r.gpu.DestroyStream(st))
	// What was queued still happens, and its event still tells of it.
	r.ok(r.gpu.StreamWaitEvent(other, e))
	r.scale(other, p, 2, 10)
	r.wantAll("written after the stream was destroyed", other, p, 12, 10)
	for range 100 {
		r.ok(r.gpu.DestroyStream(r.stream()))
	}
}

func events(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, e := r.stream(), r.event()
	done, err := r.gpu.EventQuery(e)
	if r.ok(err); !done {
		t.Error("an event that was never recorded is not complete")
	}
	r.ok(r.gpu.EventSynchronize(e))
	r.ok(r.gpu.StreamWaitEvent(st, e))
	seen(t, "an event behind work is pending", func() bool {
		r.spin(st, 30*time.Millisecond)
		r.ok(r.gpu.RecordEvent(e, st))
		done, err := r.gpu.EventQuery(e)
		r.ok(err)
		r.ok(r.gpu.EventSynchronize(e))
		after, err := r.gpu.EventQuery(e)
		if r.ok(err); !after {
			t.Error("an event that was waited for is not complete")
		}
		return !done
	})
	until(t, "an event completes without being waited for", func() bool {
		done, err := r.gpu.EventQuery(e)
		r.ok(err)
		return done
	})
	r.ok(r.gpu.DestroyEvent(e))
}

// recordedAgain: an event tells of its last record alone.
func recordedAgain(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	a, b, e := r.stream(), r.stream(), r.event()
	seen(t, "an event recorded again behind work is pending", func() bool {
		r.ok(r.gpu.RecordEvent(e, a))
		r.sync(a)
		r.spin(b, 30*time.Millisecond)
		r.ok(r.gpu.RecordEvent(e, b))
		done, err := r.gpu.EventQuery(e)
		r.ok(err)
		r.sync(b)
		return !done
	})
}

func waiting(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	a, b, c := r.stream(), r.stream(), r.stream()
	ea, eb := r.event(), r.event()
	const n = 500
	p, q, sum := r.words(n, 0), r.words(n, 0), r.words(n, 0)
	for i := 1; i <= 5; i++ {
		r.spin(a, time.Duration(i)*time.Millisecond)
		r.fill(a, p, i, n)
		r.ok(r.gpu.RecordEvent(ea, a))
		r.spin(b, time.Duration(6-i)*time.Millisecond)
		r.fill(b, q, 10*i, n)
		r.ok(r.gpu.RecordEvent(eb, b))
		r.ok(r.gpu.StreamWaitEvent(c, ea))
		r.ok(r.gpu.StreamWaitEvent(c, eb))
		r.launch(c, kAdd, backend.Ptr(sum), backend.Ptr(p), backend.Ptr(q), backend.U32(n))
		r.wantAll(fmt.Sprintf("round %d", i), c, sum, 11*i, n)
	}
}

// waitsForLast: what a wait waits for is settled when it is enqueued.
func waitsForLast(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	a, b, c, e := r.stream(), r.stream(), r.stream(), r.event()
	p := r.words(1, 1)
	behind := r.event()
	seen(t, "a later record does not hold an earlier wait up", func() bool {
		r.spin(a, 2*time.Millisecond)
		r.fill(a, p, 5, 1)
		r.ok(r.gpu.RecordEvent(e, a))
		r.ok(r.gpu.StreamWaitEvent(b, e))
		r.spin(c, 50*time.Millisecond)
		r.ok(r.gpu.RecordEvent(e, c))
		r.ok(r.gpu.RecordEvent(behind, c))
		r.scale(b, p, 3, 1)
		r.wantAll("waited for the first record", b, p, 15, 1)
		done, err := r.gpu.EventQuery(behind)
		r.ok(err)
		r.sync(c)
		return !done
	})
}

func eventSync(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, e, behind := r.stream(), r.event(), r.event()
	seen(t, "waiting for an event leaves what is behind it", func() bool {
		r.ok(r.gpu.RecordEvent(e, st))
		r.spin(st, 50*time.Millisecond)
		r.ok(r.gpu.RecordEvent(behind, st))
		r.ok(r.gpu.EventSynchronize(e))
		done, err := r.gpu.EventQuery(behind)
		r.ok(err)
		r.sync(st)
		return !done
	})
}

func badHandles(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, e := r.stream(), r.event()
	gone, goneEvent := r.stream(), r.event()
	r.ok(r.gpu.DestroyStream(gone))
	r.ok(r.gpu.DestroyEvent(goneEvent))
	for _, bad := range []backend.Stream{gone, 0xdead0} {
		what := func(s string) string { return fmt.Sprintf("%s with stream %#x", s, bad) }
		r.refused(what("Synchronize"), invalidHandle, r.gpu.Synchronize(bad))
		r.refused(what("DestroyStream"), invalidHandle, r.gpu.DestroyStream(bad))
		r.refused(what("RecordEvent"), invalidHandle, r.gpu.RecordEvent(e, bad))
		r.refused(what("StreamWaitEvent"), invalidHandle, r.gpu.StreamWaitEvent(bad, e))
		r.refused(what("BeginCapture"), invalidHandle, r.gpu.BeginCapture(bad))
		_, err := r.gpu.EndCapture(bad)
		r.refused(what("EndCapture"), invalidHandle, err)
		if !r.gpu.StreamIsCapturing(bad) {
			t.Error(what("StreamIsCapturing"), "is false: a status that cannot be had counts as capturing")
		}
		r.gpu.AbortCapture(bad)
	}
	for _, bad := range []backend.Event{goneEvent, 0, 0xdead0} {
		what := func(s string) string { return fmt.Sprintf("%s with event %#x", s, bad) }
		r.refused(what("RecordEvent"), invalidHandle, r.gpu.RecordEvent(bad, st))
		r.refused(what("StreamWaitEvent"), invalidHandle, r.gpu.StreamWaitEvent(st, bad))
		_, err := r.gpu.EventQuery(bad)
		r.refused(what("EventQuery"), invalidHandle, err)
		r.refused(what("EventSynchronize"), invalidHandle, r.gpu.EventSynchronize(bad))
		r.refused(what("DestroyEvent"), invalidHandle, r.gpu.DestroyEvent(bad))
	}
	for _, bad := range []backend.Graph{0, 12345} {
		r.refused(fmt.Sprintf("LaunchGraph %d", bad), invalidHandle, r.gpu.LaunchGraph(bad, st))
		r.refused(fmt.Sprintf("DestroyGraph %d", bad), invalidHandle, r.gpu.DestroyGraph(bad))
	}
	p := r.words(1, 1)
	r.scale(st, p, 4, 1)
	r.wantAll("after what was refused", st, p, 4, 1)
}

// threads uses one GPU from goroutines that change their threads, and from
// threads of their own that have never seen the driver.
func threads(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	const workers, rounds, n = 8, 20, 64
	var wg sync.WaitGroup
	for w := range workers {
		st, p := r.stream(), r.words(n, 1)
		wg.Go(func() {
			want := uint32(1)
			for i := range rounds {
				if (i+w)%3 == 0 {
					runtime.LockOSThread()
				}
				l := backend.Launch{
					Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{n, 1, 1}, Stream: st,
					Args: []backend.Arg{backend.Ptr(p), backend.U32(uint32(w + 2)), backend.U32(n)},
				}
				if err := r.gpu.Launch(r.k[kScale], &l); err != nil {
					t.Error(err)
				}
				want *= uint32(w + 2)
				runtime.Gosched()
				if i%4 == 3 {
					got := make([]byte, 4*n)
					if err := r.gpu.CopyDtoHOnStream(got, p, st); err != nil {
						t.Error(err)
					} else if v := unle(got); v[0] != want || v[n-1] != want {
						t.Errorf("worker %d, round %d: %d, want %d", w, i, v[0], want)
					}
				}
				if (i+w)%3 == 0 && i%2 == 0 {
					runtime.UnlockOSThread()
				}
			}
			// Threads still locked end here, with whatever context they have.
		})
	}
	wg.Wait()
}
