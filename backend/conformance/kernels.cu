// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the conformance suite. Every one is right for any grid and block
// of one dimension, and computes nothing that a GPU and a CPU could round
// differently.
//
// kernels.ptx is made from this file, on a machine with the CUDA toolkit, by
//
//   nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u64 first() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
static __device__ u64 stride() { return gridDim.x * (u64)blockDim.x; }

// What a module says of its kernels: the width of a tile of output columns, and
// that a kernel casts its operand A without a scale. A width of 0 is none.
extern "C" __device__ u32 lt_test_fill_n_tile = 64;
extern "C" __device__ u32 lt_test_fill_a_e4m3 = 1;
extern "C" __device__ u32 lt_test_add_n_tile = 0;
extern "C" __device__ u32 lt_test_add_a_e4m3 = 0;

extern "C" __global__ void lt_test_fill(u32 *p, u32 value, u32 n) {
  for (u64 i = first(); i < n; i += stride())
    p[i] = value;
}

extern "C" __global__ void lt_test_add(u32 *dst, const u32 *a, const u32 *b, u32 n) {
  for (u64 i = first(); i < n; i += stride())
    dst[i] = a[i] + b[i];
}

extern "C" __global__ void lt_test_scale(u32 *p, u32 factor, u32 n) {
  for (u64 i = first(); i < n; i += stride())
    p[i] *= factor;
}

extern "C" __global__ void lt_test_copy8(u8 *dst, const u8 *src, u64 n) {
  for (u64 i = first(); i < n; i += stride())
    dst[i] = src[i];
}

extern "C" __global__ void lt_test_store(u64 *dst, u64 v) {
  if (first() == 0)
    *dst = v;
}

// Parameters of every size, with the gaps that alignment puts between them.
extern "C" __global__ void lt_test_args(u64 *out, u8 a, u16 b, u32 c, u64 d, float e, double f, u8 g) {
  if (first() != 0)
    return;
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = d;
  out[4] = __float_as_uint(e);
  out[5] = __double_as_longlong(f);
  out[6] = g;
}

// Keeps one thread busy for so many cycles of its multiprocessor's clock.
extern "C" __global__ void lt_spin(u64 cycles) {
  long long begin = clock64();
  while ((u64)(clock64() - begin) < cycles) {
  }
}
