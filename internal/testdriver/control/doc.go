// SPDX-License-Identifier: Apache-2.0

// Package control reaches from Go what a test may ask of the stand-in driver:
// faults, clocks, stalls, counters. It is the Go face of csrc/control.h, where
// each call is explained; only tests may use it.
//
// It needs cgo. The library is the one that the code under test has loaded (the
// dynamic loader gives both the same copy), so a test opens it by the same path:
//
//	lib := testdriver.Build(t)
//	drv, err := control.Open(lib)
//	t.Cleanup(drv.Reset)
//
// Its settings are the process's: tests that change them cannot run in parallel.
package control
