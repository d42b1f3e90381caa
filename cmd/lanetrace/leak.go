package main

import (
	"fmt"
	"time"

	"github.com/lanetrace/lanetrace/ledger"
)

// leakFlag says which call sites are suspected leaks.
type leakFlag struct {
	LeakWindow leakWindow `help:"How long a call site's device memory has to do nothing but grow to be a suspected leak, after a fifth of that as warm-up (default ${default})." default:"10m" placeholder:"D"`
}

// leakWindow is a time in which growth can be seen, from 1 s.
type leakWindow period

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *leakWindow) UnmarshalText(b []byte) error {
	if err := (*period)(w).UnmarshalText(b); err != nil {
		return err
	}
	if time.Duration(*w) < time.Second {
		return fmt.Errorf("want at least 1s, got %q", b)
	}
	return nil
}

// growth is what counts as a suspected leak over that window.
func (w leakWindow) growth() ledger.GrowthOptions {
	return ledger.GrowthOptions{Window: time.Duration(w), WarmUp: time.Duration(w) / 5}
}
