package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
