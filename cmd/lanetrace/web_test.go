package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Hashes of the lowest cost.
const (
	sesameHash  = "$2a$04$NpoSMTrURvX434mckmXileRAMH.fN2zO7uGkzhyLmmdfrFmPsA.ey" // of "open sesame"
	anotherHash = "$2a$04$nGMY8M4GB9l26mRnKF7Leu5yveabUa5czSWLd3Ou20HaMnsgbOUVK" // of "another"
)

// makeCert writes a certificate for 127.0.0.1 and its key as NAME.crt and NAME.key
// into dir, and returns the certificate.
func makeCert(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// By rename, as they are replaced in production.
	for suffix, b := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: kb}} {
		p := filepath.Join(dir, name+suffix)
		if err := errors.Join(os.WriteFile(p+".new", pem.EncodeToMemory(b), 0o600), os.Rename(p+".new", p)); err != nil {
			t.Fatal(err)
		}
	}
	return cert
}

// writeFile writes a file of dir and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestWebConfigRefused: a web configuration that is wrong is one line and exit
// code 1 before anything has begun.
func TestWebConfigRefused(t *testing.T) {
	dir := t.TempDir()
	makeCert(t, dir, "a")
	makeCert(t, dir, "b")
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "it sets nothing: want tls_server_config, basic_auth_users or both"},
		{"no mapping", "- 1\n", "cannot unmarshal !!seq"},
		{"no YAML", "\tx", "yaml: found character that cannot start any token"},
		{"unknown key", "tls: {}\n", "line 1: field tls not found"},
		{"unknown key within", "tls_server_config:\n  cert: a\n  keyfile: b\n", "line 3: field keyfile not found"},
		{"key twice", "basic_auth_users: {}\nbasic_auth_users: {}\n", "already set"},
		{"password in the clear", "basic_auth_users:\n  ada: hunter2\n", "basic_auth_users: want bcrypt hashes, not passwords"},
		{"no key", "tls_server_config:\n  cert_file: a.crt\n", "missing one of key or key_file"},
		{"no certificate", "tls_server_config:\n  key_file: a.key\n", "missing one of cert or cert_file"},
		{"certificate missing", "tls_server_config:\n  cert_file: none.crt\n  key_file: a.key\n", "failed to read cert_file (" + dir + "/none.crt)"},
		{"key of another", "tls_server_config:\n  cert_file: a.crt\n  key_file: b.key\n", "private key does not match public key"},
		{"old TLS", "tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n  min_version: SSL3\n", "unknown TLS version: SSL3"},
		{"client certificates", "tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n  client_ca_file: none.crt\n", "no such file or directory"},
		{"header", "http_server_config:\n  headers:\n    Server: x\n", `HTTP header "Server" can not be configured`},
	} {
		p := writeFile(t, dir, "web.yml", tc.text)
		keep := filepath.Join(t.TempDir(), "keep")
		for _, args := range [][]string{
			{"sidecar", "--dir", privateDir(t), "--keep", keep},
			{"demo"},
		} {
			c := start(t, append(args, "--listen", "127.0.0.1:0", "--web-config", p)...)
			if code := c.wait(t); code != 1 || c.out.String() != "" {
				t.Errorf("%s: %s: exit code %d, stdout %q", tc.name, args[0], code, c.out.String())
			}
			text := c.err.String()
			if !strings.HasPrefix(text, "lanetrace: web configuration "+p+": ") || !strings.Contains(text, tc.want) || strings.Count(text, "\n") != 1 || strings.Contains(text, "hunter2") {
				t.Errorf("%s: %s: stderr %q, want %q in one line", tc.name, args[0], text, tc.want)
			}
		}
		if _, err := os.Lstat(keep); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something was made before: %v", tc.name, err)
		}
	}
	c := start(t, "sidecar", "--dir", privateDir(t), "--listen", "127.0.0.1:0", "--web-config", filepath.Join(dir, "none"))
	if code := c.wait(t); code != 1 || c.err.String() != "lanetrace: web configuration "+dir+"/none: no such file or directory\n" {
		t.Errorf("missing: exit code %d, stderr %q", code, c.err.String())
	}
}

