package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os/user"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/backend/cuda"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/otlp"
	"github.com/lanetrace/lanetrace/internal/dl"
	"github.com/lanetrace/lanetrace/internal/flight"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

type doctorCmd struct {
	Listen listenAddr `help:"Where the sidecar serves, to ask whether it keeps up (default ${default})." default:"127.0.0.1:9478" placeholder:"HOST:PORT"`
	JSON   bool       `name:"json" help:"Print one JSON document for machines."`
	hangFlag
	dirFlags
	otlpFlags
}

// Help says more than the flags do.
func (doctorCmd) Help() string {
	return `It looks at the ring directory, each engine's ring, the sidecar, the OTLP receiver and the libraries of the GPU, one line each: ok, note (worth knowing), todo (and what to do).

Exit code 0: nothing needs doing, 1: something does.`
}

// findingStatus says what is to be made of a finding.
type findingStatus string

const (
	findingOK   findingStatus = "ok"
	findingNote findingStatus = "note" // worth knowing; nothing needs doing
	findingTodo findingStatus = "todo" // something needs doing
)

// finding is one line of what the doctor found.
type finding struct {
	// Check is ring_directory, engine, sidecar, otlp, libcuda or nvml.
	Check  string        `json:"check"`
	Status findingStatus `json:"status"`
	Text   string        `json:"text"`
	// Todo says what to do, when something is.
	Todo string `json:"todo,omitempty"`
	// Engine is set for engines whose ring could be read.
	Engine *engineFinding `json:"engine,omitempty"`
}

// engineFinding is what an engine's ring says.
type engineFinding struct {
	Engine        string `json:"engine"`
	RunID         string `json:"run_id"`
	State         string `json:"state"` // live, ended or died
	Level         string `json:"level"`
	LayoutVersion int    `json:"layout_version"`
	Begun         uint64 `json:"begun"`
	Failed        uint64 `json:"failed"`
	Dropped       uint64 `json:"dropped"`
	InFlight      int64  `json:"in_flight"`
	// ClockUncertaintyNS is the widest of its contexts', as it was last published;
	// absent before a context has a clock.
	ClockUncertaintyNS uint64 `json:"clock_uncertainty_ns,omitempty"`
	// OldestInFlightNS is for how long the oldest of the spans in flight has been so;
	// absent when none is, as in an engine that idles.
	OldestInFlightNS uint64 `json:"oldest_in_flight_ns,omitempty"`
	// Hung says that the engine lives and that this is too long.
	Hung bool `json:"hung,omitempty"`
}

// diagnosis is the document of --json.
type diagnosis struct {
	Version  int       `json:"version"`
	OK       bool      `json:"ok"` // nothing needs doing
	Findings []finding `json:"findings"`
}

// diagnosisVersion changes when a key changes its meaning or goes.
const diagnosisVersion = 1

// askWait bounds each question to a server.
const askWait = 5 * time.Second

// Run looks at everything that has to work, and fails when something needs doing.
func (c *doctorCmd) Run(a *app) error {
	d := diagnosis{Version: diagnosisVersion, OK: true}
	add := func(f finding) {
		d.OK = d.OK && f.Status != findingTodo
		d.Findings = append(d.Findings, f)
	}
	dir, named, err := c.ringDir()
	if err != nil {
		return err
	}
	f := ringDirectory(dir, named)
	add(f)
	if f.Status != findingTodo {
		for _, f := range engineFindings(dir, time.Duration(c.HangAfter)) {
			add(f)
		}
	}
	add(c.sidecar(a))
	add(c.otlp(a))
	add(library("libcuda", cuda.DefaultLibrary, a.getenv(cuda.LibraryEnv), "kernels cannot be timed here, only elsewhere or by the stand-in"))
	add(library("nvml", nvmlLibrary, "", "no device readings here"))
	if c.JSON {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(d); err != nil {
			return err
		}
	} else if err := d.write(a.stdout); err != nil {
		return err
	}
	if !d.OK {
		return exitError{code: exitFailed}
	}
	return nil
}

// write prints one line for each finding.
func (d *diagnosis) write(w io.Writer) error {
	for _, f := range d.Findings {
		s := f.Text
		if f.Todo != "" {
			s += ": " + f.Todo
		}
		if _, err := fmt.Fprintf(w, "%-4s  %-14s  %s\n", f.Status, f.Check, oneLine(s)); err != nil {
			return err
		}
	}
	return nil
}

// ringBytes is what a ring of the default geometry takes.
var ringBytes = uint64(spanring.DefaultGeometry.FileBytes())

