//go:build cgo

package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/internal/testdriver"
)

func TestMissingLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nosuch.so")
	_, err := Open(Config{Library: path})
	var e *LibraryError
	if !errors.Is(err, ErrNoDriver) || !errors.As(err, &e) || e.Path != path || e.Symbol != "" {
		t.Fatalf("a library that is not there: %v", err)
	}
	for _, want := range []string{path, "install the NVIDIA driver", LibraryEnv} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	notOne := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(notOne, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Library: notOne}); !errors.Is(err, ErrNoDriver) {
		t.Errorf("a file that is no library: %v", err)
	}
	t.Setenv(LibraryEnv, path)
	if _, err := Open(Config{}); !errors.As(err, &e) || e.Path != path {
		t.Errorf("the library that %s names: %v", LibraryEnv, err)
	}
}

// TestMissingSymbols opens libraries that lack one entry point each: the first,
// one in the middle and the last of those that are needed.
func TestMissingSymbols(t *testing.T) {
	standIn(t)
	for _, symbol := range []string{"cuInit", "cuStreamIsCapturing", "cuMemsetD8Async"} {
		_, err := Open(Config{Library: testdriver.BuildWithout(t, symbol)})
		var e *LibraryError
		if !errors.As(err, &e) || e.Symbol != symbol || !errors.Is(err, ErrNoDriver) {
			t.Errorf("without %s: %v", symbol, err)
			continue
		}
		for _, want := range []string{symbol, "update the NVIDIA driver"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
}

// TestOldDriver does without what older drivers lack.
func TestOldDriver(t *testing.T) {
	standIn(t)
	g := openTest(t, Config{Library: testdriver.BuildWithout(t,
		"cuStreamGetId", "cuFuncGetParamInfo", "cuEventElapsedTime_v2", "cuDeviceGetUuid_v2", "cuGetErrorName")})
	defer g.Close() //nolint:errcheck // looked at below
	if f := g.lib.features(); f != hasUUID {
		t.Errorf("features %b, want %b", f, hasUUID)
	}
	d := g.Driver()
	if d.Device().UUID == [16]byte{} {
		t.Error("no UUID from the older entry point")
	}
	// Streams are told apart by numbers of our own.
	a, err := g.CreateStream()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[uint64]bool{}
	for _, s := range []cudaevents.Stream{0, g.DefaultStream(), a} {
		id, err := d.StreamID(s)
		if err != nil {
			t.Errorf("stream %#x: %v", s, err)
		}
		ids[id] = true
	}
	if len(ids) != 3 {
		t.Errorf("3 streams have %d identities", len(ids))
	}
	if _, err := d.StreamID(0xdead0); !errors.Is(err, ErrInvalidHandle) {
		t.Errorf("no stream: %v", err)
	}
	own, err := d.CreateStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.StreamID(own); !errors.Is(err, ErrInvalidHandle) {
		t.Errorf("telemetry's own stream, which has no number: %v", err)
	}
	if err := d.DestroyStream(own); err != nil {
		t.Error(err)
	}
	// Elapsed time comes from the older entry point.
	ev := make([]cudaevents.Event, 2)
	if err := d.CreateEvents(ev); err != nil {
		t.Fatal(err)
	}
	p := cudaevents.Pair{Start: ev[0], End: ev[1]}
	if err := d.SpinPair(a, 19800, p); err != nil {
		t.Fatal(err)
	}
	if err := g.Synchronize(a); err != nil {
		t.Fatal(err)
	}
	var out [1]cudaevents.Times
	if n, r, _ := d.Elapsed(0, []cudaevents.Pair{p}, out[:]); n != 1 || out[0].DurationMS < 0.01 {
		t.Errorf("read %d pairs, result %d, %v ms", n, r, out[0].DurationMS)
	}
	if err := d.DestroyEvents(ev); err != nil {
		t.Error(err)
	}
	// A code that neither knows has its number.
	if err := g.fail(12345, "try"); err.Error() != "cuda: try: CUDA error 12345" {
		t.Errorf("%q", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoUUID(t *testing.T) {
	standIn(t)
	g := openTest(t, Config{Library: testdriver.BuildWithout(t, "cuDeviceGetUuid", "cuDeviceGetUuid_v2")})
	if u := g.UUID(); u != [16]byte{} || g.info.mig {
		t.Errorf("UUID %x, MIG %v from a driver that has none", u, g.info.mig)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestBadConfig(t *testing.T) {
	none := func(string) string { return "" }
	for name, c := range map[string]Config{
		"ordinal": {Ordinal: -1}, "capture": {Capture: 9}, "staging": {StagingBytes: 1000}, "drain": {DrainWait: -1},
	} {
		if _, err := c.settle(none); err == nil || !strings.HasPrefix(err.Error(), "cuda: ") {
			t.Errorf("%s: %v", name, err)
		}
		if g, err := Open(c); err == nil {
			t.Errorf("%s: opened", name)
			_ = g.Close()
		}
	}
	got, err := Config{}.settle(none)
	got.Logger = nil
	want := Config{Library: DefaultLibrary, StagingBytes: 8 << 20, DrainWait: 10 * time.Second}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("defaults (%v, -want +got):\n%s", err, d)
	}
}

func TestNoSuchDevice(t *testing.T) {
	lib := anyDriver(t)
	_, err := Open(Config{Library: lib, Ordinal: 99})
	var e *Error
	if !errors.As(err, &e) || e.Result != ErrInvalidDevice || !errors.Is(err, ErrInvalidDevice) {
		t.Fatalf("device 99: %v", err)
	}
	if !strings.Contains(err.Error(), "find the device 99 of ") || !strings.Contains(err.Error(), "CUDA_ERROR_INVALID_DEVICE (101)") {
		t.Errorf("%q does not say what is wrong", err)
	}
}
