package otlp

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// Wire types.
const (
	wireVarint  = byte(protowire.VarintType)
	wireFixed64 = byte(protowire.Fixed64Type)
	wireBytes   = byte(protowire.BytesType)
	wireFixed32 = byte(protowire.Fixed32Type)
)

// Field numbers of opentelemetry.proto.trace.v1, .common.v1 and .resource.v1, as
// tags ready to write (number and wire type).
const (
	tagRSResource   = 1<<3 | wireBytes
	tagRSScopeSpans = 2<<3 | wireBytes

	tagSSScope = 1<<3 | wireBytes
	tagSSSpans = 2<<3 | wireBytes

	tagSpanTraceID    = 1<<3 | wireBytes
	tagSpanID         = 2<<3 | wireBytes
	tagSpanParent     = 4<<3 | wireBytes
	tagSpanName       = 5<<3 | wireBytes
	tagSpanKind       = 6<<3 | wireVarint
	tagSpanStart      = 7<<3 | wireFixed64
	tagSpanEnd        = 8<<3 | wireFixed64
	tagSpanAttribute  = 9<<3 | wireBytes
	tagSpanEvent      = 11<<3 | wireBytes
	tagSpanDropEvents = 12<<3 | wireVarint
	tagSpanLink       = 13<<3 | wireBytes
	tagSpanDropLinks  = 14<<3 | wireVarint
	tagSpanStatus     = 15<<3 | wireBytes
	tagSpanFlags      = 16<<3 | uint16(wireFixed32) // two bytes

	tagEventTime      = 1<<3 | wireFixed64
	tagEventName      = 2<<3 | wireBytes
	tagEventAttribute = 3<<3 | wireBytes

	tagLinkTraceID = 1<<3 | wireBytes
	tagLinkSpanID  = 2<<3 | wireBytes
	tagLinkFlags   = 6<<3 | wireFixed32

	tagStatusMessage = 2<<3 | wireBytes
	tagStatusCode    = 3<<3 | wireVarint

	tagKVKey     = 1<<3 | wireBytes
	tagKVValue   = 2<<3 | wireBytes
	tagAnyString = 1<<3 | wireBytes
	tagAnyBool   = 2<<3 | wireVarint
	tagAnyInt    = 3<<3 | wireVarint

	tagResourceAttribute = 1<<3 | wireBytes
	tagScopeName         = 1<<3 | wireBytes
	tagScopeVersion      = 2<<3 | wireBytes
)

const (
	spanKindInternal = 1
	statusError      = 2
	// Of the flags the lowest 8 bits are W3C's. flagKnowsRemote says that the next bit
	// means something, flagRemote that the parent or the linked span is another
	// process's.
	flagSampled     = 0x001
	flagKnowsRemote = 0x100
	flagRemote      = 0x200
	// ownFlags are those of spans and links within what we export.
	ownFlags = flagSampled | flagKnowsRemote
)

func appendString(b []byte, tag byte, s string) []byte {
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendFixed64(b []byte, tag byte, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, tag), v)
}

func appendFixed32(b []byte, tag byte, v uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, tag), v)
}

func appendUint(b []byte, tag byte, v uint64) []byte {
	return protowire.AppendVarint(append(b, tag), v)
}

// openMessage writes the tag of an embedded message and keeps one byte for its
// length; the result is passed to closeMessage.
func openMessage(b []byte, tag byte) ([]byte, int) {
	b = append(b, tag, 0)
	return b, len(b)
}

// closeMessage writes the length of the message whose first byte is at start,
// moving it when the length takes more than the byte that was kept.
func closeMessage(b []byte, start int) []byte {
	n := len(b) - start
	if n < 0x80 {
		b[start-1] = byte(n)
		return b
	}
	var l [binary.MaxVarintLen64]byte
	k := binary.PutUvarint(l[:], uint64(n))
	b = append(b, l[:k-1]...) // room; the content is overwritten by the move
	copy(b[start+k-1:], b[start:start+n])
	copy(b[start-1:], l[:k])
	return b
}

// key is an attribute's name as a KeyValue's first field, ready to write.
type key string

func newKey(name string) key {
	return key(appendString(nil, tagKVKey, name))
}

func (k key) appendString(b []byte, tag byte, v string) []byte {
	anyLen := 1 + protowire.SizeVarint(uint64(len(v))) + len(v)
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(len(k)+1+protowire.SizeVarint(uint64(anyLen))+anyLen))
	b = append(b, k...)
	b = append(b, tagKVValue)
	b = protowire.AppendVarint(b, uint64(anyLen))
	b = append(b, tagAnyString)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

func (k key) appendInt(b []byte, tag byte, v int64) []byte {
	anyLen := 1 + protowire.SizeVarint(uint64(v))
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(len(k)+2+anyLen))
	b = append(b, k...)
	b = append(b, tagKVValue, byte(anyLen), tagAnyInt)
	return protowire.AppendVarint(b, uint64(v))
}

func (k key) appendBool(b []byte, tag byte, v bool) []byte {
	b = append(b, tag)
	b = protowire.AppendVarint(b, uint64(len(k)+4))
	b = append(b, k...)
	var one byte
	if v {
		one = 1
	}
	return append(b, tagKVValue, 2, tagAnyBool, one)
}
