package lanetrace_test

import (
	"context"
	"fmt"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// An engine marks its steps and lanes. Here the ring is on the heap and the GPU a
// scripted one; an engine calls Open and opens a backend, which attaches its
// context to the hub.
func Example() {
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "lane", HarvestEvery: -1})
	if err != nil {
		fmt.Println(err)
		return
	}
	gpu := scripted.New(scripted.Options{RealTime: true})
	dev, err := hub.Attach(gpu)
	if err != nil {
		fmt.Println(err)
		return
	}
	prefill, decode := hub.Lane("prefill"), hub.Lane("decode")
	stream := gpu.NewStream()

	step := hub.StepBegin()
	step.SetAttrs(lanetrace.Attrs{BatchSize: 2, PrefillTokens: 17, DecodeTokens: 1})
	lane := dev.LaneBegin(step, prefill, stream)
	gpu.Work(stream, 40_000) // the prefill's launches
	lane = lane.Next(decode) // one event between the two
	gpu.Work(stream, 20_000)
	lane.End()
	step.End()

	// Nobody waited for the GPU so far. Close does, for what is in flight.
	if err := hub.Close(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	c := hub.Ring().Counters()
	fmt.Println("spans begun", c[spanring.CtrBegun], "landed", c[spanring.CtrLanded], "in flight", c.InFlight())
	// Output: spans begun 3 landed 3 in flight 0
}

func ExampleParseLevel() {
	for _, s := range []string{"lane", "verbose"} {
		l, err := lanetrace.ParseLevel(s)
		fmt.Println(l, err)
	}
	// Output:
	// lane <nil>
	// off unknown level "verbose": want one of off, basic, lane, kernel
}

// A hub that cannot make its ring says why and stays off; the engine runs on.
func ExampleHub_Disabled() {
	hub, err := lanetrace.Open(lanetrace.Config{Dir: "/nonexistent/rings", Logger: quiet})
	fmt.Println(err, hub.Disabled())
	hub.StepBegin().End()
	// Output: <nil> ring directory does not exist: /nonexistent/rings: create it or set LANETRACE_DIR
}
