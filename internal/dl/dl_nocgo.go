//go:build !cgo

package dl

// Probe fails with ErrNoCgo.
func Probe(string) error { return ErrNoCgo }

// Call fails with ErrNoCgo.
func Call(string, string) (int, error) { return 0, ErrNoCgo }
