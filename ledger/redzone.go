package ledger

import (
	"errors"
	"fmt"
	"strconv"
)

// Redzone configures guard bands: bytes behind each allocation that nobody may
// write, filled when it is made, so that a scan finds who wrote past its end. The
// zero value has none. Every field with a variable in parentheses can be set by
// it, through FromEnv.
type Redzone struct {
	// Bytes is the size of each guard band, at most 1 GiB, rounded up to 16
	// (LANETRACE_REDZONE). Default 0: no guard bands.
	Bytes int64
	// Fill is what the bands are filled with (LANETRACE_REDZONE_FILL). Default
	// 0xA5.
	Fill *byte
	// First is the creation index of the first allocation to get one
	// (LANETRACE_REDZONE_FIRST). Default 0.
	First uint64
	// Trace is the creation index of an allocation that is logged with its stack
	// when it is made and when it is freed (LANETRACE_REDZONE_TRACE). It works
	// without guard bands too. Default: none.
	Trace *uint64
}

const (
	defaultFill     = 0xa5
	redzoneAlign    = 16
	maxRedzoneBytes = 1 << 30
)

// What PoisonBands fills with.
const (
	poisonInside  = 0xee
	poisonOutside = 0x00
)

// FromEnv fills fields that are still zero from their variables. getenv is
// os.Getenv or a test's. Numbers are decimal or, with 0x, hexadecimal. A value
// that is none, or out of range, is an error that names its variable.
func (r Redzone) FromEnv(getenv func(string) string) (Redzone, error) {
	var errs []error
	number := func(unset bool, name string, most uint64, set func(uint64)) {
		v := getenv(name)
		if !unset || v == "" {
			return
		}
		n, err := strconv.ParseUint(v, 0, 64)
		if err != nil || n > most {
			errs = append(errs, fmt.Errorf("%s=%q: want a whole number from 0 to %d", name, v, most))
			return
		}
		set(n)
	}
	number(r.Bytes == 0, "LANETRACE_REDZONE", maxRedzoneBytes, func(n uint64) { r.Bytes = int64(n) })
	number(r.Fill == nil, "LANETRACE_REDZONE_FILL", 0xff, func(n uint64) { r.Fill = new(byte(n)) })
	number(r.First == 0, "LANETRACE_REDZONE_FIRST", 1<<64-1, func(n uint64) { r.First = n })
	number(r.Trace == nil, "LANETRACE_REDZONE_TRACE", 1<<64-1, func(n uint64) { r.Trace = new(n) })
	return r, errors.Join(errs...)
}

// settle checks r, rounds its size up and fills in its default.
func (r Redzone) settle() (Redzone, error) {
	if r.Bytes < 0 || r.Bytes > maxRedzoneBytes {
		return r, fmt.Errorf("guard bands of %d bytes: want from 0 to %d", r.Bytes, maxRedzoneBytes)
	}
	r.Bytes = (r.Bytes + redzoneAlign - 1) &^ (redzoneAlign - 1)
	if r.Fill == nil {
		r.Fill = new(byte(defaultFill))
	}
	return r, nil
}

// guard is the size of the guard band of the allocation with that creation index.
func (r *Redzone) guard(index uint64) uint32 {
	if index < r.First {
		return 0
	}
	return uint32(r.Bytes)
}

func (r *Redzone) traces(index uint64) bool { return r.Trace != nil && *r.Trace == index }
