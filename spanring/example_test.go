package spanring_test

import (
	"fmt"
	"log"
	"os"

	"github.com/lanetrace/lanetrace/spanring"
)

// An engine writes two steps; a reader, here in the same process, follows the
// file and accounts for every sequence number.
func Example() {
	path, err := os.MkdirTemp("", "rings")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(path) //nolint:errcheck // at the end of the program
	dir := spanring.Dir{Path: path, Group: -1}

	w, err := spanring.Create(dir, spanring.Options{Info: spanring.Info{Service: "decode"}})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // likewise
	for step := uint64(1); step <= 2; step++ {
		e := (&spanring.StepBegin{Step: step, MonoNS: spanring.MonoNS()}).Words()
		w.Append(&e)
	}

	r, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // likewise
	buf := make([]spanring.Entry, 64)
	n, err := r.Poll(buf, spanring.MonoNS())
	if err != nil {
		log.Fatal(err)
	}
	for i := range buf[:n] {
		b, err := buf[i].Words.StepBegin()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("entry %d: %v %d\n", buf[i].Seq, buf[i].Words.Kind(), b.Step)
	}
	a := r.Account()
	fmt.Printf("published %d = received %d + lost %d + missed %d\n", a.Published, a.Received, a.Lost, a.Missed)
	// Output:
	// entry 0: step_begin 1
	// entry 1: step_begin 2
	// published 2 = received 2 + lost 0 + missed 0
}