// ringDirectory looks at the directory: whether it is there and safe, and whether
// another ring fits.
func ringDirectory(dir spanring.Dir, named bool) finding {
	f := finding{Check: "ring_directory", Status: findingTodo, Text: dir.Path}
	err := dir.CheckReadable()
	switch {
	case errors.Is(err, spanring.ErrDirMissing) && !named:
		f.Status, f.Text = findingNote, dir.Path+" is not there yet: the first engine makes it"
		return f
	case errors.Is(err, spanring.ErrDirMissing):
		f.Text, f.Todo = dir.Path+" does not exist", fmt.Sprintf("make it with mode %#o, or name another with --dir or LANETRACE_DIR", engineMode(dir))
		return f
	case err != nil:
		f.Text, f.Todo = oneLine(err.Error()), "mend it, or name another with --dir or LANETRACE_DIR"
		return f
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Lstat(dir.Path, &st), unix.Statfs(dir.Path, &fs)); err != nil {
		f.Text, f.Todo = fmt.Sprintf("%s: %v", dir.Path, err), "make it readable"
		return f
	}
	free := fs.Bavail * uint64(fs.Bsize)
	f.Text = fmt.Sprintf("%s: mode %#o, owner %s, group %s, %d MiB free", dir.Path, st.Mode&0o7777, userName(st.Uid), groupName(st.Gid), free>>20)
	// What an engine would say of it, if it is this user's.
	if st.Uid == uint32(unix.Getuid()) {
		if err := dir.Check(); err != nil {
			f.Text, f.Todo = oneLine(err.Error()), "no engine makes a ring in it as it is"
			return f
		}
	}
	if free < ringBytes {
		f.Todo = fmt.Sprintf("a ring takes %d MiB: make room, or give engines smaller rings with LANETRACE_RING_BYTES", (ringBytes+1<<20-1)>>20)
		return f
	}
	f.Status = findingOK
	return f
}

func engineMode(dir spanring.Dir) int {
	if dir.Group >= 0 {
		return 0o2770
	}
	return 0o700
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}

// engineFindings are one finding for each ring. An engine that lives is hung when a
// span has been in flight for hangAfter.
func engineFindings(dir spanring.Dir, hangAfter time.Duration) []finding {
	rings, err := openRings(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return []finding{{Check: "engine", Status: findingTodo, Text: oneLine(err.Error()), Todo: "make the directory readable"}}
	}
	var out []finding
	for r := range rings {
		f, err := engineFindingOf(r, hangAfter)
		var v *spanring.VersionError
		switch {
		case errors.As(err, &v):
			f = finding{
				Check: "engine", Status: findingTodo,
				Text: fmt.Sprintf("%s has layout version %d, this lanetrace reads %d", r.path, v.Version, spanring.LayoutVersion),
				Todo: "bring the engine's library and this binary to versions that go together, or remove the file if its engine is gone",
			}
		case err != nil:
			f = finding{Check: "engine", Status: findingTodo, Text: oneLine(err.Error()), Todo: "remove the file if its engine is gone"}
		}
		out = append(out, f)
	}
	if out == nil {
		out = []finding{{Check: "engine", Status: findingNote, Text: "none has a ring in " + dir.Path}}
	}
	return out
}

func engineFindingOf(r foundRing, hangAfter time.Duration) (f finding, err error) {
	if r.err != nil {
		return f, r.err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	i := r.info
	alive, err := r.Alive()
	if err != nil {
		return f, err
	}
	n, err := r.Counters()
	if err != nil {
		return f, err
	}
	cs, err := r.Contexts()
	if err != nil {
		return f, err
	}
	busy, err := r.Busy()
	if err != nil {
		return f, err
	}
	oldest, inFlight := collector.OldestOf(busy, spanring.MonoNS())
	e := &engineFinding{
		Engine: collector.EngineName(i), RunID: i.RunID.String(), State: "live",
		Level: collector.LevelText(i.Level), LayoutVersion: spanring.LayoutVersion,
		Begun: n[spanring.CtrBegun], Failed: n.Failed(), Dropped: n[spanring.CtrDropped], InFlight: n.InFlight(),
	}
	switch {
	case i.Clean:
		e.State = "ended"
	case !alive:
		e.State = "died"
	}
	for _, c := range cs {
		e.ClockUncertaintyNS = max(e.ClockUncertaintyNS, c.UncertaintyNS)
	}
	if live := e.State == "live"; live && inFlight {
		e.OldestInFlightNS = uint64(max(0, oldest.Age))
		e.Hung = oldest.Age >= hangAfter
	}
	f = finding{Check: "engine", Status: findingOK, Engine: e}
	f.Text = fmt.Sprintf("%s %s, level %s, layout %d, spans: %d begun, %d failed, %d dropped, %d in flight", nameOf(i), e.State, e.Level, e.LayoutVersion, e.Begun, e.Failed, e.Dropped, e.InFlight)
	if e.ClockUncertaintyNS > 0 {
		f.Text += fmt.Sprintf(", clock ±%.1f µs", float64(e.ClockUncertaintyNS)/1e3)
	}
	switch {
	case e.State == "died":
		f.Status = findingNote
		f.Text += "; lanetrace report " + r.path + " shows what it was doing"
	case e.Hung:
		f.Text += fmt.Sprintf("; it hangs: %s %s of step %d on stream %d is in flight for %s",
			oldest.Slot.Kind, flight.SpanName(r, oldest.Slot), oldest.Slot.Step, oldest.Slot.Stream, report.Duration(float64(oldest.Age)))
		f.Status, f.Todo = findingTodo, "lanetrace report "+r.path+" shows what it was doing; an engine that is only slow wants a longer --hang-after"
	case e.State == "live" && e.Dropped > 0:
		f.Status, f.Todo = findingTodo, "spans found no free pair: give the engine more with LANETRACE_PAIRS"
	}
	return f, nil
}

// sidecar asks the sidecar for the loss account: how far it is behind and what it
// lost.
func (c *doctorCmd) sidecar(a *app) finding {
	f := finding{Check: "sidecar", Status: findingNote}
	ctx, cancel := context.WithTimeout(a.ctx, askWait)
	defer cancel()
	as, err := askAccount(ctx, string(c.Listen))
	switch {
	case errors.Is(err, errProtected):
		f.Text = fmt.Sprintf("%s answers, and %s: what it lost was not asked, /debug/account says it", c.Listen, err)
		return f
	case err != nil:
		f.Text = fmt.Sprintf("none answers at %s (%s): start lanetrace sidecar, or say where it serves with --listen", c.Listen, oneLine(err.Error()))
		return f
	}
	var lost, behind, dropped uint64
	for _, x := range as {
		lost += x.Reader.Lost
		behind += x.Reader.Pending
		for _, n := range x.Sidecar.Dropped {
			dropped += n
		}
		dropped += x.Sidecar.Rejected
	}
	f.Status = findingOK
	f.Text = fmt.Sprintf("%s answers: engines: %d, %d entries behind, %d lost, %d spans dropped or rejected", c.Listen, len(as), behind, lost, dropped)
	if lost+dropped > 0 {
		f.Status, f.Todo = findingTodo, fmt.Sprintf("http://%s/debug/account says which and why", c.Listen)
	}
	return f
}

// errProtected is a server that does not tell everybody.
var errProtected = errors.New("wants")

// maxAccountBytes bounds what is read of a sidecar's answer.
const maxAccountBytes = 64 << 20

func askAccount(ctx context.Context, addr string) (as []collector.Account, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/debug/account", nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer in %v", askWait)
		}
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%w a password", errProtected)
	case http.StatusBadRequest: // what Go's server says to plain HTTP
		return nil, fmt.Errorf("%w TLS", errProtected)
	default:
		return nil, fmt.Errorf("HTTP status %s", resp.Status)
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxAccountBytes)).Decode(&as)
	return as, err
}

