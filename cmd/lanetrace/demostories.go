package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace/examples/faulty"
)

// story is what is told of a fault, and how it is shown once it is there.
type story struct {
	what string
	show func(context.Context, *stage) error
}

// storyOf is the story of a fault.
func storyOf(f faulty.Fault) story {
	switch f {
	case faulty.Crash:
		return story{"an engine is killed within a step. What was it doing?", showCrash}
	case faulty.Hang:
		return story{"the GPU completes nothing any more. Which kernel, and since when?", showHang}
	case faulty.Leak:
		return story{"device memory that nobody frees. Which line allocates it?", showLeak}
	case faulty.Overrun:
		return story{"a kernel writes past the end of its buffer. Which buffer, and how far?", showOverrun}
	case faulty.Perturb:
		return story{"one step launches its kernels with another argument. Which one?", showPerturb}
	case faulty.Drop:
		return story{"telemetry runs out of event pairs. What is missing from the picture?", showDrop}
	}
	return story{}
}

func showCrash(ctx context.Context, s *stage) error {
	s.step("kill -9 %d", s.engine.pid())
	if err := s.engine.kill(); err != nil {
		return err
	}
	s.faulted = time.Now()
	if err := s.noticed(ctx,
		series{"lanetrace_engine_up", nil, isZero},
		series{"lanetrace_engines_ended_total", []string{`reason="died"`}, isPositive},
		series{"lanetrace_flight_records_total", []string{`reason="died"`}, isPositive},
	); err != nil {
		return err
	}
	return s.flightRecord(ctx, "died", "flight record of an engine that died")
}

func showHang(ctx context.Context, s *stage) error {
	s.step("after %v in flight the engine counts as hung", time.Duration(s.c.HangAfter))
	if err := s.noticed(ctx,
		series{"lanetrace_spans_in_flight_age_seconds", nil, func(v float64) bool { return v >= time.Duration(s.c.HangAfter).Seconds() }},
		series{"lanetrace_engine_up", nil, isPositive},
		series{"lanetrace_flight_records_total", []string{`reason="hung"`}, isPositive},
	); err != nil {
		return err
	}
	return s.flightRecord(ctx, "hung", "engine hangs")
}

func showLeak(ctx context.Context, s *stage) error {
	s.step("what does nothing but grow for %v is suspected", time.Duration(s.c.LeakWindow))
	table, err := s.table(ctx, "MEMORY", "suspected leak: ")
	if err != nil {
		return err
	}
	if err := s.noticed(ctx,
		series{"lanetrace_memory_site_live_bytes", []string{"make.go:"}, isPositive},
		series{"lanetrace_memory_site_growth_bytes_per_second", []string{"make.go:"}, isPositive},
	); err != nil {
		return err
	}
	s.section("THE REPORT (lanetrace report)", table)
	return nil
}

func showOverrun(ctx context.Context, s *stage) error {
	table, err := s.table(ctx, "MEMORY", "guard bands found changed: ")
	if err != nil {
		return err
	}
	if err := s.noticed(ctx, series{"lanetrace_memory_violations_total", nil, isPositive}); err != nil {
		return err
	}
	if err := s.engineLog(ctx, "guard band was written to"); err != nil {
		return err
	}
	s.section("THE REPORT (lanetrace report)", table)
	return nil
}

func showPerturb(ctx context.Context, s *stage) error {
	table, err := s.table(ctx, "LAUNCH TRACE", "2 changed")
	if err != nil {
		return err
	}
	// The step that differs, and the next one, which is as the others again.
	if err := s.noticed(ctx,
		series{"lanetrace_launchtrace_differing_executions_total", []string{`region="decode"`}, func(v float64) bool { return v == 2 }},
		series{"lanetrace_launchtrace_differing_ops_total", []string{`region="decode"`}, func(v float64) bool { return v == 4 }},
	); err != nil {
		return err
	}
	s.section("THE REPORT (lanetrace report)", table)
	return nil
}

func showDrop(ctx context.Context, s *stage) error {
	table, err := s.table(ctx, "LOSS ACCOUNT", "it balances")
	if err != nil {
		return err
	}
	if err := s.noticed(ctx, series{"lanetrace_spans_dropped_total", []string{`reason="pool_full"`}, isPositive}); err != nil {
		return err
	}
	s.section("THE REPORT (lanetrace report)", table)
	s.say("  Every span that was begun is in one of its columns: nothing is lost silently.")
	return nil
}

// noticed waits until the metrics say it, and prints their lines.
func (s *stage) noticed(ctx context.Context, want ...series) error {
	lines, err := s.until(ctx, "metrics", func() (string, error) {
		text, err := s.service.scrape()
		if err != nil {
			return "", err
		}
		return allSeries(text, want), nil
	})
	if err != nil {
		return err
	}
	s.step("the sidecar noticed, %.1f s after it happened", time.Since(s.faulted).Seconds())
	s.section("METRICS (what an alert goes by)", lines)
	return nil
}

// table waits until the report's table that begins with head says it.
func (s *stage) table(ctx context.Context, head, says string) (string, error) {
	return s.until(ctx, "report", func() (string, error) {
		text, err := s.report()
		if err != nil {
			return "", err
		}
		if t := part(text, head); strings.Contains(t, says) {
			return t, nil
		}
		return "", nil
	})
}

// flightRecord waits for the sidecar's log line and the page, and prints both.
func (s *stage) flightRecord(ctx context.Context, why, says string) error {
	line, err := s.until(ctx, "the sidecar's log", func() (string, error) { return s.sideLog.with(says), nil })
	if err != nil {
		return err
	}
	s.section("THE SIDECAR'S LOG", line)
	page := ""
	text, err := s.until(ctx, "flight record", func() (string, error) {
		pages, err := filepath.Glob(filepath.Join(s.flights, "*-"+why+".txt"))
		if err != nil || len(pages) == 0 {
			return "", err
		}
		page = pages[0]
		b, err := os.ReadFile(page)
		return string(b), err
	})
	if err != nil {
		return err
	}
	s.section("THE FLIGHT RECORD ("+filepath.Base(page)+", beside a recording of all that the ring held)", text)
	s.say("\nThis one goes with the demo; a sidecar keeps its own in ~/.local/state/lanetrace/flight (--state-dir).")
	return nil
}

// engineLog prints what the engine logged about it.
func (s *stage) engineLog(ctx context.Context, says string) error {
	line, err := s.until(ctx, "the engine's log", func() (string, error) { return s.engine.log.with(says), nil })
	if err != nil {
		return err
	}
	s.section("THE ENGINE'S LOG", line)
	return nil
}
