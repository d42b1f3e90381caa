// SPDX-License-Identifier: Apache-2.0
//
// Holds the stand-in driver to its own word. It opens the library as a program
// would and checks values; `selftest LIBRARY [TEST...]`.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "cuda_abi.h"

// p_NAME is the library's NAME.
#define F(sym, base, ver) static __typeof__(sym) *p_##sym;
#define S(sym, sfx, base, ver) static __typeof__(sym) *p_##sym, *p_##sym##sfx;
#include "functions.h"
#undef F
#undef S

#define CONTROLS(X)                                                                                                    \
  X(lt_testdriver_reset)                                                                                               \
  X(lt_testdriver_set_kernel)                                                                                          \
  X(lt_testdriver_set_kernel_ns)                                                                                       \
  X(lt_testdriver_set_spin_fixed_ns)                                                                                   \
  X(lt_testdriver_set_clock)                                                                                           \
  X(lt_testdriver_gpu_ns)                                                                                              \
  X(lt_testdriver_event_time)                                                                                          \
  X(lt_testdriver_set_record_ns)                                                                                       \
  X(lt_testdriver_set_after_record_ns)                                                                                 \
  X(lt_testdriver_set_launch_latency_ns)                                                                               \
  X(lt_testdriver_set_copy_cost)                                                                                       \
  X(lt_testdriver_set_call_ns)                                                                                         \
  X(lt_testdriver_stall_stream)                                                                                        \
  X(lt_testdriver_set_total_memory)                                                                                    \
  X(lt_testdriver_set_swap_limit)                                                                                      \
  X(lt_testdriver_set_integrated)                                                                                      \
  X(lt_testdriver_fail)                                                                                                \
  X(lt_testdriver_clear_faults)                                                                                        \
  X(lt_testdriver_set_sticky)                                                                                          \
  X(lt_testdriver_hide)                                                                                                \
  X(lt_testdriver_calls)                                                                                               \
  X(lt_testdriver_calls_total)                                                                                         \
  X(lt_testdriver_calls_here)                                                                                          \
  X(lt_testdriver_reset_calls)                                                                                         \
  X(lt_testdriver_live)                                                                                                \
  X(lt_testdriver_log)
#define DECLARE(f) static __typeof__(f) *p_##f;
CONTROLS(DECLARE)

static int failures;

__attribute__((format(printf, 2, 3))) static void bad(int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "selftest.c:%d: ", line);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  failures++;
}