// browser asks a TLS server.
func browser(t *testing.T, trusted *x509.Certificate) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(trusted)
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots},
	}}
}

// ask is the answer's code and header; user is NAME:PASSWORD or "".
func ask(t *testing.T, c *http.Client, url, user string) (int, http.Header, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if name, pass, ok := strings.Cut(user, ":"); ok {
		req.SetBasicAuth(name, pass)
	}
	r, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, r.Header, err
}

// TestWebTLSAndPasswords: with both, nothing is told without; certificates and
// passwords are replaced while the sidecar runs.
func TestWebTLSAndPasswords(t *testing.T) {
	dir := t.TempDir()
	first := makeCert(t, dir, "server")
	config := func(hash string) string {
		return "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\nbasic_auth_users:\n  ada: " + hash + "\nhttp_server_config:\n  headers:\n    Strict-Transport-Security: max-age=60\n    X-Frame-Options: sameorigin\n"
	}
	web := writeFile(t, dir, "web.yml", config(sesameHash))
	t.Setenv("LANETRACE_WEB_CONFIG", web) // the flag's variable
	c := start(t, "sidecar", "--dir", privateDir(t), "--listen", "127.0.0.1:0")
	re := regexp.MustCompile(`https://127\.0\.0\.1:[0-9]+`)
	eventually(t, "address", func() bool { return re.MatchString(c.err.String()) })
	url := re.FindString(c.err.String())

	b := browser(t, first)
	for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/debug/account", "/none"} {
		for user, want := range map[string]int{"": 401, "ada:wrong": 401, "eve:open sesame": 401, "ada:open sesame": 200} {
			if path == "/none" && want == 200 {
				want = 404
			}
			code, h, err := ask(t, b, url+path, user)
			if code != want || err != nil {
				t.Errorf("%s as %q: %d, want %d, %v", path, user, code, want, err)
			}
			if h.Get("Strict-Transport-Security") != "max-age=60" || h.Get("X-Frame-Options") != "sameorigin" || h.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s as %q: headers %v", path, user, h)
			}
		}
	}
	// Who does not trust it, and who speaks no TLS.
	if code, _, err := ask(t, browser(t, makeCert(t, t.TempDir(), "other")), url+"/metrics", "ada:open sesame"); err == nil {
		t.Errorf("an unknown certificate is taken: %d", code)
	}
	addr := strings.TrimPrefix(url, "https://")
	if code, _, err := ask(t, client, "http://"+addr+"/metrics", "ada:open sesame"); code != 400 || err != nil {
		t.Errorf("without TLS: %d, %v", code, err)
	}
	f := diagnosed(t, 0, "--dir", privateDir(t), "--listen", addr)["sidecar"]
	if len(f) != 1 || f[0].Status != findingNote || f[0].Text != addr+" answers, and wants TLS: what it lost was not asked, /debug/account says it" {
		t.Errorf("doctor: %+v", f)
	}

	second := makeCert(t, dir, "server")
	if code, _, err := ask(t, browser(t, second), url+"/readyz", "ada:open sesame"); code != 200 || err != nil {
		t.Errorf("the new certificate: %d, %v", code, err)
	}
	if _, _, err := ask(t, browser(t, first), url+"/readyz", "ada:open sesame"); err == nil {
		t.Error("the old certificate is still there")
	}
	b = browser(t, second)
	writeFile(t, dir, "web.yml", config(anotherHash))
	for user, want := range map[string]int{"ada:open sesame": 401, "ada:another": 200} {
		if code, _, err := ask(t, b, url+"/readyz", user); code != want || err != nil {
			t.Errorf("new password, %q: %d, want %d, %v", user, code, want, err)
		}
	}
	// Broken while it runs: nothing is told, and it goes on when it is mended.
	writeFile(t, dir, "web.yml", "nonsense: 1\n")
	if code, _, err := ask(t, b, url+"/metrics", "ada:another"); err == nil {
		t.Errorf("with a broken configuration: %d", code)
	}
	writeFile(t, dir, "web.yml", config(anotherHash))
	if code, _, err := ask(t, b, url+"/metrics", "ada:another"); code != 200 || err != nil {
		t.Errorf("mended: %d, %v", code, err)
	}
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if s := c.err.String(); strings.Contains(s, "open to the network") || strings.Contains(s, sesameHash) {
		t.Errorf("stderr %q", s)
	}
}

