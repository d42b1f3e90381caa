// Package servers runs real servers for tests: Jaeger, an OpenTelemetry
// Collector and Prometheus, and lanetrace's own programs against them.
//
// Every server listens on loopback, on ports that were free, keeps its files in
// a directory of the test, and is waited for until it says that it is ready. It
// ends with the test, by its own process, or with the test binary if that is
// killed. When a test fails, the end of each server's output is in the test's.
//
// How a server is had and started stands in tools/servers; one that is missing
// fails the test with the line that says how to get it. Tests that use this
// package have the build tag servers and run with `make test-servers`. Only tests
// may use it, each function from its test's goroutine.
package servers
