//go:build cgo

package cuda

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDefaultStreamIsShared: GPUs of one device have one default stream, which
// lasts until the last of them is closed.
func TestDefaultStreamIsShared(t *testing.T) {
	lib, ctl := controlled(t)
	streams := ctl.Live("stream")
	a := openTest(t, Config{Library: lib})
	b := openTest(t, Config{Library: lib})
	f := &fixture{t: t, g: b}
	s := a.DefaultStream()
	if s == 0 || b.DefaultStream() != s || ctl.Live("stream") != streams+1 {
		t.Fatalf("default streams %#x and %#x, %d streams made", s, b.DefaultStream(), ctl.Live("stream")-streams)
	}
	if err := a.DestroyStream(s); !errors.Is(err, ErrInvalidHandle) {
		t.Errorf("destroy it: %v", err)
	}
	// What one enqueues the other waits for.
	p, err := b.Alloc(4)
	f.ok(err)
	f.ok(a.MemsetAsync(p, 7, 4, s))
	got := make([]byte, 4)
	f.ok(b.CopyDtoH(got, p))
	if d := cmp.Diff([]byte{7, 7, 7, 7}, got); d != "" {
		t.Error(d)
	}
	// A GPU that is closed waits for the other's capture and leaves it alone.
	f.ok(b.BeginCapture(s))
	f.ok(b.MemsetAsync(p, 8, 4, s))
	closed := make(chan error, 1)
	asked := ctl.Calls("cuStreamIsCapturing")
	go func() { closed <- a.Close() }()
	until(t, "the other has looked at the stream", func() bool { return ctl.Calls("cuStreamIsCapturing") > asked+1 })
	gr, err := b.EndCapture(s)
	f.ok(err)
	f.ok(<-closed)
	f.ok(b.LaunchGraph(gr, s))
	f.ok(b.CopyDtoH(got, p))
	if d := cmp.Diff([]byte{8, 8, 8, 8}, got); d != "" {
		t.Error(d)
	}
	if n := ctl.Live("stream") - streams; n != 1 {
		t.Errorf("%d streams while one GPU is open", n)
	}
	f.ok(b.Close())
	if n := ctl.Live("stream") - streams; n != 0 {
		t.Errorf("%d streams are left", n)
	}
	// The next one makes another.
	c := openTest(t, Config{Library: lib})
	f.ok(c.Synchronize(c.DefaultStream()))
	f.ok(c.Close())
}
