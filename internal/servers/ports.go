package servers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// freePorts returns n ports of 127.0.0.1 that nobody listens on, of those that nobody
// is given who asks for any: a server that was stopped finds its ports free again.
// Another process can name one before a server does; start then tries others.
func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for range 100 + n {
		if len(ports) == n {
			break
		}
		port := 20_000 + rand.IntN(10_000)
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", local(port))
		if err != nil {
			continue
		}
		defer l.Close() //nolint:errcheck // nothing was accepted; held until all are there, so that they differ
		ports = append(ports, port)
	}
	if len(ports) < n {
		tb.Fatalf("only %d ports are free, want %d", len(ports), n)
	}
	return ports
}

// local is PORT on loopback, as HOST:PORT.
func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
