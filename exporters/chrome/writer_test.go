package chrome

import (
	"bytes"
	gocmp "cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// document is a trace as a viewer reads it, with numbers as they are written.
type document struct {
	DisplayTimeUnit string
	OtherData       struct {
		BaseUnixNS string `json:"base_unix_ns"`
	}
	TraceEvents []traceEvent
}

type traceEvent struct {
	Ph, Name, Cat, S string
	Pid, Tid         int
	Ts, Dur          json.Number
	Id2              struct{ Local string }
	Args             map[string]any
}

// ns reads microseconds exactly.
func ns(t *testing.T, n json.Number) int64 {
	t.Helper()
	whole, frac, ok := strings.Cut(n.String(), ".")
	v, err := strconv.ParseInt(whole+frac, 10, 64)
	if err != nil || !ok || len(frac) != 3 {
		t.Fatalf("time %q: want three decimals", n)
	}
	return v
}

// parse reads a document, and checks what viewers rely on: every b has its e, and
// complete events of a track nest or are apart.
func parse(t *testing.T, b []byte) *document {
	t.Helper()
	var d document
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&d); err != nil {
		t.Fatal(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Fatalf("after the document: %v", err)
	}
	open := map[string]traceEvent{}
	type thread struct{ pid, tid int }
	type stretch struct{ a, b int64 }
	threads := map[thread][]stretch{}
	for _, e := range d.TraceEvents {
		key := fmt.Sprint(e.Pid, e.Cat, e.Id2.Local)
		switch e.Ph {
		case "b":
			if _, ok := open[key]; ok {
				t.Errorf("id %s is used twice", key)
			}
			open[key] = e
		case "e":
			if b, ok := open[key]; !ok || b.Name != e.Name || ns(t, b.Ts) > ns(t, e.Ts) {
				t.Errorf("an end %+v of %+v", e, b)
			}
			delete(open, key)
		case "X":
			if ns(t, e.Ts) < 0 {
				t.Errorf("%+v begins before the trace", e)
			}
			k := thread{e.Pid, e.Tid}
			threads[k] = append(threads[k], stretch{ns(t, e.Ts), ns(t, e.Ts) + ns(t, e.Dur)})
		case "M", "i", "C":
		default:
			t.Errorf("phase %q", e.Ph)
		}
	}
	if len(open) > 0 {
		t.Errorf("%d asynchronous events have no end", len(open))
	}
	for k, all := range threads {
		slices.SortStableFunc(all, func(x, y stretch) int {
			if x.a != y.a {
				return int(x.a - y.a)
			}
			return int(y.b - x.b)
		})
		var stack []stretch
		for _, s := range all {
			for len(stack) > 0 && stack[len(stack)-1].b <= s.a {
				stack = stack[:len(stack)-1]
			}
			if n := len(stack); n > 0 && stack[n-1].b < s.b {
				t.Fatalf("process %d thread %d: %v and %v overlap in part", k.pid, k.tid, stack[n-1], s)
			}
			stack = append(stack, s)
		}
	}
	return &d
}

// item is a span of either side, in Unix nanoseconds.
type item struct {
	Engine, Track, Kind, Name string
	Step                      string
	StartNS, EndNS            int64
}

func byItem(a, b item) int {
	return gocmp.Or(
		strings.Compare(a.Engine, b.Engine), strings.Compare(a.Track, b.Track), gocmp.Compare(a.StartNS, b.StartNS), gocmp.Compare(a.EndNS, b.EndNS),
		strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), strings.Compare(a.Step, b.Step))
}

