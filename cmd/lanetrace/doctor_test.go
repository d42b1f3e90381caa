package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// diagnosed is what doctor --json says; want is its exit code.
func diagnosed(t *testing.T, want int, args ...string) map[string][]finding {
	t.Helper()
	out, errs := runs(t, want, append([]string{"doctor", "--json"}, args...)...)
	if errs != "" {
		t.Errorf("on standard error: %q", errs)
	}
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if d.Version != diagnosisVersion || d.OK != (want == 0) {
		t.Errorf("version %d, ok %v with exit code %d", d.Version, d.OK, want)
	}
	m := make(map[string][]finding)
	for _, f := range d.Findings {
		m[f.Check] = append(m[f.Check], f)
		if (f.Todo != "") != (f.Status == findingTodo) {
			t.Errorf("status %s with what to do %q", f.Status, f.Todo)
		}
	}
	return m
}

// sidecarOf serves one account as a sidecar does, and returns its address.
func sidecarOf(t *testing.T, a ...collector.Account) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/account" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		if err := json.NewEncoder(w).Encode(a); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func ringDir(t *testing.T) spanring.Dir {
	t.Helper()
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	return d
}

func quietEnv(t *testing.T) {
	for _, k := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "LANETRACE_LIBCUDA", "LANETRACE_DIR"} {
		t.Setenv(k, "")
		os.Unsetenv(k)
	}
}

func TestDoctorFindsNothingToDo(t *testing.T) {
	quietEnv(t)
	d := ringDir(t)
	h := engine(t, d.Path, "alpha", "lane")
	s := h.StepBegin()
	s.End()
	addr := sidecarOf(t, collector.Account{Engine: "alpha", Reader: collector.ReaderAccount{Pending: 3}})
	m := diagnosed(t, 0, "--dir", d.Path, "--listen", addr)
	if f := m["ring_directory"]; len(f) != 1 || f[0].Status != findingOK || !strings.HasPrefix(f[0].Text, d.Path+": mode 0700, owner ") {
		t.Errorf("ring directory: %+v", f)
	}
	f := m["engine"]
	if len(f) != 1 || f[0].Status != findingOK || f[0].Engine == nil {
		t.Fatalf("engine: %+v", f)
	}
	want := engineFinding{Engine: "alpha", RunID: h.Ring().Info().RunID.String(), State: "live", Level: "lane", LayoutVersion: spanring.LayoutVersion, Begun: 1}
	if *f[0].Engine != want {
		t.Errorf("engine: %+v, want %+v", *f[0].Engine, want)
	}
	if f := m["sidecar"]; f[0].Status != findingOK || f[0].Text != addr+" answers: engines: 1, 3 entries behind, 0 lost, 0 spans dropped or rejected" {
		t.Errorf("sidecar: %+v", f)
	}
	if f := m["otlp"]; f[0].Status != findingNote {
		t.Errorf("otlp: %+v", f)
	}
	// With or without a GPU: neither library is a fault.
	for _, c := range []string{"libcuda", "nvml"} {
		if f := m[c]; len(f) != 1 || f[0].Status == findingTodo {
			t.Errorf("%s: %+v", c, f)
		}
	}
}

