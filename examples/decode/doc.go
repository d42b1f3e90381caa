// Command decode is a small serving engine that shows lanetrace at work: a
// decoder-only transformer with random weights, continuous batching, a KV cache,
// and requests that come and go. Its steps run the lanes admit, prefill and
// decode; its kernels are real (kernels/decode.cu) and its numbers are checked
// against a reference on the CPU before it serves. Where there is no GPU the same
// kernels run as Go functions on backend/sim.
//
// See README.md for what it prints and for its flags.
package main
