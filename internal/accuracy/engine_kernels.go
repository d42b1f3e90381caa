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

// cold measures the first launches after idling: one alone, and then a few behind a
// short plug.
func (e *engine) cold() error {
	for i := range e.o.cold {
		ns := []int64{2_000, 10_000, 100_000}[i%3]
		time.Sleep(idleFor)
		r := row{Part: "kernels", Shape: "1 block", TargetNS: ns, Clock: "cold", Mode: "drained"}
		if err := e.drained(r, grid{1, 1}, cyclesFor(ns), 1); err != nil {
			return err
		}
		r.Mode = "queued"
		if err := e.queued(r, grid{1, 1}, cyclesFor(ns), 20); err != nil {
			return err
		}
	}
	return nil
}

// follow measures whether what is enqueued behind a pair changes what it measures.
func (e *engine) follow() error {
	buf, err := e.bytes(1 << 20)
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
		{"an event without time", func(j *job) error { return j.gpu.RecordEvent(j.ev2(), j.s) }},
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

// ev2 is an event of the job's own that nobody asks for.
func (e *engine) ev2() backend.Event {
	if e.spare == 0 {
		e.spare, _ = e.gpu.CreateEvent()
	}
	return e.spare
}
