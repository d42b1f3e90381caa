package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

// patience is how long anything here may take.
const patience = 60 * time.Second

// binary is the program under test.
var binary string

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
	binary = filepath.Join(dir, "lanetrace")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/lanetrace")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build lanetrace:", err)
		return 1
	}
	return m.Run()
}

// freeAddr is an address of this machine that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts lanetrace with arguments, waits until it answers at addr, and
// returns what ends it. The test's end does too.
func start(t *testing.T, addr string, args ...string) (stop func()) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(binary, append(args, "--listen", addr)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("lanetrace %v: %v\n%s", args, err, &out)
		}
	})
	t.Cleanup(stop)
	poll(t, "answer at "+addr, func() bool {
		r, err := http.Get("http://" + addr + "/healthz")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return stop
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
