package main

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestReplayEndsWithItsOutput: a replay at the recording's own pace does not go on for
// an output that takes nothing any more.
func TestReplayEndsWithItsOutput(t *testing.T) {
	a := &app{stdout: io.Discard}
	for _, f := range []format{formatText, formatChrome, formatOTLPJSON} {
		s, err := a.fileSink(f, "/dev/full")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.wait(t.Context()); err != nil {
			t.Errorf("%s: before anything was written: %v", f, err)
		}
		p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 500 * time.Millisecond}), collector.ProcessorOptions{
			Exporter: s.exporter, Selector: collector.SelectAll{},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Drain(), p.Close()); err != nil {
			t.Fatal(err)
		}
		if err := s.wait(t.Context()); !errors.Is(err, errWriteFailed) {
			t.Errorf("%s: it goes on: %v", f, err)
		}
		if s.close() == nil {
			t.Errorf("%s: no error says why", f)
		}
	}
}

func TestLeftOutText(t *testing.T) {
	var said bytes.Buffer
	a := &app{log: newLogger(&said)}
	new(leftOut).say(a)
	(&leftOut{steps: 1, requests: 2000}).say(a)
	want := "lanetrace: left out: 1 step, still under way where the recordings end\n" +
		"lanetrace: left out: 2,000 requests, which began before what was played\n"
	if said.String() != want {
		t.Errorf("%q, want %q", said.String(), want)
	}
}
