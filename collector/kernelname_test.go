package collector

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestKernelLabel(t *testing.T) {
	for in, want := range map[string]string{
		// No C++: as it is.
		"gemm_f16_128x64":     "gemm_f16_128x64",
		"softmax (fp16)":      "softmax (fp16)",
		"a < b":               "a < b",
		"":                    "",
		"_Z":                  "_Z",
		"_Znonsense":          "_Znonsense",
		"_ZN2at":              "_ZN2at",
		"triton_poi_fused_01": "triton_poi_fused_01",
		// Mangled.
		"_Z6vecaddPKfS0_Pfi":                                          "vecadd",
		"_Z9transposeIfEvPT_i":                                        "transpose",
		"_ZN7cutlass6KernelI4GemmEEvNT_6ParamsE":                      "cutlass::Kernel",
		"_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvT_PT0_": "at::native::vectorized_elementwise_kernel",
		"_ZN12_GLOBAL__N_16kernelEi":                                  "(anonymous namespace)::kernel",
		// Cut by the ring, so that it cannot be demangled whole.
		"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFun…1a2b3c4d": "at::native::vectorized_elementwise_kernel",
		"_Z9transposeIfEvP…1a2b3c4d":                                              "transpose",
		"_ZN12_GLOBAL__N_16kernelIfE…1a2b3c4d":                                    "(anonymous namespace)::kernel",
		"_ZN2at6native29vectorized_ele…1a2b3c4d":                                  "_ZN2at6native29vectorized_ele…1a2b3c4d",
		// Demangled already.
		"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >(int, std::array<char*, 1ul>)": "at::native::vectorized_elementwise_kernel",
		"void (anonymous namespace)::softmax<float>(float*)":                                                            "(anonymous namespace)::softmax",
		"ns::run":                              "ns::run",
		"int ns::f<(a)1>(int (*)(char))":       "ns::f",
		"ns::f(int)::{lambda(int)#1}":          "ns::f",
		"void ns::S::operator()<int>(int)":     "ns::S::operator()",
		"void ns::broken<int(float":            "void ns::broken<int(float",
		"void ns::less<decltype(a->b)>::go(x)": "ns::less::go",
	} {
		if got := KernelLabel(in); got != want {
			t.Errorf("KernelLabel(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestKernelsAreLabelled: the table's kernels have short labels and their whole
// names; lanes and graphs are what they are called.
func TestKernelsAreLabelled(t *testing.T) {
	src := newMemSource()
	const mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvT_PT0_"
	src.names[1] = spanring.Name{Kind: spanring.NameKernel, Text: mangled}
	src.names[2] = spanring.Name{Kind: spanring.NameLane, Text: mangled}
	src.names[3] = spanring.Name{Kind: spanring.NameKernel, Text: "void f::" + strings.Repeat("é", 200) + "<int>(float)"}
	n := newNames(src)
	if k := n.get(1); k.Text != mangled || k.Label != "at::native::vectorized_elementwise_kernel" {
		t.Errorf("kernel: %q, %q", k.Text, k.Label)
	}
	if l := n.get(2); l.Label != mangled {
		t.Errorf("lane: %q", l.Label)
	}
	if k := n.get(3); len(k.Label) > MaxLabelBytes || !utf8.ValidString(k.Label) || !strings.HasPrefix(k.Label, "f::é") || !strings.Contains(k.Label, "…") {
		t.Errorf("long kernel: %q", k.Label)
	}
}

func FuzzKernelLabel(f *testing.F) {
	for _, s := range []string{
		"", "gemm", "_Z6vecaddPKfS0_Pfi", "_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvT_PT0_", "void f<a>(b)", "a::operator<<(x)",
		"_Z1fI1AIS0_IS1_IS2_EEEEvv", "_ZN12_GLOBAL__N_16kernelIfE…", "void {", "::>", "_Z99999999a", "_Z1\nI",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := CleanText(s)
		l := KernelLabel(text)
		if !utf8.ValidString(l) || strings.IndexFunc(l, unicode.IsControl) >= 0 || (l == "" && text != "") {
			t.Errorf("%q became %q", text, l)
		}
	})
}
