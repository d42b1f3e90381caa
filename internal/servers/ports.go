package servers

import (
	"fmt"
	"net"
	"testing"
)

// freePorts returns n ports of 127.0.0.1 that nobody listens on. Another process
// can take one before a server does; Start then tries others.
func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	ports := make([]int, n)
	for i := range ports {
		// Held until all are there, so that they differ.
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(fmt.Errorf("find a free port: %w", err))
		}
		defer l.Close() //nolint:errcheck // nothing was accepted
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// local is PORT on loopback, as HOST:PORT.
func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
