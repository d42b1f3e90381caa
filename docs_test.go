package lanetrace_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// pages are the Markdown files of the tree, by their paths, and what they hold.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != "." || slices.Contains([]string{"bin", "node_modules", "testdata"}, d.Name())):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".md"):
			return nil
		}
		b, err := os.ReadFile(file)
		out[file] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 30 {
		t.Fatalf("%d pages", len(out))
	}
	return out
}

var (
	fence    = regexp.MustCompile("(?ms)^```.*?^```$")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeSpan = regexp.MustCompile("`[^`\n]*`")
	// filePath is what is named as a file or folder of this tree.
	filePath = regexp.MustCompile("`((?:backend|cmd|collector|cudaevents|dashboards|docs|examples|exporters|internal|launchtrace|ledger|spanring|tools)/[A-Za-z0-9_./-]*)`")
	target   = regexp.MustCompile(`\bmake ([a-z][a-z-]+)`)
)

// headings are the anchors of a page, as they are made of headings where the
// repository is shown.
func headings(text string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(fence.ReplaceAllString(text, "")) {
		title := strings.TrimLeft(line, "#")
		if n := len(line) - len(title); n == 0 || n > 6 || !strings.HasPrefix(title, " ") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(title))
		for n, first := 1, anchor; out[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", first, n)
		}
		out[anchor] = true
	}
	return out
}

// TestLinks: what pages link to is there, page and heading.
func TestLinks(t *testing.T) {
	all := pages(t)
	links := 0
	for file, text := range all {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(fence.ReplaceAllString(text, ""), ""), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			links++
			path := file
			if to != "" {
				path = filepath.Join(filepath.Dir(file), to)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s, which is not there", file, m[1])
				continue
			}
			if anchor != "" && !headings(all[path])[anchor] {
				t.Errorf("%s links to %s, which has no such heading", file, m[1])
			}
		}
	}
	if links < 50 {
		t.Errorf("%d links were found", links)
	}
}

// TestNamedFiles: files, folders and targets of make that pages name are there.
func TestNamedFiles(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range pages(t) {
		for _, m := range filePath.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(m[1]); err != nil && file != "CHANGELOG.md" {
				t.Errorf("%s names %s, which is not there", file, m[1])
			}
		}
		var code strings.Builder
		for _, s := range slices.Concat(fence.FindAllString(text, -1), codeSpan.FindAllString(text, -1)) {
			code.WriteString(s + "\n")
		}
		for _, m := range target.FindAllStringSubmatch(code.String(), -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
				t.Errorf("%s says make %s, of which the Makefile knows nothing", file, m[1])
			}
		}
	}
}

// TestEveryPageIsLinked: no page is found by chance alone.
func TestEveryPageIsLinked(t *testing.T) {
	all := pages(t)
	linked := map[string]bool{"README.md": true}
	for file, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, _, _ := strings.Cut(m[1], "#")
			linked[filepath.Join(filepath.Dir(file), to)] = true
		}
	}
	for file := range all {
		// A runbook is linked to by its alert.
		if !linked[file] && !strings.HasPrefix(file, "docs/runbooks/") {
			t.Errorf("no page links to %s", file)
		}
	}
}
