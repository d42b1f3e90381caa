package launchtrace

import (
	"encoding/binary"
	"fmt"
)

// Kind is what an operation does.
type Kind uint8

// The kinds of operation.
const (
	KindKernel Kind = 1 // a kernel launch
	KindMemset Kind = 2 // an asynchronous memset: address, value, bytes
	KindCopy   Kind = 3 // a copy within the device: destination, source, bytes; of rows also both pitches, width and height

	numKinds = 4
)

var kindText = [numKinds]string{"none", "kernel", "memset", "copy"}

// String is the kind's name in reports.
func (k Kind) String() string {
	if k < numKinds {
		return kindText[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

func (k Kind) valid() bool { return k >= KindKernel && k < numKinds }

// Op is one enqueued operation.
type Op struct {
	Kind Kind
	// Func is the handle that a kernel was launched by, 0 of other kinds.
	Func uint64
	// Name is what the handle was named when the operation was enqueued, "" for
	// nothing.
	Name        string
	Grid, Block [3]uint32
	SharedBytes uint32
	// Args are the arguments as words: a buffer is its address, an argument of other
	// bytes the first eight of them, little-endian, padded with zeros.
	Args []uint64
	// ArgsUnknown says that the arguments' sizes could not be had, so that nothing is
	// known of them. Args is then empty.
	ArgsUnknown bool
}

// FuncName is what reports call the operation's function: its name, else its
// handle as fn@0x…; "" for operations that have none.
func (o *Op) FuncName() string {
	if o.Name == "" && o.Kind == KindKernel {
		return fmt.Sprintf("fn@%#x", o.Func)
	}
	return o.Name
}

// MaxArgs is how many arguments of an operation are recorded. A kernel's
// parameters have 4 KiB together on most devices. One with more counts as one
// whose arguments are unknown.
const MaxArgs = 4096

// Word is an argument of any bytes as a word: the first eight of them,
// little-endian, padded with zeros.
func Word(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.LittleEndian.Uint64(b)
	}
	var w uint64
	for i, v := range b {
		w |= uint64(v) << (8 * i)
	}
	return w
}

// WordOf is the argument of size bytes whose bits are the low ones of v; what is
// above them is cut off.
func WordOf(v uint64, size uint8) uint64 {
	if size >= 8 {
		return v
	}
	return v & (1<<(8*size) - 1)
}
