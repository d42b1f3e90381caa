// Package faulty is a small engine on the simulated GPU that serves well for a
// while and then does one thing wrong, as asked: what telemetry makes of it can be
// shown and tested without a GPU and without breaking anything real. lanetrace demo
// --fault runs it as a process of its own.
package faulty
