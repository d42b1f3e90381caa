// Command soak lets two engines and a sidecar run for long while things go wrong, and
// then looks whether what lanetrace promises still holds. It prints a table and exits
// with 1 when something does not.
//
// The engines are processes that use the library on a simulated GPU, the sidecar is
// the command as users run it. Drawn from a seed, either side is killed or stopped for
// a while, the OTLP receiver goes away and comes back, and the disk of the recordings
// is full for a time. Before that the engines' calls are timed with and without a
// sidecar, in turns. make soak runs it for 25 million spans, make soak-short for less
// than a minute.
package main
