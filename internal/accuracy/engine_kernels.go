package main

import (
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

// shapes of grids: one thread; a block on each of an H200's multiprocessors; and
// four waves of blocks that fill them.
var shapes = []struct {
	name  string
	g     grid
	waves uint64
}{
	{"1 block", grid{1, 1}, 1},
	{"132 blocks", grid{132, 256}, 1},
	{"4 waves", grid{132 * 2 * 4, 1024}, 4},
}

// targetsNS are lengths of kernels; the first is one that does not spin at all.
var targetsNS = []int64{fixedNS, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000, 10_000_000}

// samplesOf is how many pairs of that length a row has, at scale 1.
func samplesOf(targetNS int64) int {
	switch {
	case targetNS >= 10_000_000:
		return 40
	case targetNS >= 1_000_000:
		return 100
	}
	return 400
}

// batchOf is how many launches are enqueued behind one plug at most.
const batchOf = 100

// kernels measures launches of every length and shape, queued and drained, and
// short ones with neither plug nor wait.
func (e *engine) kernels() error {
	for _, sh := range shapes {
		for _, ns := range targetsNS {
			cycles := cyclesFor(ns) / sh.waves
			r := row{Part: "kernels", Shape: sh.name, TargetNS: ns, Clock: "warm"}
			n := e.count(samplesOf(ns))
			r.Mode = "queued"
			for left := n; left > 0; left -= batchOf {
				if err := e.queued(r, sh.g, cycles, min(left, batchOf)); err != nil {
					return err
				}
			}
			r.Mode = "drained"
			if err := e.drained(r, sh.g, cycles, n); err != nil {
				return err
			}
			if ns > 20_000 {
				continue
			}
			r.Mode = "edge"
			for left := n; left > 0; left -= batchOf {
				j := e.job(r)
				j.begin()
				for range min(left, batchOf) {
					if err := j.timed(sh.g, cycles); err != nil {
						return err
					}
				}
				if err := j.end(false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// queued times n launches behind a plug.
func (e *engine) queued(r row, g grid, cycles uint64, n int) error {
	j := e.job(r)
	if err := j.plug(plugFor(n)); err != nil {
		return err
	}
	j.begin()
	for range n {
		if err := j.timed(g, cycles); err != nil {
			return err
		}
	}
	return j.end(true)
}

// drained times n launches, each when the stream has run dry.
func (e *engine) drained(r row, g grid, cycles uint64, n int) error {
	j := e.job(r)
	j.begin()
	for range n {
		if err := j.timed(g, cycles); err != nil {
			return err
		}
		if err := e.gpu.Synchronize(e.s); err != nil {
			return err
		}
	}
	return j.end(false)
}

// idleFor is how long a GPU idles before a cold sample.
const idleFor = 3 * time.Second

// cold measures the first launches after idling for various times: one alone, and
// then a few behind a short plug. It takes four seconds for each of the flag's number.
func (e *engine) cold() error {
	for _, idle := range []struct {
		d time.Duration
		n int // of each round
	}{{10 * time.Millisecond, 10}, {100 * time.Millisecond, 3}, {time.Second, 1}, {idleFor, 1}} {
		for range e.o.cold * idle.n {
			r := row{Part: "kernels", Shape: "1 block", TargetNS: 10_000, Clock: "idle " + idle.d.String(), Mode: "drained"}
			time.Sleep(idle.d)
			if err := e.drained(r, grid{1, 1}, cyclesFor(10_000), 1); err != nil {
				return err
			}
			if idle.d < time.Second {
				continue
			}
			r.Mode = "queued"
			if err := e.queued(r, grid{1, 1}, cyclesFor(10_000), 20); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow measures whether what is enqueued behind a pair changes what it measures.
func (e *engine) follow() error {
	if err := e.ahead(); err != nil {
		return err
	}
	if err := e.beside(); err != nil {
		return err
	}
	buf, err := e.gpu.Alloc(1 << 20)
	if err != nil {
		return err
	}
	const n = 60
	one := grid{1, 1}
	cycles := cyclesFor(5_000)
	behind := []struct {
		name string
		f    func(j *job) error
	}{
		{"a pair", func(*job) error { return nil }},
		{"a plain kernel", func(j *job) error { return j.plain(one, cycles) }},
		{"four plain kernels", func(j *job) error {
			for range 4 {
				if err := j.plain(one, cycles); err != nil {
					return err
				}
			}
			return nil
		}},
		{"a memset", func(j *job) error {
			j.b.Ops = append(j.b.Ops, op{Kind: opMemset, Bytes: 4096})
			return j.gpu.MemsetAsync(buf, 1, 4096, j.s)
		}},
		{"a copy on the device", func(j *job) error {
			j.b.Ops = append(j.b.Ops, op{Kind: opCopy, Bytes: 4096})
			return j.gpu.CopyDtoDAsync(buf+1<<19, buf, 4096, j.s)
		}},
		{"an event without time", func(j *job) error { return j.gpu.RecordEvent(j.passed, j.s) }},
	}
	for range e.count(4) {
		for _, b := range behind {
			j := e.job(row{Part: "follow", Shape: "1 block", TargetNS: 5_000, Mode: "queued", Clock: "warm", Follow: b.name})
			if err := j.plug(plugFor(3 * n)); err != nil {
				return err
			}
			j.begin()
			for range n {
				if err := j.timed(one, cycles); err != nil {
					return err
				}
				if err := b.f(j); err != nil {
					return err
				}
			}
			if err := j.end(true); err != nil {
				return err
			}
		}
	}
	return e.gpu.Free(buf)
}

// ahead measures the pairs of a step that has ended on the host before they run,
// with nothing behind them and with another step's kernels, which are not timed.
func (e *engine) ahead() error {
	for range e.count(4) {
		for _, more := range []int{0, 60} {
			r := row{Part: "follow", Shape: "1 block", TargetNS: 5_000, Mode: "queued", Clock: "warm", Follow: "a pair; the step ends ahead"}
			if more > 0 {
				r.Follow = "a pair; the step ends ahead, and an untimed one follows"
			}
			j := e.job(r)
			j.ahead = true
			if err := j.plug(plugFor(120)); err != nil {
				return err
			}
			j.begin()
			for range 60 {
				if err := j.timed(grid{1, 1}, cyclesFor(5_000)); err != nil {
					return err
				}
			}
			for range more {
				if err := j.plain(grid{1, 1}, cyclesFor(5_000)); err != nil {
					return err
				}
			}
			if err := j.end(true); err != nil {
				return err
			}
		}
	}
	return nil
}

// beside measures six pairs, few enough to be shallow, while kernels are queued on
// another stream.
func (e *engine) beside() error {
	s, err := e.gpu.CreateStream()
	if err != nil {
		return err
	}
	for range e.count(10) {
		j := e.job(row{Part: "follow", Shape: "1 block", TargetNS: 5_000, Mode: "queued", Clock: "warm", Follow: "five pairs at most; 40 kernels on another stream"})
		other := func(ns int64) error {
			return e.gpu.Launch(e.k[otherName], &backend.Launch{
				Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: s, Args: []backend.Arg{backend.U64(cyclesFor(ns))},
			})
		}
		if err := other(plugFor(60)); err != nil {
			return err
		}
		if err := j.plug(plugFor(60)); err != nil {
			return err
		}
		for range 40 {
			if err := other(20_000); err != nil {
				return err
			}
		}
		j.begin()
		for range 6 {
			if err := j.timed(grid{1, 1}, cyclesFor(5_000)); err != nil {
				return err
			}
		}
		if err := j.end(true); err != nil {
			return err
		}
		if err := e.gpu.Synchronize(s); err != nil {
			return err
		}
	}
	return e.gpu.DestroyStream(s)
}

// constant measures one length on several streams of this process, for the
// constant's own figures from process to process.
func (e *engine) constant() error {
	defer func(s backend.Stream) { e.s, e.num = s, 0 }(e.s)
	for n := range 3 {
		if n > 0 {
			s, err := e.gpu.CreateStream()
			if err != nil {
				return err
			}
			e.s, e.num = s, n
			defer func() { _ = e.gpu.DestroyStream(s) }()
		}
		for range 2 {
			r := row{Part: "constant", Shape: "1 block", TargetNS: 5_000, Mode: "queued", Clock: "warm"}
			if err := e.queued(r, grid{1, 1}, cyclesFor(5_000), batchOf); err != nil {
				return err
			}
		}
	}
	return nil
}
