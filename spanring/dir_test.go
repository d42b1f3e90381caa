package spanring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestDefaultDir(t *testing.T) {
	private := fmt.Sprintf("/dev/shm/lanetrace-%d", os.Getuid())
	for _, c := range []struct {
		dir, group string
		want       Dir
		named, bad bool
	}{
		{"", "", Dir{private, -1}, false, false},
		{"/run/rings", "", Dir{"/run/rings", -1}, true, false},
		{"", "0", Dir{private, 0}, false, false},
		{"/run/rings", "1234", Dir{"/run/rings", 1234}, true, false},
		{"", "4294967294", Dir{private, 4294967294}, false, false},
		{"", "-1", Dir{}, false, true},
		{"", "4294967295", Dir{}, false, true},
		{"", "adm", Dir{}, false, true},
		{"", " 7", Dir{}, false, true},
	} {
		env := map[string]string{"LANETRACE_DIR": c.dir, "LANETRACE_GROUP": c.group}
		got, named, err := DefaultDir(func(k string) string { return env[k] })
		if c.bad {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("LANETRACE_GROUP=%q", c.group)) {
				t.Errorf("group %q: %v", c.group, err)
			}
			continue
		}
		if got != c.want || named != c.named || err != nil {
			t.Errorf("%q, %q: %+v, %v, %v", c.dir, c.group, got, named, err)
		}
	}
}

// asRoot skips loudly what only root can set up.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("takes root to give files to other users")
	}
}

