package device

import (
	"encoding/hex"
	"strings"
)

// UUID is a GPU's identity as drivers and tools write it: GPU- or MIG- and
// hexadecimal digits, in groups or not, whole or only the first ones. Its zero value
// is none.
type UUID struct {
	MIG    bool
	digits string // lower case, without hyphens
}

const uuidDigits = 32

// ParseUUID reads a UUID; ok is false for what is none, also for the first naming of
// MIG devices, by GPU and instance numbers (MIG-GPU-UUID/GI/CI). Without a prefix it is a GPU's.
func ParseUUID(text string) (u UUID, ok bool) {
	rest := text
	if r, found := strings.CutPrefix(text, "MIG-"); found {
		u.MIG, rest = true, r
	} else if r, found := strings.CutPrefix(text, "GPU-"); found {
		rest = r
	}
	u.digits = strings.ToLower(strings.ReplaceAll(rest, "-", ""))
	if u.digits == "" || len(u.digits) > uuidDigits || strings.Trim(u.digits, "0123456789abcdef") != "" {
		return UUID{}, false
	}
	return u, true
}

// Whole reports whether all digits are there.
func (u UUID) Whole() bool { return len(u.digits) == uuidDigits }

// Is reports whether u, which may be short, names the device v. A MIG instance is not
// the GPU it is on.
func (u UUID) Is(v UUID) bool {
	return u.digits != "" && u.MIG == v.MIG && strings.HasPrefix(v.digits, u.digits)
}

// bytes are the digits of one that is whole.
func (u UUID) bytes() (b [16]byte, ok bool) {
	if !u.Whole() {
		return b, false
	}
	n, err := hex.Decode(b[:], []byte(u.digits))
	return b, err == nil && n == len(b) && b != [16]byte{}
}
