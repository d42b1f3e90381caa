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
	offExe        = 0x090 // 64 bytes, NUL padded
	offService    = 0x0d0 // 128 bytes
	offGPUUUID    = 0x150 // 48 bytes, text
	offGPUName    = 0x180 // 64 bytes
	offRank       = 0x1c0 // four i32: data, tensor, pipeline, expert; -1 is unknown
	offProducer   = 0x1d0 // 32 bytes, the writing library and its version
	offModel      = 0x1f0 // u32 name id of the served model

	offState  = 0x200 // u32 level, u32 flags
	offArming = 0x208 // u32 current stride, u32 steps still to arm on request

	offHead      = 0x300 // next sequence number, a cache line of its own
	offNamesUsed = 0x340 // bytes of the name table in use, a cache line of its own

	offCounters = 0x380 // NumCounters words
	offContexts = 0x900 // MaxContexts records of contextSize bytes
	contextSize = 112
)

const (
	numCounterWords = (offContexts - offCounters) / 8
	_               = uint(numCounterWords - int(NumCounters)) // the counters fit
	_               = uint(HeaderSize - (offContexts + MaxContexts*contextSize))
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

// GeometryForBytes returns the largest geometry, in about the proportions of the
// default one, whose file has at most total bytes. It fails under 64 KiB.
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
