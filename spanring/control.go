package spanring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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

// ReadControl reads the control file of the ring at ringPath.
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
	b := make([]byte, maxControlBytes+1)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return c, fmt.Errorf("read control file %s%s: %w", ringPath, ControlSuffix, err)
	}
	if n > maxControlBytes {
		return c, fmt.Errorf("control file %s%s: over %d bytes", ringPath, ControlSuffix, maxControlBytes)
	}
	if err := json.Unmarshal(b[:n], &c); err != nil {
		return Control{}, fmt.Errorf("control file %s%s: %w", ringPath, ControlSuffix, err)
	}
	return c, nil
}

// WriteControl replaces the control file of the ring at ringPath. Who may is
// decided by the directory's permissions. In a group directory the file can be
// read by the group.
func WriteControl(ringPath string, c Control) (err error) {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode control request: %w", err)
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
	if st, serr := os.Stat(ringPath); serr == nil && st.Mode()&0o040 != 0 {
		mode = 0o640
	}
	_, werr := f.Write(append(b, '\n'))
	if err := errors.Join(werr, f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("write control file for %s: %w", ringPath, bare(err))
	}
	if err := os.Rename(f.Name(), ringPath+ControlSuffix); err != nil {
		return fmt.Errorf("put control file for %s in place: %w", ringPath, bare(err))
	}
	return nil
}
