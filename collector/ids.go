package collector

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/lanetrace/lanetrace/spanring"
)

// TraceID is the identity of an exported step's trace: a hash of run id and step
// number, so that whoever knows the two knows the trace.
type TraceID [16]byte

// String is the id as 32 hexadecimal digits.
func (t TraceID) String() string { return hex.EncodeToString(t[:]) }

// SpanID is the identity of a span within its trace.
type SpanID [8]byte

// String is the id as 16 hexadecimal digits.
func (s SpanID) String() string { return hex.EncodeToString(s[:]) }

// StepTraceID is the id of the trace of a step. It does not allocate.
func StepTraceID(run spanring.RunID, step uint64) TraceID {
	var b [len(run) + 8]byte
	copy(b[:], run[:])
	binary.BigEndian.PutUint64(b[len(run):], step)
	h := sha256.Sum256(b[:])
	var t TraceID
	copy(t[:], h[:])
	return t
}

// Ordinals of the spans that have none of their own.
const (
	rootOrdinal = 0
	hostOrdinal = 1 << 32
)

// RootID is the id of the step's own span.
func (t TraceID) RootID() SpanID { return t.span(rootOrdinal) }

// HostID is the id of the span of the step's part on the host.
func (t TraceID) HostID() SpanID { return t.span(hostOrdinal) }

// SpanID is the id of the span with that ordinal, which is at least 1.
func (t TraceID) SpanID(ordinal uint32) SpanID { return t.span(uint64(ordinal)) }

// span mixes an ordinal with half of the trace id. The mixing (splitmix64's) is a
// bijection, so spans of one trace never share an id; of 0, which is no id, its
// neighbour is taken.
func (t TraceID) span(ordinal uint64) SpanID {
	x := binary.BigEndian.Uint64(t[8:]) + (ordinal+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	if x == 0 {
		x = 1
	}
	var s SpanID
	binary.BigEndian.PutUint64(s[:], x)
	return s
}
