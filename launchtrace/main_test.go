package launchtrace

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trace is a trace of ops, which are right.
func trace(t testing.TB, ops ...Op) *Trace {
	t.Helper()
	tr, err := NewTrace("decode", 0, ops)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// kernel is a launch that tests do not look at but for its name and arguments.
func kernel(name string, args ...uint64) Op {
	return Op{Kind: KindKernel, Func: 0x100, Name: name, Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{128, 1, 1}, Args: args}
}
