package otlp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
)

func tempFile(t *testing.T, b []byte) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "f.pem")
	if err := os.WriteFile(f, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string // file
}

func issue(t *testing.T, name string, parent *authority) (*authority, tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	by, byKey := c, key
	if parent != nil {
		by, byKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := tempFile(t, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kb}))
	a := &authority{c, key, tempFile(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
	return a, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, keyFile
}

// seen is what a receiver saw of a request.
type seen struct {
	signal, header, compression, client string
	tls                                 bool
	gaveUp                              time.Duration // how long a held request's client waited
}

// wire is a receiver of both signals that keeps what it saw.
type wire struct {
	coltracepb.UnimplementedTraceServiceServer
	got  chan seen
	hold bool // answer nothing until the client gives up
}

const testHeader = "x-lanetrace-test"

func (w *wire) see(ctx context.Context, s seen, c *tls.ConnectionState) {
	if s.tls = c != nil; s.tls && len(c.PeerCertificates) > 0 {
		s.client = c.PeerCertificates[0].Subject.CommonName
	}
	if w.hold {
		began := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
		s.gaveUp = time.Since(began)
	}
	select {
	case w.got <- s:
	default: // a retry that nobody waits for
	}
}

func (w *wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	signal := strings.ToUpper(strings.TrimPrefix(r.URL.Path, "/v1/"))
	w.see(r.Context(), seen{signal: signal, header: r.Header.Get(testHeader), compression: r.Header.Get("Content-Encoding")}, r.TLS)
}

type compressionKey struct{}

// TagRPC, HandleRPC and the rest are grpc's stats handler, which alone is told of
// the compression.
func (w *wire) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, compressionKey{}, new(string))
}
func (w *wire) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.InHeader); ok {
		*ctx.Value(compressionKey{}).(*string) = h.Compression
	}
}
func (w *wire) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (w *wire) HandleConn(context.Context, stats.ConnStats)                       {}

func (w *wire) grpc(ctx context.Context, signal string) {
	s := seen{signal: signal, compression: *ctx.Value(compressionKey{}).(*string)}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		s.header = strings.Join(md.Get(testHeader), ",")
	}
	var c *tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		if i, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			c = &i.State
		}
	}
	w.see(ctx, s, c)
}

func (w *wire) Export(ctx context.Context, _ *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	w.grpc(ctx, signalTraces)
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

type wireMetrics struct {
	colmetricpb.UnimplementedMetricsServiceServer
	w *wire
}

func (m wireMetrics) Export(ctx context.Context, _ *colmetricpb.ExportMetricsServiceRequest) (*colmetricpb.ExportMetricsServiceResponse, error) {
	m.w.grpc(ctx, signalMetrics)
	return &colmetricpb.ExportMetricsServiceResponse{}, nil
}

// serve starts a receiver and returns its URL.
func (w *wire) serve(t *testing.T, p protocol, c *tls.Config) string {
	t.Helper()
	scheme := "http://"
	if c != nil {
		scheme = "https://"
	}
	if p == protocolHTTP {
		s := httptest.NewUnstartedServer(w)
		if s.TLS = c; c != nil {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		return s.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := []grpc.ServerOption{grpc.StatsHandler(w)}
	if c != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(c)))
	}
	g := grpc.NewServer(o...)
	coltracepb.RegisterTraceServiceServer(g, w)
	colmetricpb.RegisterMetricsServiceServer(g, wireMetrics{w: w})
	served := make(chan struct{})
	go func() { defer close(served); g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-served })
	return scheme + l.Addr().String()
}

