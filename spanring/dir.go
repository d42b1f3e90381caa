package spanring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Suffix ends the name of a ring file: RUNID.ring.
const Suffix = ".ring"

// ControlSuffix is appended to a ring's path for its control file.
const ControlSuffix = ".control"

// keepDead is how many dead rings a starting producer leaves in the directory.
const keepDead = 2

// staleTemporary is the age at which an unlocked temporary is somebody's
// leftover: creation takes milliseconds.
const staleTemporary = time.Minute

// Errors about the ring directory, wrapped with its path and what to do.
var (
	ErrDirMissing  = errors.New("ring directory does not exist")
	ErrDirInsecure = errors.New("ring directory refused")
)

// Dir is a ring directory and who may read the rings in it.
type Dir struct {
	Path string
	// Group, when not -1, is the group that may read the rings: the directory has
	// mode 2770 and the files 0640. Otherwise 0700 and 0600.
	Group int
}

// DefaultDir is the directory named by LANETRACE_DIR, else
// /dev/shm/lanetrace-UID; LANETRACE_GROUP, a group's number, makes it group mode.
// named is true for LANETRACE_DIR: that directory is its operator's to create.
func DefaultDir(getenv func(string) string) (d Dir, named bool, err error) {
	d = Dir{Path: getenv("LANETRACE_DIR"), Group: -1}
	if g := getenv("LANETRACE_GROUP"); g != "" {
		// The last number, all ones, means "no group" to chown.
		n, err := strconv.ParseUint(g, 10, 32)
		if err != nil || n >= 1<<32-1 {
			return d, d.Path != "", fmt.Errorf("LANETRACE_GROUP=%q: want a group's number", g)
		}
		d.Group = int(n)
	}
	if d.Path != "" {
		return d, true, nil
	}
	d.Path = fmt.Sprintf("/dev/shm/lanetrace-%d", os.Getuid())
	return d, false, nil
}

func (d Dir) dirMode() os.FileMode {
	if d.Group >= 0 {
		return 0o770 | os.ModeSetgid
	}
	return 0o700
}

func (d Dir) fileMode() os.FileMode {
	if d.Group >= 0 {
		return 0o640
	}
	return 0o600
}

// Make creates the directory if it is missing (not those above it) and then
// checks it. Several processes may do so at once: it appears with its final mode.
func (d Dir) Make() error {
	_, err := os.Lstat(d.clean())
	if d.Path == "" || err == nil || !errors.Is(err, fs.ErrNotExist) {
		return d.Check()
	}
	if err := d.create(); err != nil {
		return err
	}
	return d.Check()
}

func (d Dir) create() error {
	path := d.clean()
	tmp, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("make ring directory %s: %w", path, bare(err))
	}
	defer os.Remove(tmp) // fails once it is renamed
	if d.Group >= 0 {
		if err := os.Chown(tmp, -1, d.Group); err != nil {
			return fmt.Errorf("give ring directory %s to group %d: %w", path, d.Group, bare(err))
		}
	}
	if err := os.Chmod(tmp, d.dirMode()); err != nil {
		return fmt.Errorf("set mode of ring directory %s: %w", path, bare(err))
	}
	err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// A file system that cannot refuse to replace. What could be replaced is an
		// empty directory, by another one.
		err = unix.Rename(tmp, path)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("make ring directory %s: %w", path, err)
	}
	return nil
}

// clean is the path without a trailing slash, behind which lstat would follow a
// symbolic link.
func (d Dir) clean() string { return filepath.Clean(d.Path) }

// stat looks at the directory itself, whose path must not be a symbolic link.
// what says how to come by one that is missing.
func (d Dir) stat(what string) (st unix.Stat_t, err error) {
	if d.Path == "" {
		return st, fmt.Errorf("%w: no path: %s", ErrDirMissing, what)
	}
	if err := unix.Lstat(d.clean(), &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return st, fmt.Errorf("%w: %s: %s", ErrDirMissing, d.Path, what)
		}
		return st, fmt.Errorf("ring directory %s: %w", d.Path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return st, nil
	case unix.S_IFLNK:
		return st, fmt.Errorf("%w: %s is a symbolic link: name the directory itself", ErrDirInsecure, d.Path)
	}
	return st, fmt.Errorf("%w: %s is not a directory", ErrDirInsecure, d.Path)
}

// Check refuses a directory in which somebody else could plant or swap files, or
// which readers could not use: it must be a directory and no link, belong to this
// user (in group mode also to root), and be open to nobody else (in group mode:
// to that group, which files made there inherit).
func (d Dir) Check() error {
	st, err := d.stat("create it or set LANETRACE_DIR")
	if err != nil {
		return err
	}
	uid := uint32(os.Getuid())
	perm := st.Mode & 0o7777
	switch {
	case st.Uid != uid && (d.Group < 0 || st.Uid != 0):
		return fmt.Errorf("%w: %s belongs to user %d, not to user %d: set LANETRACE_DIR to a directory of your own", ErrDirInsecure, d.Path, st.Uid, uid)
	case d.Group < 0 && perm&0o077 != 0:
		return fmt.Errorf("%w: %s has mode %#o, want 0700: chmod 700 it, or set LANETRACE_GROUP to share it", ErrDirInsecure, d.Path, perm)
	case d.Group >= 0 && st.Gid != uint32(d.Group):
		return fmt.Errorf("%w: %s belongs to group %d, not to group %d: chgrp it, or set LANETRACE_GROUP", ErrDirInsecure, d.Path, st.Gid, d.Group)
	case d.Group >= 0 && perm&0o2077 != 0o2070:
		return fmt.Errorf("%w: %s has mode %#o, want 02770: chmod 2770 it", ErrDirInsecure, d.Path, perm)
	}
	return nil
}

