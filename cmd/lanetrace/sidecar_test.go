package main

import (
	"runtime/debug"
	"testing"
)

// TestSaveMemory: the collector of garbage is set for the sidecar's time, unless the
// environment sets it.
func TestSaveMemory(t *testing.T) {
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	before := percent()
	for env, want := range map[string]int{"": sidecarGOGC, "200": before} {
		a := &app{getenv: func(k string) string { return map[string]string{"GOGC": env}[k] }}
		restore := a.saveMemory()
		if got := percent(); got != want {
			t.Errorf("GOGC=%q: %d, want %d", env, got, want)
		}
		restore()
		if got := percent(); got != before {
			t.Errorf("GOGC=%q: %d afterwards, want %d", env, got, before)
		}
	}
}
