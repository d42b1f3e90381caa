package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// countFDs is how many descriptors a process has open.
func countFDs(pid int) (int, error) {
	ents, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("count descriptors: %w", err)
	}
	return len(ents), nil
}

// rssAnonKiB is a process's anonymous resident memory.
func rssAnonKiB(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read a process's memory: %w", err)
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, "RssAnon:"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				return 0, fmt.Errorf("read a process's memory: %w", err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon: it has ended", pid)
}
