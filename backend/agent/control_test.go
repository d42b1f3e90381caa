package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lanetrace/lanetrace/spanring"
)

var controlTexts = []string{
	`{"level":"kernel","arm_steps":5,"id":"a"}`, `{"id":"a"}`, ` { } `, `null`, `{"ID":"x","Level":"off"}`, "{\"id\":\"a\"}\n", `{"id":"a"} x`, `{"id":"a"`,
	`{"id":5}`, `{"id":null,"level":null,"arm_steps":null}`, `{"arm_steps":-1}`, `{"arm_steps":1.0}`, `{"arm_steps":1e2}`, `{"arm_steps":4294967295}`,
	`{"arm_steps":4294967296}`, `{"arm_steps":01}`, `{"arm_steps":"1"}`, `{"arm_steps":99999999999999999999}`, `[]`, `"x"`, `5`, ``, `{`, `{"a":`, `{,}`,
	`{"id":"a",}`, `{"x":{"y":[1,2,{"z":null}],"w":true},"id":"b"}`, `{"x":[1,]}`, `{"x":tru}`, `{"x":-}`, `{"x":1.}`, `{"x":1e}`, `{"x":-0.5E+3}`,
	`{"id":"a\u00e9\n\"\\\/"}`, `{"id":"\ud83d\ude00"}`, `{"id":"\ud83d"}`, `{"id":"\ude00x"}`, `{"id":"\u12"}`, `{"id":"\x"}`, "{\"id\":\"a\tb\"}",
	`{"id":"a","id":"b"}`, `{"level":"` + strings.Repeat("k", 100) + `","id":"c"}`, `{"` + strings.Repeat("k", 100) + `":1,"id":"c"}`, `{"id":"` + strings.Repeat("i", 300) + `"}`,
	`{"le\u0076el":"off","id":"e"}`, "{\"id\":\"a\"}\x00",
}

// control is C's answer to each text.
func control(t testing.TB, bin string, texts ...[]byte) []string {
	t.Helper()
	var in bytes.Buffer
	for _, x := range texts {
		binary.Write(&in, binary.LittleEndian, uint32(len(x)))
		in.Write(x)
	}
	cmd := exec.Command(bin, "control")
	cmd.Stdin = &in
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var lines []string
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		lines = append(lines, sc.Text())
	}
	if len(lines) != len(texts) {
		t.Fatalf("%d answers to %d texts: %s", len(lines), len(texts), out)
	}
	return lines
}

// sameControl compares C's answer with what Go makes of the text.
func sameControl(t testing.TB, ring, answer string, text []byte) {
	t.Helper()
	if err := os.WriteFile(ring+spanring.ControlSuffix, text, 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := spanring.ReadControl(ring)
	if strings.ContainsRune(want.ID+want.Level, 0) {
		// A NUL within a text is refused: no level has one, and no id needs one.
		err = errors.New("NUL")
	}
	if err != nil {
		if !strings.HasPrefix(answer, "bad ") {
			t.Errorf("%q: C reads %s, Go says %v", text, answer, err)
		}
		return
	}
	// A level that is longer than any is cut, and stays none.
	level := want.Level[:min(len(want.Level), 15)]
	if got := fmt.Sprintf("read %d %s %s", want.ArmSteps, hex.EncodeToString([]byte(level)), hex.EncodeToString([]byte(want.ID))); got != answer {
		t.Errorf("%q: C %q, Go %q", text, answer, got)
	}
}

// TestControl has both read the same control files.
func TestControl(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources, "-fsanitize=address,undefined")
	ring := filepath.Join(t.TempDir(), "x.ring")
	texts := make([][]byte, len(controlTexts))
	for i, x := range controlTexts {
		texts[i] = []byte(x)
	}
	for i, a := range control(t, bin, texts...) {
		sameControl(t, ring, a, texts[i])
	}
}

// FuzzControl: neither reads beyond the text, and both understand the same.
func FuzzControl(f *testing.F) {
	for _, x := range controlTexts {
		f.Add([]byte(x))
	}
	// Fuzzing processes begin here too; built again in each, it would take them all of
	// a short run.
	bin := os.Getenv("LANETRACE_TEST_RINGPROC")
	if bin == "" {
		bin = buildProgram(f, "ringproc.c", ringSources)
		f.Setenv("LANETRACE_TEST_RINGPROC", bin)
	}
	ring := filepath.Join(f.TempDir(), "x.ring")
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		a := control(t, bin, text)[0]
		// Go replaces what is no UTF-8 and allows more depth; both refuse nothing
		// else on its account.
		if utf8.Valid(text) && strings.Count(string(text), "[")+strings.Count(string(text), "{") < 60 {
			sameControl(t, ring, a, text)
		}
	})
}

// TestControlFile: what is read beside a ring, and what is refused there.
func TestControlFile(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	p := startProcess(t, bin, []string{"LANETRACE_DIR=" + privateDir(t).Path}, "poll")
	ring := p.line(t)
	ask := func() string {
		t.Helper()
		if _, err := p.in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		return p.line(t)
	}
	if got := ask(); got != "none" {
		t.Errorf("without a file: %q", got)
	}
	if err := spanring.WriteControl(ring, spanring.Control{Level: "basic", ArmSteps: 3, ID: "7"}); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != "7 basic 3" {
		t.Errorf("read %q", got)
	}
	file := ring + spanring.ControlSuffix
	for _, c := range []struct {
		what string
		make func() error
		want string
	}{
		{"long", func() error { return os.WriteFile(file, bytes.Repeat([]byte(" "), 4097), 0o600) }, "over 4096 bytes"},
		{"longest", func() error {
			return os.WriteFile(file, append([]byte(`{"id":"z"}`), bytes.Repeat([]byte(" "), 4086)...), 0o600)
		}, "z  0"},
		{"no JSON", func() error { return os.WriteFile(file, []byte("level=off"), 0o600) }, "not JSON"},
		{"directory", func() error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) }, "not a regular file"},
		{"link", func() error { return errors.Join(os.Remove(file), os.Symlink("/etc/passwd", file)) }, "open control file"},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if got := ask(); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q in it", c.what, got, c.want)
		}
	}
	p.end(t)
	if ents, err := os.ReadDir(filepath.Dir(ring)); err != nil || len(ents) != 0 {
		t.Errorf("left after removal: %v, %v", ents, err)
	}
}
