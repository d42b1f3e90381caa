package main

import (
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Poll implements collector.Source.
func (r *replayRun) Poll(dst []spanring.Entry) (int, bool, error) {
	return r.src.PollUntil(dst, r.limitNS)
}

// The rest of collector.Source is the recording's.

func (r *replayRun) Info() (spanring.Info, error)                  { return r.src.Info() }
func (r *replayRun) NowMonoNS() int64                              { return r.src.NowMonoNS() }
func (r *replayRun) WallOffsetNS() int64                           { return r.src.WallOffsetNS() }
func (r *replayRun) Counters() (spanring.Counters, error)          { return r.src.Counters() }
func (r *replayRun) Contexts() ([]spanring.ContextState, error)    { return r.src.Contexts() }
func (r *replayRun) Account() spanring.Account                     { return r.src.Account() }
func (r *replayRun) Busy() ([]spanring.SlotEntry, error)           { return r.src.Busy() }
func (r *replayRun) Alive() (bool, error)                          { return r.src.Alive() }
func (r *replayRun) Close() error                                  { return r.src.Close() }
func (r *replayRun) Name(id spanring.NameID) (spanring.Name, bool) { return r.src.Name(id) }

func (r *replayRun) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	return r.src.Allocs(dst)
}

var (
	_ collector.Source      = (*replayRun)(nil)
	_ collector.AllocSource = (*replayRun)(nil)
)
