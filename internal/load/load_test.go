package load

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/lanetrace/lanetrace/spanring"
)

var (
	duration = flag.Duration("load.duration", 10*time.Second, "how long each rate is measured")
	keep     = flag.Bool("load.keep", false, "have the sidecar keep recordings")
)

// Variables that make this binary the engine.
const (
	engineDir  = "LANETRACE_LOAD_ENGINE_DIR"
	engineRate = "LANETRACE_LOAD_ENGINE_RATE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(engineDir); dir != "" {
		if err := engine(dir, os.Getenv(engineRate)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	os.RemoveAll(builtDir)
	os.Exit(code)
}

const (
	lanes      = 3 // of each step
	armedEvery = 64
	kernels    = 60 // of each armed step
	pace       = 5 * time.Millisecond
)

// spansOf is how many spans steps hold, themselves included.
func spansOf(steps uint64) uint64 { return steps*(1+lanes) + steps/armedEvery*kernels }

// engine writes steps to a ring at a rate of spans a second until SIGTERM, then
// prints how many spans it wrote.
func engine(dir, rate string) error {
	perSecond, err := strconv.ParseUint(rate, 10, 32)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	w, err := spanring.Create(spanring.Dir{Path: dir, Group: -1}, spanring.Options{Info: spanring.Info{
		Service: "load", GPUUUID: "GPU-10ad0000-0000-0000-0000-000000000000", GPUName: "none", Rank: spanring.NoRank, Level: 3,
	}})
	if err != nil {
		return err
	}
	var laneNames [lanes]spanring.NameID
	for i := range laneNames {
		laneNames[i] = w.Name(spanring.NameLane, []string{"admit", "prefill", "decode"}[i])
	}
	var kernelNames [kernels / 4]spanring.NameID
	for i := range kernelNames {
		kernelNames[i] = w.Name(spanring.NameKernel, fmt.Sprintf("void kernel_%d<float, 128>(float const*, float*, int)", i))
	}
	fmt.Println("ready")
	t := time.NewTicker(pace)
	defer t.Stop()
	began := time.Now()
	var step uint64
	for {
		select {
		case <-ctx.Done():
			fmt.Println(spansOf(step))
			return w.Close()
		case <-t.C:
		}
		due := uint64(float64(perSecond) * time.Since(began).Seconds())
		now := spanring.MonoNS()
		for ; spansOf(step+1) <= due; now += 1000 {
			step++
			writeStep(w, step, now, laneNames[:], kernelNames[:])
		}
	}
}

func writeStep(w *spanring.Writer, step uint64, now int64, laneNames, kernelNames []spanring.NameID) {
	armed := step%armedEvery == 0
	n := uint32(lanes)
	if armed {
		n += kernels
	}
	w.Add(spanring.CtrBegun, uint64(n)+1)
	put := func(words spanring.Words) { w.Append(&words) }
	put((&spanring.StepBegin{Step: step, MonoNS: now - 900_000, Armed: armed, Level: 3}).Words())
	for i, name := range laneNames {
		at := now - 800_000 + int64(i)*250_000
		put((&spanring.Span{
			Kind: spanring.KindLane, Step: step, Ordinal: uint32(i + 1), Name: name, Lane: uint16(i + 1), Armed: armed,
			StartMonoNS: at, RawNS: 200_000 + step*7919%40_000, LeadNS: 5_000, DurationUncertaintyNS: 32, PlaceUncertaintyNS: 900,
		}).Words())
	}
	for i := lanes; i < int(n); i++ {
		at := now - 800_000 + 500_000 + int64(i)*3_000
		put((&spanring.Span{
			Kind: spanring.KindKernel, Step: step, Ordinal: uint32(i + 1), Parent: lanes, Name: kernelNames[i%len(kernelNames)], Lane: lanes, Armed: true,
			StartMonoNS: at, RawNS: 5_000 + uint64(i*613%900), CorrectionNS: 3_040, LeadNS: 5_000, Gap: spanring.GapQueued,
			Calibration: spanring.CalibrationMeasured, DurationUncertaintyNS: 60, PlaceUncertaintyNS: 900,
		}).Words())
	}
	put((&spanring.StepEnd{Step: step, MonoNS: now, BeginNS: now - 900_000, Armed: armed, Opened: n}).Words())
	w.Add(spanring.CtrLanded, uint64(n)+1)
}

// sink takes traces and metrics and counts spans.
type sink struct {
	coltracepb.UnimplementedTraceServiceServer
	spans, requests atomic.Int64
}

func (s *sink) Export(_ context.Context, r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	s.requests.Add(1)
	for _, rs := range r.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			s.spans.Add(int64(len(ss.Spans)))
		}
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

type metricSink struct {
	colmetricpb.UnimplementedMetricsServiceServer
}

func (metricSink) Export(context.Context, *colmetricpb.ExportMetricsServiceRequest) (*colmetricpb.ExportMetricsServiceResponse, error) {
	return &colmetricpb.ExportMetricsServiceResponse{}, nil
}

// builtDir is where buildSidecar puts the command, "" before it has.
var builtDir string

// buildSidecar builds the command once.
var buildSidecar = sync.OnceValues(func() (_ string, err error) {
	if builtDir, err = os.MkdirTemp("", "lanetrace-load-"); err != nil {
		return "", err
	}
	bin := filepath.Join(builtDir, "lanetrace")
	out, err := exec.Command("go", "build", "-trimpath", "-o", bin, "github.com/lanetrace/lanetrace/cmd/lanetrace").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the sidecar: %w: %s", err, out)
	}
	return bin, nil
})

