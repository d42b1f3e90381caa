//go:build servers

package servers_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
	"github.com/lanetrace/lanetrace/spanring"
)

// a fault is caused, and served by a sidecar.
type fault struct {
	name string
	// fires are the alerts that it must raise, and might what may come with it. No
	// other may fire.
	fires, might []string
	// cause causes it and returns where it is served.
	cause func(t *testing.T) string
}

// sidecar starts one that keeps its state to itself.
func sidecar(t *testing.T, dir string, env []string, args ...string) *servers.Service {
	t.Helper()
	return built.Sidecar(t, dir, env, append([]string{"--state-dir", t.TempDir()}, args...)...)
}

// shown is a fault that the demo shows.
func shown(name string) func(t *testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		return built.Demo(t, nil, "--fault", name, "--keep-running", "--hang-after", "1s", "--leak-window", "2s").URL
	}
}

// written is a fault that a stand-in engine has.
func written(g spanring.Geometry, write func(t *testing.T, w *spanring.Writer)) func(t *testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		dir := servers.RingDir(t)
		w := servers.StandIn(t, dir, g)
		// What has happened when the sidecar begins has no sample at 0 before it.
		write(t, w)
		known(w)
		return sidecar(t, dir, nil).URL
	}
}

// known has a sidecar take the engine at once: one that has neither a GPU nor an
// entry is waited for a minute.
func known(w *spanring.Writer) {
	if w.Published() == 0 {
		busy(w, 1, 1)
	}
}

// reading is a fault of a GPU that a sidecar reads.
func reading(ails string) func(t *testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		return sidecar(t, servers.RingDir(t), servers.StandInNVML(t, ails)).URL
	}
}

func add(cs ...spanring.Counter) func(t *testing.T, w *spanring.Writer) {
	return func(t *testing.T, w *spanring.Writer) {
		for _, c := range cs {
			w.Add(c, 1)
		}
	}
}

// steps writes steps, one after another, until the test ends. The first is there when it
// returns.
func steps(t *testing.T, w *spanring.Writer) {
	step := func(n uint64) {
		b := spanring.StepBegin{Step: n, MonoNS: spanring.MonoNS(), Level: 2}
		e := spanring.StepEnd{Step: n, MonoNS: spanring.MonoNS() + 1000}
		for _, ws := range []spanring.Words{b.Words(), e.Words()} {
			w.Append(&ws)
		}
		w.Add(spanring.CtrBegun, 1)
		w.Add(spanring.CtrLanded, 1)
	}
	step(1)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := uint64(2); ; n++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			step(n)
		}
	}()
	t.Cleanup(func() { close(done); <-stopped })
}

// traces are the variables of a sidecar that sends traces over HTTP, and no metrics.
func traces(url string) []string {
	return []string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=" + url}
}

