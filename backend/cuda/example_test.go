package cuda_test

import (
	"context"
	"errors"
	"log"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/cuda"
)

// A step of an engine: one lane, whose launches are timed one by one when the step is
// armed.
func Example() {
	hub, err := lanetrace.Open(lanetrace.Config{Service: "decode"})
	if err != nil {
		log.Fatal(err)
	}
	gpu, err := cuda.Open(cuda.Config{Hub: hub})
	if err != nil {
		log.Fatal(err) // no driver, no device, or a setting that cannot be
	}
	defer func() {
		if err := errors.Join(gpu.Close(), hub.Close(context.Background())); err != nil {
			log.Print(err)
		}
	}()
	image := []byte(".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n")
	if err := gpu.LoadModule("kernels", image); err != nil {
		log.Fatal(err)
	}
	kernel, err := gpu.Kernel("kernels", "nothing")
	if err != nil {
		log.Fatal(err)
	}
	stream, decode := gpu.DefaultStream(), hub.Lane("decode")
	launch := backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: stream}

	step := hub.StepBegin()
	step.SetAttrs(lanetrace.Attrs{BatchSize: 16, DecodeTokens: 16})
	lane := gpu.Telemetry().LaneBegin(step, decode, stream)
	if err := gpu.Launch(kernel, &launch); err != nil {
		log.Print(err)
	}
	lane.End()
	step.End()
}
