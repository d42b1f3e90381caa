package main

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/dashboards/web"
)

// The live page's stream outlasts the deadlines that all other answers have, and
// ends when the server is shut down.
func TestStreamOutlastsDeadlines(t *testing.T) {
	dir := t.TempDir()
	cert := makeCert(t, dir, "a")
	path := writeFile(t, dir, "web.yml", "tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n")
	tls, err := loadWebConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		web    webConfig
		client *http.Client
		proto  string
	}{
		"plain": {webConfig{}, client, "HTTP/1.1"},
		"TLS":   {tls, browser(t, cert), "HTTP/2.0"},
	} {
		t.Run(name, func(t *testing.T) { testStream(t, tc.web, tc.client, tc.proto) })
	}
}

func testStream(t *testing.T, c webConfig, client *http.Client, proto string) {
	page := web.New(web.Options{Engines: func() []*collector.Engine { return nil }, Waiting: "nothing is there", Refresh: 10 * time.Millisecond})
	defer page.Close()
	srv := newWebServer(page, newLogger(t.Output()).slog(true))
	srv.RegisterOnShutdown(page.Close)
	srv.ReadTimeout, srv.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serveWeb(srv, l, c, newLogger(t.Output()).slog(true)) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.scheme()+"://"+l.Addr().String()+"/live/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.Proto != proto {
		t.Errorf("%s, want %s", r.Proto, proto)
	}
	began, states := time.Now(), 0
	sc := bufio.NewScanner(r.Body)
	for time.Since(began) < 5*srv.ReadTimeout && sc.Scan() {
		if strings.Contains(sc.Text(), `"waiting":"nothing is there"`) {
			states++
		}
	}
	if sc.Err() != nil || states < 3 || time.Since(began) < 5*srv.ReadTimeout {
		t.Errorf("after %v and %d events: %v", time.Since(began), states, sc.Err())
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for sc.Scan() { // to its end
	}
	if sc.Err() != nil {
		t.Errorf("the stream's end: %v", sc.Err())
	}
	if err := <-done; err != http.ErrServerClosed {
		t.Error(err)
	}
}