// TestWebPasswordsOnly: passwords without TLS are for loopback.
func TestWebPasswordsOnly(t *testing.T) {
	web := writeFile(t, t.TempDir(), "web.yml", "basic_auth_users:\n  ada: "+sesameHash+"\n")
	c := start(t, "sidecar", "--dir", privateDir(t), "--listen", "127.0.0.1:0", "--web-config", web)
	url := urlIn(t, &c.err)
	for user, want := range map[string]int{"": 401, "ada:open sesame": 200} {
		if code, _, err := ask(t, client, url+"/metrics", user); code != want || err != nil {
			t.Errorf("%q: %d, want %d, %v", user, code, want, err)
		}
	}
	addr := strings.TrimPrefix(url, "http://")
	f := diagnosed(t, 0, "--dir", privateDir(t), "--listen", addr)["sidecar"]
	if len(f) != 1 || f[0].Status != findingNote || !strings.HasPrefix(f[0].Text, addr+" answers, and wants a password:") {
		t.Errorf("doctor: %+v", f)
	}
	c.stop()
	if code := c.wait(t); code != 0 || strings.Contains(c.err.String(), "warning") {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
}

func TestWebExposure(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 9478} }
	const open, clear = "whoever reaches it can read the metrics; give --web-config", "passwords and metrics travel in the clear; add tls_server_config to web.yml"
	for _, tc := range []struct {
		addr net.Addr
		c    webConfig
		want string
	}{
		{at("127.0.0.1"), webConfig{}, ""}, {at("127.9.9.9"), webConfig{}, ""}, {at("::1"), webConfig{}, ""},
		{at("0.0.0.0"), webConfig{}, open}, {at("::"), webConfig{}, open}, {at("192.0.2.1"), webConfig{}, open},
		{at("0.0.0.0"), webConfig{path: "web.yml", auth: true}, clear},
		{at("0.0.0.0"), webConfig{path: "web.yml", tls: true}, ""},
	} {
		got := tc.c.exposure(tc.addr)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) || got != "" && !strings.HasPrefix(got, tc.addr.String()+" is open to the network") {
			t.Errorf("%v, %+v: %q, want %q", tc.addr, tc.c, got, tc.want)
		}
	}
	// It is said, once, by a sidecar.
	c := start(t, "sidecar", "--dir", privateDir(t), "--listen", "0.0.0.0:0")
	urlIn(t, &c.err)
	c.stop()
	if code := c.wait(t); code != 0 || strings.Count(c.err.String(), "lanetrace: warning: ") != 1 || !strings.Contains(c.err.String(), open) {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
}

