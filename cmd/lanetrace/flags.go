package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/otlp"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// listenAddr is HOST:PORT.
type listenAddr string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *listenAddr) UnmarshalText(b []byte) error {
	_, port, err := net.SplitHostPort(string(b))
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
			err = errors.New("no port")
		}
	}
	if err != nil {
		return fmt.Errorf("want HOST:PORT such as 127.0.0.1:9478 (port 0 takes a free one), got %q", b)
	}
	*l = listenAddr(b)
	return nil
}

// period is a duration over 0; 0 is not set.
type period time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *period) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil || d <= 0 {
		return fmt.Errorf("want a duration over 0 such as 90s or 5m, got %q", b)
	}
	*p = period(d)
	return nil
}

// endpoint is the URL of an OTLP receiver.
type endpoint string

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *endpoint) UnmarshalText(b []byte) error {
	if u, err := url.Parse(string(b)); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("want a URL such as http://127.0.0.1:4317 (https for TLS), got %q", b)
	}
	*e = endpoint(b)
	return nil
}

// speed is how fast a recording is played: 1 is real, 0 as fast as can be.
type speed float64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *speed) UnmarshalText(b []byte) error {
	switch string(b) {
	case "real":
		*s = 1
		return nil
	case "max":
		*s = 0
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(f > 0 && f <= 1e6) {
		return fmt.Errorf("want real, max or a factor over 0 and up to 1000000, got %q", b)
	}
	*s = speed(f)
	return nil
}

// serviceFlags are what a service needs to know: run's and sidecar's.
type serviceFlags struct {
	Listen listenAddr `help:"Where to serve /metrics (default ${default})." default:"127.0.0.1:9478" placeholder:"HOST:PORT"`
	webFlags
	dirFlags
	otlpFlags
	selectFlags
	slowArmFlags
	metricFlags
	keepFlags
	stateFlags
	leakFlag
}

// dirFlags name the ring directory.
type dirFlags struct {
	Dir   string `help:"Ring directory of the engines (default /dev/shm/lanetrace-UID)." placeholder:"DIR"`
	Group string `help:"Number of the group that shares the rings, to read those of another user." placeholder:"GID"`
}

// ringDir is the ring directory and whether it was named.
func (f *dirFlags) ringDir() (d spanring.Dir, named bool, err error) {
	env := map[string]string{"LANETRACE_DIR": f.Dir, "LANETRACE_GROUP": f.Group}
	d, named, err = spanring.DefaultDir(func(k string) string { return env[k] })
	if err != nil {
		return d, named, usagef("--group %s: want a group's number", f.Group)
	}
	return d, named, nil
}

// otlpFlags say where traces and metrics are sent.
type otlpFlags struct {
	OTLPEndpoint endpoint `name:"otlp-endpoint" help:"OTLP receiver, such as http://127.0.0.1:4317 (default: the OTEL_EXPORTER_OTLP_* variables, which also say how: gRPC, or HTTP with OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; else OTLP is off)." placeholder:"URL"`
}

// selectFlags say which steps become traces.
type selectFlags struct {
	Every  positive  `help:"Send one step in so many as a trace, besides faulty, slow, armed and linked ones (default ${default})." default:"1000" placeholder:"N"`
	Budget kibibytes `help:"Send at most so many KiB of traces a second of each engine, on average (default ${default}; 0: no bound)." default:"32" placeholder:"KIB"`
}

// settings are the flags' values.
func (f *selectFlags) settings() selection {
	return selection{Every: int(f.Every), BudgetKiB: int(f.Budget)}
}

// selection makes the selectors of engines. slow makes what is told of one engine's
// slow steps; it is nil where a recording is played, which nothing can be asked of.
func (f *selectFlags) selection(slow func() func(*collector.Step)) func() collector.Selector {
	return func() collector.Selector {
		o := f.settings().live()
		if slow != nil {
			o.OnSlow = slow()
		}
		return collector.NewLiveSelector(o)
	}
}

// maxBudgetKiB is more than any receiver takes.
const maxBudgetKiB = 1<<32 - 1

// kibibytes is a whole number of KiB from 0.
type kibibytes int

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *kibibytes) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || n > maxBudgetKiB {
		return fmt.Errorf("want a whole number of KiB from 0, got %q", b)
	}
	*k = kibibytes(n)
	return nil
}

// armCount is how many steps are armed at once, from 0.
type armCount int

// maxArmCount is as many as an engine arms on one request.
const maxArmCount = 1_000_000

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *armCount) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil || n > maxArmCount {
		return fmt.Errorf("want from 0 to %d steps, got %q", maxArmCount, b)
	}
	*c = armCount(n)
	return nil
}

