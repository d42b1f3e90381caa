package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// played is a page that has seen a synthetic engine to its end, and copies of the
// engine's steps.
func played(t *testing.T, o synth.Options, po Options) (*Page, *collector.Engine, []*collector.Step) {
	t.Helper()
	var engines []*collector.Engine
	po.Engines = func() []*collector.Engine { return engines }
	p := New(po)
	t.Cleanup(p.Close)
	var steps []*collector.Step
	keep := collector.ObserverFunc(func(s *collector.Step) { steps = append(steps, s.Clone()) })
	pr, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Observers: []collector.Observer{p, keep}})
	if err != nil {
		t.Fatal(err)
	}
	engines = append(engines, pr.Engine())
	if err := errors.Join(pr.Drain(), pr.Close()); err != nil {
		t.Fatal(err)
	}
	return p, pr.Engine(), steps
}

// event is one server-sent event.
type event struct{ name, data string }

// events are a stream's, in their order.
type events struct {
	t  *testing.T
	sc *bufio.Scanner
}

func eventsOf(t *testing.T, body io.Reader) *events {
	sc := bufio.NewScanner(body)
	sc.Buffer(nil, 64<<20)
	return &events{t, sc}
}

// next are the next n events. Every event must be one line of data.
func (s *events) next(n int) (out []event) {
	s.t.Helper()
	var e event
	for len(out) < n && s.sc.Scan() {
		switch line := s.sc.Text(); {
		case line == "":
			if e.name != "" {
				out = append(out, e)
			}
			e = event{}
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: ") && e.data == "":
			e.data = line[6:]
		case strings.HasPrefix(line, "retry: "):
		default:
			s.t.Fatalf("line %.80q", line)
		}
	}
	if len(out) < n {
		s.t.Fatalf("%d events, want %d: %v", len(out), n, s.sc.Err())
	}
	return out
}

// serve serves a page, whose streams end before the server does.
func serve(t *testing.T, p *Page) *httptest.Server {
	srv := httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close()
		srv.Close()
	})
	return srv
}

func open(t *testing.T, url string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return r
}

type wireSteps struct {
	Skipped uint64
	Names   [][]string
	Steps   []struct {
		N, A, Z, Begin, Host int64
		Armed, Slow, Untimed int
		Bound                string
		Extent, Lanes        int64
		S                    [][]int64
	}
}

