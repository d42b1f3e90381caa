// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package control_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/internal/testdriver/control"
)

func open(t *testing.T) *control.Driver {
	t.Helper()
	d, err := control.Open(testdriver.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Reset)
	return d
}

func TestOpenRefusesOtherLibraries(t *testing.T) {
	if _, err := control.Open("libc.so.6"); err == nil || !strings.Contains(err.Error(), "lt_testdriver_reset") {
		t.Errorf("libc: %v, want what is missing", err)
	}
	if _, err := control.Open(filepath.Join(t.TempDir(), "none.so")); err == nil {
		t.Error("a missing file: no error")
	}
}

func TestNames(t *testing.T) {
	d := open(t)
	if err := d.Fail("cuMemAlloc_v2", 2, 0, 0); err != nil {
		t.Error(err)
	}
	if err := d.Fail("cuMemAlloc", 2, 0, 0); err == nil {
		t.Error("a function that is not exported: no error")
	}
	if err := d.SetCallTime("cuNothing", time.Second); err == nil {
		t.Error("a time for no function: no error")
	}
	if n := d.Calls("cuInit"); n != 0 {
		t.Errorf("cuInit called %d times", n)
	}
	if n := d.TotalCalls(); n != 0 {
		t.Errorf("%d calls", n)
	}
	if n := d.Live("event"); n != 0 {
		t.Errorf("%d events", n)
	}
	for name, f := range map[string]func(){
		"Calls": func() { d.Calls("cuNothing") },
		"Live":  func() { d.Live("unicorn") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s took an unknown name", name)
				}
			}()
			f()
		}()
	}
	if err := d.Log(filepath.Join(t.TempDir(), "no", "log")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("logging into a missing directory: %v", err)
	}
}

func TestClock(t *testing.T) {
	d := open(t)
	d.SetClock(time.Second, 0)
	if got := d.GPUTime(1000); got != 1_000_001_000 {
		t.Errorf("GPU's clock at 1,000 ns reads %d", got)
	}
	if _, _, r := d.EventTime(0xdead); r != 400 {
		t.Errorf("time of no event: %d, want 400", r)
	}
	if r := d.StallStream(0xdead, true); r != 400 {
		t.Errorf("stalling no stream: %d, want 400", r)
	}
}
