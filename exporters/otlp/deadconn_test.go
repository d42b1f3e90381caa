package otlp

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// cable is what lies between an exporter and its receiver.
type cable struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	dead  int // of conns, from the first on: what they send is lost, and nobody says so
	wait  sync.WaitGroup
}

// newCable leads to the address to.
func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{Listener: l, to: to}
	c.wait.Go(c.serve)
	t.Cleanup(func() {
		l.Close()
		c.mu.Lock()
		for _, x := range c.conns {
			x.Close()
		}
		c.mu.Unlock()
		c.wait.Wait()
	})
	return c
}

func (c *cable) serve() {
	for {
		near, err := c.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", c.to)
		if err != nil {
			near.Close()
			continue
		}
		c.mu.Lock()
		at := len(c.conns)
		c.conns = append(c.conns, near, far)
		c.mu.Unlock()
		c.wait.Go(func() { c.carry(far, near, at) })
		c.wait.Go(func() { c.carry(near, far, at) })
	}
}

// carry carries what comes from src to dst, which are at place at.
func (c *cable) carry(dst, src net.Conn, at int) {
	b := make([]byte, 64<<10)
	for {
		n, err := src.Read(b)
		c.mu.Lock()
		dead := at < c.dead
		c.mu.Unlock()
		if dead {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			_, werr := dst.Write(b[:n])
			if err == nil {
				err = werr
			}
		}
		if err != nil {
			dst.Close()
			return
		}
	}
}

// cut makes the connections that there are dead.
func (c *cable) cut() {
	c.mu.Lock()
	c.dead = len(c.conns)
	c.mu.Unlock()
}

// TestDeadConnection: a receiver's machine that is gone closes no connection, and what
// takes its place knows nothing of it: the kernel alone would try for a quarter of an
// hour. Where nothing comes back a new one is made.
func TestDeadConnection(t *testing.T) {
	t.Run("gRPC", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := newCable(t, strings.TrimPrefix(s.addr, "http://"))
		testDeadConnection(t, c, Options{Endpoint: "http://" + c.Addr().String()}, s.got)
	})
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		ca, _, _ := issue(t, "authority", nil)
		_, cert, _ := issue(t, "server", ca)
		got := make(chan struct{}, 100)
		h := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.ProtoMajor != 2 {
				t.Errorf("%s, %v", r.Proto, err)
			}
			got <- struct{}{}
		}))
		h.EnableHTTP2 = true
		h.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		h.StartTLS()
		t.Cleanup(h.Close)
		c := newCable(t, h.Listener.Addr().String())
		testDeadConnection(t, c, Options{Endpoint: "https://" + c.Addr().String(), Getenv: func(k string) string {
			return map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_CERTIFICATE": ca.pem}[k]
		}}, got)
	})
}

func testDeadConnection(t *testing.T, c *cable, o Options, got <-chan struct{}) {
	o.FlushEvery = time.Millisecond
	x := newExporter(t, o)
	src, p := newEngine(t, x, testInfo)
	for n := range uint64(2) {
		src.push(simpleStep(n+1, 1)...)
		poll(t, p)
		select {
		case <-got:
		case <-time.After(3 * time.Minute): // 22 s where nothing else runs
			t.Fatalf("step %d did not arrive within three minutes", n+1)
		}
		c.cut()
	}
}
