//go:build !cgo

package dl

// Probe fails with ErrNoCgo.
func Probe(string) error { return ErrNoCgo }
