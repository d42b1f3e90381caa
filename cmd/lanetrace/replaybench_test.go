package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// BenchmarkReplay plays three minutes that were kept on disk, as text to nowhere:
// reading, putting steps together and selecting, without a receiver.
func BenchmarkReplay(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "keep")
	s, err := recording.NewStore(recording.StoreOptions{Dir: dir, QueueBytes: 1 << 30, FlushEvery: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	src := synth.New(synth.Options{Duration: 3 * time.Minute, KernelEvery: 16, Memory: true})
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Taps: []collector.Tap{s}})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		b.Fatal(err)
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var out, errs output
		if code := run(b.Context(), []string{"replay", dir, "--select", "--format", "text", "--out", "/dev/null"}, &out, &errs); code != 0 {
			b.Fatal(errs.String())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(s.Stats().Written)/float64(b.N), "ns/entry")
}
