package recording

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/synth"
)

var update = flag.Bool("update", false, "write the fuzz seeds anew")

// TestSeeds writes, with -update, what FuzzReader begins with: a recording of two
// runs, and the ways in which one is cut or damaged.
func TestSeeds(t *testing.T) {
	whole, _ := recordBytes(t, Options{FlushEntries: 40, FlushEvery: 10 * time.Millisecond},
		synth.New(synth.Options{Duration: 30 * time.Millisecond, KernelEvery: 16, FailEvery: 5}),
		synth.New(synth.Options{Duration: 5 * time.Millisecond, Seed: 1}))
	at, _ := blockAt(t, whole)
	mid := at[len(at)/2]
	flipped := bytes.Clone(whole)
	flipped[mid+blockHeaderSize+3] ^= 0x40
	seeds := map[string][]byte{
		"two_runs":       whole,
		"cut_in_block":   whole[:mid+30],
		"cut_in_header":  whole[:mid+3],
		"cut_between":    whole[:mid],
		"flipped_bit":    flipped,
		"later_version":  append(appendFileHeader(nil, Version+1, "x"), whole[fileHeaderSize:]...),
		"optional_block": bytes.Join([][]byte{whole[:mid], rawBlock(99, flagOptional, 1, "x"), whole[mid:]}, nil),
		"readings":       withReadings(t, Options{FlushEvery: 500 * time.Millisecond}, time.Second),
		"empty":          {},
		"text":           []byte("LTREC\n"),
	}
	dir := filepath.Join("testdata", "fuzz", "FuzzReader")
	for name, b := range seeds {
		path := filepath.Join(dir, name)
		if *update {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", b), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%v: write it with -update", err)
		}
	}
}
