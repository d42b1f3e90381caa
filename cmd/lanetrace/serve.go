package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/dashboards/web"
	"github.com/lanetrace/lanetrace/exporters/otlp"
	"github.com/lanetrace/lanetrace/exporters/prometheus"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// flushDeadline is how long what is queued is still sent at the end. Container
// runtimes kill ten seconds or more after SIGTERM.
const flushDeadline = 5 * time.Second

// answerDeadline is how long answers that are under way are waited for after that.
const answerDeadline = time.Second

// service is the sidecar: rings to metrics and traces.
type service struct {
	a    *app
	log  *slog.Logger
	ins  *collector.Instruments
	exp  *otlp.Exporter // nil when traces are off
	prom *prometheus.Exporter
	keep *recording.Store // nil when no recordings are kept
	mp   *sdkmetric.MeterProvider
	lis  net.Listener
	srv  *http.Server
	web  webConfig
	page *web.Page
	// growth says which call sites are suspected leaks.
	growth ledger.GrowthOptions

	errc  chan error
	col   atomic.Pointer[collector.Collector]
	ready atomic.Bool
	state *state // nil when nothing outlives this process
}

// serviceOptions say how a service runs.
type serviceOptions struct {
	listen   listenAddr
	web      webConfig
	dir      spanring.Dir
	endpoint endpoint
	ins      *collector.Instruments
	log      *slog.Logger

	// keep, if not nil, is the service's from now on.
	keep      *recording.Store
	keepBytes uint64
	devices   *devices // nil: GPUs are not read

	growth ledger.GrowthOptions // which call sites are suspected leaks
}

// newService listens and makes the exporters; it reads nothing yet.
func (a *app) newService(o serviceOptions) (s *service, err error) {
	s = &service{a: a, log: o.log, ins: o.ins, keep: o.keep, web: o.web, growth: o.growth, errc: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.lis, err = new(net.ListenConfig).Listen(a.ctx, "tcp", string(o.listen)); err != nil {
		return s, listenError(o.listen, err)
	}
	if s.prom, err = prometheus.New(prometheus.Options{Producers: []sdkmetric.Producer{s.ins.AllForms()}, Logger: o.log}); err != nil {
		return s, err
	}
	readers := []sdkmetric.Reader{s.prom.Reader()}
	traces, metrics := otlp.Configured(string(o.endpoint), a.getenv)
	if traces {
		if s.exp, err = otlp.NewExporter(otlp.Options{Endpoint: string(o.endpoint), Version: lanetrace.Version, Logger: o.log}); err != nil {
			return s, err
		}
	}
	pushes := func() (none [2]uint64) { return none }
	if metrics {
		r, err := otlp.NewMetricReader(otlp.MetricOptions{Endpoint: string(o.endpoint), Producers: []sdkmetric.Producer{s.ins.Producer()}, Engines: s.ins.Engines, Logger: o.log})
		if err != nil {
			return s, err
		}
		readers, pushes = append(readers, r), r.Pushes
	}
	var m metric.Meter
	if s.mp, m, err = collector.NewMeterProvider(collector.MeterOptions{Version: lanetrace.Version, Dir: o.dir.Path, Readers: readers}); err != nil {
		return s, err
	}
	err = errors.Join(s.ins.Register(m), collector.RegisterExport(m, s.exportStats), collector.RegisterMetricExport(m, pushes), collector.RegisterKeep(m, s.keepStats(o.keepBytes)),
		collector.RegisterDevices(m, o.devices.stats))
	if err != nil {
		return s, err
	}
	s.page = web.New(web.Options{
		Engines: s.engines, Download: downloads(o.dir), Waiting: "rings are looked for in " + o.dir.Path,
		Version: lanetrace.Version, Logger: o.log,
	})
	s.srv = newWebServer(s.handler(), o.log)
	s.srv.RegisterOnShutdown(s.page.Close) // its streams never end by themselves
	return s, nil
}

// inUseError is an address that somebody else listens on. It is EADDRINUSE.
type inUseError struct{ addr listenAddr }

func (e inUseError) Error() string {
	return fmt.Sprintf("cannot listen on %s: it is in use; stop what listens there or give another address with --listen or LANETRACE_LISTEN", e.addr)
}

func (inUseError) Unwrap() error { return syscall.EADDRINUSE }

func listenError(addr listenAddr, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return inUseError{addr}
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("cannot listen on %s: not permitted; give a port over 1023 with --listen", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("cannot listen on %s: this machine has no such address; give another with --listen", addr)
	}
	var oe *net.OpError
	if errors.As(err, &oe) {
		err = oe.Err
	}
	return fmt.Errorf("cannot listen on %s: %w; give another address with --listen", addr, err)
}

func (s *service) exportStats() collector.ExportStats {
	if s.exp == nil {
		return collector.ExportStats{}
	}
	return s.exp.Stats()
}

func (s *service) keepStats(limit uint64) func() collector.KeepStats {
	return func() collector.KeepStats {
		if s.keep == nil {
			return collector.KeepStats{}
		}
		st := s.keep.Stats()
		return collector.KeepStats{Entries: [2]uint64{st.Written, st.Lost}, Bytes: uint64(st.Bytes), Limit: limit}
	}
}

// url is where the service can be reached from this machine.
func (s *service) url() string {
	addr := s.lis.Addr().(*net.TCPAddr)
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return s.web.scheme() + "://" + net.JoinHostPort(host, fmt.Sprint(addr.Port))
}

// otlpText says in words where OTLP goes, or why nowhere.
func (a *app) otlpText(e endpoint) string {
	traces, metrics := otlp.Configured(string(e), a.getenv)
	what := ""
	switch {
	case traces && metrics:
		what = "traces and metrics"
	case traces:
		what = "traces"
	case metrics:
		what = "metrics"
	default:
		switch {
		case otlp.Disabled(a.getenv):
			return "off: OTEL_SDK_DISABLED is true"
		case e != "" || a.getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "":
			return "off: OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER are none"
		}
		return "off: give --otlp-endpoint http://HOST:4317 or set OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	return otlpTo(what, e)
}

// otlpTo says where something goes over OTLP.
func otlpTo(what string, e endpoint) string {
	if e != "" {
		return what + " to " + string(e)
	}
	return what + " as the OTEL_EXPORTER_OTLP_* variables say"
}

// serve begins to answer over HTTP, and says who can listen in.
func (s *service) serve() {
	if w := s.web.exposure(s.lis.Addr()); w != "" {
		s.a.say("warning: %s", w)
	}
	go func() { s.errc <- serveWeb(s.srv, s.lis, s.web, s.a.log.slog(true)) }()
}

// read reads the rings of dir until ctx ends: all that is there by then, too.
// attached, if not nil, is called when an engine's series are there.
func (s *service) read(ctx context.Context, dir spanring.Dir, selector func() collector.Selector, attached func(*collector.Engine)) error {
	po := collector.ProcessorOptions{Instruments: s.ins, Observers: []collector.Observer{s.page}, Growth: s.growth}
	if s.exp != nil {
		po.Exporter = s.exp
	}
	if s.keep != nil {
		po.Taps = append(po.Taps, s.keep)
	}
	co := collector.Options{
		Dir: dir, Processor: po, Logger: s.log, OnAttach: attached,
		NewSelector: selector,
	}
	s.state.observe(&co)
	col, err := collector.New(co)
	if err != nil {
		return err
	}
	s.col.Store(col)
	s.ready.Store(true)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-s.errc:
			cancel(fmt.Errorf("serve %s: %w", s.url(), err))
		case <-ctx.Done():
		}
	}()
	var watching sync.WaitGroup
	s.state.run(ctx, col, &watching)
	err = col.Run(ctx)
	cancelled := context.Cause(ctx)
	cancel(nil)
	watching.Wait()
	if err != nil {
		return err
	}
	if cancelled != nil && !errors.Is(cancelled, context.Canceled) && !errors.Is(cancelled, context.DeadlineExceeded) {
		return cancelled
	}
	return nil
}

