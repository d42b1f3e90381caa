// Package report makes what a person reads of steps: the report of a run
// (steps, lanes, kernels, the loss account, the clock), one step drawn as a
// timeline, and spans as lines of text. Everything it writes is plain text
// without colours or control characters, so it goes into a pipe or a file as it
// is; the characters beyond ASCII are those that every monospaced font has.
//
// Memory is bounded: distributions are kept in buckets, and a run's steps are
// not kept but for a few to choose the drawn one from.
package report
