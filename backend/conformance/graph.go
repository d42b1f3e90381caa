package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

var graphTests = []test{
	{"captured, not run", capturedNotRun},
	{"replays", replays},
	{"copies and memsets", graphCopies},
	{"keeps the host memory it copies from", graphSource},
	{"forks and joins", forkJoin},
	{"not joined", notJoined},
	{"empty", emptyGraph},
	{"aborted", aborted},
	{"spoiled", spoiled},
	{"misused", misused},
	{"destroyed while it runs", destroyedRunning},
	{"ended on another thread", otherThread},
}

// capture captures what f enqueues on st.
func (r *rig) capture(st backend.Stream, f func()) backend.Graph {
	r.t.Helper()
	r.ok(r.gpu.BeginCapture(st))
	f()
	g, err := r.gpu.EndCapture(st)
	r.ok(err)
	if g == 0 {
		r.t.Fatal("EndCapture gave no graph")
	}
	return g
}

func capturedNotRun(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(10, 1)
	if r.gpu.StreamIsCapturing(st) {
		t.Error("capturing before the capture")
	}
	r.ok(r.gpu.BeginCapture(st))
	if !r.gpu.StreamIsCapturing(st) {
		t.Error("not capturing during the capture")
	}
	r.fill(st, p, 5, 10)
	g, err := r.gpu.EndCapture(st)
	r.ok(err)
	if r.gpu.StreamIsCapturing(st) {
		t.Error("capturing after the capture")
	}
	r.wantAll("captured, not run", st, p, 1, 10)
	r.ok(r.gpu.LaunchGraph(g, st))
	r.wantAll("replayed", st, p, 5, 10)
	r.ok(r.gpu.DestroyGraph(g))
	r.refused("launching a destroyed graph", invalidHandle, r.gpu.LaunchGraph(g, st))
	r.refused("destroying it again", invalidHandle, r.gpu.DestroyGraph(g))
}

func replays(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, other := r.stream(), r.stream()
	const n = 300
	p, q := r.words(n, 1), r.words(n, 0)
	g := r.capture(st, func() {
		r.scale(st, p, 3, n)
		r.launch(st, kAdd, backend.Ptr(q), backend.Ptr(q), backend.Ptr(p), backend.U32(n))
	})
	product, sum := 1, 0
	for i := range 5 {
		on := st
		if i%2 == 1 {
			on = other // a graph is no stream's own
		}
		r.ok(r.gpu.LaunchGraph(g, on))
		product *= 3
		sum += product
		r.wantAll(fmt.Sprintf("product, replay %d", i), on, p, product, n)
		r.wantAll(fmt.Sprintf("sum, replay %d", i), on, q, sum, n)
	}
	for range 10 {
		r.ok(r.gpu.LaunchGraph(g, st))
		product *= 3
		sum += product
	}
	r.wantAll("ten replays in a row", st, q, int(uint32(sum)), n)
}

func graphCopies(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n = 4096
	a, b := r.alloc(n), r.alloc(n)
	want := pattern(n, 5)
	r.ok(r.gpu.CopyHtoD(a, want))
	g := r.capture(st, func() {
		r.ok(r.gpu.MemsetAsync(b, 7, n, st))
		r.ok(r.gpu.CopyDtoDAsync(b+100, a+100, n-200, st))
		r.launch(st, kCopy8, backend.Ptr(a), backend.Ptr(b), backend.U64(50))
	})
	for i := range want {
		if i < 100 || i >= n-100 {
			want[i] = 7
		}
	}
	r.ok(r.gpu.LaunchGraph(g, st))
	got := make([]byte, n)
	r.ok(r.gpu.CopyDtoHOnStream(got, b, st))
	wantBytes(t, "set and copied by a graph", want, got)
}

