package ledger

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/spanring"
)

// childEnv names the part that a re-executed test binary plays, see children.
const childEnv = "LEDGER_TEST_CHILD"

func TestMain(m *testing.M) {
	if part := os.Getenv(childEnv); part != "" {
		if err := children[part](); err != nil {
			fmt.Fprintf(os.Stderr, "child %s: %v\n", part, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const device = spanring.AllocDevice

func newLedger(t testing.TB, o Options) *Ledger {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var testGeometry = spanring.Geometry{LogEntries: 4096, Slots: 1, NameBytes: 1 << 16, Allocs: 256}

func heapRing(t testing.TB, geo spanring.Geometry) (*spanring.Writer, *spanring.Reader) {
	t.Helper()
	w, err := spanring.NewHeap(spanring.Options{Geometry: geo})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w, r
}

// alloc does what a backend does around a successful allocation.
func alloc(l *Ledger, addr uint64, bytes int64) {
	p := l.Begin(device, bytes)
	p.Done(addr)
}

// free does what a backend does around a free that the driver answers with err.
func free(l *Ledger, addr uint64, err error) bool {
	t := l.Take(addr)
	t.Done(err)
	return t.Known()
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines are the lines so far, without their times.
func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(l.b.String(), "\n"), "\n")
}

func newLog() (*logBuffer, *slog.Logger) {
	b := &logBuffer{}
	return b, slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
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
