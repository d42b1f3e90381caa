package spanring

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childEnv names the part that a re-executed test binary plays, see children.
const childEnv = "SPANRING_TEST_CHILD"

func TestMain(m *testing.M) {
	if part := os.Getenv(childEnv); part != "" {
		f, ok := children[part]
		if !ok {
			fmt.Fprintf(os.Stderr, "no such child: %s\n", part)
			os.Exit(2)
		}
		if err := f(); err != nil {
			fmt.Fprintf(os.Stderr, "child %s: %v\n", part, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// smallGeometry is the smallest ring there is: 12 KiB and a little.
var smallGeometry = Geometry{LogEntries: 64, Slots: 8, NameBytes: 4096, Allocs: 8}

func newHeap(t testing.TB, geo Geometry) *Writer {
	t.Helper()
	w, err := NewHeap(Options{Geometry: geo})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func heapReader(t testing.TB, w *Writer, o ReaderOptions) *Reader {
	t.Helper()
	r, err := NewHeapReader(w, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// privateDir is a ring directory that passes Check.
func privateDir(t testing.TB) Dir {
	t.Helper()
	d := Dir{Path: t.TempDir(), Group: -1}
	if err := os.Chmod(d.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func create(t testing.TB, d Dir, geo Geometry) *Writer {
	t.Helper()
	w, err := Create(d, Options{Geometry: geo})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func open(t testing.TB, path string) *Reader {
	t.Helper()
	r, err := Open(path, ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// mix is a bijection that spreads its argument's bits.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// sealed is entry n of a writer, every word of it different from that of any
// other entry, and the last a checksum.
func sealed(writer, n uint64) Words {
	w := Words{head(KindDevice, 0, 0, 0, 0, 0) | n<<8, writer, n, mix(n), mix(n + writer), ^n}
	w[6] = sum(&w)
	return w
}

func sum(w *Words) uint64 {
	h := uint64(1)
	for _, v := range w[:6] {
		h = mix(h ^ v)
	}
	return h
}

// intact reports whether w is exactly what sealed made.
func intact(w *Words) bool { return *w == sealed(w[1], w[2]) }

// pollAll polls until nothing more comes.
func pollAll(t testing.TB, r *Reader, now int64) []Entry {
	t.Helper()
	var all []Entry
	buf := make([]Entry, 37)
	for {
		n, err := r.Poll(buf, now)
		if err != nil {
			t.Fatalf("Poll after %d entries: %v", len(all), err)
		}
		if n == 0 {
			return all
		}
		all = append(all, buf[:n]...)
	}
}

// balanced fails the test unless the account's equation holds.
func balanced(t testing.TB, a Account) {
	t.Helper()
	if a.Published != a.Received+a.Lost+a.Missed+a.Pending || a.Lost != a.Overwritten+a.Holes+a.Unreadable {
		t.Errorf("account does not balance: %+v", a)
	}
}

// eventually polls a condition for as long as a minute.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
		<-tick.C
	}
}
