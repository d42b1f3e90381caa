// Package load measures what the sidecar itself costs: a real sidecar process, an
// engine process that writes to its ring at a steady rate, and an OTLP receiver in
// the benchmark. It holds benchmarks only:
//
//	go test -run '^$' -bench . ./internal/load                      # 10 s a rate
//	go test -run '^$' -bench . ./internal/load -load.duration 60s   # the figures of docs/overhead.md
package load
