package otlp

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestHostileNamesInMetrics: 10,000 names that are hard to keep valid, of kernels, an
// engine, a lane and a device, make metrics that protobuf takes; all their kernels are
// counted, K of them by name.
func TestHostileNamesInMetrics(t *testing.T) {
	srv, addr := newMetricServer(t)
	s := newSidecar(t, srv, addr, "h\xff\n", collector.InstrumentOptions{TopKernels: 7})
	info := testInfo
	info.Service, info.GPUName, info.Executable = "a\"b\\c\nd\xff{}", "H\n200\xfe", "e\x00x"
	src, p := s.engine(info, "")
	src.names[2] = spanring.Name{Kind: spanring.NameLane, Text: "la\"ne\\\n\t\xff"}
	src.push(simpleStep(1_000_000, 1)...)
	pushKernels(src, kernelNames())
	poll(t, p)
	rm := s.push()[info.RunID.String()]
	if rm == nil {
		t.Fatal("nothing arrived")
	}
	// gRPC has decoded it, and so strings are valid; encoded again it is the same.
	if _, err := proto.Marshal(rm); err != nil {
		t.Fatal(err)
	}
	h := metricOf(t, rm, "lanetrace.gpu.kernel.armed.duration").GetHistogram().DataPoints
	sum, names := uint64(0), []string{}
	for _, d := range h {
		sum += d.Count
		k := attr(d.Attributes, "kernel").GetStringValue()
		names = append(names, k)
		if !utf8.ValidString(k) || len(k) > collector.MaxLabelBytes || strings.ContainsAny(k, "\n\x00\r\t") {
			t.Errorf("kernel %q", k)
		}
	}
	if len(h) != 8 || sum != 10_000 || !slices.Contains(names, "other") {
		t.Errorf("%d series with %d kernels: %q", len(h), sum, names)
	}
	lane := metricOf(t, rm, "lanetrace.gpu.lane.duration").GetHistogram().DataPoints
	if got := attr(lane[0].Attributes, "lane").GetStringValue(); got != "la\"ne\\  \ufffd" {
		t.Errorf("lane %q", got)
	}
}
