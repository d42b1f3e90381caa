package agent

import (
	"bufio"
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestSymbols reads what the library needs of the system it is loaded into: no
// library but libc, libdl and libpthread (and the loader, which thread-locals
// bring in), no symbol newer than glibc 2.28, and no name of its own that is not
// lt_'s, lanetrace_'s, a hook's or NVTX's.
func TestSymbols(t *testing.T) {
	readelf, err := exec.LookPath("readelf")
	if err != nil {
		t.Skip("readelf (binutils) is not installed")
	}
	lib := filepath.Join(t.TempDir(), Name)
	if err := BuildTo(lib); err != nil {
		t.Fatal(err)
	}
	read := func(flags ...string) string {
		out, err := exec.Command(readelf, append(flags, lib)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	needed := regexp.MustCompile(`\(NEEDED\).*\[(.*)\]`).FindAllStringSubmatch(read("-dW"), -1)
	for _, m := range needed {
		if !slices.Contains([]string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, m[1]) {
			t.Errorf("needs %s", m[1])
		}
	}
	if len(needed) < 3 {
		t.Errorf("needs %v: where libpthread and libdl are libraries of their own they must be loaded", needed)
	}
	// What the library defines has versions too: those of the names it interposes.
	_, needs, _ := strings.Cut(read("-VW"), "Version needs section")
	versions := regexp.MustCompile(`Name: GLIBC_(\d+)\.(\d+)`).FindAllStringSubmatch(needs, -1)
	if len(versions) == 0 {
		t.Fatal("no symbol versions read")
	}
	symbols := read("--dyn-syms", "-W")
	for _, m := range versions {
		major, _ := strconv.Atoi(m[1])
		minor, _ := strconv.Atoi(m[2])
		if major > 2 || minor > 28 {
			var of []string
			for sc := bufio.NewScanner(strings.NewReader(symbols)); sc.Scan(); {
				if strings.Contains(sc.Text(), "GLIBC_"+m[1]+"."+m[2]+" ") || strings.HasSuffix(sc.Text(), "GLIBC_"+m[1]+"."+m[2]) {
					of = append(of, sc.Text()[strings.LastIndex(sc.Text(), " ")+1:])
				}
			}
			t.Errorf("needs GLIBC_%s.%s: %v", m[1], m[2], of)
		}
	}
	exported := regexp.MustCompile(`^(lt_|lanetrace_|cu[A-Z]|dlsym$|dlvsym$|InitializeInjection)`)
	n := 0
	for sc := bufio.NewScanner(bytes.NewReader([]byte(symbols))); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 8 || f[4] != "GLOBAL" || f[6] == "UND" || f[6] == "ABS" {
			continue
		}
		name, _, _ := strings.Cut(f[7], "@")
		if n++; !exported.MatchString(name) {
			t.Errorf("exports %s", name)
		}
	}
	if n == 0 {
		t.Error("exports nothing")
	}
}
