package spanring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
// /dev/shm/lanetrace-UID; LANETRACE_GROUP (a name's number) makes it group mode.
// made is false when the directory was named and so is not ours to create.
func DefaultDir(getenv func(string) string) (d Dir, named bool, err error) {
	d = Dir{Path: getenv("LANETRACE_DIR"), Group: -1}
	if g := getenv("LANETRACE_GROUP"); g != "" {
		if d.Group, err = strconv.Atoi(g); err != nil || d.Group < 0 {
			return d, false, fmt.Errorf("LANETRACE_GROUP=%q: want a group's number", g)
		}
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

// Make creates the directory if it is missing and then checks it.
func (d Dir) Make() error {
	err := os.Mkdir(d.Path, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make ring directory %s: %w", d.Path, bare(err))
	}
	if err == nil {
		if d.Group >= 0 {
			if err := os.Chown(d.Path, -1, d.Group); err != nil {
				return fmt.Errorf("give ring directory %s to group %d: %w", d.Path, d.Group, bare(err))
			}
		}
		if err := os.Chmod(d.Path, d.dirMode()); err != nil {
			return fmt.Errorf("set mode of ring directory %s: %w", d.Path, bare(err))
		}
	}
	return d.Check()
}

// Check refuses a directory in which somebody else could plant or swap files: it
// must be a directory and no link, belong to this user (in group mode also to
// root), and be open to nobody else (in group mode: not to others).
func (d Dir) Check() error {
	var st unix.Stat_t
	if err := unix.Lstat(d.Path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%w: %s: create it or set LANETRACE_DIR", ErrDirMissing, d.Path)
		}
		return fmt.Errorf("ring directory %s: %w", d.Path, err)
	}
	uid := uint32(os.Getuid())
	perm := st.Mode & 0o777
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%w: %s is a symbolic link", ErrDirInsecure, d.Path)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%w: %s is not a directory", ErrDirInsecure, d.Path)
	case st.Uid != uid && (d.Group < 0 || st.Uid != 0):
		return fmt.Errorf("%w: %s belongs to user %d, not to user %d: set LANETRACE_DIR to a directory of your own", ErrDirInsecure, d.Path, st.Uid, uid)
	case d.Group < 0 && perm&0o077 != 0:
		return fmt.Errorf("%w: %s has mode %#o, want 0700: chmod 700 it, or set LANETRACE_GROUP to share it", ErrDirInsecure, d.Path, perm)
	case d.Group >= 0 && perm&0o007 != 0:
		return fmt.Errorf("%w: %s has mode %#o, want 02770: chmod o-rwx it", ErrDirInsecure, d.Path, perm)
	}
	return nil
}

// CheckReadable refuses a directory for a reader: missing, a link, no directory,
// or open to writing by others. Its owner may be somebody else, as in group mode.
func (d Dir) CheckReadable() error {
	var st unix.Stat_t
	if err := unix.Lstat(d.Path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%w: %s: start an engine, create it, or set --dir", ErrDirMissing, d.Path)
		}
		return fmt.Errorf("ring directory %s: %w", d.Path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%w: %s is a symbolic link", ErrDirInsecure, d.Path)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%w: %s is not a directory", ErrDirInsecure, d.Path)
	case st.Mode&0o002 != 0:
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

// List returns the paths of the ring files, oldest first.
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

// removeDead removes dead rings beyond the newest keep, their control files, and
// leftover temporaries. It works on a best effort: what cannot be removed stays.
func (d Dir) removeDead(keep int) {
	paths, err := d.List()
	if err != nil {
		return
	}
	var dead []string
	for _, p := range paths {
		if alive, err := fileLocked(p); err == nil && !alive {
			dead = append(dead, p)
		}
	}
	for len(dead) > keep {
		os.Remove(dead[0])
		os.Remove(dead[0] + ControlSuffix)
		dead = dead[1:]
	}
	ents, err := os.ReadDir(d.Path)
	if err != nil {
		return
	}
	for _, e := range ents {
		if !strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), Suffix+".tmp") {
			continue
		}
		fi, err := e.Info()
		if err != nil || time.Since(fi.ModTime()) < staleTemporary {
			continue
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
