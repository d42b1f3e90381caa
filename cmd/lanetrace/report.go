package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/ledger/memprofile"
	"github.com/lanetrace/lanetrace/spanring"
)

type reportCmd struct {
	File   string      `arg:"" optional:"" help:"Recording (.ltrec) or ring file (.ring), also of an engine that died. Default: the rings of the ring directory." placeholder:"FILE"`
	Engine engineMatch `help:"Report only on this engine: a service name, an executable or the beginning of a run id." placeholder:"E"`
	Step   string      `help:"Draw the step of this number, or one with a lane of this name (default: one of typical length)." placeholder:"N|LANE" env:"-"`
	Top    positive    `help:"List so many kernels (default ${default})." default:"10" placeholder:"N"`
	JSON   bool        `name:"json" help:"Print one JSON document for machines, with all kernels and call sites; docs/report.md describes its keys."`
	Memory bool        `help:"Report on the device memory alone: total, slack, call sites, files, guard bands, suspected leaks."`
	MinMiB mebibytes   `name:"min-mib" help:"With --memory: list call sites of at least so many MiB (default: all)." placeholder:"N"`
	Pprof  string      `help:"Write the live device memory by call site as a profile that go tool pprof opens, - for standard output, and print a report only with --memory." placeholder:"OUT"`
	Width  cells       `help:"Width of the report, from 60 to 160 (default: the terminal's, or 80)." placeholder:"CELLS"`
	dirFlags

	on []device.UUID // the GPUs of the engines that were reported on
}

// Validate implements kong's validation.
func (c *reportCmd) Validate() error {
	if c.JSON && (c.Memory || c.Pprof != "") {
		return errors.New("--json prints one document, which has the memory too: give it without --memory and --pprof")
	}
	if c.Memory && c.Pprof == standardOutput {
		return errors.New("--memory prints a report on standard output: give --pprof a file")
	}
	return nil
}

// reportSource is what is reported on.
type reportSource struct {
	src collector.Source
	// whole: the source ends by itself. A live ring is read as far as it goes now.
	whole bool
}

// Run prints a report of each engine.
func (c *reportCmd) Run(a *app) (err error) {
	var sources []reportSource
	var there []spanring.Info
	what := c.File
	var damage error
	var recorded *recording.File // nil: it is no recording
	if c.File == "" {
		var dir spanring.Dir
		if dir, err = c.readable(); err != nil {
			return err
		}
		what = dir.Path
		sources, there, err = c.rings(a, dir)
	} else {
		var isRing bool
		if isRing, err = fileKind(c.File); err != nil {
			return err
		}
		if isRing {
			sources, there, err = c.ring(c.File)
		} else {
			var f *recording.File
			if f, err = recording.Open(c.File); err != nil {
				return bareOpen(c.File, err)
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			recorded, damage = f, f.Damage()
			sources, there, err = c.recorded(f)
		}
	}
	if err != nil {
		return err
	}
	withDevices := recorded != nil && recorded.HasReadings() && !c.Memory && c.Pprof == ""
	if len(sources) == 0 && damage == nil && (!withDevices || len(there) > 0) {
		return c.Engine.none(what, there)
	}
	o := report.Options{Top: int(c.Top), Width: int(c.Width)}
	if n, err := strconv.ParseUint(c.Step, 10, 64); err == nil {
		o.Step = n
	} else {
		o.Lane = c.Step
	}
	if o.Width == 0 {
		o.Width = a.widthOf(a.stdout)
	}
	if c.Pprof != "" && len(sources) > 1 {
		return errors.Join(fmt.Errorf("a profile is of one engine, and %s holds %d: pick one with --engine", what, len(sources)), closeAll(sources))
	}
	var first error
	drawn := false
	doc := &report.Document{Version: report.DocumentVersion, Engines: []*report.EngineReport{}, Devices: []report.DeviceReport{}}
	for i, s := range sources {
		if i > 0 && !c.JSON {
			if _, err := io.WriteString(a.stdout, "\n\n"); err != nil {
				return err
			}
		}
		o.Recorded = s.whole
		text, hasStep, err := c.reportOn(a, s, o, doc)
		drawn = drawn || hasStep
		if err != nil && first == nil {
			first = bareRecording(err)
		}
		if _, err := io.WriteString(a.stdout, text); err != nil {
			return err
		}
	}
	if withDevices {
		ds, refused, err := recordedStats(a.ctx, recorded)
		a.sayRefused(refused)
		if first == nil {
			first = err
		}
		ds = reportedDevices(ds, c.on)
		doc.Devices = report.Devices(ds)
		if text := report.DevicesText(ds, o.Width); !c.JSON && text != "" {
			if len(sources) > 0 {
				text = "\n" + text
			}
			if _, err := io.WriteString(a.stdout, text); err != nil {
				return err
			}
		}
	}
	if c.JSON {
		if err := doc.Write(a.stdout); err != nil {
			return err
		}
	}
	if first == nil {
		first = damage
	}
	if first == nil && c.Step != "" && !drawn && !c.Memory && c.Pprof == "" {
		first = stepNotThere(o, what)
	}
	return first
}

// fileKind tells a ring from a recording by how they begin. What is neither is an
// error.
func fileKind(path string) (ring bool, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return false, bareOpen(path, err)
	}
	if !st.Mode().IsRegular() {
		what := "no regular file"
		if st.IsDir() {
			what = "a directory: name a file in it, or give a ring directory with --dir"
		}
		return false, fmt.Errorf("%s is %s", path, what)
	}
	f, err := os.Open(path)
	if err != nil {
		return false, bareOpen(path, err)
	}
	defer f.Close()
	b := make([]byte, 8)
	n, err := io.ReadFull(f, b)
	switch {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return false, bareOpen(path, err)
	case n == 0:
		return false, fmt.Errorf("%s is empty", path)
	case string(b[:n]) == ringMagic:
		return true, nil
	case n >= 5 && string(b[:5]) == "LTREC":
		return false, nil
	case strings.HasSuffix(path, spanring.Suffix):
		return true, nil // the reader says what is wrong with it
	case strings.HasSuffix(path, recording.Suffix):
		return false, nil
	}
	return false, fmt.Errorf("%s is neither a recording (.ltrec) nor a ring file (.ring)", path)
}

