package collector

import (
	"sync"

	"github.com/lanetrace/lanetrace/spanring"
)

// DropReason is why the sidecar dropped a span that it had received.
type DropReason uint8

// Why received spans are dropped.
const (
	// DropLate: the span's step had closed before it came.
	DropLate DropReason = iota
	// DropStepFull: its step already held as many spans as are kept of one.
	DropStepFull
	// DropMalformed: the entry's words cannot be.
	DropMalformed
	// DropQueueFull: the export queue was full; the oldest go first.
	DropQueueFull
	// DropOversize: one span is larger than a request may be.
	DropOversize
	// DropTraceLimit: its step has more spans than go into one trace; lanes and the
	// longest kernels do.
	DropTraceLimit
	// DropRefused: the server refused the request for good, or the file could not
	// be written.
	DropRefused
	// DropShutdown: not sent before the deadline of the shutdown.
	DropShutdown

	numDropReasons
)

// NumDropReasons is the number of reasons to drop.
const NumDropReasons = int(numDropReasons)

var dropText = [NumDropReasons]string{"late", "step_full", "malformed", "queue_full", "oversize", "trace_limit", "refused", "shutdown"}

// String is the value of the metric label reason.
func (r DropReason) String() string {
	if int(r) < NumDropReasons {
		return dropText[r]
	}
	return "unknown"
}

// Ledger is the sidecar's line of one engine's loss account, in spans, a step
// counted as one span of its own (the child span that shows the host's part is
// not counted):
//
//	received = exported + not selected{reason} + rejected + dropped{reason} + pending
//
// A unit comes in through Receive and leaves pending by exactly one of the
// others. All methods may be called from any goroutine; they do not block or
// allocate.
type Ledger struct {
	mu sync.Mutex
	l  SidecarCounts
}

// SidecarCounts is what a Ledger holds.
type SidecarCounts struct {
	Received    uint64
	Exported    uint64
	NotSelected [NumNotSelected]uint64
	Rejected    uint64
	Dropped     [NumDropReasons]uint64
	Pending     uint64
	// EntriesAgain are entries, not units: see ReaderAccount.ReadAgain.
	EntriesAgain uint64
}

// Receive counts n units in; they are pending.
func (l *Ledger) Receive(n int) {
	l.mu.Lock()
	l.l.Received += uint64(n)
	l.l.Pending += uint64(n)
	l.mu.Unlock()
}

// readAgain counts entries that an earlier collector had read and was done with.
func (l *Ledger) readAgain(n int) {
	l.mu.Lock()
	l.l.EntriesAgain += uint64(n)
	l.mu.Unlock()
}

// settle takes n units out of pending into *to. More than are pending cannot
// leave: the account would otherwise stay wrong for good.
func (l *Ledger) settle(to *uint64, n int) {
	l.mu.Lock()
	k := min(uint64(max(n, 0)), l.l.Pending)
	l.l.Pending -= k
	*to += k
	l.mu.Unlock()
}

// Export counts n units that a server or file took.
func (l *Ledger) Export(n int) { l.settle(&l.l.Exported, n) }

// Reject counts n units that a server rejected out of a request it took.
func (l *Ledger) Reject(n int) { l.settle(&l.l.Rejected, n) }

// Drop counts n units dropped.
func (l *Ledger) Drop(r DropReason, n int) { l.settle(&l.l.Dropped[r], n) }

// NotSelect counts n units of a step that no export was wanted of.
func (l *Ledger) NotSelect(r NotSelected, n int) { l.settle(&l.l.NotSelected[r], n) }

// Counts copies the ledger, consistent in itself.
func (l *Ledger) Counts() SidecarCounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.l
}

// Account is the whole loss account of one engine. Its JSON is what
// /debug/account serves; the keys are the words of the three equations.
type Account struct {
	Engine string `json:"engine"`
	RunID  string `json:"run_id"`
	State  string `json:"state"`

	// Producer: begun = landed + failed{reason} + dropped + in flight, in spans.
	Producer ProducerAccount `json:"producer"`
	// Reader: published = received + lost + missed before attach (+ pending while
	// something moves), in sequence numbers.
	Reader ReaderAccount `json:"reader"`
	// Sidecar: received = exported + not selected{reason} + rejected +
	// dropped{reason} + pending, in spans.
	Sidecar SidecarAccount `json:"sidecar"`
}

