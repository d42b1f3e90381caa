package spanring

import (
	"errors"
	"fmt"
	"math/bits"
)

// LayoutVersion is the version of the file layout this package writes. A reader
// also knows the version before it, once there is one.
const LayoutVersion = 1

// Sizes in bytes.
const (
	HeaderSize = 4096
	EntrySize  = 64
	SlotSize   = 64
	AllocSize  = 64
	nameAlign  = 16
	// MaxNameBytes is where a name is cut; what is cut off is replaced by a hash.
	MaxNameBytes = 1024
	// MaxFileBytes is the largest file a reader maps.
	MaxFileBytes = 1 << 30
	// MaxContexts is the number of context records in the header.
	MaxContexts = 16
)

// magic is "lanetrac" read as a little-endian word. It is stored last.
const magic uint64 = 0x63617274656e616c

// Offsets into the header. The words that the serving thread and the harvester
// write live on cache lines of their own.
const (
	offMagic      = 0x000
	offVersion    = 0x008 // u32 layout version, u32 header bytes
	offFileBytes  = 0x010
	offLogOff     = 0x018
	offLogEntries = 0x020
	offSlotOff    = 0x028
	offSlotCount  = 0x030
	offNameOff    = 0x038
	offNameBytes  = 0x040
	offAllocOff   = 0x048
	offAllocCount = 0x050
	offRunID      = 0x058 // 16 bytes
	offPID        = 0x068 // u32 pid, u32 reserved
	offPIDNS      = 0x070 // inode of /proc/self/ns/pid
	offStartTicks = 0x078 // field 22 of /proc/self/stat
	offMadeUnixNS = 0x080
	offMadeMonoNS = 0x088
	offExe        = 0x090 // exeBytes, NUL padded like all texts
	offService    = 0x0d0 // serviceBytes
	offGPUUUID    = 0x150 // gpuUUIDBytes, text
	offGPUName    = 0x180 // gpuNameBytes
	offRank       = 0x1c0 // four i32: data, tensor, pipeline, expert; -1 is unknown
	offProducer   = 0x1d0 // producerBytes, the writing library and its version
	offModel      = 0x1f0 // u32 name id of the served model, u32 reserved

	offState  = 0x200 // u32 level, u32 flags
	offArming = 0x208 // u32 current stride, u32 steps still to arm on request
	offLanes  = 0x210 // u32 stride of steps whose lanes are timed, u32 reserved

	offHead      = 0x300 // next sequence number, a cache line of its own
	offNamesUsed = 0x340 // bytes of the name table in use, a cache line of its own

	offCounters = 0x380 // NumCounters words

	// The table of allocations' own words, a cache line of theirs: how often it
	// was changed, odd while it is, and u32 places ever used, u32 flags.
	offAllocMut = 0x780
	offAllocUse = 0x788

	offContexts = 0x900 // MaxContexts records of contextSize bytes
	contextSize = 112

	exeBytes      = 64
	serviceBytes  = 128
	gpuUUIDBytes  = 48
	gpuNameBytes  = 64
	producerBytes = 32

	cacheLine = 64
)

// maxSeq is a sequence number that no producer reaches: at one entry a
// nanosecond, after 146 years. A head beyond it is a corrupt file's.
const maxSeq = 1 << 62

// What the compiler holds: a conversion of a negative constant to uint does not
// compile, nor does a division by 0.
const (
	// The fields follow one another without overlap.
	_ = uint(offPID - (offRunID + 16))
	_ = uint(offExe - (offMadeMonoNS + 8))
	_ = uint(offService - (offExe + exeBytes))
	_ = uint(offGPUUUID - (offService + serviceBytes))
	_ = uint(offGPUName - (offGPUUUID + gpuUUIDBytes))
	_ = uint(offRank - (offGPUName + gpuNameBytes))
	_ = uint(offProducer - (offRank + 16))
	_ = uint(offModel - (offProducer + producerBytes))
	_ = uint(offState - (offModel + 8))
	_ = uint(offLanes - (offArming + 8))
	_ = uint(offHead - (offLanes + 8))
	_ = uint(offAllocMut - (offCounters + 8*int(NumCounters)))
	_ = uint(offAllocUse - (offAllocMut + 8))
	_ = uint(offContexts - (offAllocMut + cacheLine))
	_ = uint(HeaderSize - (offContexts + MaxContexts*contextSize))

	// The words that several threads write lie on cache lines of their own, and
	// every field on an 8-byte boundary.
	_ = 1 / (1 - offHead%cacheLine)
	_ = 1 / (1 - offNamesUsed%cacheLine)
	_ = 1 / (1 - offCounters%cacheLine)
	_ = 1 / (1 - offAllocMut%cacheLine)
	_ = uint(offNamesUsed - (offHead + cacheLine))
	_ = uint(offCounters - (offNamesUsed + cacheLine))
	_ = 1 / (1 - (offCounters+8*int(CtrLanded))%cacheLine)
	_ = 1 / (1 - (offCounters+8*int(ctrMemFirst))%cacheLine)
	_ = 1 / (1 - (offContexts%8 + contextSize%8))

	// A record is its word and its payload, and records do not straddle lines.
	_ = uint(EntrySize-8-8*len(Words{})) + uint(8+8*len(Words{})-EntrySize)
	_ = uint(SlotSize-EntrySize) + uint(EntrySize-SlotSize)
	_ = uint(AllocSize-EntrySize) + uint(EntrySize-AllocSize)
	_ = 1 / (1 - (HeaderSize%cacheLine + EntrySize%cacheLine + AllocSize%cacheLine))
)

