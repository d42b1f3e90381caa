package backend

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgsAreLittleEndianValues(t *testing.T) {
	tests := []struct {
		name string
		arg  Arg
		want []byte
	}{
		{"Ptr", Ptr(0x7f00_1234_5678), []byte{0x78, 0x56, 0x34, 0x12, 0x00, 0x7f, 0, 0}},
		{"U8", U8(0xfe), []byte{0xfe}},
		{"U16", U16(0x1234), []byte{0x34, 0x12}},
		{"U32", U32(0x89abcdef), []byte{0xef, 0xcd, 0xab, 0x89}},
		{"I32 negative", I32(-2), []byte{0xfe, 0xff, 0xff, 0xff}},
		{"U64", U64(1 << 63), []byte{0, 0, 0, 0, 0, 0, 0, 0x80}},
		{"I64 negative", I64(-1), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"F32", F32(1.5), []byte{0, 0, 0xc0, 0x3f}},
		{"F64", F64(-2), []byte{0, 0, 0, 0, 0, 0, 0, 0xc0}},
		{"F32 NaN keeps its bits", F32(math.Float32frombits(0x7fc00001)), []byte{1, 0, 0xc0, 0x7f}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := binary.LittleEndian.AppendUint64(nil, tt.arg.Bits)[:tt.arg.Size]
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("bytes (-want +got):\n%s", d)
			}
			// What lies beyond the size is 0: a wider read of a narrow value is not
			// garbage.
			if tt.arg.Size < 8 && tt.arg.Bits>>(8*tt.arg.Size) != 0 {
				t.Errorf("bits beyond the size: %#x", tt.arg.Bits)
			}
		})
	}
}