// TestReadOnlyWeb: whatever the path, only a plain read comes to what is served.
func TestReadOnlyWeb(t *testing.T) {
	c := start(t, "sidecar", "--dir", privateDir(t), "--listen", "127.0.0.1:0")
	url := urlIn(t, &c.err)
	addr := strings.TrimPrefix(url, "http://")
	// send is the status of the answer to a request as it is, and whether the
	// connection ends with it.
	send := func(request string) (*http.Response, string) {
		t.Helper()
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(request, " ")
		r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%.40q: %v", request, err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil && method != "CONNECT" {
			t.Fatalf("%.40q: %v", request, err)
		}
		return r, string(b)
	}
	served := []string{"/", "/metrics", "/healthz", "/readyz", "/debug/account"}
	for _, p := range append(served, "/none", "/debug/", "/debug/pprof/profile", "/live/", "/live/events", "*") {
		for _, m := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"} {
			if p == "*" && m != "OPTIONS" {
				continue
			}
			r, body := send(m + " " + p + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
			if r.StatusCode != 405 || r.Header.Get("Allow") != "GET, HEAD" || !strings.HasPrefix(body, "only GET and HEAD") && body != "" || !r.Close {
				t.Errorf("%s %s: %d, %q, %v", m, p, r.StatusCode, body, r.Header)
			}
		}
		if p == "*" || strings.HasPrefix(p, "/live/") {
			continue // what is read there may have no end
		}
		get, _ := send("GET " + p + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		head, body := send("HEAD " + p + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if get.StatusCode != head.StatusCode || body != "" || (get.StatusCode == 200) != slices.Contains(served, p) {
			t.Errorf("%s: GET %d, HEAD %d with %q", p, get.StatusCode, head.StatusCode, body)
		}
		for k, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "deny", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		} {
			if got := get.Header.Get(k); got != want {
				t.Errorf("%s: %s is %q, want %q", p, k, got, want)
			}
		}
		if csp := get.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe-eval") || get.Header.Get("Server") != "" {
			t.Errorf("%s: headers %v", p, get.Header)
		}
	}
	for _, tc := range []struct {
		request string
		want    int
	}{
		{"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n", 405},
		{"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413},
		{"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413},
		{"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413},
		{"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", maxHeaderBytes+8<<10) + "\r\n\r\n", 431},
		{"GET /" + strings.Repeat("x", maxHeaderBytes+8<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
		{"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 307},
		{"GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404},
		{"GET /metrics HTTP/1.1\r\n\r\n", 400},
		{"nonsense\r\n\r\n", 400},
	} {
		if r, _ := send(tc.request); r.StatusCode != tc.want {
			t.Errorf("%.50q: %d, want %d", tc.request, r.StatusCode, tc.want)
		}
	}
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
}

// TestSlowClients: clients that never finish a request, or never read an answer,
// are sent away, and others are answered meanwhile. The bounds are the server's
// own, divided.
func TestSlowClients(t *testing.T) {
	const divided = 25
	given := make(chan error, 1)
	big := strings.Repeat("x", 1<<20)
	srv := newWebServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/big" {
			var err error
			for i := 0; i < 64 && err == nil; i++ {
				_, err = io.WriteString(w, big)
			}
			given <- err
			return
		}
		plain(w, 200, "ok\n")
	}), slog.New(slog.DiscardHandler))
	bounds := map[string]time.Duration{"header": srv.ReadHeaderTimeout, "read": srv.ReadTimeout, "write": srv.WriteTimeout, "idle": srv.IdleTimeout}
	want := map[string]time.Duration{"header": 5 * time.Second, "read": 10 * time.Second, "write": 30 * time.Second, "idle": 2 * time.Minute}
	if d := cmp.Diff(want, bounds); d != "" || srv.MaxHeaderBytes != 16<<10 {
		t.Errorf("bounds (-want +got):\n%s%d bytes", d, srv.MaxHeaderBytes)
	}
	srv.ReadHeaderTimeout /= divided
	srv.ReadTimeout /= divided
	srv.WriteTimeout /= divided
	srv.IdleTimeout /= divided

	// conns are those that the server has, most how many it had at most.
	var mu sync.Mutex
	conns, most := 0, 0
	srv.ConnState = func(_ net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch s {
		case http.StateNew:
			conns++
			most = max(most, conns)
		case http.StateClosed:
			conns--
		}
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serveWeb(srv, l, webConfig{}, slog.New(slog.DiscardHandler)) }()
	defer func() {
		srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	dial := func(first string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, first); err != nil {
			t.Fatal(err)
		}
		return c
	}
	// As many as there is room for but one: some say nothing, some half a header,
	// some a byte now and then.
	var slow []net.Conn
	drip := make(chan struct{})
	dripped := make(chan struct{})
	for i := range maxConns - 1 {
		slow = append(slow, dial([]string{"", "GET / HTTP/1.1\r\nHost: x\r\nX: ", "GE"}[i%3]))
	}
	dripping := slow
	go func() {
		defer close(dripped)
		for t := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-t.C:
				for i := 1; i < len(dripping); i += 3 {
					_, _ = dripping[i].Write([]byte("x")) // it may be gone
				}
			case <-drip:
				t.Stop()
				return
			}
		}
	}()
	started := time.Now()
	for range 5 {
		if code, _, body := fetch(t, "GET", "http://"+l.Addr().String()+"/"); code != 200 || body != "ok\n" {
			t.Errorf("meanwhile: %d, %q", code, body)
		}
	}
	// Beyond the limit clients wait, until the slow ones are gone.
	slow = slices.Clone(slow)
	for range maxConns {
		slow = append(slow, dial("GET"))
	}
	if code, _, _ := fetch(t, "GET", "http://"+l.Addr().String()+"/"); code != 200 {
		t.Errorf("after a wait: %d", code)
	}
	for i, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("slow client %d is still there", i)
		}
	}
	close(drip)
	<-dripped
	mu.Lock()
	// The server tells of an end a moment after it.
	if most > maxConns+maxConns/4 || most < maxConns/2 {
		t.Errorf("%d connections at once, want %d", most, maxConns)
	}
	mu.Unlock()
	if took := time.Since(started); took < srv.ReadHeaderTimeout/2 {
		t.Errorf("sent away after %v: nobody was slow", took)
	}

	// Asks for much and reads nothing: the answer ends unfinished.
	c := dial("GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
	first := make([]byte, 1)
	if _, err := c.Read(first); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-given:
		if err == nil {
			t.Error("all was sent to somebody who reads nothing")
		}
	case <-time.After(patience):
		t.Fatal("the answer does not end")
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	n, err := io.Copy(io.Discard, c)
	if n >= 64<<20 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes after all, %v", n, err)
	}
}