// process is a child whose lines are read.
type process struct {
	*exec.Cmd
	lines chan string
}

func begin(tb testing.TB, cmd *exec.Cmd, env ...string) *process {
	tb.Helper()
	cmd.Env = append(os.Environ(), env...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p := &process{cmd, make(chan string, 1000)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	tb.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		w.Close()
	})
	return p
}

// line waits for a line that has text in it.
func (p *process) line(tb testing.TB, text string) string {
	tb.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case l, ok := <-p.lines:
			if strings.Contains(l, text) {
				return l
			}
			if !ok {
				tb.Fatalf("process ended without %q", text)
			}
		case <-late:
			tb.Fatalf("no %q within a minute", text)
		}
	}
}

// cpu is the time that a process has used.
func cpu(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0, errors.New("short stat")
	}
	ticks := 0
	for _, s := range f[11:13] { // utime, stime
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}

// status is a field of a process's status in KiB.
func status(pid int, field string) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, field+":"); ok {
			return strconv.Atoi(strings.Fields(v)[0])
		}
	}
	return 0, fmt.Errorf("no %s", field)
}

// BenchmarkSidecar is a sidecar at its default settings: CPU in percent of one
// core, anonymous memory at its highest, and what it lost.
func BenchmarkSidecar(b *testing.B) {
	for _, rate := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%dspans_per_s", rate), func(b *testing.B) { sidecar(b, rate) })
	}
}

func sidecar(b *testing.B, rate int) {
	bin, err := buildSidecar()
	if err != nil {
		b.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var s sink
	g := grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(g, &s)
	colmetricpb.RegisterMetricsServiceServer(g, metricSink{})
	go g.Serve(l)
	defer g.Stop()

	dir := filepath.Join(b.TempDir(), "rings")
	if err := (spanring.Dir{Path: dir, Group: -1}).Make(); err != nil {
		b.Fatal(err)
	}
	args := []string{"sidecar", "--dir", dir, "--state-dir", b.TempDir(), "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://" + l.Addr().String()}
	if *keep {
		args = append(args, "--keep", filepath.Join(b.TempDir(), "keep"))
	}
	side := begin(b, exec.Command(bin, args...))
	serving := side.line(b, "serving http://")
	url, _, _ := strings.Cut(serving[strings.Index(serving, "http://"):], "/metrics")
	url += "/metrics"
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	eng := begin(b, exec.Command(self), engineDir+"="+dir, engineRate+"="+strconv.Itoa(rate))
	eng.line(b, "ready")
	<-time.After(2 * time.Second) // the start is no part of it

	b.ResetTimer()
	began := time.Now()
	pid := side.Process.Pid
	used, err := cpu(pid)
	if err != nil {
		b.Fatal(err)
	}
	highest := 0
	for t := time.NewTicker(time.Second); time.Since(began) < *duration; {
		<-t.C
		kib, err := status(pid, "RssAnon")
		if err != nil {
			b.Fatal(err)
		}
		highest = max(highest, kib)
		if int(time.Since(began).Seconds())%10 == 5 {
			r, err := http.Get(url)
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}
	now, err := cpu(pid)
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	eng.Process.Signal(syscall.SIGTERM)
	wrote, err := strconv.ParseFloat(eng.line(b, ""), 64)
	if err != nil {
		b.Fatal(err)
	}
	r, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		b.Fatal(r.Status)
	}
	lost := 0.0
	for sc := bufio.NewScanner(r.Body); sc.Scan(); {
		for _, name := range []string{"lanetrace_entries_lost_total{", "lanetrace_sidecar_spans_dropped_total{"} {
			if strings.HasPrefix(sc.Text(), name) {
				f := strings.Fields(sc.Text())
				v, err := strconv.ParseFloat(f[len(f)-1], 64)
				if err != nil {
					b.Fatal(err)
				}
				lost += v
			}
		}
	}
	if lost > 0 {
		b.Errorf("%v entries or spans were lost", lost)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*(now-used).Seconds()/took.Seconds(), "%core")
	b.ReportMetric(float64(highest)/1024, "MiB_RssAnon")
	b.ReportMetric(wrote/(took.Seconds()+2), "spans/s")
	b.ReportMetric(float64(s.spans.Load())/(took.Seconds()+2), "exported/s")
}
