package collector

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric"

	"github.com/lanetrace/lanetrace/ledger"
)

func TestSiteLabel(t *testing.T) {
	const empty = "_ZN2at6detail13empty_genericEN3c108ArrayRefIlEEPNS1_9AllocatorENS1_14DispatchKeySetENS1_10ScalarTypeESt8optionalINS1_12MemoryFormatEE"
	for _, tt := range []struct{ site, want, function string }{
		{"libtorch_cpu.so!" + empty + "+0x5cc in kv_cache (build 5a3c00112233aabb)", "libtorch_cpu.so!at::detail::empty_generic+0x5cc in kv_cache", "at::detail::empty_generic"},
		{"libtorch_cpu.so!" + empty + "+0x5cc", "libtorch_cpu.so!at::detail::empty_generic+0x5cc", "at::detail::empty_generic"},
		{"libt.so!_ZN2at3fooIfEEvi+0x1 (build 00)", "libt.so!at::foo+0x1", "at::foo"},
		{"python3.12!_PyEval_EvalFrameDefault+0x10 in a (build of ours) (build 00ff)", "python3.12!_PyEval_EvalFrameDefault+0x10 in a (build of ours)", "_PyEval_EvalFrameDefault"},
		{"libt.so!_Zbroken+0x1 in r", "libt.so!_Zbroken+0x1 in r", "_Zbroken"},
		{"libt.so+0xabc in weights (build 00)", "libt.so+0xabc in weights", ""},
		{"engine/load.go:7", "engine/load.go:7", ""},
		{"a!b.go:7", "a!b.go:7", ""},
		{"", "", ""},
	} {
		got := SiteLabel(tt.site)
		if got != tt.want || SiteLabel(got) != got {
			t.Errorf("%q: %q and then %q, want %q", tt.site, got, SiteLabel(got), tt.want)
		}
		if f := siteFunction(got); f != tt.function {
			t.Errorf("function of %q: %q, want %q", got, f, tt.function)
		}
	}
}

// TestSiteLabels: sites of modules have a label and a function, and metrics the label.
func TestSiteLabels(t *testing.T) {
	var l siteLabels
	for range 2 { // the second time from what is remembered
		sites := []ledger.SiteTotal{
			{Site: "libt.so!_ZN2at3fooIfEEvi+0x1 in kv (build 00)", Bytes: 5},
			{Site: "libt.so!_ZN2at3fooIiEEvi+0x1 in kv (build 00)", Bytes: 4},
			{Site: "libc10.so!malloc+0x2 in kv", Bytes: 3},
			{Site: "load.go:7", Bytes: 2},
		}
		l.set(sites)
		want := []ledger.SiteTotal{
			{Site: sites[0].Site, Label: "libt.so!at::foo+0x1 in kv", Function: "at::foo", Bytes: 5},
			{Site: sites[1].Site, Label: "libt.so!at::foo+0x1 in kv", Function: "at::foo", Bytes: 4},
			{Site: sites[2].Site, Label: "libc10.so!malloc+0x2 in kv", Function: "malloc", Bytes: 3},
			{Site: "load.go:7", Bytes: 2},
		}
		if d := cmp.Diff(want, sites); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		top := siteTop{k: 5, members: make(map[string]*topSite), attrs: func(string) metric.MeasurementOption { return nil }}
		got := map[string]int64{}
		for _, s := range top.pick(sites, 1) {
			got[s.label] = s.bytes
		}
		// Instantiations of one function are one series.
		if d := cmp.Diff(map[string]int64{"libt.so!at::foo+0x1 in kv": 9, "libc10.so!malloc+0x2 in kv": 3, "load.go:7": 2, other: 1}, got); d != "" {
			t.Errorf("series (-want +got):\n%s", d)
		}
	}
}

func FuzzSiteLabel(f *testing.F) {
	f.Add("libt.so!_ZN2at3fooIfEEvi+0x1 in r (build 00)")
	f.Add("!_Z+0x")
	f.Add("+0x (build )")
	f.Fuzz(func(t *testing.T, text string) {
		text = CleanText(text)
		got := SiteLabel(text)
		if !strings.Contains(text, "+0x") && got != text {
			t.Errorf("%q became %q", text, got)
		}
		siteFunction(got)
	})
}
