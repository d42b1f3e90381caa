package lanetrace

import (
	"fmt"
	"strings"
)

// Level is how much is measured. Each level measures all that the lower ones do.
type Level uint8

// The levels.
const (
	// LevelOff measures nothing: every entry point is one relaxed load and a return.
	LevelOff Level = iota
	// LevelBasic measures steps on the host's clock, the ledger and counters. It makes
	// no driver call that the engine did not make.
	LevelBasic
	// LevelLane adds an event pair around each lane of every step.
	LevelLane
	// LevelKernel adds an event pair around each launch of armed steps.
	LevelKernel

	numLevels
)

// DefaultLevel is the level of a configuration that says nothing.
const DefaultLevel = LevelLane

var levelText = [numLevels]string{"off", "basic", "lane", "kernel"}

// String is the level's spelling.
func (l Level) String() string {
	if l < numLevels {
		return levelText[l]
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// ParseLevel accepts the four spellings and nothing else.
func ParseLevel(s string) (Level, error) {
	for i, t := range levelText {
		if s == t {
			return Level(i), nil
		}
	}
	return LevelOff, fmt.Errorf("unknown level %q: want one of %s", s, strings.Join(levelText[:], ", "))
}

// MarshalText and UnmarshalText make a Level a flag's or a JSON field's value.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is ParseLevel.
func (l *Level) UnmarshalText(b []byte) error {
	v, err := ParseLevel(string(b))
	if err == nil {
		*l = v
	}
	return err
}
