package attach

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/backend/agent"
)

// buildPatterns compiles testdata/patterns.c, which has steps.c in it.
func buildPatterns(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := agent.WriteSources(dir); err != nil {
		tb.Fatal(err)
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		tb.Fatal(err)
	}
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		tb.Fatal(err)
	}
	sources = slices.DeleteFunc(sources, func(s string) bool {
		return slices.Contains([]string{"interpose.c", "hooks.c", "steps.c"}, filepath.Base(s))
	})
	bin := filepath.Join(dir, "patterns")
	args := slices.Concat(agent.CompileFlags(), []string{"-o", bin}, sources,
		[]string{filepath.Join(testdata, "plaininterpose.c"), filepath.Join(testdata, "patterns.c"), "-ldl"})
	cmd := exec.Command("gcc", args...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, said)
	}
	return bin
}

// matches asks the program about "pattern|text" lines.
func matches(t *testing.T, lines []string) []string {
	t.Helper()
	cmd := exec.Command(buildPatterns(t))
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func TestPatterns(t *testing.T) {
	cases := []struct{ pattern, text, want string }{
		{"*", "", "yes "}, {"*", "abc", "yes abc"}, {"a*", "a", "yes "}, {"a*", "abc", "yes bc"}, {"*c", "abc", "yes ab"},
		{"a*c", "abbc", "yes bb"}, {"a*c", "ab", "no"}, {"", "", "yes "}, {"", "x", "no"}, {"abc", "abc", "yes "},
		{"abc", "abd", "no"}, {"*a*", "bab", "yes b"}, {"gpu_*: *", "gpu_x: y", "yes x"}, {"*: *", "a: b: c", "yes a"},
		{"*bab", "babab", "yes ba"}, {"a*b*c", "axxbyyc", "yes xx"}, {"a*b*c", "axbxbc", "yes x"}, {"*x", "aaax", "yes aaa"},
		{"a*a", "a", "no"}, {"a*a", "aa", "yes "}, {"**", "x", "yes "},
	}
	var in, want []string
	for _, c := range cases {
		in = append(in, c.pattern+"|"+c.text)
		want = append(want, c.want)
	}
	// And any pattern holds to the regular expression that means the same: its first *
	// takes as little as it can.
	random := rand.New(rand.NewPCG(1, 2))
	word := func(letters string) string {
		b := make([]byte, random.IntN(8))
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
	for range 5000 {
		pattern, text := word("ab*"), word("ab")
		in = append(in, pattern+"|"+text)
		m := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", "(.*?)") + "$").FindStringSubmatch(text)
		switch {
		case m == nil:
			want = append(want, "no")
		case len(m) == 1:
			want = append(want, "yes ")
		default:
			want = append(want, "yes "+m[1])
		}
	}
	got := matches(t, in)
	if len(got) != len(in) {
		t.Fatalf("%d answers to %d questions", len(got), len(in))
	}
	for i := range in {
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in[i], diff)
		}
	}
}
