package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
)

// hang DIR NAME has an engine of that name in DIR for the rest of the script, which
// has a lane on a stream that stands still.
func hang(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: hang DIR NAME")
	}
	ts.Check(os.Mkdir(ts.MkAbs(args[0]), 0o700))
	hub, err := lanetrace.Open(lanetrace.Config{
		Dir: ts.MkAbs(args[0]), Service: args[1], RingBytes: 256 << 10, HarvestEvery: -1, NoCalibration: true,
		Logger: slog.New(slog.DiscardHandler),
	})
	ts.Check(err)
	ts.Defer(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = hub.Close(ctx) // the GPU stands still, which Close says
	})
	drv := scripted.New(scripted.Options{RealTime: true})
	dev, err := hub.Attach(drv)
	ts.Check(err)
	drv.StallAll()
	stream := drv.NewStream()
	drv.Stall(stream)
	step := hub.StepBegin()
	dev.LaneBegin(step, hub.Lane("decode"), stream).End()
}

// probed takes what doctor sends.
type probed struct {
	coltracepb.UnimplementedTraceServiceServer
}

func (probed) Export(context.Context, *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	return new(coltracepb.ExportTraceServiceResponse), nil
}

type probedMetrics struct {
	colmetricpb.UnimplementedMetricsServiceServer
}

func (probedMetrics) Export(context.Context, *colmetricpb.ExportMetricsServiceRequest) (*colmetricpb.ExportMetricsServiceResponse, error) {
	return new(colmetricpb.ExportMetricsServiceResponse), nil
}

// receiver NAME SIGNAL... puts the URL of an OTLP receiver that takes these signals
// alone, traces and metrics, into the variable NAME.
func otlpReceiver(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: receiver NAME traces|metrics...")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	s := grpc.NewServer()
	for _, signal := range args[1:] {
		switch signal {
		case "traces":
			coltracepb.RegisterTraceServiceServer(s, probed{})
		case "metrics":
			colmetricpb.RegisterMetricsServiceServer(s, probedMetrics{})
		default:
			ts.Fatalf("receiver of %s", strings.Join(args[1:], " "))
		}
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	ts.Defer(func() {
		s.Stop()
		<-done
	})
	ts.Setenv(args[0], "http://"+l.Addr().String())
}
