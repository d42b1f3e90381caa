package sim_test

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/conformance"
	"github.com/lanetrace/lanetrace/backend/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	open := func(t *testing.T, hub *lanetrace.Hub, c sim.Config) backend.GPU {
		c.Hub, c.Modules, c.DrainWait = hub, conformance.SimModules(), 2*time.Second
		if c.Logger == nil {
			c.Logger = slog.New(slog.DiscardHandler)
		}
		g, err := sim.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	for _, v := range []struct {
		name string
		cfg  sim.Config
	}{
		{"as it is", sim.Config{}},
		{"with a clock of its own", sim.Config{ClockOffset: -1700 * time.Second, ClockDriftPPB: 11_800, LaunchLatency: 9 * time.Microsecond}},
	} {
		t.Run(v.name, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T, hub *lanetrace.Hub) backend.GPU { return open(t, hub, v.cfg) }, conformance.Caps{
				MinCyclesPerUS: 1980, MaxCyclesPerUS: 1980, ExactTimes: true, Driverless: true,
				OpenGraphLanes: func(t *testing.T, hub *lanetrace.Hub) backend.GPU {
					c := v.cfg
					c.GraphLanes = true
					return open(t, hub, c)
				},
				OpenMemory: func(t *testing.T, hub *lanetrace.Hub, m backend.MemoryConfig, log *slog.Logger) backend.GPU {
					c := v.cfg
					c.Memory, c.Logger = m, log
					return open(t, hub, c)
				},
				LaunchBusy: func(t *testing.T, g backend.GPU, us int) {
					g.(*sim.GPU).SetLaunchCall(time.Duration(us) * time.Microsecond)
				},
			})
		})
	}
}