#define EQ(got, want)                                                                          \
  do {                                                                                         \
    long long got_ = (long long)(got), want_ = (long long)(want);                              \
    if (got_ != want_)                                                                         \
      bad(__LINE__, "%s is %lld, want %lld (%s)", #got, got_, want_, #want);                   \
  } while (0)
#define NE(got, other)                                                                         \
  do {                                                                                         \
    long long got_ = (long long)(got);                                                         \
    if (got_ == (long long)(other))                                                            \
      bad(__LINE__, "%s is %lld, like %s", #got, got_, #other);                                \
  } while (0)
#define OK(call) EQ(call, CUDA_SUCCESS)
#define TRUE(cond)                                                                             \
  do {                                                                                         \
    if (!(cond))                                                                               \
      bad(__LINE__, "not so: %s", #cond);                                                      \
  } while (0)

static int64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void nap_ms(int ms) {
  struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&ts, NULL);
}

static const char ptx[] = "//\n// Made by hand\n//\n"
                          ".version 8.4\n.target sm_80\n.address_size 64\n"
                          ".visible .global .align 4 .u32 lt_version = 7;\n"
                          ".visible .global .align 4 .u32 lt_table[4] = {1, 2, 0x3, 4};\n"
                          ".visible .global .align 8 .b8 lt_buffer[24];\n"
                          ".visible .global .align 4 .f32 lt_half = 0f3f000000;\n"
                          ".visible .entry lt_spin(\n\t.param .u64 lt_spin_param_0\n)\n"
                          "{\n\t.reg .b64 %rd<4>; /* } */\n\tret;\n}\n"
                          ".visible .entry lt_test_fill(.param .u64 p, .param .u32 v, .param .u32 n)\n.maxntid 256, 1, 1\n{ { ret; } }\n"
                          ".visible .entry lt_test_add(.param .u64 .ptr .global .align 4 d, .param .u64 a, .param .u64 b, .param .u32 n)\n{ ret; }\n"
                          ".visible .entry lt_test_scale(.param .u64 p, .param .u32 f, .param .u32 n)\n{ ret; }\n"
                          ".visible .entry lt_test_copy8(.param .u64 d, .param .u64 s, .param .u64 n)\n{ ret; }\n"
                          ".visible .entry lt_test_store(.param .u64 d, .param .u64 v)\n{ ret; }\n"
                          ".visible .entry odd(.param .u32 a, .param .align 16 .b8 b[20], .param .b8 c, .param .f32 d, .param .u64 e)\n{ ret; }\n"
                          ".visible .entry nothing()\n{ ret; }\n"
                          ".visible .entry custom(.param .u64 p, .param .u32 n)\n{ ret; }\n";

// What most tests begin with.
static CUcontext ctx;
static CUmodule mod;

static CUfunction fn(const char *name) {
  CUfunction f = NULL;
  OK(p_cuModuleGetFunction(&f, mod, name));
  return f;
}

static void begin(void) {
  p_lt_testdriver_reset();
  OK(p_cuInit(0));
  OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
  OK(p_cuCtxSetCurrent(ctx));
  OK(p_cuModuleLoadData(&mod, ptx));
}

static void end(void) {
  p_lt_testdriver_clear_faults();
  OK(p_cuCtxSynchronize());
  OK(p_cuModuleUnload(mod));
  OK(p_cuDevicePrimaryCtxRelease_v2(0));
  OK(p_cuCtxSetCurrent(NULL));
  EQ(p_lt_testdriver_live("context"), 0);
  EQ(p_lt_testdriver_live("stream"), 0);
  EQ(p_lt_testdriver_live("event"), 0);
  EQ(p_lt_testdriver_live("module"), 0);
  EQ(p_lt_testdriver_live("function"), 0);
  EQ(p_lt_testdriver_live("graph"), 0);
  EQ(p_lt_testdriver_live("node"), 0);
  EQ(p_lt_testdriver_live("exec"), 0);
  EQ(p_lt_testdriver_live("allocation"), 0);
  EQ(p_lt_testdriver_live("physical"), 0);
}

static CUresult spin(CUstream s, uint64_t cycles) {
  void *params[] = {&cycles};
  return p_cuLaunchKernel(fn("lt_spin"), 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

// Spins take cycles at 1.98 GHz; this many take that many microseconds.
static uint64_t us(uint64_t n) { return n * 1980; }

static CUresult fill(CUstream s, CUdeviceptr p, uint32_t v, uint32_t n) {
  void *params[] = {&p, &v, &n};
  return p_cuLaunchKernel(fn("lt_test_fill"), 1, 1, 1, 32, 1, 1, 0, s, params, NULL);
}

static CUevent event(unsigned flags) {
  CUevent e = NULL;
  OK(p_cuEventCreate(&e, flags));
  return e;
}

static CUstream stream(unsigned flags) {
  CUstream s = NULL;
  OK(p_cuStreamCreate(&s, flags));
  return s;
}

// Between plug and unplug the stream only queues, so that no host time, and no
// launch latency, can be inside what is then measured.
static void plug(CUstream s) { OK(p_lt_testdriver_stall_stream(s, 1)); }

static void unplug(CUstream s) {
  nap_ms(1);
  OK(p_lt_testdriver_stall_stream(s, 0));
}

// Tests -------------------------------------------------------------------------

static void test_before_init(void) {
  int n = 0;
  EQ(p_cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
  OK(p_cuDriverGetVersion(&n));
  EQ(n, 13000);
  const char *s = NULL;
  OK(p_cuGetErrorName(2, &s));
  EQ(strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY"), 0);
  EQ(p_cuGetErrorName(12345, &s), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuInit(1), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuInit(0));
  OK(p_cuDeviceGetCount(&n));
  EQ(n, 3); // from the environment, see testdriver_test.go
}

static void test_devices(void) {
  OK(p_cuInit(0));
  CUuuid a, b;
  OK(p_cuDeviceGetUuid_v2(&a, 0));
  OK(p_cuDeviceGetUuid(&b, 1));
  NE(memcmp(a.bytes, b.bytes, 16), 0);
  char name[64];
  OK(p_cuDeviceGetName(name, sizeof name, 2));
  TRUE(strlen(name) > 0);
  int v;
  OK(p_cuDeviceGetAttribute(&v, 75, 0));
  EQ(v, 9);
  OK(p_cuDeviceGetAttribute(&v, 76, 0));
  EQ(v, 0);
  OK(p_cuDeviceGetAttribute(&v, 16, 0));
  EQ(v, 132);
  OK(p_cuDeviceGetAttribute(&v, 18, 0));
  EQ(v, 0);
  p_lt_testdriver_set_integrated(1);
  OK(p_cuDeviceGetAttribute(&v, 18, 0));
  EQ(v, 1);
  p_lt_testdriver_reset();
  EQ(p_cuDeviceGetAttribute(&v, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuDeviceGetAttribute(&v, 16, 3), CUDA_ERROR_INVALID_DEVICE);
  size_t bytes;
  OK(p_cuDeviceTotalMem_v2(&bytes, 0));
  EQ(bytes, (size_t)139 << 30);
  char id[32];
  CUdevice d;
  OK(p_cuDeviceGetPCIBusId(id, sizeof id, 1));
  OK(p_cuDeviceGetByPCIBusId(&d, id));
  EQ(d, 1);
}

static void test_contexts(void) {
  p_lt_testdriver_reset();
  OK(p_cuInit(0));
  CUcontext c, cur;
  CUdevice d;
  size_t free_bytes, total;
  EQ(p_cuCtxGetDevice(&d), CUDA_ERROR_INVALID_CONTEXT);
  EQ(p_cuMemGetInfo_v2(&free_bytes, &total), CUDA_ERROR_INVALID_CONTEXT);
  EQ(p_cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  CUevent e;
  EQ(p_cuEventCreate(&e, 0), CUDA_ERROR_INVALID_CONTEXT);
  OK(p_cuCtxGetCurrent(&cur));
  TRUE(cur == NULL);
  OK(p_cuCtxCreate_v2(&c, 0, 1));
  OK(p_cuCtxGetCurrent(&cur));
  TRUE(cur == c);
  OK(p_cuCtxGetDevice(&d));
  EQ(d, 1);
  unsigned long long id1, id2;
  OK(p_cuCtxGetId(c, &id1));

  CUstream s = stream(0);
  CUevent e1 = event(0);
  unsigned flags;
  int active;
  OK(p_cuDevicePrimaryCtxGetState(0, &flags, &active));
  EQ(active, 0);
  CUcontext p, p2;
  OK(p_cuDevicePrimaryCtxRetain(&p, 0));
  OK(p_cuDevicePrimaryCtxRetain(&p2, 0));
  TRUE(p == p2);
  OK(p_cuDevicePrimaryCtxGetState(0, &flags, &active));
  EQ(active, 1);
  OK(p_cuCtxPushCurrent_v2(p));
  OK(p_cuCtxGetId(NULL, &id2));
  NE(id1, id2);
  CUevent e2 = event(0);
  EQ(p_cuEventRecord(e2, s), CUDA_ERROR_INVALID_HANDLE); // another context's stream
  EQ(p_cuEventRecord(e1, NULL), CUDA_ERROR_INVALID_HANDLE); // another context's event
  CUcontext sc;
  OK(p_cuStreamGetCtx(s, &sc));
  TRUE(sc == c);
  OK(p_cuEventRecord(e1, s)); // but a handle needs no current context, nor its own
  OK(p_cuStreamSynchronize(s));
  float ms;
  OK(p_cuEventElapsedTime(&ms, e1, e1));
  OK(p_cuCtxPopCurrent_v2(&cur));
  TRUE(cur == p);
  OK(p_cuDevicePrimaryCtxRelease_v2(0));
  OK(p_cuDevicePrimaryCtxRelease_v2(0));
  EQ(p_cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  EQ(p_cuEventQuery(e2), CUDA_ERROR_INVALID_HANDLE); // went with its context
  OK(p_cuCtxPushCurrent_v2(c));
  OK(p_cuCtxDestroy_v2(c)); // pops it once; it is still below
  EQ(p_cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EQ(p_cuCtxDestroy_v2(c), CUDA_ERROR_INVALID_CONTEXT);
  OK(p_cuCtxSetCurrent(NULL));
  EQ(p_lt_testdriver_live("context"), 0);
  EQ(p_lt_testdriver_live("stream"), 0);
  EQ(p_lt_testdriver_live("event"), 0);
}

static void test_streams(void) {
  begin();
  CUstream a = stream(0), b = stream(CU_STREAM_NON_BLOCKING);
  unsigned long long ia, ib, ic, i0, i1, i2, again;
  OK(p_cuStreamGetId(a, &ia));
  OK(p_cuStreamGetId(b, &ib));
  OK(p_cuStreamGetId(NULL, &i0));
  OK(p_cuStreamGetId(CU_STREAM_LEGACY, &i1));
  OK(p_cuStreamGetId(CU_STREAM_PER_THREAD, &i2));
  EQ(i0, i1);
  NE(i0, i2);
  NE(ia, ib);
  OK(p_cuStreamGetId_ptsz(NULL, &again));
  EQ(again, i2);
  unsigned flags;
  OK(p_cuStreamGetFlags(b, &flags));
  EQ(flags, CU_STREAM_NON_BLOCKING);
  int prio, least, greatest;
  OK(p_cuCtxGetStreamPriorityRange(&least, &greatest));
  CUstream hi;
  OK(p_cuStreamCreateWithPriority(&hi, 0, greatest - 100));
  OK(p_cuStreamGetPriority(hi, &prio));
  EQ(prio, greatest);
  OK(p_cuStreamDestroy_v2(hi));

  // What is queued on a destroyed stream still happens, and its handle, but
  // not its id, comes back at once.
  CUdeviceptr p;
  OK(p_cuMemAlloc_v2(&p, 64));
  plug(b);
  OK(fill(b, p, 77, 16));
  EQ(p_cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  OK(p_cuStreamDestroy_v2(b));
  CUstream c = stream(0);
  TRUE(c == b);
  OK(p_cuStreamGetId(c, &ic));
  NE(ic, ib);
  OK(p_cuStreamQuery(c));
  OK(p_cuCtxSynchronize());
  EQ(*(uint32_t *)(uintptr_t)(p + 60), 77);

  OK(p_cuStreamDestroy_v2(a));
  EQ(p_cuStreamDestroy_v2(a), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuStreamQuery(a), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuStreamQuery((CUstream)(uintptr_t)0xdeadbeef), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuStreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
  CUstream bogus;
  EQ(p_cuStreamCreate(&bogus, 8), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuStreamDestroy_v2(c));
  OK(p_cuMemFree_v2(p));
  end();
}

static void test_default_stream(void) {
  begin();
  CUstream blocking = stream(0), free_ = stream(CU_STREAM_NON_BLOCKING);
  CUevent e1 = event(0), e2 = event(0), e3 = event(0), e4 = event(0);
  // Blocking work, then the default stream, then blocking work again: in that
  // order. The independent stream overlaps.
  plug(blocking);
  OK(spin(blocking, us(3000)));
  OK(p_cuEventRecord(e1, blocking));
  OK(p_cuEventRecord(e2, NULL));
  OK(spin(NULL, us(3000)));
  CUstream other = stream(0);
  OK(p_cuEventRecord(e3, other));
  OK(p_cuEventRecord(e4, free_));
  EQ(p_cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
  OK(p_cuStreamSynchronize(free_));
  EQ(p_cuEventQuery(e3), CUDA_ERROR_NOT_READY);
  unplug(blocking);
  OK(p_cuStreamSynchronize(NULL));
  OK(p_cuEventSynchronize(e3));
  float ms;
  OK(p_cuEventElapsedTime(&ms, e1, e2));
  TRUE(ms >= 0 && ms < 0.01f);
  OK(p_cuEventElapsedTime(&ms, e2, e3));
  TRUE(ms >= 3 && ms < 3.02f);
  OK(p_cuEventElapsedTime(&ms, e4, e1));
  TRUE(ms > 1);
  // The per-thread default stream is a blocking stream like any other.
  plug(CU_STREAM_PER_THREAD);
  OK(spin(CU_STREAM_PER_THREAD, us(2000)));
  OK(p_cuStreamSynchronize(free_));
  EQ(p_cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  EQ(p_cuStreamQuery_ptsz(NULL), CUDA_ERROR_NOT_READY);
  unplug(CU_STREAM_PER_THREAD);
  OK(p_cuStreamSynchronize(CU_STREAM_LEGACY));
  OK(p_cuStreamQuery(CU_STREAM_PER_THREAD));
  OK(p_cuStreamDestroy_v2(blocking));
  OK(p_cuStreamDestroy_v2(other));
  OK(p_cuStreamDestroy_v2(free_));
  end();
}

static void test_events(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUevent a = event(0), b = event(0), no = event(CU_EVENT_DISABLE_TIMING), bogus;
  float ms = -1;
  EQ(p_cuEventCreate(&bogus, 16), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuEventCreate(&bogus, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuEventQuery(a)); // never recorded
  OK(p_cuEventSynchronize(a));
  EQ(p_cuEventElapsedTime(&ms, a, a), CUDA_ERROR_INVALID_HANDLE);
  plug(s);
  OK(p_cuEventRecord(a, s));
  OK(spin(s, us(2000)));
  OK(p_cuEventRecord(b, s));
  OK(p_cuEventRecord(no, s));
  EQ(p_cuEventQuery(b), CUDA_ERROR_NOT_READY);
  EQ(p_cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
  EQ(p_cuEventElapsedTime(&ms, b, b), CUDA_ERROR_NOT_READY);
  EQ(p_cuEventElapsedTime(&ms, a, no), CUDA_ERROR_INVALID_HANDLE);
  unplug(s);
  OK(p_cuEventSynchronize(no));
  OK(p_cuEventQuery(b));
  OK(p_cuEventElapsedTime(&ms, a, b));
  // 2 ms of spinning, the kernel's fixed part, one record; steps of 32 ns.
  TRUE(fabs(ms * 1e6 - (2000000 + 523 + 1460)) <= 32.5);
  float back;
  OK(p_cuEventElapsedTime(&back, b, a));
  TRUE(back == -ms);
  OK(p_cuEventElapsedTime_v2(&back, b, b));
  TRUE(back == 0);
  EQ(p_cuEventElapsedTime(&ms, a, no), CUDA_ERROR_INVALID_HANDLE);

  // Recorded again: pending until the new record happens.
  plug(s);
  OK(spin(s, us(1000)));
  OK(p_cuEventRecord(a, s));
  EQ(p_cuEventElapsedTime(&ms, a, a), CUDA_ERROR_NOT_READY);
  unplug(s);
  OK(p_cuEventSynchronize(a));
  OK(p_cuEventElapsedTime(&ms, b, a));
  TRUE(ms > 1);

  // A pending event may be destroyed, and its successor at the same address
  // was never recorded.
  OK(spin(s, us(1000)));
  OK(p_cuEventRecord(a, s));
  OK(p_cuEventDestroy_v2(a));
  EQ(p_cuEventQuery(a), CUDA_ERROR_INVALID_HANDLE);
  CUevent next = event(0);
  TRUE(next == a);
  EQ(p_cuEventElapsedTime(&ms, next, next), CUDA_ERROR_INVALID_HANDLE);
  OK(p_cuStreamSynchronize(s));
  EQ(p_cuEventElapsedTime(&ms, next, next), CUDA_ERROR_INVALID_HANDLE);
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_pairs(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  enum { N = 200 };
  static CUevent a[N], b[N];
  for (int i = 0; i < N; i++) {
    a[i] = event(0);
    b[i] = event(0);
  }
  for (int pass = 0; pass < 2; pass++) {
    p_lt_testdriver_set_after_record_ns(pass == 0 ? 0 : 1580);
    int64_t excess = pass == 0 ? 1460 : 3040;
    plug(s);
    for (int i = 0; i < N; i++) {
      OK(p_cuEventRecord(a[i], s));
      OK(spin(s, us(1) * (uint64_t)(i % 5)));
      OK(p_cuEventRecord(b[i], s));
    }
    unplug(s);
    OK(p_cuStreamSynchronize(s));
    for (int i = 0; i < N; i++) {
      float ms;
      OK(p_cuEventElapsedTime(&ms, a[i], b[i]));
      double want = 523 + 1000.0 * (i % 5) + (double)excess;
      if (fabs(ms * 1e6 - want) > 32.5)
        bad(__LINE__, "pair %d is %.0f ns, want %.0f", i, ms * 1e6, want);
      double steps = ms * 1e6 / 32;
      TRUE(fabs(steps - round(steps)) < 0.01);
      if (i > 0) { // back to back: the next pair begins one record later
        OK(p_cuEventElapsedTime(&ms, b[i - 1], a[i]));
        TRUE(fabs(ms * 1e6 - 1460) <= 32.5);
      }
    }
  }
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_clock(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUevent a = event(0), b = event(0);
  p_lt_testdriver_set_clock(5000000000, 0);
  int64_t before = now_ns();
  OK(p_cuEventRecord(a, s));
  OK(p_cuEventSynchronize(a));
  int64_t after = now_ns(), mono, gpu;
  OK(p_lt_testdriver_event_time(a, &mono, &gpu));
  TRUE(mono >= before && mono <= after);
  TRUE(gpu % 32 == 0 && mono + 5000000000 - gpu >= 0 && mono + 5000000000 - gpu < 32);
  // An offset that changes in between shows as a jump, a rate as a stretch.
  p_lt_testdriver_set_clock(6000000000, 0);
  OK(p_cuEventRecord(b, s));
  OK(p_cuEventSynchronize(b));
  float ms;
  OK(p_cuEventElapsedTime(&ms, a, b));
  TRUE(ms > 1000);
  p_lt_testdriver_set_clock(0, 100000000); // 10 %
  plug(s);
  OK(p_cuEventRecord(a, s));
  OK(spin(s, us(10000)));
  OK(p_cuEventRecord(b, s));
  unplug(s);
  OK(p_cuEventSynchronize(b));
  OK(p_cuEventElapsedTime(&ms, a, b));
  TRUE(fabs(ms - 11.0022) < 0.001);
  OK(p_lt_testdriver_event_time(b, &mono, &gpu));
  TRUE(llabs(p_lt_testdriver_gpu_ns(mono) - gpu) < 32);
  // Backwards.
  p_lt_testdriver_set_clock(-(int64_t)3600 * 1000000000, -20000);
  OK(p_cuEventRecord(b, s));
  OK(p_cuEventSynchronize(b));
  OK(p_cuEventElapsedTime(&ms, a, b));
  TRUE(ms < -3.5e6f);
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_never_in_the_future(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUevent e = event(0);
  for (int i = 0; i < 300; i++) {
    int64_t before = now_ns(), mono, gpu;
    OK(spin(s, us((uint64_t)(i % 60))));
    OK(p_cuEventRecord(e, s));
    while (p_cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
    }
    int64_t after = now_ns();
    OK(p_lt_testdriver_event_time(e, &mono, &gpu));
    if (mono > after || mono < before + 1000 * (i % 60))
      bad(__LINE__, "stamp %lld outside [%lld, %lld]", (long long)mono, (long long)before, (long long)after);
  }
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_wait_event(void) {
  begin();
  CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
  CUevent e = event(0), f = event(0), never = event(0);
  OK(p_cuStreamWaitEvent(b, never, 0));
  plug(a);
  OK(p_cuEventRecord(e, a));
  OK(p_cuStreamWaitEvent(b, e, 0));
  OK(p_cuEventRecord(e, a)); // the wait is for the record before this
  OK(p_cuEventDestroy_v2(e)); // and outlives the event
  OK(p_cuEventRecord(f, b));
  EQ(p_cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  nap_ms(3);
  EQ(p_cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  int64_t released = now_ns(), mono, gpu;
  unplug(a);
  OK(p_cuStreamSynchronize(b));
  OK(p_lt_testdriver_event_time(f, &mono, &gpu));
  TRUE(mono >= released);
  EQ(p_cuStreamWaitEvent(b, e, 0), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuStreamWaitEvent(b, f, 2), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuStreamDestroy_v2(a));
  OK(p_cuStreamDestroy_v2(b));
  end();
}

static void test_stall(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING);
  CUevent a = event(0), b = event(0), c = event(0);
  OK(p_lt_testdriver_stall_stream(s, 1));
  OK(p_cuEventRecord(a, s));
  OK(p_cuEventRecord(b, s));
  OK(p_cuEventRecord(c, t));
  OK(p_cuEventSynchronize(c)); // other streams go on
  nap_ms(5);
  EQ(p_cuEventQuery(a), CUDA_ERROR_NOT_READY);
  int64_t released = now_ns(), mono, gpu;
  OK(p_lt_testdriver_stall_stream(s, 0));
  OK(p_cuEventSynchronize(b));
  OK(p_lt_testdriver_event_time(a, &mono, &gpu));
  TRUE(mono >= released);
  // A kernel already running hangs and ends at the release; on a busy machine it may
  // have ended before the stall.
  for (;;) {
    OK(spin(s, us(10000)));
    OK(p_cuEventRecord(a, s));
    OK(p_lt_testdriver_stall_stream(s, 1));
    if (p_cuEventQuery(a) == CUDA_ERROR_NOT_READY)
      break;
    OK(p_lt_testdriver_stall_stream(s, 0));
  }
  nap_ms(15);
  EQ(p_cuEventQuery(a), CUDA_ERROR_NOT_READY);
  released = now_ns();
  OK(p_lt_testdriver_stall_stream(s, 0));
  OK(p_cuEventSynchronize(a));
  OK(p_lt_testdriver_event_time(a, &mono, &gpu));
  TRUE(mono >= released);
  // Destroying a stalled stream lets it finish.
  OK(p_lt_testdriver_stall_stream(s, 1));
  OK(p_cuEventRecord(a, s));
  OK(p_cuStreamDestroy_v2(s));
  OK(p_cuEventSynchronize(a));
  EQ(p_lt_testdriver_stall_stream(s, 1), CUDA_ERROR_INVALID_HANDLE);
  OK(p_cuStreamDestroy_v2(t));
  end();
}

struct host_note {
  int order[4];
  atomic_int n;
  CUevent before;
  CUresult inside, denied, status;
};

static void on_host(void *user) {
  struct host_note *h = user;
  float ms;
  CUdeviceptr p;
  h->inside = p_cuEventElapsedTime(&ms, h->before, h->before);
  h->denied = p_cuMemAlloc_v2(&p, 100);
  nap_ms(2);
  h->order[atomic_fetch_add(&h->n, 1)] = 1;
}

static void on_stream(CUstream s, CUresult status, void *user) {
  (void)s;
  struct host_note *h = user;
  h->status = status;
  h->order[atomic_fetch_add(&h->n, 1)] = 2;
}

static void test_host_functions(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUevent a = event(0), b = event(0);
  static struct host_note h;
  memset(&h, 0, sizeof h);
  h.before = a;
  OK(p_cuEventRecord(a, s));
  OK(p_cuLaunchHostFunc(s, on_host, &h));
  OK(p_cuStreamAddCallback(s, on_stream, &h, 0));
  OK(p_cuEventRecord(b, s));
  EQ(p_cuStreamAddCallback(s, on_stream, &h, 1), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuLaunchHostFunc(s, NULL, &h), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuStreamSynchronize(s));
  EQ(h.n, 2);
  EQ(h.order[0], 1);
  EQ(h.order[1], 2);
  EQ(h.inside, CUDA_SUCCESS);
  EQ(h.denied, CUDA_ERROR_NOT_PERMITTED);
  EQ(h.status, 0);
  float ms;
  OK(p_cuEventElapsedTime(&ms, a, b));
  TRUE(ms >= 1.99f); // the stream waited for the host
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static atomic_int custom_calls;
static void custom(void **params, const unsigned grid[3], const unsigned block[3]) {
  uint32_t *p = *(uint32_t **)params[0], n = *(uint32_t *)params[1];
  TRUE(params[2] == NULL);
  p[0] = grid[0] * 100 + block[1];
  p[1] = n;
  atomic_fetch_add(&custom_calls, 1);
}

static void test_launches(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr a, b, c;
  OK(p_cuMemAlloc_v2(&a, 4096));
  OK(p_cuMemAlloc_v2(&b, 4096));
  OK(p_cuMemAlloc_v2(&c, 4096));
  OK(fill(s, a, 5, 1024));
  OK(fill(s, b, 37, 1024));
  uint32_t n = 1024, factor = 3;
  void *add[] = {&c, &a, &b, &n};
  OK(p_cuLaunchKernel(fn("lt_test_add"), 4, 1, 1, 256, 1, 1, 0, s, add, NULL));
  // The same through the buffer.
  struct {
    CUdeviceptr p;
    uint32_t factor, n;
  } packed = {c, factor, n};
  size_t size = sizeof packed;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CUlaunchConfig cfg = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1, .hStream = s};
  OK(p_cuLaunchKernelEx(&cfg, fn("lt_test_scale"), NULL, extra));
  memset(&packed, 0xff, sizeof packed); // the launch has its own copy
  uint64_t bytes = 2048;
  void *copy[] = {&a, &c, &bytes};
  OK(p_cuLaunchCooperativeKernel(fn("lt_test_copy8"), 1, 1, 1, 256, 1, 1, 0, s, copy));
  uint64_t v = 0x1122334455667788;
  void *store[] = {&b, &v};
  OK(p_cuLaunchKernel_ptsz(fn("lt_test_store"), 1, 1, 1, 1, 1, 1, 0, s, store, NULL));
  OK(p_cuStreamSynchronize(s));
  EQ(((uint32_t *)(uintptr_t)c)[1023], 126);
  EQ(((uint32_t *)(uintptr_t)a)[511], 126);
  EQ(((uint32_t *)(uintptr_t)a)[512], 5);
  EQ(*(uint64_t *)(uintptr_t)b, v);

  CUfunction f = fn("lt_spin");
  void *params[] = {&v};
  const unsigned shapes[][6] = {{0, 1, 1, 1, 1, 1},     {1, 1, 1, 0, 1, 1},    {1, 65536, 1, 1, 1, 1}, {1, 1, 65536, 1, 1, 1},
                                {1, 1, 1, 1025, 1, 1},  {1, 1, 1, 1, 1025, 1}, {1, 1, 1, 1, 1, 65},    {1, 1, 1, 512, 4, 1},
                                {2147483648u, 1, 1, 1, 1, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const unsigned *g = shapes[i];
    EQ(p_cuLaunchKernel(f, g[0], g[1], g[2], g[3], g[4], g[5], 0, s, params, NULL), CUDA_ERROR_INVALID_VALUE);
  }
  EQ(p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 300000, s, params, NULL), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, extra), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuLaunchKernel((CUfunction)s, 1, 1, 1, 1, 1, 1, 0, s, params, NULL), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuLaunchKernelEx(NULL, f, params, NULL), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuLaunchCooperativeKernel(f, 100000, 1, 1, 1024, 1, 1, 0, s, params), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);

  // Kernels that a test brings along, and times by name.
  EQ(p_lt_testdriver_set_kernel("custom", custom), 0);
  EQ(p_lt_testdriver_set_kernel_ns("custom", 250000), 0);
  EQ(p_lt_testdriver_set_kernel_ns(NULL, 70000), 0);
  CUevent e[3] = {event(0), event(0), event(0)};
  void *cp[] = {&a, &n};
  plug(s);
  OK(p_cuEventRecord(e[0], s));
  OK(p_cuLaunchKernel(fn("custom"), 7, 1, 1, 1, 9, 1, 0, s, cp, NULL));
  OK(p_cuEventRecord(e[1], s));
  OK(p_cuLaunchKernel(fn("nothing"), 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
  OK(p_cuEventRecord(e[2], s));
  unplug(s);
  OK(p_cuStreamSynchronize(s));
  EQ(custom_calls, 1);
  EQ(((uint32_t *)(uintptr_t)a)[0], 709);
  EQ(((uint32_t *)(uintptr_t)a)[1], 1024);
  float ms;
  OK(p_cuEventElapsedTime(&ms, e[0], e[1]));
  TRUE(fabs(ms * 1e6 - 251460) <= 32.5);
  OK(p_cuEventElapsedTime(&ms, e[1], e[2]));
  TRUE(fabs(ms * 1e6 - 71460) <= 32.5);
  OK(p_cuMemFree_v2(a));
  OK(p_cuMemFree_v2(b));
  OK(p_cuMemFree_v2(c));
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_modules(void) {
  begin();
  CUfunction f;
  EQ(p_cuModuleGetFunction(&f, mod, "no_such"), CUDA_ERROR_NOT_FOUND);
  const char *name;
  OK(p_cuFuncGetName(&name, fn("odd")));
  EQ(strcmp(name, "odd"), 0);
  const size_t want[][2] = {{0, 4}, {16, 20}, {36, 1}, {40, 4}, {48, 8}};
  size_t off, size;
  for (size_t i = 0; i < 5; i++) {
    OK(p_cuFuncGetParamInfo(fn("odd"), i, &off, &size));
    EQ(off, want[i][0]);
    EQ(size, want[i][1]);
  }
  EQ(p_cuFuncGetParamInfo(fn("odd"), 5, &off, &size), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuFuncGetParamInfo(fn("nothing"), 0, &off, &size), CUDA_ERROR_INVALID_VALUE);
  CUmodule m;
  OK(p_cuFuncGetModule(&m, fn("odd")));
  TRUE(m == mod);
  int v;
  OK(p_cuFuncGetAttribute(&v, 6, fn("odd")));
  EQ(v, 90);
  unsigned count;
  OK(p_cuModuleGetFunctionCount(&count, mod));
  EQ(count, 9);

  CUdeviceptr g;
  size_t bytes;
  OK(p_cuModuleGetGlobal_v2(&g, &bytes, mod, "lt_version"));
  EQ(bytes, 4);
  uint32_t got[4] = {0};
  OK(p_cuMemcpyDtoH_v2(got, g, 4));
  EQ(got[0], 7);
  OK(p_cuModuleGetGlobal_v2(&g, &bytes, mod, "lt_table"));
  EQ(bytes, 16);
  OK(p_cuMemcpyDtoH_v2(got, g, 16));
  EQ(got[2], 3);
  OK(p_cuModuleGetGlobal_v2(&g, &bytes, mod, "lt_half"));
  float half;
  OK(p_cuMemcpyDtoH_v2(&half, g, 4));
  TRUE(half == 0.5f);
  OK(p_cuModuleGetGlobal_v2(&g, &bytes, mod, "lt_buffer"));
  EQ(bytes, 24);
  EQ(p_cuModuleGetGlobal_v2(&g, &bytes, mod, "nope"), CUDA_ERROR_NOT_FOUND);
  EQ(p_cuMemFree_v2(g), CUDA_ERROR_INVALID_VALUE); // the module's, not the program's

  static const struct {
    const char *text;
    CUresult want;
  } broken[] = {
      {"", CUDA_ERROR_INVALID_IMAGE},
      {"hello", CUDA_ERROR_INVALID_IMAGE},
      {".version 8.4\n", CUDA_ERROR_INVALID_PTX},
      {".version 99.0\n.target sm_80\n", CUDA_ERROR_UNSUPPORTED_PTX_VERSION},
      {".version 8.4\n.target sm_120\n", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.visible .entry f(.param .u64 a", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.visible .entry f(.param .u64 a)\n{ ret;", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.visible .entry f(.param a)\n{ ret; }", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.visible .entry f()\n", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.visible .entry f(){}\n.entry f(){}\n", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n}\n", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.global .u32 x = {1, 2", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n.global .u32 x[2] = {1, 2, 3};", CUDA_ERROR_INVALID_PTX},
      {".version 8.4\n.target sm_80\n/* no end", CUDA_ERROR_INVALID_PTX},
      {"\177ELF", CUDA_ERROR_NO_BINARY_FOR_GPU},
  };
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
    char log[256] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUresult r = p_cuModuleLoadDataEx(&m, broken[i].text, 2, options, values);
    if (r != broken[i].want)
      bad(__LINE__, "broken text %zu: %d, want %d", i, r, broken[i].want);
    EQ((size_t)values[1], strlen(log) + 1);
    TRUE(strlen(log) > 0);
  }

  CUlibrary lib, l2;
  CUkernel k;
  OK(p_cuLibraryLoadData(&lib, ptx, NULL, NULL, 0, NULL, NULL, 0));
  EQ(p_cuLibraryGetKernel(&k, lib, "no_such"), CUDA_ERROR_NOT_FOUND);
  OK(p_cuLibraryGetKernel(&k, lib, "lt_test_store"));
  OK(p_cuKernelGetName(&name, k));
  EQ(strcmp(name, "lt_test_store"), 0);
  OK(p_cuKernelGetParamInfo(k, 1, &off, &size));
  EQ(off, 8);
  OK(p_cuKernelGetLibrary(&l2, k));
  TRUE(l2 == lib);
  OK(p_cuKernelGetFunction(&f, k));
  OK(p_cuLibraryGetModule(&m, lib));
  TRUE(m != mod);
  EQ(p_cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE);
  CUdeviceptr p;
  OK(p_cuMemAlloc_v2(&p, 8));
  uint64_t val = 99;
  void *params[] = {&p, &val};
  OK(p_cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL)); // a kernel stands for its function
  OK(p_cuStreamSynchronize(NULL));
  EQ(*(uint64_t *)(uintptr_t)p, 99);
  OK(p_cuLibraryGetGlobal(&g, &bytes, lib, "lt_version"));
  EQ(bytes, 4);
  OK(p_cuLibraryUnload(lib));
  EQ(p_cuFuncGetName(&name, f), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuKernelGetName(&name, k), CUDA_ERROR_INVALID_HANDLE);
  OK(p_cuMemFree_v2(p));

  FILE *file = fopen("selftest.ptx", "w");
  fputs(ptx, file);
  fclose(file);
  OK(p_cuModuleLoad(&m, "selftest.ptx"));
  OK(p_cuModuleUnload(m));
  EQ(p_cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE);
  EQ(p_cuModuleLoad(&m, "no-such-file.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
  unlink("selftest.ptx");
  end();
}

static size_t mem_free(void) {
  size_t f, t;
  OK(p_cuMemGetInfo_v2(&f, &t));
  return f;
}

static void test_memory(void) {
  begin();
  const size_t mib = 1 << 20;
  size_t start = mem_free();
  CUdeviceptr a, b, c, d, base;
  size_t size;
  OK(p_cuMemAlloc_v2(&a, 1000));
  OK(p_cuMemAlloc_v2(&b, 1000));
  EQ(b - a, 1024);
  EQ(mem_free(), start); // fits into the range that was there
  OK(p_cuMemAlloc_v2(&c, 2 * mib + 1));
  EQ(start - mem_free(), 4 * mib);
  OK(p_cuMemAlloc_v2(&d, 3 * mib / 2)); // under 2 MiB, but the first range has no room
  EQ(start - mem_free(), 6 * mib);
  OK(p_cuMemGetAddressRange_v2(&base, &size, a + 999));
  EQ(base, a);
  EQ(size, 1000);
  EQ(p_cuMemGetAddressRange_v2(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
  OK(p_cuMemFree_v2(a));
  EQ(p_cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuMemFree_v2(b + 4), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuMemFree_v2(0));
  OK(p_cuMemAlloc_v2(&a, 512)); // first fit
  EQ(b - a, 1024);
  EQ(p_cuMemAlloc_v2(&base, 0), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuMemFree_v2(a));
  OK(p_cuMemFree_v2(b));
  OK(p_cuMemFree_v2(c));
  OK(p_cuMemFree_v2(d));
  EQ(mem_free(), start);

  // The measured mix: 5,000 small requests of 77.5 MB take 37 ranges or so.
  static CUdeviceptr many[5000];
  size_t sum = 0;
  uint32_t x = 1;
  for (int i = 0; i < 5000; i++) {
    x = x * 1664525 + 1013904223;
    size_t n = 1 + (x >> 8) % 31000;
    sum += n;
    OK(p_cuMemAlloc_v2(&many[i], n));
  }
  size_t took = start - mem_free();
  TRUE(took % (2 * mib) == 0);
  TRUE(took >= sum - mib && took < sum + sum / 20);
  for (int i = 0; i < 5000; i++)
    OK(p_cuMemFree_v2(many[(i * 7) % 5000]));
  EQ(mem_free(), start);

  OK(p_cuMemAlloc_v2(&a, (size_t)130 << 30)); // untouched, so it costs nothing
  EQ(p_cuMemAlloc_v2(&b, (size_t)20 << 30), CUDA_ERROR_OUT_OF_MEMORY);
  OK(p_cuMemFree_v2(a));
  EQ(p_cuMemAlloc_v2(&b, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  p_lt_testdriver_set_total_memory(10 * mib);
  size_t f, t;
  OK(p_cuMemGetInfo_v2(&f, &t));
  EQ(t, 10 * mib);
  EQ(f, 8 * mib);
  OK(p_cuMemAlloc_v2(&a, 8 * mib));
  EQ(mem_free(), 0);
  OK(p_cuMemAlloc_v2(&b, 1000));
  EQ(p_cuMemAlloc_v2(&c, 2 * mib - 1), CUDA_ERROR_OUT_OF_MEMORY);
  OK(p_cuMemFree_v2(a));
  OK(p_cuMemFree_v2(b));

  // Freeing waits for work in flight.
  OK(p_cuMemAlloc_v2(&a, 64));
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  int64_t t0 = now_ns();
  OK(spin(s, us(3000)));
  OK(fill(s, a, 1, 16));
  OK(p_cuMemFree_v2(a));
  TRUE(now_ns() - t0 > 3000000);
  OK(p_cuStreamQuery(s));

  OK(p_cuMemAllocManaged(&a, 100000, 1));
  int type, managed = 0;
  unsigned char is = 0;
  OK(p_cuPointerGetAttribute(&is, 8, a));
  EQ(is, 1);
  *(uint32_t *)(uintptr_t)a = 3;
  OK(p_cuMemFree_v2(a));
  EQ(p_cuMemAllocManaged(&a, 100, 0), CUDA_ERROR_INVALID_VALUE);
  (void)managed;

  size_t pitch;
  OK(p_cuMemAllocPitch_v2(&a, &pitch, 700, 10, 4));
  EQ(pitch, 1024);
  unsigned long long id1, id2;
  OK(p_cuPointerGetAttribute(&id1, 7, a + 100));
  OK(p_cuPointerGetAttribute(&type, 2, a));
  EQ(type, 2);
  OK(p_cuMemFree_v2(a));
  OK(p_cuMemAllocPitch_v2(&a, &pitch, 700, 10, 4));
  OK(p_cuPointerGetAttribute(&id2, 7, a));
  NE(id1, id2);
  OK(p_cuMemFree_v2(a));
  EQ(p_cuPointerGetAttribute(&id1, 7, a), CUDA_ERROR_INVALID_VALUE);

  void *h;
  unsigned flags;
  OK(p_cuMemHostAlloc(&h, 5000, 2));
  OK(p_cuMemHostGetFlags(&flags, h));
  EQ(flags, 2);
  void *nil = &flags;
  OK(p_cuMemHostAlloc(&nil, 0, 0));
  TRUE(nil == NULL);
  OK(p_cuMemFreeHost(NULL));
  OK(p_cuMemHostGetDevicePointer_v2(&a, h, 0));
  OK(p_cuPointerGetAttribute(&type, 2, a));
  EQ(type, 1);
  OK(p_cuMemFreeHost(h));
  EQ(p_cuMemFreeHost(h), CUDA_ERROR_INVALID_VALUE);
  static char mine[8192];
  OK(p_cuMemHostRegister_v2(mine, sizeof mine, 0));
  EQ(p_cuMemHostRegister_v2(mine + 100, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(p_cuMemHostUnregister(mine));
  EQ(p_cuMemHostUnregister(mine), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_pools(void) {
  begin();
  const size_t mib = 1 << 20;
  size_t start = mem_free();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUmemoryPool def, cur, own;
  OK(p_cuDeviceGetDefaultMemPool(&def, 0));
  OK(p_cuDeviceGetMemPool(&cur, 0));
  TRUE(def == cur);
  CUdeviceptr a, b, c;
  OK(p_cuMemAllocAsync(&a, 1000, s));
  OK(p_cuMemAllocAsync(&b, 1000, s));
  EQ(b - a, 1024);
  EQ(start - mem_free(), 32 * mib);
  uint64_t v;
  OK(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v));
  EQ(v, 2000);
  OK(fill(s, a, 9, 250));
  plug(s);
  OK(p_cuMemFreeAsync(a, s));
  OK(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v));
  EQ(v, 2000); // freed when the stream gets there
  EQ(p_cuMemFreeAsync(a, s), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuMemFreeAsync(b, s));
  OK(p_cuMemAlloc_v2(&c, 5 * mib)); // plain memory may be freed in stream order
  OK(p_cuMemFreeAsync(c, s));
  unplug(s);
  OK(p_cuStreamSynchronize(s));
  OK(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v));
  EQ(v, 0);
  EQ(mem_free(), start); // a threshold of 0 gives all of it back at a synchronisation
  v = 64 * mib;
  OK(p_cuMemPoolSetAttribute(def, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &v));
  OK(p_cuMemAllocAsync(&a, 1000, s));
  OK(p_cuMemFreeAsync(a, s));
  OK(p_cuStreamSynchronize(s));
  EQ(start - mem_free(), 32 * mib);
  OK(p_cuMemPoolTrimTo(def, 0));
  EQ(mem_free(), start);
  v = 0;
  OK(p_cuMemPoolSetAttribute(def, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &v));

  CUmemPoolProps props = {.allocType = 1, .location = {1, 0}};
  OK(p_cuMemPoolCreate(&own, &props));
  OK(p_cuMemAllocFromPoolAsync(&c, 40 * mib, own, s));
  OK(p_cuMemPoolDestroy(own));
  EQ(p_cuMemAllocFromPoolAsync(&b, 100, own, s), CUDA_ERROR_INVALID_VALUE);
  EQ(start - mem_free(), 40 * mib); // what lives in it keeps it
  plug(s);
  OK(spin(s, 10));
  OK(p_cuMemFree_v2(c)); // the plain free works on pool memory too, and does not wait
  EQ(p_cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  unplug(s);
  OK(p_cuCtxSynchronize());
  EQ(mem_free(), start);
  EQ(p_cuMemPoolDestroy(def), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_vmm(void) {
  begin();
  const size_t mib = 1 << 20;
  size_t start = mem_free(), g;
  CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
  OK(p_cuMemGetAllocationGranularity(&g, &prop, 0));
  EQ(g, 2 * mib);
  CUdeviceptr va;
  OK(p_cuMemAddressReserve(&va, 8 * mib, 0, 0, 0));
  EQ(va % (2 * mib), 0);
  EQ(mem_free(), start);
  CUmemGenericAllocationHandle h, h2;
  EQ(p_cuMemCreate(&h, 1000, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuMemCreate(&h, 2 * mib, &prop, 0));
  EQ(start - mem_free(), 2 * mib);
  OK(p_cuMemMap(va, 2 * mib, 0, h, 0));
  OK(p_cuMemMap(va + 4 * mib, 2 * mib, 0, h, 0)); // the same memory again
  EQ(p_cuMemMap(va, 2 * mib, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuMemMap(va + 8 * mib, 2 * mib, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuMemsetD8_v2(va, 1, 10), CUDA_ERROR_INVALID_VALUE); // no access yet
  CUmemAccessDesc acc = {{1, 0}, 3};
  EQ(p_cuMemSetAccess(va, 8 * mib, &acc, 1), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuMemSetAccess(va, 2 * mib, &acc, 1));
  OK(p_cuMemSetAccess(va + 4 * mib, 2 * mib, &acc, 1));
  OK(p_cuMemsetD32_v2(va, 0x01020304, 16));
  uint32_t got = 0;
  OK(p_cuMemcpyDtoH_v2(&got, va + 4 * mib + 60, 4));
  EQ(got, 0x01020304);
  OK(p_cuMemRetainAllocationHandle(&h2, (void *)(uintptr_t)(va + 100)));
  EQ(h2, h);
  OK(p_cuMemRelease(h2));
  OK(p_cuMemRelease(h));
  EQ(p_cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
  EQ(start - mem_free(), 2 * mib); // the mappings hold it
  EQ(p_cuMemAddressFree(va, 8 * mib), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuMemUnmap(va, 2 * mib));
  OK(p_cuMemUnmap(va + 4 * mib, 2 * mib));
  EQ(mem_free(), start);
  OK(p_cuMemAddressFree(va, 8 * mib));
  EQ(p_cuMemAddressFree(va, 8 * mib), CUDA_ERROR_INVALID_VALUE);
  end();
}

static void test_copies(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr d, e;
  uint32_t host[64], back[64];
  OK(p_cuMemAlloc_v2(&d, sizeof host));
  OK(p_cuMemAlloc_v2(&e, sizeof host));
  for (uint32_t i = 0; i < 64; i++)
    host[i] = i;
  OK(p_cuMemcpyHtoD_v2(d, host, sizeof host));
  OK(p_cuMemcpyDtoD_v2(e, d, sizeof host));
  OK(p_cuMemcpyDtoH_v2(back, e, sizeof host));
  EQ(memcmp(host, back, sizeof host), 0);
  EQ(p_cuMemcpyHtoD_v2(d, host, sizeof host + 1), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuMemcpyDtoH_v2(back, d + 252, 8), CUDA_ERROR_INVALID_VALUE);

  // Pageable memory is read at the call, pinned memory when the copy happens.
  uint32_t *pinned;
  OK(p_cuMemAllocHost_v2((void **)&pinned, 64));
  plug(s);
  host[0] = 100;
  pinned[0] = 200;
  OK(p_cuMemcpyHtoDAsync_v2(d, host, 4, s));
  OK(p_cuMemcpyHtoDAsync_v2(d + 4, pinned, 4, s));
  host[0] = 101;
  __atomic_store_n(&pinned[0], 201, __ATOMIC_SEQ_CST);
  unplug(s);
  OK(p_cuStreamSynchronize(s));
  EQ(((uint32_t *)(uintptr_t)d)[0], 100);
  EQ(((uint32_t *)(uintptr_t)d)[1], 201);
  // Into pageable memory the call returns with the data, into pinned at once.
  plug(s);
  OK(p_cuMemcpyDtoHAsync_v2(pinned + 1, d, 4, s));
  EQ(p_cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  unplug(s);
  back[0] = 0;
  OK(p_cuMemcpyDtoHAsync_v2(back, d, 4, s));
  EQ(back[0], 100);
  OK(p_cuStreamQuery(s));
  EQ(pinned[1], 100);

  OK(p_cuMemsetD8Async(d, 0xab, 5, s));
  OK(p_cuMemsetD32Async(d + 8, 0xdeadbeef, 2, s));
  OK(p_cuMemsetD16Async(d + 16, 0x1234, 2, s));
  OK(p_cuMemcpyAsync(e, d, 32, s));
  OK(p_cuStreamSynchronize(s));
  OK(p_cuMemcpy((CUdeviceptr)(uintptr_t)back, e, 32));
  EQ(((unsigned char *)back)[4], 0xab);
  EQ(back[3], 0xdeadbeef);
  EQ(back[4], 0x12341234);
  EQ(p_cuMemsetD32_v2(d + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);

  unsigned char grid[8][16];
  memset(grid, 0, sizeof grid);
  CUdeviceptr p;
  size_t pitch;
  OK(p_cuMemAllocPitch_v2(&p, &pitch, 16, 8, 4));
  OK(p_cuMemsetD2D8Async(p, pitch, 7, 16, 8, s));
  OK(p_cuStreamSynchronize(s)); // the default stream does not wait for s
  OK(p_cuMemsetD2D8_v2(p + pitch + 2, pitch, 9, 3, 2));
  CUDA_MEMCPY2D m = {.srcMemoryType = 2, .srcDevice = p, .srcPitch = pitch, .dstMemoryType = 1, .dstHost = grid,
                     .dstPitch = 16, .WidthInBytes = 10, .Height = 7, .srcXInBytes = 1, .srcY = 1, .dstXInBytes = 2, .dstY = 1};
  OK(p_cuStreamSynchronize(NULL));
  OK(p_cuMemcpy2DAsync_v2(&m, s));
  OK(p_cuStreamSynchronize(s));
  EQ(grid[1][2], 7);
  EQ(grid[1][3], 9);
  EQ(grid[2][5], 9);
  EQ(grid[2][6], 7);
  EQ(grid[3][3], 7);
  EQ(grid[0][3], 0);
  EQ(grid[1][12], 0);
  m.Height = 9;
  EQ(p_cuMemcpy2D_v2(&m), CUDA_ERROR_INVALID_VALUE);
  m.Height = 7;
  m.srcMemoryType = 3;
  EQ(p_cuMemcpy2D_v2(&m), CUDA_ERROR_INVALID_VALUE);

  OK(p_cuMemcpyPeer(e, ctx, d, ctx, 16));
  OK(p_cuMemFreeHost(pinned));
  OK(p_cuMemFree_v2(d));
  OK(p_cuMemFree_v2(e));
  OK(p_cuMemFree_v2(p));
  OK(p_cuStreamDestroy_v2(s));
  end();
}

// What another thread does while this one captures.
struct aside {
  CUstream s;
  CUevent e;
  int mode;
  CUresult query, elapsed, record, sync, alloc;
};

static void *aside(void *arg) {
  struct aside *a = arg;
  OK(p_cuCtxSetCurrent(ctx));
  int mode = a->mode;
  OK(p_cuThreadExchangeStreamCaptureMode(&mode));
  float ms;
  a->elapsed = p_cuEventElapsedTime(&ms, a->e, a->e);
  a->record = p_cuEventRecord(a->e, a->s);
  a->query = p_cuEventQuery(a->e);
  a->sync = p_cuStreamSynchronize(a->s);
  CUdeviceptr p;
  a->alloc = p_cuMemAlloc_v2(&p, 100);
  if (a->alloc == CUDA_SUCCESS)
    OK(p_cuMemFree_v2(p));
  return NULL;
}

static void run_aside(struct aside *a) {
  pthread_t t;
  const uint64_t here = p_lt_testdriver_calls_here();
  EQ(pthread_create(&t, NULL, aside, a), 0);
  pthread_join(t, NULL);
  EQ(p_lt_testdriver_calls_here() - here, 0);
}

static void test_capture_rules(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING);
  CUevent e = event(0);
  CUgraph g;
  float ms;
  int status;
  OK(p_cuEventRecord(e, t));
  OK(p_cuStreamSynchronize(t));

  // What is harmless.
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EQ(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  OK(p_cuStreamIsCapturing(s, &status));
  EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(p_cuEventElapsedTime(&ms, e, e));
  OK(p_cuEventRecord(e, t));
  CUevent made = event(0);
  OK(p_cuEventDestroy_v2(made));
  unsigned long long id;
  OK(p_cuStreamGetId(t, &id));
  OK(spin(s, 10));
  OK(p_cuStreamEndCapture(s, &g));
  OK(p_cuGraphDestroy(g));

  // What is not, from this thread and from another.
#define SPOILS(mode, call, want)                                   \
  do {                                                             \
    OK(p_cuStreamBeginCapture_v2(s, mode));                        \
    EQ(call, want);                                                \
    OK(p_cuStreamIsCapturing(s, &status));                         \
    EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);              \
    EQ(spin(s, 10), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);        \
    g = (CUgraph)1;                                                \
    EQ(p_cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED); \
    TRUE(g == NULL);                                               \
    OK(p_cuStreamIsCapturing(s, &status));                         \
    EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);                     \
  } while (0)
  const CUresult no = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUdeviceptr p;
  for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_THREAD_LOCAL; mode++) {
    SPOILS(mode, p_cuEventQuery(e), no);
    SPOILS(mode, p_cuEventSynchronize(e), no);
    SPOILS(mode, p_cuStreamQuery(t), no);
    SPOILS(mode, p_cuStreamSynchronize(t), no);
    SPOILS(mode, p_cuCtxSynchronize(), no);
    SPOILS(mode, p_cuMemAlloc_v2(&p, 10), no);
    SPOILS(mode, p_cuMemFree_v2(0), no);
  }
  unsigned flags;
  for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
    SPOILS(mode, p_cuCtxSynchronize(), no);
    SPOILS(mode, p_cuStreamGetFlags(s, &flags), no);
    SPOILS(mode, p_cuStreamGetId(s, &id), no);
    SPOILS(mode, p_cuStreamSynchronize(s), no);
    SPOILS(mode, p_cuStreamQuery(s), no);
  }
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(p_cuMemAlloc_v2(&p, 10));
  OK(p_cuMemFree_v2(p));
  OK(p_cuStreamSynchronize(t));
  OK(p_cuStreamEndCapture(s, &g));
  OK(p_cuGraphDestroy(g));

  // A thread in RELAXED mode may do anything, also while others capture.
  struct aside a = {.s = t, .e = e, .mode = CU_STREAM_CAPTURE_MODE_GLOBAL};
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  run_aside(&a);
  EQ(a.elapsed, CUDA_SUCCESS);
  EQ(a.record, CUDA_SUCCESS);
  EQ(a.query, no);
  EQ(p_cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  for (int mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
    a.mode = mode;
    OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    run_aside(&a);
    TRUE(a.query == CUDA_SUCCESS || a.query == CUDA_ERROR_NOT_READY);
    EQ(a.sync, CUDA_SUCCESS);
    EQ(a.alloc, CUDA_SUCCESS);
    OK(p_cuStreamEndCapture(s, &g));
    OK(p_cuGraphDestroy(g));
  }
  // THREAD_LOCAL concerns nobody else.
  a.mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  run_aside(&a);
  EQ(a.sync, CUDA_SUCCESS);
  OK(p_cuStreamEndCapture(s, &g));
  OK(p_cuGraphDestroy(g));
  // The exchange gives the old mode back.
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(p_cuThreadExchangeStreamCaptureMode(&mode));
  EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(p_cuEventQuery(e));
  OK(p_cuThreadExchangeStreamCaptureMode(&mode));
  EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);

  // Events recorded in the capture.
  OK(spin(s, 10));
  OK(p_cuEventRecord(e, s));
  EQ(p_cuEventElapsedTime(&ms, e, e), CUDA_ERROR_CAPTURED_EVENT);
  OK(p_cuStreamEndCapture(s, &g));
  EQ(p_cuEventElapsedTime(&ms, e, e), CUDA_ERROR_INVALID_VALUE);
  EQ(p_cuEventQuery(e), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuGraphDestroy(g));
  OK(p_cuEventRecord(e, t)); // an ordinary event again
  OK(p_cuEventSynchronize(e));

  // Fork and join.
  CUevent f = event(CU_EVENT_DISABLE_TIMING), j = event(CU_EVENT_DISABLE_TIMING);
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(spin(s, 10));
  OK(p_cuEventRecord(f, s));
  OK(p_cuStreamWaitEvent(t, f, 0));
  OK(p_cuStreamIsCapturing(t, &status));
  EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(spin(t, 10));
  EQ(p_cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(spin(s, 10));
  OK(p_cuEventRecord(f, s));
  OK(p_cuStreamWaitEvent(t, f, 0));
  OK(spin(t, 10));
  OK(spin(s, 10));
  OK(p_cuEventRecord(j, t));
  OK(p_cuStreamWaitEvent(s, j, 0));
  OK(spin(s, 10));
  OK(p_cuStreamEndCapture(s, &g));
  size_t n = 0, edges = 0;
  OK(p_cuGraphGetNodes(g, NULL, &n));
  EQ(n, 4);
  OK(p_cuGraphGetEdges(g, NULL, NULL, &edges));
  EQ(edges, 4);
  n = 0;
  OK(p_cuGraphGetRootNodes(g, NULL, &n));
  EQ(n, 1);
  OK(p_cuStreamIsCapturing(t, &status));
  EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  OK(p_cuGraphDestroy(g));

  // Dependencies that must not be.
  OK(spin(t, us(500)));
  OK(p_cuEventRecord(e, t));
  SPOILS(CU_STREAM_CAPTURE_MODE_RELAXED, p_cuStreamWaitEvent(s, e, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CUstream blocking = stream(0);
  EQ(p_cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), no);
  OK(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EQ(p_cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  OK(p_cuStreamIsCapturing(blocking, &status));
  EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EQ(spin(NULL, 10), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EQ(p_cuStreamEndCapture(blocking, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EQ(p_cuStreamEndCapture(blocking, &g), CUDA_ERROR_ILLEGAL_STATE);
  // The per-thread default stream can capture.
  OK(p_cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(spin(CU_STREAM_PER_THREAD, 10));
  OK(p_cuStreamEndCapture_ptsz(NULL, &g));
  OK(p_cuGraphDestroy(g));
  // Destroying the stream ends its capture.
  OK(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(p_cuStreamDestroy_v2(blocking));
  OK(p_cuEventSynchronize(e));
  OK(p_cuStreamDestroy_v2(s));
  OK(p_cuStreamDestroy_v2(t));
  end();
}

static void test_graphs(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING), t = stream(CU_STREAM_NON_BLOCKING);
  CUevent a = event(0), b = event(0), x = event(0), y = event(0);
  CUdeviceptr p;
  uint32_t got[16];
  float ms;
  OK(p_cuMemAlloc_v2(&p, 64));
  OK(p_cuMemsetD32_v2(p, 1, 16));
  OK(p_cuStreamSynchronize(NULL));

  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(p_cuEventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL));
  uint32_t three = 3, n16 = 16;
  for (int i = 0; i < 5; i++) {
    void *params[] = {&p, &three, &n16};
    OK(p_cuLaunchKernel(fn("lt_test_scale"), 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
  }
  OK(p_cuEventRecordWithFlags(b, s, CU_EVENT_RECORD_EXTERNAL));
  int status;
  uint64_t cid;
  CUgraph cg;
  const CUgraphNode *deps;
  size_t ndeps;
  OK(p_cuStreamGetCaptureInfo_v2(s, &status, &cid, &cg, &deps, &ndeps));
  EQ(status, 1);
  EQ(ndeps, 1);
  size_t n = 0;
  OK(p_cuGraphGetNodes(cg, NULL, &n));
  EQ(n, 7);
  EQ(p_cuGraphDestroy(cg), CUDA_ERROR_INVALID_VALUE);
  CUgraph g;
  OK(p_cuStreamEndCapture(s, &g));
  TRUE(g == cg);
  *(uint32_t *)(uintptr_t)p += 0; // nothing has run
  EQ(*(uint32_t *)(uintptr_t)p, 1);
  CUgraphNode nodes[8];
  n = 8;
  OK(p_cuGraphGetNodes(g, nodes, &n));
  EQ(n, 7);
  TRUE(nodes[7] == NULL);
  int type;
  OK(p_cuGraphNodeGetType(nodes[0], &type));
  EQ(type, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  OK(p_cuGraphNodeGetType(nodes[1], &type));
  EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  CUevent ev;
  OK(p_cuGraphEventRecordNodeGetEvent(nodes[6], &ev));
  TRUE(ev == b);
  CUDA_KERNEL_NODE_PARAMS kp;
  OK(p_cuGraphKernelNodeGetParams_v2(nodes[1], &kp));
  TRUE(kp.func == fn("lt_test_scale"));
  EQ(kp.blockDimX, 32);
  EQ(*(uint32_t *)kp.kernelParams[1], 3);

  CUgraphExec x1;
  OK(p_cuGraphInstantiateWithFlags(&x1, g, 0));
  // Before the first replay the events are as they were: never recorded.
  OK(p_cuEventQuery(a));
  EQ(p_cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
  OK(p_cuGraphUpload(x1, s));
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuStreamSynchronize(s));
  EQ(*(uint32_t *)(uintptr_t)p, 243);
  OK(p_cuEventElapsedTime(&ms, a, b));
  TRUE(fabs(ms * 1e6 - (5 * 5000 + 1460)) <= 32.5);
  // From the next launch call on they are pending.
  plug(s);
  OK(p_cuGraphLaunch(x1, s));
  EQ(p_cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
  EQ(p_cuEventQuery(a), CUDA_ERROR_NOT_READY);
  // Replays of one graph do not overlap, whatever their streams.
  OK(p_cuEventRecord(x, s));
  OK(p_cuGraphLaunch_ptsz(x1, t));
  unplug(s);
  OK(p_cuStreamSynchronize(t));
  OK(p_cuEventSynchronize(x));
  OK(p_cuMemcpyDtoH_v2(got, p, 64));
  EQ(got[15], 243u * 243 * 243);
  OK(p_cuEventElapsedTime(&ms, x, b));
  TRUE(ms > 0);

  // A destroyed executable finishes what is in flight.
  OK(p_cuMemsetD32Async(p, 1, 16, s));
  OK(spin(s, us(1000)));
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuGraphExecDestroy(x1));
  EQ(p_cuGraphLaunch(x1, s), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuGraphDestroy(g));
  OK(p_cuStreamSynchronize(s));
  EQ(*(uint32_t *)(uintptr_t)p, 243);

  // Branches overlap in time.
  CUevent f = event(CU_EVENT_DISABLE_TIMING), j = event(CU_EVENT_DISABLE_TIMING);
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(p_cuEventRecord(f, s));
  OK(p_cuStreamWaitEvent(t, f, 0));
  OK(spin(s, us(1000)));
  OK(spin(t, us(1500)));
  OK(p_cuEventRecord(j, t));
  OK(p_cuStreamWaitEvent(s, j, 0));
  OK(p_cuStreamEndCapture(s, &g));
  CUDA_GRAPH_INSTANTIATE_PARAMS ip = {.flags = 0};
  OK(p_cuGraphInstantiateWithParams(&x1, g, &ip));
  EQ(ip.result_out, 0);
  plug(s);
  OK(p_cuEventRecord(x, s));
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuEventRecord(y, s));
  unplug(s);
  OK(p_cuStreamSynchronize(s));
  OK(p_cuEventElapsedTime(&ms, x, y));
  TRUE(fabs(ms * 1e6 - (1500000 + 523 + 1460)) <= 32.5);

  // A graph cannot be launched into a capture.
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  EQ(p_cuGraphLaunch(x1, s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph spoilt;
  EQ(p_cuStreamEndCapture(s, &spoilt), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // A clone outlives its original.
  CUgraph outer;
  CUgraphExec x2;
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(fill(s, p, 5, 16));
  OK(spin(s, us(1500)));
  OK(p_cuMemsetD32Async(p + 4, 6, 1, s));
  OK(p_cuStreamEndCapture(s, &outer));
  n = 8;
  OK(p_cuGraphGetNodes(outer, nodes, &n));
  EQ(n, 3);
  CUgraph clone;
  OK(p_cuGraphClone(&clone, outer));
  OK(p_cuGraphDestroy(outer));
  OK(p_cuGraphInstantiate_v2(&x2, clone, NULL, NULL, 0));
  OK(p_cuGraphExecDestroy(x1));
  OK(p_cuGraphDestroy(g));
  OK(p_cuGraphDestroy(clone));
  plug(s);
  OK(p_cuEventRecord(x, s));
  OK(p_cuGraphLaunch(x2, s));
  OK(p_cuEventRecord(y, s));
  unplug(s);
  OK(p_cuStreamSynchronize(s));
  OK(p_cuEventElapsedTime(&ms, x, y));
  TRUE(ms > 1.5f && ms < 1.52f);
  EQ(((uint32_t *)(uintptr_t)p)[0], 5);
  EQ(((uint32_t *)(uintptr_t)p)[1], 6);
  OK(p_cuGraphExecDestroy(x2));

  // Swapping events in, with and without the limit that was seen once.
  p_lt_testdriver_set_swap_limit(1);
  CUevent sw[2] = {event(0), event(0)};
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(p_cuEventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL));
  OK(p_cuStreamEndCapture(s, &g));
  n = 1;
  OK(p_cuGraphGetNodes(g, nodes, &n));
  OK(p_cuGraphInstantiateWithFlags(&x1, g, 0));
  for (int i = 0; i < 2; i++) {
    OK(p_cuGraphExecEventRecordNodeSetEvent(x1, nodes[0], sw[i]));
    OK(p_cuGraphLaunch(x1, s));
    OK(p_cuStreamSynchronize(s));
    EQ(p_cuEventElapsedTime(&ms, sw[i], sw[i]), i == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
    OK(p_cuEventQuery(sw[i]));
  }
  p_lt_testdriver_set_swap_limit(-1);
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuStreamSynchronize(s));
  OK(p_cuEventElapsedTime(&ms, sw[1], sw[1]));
  // An event that has gone is not recorded, nor is its successor.
  OK(p_cuEventDestroy_v2(sw[1]));
  CUevent next = event(0);
  TRUE(next == sw[1]);
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuStreamSynchronize(s));
  EQ(p_cuEventElapsedTime(&ms, next, next), CUDA_ERROR_INVALID_HANDLE);
  OK(p_cuGraphExecDestroy(x1));
  OK(p_cuGraphDestroy(g));

  // By hand.
  OK(p_cuGraphCreate(&g, 0));
  CUgraphNode k1, k2, r;
  uint64_t v = 11;
  void *params[] = {&p, &v};
  CUDA_KERNEL_NODE_PARAMS hp = {.func = fn("lt_test_store"), 1, 1, 1, 1, 1, 1, 0, .kernelParams = params};
  OK(p_cuGraphAddKernelNode_v2(&k1, g, NULL, 0, &hp));
  OK(p_cuGraphAddEmptyNode(&k2, g, &k1, 1));
  OK(p_cuGraphAddEventRecordNode(&r, g, &k2, 1, b));
  n = 0;
  OK(p_cuGraphNodeGetDependencies(r, NULL, &n));
  EQ(n, 1);
  OK(p_cuGraphInstantiateWithFlags(&x1, g, 0));
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuEventSynchronize(b));
  EQ(*(uint64_t *)(uintptr_t)p, 11);
  OK(p_cuGraphExecDestroy(x1));
  OK(p_cuGraphDestroy(g));

  // Allocations in a graph keep their address.
  CUdeviceptr ga;
  OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(p_cuMemAllocAsync(&ga, 4096, s));
  OK(fill(s, ga, 8, 1024));
  OK(p_cuMemcpyDtoDAsync_v2(p, ga, 64, s));
  OK(p_cuMemFreeAsync(ga, s));
  OK(p_cuStreamEndCapture(s, &g));
  n = 8;
  OK(p_cuGraphGetNodes(g, nodes, &n));
  OK(p_cuGraphNodeGetType(nodes[0], &type));
  EQ(type, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  OK(p_cuGraphNodeGetType(nodes[3], &type));
  EQ(type, CU_GRAPH_NODE_TYPE_MEM_FREE);
  OK(p_cuGraphInstantiateWithFlags(&x1, g, 0));
  OK(p_cuGraphDestroy(g));
  OK(p_cuGraphLaunch(x1, s));
  OK(p_cuStreamSynchronize(s));
  EQ(((uint32_t *)(uintptr_t)p)[15], 8);
  OK(p_cuGraphExecDestroy(x1));
  OK(p_cuStreamSynchronize(s));

  OK(p_cuMemFree_v2(p));
  OK(p_cuStreamDestroy_v2(s));
  OK(p_cuStreamDestroy_v2(t));
  end();
}

static void test_proc_address(void) {
  p_lt_testdriver_reset();
  void *legacy, *ptsz, *v1, *v2;
  int st = -1;
  OK(p_cuGetProcAddress_v2("cuLaunchKernel", &legacy, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &st));
  EQ(st, CU_GET_PROC_ADDRESS_SUCCESS);
  OK(p_cuGetProcAddress_v2("cuLaunchKernel", &v1, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &st));
  OK(p_cuGetProcAddress_v2("cuLaunchKernel", &ptsz, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &st));
  TRUE(legacy == v1);
  TRUE(legacy != ptsz);
  TRUE(legacy == (void *)p_cuLaunchKernel);
  TRUE(ptsz == (void *)p_cuLaunchKernel_ptsz);
  OK(p_cuGetProcAddress_v2("cuMemAlloc", &v1, 13000, 0, &st));
  TRUE(v1 == (void *)p_cuMemAlloc_v2);
  OK(p_cuGetProcAddress("cuEventElapsedTime", &v1, 12000, 0));
  OK(p_cuGetProcAddress("cuEventElapsedTime", &v2, 13000, 0));
  TRUE(v1 == (void *)p_cuEventElapsedTime);
  TRUE(v2 == (void *)p_cuEventElapsedTime_v2);
  OK(p_cuGetProcAddress("cuGetProcAddress", &v2, 13000, 0));
  TRUE(v2 == (void *)p_cuGetProcAddress_v2);
  OK(p_cuGetProcAddress_v2("cuNoSuchThing", &v1, 13000, 0, &st));
  EQ(st, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  TRUE(v1 == NULL);
  EQ(p_cuGetProcAddress("cuNoSuchThing", &v2, 13000, 0), CUDA_ERROR_NOT_FOUND);
  EQ(p_cuGetProcAddress_v2("cuLaunchKernel", &v1, 99000, 0, &st), CUDA_ERROR_INVALID_VALUE);
  OK(p_cuGetProcAddress_v2("cuStreamGetId", &v1, 11000, 0, &st));
  EQ(st, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EQ(p_cuGetProcAddress_v2(NULL, &v1, 11000, 0, &st), CUDA_ERROR_INVALID_VALUE);
  p_lt_testdriver_hide("cuStreamGetId", 1);
  OK(p_cuGetProcAddress_v2("cuStreamGetId", &v1, 13000, 0, &st));
  TRUE(v1 == NULL);
  p_lt_testdriver_hide("cuStreamGetId", 0);
  OK(p_cuGetProcAddress_v2("cuStreamGetId", &v1, 13000, 0, &st));
}

static void test_faults(void) {
  begin();
  p_lt_testdriver_reset_calls();
  EQ(p_lt_testdriver_calls_total(), 0);
  const uint64_t here = p_lt_testdriver_calls_here();
  CUdeviceptr p;
  EQ(p_lt_testdriver_fail("cuMemAlloc_v2", 2, 1, 2), 0);
  OK(p_cuMemAlloc_v2(&p, 100));
  OK(p_cuMemFree_v2(p));
  EQ(p_cuMemAlloc_v2(&p, 100), 2);
  EQ(p_cuMemAlloc_v2(&p, 100), 2);
  OK(p_cuMemAlloc_v2(&p, 100));
  OK(p_cuMemFree_v2(p));
  EQ(p_lt_testdriver_calls("cuMemAlloc_v2"), 4);
  EQ(p_lt_testdriver_calls("cuMemFree_v2"), 2);
  EQ(p_lt_testdriver_calls_total(), 6);
  EQ(p_lt_testdriver_calls_here() - here, 6);
  EQ(p_lt_testdriver_calls("cuMemAlloc"), -1);
  EQ(p_lt_testdriver_fail("cuMemAlloc", 2, 0, 0), -1);
  EQ(p_lt_testdriver_fail("*", 999, 1, 1), 0);
  OK(p_cuCtxSynchronize());
  EQ(p_cuCtxSynchronize(), 999);
  OK(p_cuCtxSynchronize());
  EQ(p_lt_testdriver_fail("cuStreamCreate", 46, 0, 0), 0);
  CUstream s;
  EQ(p_cuStreamCreate(&s, 0), 46);
  EQ(p_cuStreamCreate(&s, 0), 46);
  p_lt_testdriver_clear_faults();
  OK(p_cuStreamCreate(&s, 0));

  // Host time of a call.
  EQ(p_lt_testdriver_set_call_ns("cuLaunchKernel", 3000000), 0);
  int64_t t0 = now_ns();
  OK(spin(s, 10));
  TRUE(now_ns() - t0 >= 3000000);
  EQ(p_lt_testdriver_set_call_ns("cuNo", 1), -1);

  // A context that faulted answers everything with the same error, runs
  // nothing more and releases those who wait.
  CUevent stuck = event(0);
  OK(p_cuMemAlloc_v2(&p, 64));
  OK(p_cuStreamSynchronize(s));
  OK(p_lt_testdriver_stall_stream(s, 1));
  OK(fill(s, p, 1, 16));
  OK(p_cuEventRecord(stuck, s));
  p_lt_testdriver_set_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
  EQ(p_cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EQ(p_cuEventQuery(stuck), CUDA_ERROR_ILLEGAL_ADDRESS);
  EQ(p_cuMemFree_v2(p), CUDA_ERROR_ILLEGAL_ADDRESS);
  p_lt_testdriver_clear_faults();
  OK(p_lt_testdriver_stall_stream(s, 0));
  OK(p_cuStreamSynchronize(s));
  OK(p_cuMemFree_v2(p));
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_log(void) {
  begin();
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  EQ(p_lt_testdriver_log("selftest.log"), 0);
  CUdeviceptr p;
  OK(p_cuMemAlloc_v2(&p, 64));
  OK(fill(s, p, 0x01020304, 16));
  OK(p_cuEventRecord(event(0), s));
  OK(p_cuStreamSynchronize(s));
  OK(p_cuMemFree_v2(p));
  EQ(p_lt_testdriver_log(NULL), 0);
  OK(spin(s, 10)); // not logged
  char text[4096];
  FILE *f = fopen("selftest.log", "r");
  text[fread(text, 1, sizeof text - 1, f)] = '\0';
  fclose(f);
  int lines = 0;
  for (char *c = text; *c != '\0'; c++)
    lines += *c == '\n';
  EQ(lines, 4);
  TRUE(strstr(text, "cuMemAlloc_v2 bytes=64 ptr=0x") != NULL);
  TRUE(strstr(text, "kernel=lt_test_fill grid=1,1,1 block=32,1,1 shared=0 params=") != NULL);
  TRUE(strstr(text, "0403020110000000\n") != NULL);
  TRUE(strstr(text, "lt_spin") == NULL);
  NE(p_lt_testdriver_log("no/such/directory/log"), 0);
  unlink("selftest.log");
  OK(p_cuStreamSynchronize(s));
  OK(p_cuStreamDestroy_v2(s));
  end();
}

static void test_fork(void) {
  begin();
  CUstream s = stream(0);
  OK(spin(s, 10));
  OK(p_cuStreamSynchronize(s));
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    int n;
    int bad_ = 0;
    bad_ |= p_cuDeviceGetCount(&n) != CUDA_ERROR_NOT_INITIALIZED;
    bad_ |= p_cuInit(0) != CUDA_ERROR_NOT_INITIALIZED;
    bad_ |= p_cuStreamSynchronize(s) != CUDA_ERROR_NOT_INITIALIZED;
    _exit(bad_);
  }
  int status = -1;
  EQ(waitpid(pid, &status, 0), pid);
  EQ(status, 0);
  OK(p_cuStreamSynchronize(s));
  OK(p_cuStreamDestroy_v2(s));
  end();
}

// Threads ------------------------------------------------------------------------

struct stress {
  int id;
  uint32_t sum;
};

static void *stress(void *arg) {
  struct stress *me = arg;
  OK(p_cuCtxSetCurrent(ctx));
  CUstream s[3] = {stream(CU_STREAM_NON_BLOCKING), stream(0), stream(0)};
  CUevent e[8];
  for (int i = 0; i < 8; i++)
    e[i] = event(i % 4 == 3 ? CU_EVENT_DISABLE_TIMING : 0);
  CUdeviceptr p;
  OK(p_cuMemAlloc_v2(&p, 4096));
  uint32_t one = 1, n = 1024;
  OK(p_cuMemsetD32Async(p, 0, n, s[0]));
  CUdeviceptr inc;
  OK(p_cuMemAlloc_v2(&inc, 4096));
  OK(fill(s[0], inc, one, n));
  OK(p_cuStreamSynchronize(s[0]));
  for (int i = 0; i < 200; i++) {
    CUstream at = s[i % 3], to = s[(i + 1) % 3];
    void *params[] = {&p, &p, &inc, &n};
    OK(p_cuEventRecord(e[i % 3], at));
    OK(p_cuLaunchKernel(fn("lt_test_add"), 1, 1, 1, 256, 1, 1, 0, at, params, NULL));
    OK(p_cuEventRecord(e[3 + i % 5], at));
    OK(p_cuStreamWaitEvent(to, e[3 + i % 5], 0));
    float ms;
    p_cuEventElapsedTime(&ms, e[i % 3], e[3 + i % 5]);
    p_cuEventQuery(e[i % 8]);
    if (i % 50 == 49) {
      CUdeviceptr q;
      OK(p_cuMemAlloc_v2(&q, (size_t)(1 + i) * 1000));
      OK(p_cuMemFree_v2(q));
    }
    if (i % 40 == 39) {
      OK(p_cuStreamSynchronize(to));
      OK(p_cuStreamDestroy_v2(at));
      s[i % 3] = stream(i % 2 ? CU_STREAM_NON_BLOCKING : 0);
      OK(p_cuEventRecord(e[0], to));
      OK(p_cuStreamWaitEvent(s[i % 3], e[0], 0));
    }
  }
  for (int i = 0; i < 3; i++)
    OK(p_cuStreamSynchronize(s[i]));
  uint32_t back[1024];
  OK(p_cuMemcpyDtoH_v2(back, p, sizeof back));
  me->sum = back[1023];
  for (int i = 0; i < 8; i++)
    OK(p_cuEventDestroy_v2(e[i]));
  for (int i = 0; i < 3; i++)
    OK(p_cuStreamDestroy_v2(s[i]));
  OK(p_cuMemFree_v2(p));
  OK(p_cuMemFree_v2(inc));
  return NULL;
}

static void test_threads(void) {
  begin();
  enum { N = 6 };
  pthread_t t[N];
  struct stress a[N];
  for (int i = 0; i < N; i++) {
    a[i] = (struct stress){.id = i};
    EQ(pthread_create(&t[i], NULL, stress, &a[i]), 0);
  }
  for (int i = 0; i < 20; i++) {
    CUgraph g = NULL;
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    OK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(spin(s, 100));
    OK(p_cuStreamEndCapture(s, &g));
    CUgraphExec x;
    OK(p_cuGraphInstantiateWithFlags(&x, g, 0));
    OK(p_cuGraphLaunch(x, s));
    OK(p_cuGraphLaunch(x, s));
    OK(p_cuGraphDestroy(g));
    OK(p_cuGraphExecDestroy(x));
    OK(p_cuStreamDestroy_v2(s));
  }
  for (int i = 0; i < N; i++) {
    pthread_join(t[i], NULL);
    EQ(a[i].sum, 200);
  }
  end();
}

// Idle streams cost no processor time.
static void test_idle(void) {
  begin();
  CUstream s[8];
  for (int i = 0; i < 8; i++) {
    s[i] = stream(CU_STREAM_NON_BLOCKING);
    OK(spin(s[i], us(20000))); // and a long kernel costs next to none
  }
  struct timespec a, b;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
  nap_ms(100);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  int64_t spent = (int64_t)(b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec;
  if (spent > 20000000)
    bad(__LINE__, "idle streams used %lld us of processor time in 100 ms", (long long)spent / 1000);
  for (int i = 0; i < 8; i++)
    OK(p_cuStreamDestroy_v2(s[i]));
  end();
}

static const struct {
  const char *name;
  void (*run)(void);
} tests[] = {
    {"before_init", test_before_init}, // first: cuInit cannot be undone
    {"devices", test_devices},
    {"contexts", test_contexts},
    {"streams", test_streams},
    {"default_stream", test_default_stream},
    {"events", test_events},
    {"pairs", test_pairs},
    {"clock", test_clock},
    {"never_in_the_future", test_never_in_the_future},
    {"wait_event", test_wait_event},
    {"stall", test_stall},
    {"host_functions", test_host_functions},
    {"launches", test_launches},
    {"modules", test_modules},
    {"memory", test_memory},
    {"pools", test_pools},
    {"vmm", test_vmm},
    {"copies", test_copies},
    {"capture_rules", test_capture_rules},
    {"graphs", test_graphs},
    {"proc_address", test_proc_address},
    {"faults", test_faults},
    {"log", test_log},
    {"fork", test_fork},
    {"threads", test_threads},
    {"idle", test_idle},
};

int main(int argc, char **argv) {
  void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (lib == NULL) {
    fprintf(stderr, "selftest: %s\n", argc > 1 ? dlerror() : "which library?");
    return 2;
  }
#define LOAD(f)                                     \
  *(void **)&p_##f = dlsym(lib, #f);                \
  if (p_##f == NULL) {                              \
    fprintf(stderr, "selftest: no %s\n", #f);       \
    failures++;                                     \
  }
#define F(sym, base, ver) LOAD(sym)
#define S(sym, sfx, base, ver) LOAD(sym) LOAD(sym##sfx)
#include "functions.h"
  CONTROLS(LOAD)
  if (failures > 0)
    return 2;
  bool all = argc == 2;
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    bool wanted = all;
    for (int k = 2; k < argc; k++)
      wanted = wanted || strcmp(argv[k], tests[i].name) == 0;
    if (!wanted)
      continue;
    int before = failures;
    int64_t t0 = now_ns();
    tests[i].run();
    printf("%s %s %.1f ms\n", failures == before ? "ok  " : "FAIL", tests[i].name, (double)(now_ns() - t0) / 1e6);
    fflush(stdout);
  }
  return failures > 0;
}
