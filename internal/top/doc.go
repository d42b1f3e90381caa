// Package top is the view of lanetrace top: what live engines do now and did in
// the last minute, as text that fits a terminal. A View is fed with closed steps
// and drawn as often as one likes; it holds a bounded amount for each engine,
// whatever comes.
package top
