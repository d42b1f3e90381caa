// Command overhead measures what lanetrace costs a step on this machine's GPU, by
// examples/decode and, where there is PyTorch, by the unchanged program
// examples/python/llama.py, and sets CUPTI's activity records beside it. It prints
// Markdown tables; docs/overhead.md holds those of an H200.
//
// Everything that is compared is measured in one process, in turn, in many rounds:
// decode --ab does that, and its help says what a condition is. The command needs the
// decode binary; gcc and CUPTI's headers for the profiler's part; Python with torch,
// transformers and the agent's library for the last. What it does not find it leaves
// out and says so in a line.
package main