// ProducerAccount is the first line of the account.
type ProducerAccount struct {
	Begun    uint64            `json:"begun"`
	Landed   uint64            `json:"landed"`
	Failed   map[string]uint64 `json:"failed"`
	Dropped  uint64            `json:"dropped"`
	InFlight int64             `json:"in_flight"`
}

// ReaderAccount is the second line of the account.
type ReaderAccount struct {
	Published          uint64            `json:"published"`
	Received           uint64            `json:"received"`
	Lost               uint64            `json:"lost"`
	LostBy             map[string]uint64 `json:"lost_by_reason"`
	MissedBeforeAttach uint64            `json:"missed_before_attach"`
	Pending            uint64            `json:"pending"`
	// ReadAgain is how many of those received an earlier collector had read and was done
	// with: they reach neither steps nor taps again.
	ReadAgain uint64 `json:"read_again"`
}

// SidecarAccount is the third line of the account.
type SidecarAccount struct {
	Received    uint64            `json:"received"`
	Exported    uint64            `json:"exported"`
	NotSelected map[string]uint64 `json:"not_selected"`
	Rejected    uint64            `json:"rejected"`
	Dropped     map[string]uint64 `json:"dropped"`
	Pending     uint64            `json:"pending"`
}

// NewAccount sets the three lines beside each other. Every reason is there, also
// at 0.
func NewAccount(p *spanring.Counters, r spanring.Account, s SidecarCounts) Account {
	a := Account{
		Producer: ProducerAccount{
			Begun: p[spanring.CtrBegun], Landed: p[spanring.CtrLanded], Dropped: p[spanring.CtrDropped],
			Failed: make(map[string]uint64), InFlight: p.InFlight(),
		},
		Reader: ReaderAccount{
			Published: r.Published, Received: r.Received, Lost: r.Lost,
			LostBy:             map[string]uint64{lostOverwritten: r.Overwritten, lostHole: r.Holes, lostUnreadable: r.Unreadable},
			MissedBeforeAttach: r.Missed, Pending: r.Pending, ReadAgain: s.EntriesAgain,
		},
		Sidecar: SidecarAccount{
			Received: s.Received, Exported: s.Exported, NotSelected: make(map[string]uint64),
			Rejected: s.Rejected, Dropped: make(map[string]uint64), Pending: s.Pending,
		},
	}
	for f := spanring.FailNone + 1; int(f) < spanring.NumReasons; f++ {
		a.Producer.Failed[f.String()] = p[f.Counter()]
	}
	for i, n := range s.NotSelected {
		a.Sidecar.NotSelected[NotSelected(i).String()] = n
	}
	for i, n := range s.Dropped {
		a.Sidecar.Dropped[DropReason(i).String()] = n
	}
	return a
}

// Values of the label reason of lost entries.
const (
	lostOverwritten = "overwritten"
	lostHole        = "hole"
	lostUnreadable  = "unreadable"
)

var lostReasons = []string{lostOverwritten, lostHole, lostUnreadable}

// Unbalanced names the lines of the account that do not add up, none when all
// do. Only of an engine in which nothing moves does it say something.
func (a *Account) Unbalanced() []string {
	var out []string
	sum := func(m map[string]uint64) (n uint64) {
		for _, v := range m {
			n += v
		}
		return n
	}
	p, r, s := &a.Producer, &a.Reader, &a.Sidecar
	if int64(p.Begun) != int64(p.Landed+sum(p.Failed)+p.Dropped)+p.InFlight || p.InFlight < 0 {
		out = append(out, "producer")
	}
	if r.Published != r.Received+r.Lost+r.MissedBeforeAttach+r.Pending || r.Lost != sum(r.LostBy) {
		out = append(out, "reader")
	}
	if s.Received != s.Exported+sum(s.NotSelected)+s.Rejected+sum(s.Dropped)+s.Pending {
		out = append(out, "sidecar")
	}
	return out
}