// receiver answers every request in one way.
func receiver(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// busy writes n steps of spans each at once.
func busy(w *spanring.Writer, n, spans int) {
	lane := w.Name(spanring.NameLane, "decode")
	now := spanring.MonoNS()
	for s := range n {
		b := spanring.StepBegin{Step: uint64(s + 1), MonoNS: now, Level: 2}
		words := []spanring.Words{b.Words()}
		for i := range spans {
			sp := spanring.Span{Kind: spanring.KindLane, Step: uint64(s + 1), Name: lane, Ordinal: uint32(i + 1), StartMonoNS: now + int64(i*1000), RawNS: 900}
			words = append(words, sp.Words())
		}
		e := spanring.StepEnd{Step: uint64(s + 1), MonoNS: now + int64(spans*1000)}
		words = append(words, e.Words())
		for i := range words {
			w.Append(&words[i])
		}
		w.Add(spanring.CtrBegun, uint64(spans+1))
		w.Add(spanring.CtrLanded, uint64(spans+1))
	}
}

func faults() []fault {
	return []fault{
		{"drop", []string{"LanetraceSpansDropped"}, nil, shown("drop")},
		// On a loaded machine an engine that is not slowed may find no free pair.
		{"crash", []string{"LanetraceEngineDied"}, []string{"LanetraceEntriesLost", "LanetraceSpansDropped"}, shown("crash")},
		{"hang", []string{"LanetraceSpanInFlightTooLong"}, []string{"LanetraceSpansDropped"}, shown("hang")},
		{"overrun", []string{"LanetraceGuardBandViolated"}, []string{"LanetraceSpansDropped"}, shown("overrun")},
		{"leak", []string{"LanetraceSuspectedLeak"}, []string{"LanetraceSpansDropped"}, shown("leak")},
		{"perturb", []string{"LanetraceLaunchDiffers"}, []string{"LanetraceSpansDropped"}, shown("perturb")},
		{"failed", []string{"LanetraceSpansFailed"}, nil, written(spanring.Geometry{}, add(spanring.CtrBegun, spanring.FailAbandoned.Counter()))},
		{"pools", []string{"LanetraceProducerProblems"}, nil, written(spanring.Geometry{}, add(spanring.CtrPoolsFailed))},
		{"frees", []string{"LanetraceMemoryLedgerProblems"}, nil, written(spanring.Geometry{}, func(t *testing.T, w *spanring.Writer) {
			a := w.Allocs()
			a.Lock()
			defer a.Unlock()
			a.Track(1, 1)
			a.Add(spanring.CtrFreesUnknown, 1)
		})},
		{"slack", []string{"LanetraceMemorySlackHigh"}, nil, written(spanring.Geometry{}, func(t *testing.T, w *spanring.Writer) {
			a := w.Allocs()
			a.Lock()
			defer a.Unlock()
			a.Track(1, 1)
			a.Add(spanring.CtrMemLiveBytes, 10e9)
			a.Add(spanring.CtrMemChunkSlackBytes, 1e9)
			a.Add(spanring.CtrMemRoundingSlackBytes, 1e9)
		})},
		{"clock", []string{"LanetraceClockUncertain"}, nil, written(spanring.Geometry{}, func(t *testing.T, w *spanring.Writer) {
			if _, err := w.NewContext(&spanring.ContextState{UUID: [16]byte{1}, UncertaintyNS: 80e3, UpdatedMonoNS: spanring.MonoNS(), HostRefNS: spanring.MonoNS()}, 16); err != nil {
				t.Fatal(err)
			}
			steps(t, w)
		})},
		{"malformed", []string{"LanetraceEntriesMalformed"}, nil, written(spanring.Geometry{}, func(t *testing.T, w *spanring.Writer) {
			e := (&spanring.StepEnd{Step: 1, MonoNS: 1}).Words()
			e[1] = 0 // no step has that number
			w.Append(&e)
		})},
		{"overwritten", []string{"LanetraceEntriesLost"}, nil, func(t *testing.T) string {
			dir := servers.RingDir(t)
			w := servers.StandIn(t, dir, spanring.Geometry{LogEntries: 64})
			known(w)
			s := sidecar(t, dir, nil)
			servers.Poll(t, "the stand-in read", func() error {
				as, err := s.Accounts(t.Context())
				if err == nil && len(as) != 1 {
					err = fmt.Errorf("%d engines", len(as))
				}
				return err
			})
			busy(w, 2000, 10)
			return s.URL
		}},
		{"version", []string{"LanetraceLayoutUnknown"}, nil, func(t *testing.T) string {
			dir := servers.RingDir(t)
			w := servers.StandIn(t, servers.RingDir(t), spanring.Geometry{})
			text, err := os.ReadFile(w.Path())
			if err != nil {
				t.Fatal(err)
			}
			text[8] = 99 // the layout's version
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(w.Path())), text, 0o600); err != nil {
				t.Fatal(err)
			}
			return sidecar(t, dir, nil).URL
		}},
		{"garbage", []string{"LanetraceRingUnreadable"}, nil, func(t *testing.T) string {
			dir := servers.RingDir(t)
			w := servers.StandIn(t, servers.RingDir(t), spanring.Geometry{})
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(w.Path())), []byte(strings.Repeat("not a ring ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
			return sidecar(t, dir, nil).URL
		}},
		{"hot", []string{"LanetraceClocksHeldDown"}, nil, reading("hot")},
		{"mute", []string{"LanetraceDeviceReadingsFailing"}, nil, reading("mute")},
		{"refused", []string{"LanetraceExportRefused", "LanetraceSidecarSpansDropped"}, nil, func(t *testing.T) string {
			dir := servers.RingDir(t)
			s := sidecar(t, dir, traces(receiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })), "--every", "1")
			busy(servers.StandIn(t, dir, spanring.Geometry{}), 10, 3)
			return s.URL
		}},
		{"away", []string{"LanetraceExportFailing"}, nil, func(t *testing.T) string {
			dir := servers.RingDir(t)
			s := sidecar(t, dir, traces(receiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })), "--every", "1")
			busy(servers.StandIn(t, dir, spanring.Geometry{}), 10, 3)
			return s.URL
		}},
		{"stuck", []string{"LanetraceExportQueueFilling"}, []string{"LanetraceExportFailing"}, func(t *testing.T) string {
			dir := servers.RingDir(t)
			s := sidecar(t, dir, traces(receiver(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })), "--every", "1", "--budget", "0")
			w := servers.StandIn(t, dir, spanring.Geometry{LogEntries: 1 << 18})
			busy(w, 2500, 20)
			return s.URL
		}},
		{"keep", []string{"LanetraceRecordingsLost"}, nil, func(t *testing.T) string {
			dir, keep := servers.RingDir(t), filepath.Join(t.TempDir(), "keep")
			s := sidecar(t, dir, nil, "--keep", keep)
			blocked(t, keep)
			w := servers.StandIn(t, dir, spanring.Geometry{})
			steps(t, w)
			return s.URL
		}},
		{"flight", []string{"LanetraceFlightRecordFailed", "LanetraceEngineDied"}, []string{"LanetraceEntriesLost", "LanetraceSpansDropped"}, func(t *testing.T) string {
			dir, state := servers.RingDir(t), t.TempDir()
			s := built.Sidecar(t, dir, nil, "--state-dir", state)
			blocked(t, filepath.Join(state, "flight"))
			e := working(t, s, dir)
			e.Kill()
			return s.URL
		}},
		{"unseen", []string{"LanetraceEngineDied"}, []string{"LanetraceEntriesLost", "LanetraceSpansDropped"}, func(t *testing.T) string {
			dir, state := servers.RingDir(t), t.TempDir()
			s := built.Sidecar(t, dir, nil, "--state-dir", state)
			e := working(t, s, dir)
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			e.Kill()
			return built.Sidecar(t, dir, nil, "--state-dir", state).URL
		}},
	}
}