// What a viewer is sent of steps is what the collector handed over: every span
// with its times and name.
func TestStreamHasTheSteps(t *testing.T) {
	p, e, steps := played(t, synth.Options{Duration: 300 * time.Millisecond, LaneEvery: 4, Service: "<script>alert(1)</script>"}, Options{Refresh: 5 * time.Millisecond})
	srv := serve(t, p)
	r := open(t, srv.URL+"/live/events")
	if r.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("headers %v", r.Header)
	}
	es := eventsOf(t, r.Body).next(3)
	if es[0].name != "run" || es[1].name != "steps" || es[2].name != "state" {
		t.Fatalf("events %s, %s, %s", es[0].name, es[1].name, es[2].name)
	}
	if strings.Contains(es[0].data, "<") {
		t.Errorf("markup is on the wire: %s", es[0].data)
	}
	var run runState
	var got wireSteps
	var st state
	for i, v := range []any{&run, &got, &st} {
		if err := json.Unmarshal([]byte(es[i].data), v); err != nil {
			t.Fatalf("%s: %v", es[i].name, err)
		}
	}
	if run.Run != e.RunID().String() || run.Service != "<script>alert(1)</script>" {
		t.Errorf("run %+v", run)
	}
	var base int64
	if _, err := fmt.Sscan(run.BaseNS, &base); err != nil {
		t.Fatal(err)
	}
	if len(got.Steps) != len(steps) || len(steps) == 0 || got.Skipped != 0 {
		t.Fatalf("%d steps, want %d; %d skipped", len(got.Steps), len(steps), got.Skipped)
	}
	armed, untimed := 0, 0
	for i, want := range steps {
		g := got.Steps[i]
		a, z := want.Bounds()
		if g.N != int64(want.Number) || g.A+base != a || g.Z+base != z || g.Begin+base != want.BeginMonoNS || g.Host != want.HostNS() ||
			(g.Armed == 1) != want.Armed || (g.Untimed == 1) != want.Untimed || g.Extent != want.Derived.ExtentNS || g.Lanes != want.Derived.LaneNS || g.Bound != want.Derived.Bound.String() {
			t.Fatalf("step %d: %+v, want %+v", want.Number, g, want)
		}
		armed += g.Armed
		untimed += g.Untimed
		if len(g.S) != len(want.Spans) {
			t.Fatalf("step %d: %d spans, want %d", g.N, len(g.S), len(want.Spans))
		}
		for j := range want.Spans {
			sp := &want.Spans[j]
			kind := map[spanring.Kind]int64{spanring.KindLane: 0, spanring.KindKernel: 1, spanring.KindGraph: 2}[sp.Kind]
			flags := int64(0)
			if sp.InGraph {
				flags |= 1
			}
			if sp.SharedStart {
				flags |= 2
			}
			wantArray := []int64{
				kind, g.S[j][1], g.S[j][2], int64(sp.Context), int64(sp.Stream), int64(sp.Ordinal), int64(sp.Parent), sp.StartMonoNS - base, int64(sp.RawNS),
				int64(sp.CorrectionNS), sp.LeadNS, int64(sp.Gap), int64(sp.Calibration), int64(sp.PlaceUncertaintyNS), int64(sp.DurationUncertaintyNS), flags,
			}
			if d := cmp.Diff(wantArray, g.S[j]); d != "" {
				t.Fatalf("step %d, span %d (-want +got):\n%s", g.N, j, d)
			}
			if name := got.Names[g.S[j][1]]; name[0] != sp.Text.Title() || name[len(name)-1] != sp.Text.Text {
				t.Fatalf("step %d, span %d is called %q, want %q", g.N, j, name, sp.Text.Text)
			}
		}
	}
	if armed == 0 || untimed == 0 {
		t.Errorf("%d steps were armed, of %d lanes were left out", armed, untimed)
	}
	if d := cmp.Diff(e.Account(), st.Engine.Account); d != "" {
		t.Errorf("account (-want +got):\n%s", d)
	}
	if v := e.Overhead(); v.StepTime == 0 || st.Engine.Lane != 4 || st.Engine.Overhead == nil ||
		st.Engine.Overhead.Kernels != float64(v.Kernels)/float64(v.StepTime) || st.Engine.Overhead.Lanes != float64(v.Lanes)/float64(v.StepTime) {
		t.Errorf("overhead %+v, of %+v", st.Engine.Overhead, v)
	}
	if len(st.Engines) != 1 || st.Engines[0].Label != e.Label() || st.Engine.State != "ended" {
		t.Errorf("state %+v", st)
	}
}