func TestMake(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	base := t.TempDir()
	gid := os.Getgid()
	for _, c := range []struct {
		name string
		d    Dir
		mode fs.FileMode
	}{
		{"private", Dir{filepath.Join(base, "private"), -1}, 0o700},
		{"trailing slash", Dir{filepath.Join(base, "slash") + "/", -1}, 0o700},
		{"group", Dir{filepath.Join(base, "group"), gid}, 0o770 | fs.ModeSetgid},
	} {
		for range 2 { // the second finds it there
			if err := c.d.Make(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		fi, err := os.Lstat(c.d.Path)
		if err != nil || fi.Mode() != c.mode|fs.ModeDir {
			t.Errorf("%s: %v, %v", c.name, fi.Mode(), err)
		}
		if err := c.d.CheckReadable(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		// The files in it.
		w := create(t, c.d, smallGeometry)
		if err := WriteControl(w.Path(), Control{ID: "1"}); err != nil {
			t.Error(err)
		}
		for _, p := range []string{w.Path(), w.Path() + ControlSuffix} {
			want := fs.FileMode(0o600)
			if c.d.Group >= 0 {
				want = 0o640
			}
			if fi, err := os.Lstat(p); err != nil || fi.Mode() != want {
				t.Errorf("%s: %s has mode %v, %v", c.name, p, fi.Mode(), err)
			}
		}
	}
	if err := (Dir{filepath.Join(base, "no", "such"), -1}).Make(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("below a missing one: %v", err)
	}
	if err := (Dir{"", -1}).Make(); !errors.Is(err, ErrDirMissing) {
		t.Errorf("no path: %v", err)
	}
	// Nothing else was left there.
	ents, err := os.ReadDir(base)
	if err != nil || len(ents) != 3 {
		t.Errorf("%v, %v", ents, err)
	}
}

func TestMakeConcurrent(t *testing.T) {
	for _, group := range []int{-1, os.Getgid()} {
		base := t.TempDir()
		d := Dir{filepath.Join(base, "rings"), group}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := d.Make(); err != nil {
					t.Error(err)
				}
				if w, err := Create(d, Options{Geometry: smallGeometry}); err != nil {
					t.Error(err)
				} else if err := w.Remove(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if ents, err := os.ReadDir(base); err != nil || len(ents) != 1 {
			t.Errorf("%v, %v", ents, err)
		}
	}
}

func TestDirChecks(t *testing.T) {
	base := t.TempDir()
	gid := os.Getgid()
	dir := func(name string, mode uint32, uid, gid int) string {
		t.Helper()
		p := filepath.Join(base, name)
		if err := os.Mkdir(p, 0o700); err != nil {
			t.Fatal(err)
		}
		if uid >= 0 || gid >= 0 {
			if err := os.Chown(p, uid, gid); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	type row struct {
		name            string
		d               Dir
		check, readable error
	}
	good := dir("good", 0o700, -1, -1)
	link := filepath.Join(base, "link")
	file := filepath.Join(base, "file")
	if err := errors.Join(os.Symlink(good, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	rows := []row{
		{"good", Dir{good, -1}, nil, nil},
		{"with a slash", Dir{good + "/", -1}, nil, nil},
		{"empty path", Dir{"", -1}, ErrDirMissing, ErrDirMissing},
		{"missing", Dir{filepath.Join(base, "none"), -1}, ErrDirMissing, ErrDirMissing},
		{"link", Dir{link, -1}, ErrDirInsecure, ErrDirInsecure},
		{"link with a slash", Dir{link + "/", -1}, ErrDirInsecure, ErrDirInsecure},
		{"file", Dir{file, -1}, ErrDirInsecure, ErrDirInsecure},
		{"below a file", Dir{filepath.Join(file, "x"), -1}, unix.ENOTDIR, unix.ENOTDIR},
		{"others may list", Dir{dir("m701", 0o701, -1, -1), -1}, ErrDirInsecure, nil},
		{"group may read", Dir{dir("m740", 0o740, -1, -1), -1}, ErrDirInsecure, nil},
		{"others may write", Dir{dir("m702", 0o702, -1, -1), -1}, ErrDirInsecure, ErrDirInsecure},
		{"like /tmp", Dir{dir("m1777", 0o1777, -1, -1), -1}, ErrDirInsecure, ErrDirInsecure},
		{"group mode", Dir{dir("m2770", 0o2770, -1, gid), gid}, nil, nil},
		{"group mode in private mode", Dir{filepath.Join(base, "m2770"), -1}, ErrDirInsecure, nil},
		{"group mode, no setgid", Dir{dir("m770", 0o770, -1, gid), gid}, ErrDirInsecure, nil},
		{"group mode, group may not write", Dir{dir("m2750", 0o2750, -1, gid), gid}, ErrDirInsecure, nil},
		{"group mode, private directory", Dir{good, gid}, ErrDirInsecure, nil},
		{"group mode, others may list", Dir{dir("m2771", 0o2771, -1, gid), gid}, ErrDirInsecure, nil},
		{"group mode, others may write", Dir{dir("m2777", 0o2777, -1, gid), gid}, ErrDirInsecure, ErrDirInsecure},
	}
	test := func(t *testing.T, rows []row) {
		for _, c := range rows {
			for what, f := range map[string]struct {
				err  error
				want error
			}{"Check": {c.d.Check(), c.check}, "CheckReadable": {c.d.CheckReadable(), c.readable}} {
				if !errors.Is(f.err, f.want) {
					t.Errorf("%s, %s: %v, want %v", c.name, what, f.err, f.want)
				}
				if f.err != nil && (!strings.Contains(f.err.Error(), c.d.Path) || strings.Contains(f.err.Error(), "\n")) {
					t.Errorf("%s, %s: not one line that names the directory: %q", c.name, what, f.err)
				}
			}
			if c.check != nil {
				if w, err := Create(c.d, Options{Geometry: smallGeometry}); !errors.Is(err, c.check) {
					t.Errorf("%s: created %v, %v", c.name, w, err)
				}
			}
		}
	}
	test(t, rows)
	if ents, err := os.ReadDir(good); err != nil || len(ents) != 0 {
		t.Errorf("%v left, %v", ents, err)
	}

	t.Run("owners", func(t *testing.T) {
		asRoot(t)
		const stranger, group = 54321, 54322
		if err := os.Chmod(base, 0o755); err != nil { // for the stranger, below
			t.Fatal(err)
		}
		test(t, []row{
			// root reads everybody's rings.
			{"a stranger's", Dir{dir("s700", 0o700, stranger, -1), -1}, ErrDirInsecure, nil},
			{"a stranger's, group mode", Dir{dir("s2770", 0o2770, stranger, group), group}, ErrDirInsecure, nil},
			{"of another group", Dir{dir("g2770", 0o2770, -1, group), group + 1}, ErrDirInsecure, nil},
			{"of that group", Dir{filepath.Join(base, "g2770"), group}, nil, nil},
		})
		// In group mode files go to the group.
		w := create(t, Dir{filepath.Join(base, "g2770"), group}, smallGeometry)
		var st unix.Stat_t
		if err := unix.Lstat(w.Path(), &st); err != nil || st.Gid != group || st.Mode&0o777 != 0o640 {
			t.Errorf("gid %d, mode %#o, %v", st.Gid, st.Mode, err)
		}
		// What root asks of a stranger's engine, that engine can read.
		p := filepath.Join(base, "s700", strings.Repeat("a", 32)+Suffix)
		if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, stranger, group), WriteControl(p, Control{ID: "x"})); err != nil {
			t.Fatal(err)
		}
		if err := unix.Lstat(p+ControlSuffix, &st); err != nil || st.Uid != stranger || st.Gid != group || st.Mode&0o777 != 0o600 {
			t.Errorf("owner %d:%d, mode %#o, %v", st.Uid, st.Gid, st.Mode, err)
		}
	})
}

func TestList(t *testing.T) {
	d := privateDir(t)
	now := time.Now()
	for i, name := range []string{"b.ring", "a.ring", "c.ring", "d.ring"} {
		p := filepath.Join(d.Path, name)
		at := now.Add(-time.Duration(min(i, 2)) * time.Hour) // c and d at one time
		if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Chtimes(p, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"x.ring.control", ".hidden.ring", ".y.ring.tmp", "note.txt", "ring"} {
		if err := os.WriteFile(filepath.Join(d.Path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(d.Path, "dir.ring"), 0o700), os.Symlink("a.ring", filepath.Join(d.Path, "link.ring"))); err != nil {
		t.Fatal(err)
	}
	got, err := d.List()
	want := []string{"c.ring", "d.ring", "a.ring", "b.ring"}
	for i := range want {
		want[i] = filepath.Join(d.Path, want[i])
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if l, err := (Dir{filepath.Join(d.Path, "none"), -1}).List(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", l, err)
	}
}

// TestRemoveDead: a starting producer leaves the newest two dead rings, every live
// one, and whatever is not its own kind of file.
func TestRemoveDead(t *testing.T) {
	d := privateDir(t)
	now := time.Now()
	in := func(name string) string { return filepath.Join(d.Path, name) }
	aged := func(p string, age time.Duration) string {
		t.Helper()
		if err := os.Chtimes(p, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		return filepath.Base(p)
	}
	touch := func(name string, age time.Duration) string {
		t.Helper()
		if err := os.WriteFile(in(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return aged(in(name), age)
	}
	id := func(c string) string { return strings.Repeat(c, 32) + Suffix }

	live := create(t, d, smallGeometry)
	want := []string{aged(live.Path(), 100*time.Hour)} // older than all, and alive
	var dead []string
	for i := range 5 {
		name := touch(id(string(rune('a'+i))), time.Duration(10-i)*time.Hour)
		touch(name+ControlSuffix, time.Second)
		dead = append(dead, name)
	}
	for _, keep := range dead[3:] {
		want = append(want, keep, keep+ControlSuffix)
	}
	// Not of the names that this package gives.
	want = append(want,
		touch("recording.ring", 50*time.Hour), touch(strings.Repeat("A", 32)+".ring", 50*time.Hour),
		touch("note.txt", 50*time.Hour), touch(".note.ring.tmp", 50*time.Hour), touch("note.control", 50*time.Hour))
	if err := errors.Join(os.Symlink("/dev/null", in(id("9"))), os.Mkdir(in(id("8")), 0o700)); err != nil {
		t.Fatal(err)
	}
	want = append(want, id("9"), id("8"))
	// What failed half-way: removed when it is old and nobody holds it.
	touch("."+id("1")+".tmp", 2*time.Minute)
	touch("."+id("2")+".control.1234.tmp", 2*time.Minute)
	touch(id("3")+ControlSuffix, 2*time.Minute)
	want = append(want, touch("."+id("4")+".tmp", 50*time.Second), touch("."+id("5")+".control.1.tmp", 50*time.Second), touch(id("6")+ControlSuffix, 50*time.Second))
	held := touch("."+id("7")+".tmp", time.Hour)
	want = append(want, held)
	fd, err := unix.Open(in(held), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}

	started := create(t, d, smallGeometry)
	want = append(want, filepath.Base(started.Path()))
	wantLeft(t, d, want)
	(Dir{in("none"), -1}).removeDead(0) // no directory, nothing to do
}

// wantLeft holds the names of the files in d against want, in any order.
func wantLeft(t *testing.T, d Dir, want []string) {
	t.Helper()
	ents, err := os.ReadDir(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range ents {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestCreateAgain: many runs one after the other leave two dead rings beside
// the live one.
func TestCreateAgain(t *testing.T) {
	d := privateDir(t)
	for range 6 {
		w, err := Create(d, Options{Geometry: smallGeometry})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	create(t, d, smallGeometry)
	if l, err := d.List(); len(l) != 3 || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	if w, err := Create(privateDir(t), Options{Geometry: Geometry{LogEntries: 65}}); !errors.Is(err, ErrGeometry) {
		t.Errorf("%v, %v", w, err)
	}
	if w, err := NewHeap(Options{Geometry: Geometry{LogEntries: 65}}); !errors.Is(err, ErrGeometry) {
		t.Errorf("%v, %v", w, err)
	}
}

// TestReadersRemoveDead: a reader removes what a starting producer would, of the rings
// that it is done with.
func TestReadersRemoveDead(t *testing.T) {
	d := privateDir(t)
	now := time.Now()
	live := create(t, d, smallGeometry)
	want := []string{filepath.Base(live.Path())}
	name := func(i int) string { return strings.Repeat(string(rune('a'+i)), 32) + Suffix }
	for i := range 5 {
		for _, s := range []string{"", ControlSuffix} {
			p := filepath.Join(d.Path, name(i)+s)
			at := now.Add(time.Duration(i-9) * time.Hour)
			if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Chtimes(p, at, at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The second is not done with; the last two stay anyway.
	n, err := d.RemoveDead(func(p string) bool { return filepath.Base(p) != name(1) })
	if n != 2 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	for _, i := range []int{1, 3, 4} {
		want = append(want, name(i), name(i)+ControlSuffix)
	}
	wantLeft(t, d, want)
	if n, err := d.RemoveDead(nil); n != 1 || err != nil {
		t.Errorf("then removed %d, %v", n, err)
	}
	if _, err := (Dir{filepath.Join(d.Path, "none"), -1}).RemoveDead(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestStaleVersionStopsNobody: files that another release left do not keep an engine
// from starting, and go as dead rings do.
func TestStaleVersionStopsNobody(t *testing.T) {
	d := privateDir(t)
	w := create(t, d, smallGeometry)
	raw, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	raw[offVersion] = LayoutVersion + 1
	var stale []string
	for i := range 3 {
		p := filepath.Join(d.Path, strings.Repeat(string(rune('a'+i)), 32)+Suffix)
		at := time.Now().Add(time.Duration(i-9) * time.Hour)
		if err := errors.Join(os.WriteFile(p, raw, 0o600), os.Chtimes(p, at, at)); err != nil {
			t.Fatal(err)
		}
		stale = append(stale, p)
	}
	var v *VersionError
	if _, err := Open(stale[0], ReaderOptions{}); !errors.As(err, &v) || v.Version != LayoutVersion+1 {
		t.Errorf("reading one: %v", err)
	}
	after := create(t, d, smallGeometry)
	if r, err := Open(after.Path(), ReaderOptions{}); err != nil {
		t.Errorf("the new engine's ring: %v", err)
	} else {
		r.Close()
	}
	for i, p := range stale {
		if _, err := os.Lstat(p); (err == nil) != (i > 0) {
			t.Errorf("stale file %d: %v", i, err)
		}
	}
}
