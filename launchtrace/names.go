package launchtrace

import (
	"fmt"
	"hash/fnv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxNameBytes is where names of functions, regions and sites are cut.
const maxNameBytes = 1024

// maxNames is how many handles and how many names are remembered.
const maxNames = 1 << 16

// cutName shortens s to maxNameBytes, ending in a hash of the whole, so that
// different names stay different.
func cutName(s string) string {
	if len(s) <= maxNameBytes {
		return s
	}
	h := fnv.New64a()
	h.Write([]byte(s))
	tail := fmt.Sprintf("…%016x", h.Sum64())
	i := maxNameBytes - len(tail)
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	return s[:i] + tail
}

// clean makes a name fit for a line of text: names in files are anybody's.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
}

// nameTable is what handles are called. Names only come, and texts is never
// changed in place, so traces keep the part that they use.
type nameTable struct {
	texts    []string // texts[0] is none
	byText   map[string]uint32
	byHandle map[uint64]uint32
}

func newNameTable() nameTable {
	return nameTable{texts: []string{""}, byText: map[string]uint32{"": 0}, byHandle: make(map[uint64]uint32)}
}

// set names a handle anew; "" takes its name away. It reports false when there is
// no room, and the handle then has no name.
func (n *nameTable) set(handle uint64, text string) bool {
	text = cutName(text)
	delete(n.byHandle, handle)
	if text == "" {
		return true
	}
	if len(n.byHandle) >= maxNames {
		return false
	}
	id, ok := n.byText[text]
	if !ok {
		if len(n.texts) > maxNames {
			return false
		}
		text = strings.Clone(text)
		id = uint32(len(n.texts))
		n.byText[text] = id
		n.texts = append(n.texts, text)
	}
	n.byHandle[handle] = id
	return true
}
