package main

import (
	"log/slog"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/cuda"
)

// openCUDA opens a GPU through the CUDA driver. It fails, and says why, where there
// is no driver or the binary was built without cgo.
func openCUDA(ordinal int, hub *lanetrace.Hub, mem backend.MemoryConfig, log *slog.Logger) (backend.GPU, error) {
	gpu, err := cuda.Open(cuda.Config{Hub: hub, Ordinal: ordinal, Memory: mem, Logger: log})
	if err != nil {
		return nil, err
	}
	return gpu, nil
}
