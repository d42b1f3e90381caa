package dl

import (
	"errors"
	"strings"
	"testing"
)

func TestProbe(t *testing.T) {
	err := Probe("libc.so.6")
	if errors.Is(err, ErrNoCgo) {
		t.Log("without cgo nothing is loaded")
		return
	}
	if err != nil {
		t.Errorf("the C library: %v", err)
	}
	const name = "liblanetrace-not-there.so.1"
	if err := Probe(name); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a missing library: %v", err)
	}
}