// Regions that differ are told of, those that differ most first, and no others.
func TestDiffLines(t *testing.T) {
	region := func(name string, differing, step uint64) collector.LaunchRegion {
		return collector.LaunchRegion{Region: name, Executions: 10, Differing: differing, Last: spanring.LaunchDiff{Step: step}}
	}
	got := diffLines([]collector.LaunchRegion{region("a", 1, 5), region("b", 0, 0), region("c", 3, 6), region("d\n", 2, 0), region("e", 1, 7), region("f", 1, 8)})
	want := []diffLine{{"c", 10, 3, 6}, {"d", 10, 2, 0}, {"a", 10, 1, 5}, {"e", 10, 1, 7}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := diffLines(nil); got != nil {
		t.Errorf("of no region: %v", got)
	}
}

// hung is an engine with a lane in flight that was enqueued as its time began.
type hung struct{ *synth.Engine }

func (hung) Busy() ([]spanring.SlotEntry, error) {
	return []spanring.SlotEntry{{State: spanring.SlotClosed, Slot: spanring.Slot{Kind: spanring.KindLane, Step: 7, EnqueueMonoNS: 1}}}, nil
}

// What is in flight is told with its age, as long as the engine lives.
func TestStreamTellsWhatIsInFlight(t *testing.T) {
	var engines []*collector.Engine
	p := New(Options{Engines: func() []*collector.Engine { return engines }})
	t.Cleanup(p.Close)
	pr, err := collector.NewProcessor(hung{synth.New(synth.Options{Duration: 20 * time.Millisecond})}, collector.ProcessorOptions{Observers: []collector.Observer{p}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := pr.Poll(); err != nil {
		t.Fatal(err)
	}
	e := pr.Engine()
	engines = append(engines, e)
	s := &stream{p: p, run: e}
	if got := s.engineState(e); got.Busy != 1 || got.Oldest == nil || *got.Oldest != (oldestLine{7, e.NowMonoNS() - 1}) {
		t.Errorf("%d in flight, the oldest %+v at %d", got.Busy, got.Oldest, e.NowMonoNS())
	}
	if err := errors.Join(pr.Drain(), pr.Close()); err != nil {
		t.Fatal(err)
	}
	if got := s.engineState(e); got.Oldest != nil {
		t.Errorf("after its end %+v", got.Oldest)
	}
}

// Steps that come later follow, once; of another engine nothing is sent.
func TestStreamFollows(t *testing.T) {
	p, e, steps := played(t, synth.Options{Duration: 20 * time.Millisecond}, Options{Refresh: 5 * time.Millisecond})
	srv := serve(t, p)
	r := open(t, srv.URL+"/live/events?engine="+e.Label())
	stream := eventsOf(t, r.Body)
	stream.next(3)
	more := steps[len(steps)-1].Clone()
	more.Number = 1 << 40
	p.ObserveStep(more)
	for {
		ev := stream.next(1)[0]
		if ev.name != "steps" {
			continue
		}
		var got wireSteps
		if err := json.Unmarshal([]byte(ev.data), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Steps) != 1 || got.Steps[0].N != 1<<40 {
			t.Errorf("%d steps: %.200s", len(got.Steps), ev.data)
		}
		break
	}
	other := open(t, srv.URL+"/live/events?engine=other")
	ev := eventsOf(t, other.Body).next(2)
	var st state
	if err := json.Unmarshal([]byte(ev[0].data), &st); err != nil || ev[0].name != "state" || ev[1].name != "state" || st.Engine != nil || len(st.Engines) != 1 {
		t.Errorf("of another engine: %+v, %v", ev, err)
	}
}

// Nothing that an engine calls something ends an event or is markup on the wire.
func TestHostileNames(t *testing.T) {
	names := []string{"<script>alert(1)</script>", strings.Repeat("ü", 1000), "a\n\nevent: state\ndata: {}", "\u2028\xff\"\\", ""}
	var p picked
	for i, n := range names {
		p.steps = append(p.steps, step{number: uint64(i), from: uint64(i), spans: 1, numFailed: 1, failed: [maxFailed]failed{{name: &collector.Name{Text: n}, reason: n}}})
		p.spans = append(p.spans, span{name: &collector.Name{Text: n}})
	}
	b := new(stepsEncoder).append(nil, &p, 0, 0)
	if bytes.ContainsAny(b, "\n\r<>") {
		t.Errorf("%s", b)
	}
	var got struct{ Names [][]string }
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if full := got.Names[2]; full[len(full)-1] != names[1] || len(full[0]) > collector.MaxLabelBytes {
		t.Errorf("1,000 characters became %q", full)
	}
}

func TestReelIsBounded(t *testing.T) {
	r := newReel(8, 20)
	put := func(number uint64, n int) {
		s := r.room(n)
		s.number = number
		for i := range n {
			r.put(span{ordinal: uint32(number)<<8 | uint32(i)})
		}
	}
	// Of every size, many times over: what is held is whole and in order.
	for i := uint64(1); i < 2000; i++ {
		put(i, int(i*7%21))
		total := 0
		for k := r.first; k < r.next; k++ {
			s := r.step(k)
			if s.number != i-(r.next-1-k) {
				t.Fatalf("after %d: step %d at %d", i, s.number, k)
			}
			for j, sp := range r.spansOf(nil, s) {
				if sp.ordinal != uint32(s.number)<<8|uint32(j) {
					t.Fatalf("after %d: span %d of step %d is %x", i, j, s.number, sp.ordinal)
				}
			}
			total += s.spans
		}
		if len(r.steps) > 8 || len(r.spans) > 20 || total > 20 || r.next == r.first {
			t.Fatalf("after %d: %d steps and %d spans, %d in steps", i, len(r.steps), len(r.spans), total)
		}
	}
}

// Armed and slow steps outlast the others; each is sent once, oldest first.
func TestNotableStepsStay(t *testing.T) {
	_, e, steps := played(t, synth.Options{Duration: 400 * time.Millisecond}, Options{})
	tr := newTrack(e)
	plain := steps[0].Clone()
	plain.Armed = false
	total := 0
	add := func(armed bool, n uint64, times int64) {
		s := plain.Clone()
		s.Armed, s.Number = armed, n
		s.EndMonoNS = s.BeginMonoNS + times*int64(time.Millisecond)
		tr.add(s)
		total++
	}
	add(true, 1, 2)
	for i := range uint64(maxSteps) {
		add(false, 2+i, 2)
	}
	add(false, 1<<20, 500) // slow
	for i := range uint64(maxSteps) {
		add(false, 1<<21+i, 2)
	}
	var p picked
	tr.since(&p, 0, maxSpans, true)
	var numbers []uint64
	for i := range p.steps[:3] {
		numbers = append(numbers, p.steps[i].number)
	}
	if d := cmp.Diff([]uint64{1, 1 << 20, 1 << 21}, numbers); d != "" || !p.steps[1].slow || p.steps[0].slow || len(p.steps) != maxSteps+2 {
		t.Errorf("%d steps, the first (-want +got):\n%s", len(p.steps), d)
	}
	// All that is held, then nothing twice.
	tr.since(&p, tr.seen, maxSpans, false)
	if len(p.steps) != 0 || tr.seen != uint64(total) {
		t.Errorf("%d steps after the last, %d seen of %d", len(p.steps), tr.seen, total)
	}
	tr.since(&p, tr.seen-3, 1, false)
	if len(p.steps) != 1 || p.steps[0].at != tr.seen {
		t.Errorf("of more than fit: %d steps", len(p.steps))
	}
}

// Taking a step in allocates nothing once a run is known.
func TestObserveAllocatesNothing(t *testing.T) {
	p, _, steps := played(t, synth.Options{Duration: 500 * time.Millisecond}, Options{})
	i := 0
	for range 4 * maxSteps {
		p.ObserveStep(steps[i%len(steps)])
		i++
	}
	if n := testing.AllocsPerRun(2000, func() {
		p.ObserveStep(steps[i%len(steps)])
		i++
	}); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func TestRunsAreBounded(t *testing.T) {
	p, _, steps := played(t, synth.Options{Duration: 5 * time.Millisecond}, Options{})
	for range 3 * maxRuns {
		s := steps[0].Clone()
		s.Engine = new(collector.Engine)
		p.ObserveStep(s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tracks) != maxRuns {
		t.Errorf("%d runs are kept", len(p.tracks))
	}
}

func TestMemoryPast(t *testing.T) {
	var m memoryPast
	at := func(i int) *collector.Memory {
		c := &collector.Memory{State: collector.MemoryPublished}
		c.Totals.LiveBytes = uint64(i)
		for k := range 20 {
			c.Sites = append(c.Sites, ledger.SiteTotal{Site: fmt.Sprintf("site %d", (i+k)%200), Bytes: int64(100 - k)})
		}
		return c
	}
	m.add(1, new(collector.Memory)) // not tracked
	for i := range 2 * memorySamples {
		m.add(int64(i), at(i))
	}
	got := m.after(0, 0)
	if len(got) != memorySamples || got[0].TimeNS != memorySamples || got[len(got)-1].Live != 2*memorySamples-1 || len(m.names) != pastSites {
		t.Errorf("%d looks from %+v, %d names", len(got), got[0], len(m.names))
	}
	if len(m.after(m.next, 0)) != 0 || len(m.after(m.next-2, 0)) != 2 {
		t.Error("looks are sent twice")
	}
	for _, g := range got {
		if len(g.Sites) > sampleSites {
			t.Fatalf("%d sites", len(g.Sites))
		}
	}
}

// Too many viewers are sent away, and all of them when the page closes.
func TestViewersAreBounded(t *testing.T) {
	p, _, _ := played(t, synth.Options{Duration: 5 * time.Millisecond}, Options{MaxViewers: 1, Refresh: 5 * time.Millisecond})
	srv := serve(t, p)
	first := open(t, srv.URL+"/live/events")
	eventsOf(t, first.Body).next(1)
	if r := open(t, srv.URL+"/live/events"); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %s", r.Status)
	}
	p.Close()
	if _, err := io.Copy(io.Discard, first.Body); err != nil {
		t.Errorf("the stream's end: %v", err)
	}
	if r := open(t, srv.URL+"/live/events"); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("of a closed page: %s", r.Status)
	}
}

func TestDownload(t *testing.T) {
	var got Download
	var fail error
	busy, release := make(chan struct{}), make(chan struct{})
	hold := false
	p, _, _ := played(t, synth.Options{Duration: 5 * time.Millisecond}, Options{Download: func(w io.Writer, d Download) error {
		got = d
		if hold {
			close(busy)
			<-release
		}
		if fail != nil {
			return fail
		}
		_, err := io.WriteString(w, "{}")
		return err
	}})
	get := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/live/download?"+query, nil))
		return w
	}
	w := get("run=ab&format=chrome&steps=5-9,12")
	want := Download{Run: "ab", Format: FormatChrome, Steps: Steps{{5, 9}, {12, 12}}}
	if d := cmp.Diff(want, got); d != "" || w.Code != 200 || w.Body.String() != "{}" || !strings.Contains(w.Header().Get("Content-Disposition"), "lanetrace.json") {
		t.Errorf("%d %q %v (-want +got):\n%s", w.Code, w.Body, w.Header(), d)
	}
	if s := want.Steps; !s.Has(5) || !s.Has(9) || s.Has(10) || !s.Has(12) || s.Has(4) {
		t.Error("ranges")
	}
	for _, tc := range []struct {
		query, text string
		fail        error
		code        int
	}{
		{"format=chrome&steps=", "want ranges of steps such as 5-9,12, got \"\"\n", nil, 400},
		{"format=chrome&steps=9-5", "want ranges of steps such as 5-9,12, got \"9-5\"\n", nil, 400},
		{"format=chrome&steps=1-2-3", "want ranges of steps such as 5-9,12, got \"1-2-3\"\n", nil, 400},
		{"format=chrome&steps=" + strings.Repeat("1,", 64) + "1", "more than 64 ranges of steps\n", nil, 400},
		{"format=<b>&steps=1", "want format chrome or recording, got \"<b>\"\n", nil, 400},
		{"format=recording&steps=1", ErrNoRun.Error() + "\n", fmt.Errorf("x: %w", ErrNoRun), 404},
		{"format=recording&steps=1", errTooLarge.Error() + "\n", fmt.Errorf("x: %w", errTooLarge), 413},
		{"format=recording&steps=1", "the steps cannot be read: the log says why\n", io.ErrUnexpectedEOF, 500},
	} {
		fail = tc.fail
		if w := get(tc.query); w.Code != tc.code || w.Body.String() != tc.text || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %d %q %v", tc.query, w.Code, w.Body, w.Header())
		}
	}
	fail, hold = nil, true
	done := make(chan int)
	go func() { done <- get("format=chrome&steps=1").Code }()
	<-busy
	if w := get("format=chrome&steps=1"); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("at the same time: %d", w.Code)
	}
	close(release)
	if code := <-done; code != 200 {
		t.Errorf("the first: %d", code)
	}
	if n, err := new(bounded).Write(make([]byte, maxDownload+1)); n != 0 || !errors.Is(err, errTooLarge) {
		t.Errorf("%d, %v", n, err)
	}
}

