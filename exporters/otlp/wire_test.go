package otlp

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// TestMessageLengths: the length of an embedded message is right whatever number
// of bytes it takes, and what stands before the message stays.
func TestMessageLengths(t *testing.T) {
	for _, n := range []int{0, 1, 0x7f, 0x80, 0x81, 0x3fff, 0x4000, 0x1fffff, 0x200000} {
		content := []byte(strings.Repeat("x", n))
		for i := range content {
			content[i] = byte(i * 7)
		}
		b, at := openMessage([]byte("before"), tagSSSpans)
		b = closeMessage(append(b, content...), at)
		b = append(b, "after"...)
		if !bytes.HasPrefix(b, []byte("before")) {
			t.Fatalf("%d: what stood before is gone", n)
		}
		num, typ, k := protowire.ConsumeTag(b[6:])
		got, l := protowire.ConsumeBytes(b[6+k:])
		if num != 2 || typ != protowire.BytesType || l < 0 || !bytes.Equal(got, content) || string(b[6+k+l:]) != "after" {
			t.Errorf("%d bytes: field %d type %d, %d bytes read", n, num, typ, len(got))
		}
	}
}
