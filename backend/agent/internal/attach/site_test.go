package attach

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSites allocates directly, through a caching allocator within ranges, and
// through an allocator that only a setting names.
func TestSites(t *testing.T) {
	program := compileEngine(t, "sites.c", false)
	dir := t.TempDir()
	for _, lib := range []string{"libc10_cuda.so", "libmine.so"} {
		if said, err := exec.Command("gcc", "-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-DLIBRARY",
			"-Wl,-soname,"+lib, "-o", filepath.Join(dir, lib), "testdata/sites.c").CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, said)
		}
	}
	for _, tc := range []struct {
		name string
		env  []string
		want []string
	}{
		{name: "defaults", want: []string{
			"libmine.so!allocate 4096", "sites-linked-false!load_weights in weights 2048",
			"sites-linked-false!make_cache in cache 1024", "sites-linked-false!workspace 512",
		}},
		{name: "skip", env: []string{"LANETRACE_SITE_SKIP=nothing*,libmine.so*"}, want: []string{
			"sites-linked-false!load_weights in weights 2048", "sites-linked-false!main 4096",
			"sites-linked-false!make_cache in cache 1024", "sites-linked-false!workspace 512",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := runOptions{level: "basic", settle: true, env: append(tc.env, "LANETRACE_STEP=none")}
			r := start(t, o, program, dir)
			if r.code != 0 || r.stderr != "" {
				t.Fatalf("exit code %d, standard error %q", r.code, r.stderr)
			}
			var got []string
			for site, bytes := range r.only(t).Sites {
				// Offsets and build ids differ from compiler to compiler.
				at := strings.Index(site, "+0x")
				if at < 0 || !strings.Contains(site, " (build ") {
					t.Fatalf("site %q", site)
				}
				in := ""
				if i := strings.Index(site, " in "); i > 0 {
					in = site[i:strings.Index(site, " (build ")]
				}
				got = append(got, site[:at]+in+fmt.Sprint(" ", bytes))
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("live bytes by site (-want +got):\n%s", diff)
			}
		})
	}
}
