package sim

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/launchtrace"
)

// Function is a kernel: what it does and how long that takes.
type Function struct {
	// Run does the kernel's work, once a launch, over the whole grid. Nil does
	// nothing. A panic in it is a kernel's fault: every later call on the GPU
	// fails, as after an illegal address.
	Run func(c *Call)
	// Cost is how long the kernel takes on the GPU. It is called when the launch is
	// enqueued and must not touch device memory. Default: Config.KernelCost.
	Cost func(c *Call) time.Duration
	// Params are the sizes of the parameters in bytes. When it is not nil, a launch
	// with other arguments is refused. Default: nothing is checked.
	Params []uint8
	// NTile is the width of the kernel's tile of output columns. Default 0: the
	// kernel publishes none.
	NTile uint32
	// CastsAToE4M3 says that the kernel casts its operand A without a scale.
	CastsAToE4M3 bool
}

// Module is a set of kernels by name.
type Module map[string]Function

// Config describes a simulated GPU. The zero value of a field takes its default.
type Config struct {
	// Hub is where telemetry goes. Default: nowhere.
	Hub *lanetrace.Hub
	// Modules are what LoadModule can load, by name.
	Modules map[string]Module
	// Clock is the host's clock. Default: CLOCK_MONOTONIC. Recorders and hubs read
	// CLOCK_MONOTONIC, so a manual one is for tests without a hub.
	Clock *ManualClock
	// Logger gets what goes wrong. Default slog.Default.
	Logger *slog.Logger

	// Name is the device's name. Default "lanetrace sim".
	Name string
	// UUID is the device's identity. Default: the same for the same Ordinal.
	UUID [16]byte
	// Ordinal is the device's number.
	Ordinal int
	// Capability is the compute capability, major*10 + minor. Default 90.
	Capability int
	// SMs is the number of multiprocessors. Default 132.
	SMs int
	// TotalMemory is the device's memory in bytes, none of which is taken before it
	// is allocated. Default 16 GiB.
	TotalMemory int64

	// GraphLanes puts lanes that are begun on a stream which is being captured into
	// the graph, as nodes of it, so that each replay times them. Default: such a lane
	// is not timed, and a graph has the nodes that it has without telemetry.
	GraphLanes bool

	// HostAvailable makes the GPU an integrated one: the host's available memory, in
	// bytes, which is FreeMemory where it is more than the device's own. Default 0: it
	// is not integrated.
	HostAvailable int64

	// TimeScale stretches the cost of kernels and copies. Default 1.
	TimeScale float64
	// KernelCost is what a kernel without a cost of its own takes. Default 5 µs.
	KernelCost time.Duration
	// LaunchLatency passes from the enqueuing of work until it can start. Default
	// 4 µs. Like the next two, a negative value is 0.
	LaunchLatency time.Duration
	// RecordCost is what a timed event record takes; its stamp is taken at the end.
	// Default 1,460 ns, as measured on an H200.
	RecordCost time.Duration
	// AfterRecord passes between a timed record and a kernel right behind it.
	// Default 1,580 ns: with RecordCost a pair is 3,040 ns longer than its kernel, as
	// measured on an H200.
	AfterRecord time.Duration
	// LaunchCall is how long the host is busy in a launch before it is enqueued.
	// Default 0. Where it is longer than LaunchLatency and RecordCost together, a
	// timed launch on an idle stream is starved.
	LaunchCall time.Duration
	// CopyCost is the fixed part of a copy or memset. Default 1,500 ns.
	CopyCost time.Duration
	// HostBytesPerUS and DeviceBytesPerUS are the bandwidths of copies from and to
	// the host, and within the device. Default 50,000 and 2,000,000 bytes a
	// microsecond.
	HostBytesPerUS, DeviceBytesPerUS int64
	// CyclesPerUS is the rate at which SpinKernel's cycles pass. Default 1,980.
	CyclesPerUS int64

	// ClockOffset is what the GPU's clock is ahead of the host's when the GPU is
	// opened, ClockDriftPPB how much faster it runs, in parts of 1e9.
	ClockOffset   time.Duration
	ClockDriftPPB int64

	// Memory is how device memory is accounted for.
	Memory backend.MemoryConfig
	// Trace are settings of the launch trace; its ring, which hears nothing at level
	// off, its log and its resolver are the backend's own.
	Trace launchtrace.Options

	// DrainWait bounds how long Close waits for work in flight and for telemetry.
	// Default 5 s.
	DrainWait time.Duration
}

// spinFixed is the part of a spin kernel's time that does not depend on its
// cycles, as measured with CUPTI on an H200.
const spinFixed = 523 * time.Nanosecond

func (c Config) settle() (Config, error) {
	if c.Name == "" {
		c.Name = "lanetrace sim"
	}
	if c.UUID == [16]byte{} {
		copy(c.UUID[:], "lanetrace sim")
		c.UUID[14], c.UUID[15] = byte(c.Ordinal>>8), byte(c.Ordinal)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	def(&c.Capability, 90)
	def(&c.SMs, 132)
	def(&c.TotalMemory, 16<<30)
	def(&c.TimeScale, 1)
	def(&c.KernelCost, 5*time.Microsecond)
	def(&c.LaunchLatency, 4*time.Microsecond)
	def(&c.RecordCost, 1460*time.Nanosecond)
	def(&c.AfterRecord, 1580*time.Nanosecond)
	def(&c.CopyCost, 1500*time.Nanosecond)
	def(&c.HostBytesPerUS, 50_000)
	def(&c.DeviceBytesPerUS, 2_000_000)
	def(&c.CyclesPerUS, 1980)
	def(&c.DrainWait, 5*time.Second)
	c.LaunchLatency = max(0, c.LaunchLatency)
	c.RecordCost = max(0, c.RecordCost)
	c.AfterRecord = max(0, c.AfterRecord)
	switch {
	case c.TimeScale < 0 || c.TimeScale > 1e6:
		return c, fmt.Errorf("sim: time scale %v: want over 0, at most 1e6", c.TimeScale)
	case c.TotalMemory < 0, c.KernelCost < 0, c.LaunchCall < 0, c.CopyCost < 0,
		c.HostBytesPerUS < 0, c.DeviceBytesPerUS < 0, c.CyclesPerUS < 0, c.SMs < 0:
		return c, fmt.Errorf("sim: negative size, cost or rate in the configuration")
	case c.ClockDriftPPB <= -1e9 || c.ClockDriftPPB >= 1e9:
		return c, fmt.Errorf("sim: clock drift %d ppb: want under 1e9 either way", c.ClockDriftPPB)
	}
	for name, m := range c.Modules {
		for fn, f := range m {
			if len(f.Params) > backend.MaxArgs {
				return c, fmt.Errorf("sim: %s.%s has %d parameters, at most %d", name, fn, len(f.Params), backend.MaxArgs)
			}
		}
	}
	return c, nil
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
