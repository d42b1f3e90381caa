package main

import "github.com/lanetrace/lanetrace/internal/ptx"

// kernelsPTX are the kernels that are measured. lt_spin keeps every thread of its
// grid busy for so many cycles of its multiprocessor's clock; lt_acc_stamp writes
// a value to a word of the host's at once and to the next word after so many
// cycles, and does not end before that is visible there; lt_acc_begin does nothing;
// lt_acc_other is lt_spin for streams beside the one that is measured.
var kernelsPTX = []byte(ptx.Header + `
.visible .entry lt_acc_begin()
{
	ret;
}

` + ptx.Spin(spinName) + "\n" + ptx.Spin(otherName) + `
.visible .entry lt_acc_stamp(.param .u64 words, .param .u64 value, .param .u64 cycles)
{
	.reg .pred %p;
	.reg .b64 %w, %v, %c, %s, %n;
	ld.param.u64 %w, [words];
	ld.param.u64 %v, [value];
	cvta.to.global.u64 %w, %w;
	st.volatile.global.u64 [%w], %v;
	ld.param.u64 %c, [cycles];
	mov.u64 %s, %clock64;
L:
	mov.u64 %n, %clock64;
	sub.s64 %n, %n, %s;
	setp.lt.s64 %p, %n, %c;
	@%p bra L;
	st.volatile.global.u64 [%w+64], %v;
	membar.sys;
	ret;
}
` + "\x00")

const (
	moduleName = "lt_accuracy"
	spinName   = "lt_spin"
	stampName  = "lt_acc_stamp"
	otherName  = "lt_acc_other" // not in a plan, and its records are left out
)

// stampGap is how far apart lt_acc_stamp's two words lie, in bytes: on lines of
// their own.
const stampGap = 64

// cyclesPerNS is an H200's highest clock. What a kernel really takes is CUPTI's to
// say.
const cyclesPerNS = 1.98

// fixedNS is about what a kernel takes beyond its spinning.
const fixedNS = 520

func cyclesFor(ns int64) uint64 { return uint64(max(0, float64(ns-fixedNS)*cyclesPerNS)) }
