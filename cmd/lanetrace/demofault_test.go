package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/examples/faulty"
)

// A line of the exposition is picked by name, labels and value, all of them.
func TestSeries(t *testing.T) {
	const text = "# TYPE up gauge\nup{engine=\"a\"} 1\nup{engine=\"b\"} 0\nup_total{engine=\"b\"} 0\nplain 7\nbad{engine=\"a\"} x\n"
	for _, c := range []struct {
		s    series
		want string
	}{
		{series{"up", nil, isPositive}, `up{engine="a"} 1`},
		{series{"up", nil, isZero}, `up{engine="b"} 0`},
		{series{"up", []string{`engine="b"`}, isPositive}, ""},
		{series{"up", []string{`engine="b"`}, isZero}, `up{engine="b"} 0`},
		{series{"plain", nil, isPositive}, "plain 7"},
		{series{"pla", nil, isPositive}, ""},
		{series{"bad", nil, isZero}, ""},
	} {
		if got := c.s.line(text); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.s.name, c.s.labels, got, c.want)
		}
	}
	up, plain, none := series{"up", nil, isZero}, series{"plain", nil, isPositive}, series{"none", nil, isZero}
	if got := allSeries(text, []series{up, plain}); got != "up{engine=\"b\"} 0\nplain 7\n" {
		t.Errorf("%q", got)
	}
	if got := allSeries(text, []series{up, none}); got != "" {
		t.Errorf("%q", got)
	}
}

func TestPart(t *testing.T) {
	const text = "engine\n\nMEMORY\n  1 B live\n\nLOSS ACCOUNT  it balances\n  more\n"
	got := []string{part(text, "MEMORY"), part(text, "LOSS ACCOUNT"), part(text, "CLOCK")}
	if d := cmp.Diff([]string{"MEMORY\n  1 B live", "LOSS ACCOUNT  it balances\n  more\n", ""}, got); d != "" {
		t.Error(d)
	}
}

func TestLinesKept(t *testing.T) {
	var k linesKept
	for _, s := range []string{"one\n", "two words\n", "half of one"} {
		if n, err := k.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if a, b, c := k.with("words"), k.with("half"), k.with("three"); a != "two words" || b != "" || c != "" {
		t.Errorf("%q, %q, %q", a, b, c)
	}
	// It ends at a bound, whatever an engine logs.
	line := strings.Repeat("x", 1000) + "\n"
	for range 2 * maxLinesKept / len(line) {
		k.Write([]byte(line))
	}
	if n := len(k.all()); n > maxLinesKept || n < maxLinesKept-len(line) {
		t.Errorf("%d bytes kept", n)
	}
}

// Every fault has a story.
func TestStories(t *testing.T) {
	help := new(demoCmd).Help()
	for _, f := range faulty.Faults() {
		if s := storyOf(f); s.what == "" || s.show == nil || !strings.Contains(help, "--fault "+string(f)+" ") {
			t.Errorf("%s: %q", f, s.what)
		}
	}
	if s := storyOf("fire"); s.show != nil {
		t.Errorf("a story of none: %q", s.what)
	}
}
