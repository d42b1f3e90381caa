package collector

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestCleanText(t *testing.T) {
	for in, want := range map[string]string{
		"gemm":                     "gemm",
		"":                         "",
		" a b ":                    "a b",
		"a\nb\tc\x00d":             "a b c d",
		"q\"uo\\te":                "q\"uo\\te",
		"bad\xff\xfeutf":           "bad\ufffdutf",
		"half\xe2\x82":             "half\ufffd",
		"größe\u2028line\u0085":    "größe line",
		"\n\n":                     "",
		"void f<int>(char const*)": "void f<int>(char const*)",
	} {
		if got := CleanText(in); got != want {
			t.Errorf("CleanText(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzCleanText(f *testing.F) {
	for _, s := range []string{"", "gemm", "a\nb", "\xff", "q\"\\", strings.Repeat("ä", 300), "\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := CleanText(s)
		if !utf8.ValidString(c) {
			t.Errorf("%q is not valid", c)
		}
		if i := strings.IndexFunc(c, unicode.IsControl); i >= 0 {
			t.Errorf("%q has a control character", c)
		}
		if again := CleanText(c); again != c {
			t.Errorf("cleaned twice %q, once %q", again, c)
		}
		l := CutText(c, 40)
		if len(l) > 40 || !utf8.ValidString(l) {
			t.Errorf("cut to %q, %d bytes", l, len(l))
		}
		l = CutSite(c, 60)
		if len(l) > 60 || !utf8.ValidString(l) || len(c) <= 60 && l != c {
			t.Errorf("cut as a call site to %q, %d bytes", l, len(l))
		}
	})
}

func TestCutTextKeepsTextsApart(t *testing.T) {
	a, b := strings.Repeat("x", 200)+"1", strings.Repeat("x", 200)+"2"
	ca, cb := CutText(a, MaxLabelBytes), CutText(b, MaxLabelBytes)
	if ca == cb || len(ca) > MaxLabelBytes {
		t.Errorf("%q and %q", ca, cb)
	}
	if got := CutText("short", MaxLabelBytes); got != "short" {
		t.Errorf("short text became %q", got)
	}
}

// TestCutSite: where a checkout lies does not push out the file and the line.
func TestCutSite(t *testing.T) {
	deep := strings.Repeat("/deep", 40)
	for _, c := range []struct{ site, head, tail string }{
		{deep + "/a/cache.go:85", "/deep/deep/", "/deep/a/cache.go:85"},
		{deep + "/b/cache.go:85", "/deep/deep/", "/deep/b/cache.go:85"},
		{"libt.so!at::" + strings.Repeat("native::", 30) + "empty+0x1f3 in kv_cache", "libt.so!at::native::", "empty+0x1f3 in kv_cache"},
		{strings.Repeat("ä", 200) + ".go:1", "ää", "ä.go:1"},
	} {
		got := CutSite(c.site, MaxLabelBytes)
		if len(got) > MaxLabelBytes || len(got) < MaxLabelBytes-4 || !utf8.ValidString(got) || !strings.HasPrefix(got, c.head) || !strings.HasSuffix(got, c.tail) {
			t.Errorf("%q, %d bytes: want %q … %q", got, len(got), c.head, c.tail)
		}
	}
	// What differs only where it was cut stays different.
	a, b := CutSite(deep+"1"+deep, MaxLabelBytes), CutSite(deep+"2"+deep, MaxLabelBytes)
	if a == b || len(a) != MaxLabelBytes {
		t.Errorf("%q and %q", a, b)
	}
	if got := CutSite("a.go:1", MaxLabelBytes); got != "a.go:1" {
		t.Errorf("a short one became %q", got)
	}
}

func TestNamesOfATableThatGrows(t *testing.T) {
	src := newMemSource()
	n := newNames(src)
	if got := n.get(1); got.Text != unnamed {
		t.Errorf("no name: %q", got.Text)
	}
	src.names[1] = spanring.Name{Kind: spanring.NameKernel, Text: "late\ncomer"}
	got := n.get(1)
	if got.Text != "late comer" || n.get(1) != got {
		t.Errorf("%q, or not the same one again", got.Text)
	}
	for i := range maxNames + 10 {
		src.names[spanring.NameID(i+2)] = spanring.Name{Text: "x"}
		n.get(spanring.NameID(i + 2))
	}
	if len(n.m) > maxNames {
		t.Errorf("%d names kept, limit %d", len(n.m), maxNames)
	}
	long := strings.Repeat("x", 1000)
	for i := range 10_000 {
		src.names[spanring.NameID(i+maxNames+100)] = spanring.Name{Text: long}
		n.get(spanring.NameID(i + maxNames + 100))
	}
	if n.bytes > maxNameBytes+len(long) || n.bytes < len(n.m) {
		t.Errorf("%d bytes of names kept in %d, limit %d", n.bytes, len(n.m), maxNameBytes)
	}
}

func TestEngineName(t *testing.T) {
	const uuid = "GPU-8C1f02aa-0000-0000-0000-000000000000"
	for _, tt := range []struct {
		info spanring.Info
		want string
	}{
		{spanring.Info{Service: "chat", Executable: "python3", Rank: spanring.NoRank}, "chat"},
		{spanring.Info{Executable: "python3", Rank: spanring.NoRank}, "python3"},
		{spanring.Info{Rank: spanring.NoRank}, "engine"},
		{spanring.Info{Service: "chat", Rank: spanring.Rank{Data: 1, Tensor: 0, Pipeline: -1, Expert: 3}}, "chat-dp1-tp0-ep3"},
		{spanring.Info{Service: "chat", Rank: spanring.NoRank, GPUUUID: uuid}, "chat-gpu8c1f02aa"},
		{spanring.Info{Service: "chat", Rank: spanring.NoRank, GPUUUID: "MIG-0123abcd-5"}, "chat-mig0123abcd"},
		{spanring.Info{Service: "chat", Rank: spanring.NoRank, GPUUUID: "nonsense"}, "chat"},
		{spanring.Info{Service: "chat", Rank: spanring.NoRank, GPUUUID: "GPU-\n\n\n\n\n\n\n\n\n"}, "chat"},
		{spanring.Info{Service: "a\nb\xff", Rank: spanring.NoRank}, "a b\ufffd"},
	} {
		if got := EngineName(tt.info); got != tt.want {
			t.Errorf("EngineName(%+v) = %q, want %q", tt.info, got, tt.want)
		}
	}
}

// TestGraphWithoutALabel: a graph is told from others by its id and size.
func TestGraphWithoutALabel(t *testing.T) {
	w, err := spanring.NewHeap(spanring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bare, named, nothing := w.GraphName(7, 212, ""), w.GraphName(8, 3, "decode"), w.Name(spanring.NameKernel, "")
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := newNames(NewRingSource(r))
	for id, want := range map[spanring.NameID]string{bare: "7 (212 nodes)", named: "decode", nothing: "unnamed"} {
		if got := n.get(id); got.Text != want || got.Label != want {
			t.Errorf("name %d is %q, label %q, want %q", id, got.Text, got.Label, want)
		}
	}
}
