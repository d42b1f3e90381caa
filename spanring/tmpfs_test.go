package spanring

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inNamespace = "SPANRING_TEST_NAMESPACE"

// TestSmallTmpfs runs TestOnSmallTmpfs in a mount namespace of its own, where it
// may mount.
func TestSmallTmpfs(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^TestOnSmallTmpfs$", "-test.v")
	c.Env = append(os.Environ(), inNamespace+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := c.CombinedOutput()
	var started *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &started):
		t.Skipf("a full ring directory and a ring in a full one: no mount namespace here: %v", err)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("a full ring directory and a ring in a full one: no tmpfs can be mounted:\n%s", out)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: TestOnSmallTmpfs"):
		t.Fatalf("it did not run:\n%s", out)
	}
}

// TestOnSmallTmpfs needs a mount namespace, which TestSmallTmpfs gives it.
func TestOnSmallTmpfs(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		return // run by TestSmallTmpfs
	}
	// Nothing mounted here is to be seen elsewhere.
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("may not mount: %v", err)
	}
	d := Dir{Path: t.TempDir(), Group: -1}
	if err := unix.Mount("tmpfs", d.Path, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("may not mount: %v", err)
	}
	defer unix.Unmount(d.Path, unix.MNT_DETACH)
	free := func() uint64 {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(d.Path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Bfree * uint64(st.Bsize)
	}
	empty := free()
	if empty > 1<<20 {
		t.Fatalf("%d bytes free", empty)
	}

	// Full: one clear error, and nothing is left of the try.
	w, err := Create(d, Options{})
	if !errors.Is(err, unix.ENOSPC) || w != nil {
		t.Fatalf("%v, %v", w, err)
	}
	want := "reserve 7344128 bytes for ring in " + d.Path + ": no space left on device"
	if err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if ents, err := os.ReadDir(d.Path); len(ents) != 0 || err != nil || free() != empty {
		t.Errorf("%v left, %d of %d bytes free, %v", ents, free(), empty, err)
	}

	// A small ring, and then the rest filled by somebody else.
	geo, err := GeometryForBytes(256 << 10)
	if err != nil {
		t.Fatal(err)
	}
	w = create(t, d, geo)
	filler, err := os.Create(filepath.Join(d.Path, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = filler.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) || free() != 0 {
		t.Fatalf("%d bytes free, %v", free(), err)
	}
	r := open(t, w.Path())
	buf := make([]Entry, 500)
	next := uint64(0)
	for lap := range uint64(10) {
		for range geo.LogEntries {
			e := sealed(1, w.Published())
			if !w.Append(&e) {
				t.Fatalf("entry %d given up", w.Published())
			}
		}
		// Every part of the file is written to.
		if id := w.Name(NameKernel, strings.Repeat("k", 1000)+string(rune('a'+lap))); id == 0 {
			t.Error("a name did not fit")
		}
		for {
			n, err := r.Poll(buf, 0)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			for _, e := range buf[:n] {
				if e.Seq != next || e.Words != sealed(1, next) {
					t.Fatalf("entry %d: %+v", next, e)
				}
				next++
			}
		}
	}
	s := newSlots(t, w, geo.Slots)
	for i := range s.Len() {
		s.Store(i, MakeSlotWord(1, SlotOpen))
		s.Put(i, &Slot{Kind: KindLane})
	}
	if b, err := r.Busy(); len(b) != geo.Slots || err != nil {
		t.Errorf("%d busy, %v", len(b), err)
	}
	if a := r.Account(); a != (Account{Published: 10 * uint64(geo.LogEntries), Received: 10 * uint64(geo.LogEntries)}) {
		t.Errorf("%+v", a)
	}
	// Asking something of the engine is not possible now, and says why.
	if err := WriteControl(w.Path(), Control{ID: "1"}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("control: %v", err)
	}
	// Nor is another ring; what is there already goes on.
	if w, err := Create(d, Options{Geometry: smallGeometry}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, %v", w, err)
	}
	if ents, err := os.ReadDir(d.Path); len(ents) != 2 || err != nil {
		t.Errorf("%v, %v", ents, err)
	}
	if alive, err := r.Alive(); !alive || err != nil {
		t.Errorf("%v, %v", alive, err)
	}
}
