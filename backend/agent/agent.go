// SPDX-License-Identifier: Apache-2.0

// Package agent holds the sources of liblanetrace.so, the library that brings
// telemetry into CUDA programs that were not changed, and builds it.
//
// The library is C11 with no dependency beyond libc, libdl and pthreads, and no
// symbol newer than glibc 2.28. Loaded into a program, it writes the same ring
// file as the Go library, so that nothing behind the ring can tell the two apart.
package agent

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace"
)

//go:generate go run ./internal/genlayout csrc/layout.h

//go:embed csrc/*.c csrc/*.h csrc/*.map
var sources embed.FS

// Name is the library's file name.
const Name = "liblanetrace.so"

// ErrNoCompiler says that gcc is not installed.
var ErrNoCompiler = errors.New("agent: gcc not found; install a C compiler (Debian: apt-get install gcc libc6-dev)")

// CompileFlags are what every source of the agent is compiled with, in a folder
// that holds the sources.
func CompileFlags() []string {
	return []string{
		"-std=c11", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread",
		"-I.", "-include", "glibc.h", `-DLT_VERSION="` + lanetrace.Version + `"`,
	}
}

// linkFlags name the libraries outright: on the systems that the library is
// built on they are empty, on those it may run on they are not. nodelete: threads
// and trampolines must not lose their code to a dlclose.
var linkFlags = []string{
	"-shared", "-Wl,-soname," + Name, "-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,--no-undefined", "-Wl,--version-script=versions.map",
	"-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2",
}

// WriteSources writes the sources into a folder that exists.
func WriteSources(dir string) error {
	ents, err := fs.ReadDir(sources, "csrc")
	if err != nil {
		return fmt.Errorf("agent: list the sources: %w", err)
	}
	for _, e := range ents {
		b, err := sources.ReadFile("csrc/" + e.Name())
		if err != nil {
			return fmt.Errorf("agent: read source %s: %w", e.Name(), err)
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), b, 0o600); err != nil {
			return fmt.Errorf("agent: write source: %w", err)
		}
	}
	return nil
}

// BuildTo compiles the library to a file, replacing it in one step. flags are
// added to the compiler's, such as -fsanitize=thread. It runs gcc for some
// seconds.
func BuildTo(path string, flags ...string) (err error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return ErrNoCompiler
	}
	// gcc runs in the folder of the sources.
	if path, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("agent: make the library: %w", err)
	}
	src, err := os.MkdirTemp("", "lanetrace-agent-")
	if err != nil {
		return fmt.Errorf("agent: make a folder for the sources: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(src)) }()
	if err := WriteSources(src); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(src, "*.c"))
	if err != nil {
		return fmt.Errorf("agent: list the sources: %w", err)
	}
	// Built beside its place and renamed, so that a program that starts meanwhile
	// loads either the old library or the new one.
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+Name+"-*")
	if err != nil {
		return fmt.Errorf("agent: make the library: %w", err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already if all went well
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("agent: make the library: %w", err)
	}
	args := slices.Concat(CompileFlags(), flags, []string{"-o", tmp.Name()})
	for _, n := range names {
		args = append(args, filepath.Base(n))
	}
	args = append(args, linkFlags...)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, gcc, args...)
	cmd.Dir = src
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("agent: gcc: %w\n%s", err, strings.TrimSpace(out.String()))
	}
	if err := os.Chmod(tmp.Name(), 0o755); err != nil {
		return fmt.Errorf("agent: make the library: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("agent: make the library: %w", err)
	}
	return nil
}