// close sends what is queued within the deadline, says what was not sent, and
// ends everything. It may be called on a service that is only half made.
func (s *service) close() error {
	s.ready.Store(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.a.ctx), flushDeadline)
	defer cancel()
	// Both failures are the endpoint's, which may be away: warnings.
	var sent sync.WaitGroup
	if s.exp != nil {
		sent.Go(func() {
			if err := s.exp.Shutdown(ctx); err != nil {
				s.a.say("warning: %s", oneLine(err.Error()))
			}
		})
	}
	if s.keep != nil {
		sent.Go(func() {
			if err := s.keep.Close(ctx); err != nil {
				s.a.say("warning: %s", oneLine(err.Error()))
			}
		})
	}
	if s.mp != nil {
		sent.Go(func() {
			if err := s.mp.Shutdown(ctx); err != nil {
				s.a.say("warning: the last metrics were not sent: %s", oneLine(err.Error()))
			}
		})
	}
	sent.Wait()
	if s.page != nil {
		s.page.Close()
	}
	if s.srv != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.a.ctx), answerDeadline)
		defer cancel()
		err := s.srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			// Who reads slowly, or is connected and has asked for nothing, is cut off.
			err = s.srv.Close()
		}
		if err != nil {
			return err
		}
		// Shutdown closes only listeners that were served.
		if err := s.lis.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
	if s.lis != nil {
		return s.lis.Close()
	}
	return nil
}

// handler is everything that is served.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.prom.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready.Load() {
			plain(w, http.StatusServiceUnavailable, "waiting for the ring directory\n")
			return
		}
		plain(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /debug/account", s.account)
	mux.Handle("GET /{$}", s.page)
	mux.Handle("GET /live/", s.page)
	return mux
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // the client's loss
}

// engines are the runs known now.
func (s *service) engines() []*collector.Engine {
	if c := s.col.Load(); c != nil {
		return c.Engines()
	}
	return nil
}

// accounts are the loss accounts of the engines known now.
func (s *service) accounts() []collector.Account {
	if c := s.col.Load(); c != nil {
		return c.Accounts()
	}
	return []collector.Account{}
}

func (s *service) account(w http.ResponseWriter, _ *http.Request) {
	b, err := json.MarshalIndent(s.accounts(), "", "  ")
	if err != nil {
		plain(w, http.StatusInternalServerError, "cannot encode the account\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // the client's loss
}
