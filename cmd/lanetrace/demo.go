package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/examples/recordings"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

type demoCmd struct {
	Listen listenAddr `help:"Where to serve /metrics (default ${default})." default:"127.0.0.1:9478" placeholder:"HOST:PORT"`
	Dir    string     `help:"Ring directory to play in, made if missing (default, and always with --fault: a fresh one in memory, removed at the end)." placeholder:"DIR"`
	faultFlags
	webFlags
	otlpFlags
	selectFlags
	metricFlags
	Duration period `help:"End after so long (default: on SIGINT or SIGTERM)." placeholder:"D"`
}

// shmDir is where rings belong: memory that never touches a disk.
const shmDir = "/dev/shm"

// Run plays the embedded recording again and again until a signal comes or the
// duration is over.
func (c *demoCmd) Run(a *app) (err error) {
	switch {
	case c.FaultEngine != "":
		return c.beFaultEngine(a, os.Stdin)
	case c.Fault != "":
		return c.show(a)
	}
	web, err := c.loadWeb()
	if err != nil {
		return err
	}
	r := recordings.H200Decode()
	f, err := recording.NewReader(r, r.Size(), recordings.H200DecodeName)
	if err != nil {
		return err
	}
	if err := f.Damage(); err != nil {
		return err
	}
	ctx, cancel := c.Duration.bound(a.ctx)
	defer cancel()

	dir, remove, err := a.demoDir(c.Dir, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var s *service
	gpus := recordedDevices(func() []*collector.Engine { return s.engines() })
	s, err = a.newService(serviceOptions{
		listen: c.Listen, web: web, ins: c.instruments(a.getenv), endpoint: c.OTLPEndpoint, dir: dir, log: a.log.slog(true), devices: gpus,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	if err := c.introduce(a, s, dir, f); err != nil {
		return err
	}

	// The collector outlives the players, so that it reads what they wrote last.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	g, playing := errgroup.WithContext(ctx)
	var players errgroup.Group
	for i := range f.Runs() {
		// Readings go with the first run, whose passes are theirs.
		var readings *player.Devices
		if i == 0 && f.HasReadings() {
			readings = player.NewDevices(gpus.readings)
		}
		players.Go(func() error { return playAgain(playing, dir, f, i, readings) })
	}
	g.Go(func() error {
		defer stopReading()
		return players.Wait()
	})
	// Who connects before a ring is read waits that moment: every series of it is
	// in the first scrape already.
	serve := sync.OnceFunc(s.serve)
	g.Go(func() error { return s.read(reading, dir, c.selection(nil), func(*collector.Engine) { serve() }) })
	return g.Wait()
}

// playAgain plays run i again and again until ctx ends, each time as a new run,
// and removes its last ring. gpus, if not nil, are played beside it.
func playAgain(ctx context.Context, dir spanring.Dir, f *recording.File, i int, gpus *player.Devices) error {
	for ctx.Err() == nil {
		src, err := f.Source(i)
		if err != nil {
			return err
		}
		o := player.Options{StartMonoNS: spanring.MonoNS(), StartAtNS: src.NowMonoNS()}
		pass, end := context.WithCancel(ctx)
		var beside errgroup.Group
		if gpus != nil {
			beside.Go(func() error { return gpus.Play(pass, f, o) })
		}
		// Rings of earlier passes are removed as every starting engine removes the
		// dead ones.
		_, err = player.Play(ctx, dir, src, o)
		end()
		if err := errors.Join(err, src.Close(), beside.Wait()); err != nil {
			return err
		}
	}
	return nil
}

// demoDir is the directory to play in and what removes it again: all of a fresh
// one, only what the demo made of one that was named.
func (a *app) demoDir(name string, f *recording.File) (spanring.Dir, func() error, error) {
	d := spanring.Dir{Path: name, Group: -1}
	if name != "" {
		if err := d.Make(); err != nil {
			return d, nil, err
		}
		before, err := d.List()
		if err != nil {
			return d, nil, err
		}
		return d, func() error { return removeRings(d, before) }, nil
	}
	// Each engine's ring, and those of its last two passes, are there at once.
	path, err := a.freshDir(3 * int64(len(f.Runs())) * spanring.DefaultGeometry.FileBytes())
	if err != nil {
		return d, nil, err
	}
	d.Path = path
	return d, func() error { return removeAll(path) }, nil
}

// freshDir makes a directory for need bytes of rings.
func (a *app) freshDir(need int64) (string, error) {
	base := shmDir
	if why := tooSmall(base, need); why != "" {
		base = os.TempDir()
		a.say("%s %s: the rings are made in %s", shmDir, why, base)
	}
	path, err := os.MkdirTemp(base, fmt.Sprintf("lanetrace-demo-%d-", os.Getuid()))
	if err != nil {
		return "", fmt.Errorf("make ring directory: %w; give one with --dir", err)
	}
	return path, nil
}

// removeAll removes what a demo made for itself.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove ring directory: %w", err)
	}
	return nil
}

// tooSmall says what speaks against need bytes of rings in dir, "" for nothing.
func tooSmall(dir string, need int64) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "is missing"
	}
	if unix.Access(dir, unix.W_OK) != nil {
		return "is not writable"
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < need {
		return fmt.Sprintf("has %d MiB free, too little for %d MiB of rings", free>>20, need>>20)
	}
	return ""
}