// working starts an engine and waits until the sidecar has read some of it.
func working(t *testing.T, s *servers.Service, dir string) *servers.Process {
	t.Helper()
	e := built.Engine(t, dir, nil, "--duration", "1h")
	servers.Poll(t, "steps of the engine", func() error {
		as, err := s.Accounts(t.Context())
		if err == nil && (len(as) != 1 || as[0].Producer.Landed < 10) {
			err = fmt.Errorf("%+v", as)
		}
		return err
	})
	return e
}

// blocked puts a file where a folder was: nothing can be made below it, whoever asks.
func blocked(t *testing.T, dir string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// firing are the names of the alerts that fire, by instance.
func firing(t *testing.T, m *servers.Prometheus) (map[string][]string, error) {
	ss, err := m.Query(t.Context(), `ALERTS{alertstate="firing"}`, time.Time{})
	out := make(map[string][]string)
	for _, s := range ss {
		i, a := s.Label("instance"), s.Label("alertname")
		if !slices.Contains(out[i], a) {
			out[i] = append(out[i], a)
		}
	}
	return out, err
}

func instance(t *testing.T, u string) string {
	t.Helper()
	p, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	return p.Host
}

// Each alert fires when its fault happens in an engine that a real sidecar reads, the
// first time included, and nothing else fires with it.
func TestAlertsFire(t *testing.T) {
	all := faults()
	causes := make(map[string]bool)
	targets := make([]string, len(all))
	for i, f := range all {
		for _, a := range f.fires {
			causes[a] = true
		}
		targets[i] = f.cause(t)
	}
	for _, r := range servers.ShippedRules(t) {
		if r.Alert != "" && !causes[r.Alert] {
			t.Errorf("nothing causes %s", r.Alert)
		}
	}
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: targets, Rules: []string{servers.HurriedAlerts(t)}})
	m.AwaitTargets(len(targets))
	var fire map[string][]string
	for i, f := range all {
		t.Run(f.name, func(t *testing.T) {
			servers.Poll(t, strings.Join(f.fires, ", "), func() (err error) {
				if fire, err = firing(t, m); err != nil {
					return err
				}
				for _, a := range f.fires {
					if !slices.Contains(fire[instance(t, targets[i])], a) {
						err = errors.Join(err, fmt.Errorf("%s does not fire; these do: %v", a, fire[instance(t, targets[i])]))
					}
				}
				return err
			})
		})
	}
	for i, f := range all {
		for _, a := range fire[instance(t, targets[i])] {
			if !slices.Contains(f.fires, a) && !slices.Contains(f.might, a) {
				t.Errorf("%s: %s fires too", f.name, a)
			}
		}
	}
	// Their texts are complete.
	rs, err := m.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		for _, a := range r.Alerts {
			for k, v := range a.Annotations {
				if strings.Contains(v, "no value") || strings.Contains(v, "error") || strings.Contains(v, "()") || strings.Contains(v, "  ") {
					t.Errorf("%s: %s is %q", r.Name, k, v)
				}
			}
		}
	}
}

