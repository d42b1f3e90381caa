// Command lanetrace reads what engines write to their rings: it serves their
// metrics and sends their traces (sidecar), records them (record), plays
// recordings again (replay) and reports on either (report). run attaches to a CUDA
// program that was not changed and is its sidecar. demo is a sidecar of a
// recording that the binary carries. top watches live engines in a terminal, level
// and arm ask them to measure more or less, doctor says what keeps all this from
// working. diff compares two launch traces. mkdir makes a ring directory where
// engines may not.
//
// Exit codes: 0 all went well, 1 something failed, 2 the command line is wrong;
// of diff 0 no difference, 1 some, 2 something failed; of run the program's own.
// Errors are one line on standard error. A flag can be set by the variable that its
// help names, LANETRACE_ and the flag's name.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lanetrace/lanetrace"
)

func main() { os.Exit(realMain()) }

// realMain is main but for the exit, for tests that run the command as a process.
func realMain() int {
	// An empty variable is one that is not set: a template left it blank.
	for _, kv := range os.Environ() {
		if k, v, _ := strings.Cut(kv, "="); v == "" && strings.HasPrefix(k, "LANETRACE_") {
			os.Unsetenv(k)
		}
	}
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	// Who reads our output may go first, as tee does at Ctrl-C. That is an error of the
	// write, not our end: what is queued is still sent, what was made is removed.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// sameSignal is how long after a signal another one is taken for the same: timeout(1)
// and some supervisors send each to the process and to its group.
const sameSignal = time.Second

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// app is what all commands share.
type app struct {
	ctx            context.Context // ends with the first SIGINT, SIGTERM or SIGHUP
	stdout, stderr io.Writer
	getenv         func(string) string
	log            *logger
}

// cli is the command line.
type cli struct {
	Demo    demoCmd    `cmd:"" help:"Play the recording that this binary carries through a live ring, and serve its metrics: everything but a GPU."`
	Sidecar sidecarCmd `cmd:"" help:"Read the rings of the engines on this machine, serve their metrics and send their traces."`
	Record  recordCmd  `cmd:"" help:"Record what live engines write, into a file."`
	Replay  replayCmd  `cmd:"" help:"Play a recording: as text, OTLP/JSON, trace events for Perfetto or metrics, or as traces to an OTLP endpoint."`
	Run     runCmd     `cmd:"" help:"Run a CUDA program that was not changed, with the agent in it, and be its sidecar."`
	Report  reportCmd  `cmd:"" help:"Report on a recording, a ring file or the live engines: steps, lanes, kernels, losses, one step drawn."`
	Top     topCmd     `cmd:"" help:"Watch live engines: steps a second, lanes, kernels, memory, drops."`
	Level   levelCmd   `cmd:"" help:"Print or change how much live engines measure."`
	Arm     armCmd     `cmd:"" help:"Have live engines time their next steps kernel by kernel."`
	Doctor  doctorCmd  `cmd:"" help:"Look at all that has to work together, and say what to do."`
	Diff    diffCmd    `cmd:"" help:"Compare two launch traces, operation by operation."`
	Mkdir   mkdirCmd   `cmd:"" help:"Make a ring directory with the mode that engines want, before they come."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// commands are the names of cli's commands.
var commands = []string{"demo", "sidecar", "record", "replay", "run", "report", "top", "level", "arm", "doctor", "diff", "mkdir", "version"}

// usageError is an error of the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exited is thrown where kong wants to end the process.
type exited int

// run runs one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(exited)
			if !ok {
				panic(p)
			}
			code = int(e)
		}
	}()
	a := &app{ctx: ctx, stdout: stdout, stderr: stderr, getenv: os.Getenv, log: newLogger(stderr)}
	var c cli
	parser, err := kong.New(&c,
		kong.Name("lanetrace"),
		kong.Description(description),
		kong.DefaultEnvars("LANETRACE"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 96}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.Bind(a),
	)
	if err != nil {
		return a.fail(err)
	}
	args = asked(args)
	k, err := parser.Parse(joinNegative(args))
	if err != nil {
		return a.fail(parseError(err, args))
	}
	return a.fail(k.Run())
}

// description is what the command as a whole says of itself.
const description = `GPU telemetry for model servers, from the GPU's own clock.

Exit codes: 0 all went well, 1 something failed or, of doctor, needs doing, 2 the command line is wrong; of diff and run what their --help says. Every flag can be set by the variable that its help names.`

// asked is the command line of what other programs have people ask for: help, help CMD
// and --version.
func asked(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case len(args) == 1 && args[0] == "--version":
		return []string{"version"}
	}
	return args
}

// joinNegative puts a negative number to its flag with "=", because kong would
// take it for a flag of its own and say so instead of what is wrong.
func joinNegative(args []string) []string {
	if len(args) > 0 && args[0] == "run" {
		return args // what looks so is the program's
	}
	var out []string
	for _, s := range args {
		if k := len(out) - 1; k >= 0 && len(s) > 1 && s[0] == '-' && strings.ContainsRune("0123456789.", rune(s[1])) &&
			strings.HasPrefix(out[k], "--") && !strings.Contains(out[k], "=") {
			out[k] += "=" + s
			continue
		}
		out = append(out, s)
	}
	return out
}

// parseError says what to do about a command line that cannot be right.
func parseError(err error, args []string) error {
	cmd := ""
	for _, s := range commands {
		if args[0] == s {
			cmd = s + " "
		}
	}
	if cmd == "" && !strings.HasPrefix(args[0], "-") {
		return usagef("unknown command %q: want %s", args[0], strings.Join(commands, ", "))
	}
	if len(args) > 1 && args[0] == "level" && new(lanetrace.Level).UnmarshalText([]byte(args[1])) == nil {
		return usagef("want lanetrace level set %s (see lanetrace level --help)", args[1])
	}
	text := strings.TrimPrefix(err.Error(), strings.TrimSpace(cmd)+": ")
	if flag, ok := strings.CutSuffix(text, `: expected value value but got "EOL" (<EOL>)`); ok {
		text = flag + " wants a value"
	}
	return usagef("%s (see lanetrace %s--help)", text, cmd)
}

// fail says an error in one line and returns its exit code.
func (a *app) fail(err error) int {
	if err == nil {
		return exitOK
	}
	var x exitError
	if errors.As(err, &x) && x.err == nil {
		return x.code
	}
	var pe *fs.PathError
	if errors.Is(err, syscall.EPIPE) && errors.As(err, &pe) && pe.Path == os.Stdout.Name() {
		return exitSignal + int(syscall.SIGPIPE) // the reader has had enough, as head has
	}
	a.say("%s", oneLine(err.Error()))
	if x.err != nil {
		return x.code
	}
	var u usageError
	if errors.As(err, &u) {
		return exitUsage
	}
	return exitFailed
}

// say writes one line to standard error.
func (a *app) say(format string, args ...any) {
	a.log.line(fmt.Sprintf(format, args...))
}

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
