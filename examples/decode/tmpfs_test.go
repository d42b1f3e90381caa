package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace in the environment says that this process may mount.
const inNamespace = "DECODE_TEST_NAMESPACE"

// TestEngineOnASmallTmpfs runs TestInSmallTmpfs in a mount namespace of its own.
func TestEngineOnASmallTmpfs(t *testing.T) {
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInSmallTmpfs$", "-test.v")
	c.Env = append(os.Environ(), inNamespace+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	var exited *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exited):
		t.Skipf("an engine whose ring directory is full: no mount namespace here: %v", err)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("an engine whose ring directory is full: no tmpfs can be mounted:\n%s", out)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: TestInSmallTmpfs"):
		t.Fatalf("it did not run:\n%s", out)
	}
}

// TestInSmallTmpfs needs a mount namespace, which TestEngineOnASmallTmpfs gives
// it. The engine is a process: what a full file system does to a mapping is a
// signal, which no test in the same process would survive to report.
func TestInSmallTmpfs(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		return // run by TestEngineOnASmallTmpfs
	}
	// Nothing mounted here is to be seen elsewhere.
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("may not mount: %v", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("may not mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)

	engine := func(started func(), args []string, env ...string) (s summary, stderr string) {
		t.Helper()
		args = append([]string{"--backend", "sim", "--json", "--no-verify", "--rate", "1000", "--dir", dir}, args...)
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env = append(append(os.Environ(), asCommand+"=1"), env...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if started != nil {
			started()
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, &errs)
		}
		if err := json.Unmarshal(out.Bytes(), &s); err != nil {
			t.Fatalf("summary %q: %v", &out, err)
		}
		return s, errs.String()
	}

	// A ring of the default size does not fit: one warning, no telemetry, and the
	// engine serves everything and ends with 0.
	s, stderr := engine(nil, []string{"--requests", "20"})
	if s.Requests.Served != 20 || s.Telemetry.Begun != 0 || !strings.Contains(s.Telemetry.Off, "no space left on device") {
		t.Errorf("served %+v, telemetry %+v", s.Requests, s.Telemetry)
	}
	if strings.Count(stderr, "level=WARN") != 1 || strings.Count(stderr, "no space left on device") != 1 {
		t.Errorf("want one warning:\n%s", stderr)
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("%v left in the ring directory, %v", left, err)
	}

	// A small ring fits. While the engine writes to it, the rest is filled: nothing
	// changes, and what the engine counted is what a reader finds.
	const smallRing = 256 << 10
	s, stderr = engine(func() {
		waitForSteps(t, dir)
		fill(t, filepath.Join(dir, "filler"))
	}, []string{"--duration", "700ms", "--level", "kernel"}, "LANETRACE_RING_BYTES=262144")
	if s.Telemetry.Off != "" || s.Telemetry.Begun == 0 || s.Telemetry.Begun != s.Telemetry.Landed || s.Telemetry.InFlight != 0 {
		t.Errorf("telemetry %+v\n%s", s.Telemetry, stderr)
	}
	if s.Requests.Served != s.Requests.Came || strings.Contains(stderr, "level=WARN") {
		t.Errorf("served %+v\n%s", s.Requests, stderr)
	}
	if st, err := os.Stat(s.Telemetry.Ring); err != nil || st.Size() > smallRing {
		t.Errorf("ring %v, %v", st, err)
	}
	r, entries := readRing(t, dir)
	if a := r.Account(); uint64(len(entries)) != a.Received || a.Published != a.Received+a.Lost+a.Missed || a.Lost != 0 || len(entries) == 0 {
		t.Errorf("%d entries, account %+v", len(entries), a)
	}
}

// fill writes to a file until its file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}