// restarted is how many engines are replaced one by one.
const restarted = 10

// A rolling restart of ten engines raises nothing, and leaves nothing pending.
func TestRollingRestartIsQuiet(t *testing.T) {
	dir, state := servers.RingDir(t), t.TempDir()
	side := built.Sidecar(t, dir, nil, "--state-dir", state)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{side.URL}, Rules: []string{servers.HurriedAlerts(t)}})
	m.AwaitTargets(1)
	start := func(seed int) *servers.Process {
		return built.Engine(t, dir, []string{fmt.Sprintf("OTEL_SERVICE_NAME=engine-%d", seed%restarted)}, "--level", "lane", "--rate", "4", "--duration", "10m", "--seed", fmt.Sprint(seed+1))
	}
	live := func(n int, ended float64) {
		t.Helper()
		servers.Poll(t, fmt.Sprintf("%d engines live, %v ended", n, ended), func() error {
			l, err := m.Value(t.Context(), "lanetrace_engines_live")
			e, err2 := m.Value(t.Context(), `lanetrace_engines_ended_total{reason="ended"}`)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			if l != float64(n) || e != ended {
				return fmt.Errorf("%v live, %v ended", l, e)
			}
			return nil
		})
	}
	var engines [restarted]*servers.Process
	for i := range engines {
		engines[i] = start(i)
	}
	live(restarted, 0)
	for i := range engines {
		if err := engines[i].Stop(); err != nil {
			t.Fatal(err)
		}
		engines[i] = start(restarted + i)
		live(restarted, float64(i+1))
	}
	over := time.Now().Add(3 * time.Second)
	servers.Poll(t, "scrapes and rules after it", func() error {
		v, err := m.Value(t.Context(), "timestamp(lanetrace_engines_live)")
		if err == nil && v < float64(over.Unix()) {
			err = errors.New("not yet")
		}
		return err
	})
	ss, err := m.Query(t.Context(), `count_over_time(ALERTS{alertstate="firing"}[10m])`, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ss {
		t.Errorf("%v", s.Labels)
	}
}