// differ is cmp.Diff, quick where nothing does.
func differ(want, got []item) string {
	if slices.Equal(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// items are the spans of a document.
func items(t *testing.T, d *document) (out []item) {
	t.Helper()
	base, err := strconv.ParseInt(d.OtherData.BaseUnixNS, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	processes := map[int]string{}
	threads := map[[2]int]string{}
	ends := map[string]int64{}
	for _, e := range d.TraceEvents {
		switch {
		case e.Ph == "M" && e.Name == "process_name":
			processes[e.Pid] = e.Args["name"].(string)
		case e.Ph == "M" && e.Name == "thread_name":
			threads[[2]int{e.Pid, e.Tid}] = e.Args["name"].(string)
		case e.Ph == "e":
			ends[fmt.Sprint(e.Pid, e.Cat, e.Id2.Local)] = base + ns(t, e.Ts)
		}
	}
	for _, e := range d.TraceEvents {
		if e.Ph != "X" && e.Ph != "b" {
			continue
		}
		track, _, _ := strings.Cut(threads[[2]int{e.Pid, e.Tid}], " (")
		it := item{processes[e.Pid], track, e.Cat, e.Name, e.Args["step"].(json.Number).String(), base + ns(t, e.Ts), 0}
		if e.Ph == "X" {
			it.EndNS = it.StartNS + ns(t, e.Dur)
		} else {
			it.EndNS = ends[fmt.Sprint(e.Pid, e.Cat, e.Id2.Local)]
		}
		out = append(out, it)
	}
	slices.SortFunc(out, byItem)
	return out
}

// wants are the spans of a step as the model has them.
func wants(s *collector.Step) (out []item) {
	add := func(track, kind, name string, a, b int64) {
		out = append(out, item{s.Engine.Label(), track, kind, name, fmt.Sprint(s.Number), s.UnixNS(a), s.UnixNS(b)})
	}
	a, b := s.Bounds()
	add("host", "step", "step", a, b)
	if s.HasEnd {
		add("host", "host", "host", s.BeginMonoNS, s.EndMonoNS)
	}
	for i := range s.Spans {
		sp := &s.Spans[i]
		track := fmt.Sprintf("stream %d", sp.Stream)
		if sp.Context > 0 {
			track = fmt.Sprintf("context %d stream %d", sp.Context, sp.Stream)
		}
		add(track, sp.Kind.String(), sp.Text.Title(), sp.StartMonoNS, sp.StartMonoNS+int64(sp.DurationNS()))
	}
	return out
}

// drain exports every step of the sources to w.
func drain(t testing.TB, w *Writer, srcs ...collector.Source) (want []item, ledgers []collector.SidecarCounts) {
	t.Helper()
	for i, src := range srcs {
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{
			Label: fmt.Sprintf("engine-%d", i), Exporter: w, Selector: collector.SelectAll{},
			Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) { want = append(want, wants(s)...) })},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		ledgers = append(ledgers, p.Engine().Ledger().Counts())
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(want, byItem)
	return want, ledgers
}

func TestEverySpanIsThere(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	want, ledgers := drain(t, w,
		synth.New(synth.Options{Duration: 2 * time.Second, FailEvery: 30, DropEvery: 45, DiffEvery: 50, Memory: true, KernelEvery: 8}),
		synth.New(synth.Options{Duration: 300 * time.Millisecond, Seed: 1}))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d := parse(t, out.Bytes())
	if diff := differ(want, items(t, d)); diff != "" || len(want) < 5000 {
		t.Errorf("%d spans (-model +document):\n%.4000s", len(want), diff)
	}
	for i, c := range ledgers {
		if c.Exported != c.Received || c.Pending != 0 || c.Exported == 0 {
			t.Errorf("engine %d: %+v", i, c)
		}
	}
	count := map[string]int{}
	for _, e := range d.TraceEvents {
		name, _, _ := strings.Cut(e.Name, ":")
		count[e.Ph+" "+e.Cat+" "+name]++
		if e.Ph == "b" && e.Cat != "step" {
			t.Errorf("%+v is asynchronous: this engine's spans nest", e)
		}
		if e.Ph == "C" {
			for k, v := range e.Args {
				if n, err := v.(json.Number).Int64(); err != nil || n < 0 || (k == "live" && n < 100<<20) {
					t.Errorf("%s: %s is %v", e.Name, k, v)
				}
			}
		}
	}
	if count["C  device memory (bytes)"] < 2 || count["C  memory slack (bytes)"] != count["C  device memory (bytes)"] ||
		count["i failed failed"] < 20 || count["i launchtrace launch diff"] < 10 || count["M  process_name"] != 2 {
		t.Errorf("events: %v", count)
	}
}

func TestNothing(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if d := parse(t, out.Bytes()); d.TraceEvents == nil || len(d.TraceEvents) != 0 || d.DisplayTimeUnit != "ns" {
		t.Errorf("%s", out.String())
	}
	_, ledgers := drain(t, w, synth.New(synth.Options{Duration: 10 * time.Millisecond}))
	if c := ledgers[0]; c.Exported != 0 || c.Dropped[collector.DropRefused] != c.Received || c.Received == 0 {
		t.Errorf("after Close: %+v", c)
	}
}

// entries is a run of which all is given.
type entries struct {
	collector.Source
	names map[spanring.NameID]string
	words []spanring.Words
	now   int64
}

func newEntries() *entries {
	return &entries{Source: synth.New(synth.Options{Duration: time.Nanosecond}), names: map[spanring.NameID]string{1: "lane", 2: "kernel"}}
}

func (s *entries) push(w spanring.Words) { s.words = append(s.words, w) }
func (s *entries) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	for n < len(dst) && n < len(s.words) {
		dst[n].Words = s.words[n]
		n++
	}
	s.words = s.words[n:]
	return n, len(s.words) == 0, nil
}
func (s *entries) NowMonoNS() int64 { return s.now }
func (s *entries) Name(id spanring.NameID) (spanring.Name, bool) {
	n, ok := s.names[id]
	return spanring.Name{Kind: spanring.NameKernel, Text: n}, ok
}

// step pushes a step with lanes of the given places.
func (s *entries) step(n uint64, beginNS, endNS int64, spans ...spanring.Span) {
	b := spanring.StepBegin{Step: n, MonoNS: beginNS, Level: 2}
	s.push(b.Words())
	for i := range spans {
		sp := spans[i]
		sp.Step, sp.Ordinal, sp.Kind = n, uint32(i+1), spanring.KindLane
		if sp.Name == 0 {
			sp.Name = 1
		}
		s.push(sp.Words())
	}
	e := spanring.StepEnd{Step: n, BeginNS: beginNS, MonoNS: endNS, Opened: uint32(len(spans))}
	s.push(e.Words())
}

func lane(startNS, endNS int64) spanring.Span {
	return spanring.Span{StartMonoNS: startNS, RawNS: uint64(endNS - startNS)}
}

// TestOverlaps: what does not nest, within a step or between steps, is
// asynchronous and nothing of it is lost.
func TestOverlaps(t *testing.T) {
	other := lane(5000, 9000)
	other.Stream, other.Context = 7, 2
	for _, tt := range []struct {
		name  string
		fill  func(*entries)
		async int // besides the steps
	}{
		{"apart and nested", func(s *entries) { s.step(1, 1000, 2000, lane(5000, 9000), lane(5000, 6000), lane(8000, 9000)) }, 0},
		{"equal", func(s *entries) { s.step(1, 1000, 2000, lane(5000, 9000), lane(5000, 9000), lane(5000, 9000)) }, 0},
		{"no length", func(s *entries) { s.step(1, 1000, 2000, lane(5000, 9000), lane(9000, 9001), lane(9001, 9002)) }, 0},
		{"in part", func(s *entries) { s.step(1, 1000, 2000, lane(5000, 9000), lane(8000, 9500), lane(9000, 9400)) }, 0},
		{"by more than there are rows", func(s *entries) {
			s.step(1, 1000, 2000, lane(5000, 9000), lane(5100, 9100), lane(5200, 9200), lane(5300, 9300))
		}, 1},
		{"on another stream", func(s *entries) { s.step(1, 1000, 2000, lane(4000, 6000), other) }, 0},
		{"across steps", func(s *entries) {
			s.step(1, 1000, 2000, lane(5000, 9000))
			s.step(2, 1500, 2500, lane(8999, 9500))
			s.step(3, 2000, 2600, lane(9000, 9100))
		}, 1}, // the second step's part on the host
		{"the other way round", func(s *entries) {
			s.step(2, 3000, 4000, lane(9000, 9500))
			s.step(1, 1000, 2000, lane(5000, 9000))
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newEntries()
			tt.fill(s)
			var out bytes.Buffer
			w := NewWriter(&out)
			want, _ := drain(t, w, s)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			d := parse(t, out.Bytes())
			if diff := differ(want, items(t, d)); diff != "" {
				t.Errorf("spans (-model +document):\n%s", diff)
			}
			n := 0
			for _, e := range d.TraceEvents {
				if e.Ph == "b" && e.Cat != "step" {
					n++
				}
			}
			if n != tt.async {
				t.Errorf("%d asynchronous spans, want %d", n, tt.async)
			}
		})
	}
}

// TestKernelsFollowTheirLane: a lane that begins a nanosecond before the one before
// it ends lies on the stream's second track, and its kernels in it.
func TestKernelsFollowTheirLane(t *testing.T) {
	s := newEntries()
	b := spanring.StepBegin{Step: 1, MonoNS: 1000, Level: 3}
	s.push(b.Words())
	for _, sp := range []spanring.Span{
		{Kind: spanring.KindLane, Ordinal: 1, Name: 1, StartMonoNS: 5000, RawNS: 1001},
		{Kind: spanring.KindLane, Ordinal: 2, Name: 1, StartMonoNS: 6000, RawNS: 1000, SharedStart: true},
		{Kind: spanring.KindKernel, Ordinal: 3, Parent: 2, Name: 2, StartMonoNS: 6500, RawNS: 100},
		{Kind: spanring.KindKernel, Ordinal: 4, Parent: 1, Name: 2, StartMonoNS: 5500, RawNS: 100},
	} {
		sp.Step = 1
		s.push(sp.Words())
	}
	e := spanring.StepEnd{Step: 1, BeginNS: 1000, MonoNS: 2000, Opened: 4}
	s.push(e.Words())
	var out bytes.Buffer
	w := NewWriter(&out)
	drain(t, w, s)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	names := map[int]string{}
	for _, e := range parse(t, out.Bytes()).TraceEvents {
		switch {
		case e.Ph == "M" && e.Name == "thread_name":
			names[e.Tid] = e.Args["name"].(string)
		case e.Ph == "X" && e.Cat != "host":
			got = append(got, e.Cat+" on "+names[e.Tid])
		}
	}
	want := []string{"lane on stream 0", "kernel on stream 0", "lane on stream 0 (2)", "kernel on stream 0 (2)"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("tracks (-want +got):\n%s", d)
	}
}

// TestTenThousandHostileNames: the document is JSON, with the cleaned names.
func TestTenThousandHostileNames(t *testing.T) {
	s := newEntries()
	const n = 10_000
	spans := make([]spanring.Span, 0, 100)
	for i := range n {
		id := spanring.NameID(10 + i)
		s.names[id] = fmt.Sprintf("k%d \"q\" \\ \n\t\x00 </script> \u2028 \xff\xfe %s", i, strings.Repeat("é", i%400))
		sp := lane(int64(i)*1000, int64(i)*1000+900)
		sp.Name = id
		if spans = append(spans, sp); len(spans) == 100 {
			k := int64(i / 100)
			s.step(uint64(k+1), k*100_000, k*100_000+10, spans...)
			spans = spans[:0]
		}
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	want, _ := drain(t, w, s)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !utf8.Valid(out.Bytes()) {
		t.Error("the document is not UTF-8")
	}
	d := parse(t, out.Bytes())
	got := items(t, d)
	// The whole names are there as well.
	whole := map[string]bool{}
	for _, e := range d.TraceEvents {
		if e.Cat != "lane" {
			continue
		}
		if n, ok := e.Args["name"].(string); ok {
			whole[n] = true
		} else {
			whole[e.Name] = true
		}
	}
	for _, n := range s.names {
		if n = collector.CleanText(n); !whole[n] && strings.HasPrefix(n, "k") && n != "kernel" {
			t.Errorf("no %q", n)
		}
	}
	if diff := differ(want, got); diff != "" || len(got) != n+200 {
		t.Errorf("%d spans (-model +document):\n%.2000s", len(got), diff)
	}
}

type failing struct{ after int }

func (f *failing) Write(b []byte) (int, error) {
	if f.after -= len(b); f.after < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestWriteError(t *testing.T) {
	w := NewWriter(&failing{after: 200_000})
	_, ledgers := drain(t, w, synth.New(synth.Options{Duration: time.Second}))
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Close: %v", err)
	}
	if c := ledgers[0]; c.Dropped[collector.DropRefused] == 0 || c.Exported == 0 || c.Pending != 0 || c.Received != c.Exported+c.Dropped[collector.DropRefused] {
		t.Errorf("ledger %+v", c)
	}
}

// TestFlatMemory: what is kept does not grow with what is written.
func TestFlatMemory(t *testing.T) {
	w := NewWriter(io.Discard)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	src := newEntries()
	p, err := collector.NewProcessor(endless{src}, collector.ProcessorOptions{Exporter: w, Selector: collector.SelectAll{}})
	if err != nil {
		t.Fatal(err)
	}
	write := func(from, to uint64) {
		for n := from; n < to; n++ {
			at := int64(n) * 100_000
			src.step(n, at, at+900, lane(at+1000, at+2000), lane(at+2500, at+3000))
			if _, _, err := p.Poll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(1, 2_000)
	before := heap()
	write(2_000, 40_000)
	if after := heap(); after > before+256<<10 {
		t.Errorf("%d bytes after 2,000 steps, %d after 40,000", before, after)
	}
	tr := w.engines[p.Engine()].streams[streamKey{}]
	if len(tr.taken) != maxTaken {
		t.Errorf("%d stretches remembered, want %d", len(tr.taken), maxTaken)
	}
	// Before what is remembered, nothing is known to be free.
	if tr.free(0, 1) || !tr.free(1<<40, 1<<40+1) {
		t.Error("the floor does not hold")
	}
	p.Close()
	if len(w.engines) != 0 {
		t.Error("an ended engine is kept")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// endless is a run that has nothing at times, but no end.
type endless struct{ *entries }

func (e endless) Poll(dst []spanring.Entry) (int, bool, error) {
	n, _, err := e.entries.Poll(dst)
	return n, false, err
}

func TestManyStreams(t *testing.T) {
	s := newEntries()
	for n := range uint64(20) {
		var spans []spanring.Span
		for i := range 100 {
			sp := lane(int64(n)*1000, int64(n)*1000+900)
			sp.Stream = uint16(n*100) + uint16(i)
			spans = append(spans, sp)
		}
		s.step(n+1, int64(n)*1000, int64(n)*1000+10, spans...)
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	drain(t, w, s)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rest, names := 0, 0
	for _, e := range parse(t, out.Bytes()).TraceEvents {
		if e.Ph == "b" && e.Tid == restTID {
			rest++
		}
		if e.Ph == "M" && e.Name == "thread_name" {
			names++
		}
	}
	if rest != 2000-maxTracks || names != maxTracks+2 {
		t.Errorf("%d spans without a track of their own, %d tracks", rest, names)
	}
}

func TestMicros(t *testing.T) {
	for in, want := range map[int64]string{0: "0.000", 1: "0.001", 999: "0.999", 1000: "1.000", 1_234_567_890_123: "1234567890.123", -1: "-0.001", -1500: "-1.500", -1 << 63: "-9223372036854775.808"} {
		if got := string(appendMicros(nil, in)); got != want {
			t.Errorf("%d ns: %s µs, want %s", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "a\"b\\c\nd\x00", "\xff", "é\u2028<&>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		b := appendText(nil, s)
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if utf8.ValidString(s) && got != s {
			t.Fatalf("%q became %q", s, got)
		}
	})
}

func BenchmarkStep(b *testing.B) {
	var steps []*collector.Step
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: time.Second, KernelEvery: 1}), collector.ProcessorOptions{
		Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) { steps = append(steps, s.Clone()) })}})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		b.Fatal(err)
	}
	w, spans := NewWriter(io.Discard), 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s := steps[i%len(steps)]
		w.Export(s, collector.ExportAll)
		spans += len(s.Spans) + 2
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(spans), "ns/span")
}
