package main

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestRecordForgetsEngines: of engines that have ended a recording keeps nothing in
// memory but who they were.
func TestRecordForgetsEngines(t *testing.T) {
	w, err := recording.NewWriter(io.Discard, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	tap := &pickTap{w: w, match: "nobody", picked: make(map[*collector.Engine]bool)}
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 20 * time.Millisecond}), collector.ProcessorOptions{Taps: []collector.Tap{tap}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if n := len(tap.picked); n != 0 || len(tap.seen()) != 1 {
		t.Errorf("%d engines are kept, %d were seen", n, len(tap.seen()))
	}
}