// CheckReadable refuses a directory for a reader: missing, a link, no directory,
// or open to writing by others. Its owner may be somebody else, as in group mode.
func (d Dir) CheckReadable() error {
	st, err := d.stat("start an engine, create it, or set --dir")
	if err != nil {
		return err
	}
	if st.Mode&0o002 != 0 {
		return fmt.Errorf("%w: %s can be written by everybody: chmod o-w it", ErrDirInsecure, d.Path)
	}
	uid := uint32(os.Getuid())
	if uid != 0 && st.Uid != uid && d.Group < 0 {
		return fmt.Errorf("%w: %s belongs to user %d, not to user %d: set LANETRACE_GROUP to read another user's rings", ErrDirInsecure, d.Path, st.Uid, uid)
	}
	if _, err := os.ReadDir(d.Path); err != nil {
		return fmt.Errorf("read ring directory %s: %w", d.Path, bare(err))
	}
	return nil
}

// List returns the paths of the ring files, oldest first by the time of their
// last change. What is no regular file, or whose name begins with a dot, is left
// out; whether a file is a ring, Open says.
func (d Dir) List() ([]string, error) {
	ents, err := os.ReadDir(d.Path)
	if err != nil {
		return nil, fmt.Errorf("read ring directory %s: %w", d.Path, bare(err))
	}
	type ring struct {
		path string
		at   time.Time
	}
	var rings []ring
	for _, e := range ents {
		if !strings.HasSuffix(e.Name(), Suffix) || strings.HasPrefix(e.Name(), ".") || !e.Type().IsRegular() {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		rings = append(rings, ring{filepath.Join(d.Path, e.Name()), fi.ModTime()})
	}
	slices.SortFunc(rings, func(a, b ring) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(a.path, b.path)
	})
	paths := make([]string, len(rings))
	for i, r := range rings {
		paths[i] = r.path
	}
	return paths, nil
}

// ringName is what Create calls a ring. Only files of that name, and those that
// come with them, are ever removed: a directory may hold other people's.
var ringName = regexp.MustCompile(`^[0-9a-f]{32}\` + Suffix + `$`)

// leftover is the name of a temporary of Create or WriteControl, or of a control
// file.
var leftover = regexp.MustCompile(`^\.[0-9a-f]{32}\` + Suffix + `(\.control\.[0-9]+)?\.tmp$|^([0-9a-f]{32}\` + Suffix + `)\.control$`)

// RemoveDead removes dead rings beyond the newest two, with their control files, as
// every starting producer does: it is for readers beside engines of which none
// starts any more. may, if not nil, is asked of each ring that would go; one of which
// it says no stays. What cannot be removed stays too, and is the error. It asks the
// kernel for the lock of each ring and waits for nothing.
func (d Dir) RemoveDead(may func(path string) bool) (removed int, err error) {
	dead, err := d.dead(keepDead)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, p := range dead {
		if may != nil && !may(p) {
			continue
		}
		err := os.Remove(p)
		switch {
		case err == nil:
			removed++
			os.Remove(p + ControlSuffix)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("remove dead ring %s: %w", p, bare(err)))
		}
	}
	return removed, errors.Join(errs...)
}

// dead are the dead rings beyond the newest keep, oldest first.
func (d Dir) dead(keep int) ([]string, error) {
	paths, err := d.List()
	if err != nil {
		return nil, err
	}
	dead := slices.DeleteFunc(paths, func(p string) bool {
		if !ringName.MatchString(filepath.Base(p)) {
			return true
		}
		alive, err := fileLocked(p)
		return err != nil || alive
	})
	return dead[:max(0, len(dead)-keep)], nil
}

// removeDead removes dead rings beyond the newest keep, their control files, and
// what creations and requests that failed half-way left behind. It works on a
// best effort: what cannot be removed stays.
func (d Dir) removeDead(keep int) {
	dead, err := d.dead(keep)
	if err != nil {
		return
	}
	for _, p := range dead {
		os.Remove(p)
		os.Remove(p + ControlSuffix)
	}
	ents, err := os.ReadDir(d.Path)
	if err != nil {
		return
	}
	for _, e := range ents {
		m := leftover.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() {
			continue
		}
		fi, err := e.Info()
		if err != nil || time.Since(fi.ModTime()) < staleTemporary {
			continue
		}
		if ring := m[2]; ring != "" {
			if _, err := os.Lstat(filepath.Join(d.Path, ring)); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		p := filepath.Join(d.Path, e.Name())
		if alive, err := fileLocked(p); err == nil && !alive {
			os.Remove(p)
		}
	}
}

// fileLocked reports whether a producer holds the file's lock.
func fileLocked(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	return fdLocked(fd)
}

// fdLocked asks for the producer's open-file-description lock without taking
// one, so that readers cannot disturb each other or the producer.
func fdLocked(fd int) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("ask for the ring's lock: %w", err)
	}
	return lk.Type != unix.F_UNLCK, nil
}

// bare strips the operation and path that os puts around an errno: the caller's
// own wrapping says both.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
