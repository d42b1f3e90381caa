package collector

import (
	"strings"

	"github.com/lanetrace/lanetrace/ledger"
)

// SiteLabel is what a call site is called where its whole text is too much. Of a
// place in a module, which the agent writes as
//
//	libtorch_cpu.so!_ZN2at6detail13empty_genericE…+0x5cc in kv_cache (build 5a3c…)
//
// it has the symbol as KernelLabel has it, and not the build:
//
//	libtorch_cpu.so!at::detail::empty_generic+0x5cc in kv_cache
//
// Of any other site it is the text itself. text is clean; the result is not cut.
func SiteLabel(text string) string {
	const build = " (build "
	head, tail, ok := strings.Cut(text, "+0x")
	if !ok {
		return text
	}
	module, symbol, named := strings.Cut(head, "!")
	if i := strings.LastIndex(tail, build); i >= 0 && strings.HasSuffix(tail, ")") && strings.Trim(tail[i+len(build):len(tail)-1], "0123456789abcdef") == "" {
		tail = tail[:i]
	}
	if named && strings.HasPrefix(symbol, "_Z") {
		head = module + "!" + KernelLabel(symbol)
	}
	return head + "+0x" + tail
}

// siteFunction is the function of a place in a module, "" of any other call site.
func siteFunction(label string) string {
	head, _, ok := strings.Cut(label, "+0x")
	if !ok {
		return ""
	}
	_, symbol, _ := strings.Cut(head, "!")
	return symbol
}

// siteLabels remembers labels and functions by a site's text: a symbol takes
// microseconds, and there can be thousands at each scrape.
type siteLabels map[string]siteName

type siteName struct {
	label    string // "" where the text serves: it is of no known function of a module
	function string
}

// set sets the labels and the functions of sites.
func (l *siteLabels) set(sites []ledger.SiteTotal) {
	if *l == nil || len(*l) > maxNames {
		*l = make(siteLabels)
	}
	for i := range sites {
		s := &sites[i]
		n, ok := (*l)[s.Site]
		if !ok {
			clean := CleanText(s.Site)
			n.label = SiteLabel(clean)
			n.function = siteFunction(n.label)
			if n.label == clean && n.function == "" {
				n.label = ""
			}
			(*l)[s.Site] = n
		}
		s.Label, s.Function = n.label, n.function
	}
}