// Geometry is the size of each part of a ring file. The zero value of a field
// takes its default.
type Geometry struct {
	// LogEntries is the number of 64-byte log entries, a power of two from 64 to
	// 1<<24. Default 65,536.
	LogEntries int
	// Slots is the number of pair slots of all contexts together, from 1 to
	// 1<<20. Default 16,384: four contexts of 4,096 pairs.
	Slots int
	// NameBytes is the size of the table of names and call sites, a multiple of
	// 64 from 4 KiB to 256 MiB. Default 1 MiB.
	NameBytes int
	// Allocs is the number of 64-byte places for live allocations, from 1 to
	// 1<<20. Default 16,384.
	Allocs int
}

// DefaultGeometry is the geometry of a ring whose configuration says nothing:
// 7 MiB and 4 KiB.
var DefaultGeometry = Geometry{LogEntries: 65536, Slots: 4 * 4096, NameBytes: 1 << 20, Allocs: 16384}

// ErrGeometry is wrapped by every error about sizes.
var ErrGeometry = errors.New("ring geometry")

// WithDefaults returns g with its zero fields replaced.
func (g Geometry) WithDefaults() Geometry {
	d := DefaultGeometry
	if g.LogEntries != 0 {
		d.LogEntries = g.LogEntries
	}
	if g.Slots != 0 {
		d.Slots = g.Slots
	}
	if g.NameBytes != 0 {
		d.NameBytes = g.NameBytes
	}
	if g.Allocs != 0 {
		d.Allocs = g.Allocs
	}
	return d
}

// GeometryForBytes returns the largest geometry whose file has at most total
// bytes, in the proportions of the default one and with a power of two of log
// entries, so it may use little more than half of total. It fails under 64 KiB
// and over MaxFileBytes.
func GeometryForBytes(total int64) (Geometry, error) {
	if total < 64<<10 || total > MaxFileBytes {
		return Geometry{}, fmt.Errorf("%w: %d bytes, need from 65536 to %d", ErrGeometry, total, MaxFileBytes)
	}
	g := Geometry{LogEntries: 1 << 24}
	for g.LogEntries > 64 {
		g.Slots = max(16, g.LogEntries/4)
		g.Allocs = max(16, g.LogEntries/4)
		g.NameBytes = max(4096, g.LogEntries*16)
		if g.LogEntries <= 1<<22 && g.FileBytes() <= total {
			break
		}
		g.LogEntries /= 2
	}
	return g, g.Check()
}

// Check reports the first field that is out of its range.
func (g Geometry) Check() error {
	switch {
	case g.LogEntries < 64 || g.LogEntries > 1<<24 || bits.OnesCount(uint(g.LogEntries)) != 1:
		return fmt.Errorf("%w: %d log entries, need a power of two from 64 to %d", ErrGeometry, g.LogEntries, 1<<24)
	case g.Slots < 1 || g.Slots > 1<<20:
		return fmt.Errorf("%w: %d slots, need from 1 to %d", ErrGeometry, g.Slots, 1<<20)
	case g.NameBytes < 4096 || g.NameBytes > 256<<20 || g.NameBytes%64 != 0:
		return fmt.Errorf("%w: %d bytes of names, need a multiple of 64 from 4096 to %d", ErrGeometry, g.NameBytes, 256<<20)
	case g.Allocs < 1 || g.Allocs > 1<<20:
		return fmt.Errorf("%w: %d allocations, need from 1 to %d", ErrGeometry, g.Allocs, 1<<20)
	case g.FileBytes() > MaxFileBytes:
		return fmt.Errorf("%w: %d bytes in all, at most %d", ErrGeometry, g.FileBytes(), MaxFileBytes)
	}
	return nil
}

func (g Geometry) logOff() int64   { return HeaderSize }
func (g Geometry) slotOff() int64  { return g.logOff() + int64(g.LogEntries)*EntrySize }
func (g Geometry) nameOff() int64  { return g.slotOff() + int64(g.Slots)*SlotSize }
func (g Geometry) allocOff() int64 { return g.nameOff() + int64(g.NameBytes) }

// FileBytes is the size of the whole file.
func (g Geometry) FileBytes() int64 { return g.allocOff() + int64(g.Allocs)*AllocSize }
