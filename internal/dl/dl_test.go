package dl

import (
	"errors"
	"os"
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

func TestCall(t *testing.T) {
	pid, err := Call("libc.so.6", "getpid")
	if errors.Is(err, ErrNoCgo) {
		t.Log("without cgo nothing is called")
		return
	}
	if err != nil || pid != os.Getpid() {
		t.Errorf("getpid says %d, %v: want %d", pid, err, os.Getpid())
	}
	const name = "lanetrace_not_there"
	if _, err := Call("libc.so.6", name); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a missing function: %v", err)
	}
	if _, err := Call("liblanetrace-not-there.so.1", "getpid"); err == nil {
		t.Error("a missing library is no error")
	}
}
