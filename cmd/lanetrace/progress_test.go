package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestReplayProgress: on a terminal a replay draws how far it is, and leaves only
// what it came to.
func TestReplayProgress(t *testing.T) {
	master, tty := openTerminal(t)
	r, url := serveReceiver(t)
	r.discard.Store(true)
	path := testRecording(t, synth.Options{Duration: time.Second})
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"replay", path, "--otlp-endpoint", url, "--every", "10"}, new(output), tty)
		fmt.Fprintln(tty, "END")
	}()
	var text strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(text.String(), "END"); {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(buf[:n])
	}
	if c := <-code; c != 0 {
		t.Fatalf("exit code %d: %q", c, text.String())
	}
	drawn := regexp.MustCompile(`replaying: [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}, ([0-9]+) %, [0-9,]+ spans sent`).FindAllStringSubmatch(text.String(), -1)
	if len(drawn) < 3 || drawn[0][1] == drawn[len(drawn)-1][1] {
		t.Errorf("drawn: %q", drawn)
	}
	if lines := strings.Split(strings.TrimSpace(text.String()), "\n"); !regexp.MustCompile(`\rlanetrace: sent [0-9,]+ spans\r$`).MatchString(lines[len(lines)-2]) {
		t.Errorf("last line %q", lines[len(lines)-2])
	}
}

// TestProgressIsOneLine: what is longer than a line could not be taken away again.
func TestProgressIsOneLine(t *testing.T) {
	master, tty := openTerminal(t)
	setSize(t, tty, 24, 20)
	l := newLogger(tty)
	l.progress("recording: 1 run, 72,548 entries")
	l.line("end")
	var text strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(text.String(), "end"); {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(buf[:n])
	}
	drawn := "recording: 1 run, 7"
	if want := drawn + "\r" + strings.Repeat(" ", len(drawn)) + "\rlanetrace: end"; !strings.HasPrefix(text.String(), want) {
		t.Errorf("%q, want %q", text.String(), want)
	}
}
