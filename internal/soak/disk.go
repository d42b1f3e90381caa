package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// disk is where the sidecar keeps recordings; it can be full.
type disk struct {
	path    string
	mounted bool
}

const diskBytes = 12 << 20

// newDisk mounts a small tmpfs at path. Where that is not permitted, a directory that
// nobody may write to for a while stands for a full one.
func newDisk(path string) (*disk, error) {
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the recordings' directory: %w", err)
	}
	d := &disk{path: path}
	d.mounted = syscall.Mount("lanetrace-soak", path, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", diskBytes)) == nil
	return d, nil
}

func (d *disk) String() string {
	if d.mounted {
		return fmt.Sprintf("tmpfs of %d MiB", diskBytes>>20)
	}
	return "directory without write permission (mounting is not permitted here)"
}

func (d *disk) filler() string { return filepath.Join(d.path, "filler") }

// fill leaves no room, empty gives it back.
func (d *disk) fill() error {
	if !d.mounted {
		return os.Chmod(d.path, 0o500)
	}
	f, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	defer f.Close()
	for chunk := make([]byte, 64<<10); len(chunk) > 0; {
		_, err := f.Write(chunk)
		switch {
		case err == nil:
		case errors.Is(err, syscall.ENOSPC):
			chunk = chunk[:len(chunk)/2] // to the last byte
		default:
			return fmt.Errorf("fill the disk: %w", err)
		}
	}
	return nil
}

func (d *disk) empty() error {
	if !d.mounted {
		return os.Chmod(d.path, 0o700)
	}
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("empty the disk: %w", err)
	}
	return nil
}

func (d *disk) close() error {
	if !d.mounted {
		return nil
	}
	if err := syscall.Unmount(d.path, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the recordings' directory: %w", err)
	}
	return nil
}
