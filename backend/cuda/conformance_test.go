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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gpuEnv asks for the tests on the machine's own GPU, and leaves those on the
// stand-in out, which need a compiler.
const gpuEnv = "LANETRACE_TEST_GPU"

func onGPU() bool { return os.Getenv(gpuEnv) == "1" }

// standIn is the stand-in driver's path.
func standIn(t *testing.T) string {
	t.Helper()
	if onGPU() {
		t.Skipf("%s=1: the stand-in driver is for machines without a GPU", gpuEnv)
	}
	return testdriver.Build(t)
}

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, nil))
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Logf("log: %s", b)
	return len(b), nil
}

func openTest(t *testing.T, cfg Config) *GPU {
	t.Helper()
	cfg.DrainWait, cfg.Logger = 2*time.Second, testLogger(t)
	g, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestConformanceStandIn(t *testing.T) {
	lib := standIn(t)
	conformance.Run(t, func(t *testing.T, hub *lanetrace.Hub) backend.GPU {
		return openTest(t, Config{Library: lib, Hub: hub, StagingBytes: 256 << 10})
	}, conformance.Caps{
		MinCyclesPerUS: 1980, MaxCyclesPerUS: 1980, ExactTimes: true, Images: true,
		OpenGlobal: func(t *testing.T) backend.GPU {
			return openTest(t, Config{Library: lib, Capture: CaptureGlobal})
		},
	})
}