// otlp sends one request without spans where traces go, and one without metrics
// where metrics go.
func (c *doctorCmd) otlp(a *app) finding {
	f := finding{Check: "otlp", Status: findingOK}
	where := a.otlpText(c.OTLPEndpoint)
	traces, metrics := otlp.Configured(string(c.OTLPEndpoint), a.getenv)
	if !traces && !metrics {
		f.Status, f.Text = findingNote, where
		return f
	}
	ctx, cancel := context.WithTimeout(a.ctx, askWait)
	defer cancel()
	var terr, merr error
	var asked sync.WaitGroup
	if traces {
		asked.Go(func() { terr = otlp.Probe(ctx, string(c.OTLPEndpoint), a.getenv) })
	}
	if metrics {
		asked.Go(func() { merr = otlp.ProbeMetrics(ctx, string(c.OTLPEndpoint), a.getenv) })
	}
	asked.Wait()
	to := func(what string) string { return otlpTo(what, c.OTLPEndpoint) }
	switch {
	case terr == nil && merr == nil:
		f.Text = where + ": a receiver answers"
		return f
	case metrics && terr == nil:
		f.Text, f.Todo = "no receiver takes "+to("metrics"), oneLine(merr.Error())
		if traces {
			f.Text += ", one takes traces"
			f.Todo += "; OTEL_METRICS_EXPORTER=none sends it none"
		}
	case traces && merr == nil:
		f.Text, f.Todo = "no receiver takes "+to("traces"), oneLine(terr.Error())
		if metrics {
			f.Text += ", one takes metrics"
			f.Todo += "; OTEL_TRACES_EXPORTER=none sends it none"
		}
	default:
		f.Text, f.Todo = "no receiver takes "+where, oneLine(terr.Error())
	}
	f.Status = findingTodo
	return f
}

// nvmlLibrary is NVML's name everywhere on Linux.
const nvmlLibrary = "libnvidia-ml.so.1"

// library tries to load a library. That there is none is no fault of a machine
// without a GPU; a file that was named must load.
func library(check, name, named, without string) finding {
	f := finding{Check: check, Status: findingOK, Text: name + " loads"}
	if named != "" {
		name = named
		f.Text = name + " loads"
	}
	err := dl.Probe(name)
	switch {
	case err == nil:
	case errors.Is(err, dl.ErrNoCgo):
		f.Status, f.Text = findingNote, fmt.Sprintf("%s was not tried: %v", name, err)
	case named != "":
		f.Status, f.Text, f.Todo = findingTodo, oneLine(err.Error()), "mend or unset "+cuda.LibraryEnv
	default:
		f.Status, f.Text = findingNote, fmt.Sprintf("%s; %s", oneLine(err.Error()), without)
	}
	return f
}