// graphSource: a captured copy from the host brings what was there when it was
// captured, at every replay.
func graphSource(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n = 10_000
	p := r.alloc(n)
	src := pattern(n, 1)
	g := r.capture(st, func() { r.ok(r.gpu.CopyHtoDAsync(p, src, st)) })
	clear(src)
	for i := range 3 {
		r.ok(r.gpu.Memset(p, 0, n))
		r.ok(r.gpu.LaunchGraph(g, st))
		got := make([]byte, n)
		r.ok(r.gpu.CopyDtoHOnStream(got, p, st))
		wantBytes(t, fmt.Sprintf("replay %d", i), pattern(n, 1), got)
	}
	r.ok(r.gpu.LaunchGraph(g, st))
	r.ok(r.gpu.DestroyGraph(g))
	r.sync(st)
}

func forkJoin(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	a, b := r.stream(), r.stream()
	fork, join := r.event(), r.event()
	const n = 100
	p, q, w, sum := r.words(n, 1), r.words(n, 1), r.words(n, 1), r.words(n, 0)
	g := r.capture(a, func() {
		r.scale(a, p, 2, n)
		r.ok(r.gpu.RecordEvent(fork, a))
		r.ok(r.gpu.StreamWaitEvent(b, fork))
		if !r.gpu.StreamIsCapturing(b) {
			t.Error("a stream that waits for a captured event is not in the capture")
		}
		r.launch(b, kAdd, backend.Ptr(q), backend.Ptr(q), backend.Ptr(p), backend.U32(n))
		r.scale(a, w, 5, n)
		r.ok(r.gpu.RecordEvent(join, b))
		r.ok(r.gpu.StreamWaitEvent(a, join))
		r.launch(a, kAdd, backend.Ptr(sum), backend.Ptr(w), backend.Ptr(q), backend.U32(n))
	})
	if r.gpu.StreamIsCapturing(b) {
		t.Error("a joined stream is still capturing after the end")
	}
	r.ok(r.gpu.LaunchGraph(g, a))
	r.wantAll("5 + (1 + 2)", a, sum, 8, n)
	r.ok(r.gpu.LaunchGraph(g, a))
	r.wantAll("25 + (3 + 4)", a, sum, 32, n)
	r.fill(b, q, 9, n)
	r.wantAll("a stream that was in a capture works", b, q, 9, n)
}

func notJoined(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	a, b, fork := r.stream(), r.stream(), r.event()
	p := r.words(1, 3)
	r.ok(r.gpu.BeginCapture(a))
	r.ok(r.gpu.RecordEvent(fork, a))
	r.ok(r.gpu.StreamWaitEvent(b, fork))
	r.fill(b, p, 4, 1)
	_, err := r.gpu.EndCapture(a)
	r.refused("ending a capture with a stream left out", unjoined, err)
	for _, st := range []backend.Stream{a, b} {
		if r.gpu.StreamIsCapturing(st) {
			t.Errorf("stream %#x is still capturing", st)
		}
		r.scale(st, p, 2, 1)
		r.sync(st)
	}
	r.wantAll("both streams work afterwards", a, p, 12, 1)
}

func emptyGraph(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	g := r.capture(st, func() {})
	r.ok(r.gpu.LaunchGraph(g, st))
	r.sync(st)
	r.ok(r.gpu.DestroyGraph(g))
}

func aborted(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(5, 2)
	r.gpu.AbortCapture(st) // nothing to abort
	for range 3 {
		r.ok(r.gpu.BeginCapture(st))
		r.fill(st, p, 9, 5)
		r.ok(r.gpu.CopyHtoDAsync(p, []byte{1, 2, 3, 4}, st))
		r.gpu.AbortCapture(st)
		if r.gpu.StreamIsCapturing(st) {
			t.Error("capturing after an abort")
		}
		_, err := r.gpu.EndCapture(st)
		r.refused("ending an aborted capture", illegalState, err)
	}
	r.wantAll("nothing of it ran", st, p, 2, 5)
	r.scale(st, p, 4, 5)
	r.wantAll("the stream works", st, p, 8, 5)
	g := r.capture(st, func() { r.scale(st, p, 2, 5) })
	r.ok(r.gpu.LaunchGraph(g, st))
	r.wantAll("and captures again", st, p, 16, 5)
}

