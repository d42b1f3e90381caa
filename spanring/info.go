package spanring

import (
	"encoding/hex"
	"fmt"
)

// RunID is the random identity of one run of one producer.
type RunID [16]byte

// String is the run id as 32 hexadecimal digits, as in the file's name.
func (id RunID) String() string { return hex.EncodeToString(id[:]) }

// Rank is an engine's place in a parallel group; -1 is unknown or not used.
type Rank struct {
	Data, Tensor, Pipeline, Expert int32
}

// NoRank is the rank of an engine that did not say.
var NoRank = Rank{-1, -1, -1, -1}

// Info says who produces a ring. Texts are cut to their field; those that a
// Reader returns are valid UTF-8.
type Info struct {
	RunID          RunID
	PID            uint32
	PIDNamespace   uint64 // inode number
	StartTicks     uint64 // clock ticks from boot to the process's start
	CreatedUnixNS  int64  // wall clock and
	CreatedMonoNS  int64  // CLOCK_MONOTONIC, read together when the ring was made
	Executable     string // base name, at most 64 bytes
	Service        string // at most 128 bytes
	GPUUUID        string // of context 0, as the driver gives it ("GPU-…", "MIG-…")
	GPUName        string // of context 0
	Rank           Rank
	Producer       string // library and version that writes the ring
	Model          string // the served model, a text of the ring's names; at most MaxNameBytes
	Level          uint8
	Clean          bool   // the producer closed the ring itself
	KernelEvery    uint32 // one step in so many is armed now; 0 is none
	ArmedRequested uint32 // steps still to arm on request
	LaneEvery      uint32 // lanes of one step in so many are timed now; 0: of none, or the producer does not say
}

// ContextState is what the producer publishes of one GPU context. A Reader checks
// Index, Calibration and the part of the slot table; the clock's numbers are the
// producer's own and may be anything in a hostile file.
type ContextState struct {
	Index       uint8
	UUID        [16]byte // the driver's own
	MIG         bool
	Device      int32  // ordinal within the process
	Capability  uint16 // major*10 + minor
	Calibration Calibration
	// ConstantNS is what a queued pair measures beyond its kernel, SpreadNS the
	// spread (p90 - p10) seen while it was measured.
	ConstantNS, SpreadNS uint32
	// FirstSlot and Slots are the context's part of the slot table.
	FirstSlot, Slots uint32

	// The clock: host = HostRefNS + (gpu - GPURefNS) * (1 - RatePPB/1e9), true to
	// ± UncertaintyNS when it was published at UpdatedMonoNS.
	GPURefNS, HostRefNS, RatePPB, UpdatedMonoNS int64
	UncertaintyNS                               uint64
}

const (
	ctxUsed = 1 << 0
	ctxMIG  = 1 << 1
)

// UUIDText is the UUID in the driver's notation.
func (c *ContextState) UUIDText() string {
	p := "GPU-"
	if c.MIG {
		p = "MIG-"
	}
	u := c.UUID
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", p, u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// words encodes c behind its seqlock word: contextSize/8 - 1 of them.
func (c *ContextState) words() [contextSize/8 - 1]uint64 {
	fl := uint64(ctxUsed)
	if c.MIG {
		fl |= ctxMIG
	}
	var u0, u1 uint64
	for i := range 8 {
		u0 |= uint64(c.UUID[i]) << (8 * i)
		u1 |= uint64(c.UUID[8+i]) << (8 * i)
	}
	return [...]uint64{
		u0, u1,
		fl | uint64(c.Calibration)<<8 | uint64(c.Capability)<<16 | uint64(uint32(c.Device))<<32,
		uint64(c.ConstantNS) | uint64(c.SpreadNS)<<32,
		uint64(c.FirstSlot) | uint64(c.Slots)<<32,
		uint64(c.GPURefNS), uint64(c.HostRefNS), uint64(c.RatePPB), uint64(c.UpdatedMonoNS), c.UncertaintyNS,
		0, 0, 0,
	}
}

// parseContext reverses words; ok is false for a record not in use, or one whose
// slots are not in the table.
func parseContext(i int, w *[contextSize/8 - 1]uint64, geo Geometry) (c ContextState, ok bool) {
	if w[2]&ctxUsed == 0 || uint64(uint32(w[4]))+w[4]>>32 > uint64(geo.Slots) {
		return c, false
	}
	for j := range 8 {
		c.UUID[j] = byte(w[0] >> (8 * j))
		c.UUID[8+j] = byte(w[1] >> (8 * j))
	}
	c.Index = uint8(i)
	c.MIG = w[2]&ctxMIG != 0
	c.Calibration = min(Calibration(w[2]>>8), CalibrationAssumed)
	c.Capability = uint16(w[2] >> 16)
	c.Device = int32(w[2] >> 32)
	c.ConstantNS, c.SpreadNS = uint32(w[3]), uint32(w[3]>>32)
	c.FirstSlot, c.Slots = uint32(w[4]), uint32(w[4]>>32)
	c.GPURefNS, c.HostRefNS, c.RatePPB, c.UpdatedMonoNS = int64(w[5]), int64(w[6]), int64(w[7]), int64(w[8])
	c.UncertaintyNS = w[9]
	return c, true
}
