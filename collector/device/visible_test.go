package device

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Which GPU is whose is the driver's answer: no source parses the variable by which
// processes are shown some of the devices.
func TestNothingParsesVisibleDevices(t *testing.T) {
	const name = "CUDA_VISIBLE_" + "DEVICES"
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another test's
		}
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == "bin" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
				return filepath.SkipDir
			}
			return err
		}
		if !slices.Contains([]string{".go", ".c", ".h", ".py", ".sh", ".yaml"}, filepath.Ext(path)) {
			return nil
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		seen++
		if err == nil && strings.Contains(string(b), name) {
			t.Errorf("%s names %s", path, name)
		}
		return err
	})
	if err != nil || seen < 300 {
		t.Errorf("%d files, %v", seen, err)
	}
}
