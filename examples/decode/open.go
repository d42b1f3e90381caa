package main

import (
	"embed"
	"errors"
	"fmt"
	"log/slog"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/sim"
)

// kernelFiles holds the kernels' source and the PTX made from it.
//
//go:embed kernels
var kernelFiles embed.FS

// device is an opened GPU and the kernels to load on it.
type device struct {
	gpu     backend.GPU
	backend string // cuda or sim
	image   []byte
	model   string // the model when none is asked for
}

// openDevice opens the backend of that name; "" is cuda, or the sim where there is
// no CUDA, which is said.
func openDevice(name string, ordinal int, hub *lanetrace.Hub, mem backend.MemoryConfig, log *slog.Logger) (device, error) {
	if name == "sim" {
		return openSim(ordinal, hub, mem, log)
	}
	gpu, err := openCUDA(ordinal, hub, mem, log)
	if err != nil {
		if name == "cuda" {
			return device{}, err
		}
		log.Info("running on the simulated GPU", "reason", err.Error())
		return openSim(ordinal, hub, mem, log)
	}
	image, err := kernelFiles.ReadFile("kernels/decode.ptx")
	if err != nil {
		err = fmt.Errorf("read kernels: %w; kernels/decode.cu says how they are made", err)
		return device{}, errors.Join(err, gpu.Close())
	}
	return device{gpu: gpu, backend: "cuda", image: image, model: "small"}, nil
}

func openSim(ordinal int, hub *lanetrace.Hub, mem backend.MemoryConfig, log *slog.Logger) (device, error) {
	gpu, err := sim.Open(sim.Config{
		Hub: hub, Logger: log, Ordinal: ordinal, Memory: mem, Modules: map[string]sim.Module{moduleName: simKernels()},
	})
	if err != nil {
		return device{}, fmt.Errorf("open the simulated GPU: %w", err)
	}
	return device{gpu: gpu, backend: "sim", model: "tiny"}, nil
}
