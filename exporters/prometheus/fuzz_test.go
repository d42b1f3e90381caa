package prometheus

import (
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// FuzzNames: whatever an engine calls itself, its lanes and its kernels, the text
// that is served parses, and protobuf has the same labels.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"decode", "", "a\"b\\c\nd", "\xff\xfe", "{x=\"y\"} 1\n# EOF", "é\u2028\x00", "_ZN2at6native4gemmILi4EfEEvT_PT0_", "other", "__name__", "# HELP"} {
		f.Add(s, s, s)
		f.Add("svc", s, "gemm")
	}
	f.Fuzz(func(t *testing.T, service, lane, kernel string) {
		ins, h := serveWith(t, collector.InstrumentOptions{Histograms: collector.HistogramsExponential}, nil)
		w, p := engine(t, ins, collector.ProcessorOptions{}, spanring.Info{Service: service, GPUName: lane, Producer: kernel, Rank: spanring.NoRank})
		step(w, 1, true, w.Name(spanring.NameLane, lane), w.Name(spanring.NameKernel, kernel), 1000)
		poll(t, p)
		text, proto := scrape(t, h), scrapeProto(t, h)
		for _, name := range []string{"lanetrace_gpu_lane_armed_duration_seconds", "lanetrace_gpu_kernel_armed_duration_seconds", "lanetrace_engine_info"} {
			want := map[string]bool{}
			for _, m := range proto[name].GetMetric() {
				want[labelText(m)] = true
			}
			got := map[string]bool{}
			for _, m := range text[name].GetMetric() {
				got[labelText(m)] = true
			}
			if len(got) == 0 || len(got) != len(want) {
				t.Fatalf("%s: %v in text, %v in protobuf", name, got, want)
			}
			for l := range got {
				if !want[l] {
					t.Errorf("%s%s is in text alone", name, l)
				}
			}
		}
	})
}
