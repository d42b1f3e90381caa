// Package wholefile writes small files that are seen whole or not at all.
package wholefile

import (
	"errors"
	"io/fs"
	"os"
)

// Replace writes b to path, in a file of that name and ".tmp" first, which takes path's
// place. What lies at either name, a link too, is replaced and not written through; on
// an error path is as it was and nothing is left beside it. One process at a time may
// write to a path.
func Replace(path string, b []byte, mode fs.FileMode) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