func spoiled(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(5, 2)
	r.ok(r.gpu.BeginCapture(st))
	r.fill(st, p, 9, 5)
	r.refused("synchronizing a capturing stream", captureUnsup, r.gpu.Synchronize(st))
	_, err := r.gpu.EndCapture(st)
	r.refused("ending a spoiled capture", captureBroken, err)
	if r.gpu.StreamIsCapturing(st) {
		t.Error("capturing after the end of a spoiled capture")
	}
	r.wantAll("nothing of it ran", st, p, 2, 5)

	// A blocking copy is refused without harm.
	var host [4]byte
	g := r.capture(st, func() {
		r.fill(st, p, 3, 5)
		r.refused("a blocking copy on a capturing stream", captureUnsup, r.gpu.CopyDtoHOnStream(host[:], p, st))
	})
	r.ok(r.gpu.LaunchGraph(g, st))
	r.wantAll("the capture survived", st, p, 3, 5)

	d := r.gpu.DefaultStream()
	g = r.capture(d, func() {
		r.refused("CopyHtoD while the default stream captures", captureUnsup, r.gpu.CopyHtoD(p, host[:]))
		r.refused("CopyDtoH while the default stream captures", captureUnsup, r.gpu.CopyDtoH(host[:], p))
		r.refused("CopyDtoD while the default stream captures", captureUnsup, r.gpu.CopyDtoD(p, p+4, 4))
		r.refused("Memset while the default stream captures", captureUnsup, r.gpu.Memset(p, 0, 4))
		r.scale(d, p, 7, 5)
	})
	r.ok(r.gpu.LaunchGraph(g, d))
	r.wantAll("that capture survived too", d, p, 21, 5)
}

func misused(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	_, err := r.gpu.EndCapture(st)
	r.refused("ending what was not begun", illegalState, err)
	r.ok(r.gpu.BeginCapture(st))
	r.refused("beginning twice", illegalState, r.gpu.BeginCapture(st))
	g, err := r.gpu.EndCapture(st)
	r.ok(err)
	r.ok(r.gpu.DestroyGraph(g))
	r.refused("capturing stream 0", 0, r.gpu.BeginCapture(0))
	_, err = r.gpu.EndCapture(0)
	r.refused("ending a capture of stream 0", illegalState, err)
	// A stream that is destroyed while it captures takes the capture with it.
	r.ok(r.gpu.BeginCapture(st))
	r.ok(r.gpu.DestroyStream(st))
	if r.driver().Capturing() {
		t.Error("a capture of a stream that is gone is still counted")
	}
}

func destroyedRunning(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(10, 1)
	g := r.capture(st, func() {
		r.spin(st, 5*time.Millisecond)
		r.scale(st, p, 6, 10)
	})
	r.ok(r.gpu.LaunchGraph(g, st))
	r.ok(r.gpu.LaunchGraph(g, st))
	r.ok(r.gpu.DestroyGraph(g))
	r.wantAll("two replays of a graph destroyed meanwhile", st, p, 36, 10)
}

// otherThread: goroutines go where they like, also between begin and end.
func otherThread(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(10, 1)
	elsewhere(func() { r.ok2(r.gpu.BeginCapture(st)) })
	elsewhere(func() {
		r.ok2(r.tryLaunch(st, kScale, backend.Ptr(p), backend.U32(3), backend.U32(10)))
	})
	var g backend.Graph
	elsewhere(func() {
		var err error
		g, err = r.gpu.EndCapture(st)
		r.ok2(err)
	})
	elsewhere(func() { r.ok2(r.gpu.LaunchGraph(g, st)) })
	r.wantAll("captured from three threads", st, p, 3, 10)
}
