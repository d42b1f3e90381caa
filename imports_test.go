package lanetrace_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/lanetrace/lanetrace"

// allowed says which of our packages each room may import: the arrows of
// docs/architecture.md. A room is the longest prefix that matches. "internal" is
// open to all but spanring, cudaevents and the root, which must stay small for
// engines.
var allowed = map[string][]string{
	"spanring":            {},
	"ledger":              {"spanring"},
	"ledger/memprofile":   {"ledger", "spanring"},
	"launchtrace":         {"spanring"},
	"cudaevents":          {"spanring"},
	"cudaevents/scripted": {"cudaevents", "spanring"},
	"":                    {"spanring", "cudaevents", "ledger", "launchtrace"},
	"backend":             {"", "backend", "spanring", "cudaevents", "ledger", "launchtrace"},
	"collector":           {"collector", "spanring", "ledger", "internal"},
	"exporters":           {"exporters", "collector", "internal"},
	"exporters/recording": {"collector", "spanring", "internal"},
	"dashboards":          {"dashboards", "collector", "exporters", "internal"},
	"cmd":                 {"*"},
	"examples":            {"*"},
	"internal":            {"*"},
}

// cgoRooms are the folders that may hold C: the driver binding, what measures or
// scripts it, and what tries whether a library loads. The linter sees cgo files only once the import is gone from them.
var cgoRooms = []string{"backend/cuda", "backend/cuda/internal/raw", "internal/cubench", "internal/dl", "internal/testdriver/control"}

func room(dir string, rooms map[string][]string) string {
	for d := dir; d != "." && d != ""; d = path.Dir(d) {
		if _, ok := rooms[d]; ok {
			return d
		}
	}
	return ""
}

// TestImportsFollowTheArrows reads every file that is not a test.
func TestImportsFollowTheArrows(t *testing.T) {
	seen := map[string]int{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != "." || d.Name() == "tools" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		if dir == "." {
			dir = ""
		}
		from := room(dir, allowed)
		if _, ok := allowed[from]; !ok || from == "" && dir != "" {
			t.Errorf("%s: folder %q has no place in the flow of imports", file, dir)
		}
		seen[from]++
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			if p == "C" && !slices.Contains(cgoRooms, dir) {
				t.Errorf("%s: C is for the driver binding alone", file)
			}
			if p != module && !strings.HasPrefix(p, module+"/") {
				continue
			}
			to := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
			if !mayImport(from, dir, to) {
				t.Errorf("%s: %q may not import %q", file, dir, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"", "spanring", "cudaevents", "backend", "collector", "exporters", "cmd"} {
		if seen[r] == 0 {
			t.Errorf("no file seen in %q: the test looks in the wrong place", r)
		}
	}
}

func mayImport(from, dir, to string) bool {
	if to == dir {
		return false
	}
	for _, a := range allowed[from] {
		if a == "*" || a == to || a != "" && strings.HasPrefix(to, a+"/") {
			return true
		}
	}
	return false
}

// TestMayImport holds the rule itself: it must be able to say no.
func TestMayImport(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"spanring", "cudaevents", false},
		{"cudaevents", "spanring", true},
		{"cudaevents", "", false},
		{"", "backend", false},
		{"", "cudaevents", true},
		{"backend/cuda", "", true},
		{"backend/cuda", "backend", true},
		{"backend/cuda", "collector", false},
		{"collector", "exporters/otlp", false},
		{"exporters/otlp", "spanring", false},
		{"exporters/recording", "spanring", true},
		{"cmd/lanetrace", "exporters/otlp", true},
	} {
		if got := mayImport(room(c.from, allowed), c.from, c.to); got != c.want {
			t.Errorf("%q importing %q: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
