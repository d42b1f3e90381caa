package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/launchtrace"
)

type diffCmd struct {
	Before  string  `arg:"" name:"a.ltops" help:"Launch trace of one execution of a region (.ltops)." placeholder:"A.ltops"`
	After   string  `arg:"" name:"b.ltops" help:"Launch trace of another." placeholder:"B.ltops"`
	Details details `help:"Tell so many differences in full: a number from 0, or all (default ${default})." default:"20" placeholder:"N"`
	BySite  bool    `help:"Take the same place in another allocation of the same call site for no difference."`
}

// Exit codes of diff, as diff(1) has them.
const (
	exitSame      = 0
	exitDifferent = 1
	exitTrouble   = 2
)

// Help says more than the flags do.
func (diffCmd) Help() string {
	return "Exit code 0: no difference, 1: some, 2: something failed."
}

// Run compares two files.
func (c *diffCmd) Run(a *app) error {
	before, err := launchtrace.ReadFile(c.Before)
	if err != nil {
		return exitError{exitTrouble, err}
	}
	after, err := launchtrace.ReadFile(c.After)
	if err != nil {
		return exitError{exitTrouble, err}
	}
	p := launchtrace.Diff(before, after, launchtrace.DiffOptions{BySite: c.BySite}).Report(int(c.Details))
	text := p.Text()
	if x, y := before.Region(), after.Region(); x != y {
		text = fmt.Sprintf("different regions: %s and %s\n", collector.CleanText(x), collector.CleanText(y)) + text
	}
	if _, err := io.WriteString(a.stdout, text); err != nil {
		return exitError{exitTrouble, err}
	}
	// Executions of which different parts are missing are not the same either.
	if p.Differing() > 0 || p.BeforeDropped != p.AfterDropped {
		return exitError{code: exitDifferent}
	}
	return nil
}

// exitError ends the command with a code of its own; without an error nothing is
// said.
type exitError struct {
	code int
	err  error
}

// Error is the error's text, or says with which code the command ends.
func (e exitError) Error() string {
	if e.err == nil {
		return "exit code " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

// Unwrap returns the error.
func (e exitError) Unwrap() error { return e.err }

// details is how many differences are told: -1 is all.
type details int

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *details) UnmarshalText(b []byte) error {
	if string(b) == "all" {
		*d = -1
		return nil
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 {
		return errors.New("want a number from 0, or all, got " + strconv.Quote(string(b)))
	}
	*d = details(n)
	return nil
}