// ringMagic begins every ring file.
const ringMagic = "lanetrac"

func (c *reportCmd) recorded(f *recording.File) (out []reportSource, there []spanring.Info, err error) {
	for i, r := range f.Runs() {
		there = append(there, r.Info)
		if !c.Engine.picks(r.Info) {
			continue
		}
		src, err := f.Source(i)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, reportSource{src, true})
	}
	return out, there, nil
}

// ring is the ring of a file, if its engine is picked.
func (c *reportCmd) ring(path string) (out []reportSource, there []spanring.Info, err error) {
	return c.picked(openRing(path))
}

func (c *reportCmd) picked(r foundRing) (out []reportSource, there []spanring.Info, err error) {
	if r.err != nil {
		return nil, nil, r.err
	}
	there = []spanring.Info{r.info}
	if !c.Engine.picks(r.info) {
		return nil, there, r.Close()
	}
	return []reportSource{{src: collector.NewRingSource(r.Reader)}}, there, nil
}

// rings opens every ring of a directory. One that cannot be read is a warning:
// the others are still worth a report.
func (c *reportCmd) rings(a *app, dir spanring.Dir) (out []reportSource, there []spanring.Info, err error) {
	rings, err := openRings(dir)
	if err != nil {
		return nil, nil, err
	}
	for r := range rings {
		s, i, err := c.picked(r)
		if err != nil {
			a.say("warning: %s", oneLine(err.Error()))
			continue
		}
		out, there = append(out, s...), append(there, i...)
	}
	return out, there, nil
}

// stepNotThere is the error when the step that was asked for is in none of the
// runs read.
func stepNotThere(o report.Options, what string) error {
	if o.Step != 0 {
		return fmt.Errorf("no step %d in %s", o.Step, what)
	}
	return fmt.Errorf("no complete step with a lane %q in %s; the report lists its lanes", o.Lane, what)
}

// reportOn reads a source and writes its report, or adds it to doc. The report is
// of what could be read before an error; hasStep is whether it has one.
func (c *reportCmd) reportOn(a *app, s reportSource, o report.Options, doc *report.Document) (text string, hasStep bool, err error) {
	r := report.New(o)
	p, err := collector.NewProcessor(s.src, collector.ProcessorOptions{Observers: []collector.Observer{r}, Taps: []collector.Tap{r}})
	if err != nil {
		return "", false, errors.Join(err, s.src.Close())
	}
	if s.whole {
		err = p.Drain()
	} else {
		err = p.DrainToNow()
	}
	e := p.Engine()
	c.on = append(c.on, device.DevicesOf(e)...)
	switch {
	case c.JSON:
		doc.Engines = append(doc.Engines, r.Report(e))
	case c.Memory:
		text = r.MemoryText(e, int(c.MinMiB))
	case c.Pprof == "":
		text = r.Text(e)
	}
	if c.Pprof != "" && err == nil {
		err = a.writeProfile(c.Pprof, e)
	}
	return text, r.Exemplary() != nil, errors.Join(err, p.Close())
}

// writeProfile writes the engine's memory as a profile. One that cannot be made
// leaves no file behind that was not there before.
func (a *app) writeProfile(path string, e *collector.Engine) error {
	m := e.Memory()
	if m.State == spanring.AllocsNotTracked {
		return fmt.Errorf("engine %s: %w", e.Label(), memprofile.ErrNotTracked)
	}
	var b bytes.Buffer
	if err := memprofile.Write(&b, &m, e.NowMonoNS()+e.Source().WallOffsetNS()); err != nil {
		return err
	}
	w, closeOut, err := a.output(path)
	if err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return errors.Join(err, closeOut())
}

func closeAll(sources []reportSource) (err error) {
	for _, s := range sources {
		err = errors.Join(err, s.src.Close())
	}
	return err
}
