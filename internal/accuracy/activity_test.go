package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadActivity(t *testing.T) {
	const head = "kernel\t20\t30\t7\t3\t0\tsecond\nkernel\t10\t15\t7\t2\t0\tfirst\n"
	two := []record{{opKernel, 10, 15, 7, 2, 0, "first"}, {opKernel, 20, 30, 7, 3, 0, "second"}}
	for _, tc := range []struct {
		name, in, err string
		want          []record
	}{
		{"sorted by start", head + "end\t2\t0\n", "", two},
		{"none", "end\t0\t0\n", "", nil},
		{"no end", head, "it has no end", nil},
		{"one missing", head + "end\t3\t0\n", "2 records of 3", nil},
		{"dropped", head + "end\t2\t1\n", "1 dropped", nil},
		{"after the end", "end\t0\t0\n" + head, "line 2", nil},
		{"end before start", "kernel\t20\t10\t7\t3\t0\tx\nend\t1\t0\n", "line 1", nil},
		{"no number", "kernel\t20\tx\t7\t3\t0\tx\nend\t1\t0\n", "line 1", nil},
		{"negative", "kernel\t-20\t-10\t7\t3\t0\tx\nend\t1\t0\n", "line 1", nil},
		{"another kind", "event\t20\t30\t7\t3\t0\tx\nend\t1\t0\n", "line 1", nil},
		{"a stream beyond 32 bits", "kernel\t20\t30\t4294967296\t3\t0\tx\nend\t1\t0\n", "line 1", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readActivity(strings.NewReader(tc.in))
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestActivityLibrary compiles the library against a CUPTI of the test's own and
// reads what it makes of that one's records.
func TestActivityLibrary(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "fake")
	gcc := exec.Command("gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Itestdata", "-o", bin, "cupti/activity.c", "testdata/fakecupti.c", "-lpthread")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, drop := range []bool{false, true} {
		path := filepath.Join(dir, "activity")
		os.Remove(path)
		os.Remove(path + ".flush")
		cmd := exec.Command(bin)
		cmd.Env = append(os.Environ(), activityEnv+"="+path)
		if drop {
			cmd.Env = append(cmd.Env, "DROP=1")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readActivity(f)
		f.Close()
		if drop {
			if err == nil || !strings.Contains(err.Error(), "5 dropped") {
				t.Errorf("records were dropped: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want := []record{
			{opKernel, 1000, 1500, 7, 2, 0, "first"}, {opKernel, 2000, 2500, 7, 3, 0, "second"},
			{opCopy, 3000, 3100, 7, 4, 4096, ""}, {opMemset, 4000, 4001, 8, 5, 64, ""},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
}
