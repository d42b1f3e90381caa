package ledger

import (
	"strconv"
	"strings"
)

// SiteTotal is what one call site's live allocations add up to.
type SiteTotal struct {
	Site     string // as recorded: file:line, or a place in a module (see File)
	Label    string // what people read where Site is too much; "" where Site serves
	Function string // "" where it is not known
	Bytes    int64
	Count    int64
}

// Title is the label, else the site itself.
func (s *SiteTotal) Title() string {
	if s.Label != "" {
		return s.Label
	}
	return s.Site
}

// File is the file of the call site and its line. Of a place in a module, which is
// module!symbol+0xOFFSET in RANGE (build ID) with all but module and offset left out
// where they are not known, it is the module and 0; of anything else the whole and 0.
func (s *SiteTotal) File() (file string, line int64) {
	if m := moduleOf(s.Site); m != "" {
		return m, 0
	}
	if i := strings.LastIndexByte(s.Site, ':'); i > 0 {
		if n, err := strconv.ParseInt(s.Site[i+1:], 10, 32); err == nil && n > 0 {
			return s.Site[:i], n
		}
	}
	return s.Site, 0
}

// moduleOf is "" for what is no place in a module.
func moduleOf(site string) string {
	head, tail, ok := strings.Cut(site, "+0x")
	if !ok {
		return ""
	}
	rest := strings.TrimLeft(tail, "0123456789abcdef")
	if rest == tail || rest != "" && !strings.HasPrefix(rest, " in ") && !strings.HasPrefix(rest, " (build ") {
		return ""
	}
	module, _, _ := strings.Cut(head, "!")
	return module
}
