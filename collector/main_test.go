package collector

import (
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LANETRACE_TEST_VICTIM"); dir != "" {
		victim(dir)
	}
	goleak.VerifyTestMain(m)
}

// victim is an engine that is killed in the middle of a step.
func victim(dir string) {
	w, err := spanring.Create(spanring.Dir{Path: dir, Group: -1}, spanring.Options{
		Geometry: smallRing, Info: spanring.Info{Service: "victim", Rank: spanring.NoRank},
	})
	if err != nil {
		panic(err)
	}
	name := w.Name(spanring.NameLane, "decode")
	for n := uint64(1); n <= 5; n++ {
		writeStep(w, n, name)
	}
	w.Add(spanring.CtrBegun, 3)
	at := spanring.MonoNS()
	for _, e := range []wordser{begin(6, at), lane(6, 1, name, at, 1000)} {
		words := e.Words()
		w.Append(&words)
	}
	w.Add(spanring.CtrLanded, 1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}