// metricFlags say how metrics are made.
type metricFlags struct {
	Histograms *collector.HistogramForm `help:"Buckets of the histograms of lanes, steps and queue delays: explicit, or exponential besides, which Prometheus stores as native histograms (default explicit, unless OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION asks for the other)." placeholder:"FORM"`
	TopKernels positive                 `help:"How many kernels, and how many graphs, of an engine have series of their own; the rest is other (default ${default})." default:"50" placeholder:"K"`
	TopSites   positive                 `help:"How many call sites of an engine have series of their own; the rest is other (default ${default})." default:"50" placeholder:"K"`
}

// instruments are the metrics as the flags want them.
func (f *metricFlags) instruments(getenv otlp.Getenv) *collector.Instruments {
	form := collector.HistogramsExplicit
	switch {
	case f.Histograms != nil:
		form = *f.Histograms
	case otlp.PrefersExponential(getenv):
		form = collector.HistogramsExponential
	}
	return collector.NewInstruments(collector.InstrumentOptions{
		Histograms: form, TopKernels: int(f.TopKernels), TopSites: int(f.TopSites), Version: lanetrace.Version,
	})
}

// keepFlags say which recordings are kept on disk.
type keepFlags struct {
	Keep      string   `help:"Keep the latest of what is read in this directory, as recordings that replay --since sends again after an outage (default: none are kept)." placeholder:"DIR"`
	KeepBytes keepSize `help:"How much is kept at most, 1MiB or more; the oldest goes (default ${default})." default:"1GiB" placeholder:"SIZE"`
	KeepAge   keepAge  `help:"How long it is kept at most, 1m or more (default ${default})." default:"24h" placeholder:"D"`
}

// store is the store that the flags ask for, nil for none.
func (f *serviceFlags) store(a *app) (*recording.Store, error) {
	if f.Keep == "" {
		return nil, nil
	}
	return recording.NewStore(recording.StoreOptions{
		Dir: f.Keep, MaxBytes: int64(f.KeepBytes), MaxAge: time.Duration(f.KeepAge), Writer: program, Logger: a.log.slog(false),
		Opened: func(dir string) error {
			return noteSelection(dir, f.settings(), time.Now(), time.Duration(f.KeepAge))
		},
	})
}

// keepSize is how much is kept, at least 1 MiB.
type keepSize byteCount

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *keepSize) UnmarshalText(b []byte) error {
	if err := (*byteCount)(k).UnmarshalText(b); err != nil {
		return err
	}
	if *k < 1<<20 {
		return fmt.Errorf("want at least 1MiB, got %q", b)
	}
	return nil
}

// keepAge is how long it is kept, at least a minute.
type keepAge period

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *keepAge) UnmarshalText(b []byte) error {
	if err := (*period)(k).UnmarshalText(b); err != nil {
		return err
	}
	if time.Duration(*k) < time.Minute {
		return fmt.Errorf("want at least 1m, got %q", b)
	}
	return nil
}

// byteCount is a number of bytes.
type byteCount int64

// UnmarshalText implements encoding.TextUnmarshaler: a whole number, and its unit.
func (c *byteCount) UnmarshalText(b []byte) error {
	text, unit := string(b), int64(1)
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}} {
		if t, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = strings.TrimSpace(t), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return fmt.Errorf("want a size such as 500MiB or 2GiB, got %q", b)
	}
	*c = byteCount(n * unit)
	return nil
}

// moment is a point in time, given as such or as so long ago; zero is not set.
type moment time.Time

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *moment) UnmarshalText(b []byte) error {
	text := string(b)
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		*m = moment(time.Now().Add(-d))
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			*m = moment(t)
			return nil
		}
	}
	return fmt.Errorf("want how long ago (90s, 2h) or a time (2026-01-31T15:04:05, local, or with Z or +01:00), got %q", b)
}

// unixNS is the moment in Unix time, 0 when it is not set.
func (m moment) unixNS() int64 {
	if time.Time(m).IsZero() {
		return 0
	}
	return time.Time(m).UnixNano()
}

// positive is a whole number from 1.
type positive int

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *positive) UnmarshalText(b []byte) error {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 {
		return fmt.Errorf("want 1 or more, got %q", b)
	}
	*p = positive(n)
	return nil
}

// mebibytes is a whole number of MiB from 0.
type mebibytes int

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *mebibytes) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 40)
	if err != nil {
		return fmt.Errorf("want a whole number of MiB from 0, got %q", b)
	}
	*m = mebibytes(n)
	return nil
}

// cells is the width of something drawn; 0 is not set.
type cells int

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *cells) UnmarshalText(b []byte) error {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < minWidth || n > maxWidth {
		return fmt.Errorf("want from %d to %d, got %q", minWidth, maxWidth, b)
	}
	*c = cells(n)
	return nil
}

// format is what a replay writes; "" is not set.
type format string

const (
	formatText     format = "text"
	formatOTLPJSON format = "otlp-json"
	formatChrome   format = "chrome"
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *format) UnmarshalText(b []byte) error {
	switch v := format(b); v {
	case formatText, formatOTLPJSON, formatChrome:
		*f = v
		return nil
	}
	return fmt.Errorf("want text, otlp-json or chrome, got %q", b)
}
