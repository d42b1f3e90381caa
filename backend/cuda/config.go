package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/launchtrace"
)

// LibraryEnv names the driver library to load where Config.Library does not.
const LibraryEnv = "LANETRACE_LIBCUDA"

// DefaultLibrary is the driver library's name everywhere on Linux.
const DefaultLibrary = "libcuda.so.1"

// ErrNoDriver is what a driver library that is missing or too old is.
var ErrNoDriver = errors.New("no usable CUDA driver library")

// CaptureMode says what else may be done with the driver while a stream of
// GPU.BeginCapture is captured (CUstreamCaptureMode).
type CaptureMode int32

const (
	// CaptureRelaxed forbids nothing, and lets the capture end on another thread
	// than it began on, as goroutines do.
	CaptureRelaxed CaptureMode = iota
	// CaptureThreadLocal forbids the capturing thread calls that a capture cannot
	// hold. Begin and end need runtime.LockOSThread around them.
	CaptureThreadLocal
	// CaptureGlobal forbids them to every thread. Likewise.
	CaptureGlobal
)

// driver is CUstreamCaptureMode.
func (m CaptureMode) driver() int32 { return int32(CaptureGlobal - m) }

// Config says which GPU to open. The zero value of a field takes its default.
type Config struct {
	// Hub is where telemetry goes. Default: nowhere.
	Hub *lanetrace.Hub
	// Library is the driver library's file. Default: what LANETRACE_LIBCUDA names,
	// else libcuda.so.1.
	Library string
	// Ordinal is the device's number among those that the driver shows. Default 0.
	Ordinal int
	// Capture is the mode of captures. Default CaptureRelaxed.
	Capture CaptureMode
	// GraphLanes puts lanes that are begun on a stream which is being captured into
	// the graph, as nodes of it, so that each replay times them. Default: such a lane
	// is not timed, and a graph has the nodes that it has without telemetry.
	GraphLanes bool
	// StagingBytes is the size of the page-locked memory that CopyHtoDAsync copies
	// through, made when it is first needed. Default 8 MiB, at least 64 KiB.
	StagingBytes int
	// Memory is how device memory is accounted for.
	Memory backend.MemoryConfig
	// Trace are settings of the launch trace; its ring, which hears nothing at level
	// off, its log and its resolver are the backend's own.
	Trace launchtrace.Options
	// DrainWait bounds how long Close waits for work in flight and for telemetry.
	// Default 10 s.
	DrainWait time.Duration
	// Logger gets what goes wrong without being an error. Default slog.Default.
	Logger *slog.Logger
}

const (
	defaultStaging = 8 << 20
	leastStaging   = 64 << 10
	defaultDrain   = 10 * time.Second
)

func (c Config) settle(getenv func(string) string) (Config, error) {
	if c.Library == "" {
		c.Library = getenv(LibraryEnv)
	}
	if c.Library == "" {
		c.Library = DefaultLibrary
	}
	if c.StagingBytes == 0 {
		c.StagingBytes = defaultStaging
	}
	if c.DrainWait == 0 {
		c.DrainWait = defaultDrain
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Ordinal < 0:
		return c, fmt.Errorf("cuda: device %d: want 0 or more", c.Ordinal)
	case c.Capture < CaptureRelaxed || c.Capture > CaptureGlobal:
		return c, fmt.Errorf("cuda: unknown capture mode %d", c.Capture)
	case c.StagingBytes < leastStaging:
		return c, fmt.Errorf("cuda: %d bytes to stage copies in: want at least %d", c.StagingBytes, leastStaging)
	case c.DrainWait < 0:
		return c, fmt.Errorf("cuda: negative time %v to drain in", c.DrainWait)
	}
	return c, nil
}
