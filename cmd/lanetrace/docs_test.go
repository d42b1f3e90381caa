package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// commandLine is the parser of the command.
func commandLine(t *testing.T) *kong.Kong {
	t.Helper()
	p, err := kong.New(new(cli), kong.Name("lanetrace"), kong.DefaultEnvars("LANETRACE"), kong.Bind(new(app)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// treeFiles calls do with every file of the tree whose name has one of the endings.
func treeFiles(t *testing.T, do func(path, text string), endings ...string) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || slices.Contains([]string{"bin", "node_modules"}, d.Name())):
			return filepath.SkipDir
		case d.IsDir() || !slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(path, e) }):
			return nil
		}
		b, err := os.ReadFile(path)
		if err == nil {
			do(strings.TrimPrefix(path, "../../"), string(b))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// flagNames are the flags of a command, those of the commands above it among them.
func flagNames(n *kong.Node) map[string]bool {
	out := map[string]bool{"--help": true, "-h": true}
	for _, group := range n.AllFlags(false) {
		for _, f := range group {
			out["--"+f.Name] = true
			if f.Short != 0 {
				out["-"+string(f.Short)] = true
			}
			if f.Tag.Negatable != "" {
				out["--no-"+f.Name] = true
			}
		}
	}
	return out
}

// decodeFlags are the flags of examples/decode, from its source: it is a program of its
// own.
func decodeFlags(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../../examples/decode/main.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{"--help": true}
	upper := regexp.MustCompile("([a-z])([A-Z])")
	for _, m := range regexp.MustCompile("(?m)^\\t([A-Z]\\w*) +\\S+ +`(.*help:.*)`$").FindAllStringSubmatch(string(b), -1) {
		name := strings.ToLower(upper.ReplaceAllString(m[1], "$1-$2"))
		if given, _, ok := strings.Cut(m[2], `name:"`); ok {
			name, _, _ = strings.Cut(m[2][len(given)+len(`name:"`):], `"`)
		}
		out["--"+name] = true
		if strings.Contains(m[2], "negatable:") {
			out["--no-"+name] = true
		}
	}
	if len(out) < 15 {
		t.Fatalf("flags of examples/decode: %v", out)
	}
	return out
}

// pythonFlags are the flags of the example that needs PyTorch.
func pythonFlags(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../../examples/python/llama.py")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`add_argument\("(--[a-z-]+)"`).FindAllStringSubmatch(string(b), -1) {
		out[m[1]] = true
	}
	if len(out) < 5 {
		t.Fatalf("flags of llama.py: %v", out)
	}
	return out
}

var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	inlined   = regexp.MustCompile("`[^`\n]+`")
	// written is a command line as pages write it, to where a shell or a table ends it.
	written = regexp.MustCompile("(?m)(?:^|[\\s`/(])lanetrace ([a-z][^\n`|;&#]*)")
	// writtenDecode is the same of the example engine.
	writtenDecode = regexp.MustCompile("(?m)(?:^|[\\s`/])decode (--[^\n`|;&#]*)")
	oneFlag       = regexp.MustCompile("^`(--[a-z][a-z-]*)")
	variable      = regexp.MustCompile(`\bLANETRACE_[A-Z][A-Z0-9_]*\b`)
)

// TestDocumentedCommands: every command line in the documentation is one, as far as
// commands and flags go, and so is every flag that it names.
func TestDocumentedCommands(t *testing.T) {
	model := commandLine(t).Model
	any := map[string]bool{}
	for _, n := range model.Leaves(false) {
		for f := range flagNames(n) {
			any[f] = true
		}
	}
	decode := decodeFlags(t)
	for f := range decode {
		any[f] = true
	}
	for f := range pythonFlags(t) {
		any[f] = true
	}
	for _, f := range []string{"--enable-feature", "--cap-drop", "--read-only", "--build-arg", "--gpus", "--enforce-eager"} { // Prometheus', containers' and vLLM's
		any[f] = true
	}
	check := func(path, line string, known map[string]bool, words []string) {
		for _, w := range words {
			if w == "--" {
				break
			}
			if name, _, _ := strings.Cut(w, "="); len(name) > 1 && name[0] == '-' && !known[name] {
				t.Errorf("%s: %s: no flag %s", path, line, name)
			}
		}
	}
	lines, flags := 0, 0
	treeFiles(t, func(path, text string) {
		code := append(codeBlock.FindAllString(text, -1), inlined.FindAllString(codeBlock.ReplaceAllString(text, ""), -1)...)
		for _, c := range code {
			for _, m := range written.FindAllStringSubmatch(c, -1) {
				n, words := model.Node, strings.Fields(m[1])
				if words[0] == "help" {
					continue // see asked
				}
				for len(words) > 0 && len(n.Children) > 0 {
					i := slices.IndexFunc(n.Children, func(k *kong.Node) bool { return k.Name == words[0] })
					if i < 0 {
						break
					}
					n, words = n.Children[i], words[1:]
				}
				if n == model.Node {
					t.Errorf("%s: lanetrace %s: no such command", path, m[1])
					continue
				}
				lines++
				check(path, "lanetrace "+m[1], flagNames(n), words)
			}
			for _, m := range writtenDecode.FindAllStringSubmatch(c, -1) {
				lines++
				check(path, "decode "+m[1], decode, strings.Fields(m[1]))
			}
			if m := oneFlag.FindStringSubmatch(c); m != nil {
				if flags++; !any[m[1]] {
					t.Errorf("%s: %s is no flag of any command", path, m[1])
				}
			}
		}
	}, ".md")
	if lines < 30 || flags < 30 {
		t.Errorf("%d command lines and %d flags were found", lines, flags)
	}
}

// TestDocumentedVariables: the variables that the documentation names are read
// somewhere.
func TestDocumentedVariables(t *testing.T) {
	read := map[string]bool{}
	for _, n := range commandLine(t).Model.Leaves(false) {
		for _, group := range n.AllFlags(false) {
			for _, f := range group {
				for _, e := range f.Envs {
					read[e] = true
				}
			}
		}
	}
	treeFiles(t, func(path, text string) {
		for _, v := range variable.FindAllString(text, -1) {
			read[v] = read[v] || !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(v, "LANETRACE_TEST_")
		}
	}, ".go", ".c", ".h", ".py", ".sh", "Makefile")
	named := 0
	treeFiles(t, func(path, text string) {
		for _, v := range variable.FindAllString(text, -1) {
			if named++; !read[v] && !strings.HasSuffix(v, "_") {
				t.Errorf("%s names %s, which nothing reads", path, v)
			}
		}
	}, ".md", ".service", ".conf", ".yaml", ".yml", "Dockerfile")
	if named < 50 {
		t.Errorf("%d variables were found", named)
	}
}
