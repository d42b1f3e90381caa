package spanring

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestCHeader reads the header back: each name once, and some whose values are
// known from elsewhere.
func TestCHeader(t *testing.T) {
	got := map[string]string{}
	sc := bufio.NewScanner(bytes.NewReader(CHeader()))
	for sc.Scan() {
		name, ok := strings.CutPrefix(sc.Text(), "#define ")
		if !ok {
			continue
		}
		name, v, _ := strings.Cut(name, " ")
		if _, again := got[name]; again {
			t.Errorf("%s is defined twice", name)
		}
		got[name] = v
	}
	for _, c := range []struct{ name, want string }{
		{"LT_LAYOUT_VERSION", fmt.Sprint(LayoutVersion)},
		{"LT_OFF_HEAD", fmt.Sprintf("%#x", offHead)},
		{"LT_MAGIC", fmt.Sprintf("UINT64_C(%#x)", magic)},
		{"LT_CTR_FAILED_MISPLACED", fmt.Sprint(uint8(FailMisplaced.Counter()))},
		{"LT_CTR_REDZONE_SCANS", fmt.Sprint(uint8(CtrRedzoneScans))},
		{"LT_KIND_SPAN_FAILED", fmt.Sprint(uint8(KindSpanFailed))},
		{"LT_SPAN_ORDINAL_WORD", "5"},
		{"LT_SPAN_ORDINAL_SHIFT", "32"},
		{"LT_SLOTV_GENERATION_SHIFT", "32"},
		{"LT_CTX_MIG_SHIFT", "1"},
		{"LT_RING_SUFFIX", `".ring"`},
	} {
		if got[c.name] != c.want {
			t.Errorf("%s is %q, want %q", c.name, got[c.name], c.want)
		}
	}
	for r := FailRecord; r < numReasons; r++ {
		if n := "LT_FAIL_" + strings.ToUpper(r.String()); got[n] != fmt.Sprint(uint8(r)) {
			t.Errorf("%s is %q, want %d", n, got[n], r)
		}
	}
}
