package spanring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxControlBytes is the most that is read of a control file.
const maxControlBytes = 4096

// Control is what an operator asks of an engine. It lies beside the ring as a
// small JSON file that is replaced by rename and read with pread, never mapped.
type Control struct {
	// Level is off, basic, lane or kernel; "" leaves it.
	Level string `json:"level,omitempty"`
	// ArmSteps asks for the next so many steps to be armed.
	ArmSteps uint32 `json:"arm_steps,omitempty"`
	// ID tells one request from another: the same ID is acted on once.
	ID string `json:"id"`
}

// ErrNoControl is returned by ReadControl when there is no control file.
var ErrNoControl = errors.New("no control file")

// ReadControl reads the control file of the ring at ringPath. It returns
// ErrNoControl when there is none, and an error for a link, for what is no regular
// file, is over 4 KiB, or is not the JSON of a Control; fields that it does not
// know are ignored. Whether a level exists is not its to say.
func ReadControl(ringPath string) (Control, error) {
	var c Control
	fd, err := unix.Open(ringPath+ControlSuffix, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return c, ErrNoControl
	}
	if err != nil {
		return c, fmt.Errorf("open control file %s%s: %w", ringPath, ControlSuffix, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return c, fmt.Errorf("stat control file %s%s: %w", ringPath, ControlSuffix, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return c, fmt.Errorf("control file %s%s: not a regular file", ringPath, ControlSuffix)
	}
	b := make([]byte, maxControlBytes+1)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return c, fmt.Errorf("read control file %s%s: %w", ringPath, ControlSuffix, err)
	}
	if n > maxControlBytes {
		return c, fmt.Errorf("control file %s%s: over %d bytes", ringPath, ControlSuffix, maxControlBytes)
	}
	c, err = parseControl(b[:n])
	if err != nil {
		return Control{}, fmt.Errorf("control file %s%s: %w", ringPath, ControlSuffix, err)
	}
	return c, nil
}

func parseControl(b []byte) (c Control, err error) {
	err = json.Unmarshal(b, &c)
	return c, err
}

// WriteControl replaces the control file of the ring at ringPath, which must
// exist. Who may is decided by the directory's permissions. In a group directory
// the file can be read by the group; one that root writes belongs to the ring's
// owner, so that the engine can read it.
func WriteControl(ringPath string, c Control) (err error) {
	ring, err := os.Lstat(ringPath)
	if err != nil {
		return fmt.Errorf("write control file for %s: %w", ringPath, bare(err))
	}
	if !ring.Mode().IsRegular() {
		return fmt.Errorf("write control file for %s: %w: no regular file", ringPath, ErrNotRing)
	}
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode control request: %w", err)
	}
	b = append(b, '\n')
	if len(b) > maxControlBytes {
		return fmt.Errorf("write control file for %s: %d bytes, at most %d are read", ringPath, len(b), maxControlBytes)
	}
	dir, base := filepath.Split(ringPath + ControlSuffix)
	f, err := os.CreateTemp(dir, "."+base+".*.tmp")
	if err != nil {
		return fmt.Errorf("write control file for %s: %w", ringPath, bare(err))
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	mode := fs.FileMode(0o600)
	if ring.Mode()&0o040 != 0 {
		mode = 0o640
	}
	_, werr := f.Write(b)
	var oerr error
	if st, ok := ring.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		oerr = f.Chown(int(st.Uid), int(st.Gid))
	}
	if err := errors.Join(werr, oerr, f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("write control file for %s: %w", ringPath, bare(err))
	}
	if err := os.Rename(f.Name(), ringPath+ControlSuffix); err != nil {
		return fmt.Errorf("put control file for %s in place: %w", ringPath, bare(err))
	}
	return nil
}
