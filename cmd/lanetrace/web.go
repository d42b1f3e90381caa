package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"

	page "github.com/lanetrace/lanetrace/dashboards/web"
)

// webFlags say who may read what is served, and how.
type webFlags struct {
	WebConfig string `help:"Serve with TLS, passwords or both, as this file says: the web configuration of Prometheus exporters (default: plain HTTP)." placeholder:"FILE"`
}

// Bounds of the web server. Nothing that it serves takes a second, and no request
// has a body, so they are there for clients that do not mean well.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	// maxHeaderBytes is what a request may send before its end: a path and a
	// password are a few hundred bytes.
	maxHeaderBytes = 16 << 10
	// maxConns bounds the file descriptors that clients can take from the rings.
	maxConns = 128
)

// webConfig is what of the web configuration matters before the server has it.
// The zero value is plain HTTP.
type webConfig struct {
	path      string
	tls, auth bool
}

// loadWeb reads what the flags name.
func (f *webFlags) loadWeb() (webConfig, error) { return loadWebConfig(f.WebConfig) }

// loadWebConfig checks the web configuration at path and what it names, so that a
// mistake ends the program before anything has begun. The server reads them again
// with each connection: certificates and passwords can be replaced meanwhile.
func loadWebConfig(path string) (webConfig, error) {
	c := webConfig{path: path}
	if path == "" {
		return c, nil
	}
	fail := func(err error) (webConfig, error) {
		var pe *fs.PathError
		if errors.As(err, &pe) && pe.Path == path {
			err = pe.Err
		}
		text := strings.Join(strings.Fields(err.Error()), " ") // YAML's errors are tables
		if strings.HasPrefix(text, "crypto/bcrypt:") {
			text = "basic_auth_users: want bcrypt hashes, not passwords: " + text
		}
		return webConfig{}, fmt.Errorf("web configuration %s: %s", path, text)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	if err := web.Validate(path); err != nil {
		return fail(err)
	}
	var f web.Config
	if err := yaml.UnmarshalStrict(b, &f); err != nil {
		return fail(err)
	}
	c.tls, c.auth = f.TLSConfig.IsEnabled(), len(f.Users) > 0
	if !c.tls && !c.auth && len(f.HTTPConfig.Header) == 0 && f.RateLimiterConfig.Interval == 0 {
		// Somebody meant to protect something.
		return fail(errors.New("it sets nothing: want tls_server_config, basic_auth_users or both"))
	}
	return c, nil
}

// scheme is that of the URLs served.
func (c webConfig) scheme() string {
	if c.tls {
		return "https"
	}
	return "http"
}

// exposure says what others on the network can see of a server at addr, "" for
// nothing.
func (c webConfig) exposure(addr net.Addr) string {
	a, ok := addr.(*net.TCPAddr)
	switch {
	case !ok || a.IP.IsLoopback() || c.tls:
		return ""
	case c.auth:
		return fmt.Sprintf("%s is open to the network without TLS: passwords and metrics travel in the clear; add tls_server_config to %s", a, c.path)
	}
	return fmt.Sprintf("%s is open to the network without TLS: whoever reaches it can read the metrics; give --web-config, or listen on 127.0.0.1", a)
}

// newWebServer makes the server of handler, to be started with serveWeb.
func newWebServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           readOnly(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// "OPTIONS *" is answered like every other request.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     newErrorLog(log),
	}
}

// serveWeb answers on l until the server is shut down. It takes l. log should be
// quiet: the library that knows the web configuration informs a lot.
func serveWeb(srv *http.Server, l net.Listener, c webConfig, log *slog.Logger) error {
	l = limitConns(l, maxConns)
	if c.path == "" {
		return srv.Serve(l)
	}
	return web.Serve(l, srv, &web.FlagConfig{WebConfigFile: &c.path}, log)
}

// readOnly refuses all that is not a plain read, whatever its path: nothing is
// written over HTTP. It says how browsers are to treat what is served.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		// The web configuration may have set these.
		if h.Get("X-Frame-Options") == "" {
			h.Set("X-Frame-Options", "deny")
		}
		if h.Get("Content-Security-Policy") == "" {
			h.Set("Content-Security-Policy", page.ContentSecurityPolicy)
		}
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			h.Set("Connection", "close") // its body is not read
			plain(w, http.StatusMethodNotAllowed, "only GET and HEAD: nothing is written over HTTP\n")
		case r.ContentLength != 0:
			h.Set("Connection", "close")
			plain(w, http.StatusRequestEntityTooLarge, "a request has no body here\n")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// errorLogEvery is how often the web server's errors are told at most: a port
// scanner must not fill a log.
const errorLogEvery = time.Minute

// errorLog is the web server's log: one line a minute, and how many were left out.
type errorLog struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	last   time.Time
	missed int
}

func newErrorLog(l *slog.Logger) *log.Logger {
	return log.New(&errorLog{log: l, now: time.Now}, "", 0)
}

// Write implements io.Writer.
func (e *errorLog) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.now(); e.last.IsZero() || now.Sub(e.last) >= errorLogEvery {
		e.log.Warn("web server: "+oneLine(string(p)), "left_out", e.missed)
		e.last, e.missed = now, 0
	} else {
		e.missed++
	}
	return len(p), nil
}

// limitConns is l with at most n connections at a time; more wait to be accepted.
func limitConns(l net.Listener, n int) net.Listener {
	return &connLimit{Listener: l, free: make(chan struct{}, n), closed: make(chan struct{})}
}

type connLimit struct {
	net.Listener
	free   chan struct{} // an element for each connection
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (l *connLimit) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-l.free })}, nil
}

// Close implements net.Listener.
func (l *connLimit) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite ends an answer whose request was not read to its end, without which
// the client would see the connection fail instead of the answer.
func (c *limitedConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
