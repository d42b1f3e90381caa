package launchtrace

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestDifferencesAreLogged: a line for a difference, none for equal executions, and
// one a second for a region whose executions all differ.
func TestDifferencesAreLogged(t *testing.T) {
	var b bytes.Buffer
	drop := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	r := New(Options{Logger: slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: drop}))})
	g := r.Region("decode")
	for step, n := range []uint64{1, 1, 2} {
		g.Begin()
		r.Copy(0, 1, 2, n)
		g.End(uint64(step+1), 0)
	}
	const line = "level=INFO msg=\"lanetrace: a region differs from its last execution\" region=decode "
	if got, want := b.String(), line+"step=3 before_step=2 before=1 after=1 inserted=0 removed=0 changed=1 left_out=0\n"; got != want {
		t.Errorf("log:\n%swant:\n%s", got, want)
	}
	b.Reset()
	p := g.comparison.Report(0)
	at := g.saidNS
	for _, afterNS := range []int64{1, sayEveryNS - 1, sayEveryNS, sayEveryNS + 1} {
		g.say(p, at+afterNS)
	}
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, line) || !strings.HasSuffix(got, " left_out=2\n") {
		t.Errorf("four differences within a second and a bit:\n%s", got)
	}
}
