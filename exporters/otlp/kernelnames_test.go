package otlp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// kernelNames are 10,000 names that are hard to keep valid: quotes, backslashes,
// line ends, bytes that are no UTF-8, and C++ ones.
func kernelNames() (names []string) {
	for i := range 10_000 {
		switch i % 3 {
		case 0:
			names = append(names, fmt.Sprintf("k%d \"q\" \\ \n\r\t\x00 </script> \u2028 \xff\xfe %s", i, strings.Repeat("é", i%500)))
		case 1:
			k := fmt.Sprintf("kernel%d", i)
			names = append(names, fmt.Sprintf("_ZN2at6native%d%sILi4EfEEvT_PT0_", len(k), k))
		default:
			names = append(names, fmt.Sprintf("void ns::kernel%d<%s>(float*)", i, strings.Repeat("ns::a<int>, ", i%80)))
		}
	}
	return names
}

// pushKernels pushes steps of 100 kernels, one of each name.
func pushKernels(src *source, names []string) {
	for i, n := range names {
		src.names[spanring.NameID(100+i)] = spanring.Name{Kind: spanring.NameKernel, Text: n}
	}
	for from := 0; from < len(names); from += 100 {
		n, at := uint64(from/100+1), int64(from)*1000
		src.push(&spanring.StepBegin{Step: n, MonoNS: at, Level: 3, Armed: true})
		for i := range 100 {
			src.push(&spanring.Span{
				Kind: spanring.KindKernel, Step: n, Ordinal: uint32(i + 1), Name: spanring.NameID(100 + from + i),
				StartMonoNS: at + int64(i)*1000, RawNS: 900, Armed: true,
			})
		}
		src.push(&spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + 10, Opened: 100, Armed: true})
	}
}

// wantKernels are the whole names and what the spans are called.
func wantKernels(names []string) map[string]string {
	want := make(map[string]string)
	for _, n := range names {
		n = collector.CleanText(n)
		want[n] = collector.CutText(collector.KernelLabel(n), collector.MaxLabelBytes)
	}
	return want
}

// TestKernelNamesAsProtobuf: a receiver that parses strictly gets every whole name,
// and a short one for the span.
func TestKernelNamesAsProtobuf(t *testing.T) {
	s := newServer(t)
	x := newExporter(t, Options{Endpoint: s.addr})
	src, p := newEngine(t, x, testInfo)
	names := kernelNames()
	pushKernels(src, names)
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, sp := range s.spans()[testRun.String()] {
		if k := kernelOf(sp); k != "" {
			got[k] = sp.Name
		}
	}
	want := wantKernels(names)
	if d := cmp.Diff(want, got); d != "" || len(got) != len(names) {
		t.Errorf("%d kernels (-want +got):\n%.3000s", len(got), d)
	}
	if want[kernelNames()[1]] != "at::native::kernel1" || want[collector.CleanText(names[2])] != "ns::kernel2" {
		t.Errorf("labels %q, %q", want[names[1]], want[collector.CleanText(names[2])])
	}
}

func kernelOf(s *tracepb.Span) string {
	for _, a := range s.Attributes {
		if a.Key == "lanetrace.kernel" {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// TestKernelNamesAsJSON: the same for a reader of OTLP/JSON.
func TestKernelNamesAsJSON(t *testing.T) {
	var out bytes.Buffer
	j := NewJSONWriter(&out, JSONOptions{HostName: "-"})
	src, p := newEngine(t, j, testInfo)
	names := kernelNames()
	pushKernels(src, names)
	poll(t, p)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if !utf8.Valid(out.Bytes()) {
		t.Error("the lines are not UTF-8")
	}
	got := make(map[string]string)
	sc := bufio.NewScanner(&out)
	sc.Buffer(nil, 4<<20)
	for sc.Scan() {
		var l struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						Name       string
						Attributes []struct {
							Key   string
							Value struct{ StringValue string }
						}
					}
				}
			}
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		for _, sp := range l.ResourceSpans[0].ScopeSpans[0].Spans {
			for _, a := range sp.Attributes {
				if a.Key == "lanetrace.kernel" {
					got[a.Value.StringValue] = sp.Name
				}
			}
		}
	}
	if d := cmp.Diff(wantKernels(names), got); d != "" || sc.Err() != nil {
		t.Errorf("%d kernels, %v (-want +got):\n%.3000s", len(got), sc.Err(), d)
	}
}
