package cuda

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// hostAvailable is what the kernel says that programs can still allocate, in
// bytes.
func hostAvailable() (int64, error) {
	const path = "/proc/meminfo"
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("cuda: the host's available memory: %w", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) != 3 || fields[0] != "MemAvailable:" || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || kib < 0 || kib > 1<<50 {
			return 0, fmt.Errorf("cuda: the host's available memory: %s says %q", path, sc.Text())
		}
		return kib << 10, nil
	}
	return 0, errors.Join(fmt.Errorf("cuda: the host's available memory: %s does not say", path), sc.Err())
}
