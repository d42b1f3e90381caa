package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// eventsIn counts the events of a trace-event file by name.
func eventsIn(t *testing.T, path string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		TraceEvents []struct{ Ph, Name string }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	n := make(map[string]int)
	for _, e := range d.TraceEvents {
		if e.Ph == "X" || e.Ph == "b" {
			n[e.Name]++
		}
	}
	return n
}

// TestRecordThePast: the ring alone holds the last minutes of a live engine, and
// of one that ended, if it is named.
func TestRecordThePast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rings")
	if err := (spanring.Dir{Path: dir, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	out := func(name string) string { return filepath.Join(filepath.Dir(dir), name) }
	playInto(t, dir, synth.Options{Duration: 200 * time.Millisecond, Seed: 1, Service: "gone"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		playInto(t, dir, synth.Options{Duration: 3 * time.Second})
	}()
	var c *command
	eventually(t, "the live engine's steps", func() bool {
		c = start(t, "record", "--dir", dir, "--last", "1m", "-o", out("live.json"), "--force")
		return c.wait(t) == 0 && !strings.Contains(c.err.String(), "no step") && eventsIn(t, out("live.json"))["decode"] > 100
	})
	if s := c.err.String(); !strings.Contains(s, "steps of 1 engine, the oldest of ") {
		t.Errorf("stderr %q", s)
	}
	if n := eventsIn(t, out("live.json")); n["attention_decode_f16_h64"] == 0 || n["step"]+n["step 1"] == 0 && len(n) < 5 {
		t.Errorf("events %v", n)
	}
	c = start(t, "record", "--dir", dir, "--last", "1m", "-o", out("gone.txt"), "--format", "text", "--engine", "gone")
	if code := c.wait(t); code != 0 {
		t.Fatalf("exit code %d, stderr %s", code, c.err.String())
	}
	if b, err := os.ReadFile(out("gone.txt")); err != nil || strings.Count(string(b), "  step ") < 200 || strings.Contains(string(b), "synthetic-decode") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{1, "exists: give another --out", []string{"--last", "1m", "-o", out("gone.txt")}},
		{1, `no engine "nobody"`, []string{"--last", "1m", "-o", out("x.json"), "--engine", "nobody"}},
		{2, "give one of them", []string{"--last", "1m", "--duration", "1s", "-o", out("x.json")}},
		{2, "--format is for --last", []string{"--format", "chrome", "-o", out("x.json")}},
	} {
		c := start(t, append([]string{"record", "--dir", dir}, x.args...)...)
		if code := c.wait(t); code != x.code || !strings.Contains(c.err.String(), x.want) || strings.Count(c.err.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, stderr %q", x.args, code, c.err.String())
		}
	}
	if _, err := os.Stat(out("x.json")); err == nil {
		t.Error("a file of nothing was left")
	}
	<-done
	c = start(t, "record", "--dir", dir, "--last", "1m", "-o", out("x.json"))
	if code, s := c.wait(t), c.err.String(); code != 1 || !strings.Contains(s, "no live engine in ") || !strings.Contains(s, ": gone-gpu") && !strings.Contains(s, ", gone-gpu") {
		t.Errorf("exit code %d, stderr %q", code, s)
	}
	c = start(t, "record", "--dir", dir, "--last", "1ns", "-o", out("none.json"), "--engine", "synthetic-decode")
	if code := c.wait(t); code != 0 || !strings.Contains(c.err.String(), "hold no step of the last 1ns") {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
}