func TestDoctorSaysWhatToDo(t *testing.T) {
	quietEnv(t)
	d := ringDir(t)
	free := "127.0.0.1:1"
	t.Run("directory that was named is not there", func(t *testing.T) {
		f := diagnosed(t, 1, "--dir", d.Path+"/none", "--listen", free)["ring_directory"][0]
		if f.Status != findingTodo || !strings.Contains(f.Text, "does not exist") {
			t.Errorf("%+v", f)
		}
		t.Setenv("LANETRACE_DIR", d.Path+"/none")
		diagnosed(t, 1, "--listen", free)
	})
	t.Run("directory that anybody may write", func(t *testing.T) {
		loose := filepath.Join(t.TempDir(), "loose")
		if err := os.Mkdir(loose, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(loose, 0o777); err != nil {
			t.Fatal(err)
		}
		if f := diagnosed(t, 1, "--dir", loose, "--listen", free)["ring_directory"][0]; !strings.Contains(f.Text, "chmod o-w it") {
			t.Errorf("%+v", f)
		}
		if err := os.Chmod(loose, 0o755); err != nil {
			t.Fatal(err)
		}
		if f := diagnosed(t, 1, "--dir", loose, "--listen", free)["ring_directory"][0]; !strings.Contains(f.Text, "chmod 700 it") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("ring of another layout", func(t *testing.T) {
		d := ringDir(t)
		h := engine(t, d.Path, "alpha", "off")
		b, err := os.ReadFile(h.Ring().Path())
		if err != nil {
			t.Fatal(err)
		}
		b[8] = 77
		old := filepath.Join(d.Path, strings.Repeat("0", 32)+spanring.Suffix)
		if err := os.WriteFile(old, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var todo []finding
		for _, f := range diagnosed(t, 1, "--dir", d.Path, "--listen", free)["engine"] {
			if f.Status == findingTodo {
				todo = append(todo, f)
			}
		}
		if want := fmt.Sprintf("%s has layout version 77, this lanetrace reads %d", old, spanring.LayoutVersion); len(todo) != 1 || todo[0].Text != want {
			t.Errorf("%+v, want one: %s", todo, want)
		}
	})
	t.Run("sidecar that lost entries", func(t *testing.T) {
		addr := sidecarOf(t, collector.Account{Reader: collector.ReaderAccount{Lost: 5}, Sidecar: collector.SidecarAccount{Dropped: map[string]uint64{"late": 2}, Rejected: 1}})
		f := diagnosed(t, 1, "--dir", d.Path, "--listen", addr)["sidecar"][0]
		if f.Text != addr+" answers: engines: 1, 0 entries behind, 5 lost, 3 spans dropped or rejected" {
			t.Errorf("%+v", f)
		}
	})
	t.Run("receiver that is away", func(t *testing.T) {
		f := diagnosed(t, 1, "--dir", d.Path, "--listen", free, "--otlp-endpoint", "http://127.0.0.1:1")["otlp"][0]
		if f.Text != "no receiver takes traces and metrics to http://127.0.0.1:1" || !strings.Contains(f.Todo, "refused") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("receiver of metrics alone that is away", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_EXPORTER", "none")
		f := diagnosed(t, 1, "--dir", d.Path, "--listen", free, "--otlp-endpoint", "http://127.0.0.1:1")["otlp"][0]
		if f.Text != "no receiver takes metrics to http://127.0.0.1:1" || !strings.Contains(f.Todo, "refused") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("driver library that was named", func(t *testing.T) {
		t.Setenv("LANETRACE_LIBCUDA", "/lib/no-driver.so")
		f := diagnosed(t, 1, "--dir", d.Path, "--listen", free)["libcuda"][0]
		if !strings.Contains(f.Text, "/lib/no-driver.so") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("as text", func(t *testing.T) {
		out, _ := runs(t, 1, "doctor", "--dir", d.Path+"/none", "--listen", free)
		for _, l := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
			if s, _, _ := strings.Cut(l, " "); s != "ok" && s != "note" && s != "todo" {
				t.Errorf("line %q", l)
			}
		}
		if !strings.HasPrefix(out, "todo  ring_directory  ") {
			t.Errorf("%s", out)
		}
	})
}

func TestDoctorOfADeadEngine(t *testing.T) {
	quietEnv(t)
	d := ringDir(t)
	h := engine(t, d.Path, "alpha", "lane")
	b, err := os.ReadFile(h.Ring().Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	// The same ring as a crash leaves it: no lock, no mark of a clean end.
	dead := filepath.Join(d.Path, "dead"+spanring.Suffix)
	if err := os.WriteFile(dead, b, 0o600); err != nil {
		t.Fatal(err)
	}
	states := map[string]findingStatus{}
	for _, f := range diagnosed(t, 0, "--dir", d.Path, "--listen", "127.0.0.1:1")["engine"] {
		states[f.Engine.State] = f.Status
	}
	if len(states) != 2 || states["ended"] != findingOK || states["died"] != findingNote {
		t.Errorf("%v", states)
	}
}

// TestDoctorIsDocumented: checks, states and keys of --json stand in the documentation.
func TestDoctorIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "`lanetrace doctor`\n")
	section, _, _ = strings.Cut(section, "\n## ")
	words := []string{"ring_directory", "engine", "sidecar", "otlp", "libcuda", "nvml", string(findingOK), string(findingNote), string(findingTodo)}
	for _, doc := range []any{diagnosis{}, finding{}, engineFinding{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(doc)) {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			words = append(words, key)
		}
	}
	for _, w := range words {
		if !strings.Contains(section, "`"+w+"`") {
			t.Errorf("docs/deploy.md does not say what `%s` is", w)
		}
	}
	if want := fmt.Sprintf("`version` (%d)", diagnosisVersion); !strings.Contains(section, want) {
		t.Errorf("docs/deploy.md does not say %s", want)
	}
}
