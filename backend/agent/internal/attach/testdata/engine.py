# SPDX-License-Identifier: Apache-2.0
"""A small engine in Python: the driver over ctypes, marks by the example's module."""

import ctypes
import os
import sys

import lanetrace_marks as marks

cuda = ctypes.CDLL("libcuda.so.1")
P, U = ctypes.c_void_p, ctypes.c_uint


def ok(result):
    if result != 0:
        sys.exit(f"driver error {result}")


PTX = b""".version 8.4
.target sm_80
.address_size 64
.visible .entry lt_test_fill(.param .u64 p, .param .u32 v, .param .u32 n)
{ ret; }
"""

context, module, fill, stream, buffer = P(), P(), P(), P(), ctypes.c_uint64()
ok(cuda.cuInit(U(0)))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
ok(cuda.cuModuleGetFunction(ctypes.byref(fill), module, b"lt_test_fill"))
ok(cuda.cuStreamCreate(ctypes.byref(stream), U(1)))
ok(cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(4096)))

value, count = U(7), U(4)
arguments = (P * 3)(*(ctypes.cast(ctypes.byref(a), P) for a in (buffer, value, count)))
for _ in range(2):
    with marks.step() as step:
        step.attributes(batch_size=4, graph_mode=marks.EAGER)
        step.link("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        with step.lane("prefill", stream.value):
            ok(cuda.cuLaunchKernel(fill, U(1), U(1), U(1), U(32), U(1), U(1), U(0), stream, arguments, None))
ok(cuda.cuStreamSynchronize(stream))
out = (U * 4)()
ok(cuda.cuMemcpyDtoH_v2(out, buffer, ctypes.c_size_t(16)))
print(*out, flush=True)
if os.environ.get("ENGINE_WAIT"):
    print("ready", flush=True)
    sys.stdin.read()
