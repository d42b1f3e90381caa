// Package ptx holds what kernels that only measure have in common, as text that any
// driver since CUDA 9 compiles for any device.
package ptx

// Header begins a module.
const Header = `.version 6.0
.target sm_50
.address_size 64
`

// Spin is a kernel of that name and one parameter, 64 bits: it keeps every thread of
// its grid busy for so many cycles of its multiprocessor's clock.
func Spin(name string) string {
	return `.visible .entry ` + name + `(.param .u64 cycles)
{
	.reg .pred %p;
	.reg .b64 %c, %s, %n;
	ld.param.u64 %c, [cycles];
	mov.u64 %s, %clock64;
L:
	mov.u64 %n, %clock64;
	sub.s64 %n, %n, %s;
	setp.lt.s64 %p, %n, %c;
	@%p bra L;
	ret;
}
`
}
