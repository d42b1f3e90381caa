package ledger

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSiteFile(t *testing.T) {
	type file struct {
		Name string
		Line int64
	}
	for site, want := range map[string]file{
		"engine/load.go:7": {"engine/load.go", 7},
		"libtorch_cpu.so!_ZN2at6detail13empty_genericE+0x5cc in kv_cache (build 5a3c00112233aabb)": {"libtorch_cpu.so", 0},
		"libx.so+0x1f in a: range:12": {"libx.so", 0},
		"python3.12!main+0x10":        {"python3.12", 0},
		"[no module]+0x7f00":          {"[no module]", 0},
		"a+0x":                        {"a+0x", 0},
		"dir+0xfun/load.go:3":         {"dir+0xfun/load.go", 3},
		"load.go:0":                   {"load.go:0", 0},
		"unknown":                     {"unknown", 0},
		"":                            {"", 0},
	} {
		s := SiteTotal{Site: site}
		name, line := s.File()
		if d := cmp.Diff(want, file{name, line}); d != "" {
			t.Errorf("%q (-want +got):\n%s", site, d)
		}
	}
}

// TestReportByModule: sites of one module are one line among the files, and have
// their labels among the sites.
func TestReportByModule(t *testing.T) {
	m := Memory{State: 1, Sites: []SiteTotal{
		{Site: "libt.so!_Z1fv+0x5 in weights (build 00)", Label: "libt.so!f+0x5 in weights", Bytes: 3 << 20, Count: 1},
		{Site: "libt.so!_Z1fv+0x5 in cache (build 00)", Label: "libt.so!f+0x5 in cache", Bytes: 2 << 20, Count: 2},
		{Site: "load.go:7", Bytes: 1 << 20, Count: 1},
		{Site: "load.go:9", Bytes: 1 << 20, Count: 1},
	}}
	_, got, _ := strings.Cut(m.Report(10, 0), "\ncall sites\n")
	want := `        3.00 MiB        1  libt.so!f+0x5 in weights
        2.00 MiB        2  libt.so!f+0x5 in cache
        1.00 MiB        1  load.go:7
        1.00 MiB        1  load.go:9

files
        5.00 MiB        3  libt.so
        2.00 MiB        2  load.go
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
