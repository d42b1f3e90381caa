package ledger

import (
	"path"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/spanring"
)

// unknownSite is the number and text of the call site that could not be found:
// the whole stack is the library's own.
const (
	unknownSite     = 0
	unknownSiteText = "unknown"
)

// site is a place in the engine's code that allocates, with what it holds.
type site struct {
	text     string // file:line
	function string
	bytes    int64
	count    int64

	// Its name in the ring that the ledger is attached to.
	name  spanring.NameID
	named bool
}

// finder finds the call site of an allocation: the first caller that is not the
// library's. What a program counter stands for is looked up once; after that a
// site costs a walk over a few frames and as many look-ups in a map that is
// replaced as a whole and so needs no lock.
type finder struct {
	pcs       atomic.Pointer[map[uintptr]int32]
	libraries []string // package paths; what lies below them counts too
	callers   []string // exceptions from them
	root      string   // the program's main module, "" if not known
}

// notCaller stands in the map for the library's own frames.
const notCaller = -1

// maxFrames bounds the walk; the frames of a backend are a handful.
const maxFrames = 64

func (f *finder) init(more []string) {
	// The module's path is in this package's, also in a copy under another name.
	self := reflect.TypeFor[finder]().PkgPath()
	module := path.Dir(self)
	for _, p := range []string{"backend", "ledger", "launchtrace", "cudaevents", "spanring", "internal"} {
		f.libraries = append(f.libraries, module+"/"+p)
	}
	f.libraries = append(f.libraries, more...)
	// The suite is a caller like the tests that run it.
	f.callers = []string{module + "/backend/conformance"}
	// The root package is library, what lies below it is not, but for the above.
	f.libraries = append(f.libraries, module+".")
	if b, ok := debug.ReadBuildInfo(); ok {
		f.root = b.Main.Path
	}
	f.pcs.Store(&map[uintptr]int32{})
}

// between are packages of the standard library through which the library calls
// itself.
var between = [...]string{"runtime", "reflect", "sync"}

// isCaller reports whether a frame is the engine's.
func (f *finder) isCaller(function, file string) bool {
	if strings.HasSuffix(file, "_test.go") {
		return true
	}
	pkg := packageOf(function)
	for _, p := range between {
		if pkg == p || strings.HasPrefix(pkg, p+"/") {
			return false
		}
	}
	for _, p := range f.callers {
		if within(pkg, p) {
			return true
		}
	}
	for _, p := range f.libraries {
		if within(pkg, p) {
			return false
		}
	}
	return true
}

// within reports whether pkg is p or below it; with a dot at its end p is one
// package alone.
func within(pkg, p string) bool {
	if one, ok := strings.CutSuffix(p, "."); ok {
		return pkg == one
	}
	return pkg == p || strings.HasPrefix(pkg, p) && pkg[len(p)] == '/'
}

// packageOf is the package path of a function's full name, as in
// "example.com/m/pkg.(*T).Method" or "example.com/m/pkg.F[...]".
func packageOf(function string) string {
	if i := strings.IndexByte(function, '['); i >= 0 {
		function = function[:i] // type arguments hold paths of their own
	}
	slash := strings.LastIndexByte(function, '/') + 1
	if dot := strings.IndexByte(function[slash:], '.'); dot >= 0 {
		function = function[:slash+dot]
	}
	return strings.ReplaceAll(function, "%2e", ".") // as the linker writes dots of the last element
}

// siteText is file:line, the file relative to the main module where the build
// has trimmed its paths.
func (f *finder) siteText(file string, line int) string {
	if f.root != "" {
		file = strings.TrimPrefix(file, f.root+"/")
	}
	return file + ":" + strconv.Itoa(line)
}

// firstFrames is how many callers a look at the stack takes at first: a backend's
// method and the engine's.
const firstFrames = 2

// callSite is the number of the call site among pcs, the innermost callers of the
// function that calls it; if there is none it looks further up the stack. Walking
// the stack is the greater part of an allocation's cost, so the caller, whose own
// frame is known as the library's, begins it.
func (l *Ledger) callSite(pcs *[firstFrames]uintptr, n int) int32 {
	if s := l.siteAmong(pcs[:n]); s != notCaller {
		return s
	}
	var more [8]uintptr
	const skip = 3 // runtime.Callers, this, and the caller
	for seen := firstFrames; n == firstFrames && seen < maxFrames; seen += len(more) {
		m := runtime.Callers(skip+seen, more[:])
		if s := l.siteAmong(more[:m]); s != notCaller {
			return s
		}
		if m < len(more) {
			break
		}
	}
	return unknownSite
}

func (l *Ledger) siteAmong(pcs []uintptr) int32 {
	known := *l.find.pcs.Load()
	for _, pc := range pcs {
		s, ok := known[pc]
		if !ok {
			s = l.resolve(pc)
		}
		if s != notCaller {
			return s
		}
	}
	return notCaller
}

// resolve finds out what a program counter stands for, and remembers it. The
// caller does not hold the lock.
func (l *Ledger) resolve(pc uintptr) int32 {
	frames := runtime.CallersFrames([]uintptr{pc})
	s := int32(notCaller)
	l.mu.Lock()
	defer l.mu.Unlock()
	for more := true; more && s == notCaller; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function != "" && l.find.isCaller(f.Function, f.File) {
			s = l.siteNumber(l.find.siteText(f.File, f.Line), f.Function)
		}
	}
	old := *l.find.pcs.Load()
	next := make(map[uintptr]int32, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	next[pc] = s
	l.find.pcs.Store(&next)
	return s
}

// siteNumber is the number of the site of that text. The caller holds the lock.
func (l *Ledger) siteNumber(text, function string) int32 {
	if n, ok := l.siteByText[text]; ok {
		return n
	}
	n := int32(len(l.sites))
	l.sites = append(l.sites, site{text: text, function: function})
	l.siteByText[text] = n
	return n
}
