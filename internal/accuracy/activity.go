package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// record is one activity record of CUPTI's: what an operation took on the GPU.
// Times are CUPTI's own, in ns.
type record struct {
	Kind        string
	StartNS     int64
	EndNS       int64
	Stream      uint32
	Correlation uint32
	Bytes       int64
	Name        string // of a kernel
}

// readActivity reads what cupti/activity.c wrote: a line a record, tab-separated,
// and at the end how many there were and how many CUPTI dropped. Records come back
// in order of start. Without that last line, or with records dropped, the file is
// no witness.
func readActivity(r io.Reader) ([]record, error) {
	var out []record
	ended := false
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		f := strings.Split(sc.Text(), "\t")
		if ended {
			return nil, fmt.Errorf("activity file, line %d: something behind the end", n)
		}
		bad := func() error { return fmt.Errorf("activity file, line %d: %.100q", n, sc.Text()) }
		switch {
		case len(f) == 3 && f[0] == "end":
			count, err1 := strconv.Atoi(f[1])
			dropped, err2 := strconv.ParseUint(f[2], 10, 64)
			if errors.Join(err1, err2) != nil {
				return nil, bad()
			}
			if count != len(out) || dropped != 0 {
				return nil, fmt.Errorf("activity file: %d records of %d, %d dropped", len(out), count, dropped)
			}
			ended = true
		case len(f) == 7 && (f[0] == opKernel || f[0] == opCopy || f[0] == opMemset):
			var v [5]int64
			for i := range v {
				x, err := strconv.ParseInt(f[i+1], 10, 64)
				if err != nil || x < 0 {
					return nil, bad()
				}
				v[i] = x
			}
			if v[1] < v[0] || v[2] > 1<<32-1 || v[3] > 1<<32-1 {
				return nil, bad()
			}
			out = append(out, record{f[0], v[0], v[1], uint32(v[2]), uint32(v[3]), v[4], f[6]})
		default:
			return nil, bad()
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("activity file: %w", err)
	}
	if !ended {
		return nil, errors.New("activity file: it has no end: the engine did not wait for its records")
	}
	slices.SortStableFunc(out, func(a, b record) int {
		switch {
		case a.StartNS < b.StartNS:
			return -1
		case a.StartNS > b.StartNS:
			return 1
		}
		return int(int64(a.Correlation) - int64(b.Correlation))
	})
	return out, nil
}
