package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

// patience is how long anything here may take.
const patience = 3 * time.Minute

// binary is the program under test, and engine one that it looks at.
var binary, engine string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if _, err := exec.LookPath("chromium"); err != nil {
		fmt.Fprintln(os.Stderr, "chromium is not there: install the package chromium")
		return 1
	}
	dir, err := os.MkdirTemp("", "lanetrace-browser-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary, engine = filepath.Join(dir, "lanetrace"), filepath.Join(dir, "decode")
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "./cmd/lanetrace", "./examples/decode")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build lanetrace:", err)
		return 1
	}
	return m.Run()
}

// start starts lanetrace with arguments, waits until it answers, and returns where and
// what ends it. The test's end does too.
func start(t *testing.T, args ...string) (addr string, stop func()) {
	t.Helper()
	return startAt(t, "127.0.0.1:0", args...)
}

// free is an address that is free, also after a server was there: one of those that
// nobody is given who asks for any.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}

var serving = regexp.MustCompile(`http://([0-9.:]+)/metrics\b`)

// startAt is start at an address.
func startAt(t *testing.T, at string, args ...string) (addr string, stop func()) {
	t.Helper()
	stop, said := run(t, binary, append(args, "--listen", at)...)
	poll(t, "answer of lanetrace "+args[0], func() bool {
		if m := serving.FindStringSubmatch(said()); m != nil {
			addr = m[1]
		}
		if addr == "" {
			return false
		}
		r, err := http.Get("http://" + addr + "/healthz")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return addr, stop
}

// run runs a program until the test's end, if not stop, which must be a good one.
func run(t *testing.T, program string, args ...string) (stop func(), said func() string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // the program has its own
	said = func() string {
		b, _ := os.ReadFile(out) // not there: it said nothing
		return string(b)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s %v: %v\n%s", filepath.Base(program), args, err, said())
		}
	})
	t.Cleanup(stop)
	return stop, said
}

// poll waits for a condition.
func poll(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if is() {
			return
		}
	}
	t.Fatalf("no %s within %v", what, patience)
}

// recorded are the spans of a recording's steps by number, as the replay command
// writes them: another way to the same numbers than the page's.
type recorded map[int64][]recordedSpan

type recordedSpan struct {
	Kind, Name     string
	NS             int64 // corrected
	QueueDelay     int64
	PlaceUncertain int64
}

var recording = sync.OnceValues(func() (recorded, error) {
	cmd := exec.Command(binary, "replay", filepath.Join(root, "examples/recordings/h200-decode.ltrec"), "--speed", "max", "--format", "otlp-json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	steps, err := readSteps(out)
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	return steps, err
})

func readSteps(r io.Reader) (recorded, error) {
	type attr struct {
		Key   string
		Value struct{ IntValue, StringValue string }
	}
	var doc struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					Name                               string
					StartTimeUnixNano, EndTimeUnixNano string
					Attributes                         []attr
				}
			}
		}
	}
	steps := make(recorded)
	num := func(s string) int64 {
		n, _ := strconv.ParseInt(s, 10, 64) // "" is 0
		return n
	}
	for dec := json.NewDecoder(r); ; {
		doc.ResourceSpans = nil
		err := dec.Decode(&doc)
		if err == io.EOF {
			return steps, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read replay: %w", err)
		}
		step := int64(0)
		for _, rs := range doc.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, sp := range ss.Spans {
					s := recordedSpan{Name: sp.Name, NS: num(sp.EndTimeUnixNano) - num(sp.StartTimeUnixNano)}
					for _, a := range sp.Attributes {
						switch a.Key {
						case "lanetrace.step.number":
							step = num(a.Value.IntValue)
						case "lanetrace.span.kind":
							s.Kind = a.Value.StringValue
						case "lanetrace.queue_delay_ns":
							s.QueueDelay = num(a.Value.IntValue)
						case "lanetrace.start.uncertainty_ns":
							s.PlaceUncertain = num(a.Value.IntValue)
						}
					}
					if s.Kind == "lane" || s.Kind == "kernel" || s.Kind == "graph" {
						steps[step] = append(steps[step], s)
					}
				}
			}
		}
	}
}
