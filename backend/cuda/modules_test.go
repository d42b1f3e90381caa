//go:build cgo

package cuda

import (
	"errors"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/backend/conformance"
)

// TestModuleWithoutContext: a load after which no context is current fails, and
// leaves no module.
func TestModuleWithoutContext(t *testing.T) {
	lib, ctl := controlled(t)
	g := openTest(t, Config{Library: lib})
	f := &fixture{t: t, g: g}
	modules := ctl.Live("module")
	// The first look is the binding's own, the second comes behind the load.
	f.ok(ctl.Fail("cuCtxGetCurrent", 201, 1, 1))
	err := g.LoadModule(conformance.Module, conformance.Image)
	ctl.ClearFaults()
	if !errors.Is(err, ErrInvalidContext) || !strings.Contains(err.Error(), "load module") {
		t.Errorf("load: %v", err)
	}
	if g.HasModule(conformance.Module) || ctl.Live("module") != modules {
		t.Errorf("%d modules are left of a load that failed", ctl.Live("module")-modules)
	}
	f.ok(g.LoadModule(conformance.Module, conformance.Image))
	f.ok(g.Close())
}
