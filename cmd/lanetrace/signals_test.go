package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/exporters/recording"
)

// TestHangup: a terminal that is closed ends a sidecar as SIGTERM does.
func TestHangup(t *testing.T) {
	// What is started ignores it no more, should these tests run under nohup.
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	rings := privateDir(t)
	hub := fastEngine(t, rings)
	runSteps(hub, 10)
	p := startSidecar(t, "--dir", rings, "--state-dir", filepath.Join(t.TempDir(), "state"), "--every", "1", "--otlp-endpoint", "http://127.0.0.1:1")
	p.read(t, hub)
	p.signal(t, unix.SIGHUP)
	if code, said := p.wait(t), p.err.String(); code != 0 || !strings.Contains(said, "10 spans were not sent") {
		t.Errorf("exit code %d, stderr:\n%s", code, said)
	}
}

// TestReaderGoes: who reads our output may go before us, as tee does at Ctrl-C and head
// when it has its lines. What we have to finish is finished all the same.
func TestReaderGoes(t *testing.T) {
	unread, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := unread.Close(); err != nil {
		t.Fatal(err)
	}

	rings, out := privateDir(t), filepath.Join(t.TempDir(), "x.ltrec")
	hub := fastEngine(t, rings)
	record := process(t, "record", "--dir", rings, "-o", out)
	record.Stderr = w
	if err := record.Start(); err != nil {
		t.Fatal(err)
	}
	header := int64(0)
	eventually(t, "something is recorded", func() bool {
		runSteps(hub, 10)
		st, err := os.Stat(out)
		if err == nil && header == 0 {
			header = st.Size()
		}
		return err == nil && st.Size() > header
	})
	if err := errors.Join(record.Process.Signal(unix.SIGINT), record.Wait()); err != nil {
		t.Errorf("record: %v", err)
	}
	f, err := recording.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Damage(), f.Close()); err != nil || len(f.Runs()) != 1 {
		t.Errorf("%d runs, %v", len(f.Runs()), err)
	}

	played := privateDir(t)
	demo := process(t, "demo", "--listen", "127.0.0.1:0", "--dir", played)
	demo.Stdout = w
	program := process(t, "run", "--listen", "127.0.0.1:0", "--dir", played, "--", "sh", "-c", "exit 3")
	program.Stderr = w
	for c, want := range map[*exec.Cmd]int{demo: exitSignal + int(unix.SIGPIPE), program: 3} {
		var ee *exec.ExitError
		if err := c.Run(); !errors.As(err, &ee) || ee.ExitCode() != want {
			t.Errorf("%q: %v, want exit code %d", c.Args[1:], err, want)
		}
	}
	if left, err := os.ReadDir(played); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestSignals: a signal that comes several times at once is one, after which the
// sidecar still says what it could not send; one that comes again later ends it.
func TestSignals(t *testing.T) {
	rings := privateDir(t)
	hub := fastEngine(t, rings)
	runSteps(hub, 10)
	for _, again := range []bool{false, true} {
		p := startSidecar(t, "--dir", rings, "--state-dir", filepath.Join(t.TempDir(), "state"), "--every", "1", "--otlp-endpoint", "http://127.0.0.1:1")
		p.read(t, hub)
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			p.signal(t, unix.SIGTERM)
		}
		if !again {
			if code, said := p.wait(t), p.err.String(); code != 0 || !strings.Contains(said, "10 spans were not sent") {
				t.Errorf("exit code %d, stderr:\n%s", code, said)
			}
			continue
		}
		go func() {
			for range time.Tick(10 * time.Millisecond) {
				if p.cmd.Process.Signal(unix.SIGTERM) != nil {
					return
				}
			}
		}()
		if code, said := p.wait(t), p.err.String(); code != -1 || strings.Contains(said, "were not sent") {
			t.Errorf("exit code %d after more signals, stderr:\n%s", code, said)
		}
	}
}
