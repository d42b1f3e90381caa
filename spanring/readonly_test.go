package spanring

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// childOffset is where the child "scribble" writes.
const childOffset = "SPANRING_TEST_OFFSET"

func init() { children["scribble"] = scribble }

// scribble opens the first ring of childDir as every reader does, tries all ways of
// writing to it, says what became of each, and at last stores through the mapping,
// with the kernel's own answer to what is not allowed.
func scribble() error {
	paths, err := (Dir{Path: os.Getenv(childDir), Group: -1}).List()
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no ring: %w", err)
	}
	var off int64
	if _, err := fmt.Sscan(os.Getenv(childOffset), &off); err != nil {
		return err
	}
	r, err := Open(paths[0], ReaderOptions{})
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for l := range strings.Lines(string(maps)) {
		if f := strings.Fields(l); len(f) == 6 && f[5] == paths[0] {
			fmt.Println("mapping", f[1])
		}
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", r.fd))
	if err != nil {
		return err
	}
	for l := range strings.Lines(string(info)) {
		var flags int
		if _, err := fmt.Sscanf(l, "flags: %o", &flags); err == nil {
			fmt.Println("descriptor read-only", flags&unix.O_ACCMODE == unix.O_RDONLY, "close-on-exec", flags&unix.O_CLOEXEC != 0)
		}
	}
	_, err = unix.Pwrite(r.fd, make([]byte, 8), off)
	fmt.Println("pwrite", err)
	fmt.Println("ftruncate", unix.Ftruncate(r.fd, 0))
	fmt.Println("fallocate", unix.Fallocate(r.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096))
	fmt.Println("mprotect", unix.Mprotect(r.m.b, unix.PROT_READ|unix.PROT_WRITE))
	_, err = unix.Mmap(r.fd, 0, HeaderSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	fmt.Println("mmap", err)

	// Without the runtime's handler, which would make a panic of it.
	var act [4]uint64
	if _, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGSEGV), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0); e != 0 {
		return e
	}
	*r.m.word(off) = 0x5c51bb1e
	fmt.Println("written")
	return nil
}

// TestReadersCannotWrite: a process that writes through a reader's mapping is
// killed for it, and the engine's ring is as it was.
func TestReadersCannotWrite(t *testing.T) {
	d := privateDir(t)
	w := create(t, d, smallGeometry)
	e := sealed(1, 0)
	w.Append(&e)
	before, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, off := range map[string]int64{
		"magic": 0, "head": offHead, "counters": offCounters, "log": w.geo.logOff(), "slots": w.geo.slotOff(), "names": w.geo.nameOff(), "end": w.geo.FileBytes() - 8,
	} {
		c := exec.Command(exe)
		c.Env = append(os.Environ(), childEnv+"=scribble", childDir+"="+d.Path, fmt.Sprintf("%s=%d", childOffset, off))
		var ee *exec.ExitError
		out, err := c.Output()
		if !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV {
			t.Errorf("%s: the child ended with %v, want SIGSEGV\n%s", name, err, out)
			continue
		}
		want := "mapping r--s\ndescriptor read-only true close-on-exec true\npwrite bad file descriptor\nftruncate invalid argument\nfallocate bad file descriptor\nmprotect permission denied\nmmap permission denied\n"
		if d := cmp.Diff(want, string(out)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	after, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("the ring changed (-before +after):\n%s", d)
	}
	if e := sealed(1, 1); !w.Append(&e) {
		t.Error("the engine cannot write any more")
	}
}

// TestControlFollowsNoLinks: a link where a control file belongs is replaced, and
// what it leads to stays as it is; a ring that is a link is none.
func TestControlFollowsNoLinks(t *testing.T) {
	d := privateDir(t)
	w := create(t, d, smallGeometry)
	precious := filepath.Join(t.TempDir(), "precious")
	link := filepath.Join(d.Path, strings.Repeat("a", 32)+Suffix)
	if err := errors.Join(os.WriteFile(precious, []byte("kept"), 0o600), os.Symlink(precious, w.Path()+ControlSuffix), os.Symlink(w.Path(), link)); err != nil {
		t.Fatal(err)
	}
	if err := WriteControl(w.Path(), Control{ID: "1"}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(precious); string(b) != "kept" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if fi, err := os.Lstat(w.Path() + ControlSuffix); err != nil || !fi.Mode().IsRegular() {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if c, err := ReadControl(w.Path()); c.ID != "1" || err != nil {
		t.Errorf("%+v, %v", c, err)
	}
	if err := WriteControl(link, Control{ID: "2"}); !errors.Is(err, ErrNotRing) {
		t.Errorf("through a link: %v", err)
	}
	if _, err := os.Lstat(link + ControlSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written for a link: %v", err)
	}
}
