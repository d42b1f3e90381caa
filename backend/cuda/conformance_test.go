//go:build cgo

package cuda

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/conformance"
	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/internal/testdriver/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gpuEnv asks for the tests on the machine's own GPU, and leaves those on the
// stand-in out, which need a compiler.
const gpuEnv = "LANETRACE_TEST_GPU"

func onGPU() bool { return os.Getenv(gpuEnv) == "1" }

// standIn is the stand-in driver's path.
func standIn(t testing.TB) string {
	t.Helper()
	if onGPU() {
		t.Skipf("%s=1: what runs on the stand-in driver does not run where there is a GPU", gpuEnv)
	}
	return testdriver.Build(t)
}

// controlled is the stand-in with its controls, whose settings go back at the end.
func controlled(t testing.TB) (lib string, ctl *control.Driver) {
	t.Helper()
	lib = standIn(t)
	ctl, err := control.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctl.Reset)
	return lib, ctl
}

// realDriver is the driver's library on a machine with a GPU. Without one the
// test is skipped, and says so; asked for by gpuEnv it must be there.
func realDriver(t testing.TB) string {
	t.Helper()
	lib := os.Getenv(LibraryEnv)
	if lib == "" {
		lib = DefaultLibrary
	}
	if onGPU() {
		return lib
	}
	t.Skipf("not on a GPU: make gpu-test does, on a machine that has one (%s=1)", gpuEnv)
	return ""
}

// anyDriver is the machine's own driver if that was asked for, else the stand-in.
func anyDriver(t testing.TB) string {
	t.Helper()
	if onGPU() {
		return realDriver(t)
	}
	return standIn(t)
}

func testLogger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, nil))
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Logf("log: %s", b)
	return len(b), nil
}

func openTest(t testing.TB, cfg Config) *GPU {
	t.Helper()
	cfg.DrainWait, cfg.Logger = 2*time.Second, testLogger(t)
	g, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// openMemory opens GPUs with a configuration of their memory.
func openMemory(lib string) func(*testing.T, *lanetrace.Hub, backend.MemoryConfig, *slog.Logger) backend.GPU {
	return func(t *testing.T, hub *lanetrace.Hub, m backend.MemoryConfig, log *slog.Logger) backend.GPU {
		g, err := Open(Config{Library: lib, Hub: hub, Memory: m, Logger: log, DrainWait: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
}

func openGraphLanes(lib string) conformance.Open {
	return func(t *testing.T, hub *lanetrace.Hub) backend.GPU {
		return openTest(t, Config{Library: lib, Hub: hub, GraphLanes: true})
	}
}

// called are the functions of the driver that the binding calls.
var called = []string{
	"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery", "cuStreamWaitEvent",
	"cuStreamIsCapturing", "cuStreamGetId", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
	"cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventSynchronize",
	"cuEventElapsedTime", "cuEventElapsedTime_v2", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuLaunchKernel",
	"cuGraphInstantiateWithFlags", "cuGraphGetNodes", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy",
	"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async",
}

func TestConformanceStandIn(t *testing.T) {
	lib, ctl := controlled(t)
	caps := func() conformance.Caps {
		return conformance.Caps{
			MinCyclesPerUS: 1980, MaxCyclesPerUS: 1980, ExactTimes: true, Images: true,
			OpenGlobal: func(t *testing.T) backend.GPU {
				return openTest(t, Config{Library: lib, Capture: CaptureGlobal})
			},
			OpenMemory: openMemory(lib), OpenGraphLanes: openGraphLanes(lib),
			Calls: func() map[string]uint64 {
				m := map[string]uint64{"all": ctl.TotalCalls()}
				for _, f := range called {
					m[f] = ctl.Calls(f)
				}
				return m
			},
			LaunchBusy: func(t *testing.T, _ backend.GPU, us int) {
				if err := ctl.SetCallTime("cuLaunchKernel", time.Duration(us)*time.Microsecond); err != nil {
					t.Error(err)
				}
			},
		}
	}
	kinds := []string{"context", "stream", "event", "module", "function", "exec", "graph", "allocation"}
	before := make(map[string]uint64)
	for _, kind := range kinds {
		before[kind] = ctl.Live(kind)
	}
	// A small staging ring, so that copies wrap around it and wait for it.
	open := func(t *testing.T, hub *lanetrace.Hub) backend.GPU {
		return openTest(t, Config{Library: lib, Hub: hub, StagingBytes: 256 << 10})
	}
	t.Run("as it is", func(t *testing.T) { conformance.Run(t, open, caps()) })
	t.Run("like an H200 with a clock of its own", func(t *testing.T) {
		ctl.SetAfterRecord(1580)
		ctl.SetClock(-1700*time.Second, 11_800)
		conformance.Run(t, open, caps())
	})
	for _, kind := range kinds {
		if n := ctl.Live(kind) - before[kind]; n != 0 {
			t.Errorf("%d of kind %s are left when every GPU is closed", n, kind)
		}
	}
}

func TestConformanceGPU(t *testing.T) {
	lib := realDriver(t)
	// Where there is none, the whole suite would say so; where there is, the primary
	// context stays, which takes the longest to make.
	g := openTest(t, Config{Library: lib})
	t.Logf("%s, compute capability %d, driver %d, UUID %x", g.Name(), g.Capability(), g.DriverVersion(), g.UUID())
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	conformance.Run(t, func(t *testing.T, hub *lanetrace.Hub) backend.GPU {
		return openTest(t, Config{Library: lib, Hub: hub})
	}, conformance.Caps{
		// An H200's multiprocessors run at 345 to 1,980 MHz.
		MinCyclesPerUS: 300, MaxCyclesPerUS: 2200, Images: true,
		OpenGlobal: func(t *testing.T) backend.GPU {
			return openTest(t, Config{Library: lib, Capture: CaptureGlobal})
		},
		OpenMemory: openMemory(lib), OpenGraphLanes: openGraphLanes(lib),
		// A launch call takes a real driver's host long enough.
		LaunchBusy: func(*testing.T, backend.GPU, int) {},
	})
}