// pipes is a listener of connections within the process.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestConnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn, 8), closed: make(chan struct{})}
		l := limitConns(p, 2)
		var mu sync.Mutex
		var got []net.Conn
		var end error
		go func() {
			for {
				c, err := l.Accept()
				mu.Lock()
				if err == nil {
					got = append(got, c)
				}
				end = err
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
		for range 5 {
			c, other := net.Pipe()
			p.conns <- c
			defer other.Close()
		}
		open := func(want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(got) != want {
				t.Fatalf("%d were accepted, want %d", len(got), want)
			}
		}
		open(2)
		// Closing one makes room for one, also when it is closed twice.
		closeOne := func(i int) {
			mu.Lock()
			defer mu.Unlock()
			got[i].Close()
		}
		closeOne(0)
		closeOne(0)
		open(3)
		closeOne(1)
		open(4)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		open(4)
		if !errors.Is(end, net.ErrClosed) {
			t.Errorf("closed: %v", end)
		}
		for _, c := range got {
			c.Close()
		}
	})
}

// TestErrorLog: clients that misbehave cost a line a minute.
func TestErrorLog(t *testing.T) {
	var out output
	e := &errorLog{log: newLogger(&out).slog(true), now: nil}
	at := time.Unix(1e9, 0)
	e.now = func() time.Time { return at }
	for i := range 100 {
		fmt.Fprintf(e, "http: TLS handshake error %d\n", i)
		at = at.Add(time.Second)
	}
	want := "lanetrace: warning: web server: http: TLS handshake error 0 left_out=0\nlanetrace: warning: web server: http: TLS handshake error 60 left_out=59\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// A server has one.
	srv := newWebServer(http.NotFoundHandler(), newLogger(&out).slog(true))
	srv.ErrorLog.Print("x")
	if !strings.HasSuffix(out.String(), "web server: x left_out=0\n") {
		t.Errorf("%q", out.String())
	}
}
