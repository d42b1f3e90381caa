package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"

	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// receiver is an OTLP server that can go away and come back at its address.
type receiver struct {
	coltracepb.UnimplementedTraceServiceServer
	spans atomic.Uint64 // taken, but for the host's parts of steps, which the account does not count

	addr string
	g    *grpc.Server // nil while away
}

// metricReceiver takes metrics and forgets them.
type metricReceiver struct {
	colmetricpb.UnimplementedMetricsServiceServer
}

func (metricReceiver) Export(context.Context, *colmetricpb.ExportMetricsServiceRequest) (*colmetricpb.ExportMetricsServiceResponse, error) {
	return &colmetricpb.ExportMetricsServiceResponse{}, nil
}

// Export implements the trace service.
func (r *receiver) Export(_ context.Context, req *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	n := uint64(0)
	for _, rs := range req.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				if s.Name != "host" {
					n++
				}
			}
		}
	}
	r.spans.Add(n)
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// start serves, the first time at a free port, then at the same one.
func (r *receiver) start(ctx context.Context) error {
	var l net.Listener
	var err error
	for try, at := 0, r.addr; ; try++ {
		if r.addr == "" {
			// Nobody is given these who asks for any: it is free when it comes back.
			at = fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		}
		if l, err = new(net.ListenConfig).Listen(ctx, "tcp", at); err == nil {
			break
		}
		if r.addr != "" || try == 100 {
			return fmt.Errorf("start the OTLP receiver: %w", err)
		}
	}
	r.addr = l.Addr().String()
	r.g = grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(r.g, r)
	colmetricpb.RegisterMetricsServiceServer(r.g, metricReceiver{})
	g := r.g
	go func() { _ = g.Serve(l) }() // until stop
	return nil
}

// stop ends it with all its connections.
func (r *receiver) stop() {
	if r.g != nil {
		r.g.Stop()
		r.g = nil
	}
}