// send sends something of the signal as the environment says, and returns what the
// receiver saw of it first.
func (w *wire) send(t *testing.T, signal string) seen {
	t.Helper()
	if signal == signalTraces {
		x := newExporter(t, Options{FlushEvery: time.Millisecond})
		src, p := newEngine(t, x, testInfo)
		src.push(simpleStep(1, 1)...)
		poll(t, p)
	} else {
		r, err := NewMetricReader(MetricOptions{Every: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			// A busy machine may take longer to connect than a short time-out allows.
			for r.exp.Export(ctx, &metricdata.ResourceMetrics{}) != nil && ctx.Err() == nil {
			}
		}()
		t.Cleanup(func() {
			cancel()
			<-done
			if err := r.Shutdown(context.Background()); err != nil && !strings.Contains(err.Error(), "reader is not registered") {
				t.Error(err)
			}
		})
	}
	select {
	case s := <-w.got:
		return s
	case <-time.After(time.Minute):
		t.Fatal("nothing reached the receiver within a minute")
		return seen{}
	}
}

// TestVariablesReachTheWire: every standard variable, general and of the signal,
// over both protocols.
func TestVariablesReachTheWire(t *testing.T) {
	ca, _, _ := issue(t, "authority", nil)
	_, server, _ := issue(t, "server", ca)
	client, _, clientKey := issue(t, "the client", ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	oneWay := &tls.Config{Certificates: []tls.Certificate{server}, MinVersion: tls.VersionTLS12}
	mutual := oneWay.Clone()
	mutual.ClientCAs, mutual.ClientAuth = pool, tls.RequireAndVerifyClientCert

	for _, tt := range []struct {
		name string
		tls  *tls.Config
		hold bool
		env  map[string]string // what follows OTEL_EXPORTER_OTLP_ or its signal
		want seen
	}{
		{name: "plain"},
		{name: "headers", env: map[string]string{"HEADERS": testHeader + "=a%20b"}, want: seen{header: "a b"}},
		{name: "compression", env: map[string]string{"COMPRESSION": "gzip"}, want: seen{compression: "gzip"}},
		{name: "tls", tls: oneWay, env: map[string]string{"CERTIFICATE": ca.pem}, want: seen{tls: true}},
		{name: "client certificate", tls: mutual,
			env:  map[string]string{"CERTIFICATE": ca.pem, "CLIENT_CERTIFICATE": client.pem, "CLIENT_KEY": clientKey},
			want: seen{tls: true, client: "the client"}},
		{name: "time-out", hold: true, env: map[string]string{"TIMEOUT": "100"}},
	} {
		for _, p := range []protocol{protocolGRPC, protocolHTTP} {
			for _, signal := range []string{signalTraces, signalMetrics} {
				for _, of := range []string{"", signal + "_"} {
					t.Run(strings.Join([]string{tt.name, string(p), signal, of}, " "), func(t *testing.T) {
						w := &wire{got: make(chan seen, 1), hold: tt.hold}
						t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", w.serve(t, p, tt.tls.Clone()))
						t.Setenv("OTEL_EXPORTER_OTLP_"+of+"PROTOCOL", string(p))
						for k, v := range tt.env {
							t.Setenv("OTEL_EXPORTER_OTLP_"+of+k, v)
						}
						got := w.send(t, signal)
						if tt.hold {
							if got.gaveUp > 8*time.Second { // without the variable it is ten
								t.Errorf("the client waited %v for an answer", got.gaveUp)
							}
							got.gaveUp = 0
						}
						want := tt.want
						want.signal = signal
						if got != want {
							t.Errorf("the receiver saw %+v, want %+v", got, want)
						}
					})
				}
			}
		}
	}
}

// TestUntrusted: a receiver whose certificate nothing vouches for gets no span.
func TestUntrusted(t *testing.T) {
	ca, _, _ := issue(t, "authority", nil)
	_, server, _ := issue(t, "server", ca)
	for _, p := range []protocol{protocolGRPC, protocolHTTP} {
		w := &wire{got: make(chan seen, 1)}
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", string(p))
		x := newExporter(t, Options{
			Endpoint: w.serve(t, p, &tls.Config{Certificates: []tls.Certificate{server}}), FlushEvery: time.Millisecond, MinBackoff: time.Millisecond,
		})
		src, proc := newEngine(t, x, testInfo)
		src.push(simpleStep(1, 1)...)
		poll(t, proc)
		deadline := time.After(time.Minute)
		for x.Stats().Requests[1] == 0 {
			select {
			case s := <-w.got:
				t.Fatalf("%s: the receiver saw %+v", p, s)
			case <-deadline:
				t.Fatalf("%s: no failure within a minute", p)
			case <-time.After(time.Millisecond):
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		x.Shutdown(ctx)
		if c := proc.Engine().Ledger().Counts(); c.Exported != 0 {
			t.Errorf("%s: %+v", p, c)
		}
	}
}