// The page asks nobody else for anything and has nothing inline; what it names is
// there and has the type that browsers insist on.
func TestFiles(t *testing.T) {
	p, _, _ := played(t, synth.Options{Duration: 5 * time.Millisecond}, Options{})
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	page := get("/").Body.String()
	if regexp.MustCompile(`(?i)<script[^>]*>[^<]|<style|\sstyle=|\son[a-z]+=|https?://`).MatchString(page) {
		t.Error("the page has something inline or from outside")
	}
	types := map[string]string{"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:href|src)="(/live/[^"]+\.([a-z]+))"`).FindAllStringSubmatch(page, -1) {
		w := get(m[1])
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), types[m[2]]) {
			t.Errorf("%s: %d, %v", m[1], w.Code, w.Header())
		}
		seen[m[1]] = true
	}
	if len(seen) < 5 {
		t.Errorf("the page names %v", seen)
	}
	files, err := fs.Glob(static, "static/*.js")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		b, err := fs.ReadFile(static, f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, "uplot.js") {
			continue
		}
		// Names of engines are text: nothing here makes markup of a string.
		if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function`).Find(b); m != nil {
			t.Errorf("%s uses %s", f, m)
		}
		for _, m := range regexp.MustCompile(`from "\./([^"]+)"`).FindAllSubmatch(b, -1) {
			if w := get("/live/" + string(m[1])); w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/javascript") {
				t.Errorf("%s imports %s: %d", f, m[1], w.Code)
			}
		}
	}
	for _, path := range []string{"/live/", "/live/static/", "/live/none", "/x"} {
		if w := get(path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
