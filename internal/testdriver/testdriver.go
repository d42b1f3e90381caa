// SPDX-License-Identifier: Apache-2.0

// Package testdriver builds a stand-in libcuda.so.1, so that everything that
// binds the CUDA driver runs where there is no GPU: the cgo binding, programs
// over it, and libraries that are loaded into other programs.
//
// The stand-in speaks the driver's binary interface and follows its rules as
// they were measured on an H200; csrc/libcuda.c says what it models and what it
// does not, csrc/control.h what a test may ask of it. Package control reaches
// that interface from Go.
//
// A program uses the stand-in by having its directory first in
// LD_LIBRARY_PATH, or by being told the path. Builds are shared by all test
// processes of a user and keyed by the sources and the compiler, so the first
// costs a few seconds and the rest nothing. Only tests, and commands that
// demonstrate something without a GPU, may use this package.
package testdriver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

//go:embed csrc/*.c csrc/*.h
var sources embed.FS

// Name is the library's file name and soname.
const Name = "libcuda.so.1"

// ErrNoCompiler says that gcc is not installed.
var ErrNoCompiler = errors.New("testdriver: gcc not found; install a C compiler (Debian: apt-get install gcc libc6-dev)")

// Build returns the path of the stand-in, building it if need be. The file is
// shared: don't change it.
func Build(tb testing.TB) string {
	tb.Helper()
	return build(tb, nil, nil)
}

// BuildWithout is Build for a library that does not export the given functions
// ("cuStreamGetId", "cuEventElapsedTime_v2"): neither dlsym nor
// cuGetProcAddress finds them.
func BuildWithout(tb testing.TB, symbols ...string) string {
	tb.Helper()
	return build(tb, symbols, nil)
}

// BuildWith is Build with further compiler flags, such as -fsanitize=thread.
func BuildWith(tb testing.TB, flags ...string) string {
	tb.Helper()
	return build(tb, nil, flags)
}

// BuildTo compiles the stand-in to a file, replacing it in one step. It is for
// commands that need it outside of tests.
func BuildTo(path string) error {
	gcc, err := findCompiler()
	if err != nil {
		return err
	}
	return compileTo(gcc.path, path, nil, nil)
}

// IncludeDir returns a directory that holds cuda_abi.h and control.h, for
// tests that compile C of their own against the stand-in.
func IncludeDir(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := writeSources(dir); err != nil {
		tb.Fatal(err)
	}
	return dir
}

func build(tb testing.TB, without, flags []string) string {
	tb.Helper()
	gcc, err := findCompiler()
	if err != nil {
		tb.Fatal(err)
	}
	without = slices.Sorted(slices.Values(without))
	dir, err := cacheDir(gcc.version, without, flags)
	if err != nil {
		tb.Fatal(err)
	}
	lib := filepath.Join(dir, Name)
	if _, err := os.Stat(lib); err == nil {
		return lib
	}
	if err := compileTo(gcc.path, lib, without, flags); err != nil {
		tb.Fatal(err)
	}
	return lib
}

type compiler struct{ path, version string }

func findCompiler() (compiler, error) {
	path, err := exec.LookPath("gcc")
	if err != nil {
		return compiler{}, ErrNoCompiler
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return compiler{}, fmt.Errorf("testdriver: asking %s for its version: %w", path, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return compiler{path: path, version: line}, nil
}

// cacheDir makes the directory of this combination of sources, compiler and
// options: among the user's caches, or where there are none in the temporary
// directory. Others may write to that too, and tests load code from here, so it
// must be ours alone.
func cacheDir(compiler string, without, flags []string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%q\x00%q\x00%q\x00", compiler, baseFlags, without, flags)
	if err := eachSource(func(name string, data []byte) error {
		fmt.Fprintf(h, "%s\x00%d\x00", name, len(data))
		h.Write(data)
		return nil
	}); err != nil {
		return "", err
	}
	name := "lanetrace-testdriver-" + strconv.Itoa(os.Getuid()) + "-" + hex.EncodeToString(h.Sum(nil)[:10])
	// What stays after the tests belongs where compilers leave such things.
	dir := filepath.Join(os.TempDir(), name)
	if caches, err := os.UserCacheDir(); err == nil && os.MkdirAll(filepath.Join(caches, name), 0o700) == nil {
		dir = filepath.Join(caches, name)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("testdriver: making the build directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("testdriver: looking at the build directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm() != 0o700 || int(st.Uid) != os.Getuid() {
		return "", fmt.Errorf("testdriver: %s is not a directory of ours alone; remove it", dir)
	}
	return dir, nil
}

func eachSource(f func(name string, data []byte) error) error {
	entries, err := sources.ReadDir("csrc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := sources.ReadFile("csrc/" + e.Name())
		if err != nil {
			return err
		}
		if err := f(e.Name(), data); err != nil {
			return err
		}
	}
	return nil
}

func writeSources(dir string) error {
	return eachSource(func(name string, data []byte) error {
		return os.WriteFile(filepath.Join(dir, name), data, 0o600)
	})
}

// -Bsymbolic: what cuGetProcAddress hands out is this library's own function
// even when a preloaded library exports one of the same name, as with the real
// driver. nodelete: workers must not lose their code to a dlclose.
var baseFlags = []string{
	"-std=c11", "-O2", "-g1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden",
	"-Wall", "-Wextra", "-Werror",
	"-Wl,-soname," + Name, "-Wl,-Bsymbolic", "-Wl,-z,nodelete",
}

func compileTo(gcc, path string, without, flags []string) (err error) {
	src, err := os.MkdirTemp("", "lanetrace-testdriver-src-")
	if err != nil {
		return fmt.Errorf("testdriver: making a directory for the sources: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(src)) }()
	if err := writeSources(src); err != nil {
		return fmt.Errorf("testdriver: writing the sources: %w", err)
	}
	// Built beside its place and renamed, so that a second process sees either
	// nothing or all of it.
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+Name+"-*")
	if err != nil {
		return fmt.Errorf("testdriver: making the library: %w", err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already if all went well
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("testdriver: making the library: %w", err)
	}
	args := slices.Clone(baseFlags)
	if len(without) > 0 {
		script := "{ local: " + strings.Join(without, "; ") + "; };\n"
		if err := os.WriteFile(filepath.Join(src, "without.map"), []byte(script), 0o600); err != nil {
			return fmt.Errorf("testdriver: writing the version script: %w", err)
		}
		args = append(args, "-Wl,--version-script=without.map", "-DLT_BUILT_WITHOUT=\""+strings.Join(without, ",")+"\"")
	}
	args = append(append(args, flags...), "-o", tmp.Name())
	names, err := filepath.Glob(filepath.Join(src, "*.c"))
	if err != nil {
		return err
	}
	for _, name := range names {
		args = append(args, filepath.Base(name))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, gcc, args...)
	cmd.Dir = src
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("testdriver: gcc: %w\n%s", err, out.Bytes())
	}
	if err := os.Chmod(tmp.Name(), 0o755); err != nil {
		return fmt.Errorf("testdriver: making the library: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("testdriver: making the library: %w", err)
	}
	return nil
}
