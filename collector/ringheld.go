package collector

import (
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

const (
	// heldWindow is the time over which an engine's rate of entries is taken, up to
	// twice as much.
	heldWindow = 30 * time.Second
	// maxHeld is what is shown at most, also of a ring to which nothing is written.
	maxHeld = 24 * time.Hour
)

// entryRate follows how fast entries are published.
type entryRate struct {
	mu sync.Mutex
	// Two looks at the counter, the older one at least heldWindow ago once there is
	// such a one.
	older, newer look
}

type look struct {
	monoNS    int64
	published uint64
}

// perSecond is the rate now. start is where it begins to be followed: a counter at
// 0 when the run began.
func (r *entryRate) perSecond(now, start look) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.older == (look{}) {
		r.older, r.newer = start, start
	}
	if now.monoNS-r.newer.monoNS >= int64(heldWindow) {
		r.older, r.newer = r.newer, now
	}
	from := r.older
	if now.monoNS <= from.monoNS || now.published < from.published {
		return 0
	}
	return float64(now.published-from.published) / (float64(now.monoNS-from.monoNS) / 1e9)
}

// ringHeld is how many seconds of entries the ring holds at the present rate, of
// engines that are read from a ring and live.
func (e *Engine) ringHeld(published uint64) (float64, bool) {
	g, ok := e.src.(interface{ Geometry() spanring.Geometry })
	if !ok || e.State() != EngineLive {
		return 0, false
	}
	rate := e.sum.rate.perSecond(look{e.NowMonoNS(), published}, look{monoNS: e.Info().CreatedMonoNS})
	if rate <= 0 {
		return maxHeld.Seconds(), true
	}
	return min(float64(g.Geometry().LogEntries)/rate, maxHeld.Seconds()), true
}