// removeRings removes this process's rings that were not there before.
func removeRings(d spanring.Dir, before []string) error {
	was := make(map[string]bool, len(before))
	for _, p := range before {
		was[p] = true
	}
	now, err := d.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range now {
		if was[p] || !madeHere(p) {
			continue
		}
		for _, p := range []string{p, p + spanring.ControlSuffix} {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove ring: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// madeHere reports whether this process made the ring.
func madeHere(path string) bool {
	r, err := spanring.Open(path, spanring.ReaderOptions{FromNow: true})
	if err != nil {
		return false
	}
	defer r.Close()
	i, err := r.Info()
	return err == nil && int(i.PID) == os.Getpid()
}

// introduce says what is served, where, and what a step of it looks like.
func (c *demoCmd) introduce(a *app, s *service, dir spanring.Dir, f *recording.File) error {
	run := f.Runs()[0]
	step, err := exemplary(f, 0)
	if err != nil {
		return err
	}
	what := collector.EngineName(run.Info)
	if run.Info.GPUName != "" {
		what += " on " + collector.CleanText(run.Info.GPUName)
	}
	length := time.Duration(run.EndMonoNS - run.StartMonoNS).Round(time.Second)
	fmt.Fprintf(a.stdout, "Playing %s of %s again and again, at its own pace, through a live ring.\n\n", length, what)
	if step != nil {
		fmt.Fprintf(a.stdout, "%s\n", report.Timeline(step, report.TimelineOptions{Width: a.widthOf(a.stdout)}))
	}
	for _, l := range [][2]string{
		{"page", s.url() + "/"},
		{"metrics", s.url() + "/metrics"},
		{"account", s.url() + "/debug/account"},
		{"OTLP", a.otlpText(c.OTLPEndpoint)},
		{"report", os.Args[0] + " report --dir " + dir.Path},
	} {
		fmt.Fprintf(a.stdout, "%-9s%s\n", l[0], l[1])
	}
	end := "Ctrl-C ends it."
	if c.Duration != 0 {
		end = fmt.Sprintf("It ends after %s, or with Ctrl-C.", time.Duration(c.Duration))
	}
	_, err = fmt.Fprintln(a.stdout, end)
	return err
}

// exemplary is the step of run i that a report would draw, nil when there is
// none.
func exemplary(f *recording.File, i int) (*collector.Step, error) {
	src, err := f.Source(i)
	if err != nil {
		return nil, err
	}
	r := report.New(report.Options{})
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{r}})
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	err = p.Drain()
	return r.Exemplary(), errors.Join(err, p.Close())
}
