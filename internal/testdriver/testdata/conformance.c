// SPDX-License-Identifier: Apache-2.0
//
// Asks a driver what it does in the corners that callers stumble over, and
// prints one answer a line. The answers of a real driver are kept in
// conformance_h200.txt; the stand-in must give the same ones. Only questions
// with one answer are asked: no times, no addresses, no sizes of a machine.
//
// To write the answers down anew, on a machine with a GPU of compute capability
// 8.0 or above and driver 580 or above:
//
//	gcc -std=c11 -O1 -pthread -I ../csrc -o conformance conformance.c
//	./conformance libcuda.so.1 >conformance_h200.txt

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

#define F(sym, base, ver) static __typeof__(sym) *p_##sym;
#define S(sym, sfx, base, ver) static __typeof__(sym) *p_##sym, *p_##sym##sfx;
#include "functions.h"
#undef F
#undef S

static const char *section;

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  printf("%s: ", section);
  vprintf(fmt, ap);
  putchar('\n');
  fflush(stdout);
  va_end(ap);
}
// A driver may crash over a question; that is an answer too.
static sigjmp_buf crashed;
static void on_crash(int sig) { siglongjmp(crashed, sig); }
#define ASK(call)                             \
  do {                                        \
    if (sigsetjmp(crashed, 1) == 0)           \
      say("%s = %d", #call, (int)(call));     \
    else                                      \
      say("%s crashes", #call);               \
  } while (0)

// MUST is for what the questions stand on.
#define MUST(call)                                                        \
  do {                                                                    \
    CUresult r_ = (call);                                                 \
    if (r_ != CUDA_SUCCESS) {                                             \
      fprintf(stderr, "line %d: %s = %d\n", __LINE__, #call, r_);         \
      exit(3);                                                            \
    }                                                                     \
  } while (0)

static int64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                          ".visible .global .align 4 .u32 lt_version = 7;\n"
                          ".visible .entry lt_spin(.param .u64 c)\n"
                          "{\n\t.reg .pred %p<2>;\n\t.reg .b64 %rd<5>;\n"
                          "\tld.param.u64 %rd1, [c];\n\tmov.u64 %rd2, %clock64;\n"
                          "again:\n\tmov.u64 %rd3, %clock64;\n\tsub.s64 %rd4, %rd3, %rd2;\n"
                          "\tsetp.lt.u64 %p1, %rd4, %rd1;\n\t@%p1 bra again;\n\tret;\n}\n"
                          ".visible .entry odd(.param .u32 a, .param .align 16 .b8 b[20], .param .b8 c, .param .f32 d, .param .u64 e)\n"
                          "{\n\tret;\n}\n"
                          ".visible .entry nothing()\n{\n\tret;\n}\n";

static CUcontext ctx;
static CUmodule mod;
static CUfunction f_spin, f_odd, f_nothing;
static CUstream s, t, blocking; // s and t do not wait for the default stream
static CUevent e, e2, untimed;
static CUdeviceptr mem;
static float ms;
static size_t n;
static int v;
static unsigned u;
static unsigned long long id;

static CUresult spin(CUstream st, uint64_t ms_) {
  uint64_t cycles = ms_ * 1980000;
  void *params[] = {&cycles};
  return p_cuLaunchKernel(f_spin, 1, 1, 1, 1, 1, 1, 0, st, params, NULL);
}

static CUresult launch(CUstream st) { return p_cuLaunchKernel(f_nothing, 1, 1, 1, 1, 1, 1, 0, st, NULL, NULL); }

static void before_init(void) {
  section = "before cuInit";
  const char *str;
  ASK(p_cuDeviceGetCount(&v));
  ASK(p_cuDriverGetVersion(&v));
  ASK(p_cuGetErrorName(2, &str));
  ASK(p_cuGetErrorName(12345, &str));
  ASK(p_cuCtxGetCurrent(&ctx));
  ASK(p_cuInit(1));
}

static void errors(void) {
  section = "errors";
  static const int codes[] = {0,   1,   2,   3,   4,   100, 101, 200, 201, 209, 218, 222, 301, 400, 401, 500, 600, 700, 704,
                              705, 708, 709, 712, 713, 720, 800, 801, 900, 901, 902, 903, 904, 905, 906, 907, 908, 999};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
    const char *str = NULL;
    if (p_cuGetErrorName(codes[i], &str) == 0)
      say("name %d = %s", codes[i], str);
  }
}

static void no_context(void) {
  section = "no context";
  CUdevice d;
  CUcontext c;
  CUevent ev;
  CUstream st;
  CUdeviceptr p;
  CUmodule m;
  CUfunction f;
  void *h;
  uint64_t one = 1;
  void *params[] = {&one};
  CUgraph g;
  MUST(p_cuCtxSetCurrent(NULL));
  ASK(p_cuCtxGetCurrent(&c));
  ASK(p_cuCtxGetDevice(&d));
  ASK(p_cuCtxSynchronize());
  ASK(p_cuCtxPopCurrent_v2(&c));
  ASK(p_cuCtxPushCurrent_v2(NULL));
  ASK(p_cuCtxSetCurrent(NULL));
  ASK(p_cuCtxGetId(NULL, &id));
  ASK(p_cuCtxGetId(ctx, &id));
  ASK(p_cuCtxGetStreamPriorityRange(&v, &v));
  ASK(p_cuMemGetInfo_v2(&n, &n));
  ASK(p_cuMemAlloc_v2(&p, 100));
  ASK(p_cuMemAllocManaged(&p, 100, 1));
  ASK(p_cuMemHostAlloc(&h, 100, 0));
  ASK(p_cuMemcpyHtoD_v2(mem, &one, 4));
  ASK(p_cuMemcpyDtoHAsync_v2(&one, mem, 4, s));
  ASK(p_cuMemsetD8Async(mem, 0, 4, s));
  ASK(p_cuMemGetAddressRange_v2(&p, &n, mem));
  ASK(p_cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mem));
  ASK(p_cuEventCreate(&ev, 0));
  ASK(p_cuEventRecord(e, s));
  ASK(p_cuEventSynchronize(e));
  ASK(p_cuEventQuery(e));
  ASK(p_cuEventElapsedTime(&ms, e, e));
  ASK(p_cuStreamCreate(&st, 0));
  ASK(p_cuStreamQuery(s));
  ASK(p_cuStreamSynchronize(s));
  ASK(p_cuStreamGetId(s, &id));
  ASK(p_cuStreamGetCtx(s, &c));
  ASK(p_cuStreamGetFlags(s, &u));
  ASK(p_cuStreamGetPriority(s, &v));
  ASK(p_cuStreamIsCapturing(s, &v));
  ASK(p_cuStreamWaitEvent(s, e, 0));
  ASK(p_cuStreamQuery(NULL));
  ASK(p_cuStreamSynchronize(NULL));
  ASK(p_cuStreamGetId(NULL, &id));
  ASK(p_cuStreamGetCtx(NULL, &c));
  ASK(p_cuStreamIsCapturing(NULL, &v));
  ASK(p_cuLaunchKernel(f_spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(f_spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
  ASK(p_cuStreamSynchronize(s));
  ASK(p_cuModuleLoadData(&m, ptx));
  ASK(p_cuModuleGetFunction(&f, mod, "odd"));
  ASK(p_cuModuleGetGlobal_v2(&p, &n, mod, "lt_version"));
  ASK(p_cuFuncGetAttribute(&v, 0, f_odd));
  ASK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuStreamEndCapture(s, &g));
  ASK(p_cuProfilerStart());
  ASK(p_cuMemFree_v2(0));
  v = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASK(p_cuThreadExchangeStreamCaptureMode(&v));
  ASK(p_cuThreadExchangeStreamCaptureMode(&v));
  ev = NULL;
  MUST(p_cuCtxSetCurrent(ctx));
  MUST(p_cuEventCreate(&ev, 0));
  MUST(p_cuStreamCreate(&st, 0));
  MUST(p_cuMemAlloc_v2(&p, 100));
  MUST(p_cuCtxSetCurrent(NULL));
  ASK(p_cuEventDestroy_v2(ev));
  ASK(p_cuStreamDestroy_v2(st));
  ASK(p_cuMemFree_v2(p));
  MUST(p_cuCtxSetCurrent(ctx));
}

static void contexts(void) {
  section = "contexts";
  CUcontext c, cur;
  CUevent ev;
  CUstream st;
  unsigned long long id1, id2;
  ASK(p_cuDevicePrimaryCtxGetState(0, &u, &v));
  say("active = %d", v);
  ASK(p_cuCtxDestroy_v2(ctx)); // the primary one
  MUST(p_cuCtxSetCurrent(ctx));
  MUST(p_cuCtxCreate_v2(&c, 0, 0));
  MUST(p_cuEventCreate(&ev, 0));
  MUST(p_cuStreamCreate(&st, 0));
  MUST(p_cuCtxGetId(c, &id1));
  MUST(p_cuCtxGetId(ctx, &id2));
  say("ids differ = %d", id1 != id2);
  ASK(p_cuEventRecord(ev, s)); // ev and the current context are c's
  ASK(p_cuEventRecord(e, st));
  ASK(p_cuEventRecord(e, s)); // both the other context's
  ASK(p_cuEventRecord(e, NULL));
  ASK(p_cuEventRecord(ev, st));
  ASK(p_cuStreamSynchronize(s));
  ASK(p_cuStreamSynchronize(st));
  ASK(p_cuEventQuery(e));
  ASK(p_cuEventSynchronize(e));
  ASK(p_cuEventElapsedTime(&ms, e, e));
  ASK(p_cuEventElapsedTime(&ms, e, ev));
  ASK(p_cuStreamWaitEvent(st, e, 0));
  ASK(p_cuStreamWaitEvent(s, e, 0));
  ASK(p_cuStreamQuery(s));
  ASK(p_cuStreamGetId(s, &id1));
  ASK(p_cuStreamIsCapturing(s, &v));
  ASK(launch(s));
  ASK(launch(st));
  ASK(launch(NULL));
  ASK(p_cuMemsetD8Async(mem, 0, 4, s));
  ASK(p_cuMemsetD8Async(mem, 0, 4, st));
  ASK(p_cuCtxSynchronize());
  ASK(p_cuCtxPopCurrent_v2(&cur));
  say("popped the new one = %d", cur == c);
  ASK(p_cuCtxGetCurrent(&cur));
  say("the old one is current = %d", cur == ctx);
  MUST(p_cuCtxPushCurrent_v2(c));
  MUST(p_cuCtxPushCurrent_v2(c));
  ASK(p_cuCtxDestroy_v2(c));
  ASK(p_cuCtxGetCurrent(&cur));
  say("still there below = %d", cur == c);
  ASK(p_cuCtxSynchronize());
  ASK(p_cuCtxSetCurrent(NULL));
  ASK(p_cuCtxGetCurrent(&cur));
  say("the old one is current = %d", cur == ctx);
  MUST(p_cuCtxSetCurrent(ctx));
  ASK(p_cuDevicePrimaryCtxRelease_v2(5));
}

static void streams(void) {
  section = "streams";
  CUstream a, b;
  unsigned long long i0, i1, i2, i3, i4;
  int lo, hi;
  MUST(p_cuCtxGetStreamPriorityRange(&lo, &hi));
  say("priorities %d to %d", lo, hi);
  ASK(p_cuStreamCreate(&a, 2));
  ASK(p_cuStreamCreate(&a, 8));
  MUST(p_cuStreamCreateWithPriority(&a, 0, hi - 100));
  MUST(p_cuStreamGetPriority(a, &v));
  say("a priority too high becomes %d", v);
  MUST(p_cuStreamGetId(a, &i3));
  ASK(p_cuStreamDestroy_v2(a));
  MUST(p_cuStreamCreate(&b, 0));
  MUST(p_cuStreamGetId(b, &i4));
  say("handle reused = %d, id reused = %d", a == b, i3 == i4);
  MUST(p_cuStreamDestroy_v2(b));
  ASK(p_cuStreamGetId(NULL, &i0));
  ASK(p_cuStreamGetId(CU_STREAM_LEGACY, &i1));
  ASK(p_cuStreamGetId(CU_STREAM_PER_THREAD, &i2));
  say("NULL is the legacy stream = %d, not the per-thread one = %d", i0 == i1, i0 != i2);
  ASK(p_cuStreamGetId_ptsz(NULL, &i0));
  say("to _ptsz it is the per-thread one = %d", i0 == i2);
  ASK(p_cuStreamGetFlags(NULL, &u));
  say("flags of the legacy stream = %u", u);
  ASK(p_cuStreamGetFlags(s, &u));
  ASK(p_cuStreamGetPriority(NULL, &v));
  ASK(p_cuStreamDestroy_v2(NULL));
  ASK(p_cuStreamDestroy_v2(CU_STREAM_LEGACY));
  ASK(p_cuStreamDestroy_v2(CU_STREAM_PER_THREAD));
  MUST(spin(blocking, 20));
  ASK(p_cuStreamQuery(blocking));
  ASK(p_cuStreamQuery(NULL));
  ASK(p_cuStreamQuery(s));
  MUST(launch(NULL));
  MUST(launch(CU_STREAM_PER_THREAD));
  ASK(p_cuStreamQuery(NULL));
  ASK(p_cuStreamQuery(CU_STREAM_PER_THREAD));
  ASK(p_cuStreamSynchronize(NULL));
  ASK(p_cuStreamQuery(blocking));
  MUST(spin(blocking, 20));
  ASK(p_cuStreamSynchronize(NULL)); // waits for blocking streams too
  ASK(p_cuStreamQuery(blocking));
  MUST(spin(blocking, 20));
  ASK(p_cuStreamSynchronize(CU_STREAM_PER_THREAD));
  ASK(p_cuStreamQuery(blocking));
  MUST(p_cuCtxSynchronize());
  ASK(p_cuStreamAddCallback(s, NULL, NULL, 0));
  ASK(p_cuLaunchHostFunc(s, NULL, NULL));
}

static char inside[1024];
static void on_host(void *user) {
  (void)user;
  CUdeviceptr p;
  CUevent ev;
  CUcontext c;
  snprintf(inside, sizeof inside,
           "cuStreamQuery %d, cuStreamQuery(other) %d, cuStreamSynchronize(other) %d, cuStreamGetId %d, "
           "cuStreamIsCapturing %d, cuEventQuery %d, cuEventElapsedTime %d, cuEventSynchronize %d, cuEventRecord %d, "
           "launch %d, cuEventCreate %d, cuMemAlloc %d, cuMemFree(0) %d, cuMemGetInfo %d, cuCtxGetCurrent %d, "
           "cuCtxSynchronize %d, cuDriverGetVersion %d",
           p_cuStreamQuery(s), p_cuStreamQuery(t), p_cuStreamSynchronize(t), p_cuStreamGetId(t, &id),
           p_cuStreamIsCapturing(t, &v), p_cuEventQuery(e2), p_cuEventElapsedTime(&ms, e2, e2), p_cuEventSynchronize(e2),
           p_cuEventRecord(e, t), launch(t), p_cuEventCreate(&ev, 0), p_cuMemAlloc_v2(&p, 100), p_cuMemFree_v2(0),
           p_cuMemGetInfo_v2(&n, &n), p_cuCtxGetCurrent(&c), p_cuCtxSynchronize(), p_cuDriverGetVersion(&v));
}

static void events(void) {
  section = "events";
  CUevent a, b, c;
  ASK(p_cuEventCreate(&a, 16));
  ASK(p_cuEventCreate(&a, CU_EVENT_INTERPROCESS));
  ASK(p_cuEventCreate(&a, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  MUST(p_cuEventDestroy_v2(a));
  MUST(p_cuEventCreate(&a, 0));
  MUST(p_cuEventCreate(&b, 0));
  ASK(p_cuEventQuery(a));
  ASK(p_cuEventSynchronize(a));
  ASK(p_cuEventElapsedTime(&ms, a, a));
  ASK(p_cuStreamWaitEvent(s, a, 0));
  ASK(p_cuStreamWaitEvent(s, a, 2));
  ASK(p_cuEventRecordWithFlags(a, s, 2));
  MUST(spin(s, 20));
  ASK(p_cuEventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL)); // outside of a capture
  ASK(p_cuEventQuery(a));
  ASK(p_cuEventRecord(a, s));
  MUST(p_cuEventRecord(untimed, s));
  ASK(p_cuEventQuery(a));
  ASK(p_cuEventElapsedTime(&ms, a, a));
  ASK(p_cuEventElapsedTime(&ms, a, b)); // b: never recorded
  ASK(p_cuEventElapsedTime(&ms, b, a));
  ASK(p_cuEventElapsedTime(&ms, a, untimed));
  ASK(p_cuEventElapsedTime(&ms, untimed, untimed));
  ASK(p_cuEventElapsedTime(NULL, a, a));
  MUST(p_cuStreamSynchronize(s));
  ASK(p_cuEventElapsedTime(&ms, a, a));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuEventElapsedTime(&ms, a, untimed));
  ASK(p_cuEventElapsedTime_v2(&ms, a, a));
  MUST(p_cuEventRecord(b, s));
  MUST(p_cuStreamSynchronize(s));
  ASK(p_cuEventElapsedTime(&ms, b, a));
  say("backwards is negative = %d", ms < 0);
  MUST(spin(s, 20));
  MUST(p_cuEventRecord(a, s));
  ASK(p_cuEventElapsedTime(&ms, a, b)); // recorded again: pending
  ASK(p_cuEventDestroy_v2(a)); // while pending
  MUST(p_cuEventCreate(&c, 0));
  say("handle of an event destroyed while pending reused = %d", a == c);
  ASK(p_cuEventElapsedTime(&ms, c, c));
  MUST(p_cuStreamSynchronize(s));
  MUST(p_cuEventRecord(c, s));
  MUST(p_cuStreamSynchronize(s));
  MUST(p_cuEventDestroy_v2(c));
  MUST(p_cuEventCreate(&a, 0));
  say("handle of a complete event reused = %d", a == c);
  ASK(p_cuEventElapsedTime(&ms, a, a));
  MUST(p_cuEventDestroy_v2(a));
  MUST(p_cuEventCreate(&c, 0));
  say("handle of an event never recorded reused = %d", a == c);
  MUST(p_cuEventDestroy_v2(c));
  MUST(p_cuEventDestroy_v2(b));
  MUST(p_cuEventRecord(e2, t));
  MUST(p_cuStreamSynchronize(t));
  MUST(p_cuLaunchHostFunc(s, on_host, NULL));
  MUST(p_cuStreamSynchronize(s));
  say("inside a host function: %s", inside);
  MUST(p_cuStreamSynchronize(t));
}

// Captures -----------------------------------------------------------------------

// SPOIL asks what a call does to a capture on s.
#define SPOIL(mode, call)                                                                        \
  do {                                                                                           \
    MUST(p_cuStreamBeginCapture_v2(s, mode));                                                    \
    CUresult r_ = (call);                                                                        \
    int st_ = -1;                                                                                \
    CUresult q_ = p_cuStreamIsCapturing(s, &st_);                                                \
    CUgraph g_ = NULL;                                                                           \
    CUresult end_ = p_cuStreamEndCapture(s, &g_);                                                \
    say("%s = %d, status %d (%d), end %d", #call, (int)r_, st_, q_, end_);                       \
    if (g_ != NULL)                                                                              \
      p_cuGraphDestroy(g_);                                                                      \
  } while (0)

static CUdeviceptr made_ptr, spare;
static CUevent made_event;
static CUstream made_stream;
static CUmodule made_module;
static CUmemoryPool made_pool;
static CUgraphExec some_exec, made_exec;
static CUgraph some_graph;
static char host_buffer[8192];
static void *made_host;

static void capture_same_thread(int mode, const char *name) {
  section = name;
  CUfunction f;
  CUcontext c;
  CUdevice d;
  CUmemGenericAllocationHandle h;
  CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
  MUST(p_cuEventRecord(e, t));
  MUST(p_cuStreamSynchronize(t));
  SPOIL(mode, p_cuEventQuery(e));
  SPOIL(mode, p_cuEventSynchronize(e));
  SPOIL(mode, p_cuEventElapsedTime(&ms, e, e));
  SPOIL(mode, p_cuEventRecord(e, t));
  MUST(p_cuCtxSynchronize());
  SPOIL(mode, p_cuEventCreate(&made_event, 0));
  SPOIL(mode, p_cuEventDestroy_v2(made_event));
  SPOIL(mode, p_cuStreamQuery(t));
  SPOIL(mode, p_cuStreamSynchronize(t));
  SPOIL(mode, p_cuStreamQuery(s));
  SPOIL(mode, p_cuStreamSynchronize(s));
  SPOIL(mode, p_cuStreamGetId(s, &id));
  SPOIL(mode, p_cuStreamGetId(t, &id));
  SPOIL(mode, p_cuStreamGetCtx(s, &c));
  SPOIL(mode, p_cuStreamGetFlags(s, &u));
  SPOIL(mode, p_cuStreamGetPriority(s, &v));
  SPOIL(mode, p_cuStreamCreate(&made_stream, 0));
  SPOIL(mode, p_cuStreamDestroy_v2(made_stream));
  SPOIL(mode, p_cuStreamBeginCapture_v2(s, mode));
  SPOIL(mode, p_cuStreamWaitEvent(t, e, 0));
  SPOIL(mode, p_cuCtxSynchronize());
  SPOIL(mode, p_cuCtxGetDevice(&d));
  SPOIL(mode, p_cuMemGetInfo_v2(&n, &n));
  made_ptr = 0;
  SPOIL(mode, p_cuMemAlloc_v2(&made_ptr, 100));
  if (made_ptr == 0)
    MUST(p_cuMemAlloc_v2(&made_ptr, 100));
  SPOIL(mode, p_cuMemFree_v2(made_ptr));
  SPOIL(mode, p_cuMemFree_v2(0));
  SPOIL(mode, p_cuMemAllocManaged(&made_ptr, 100, 1));
  made_host = NULL;
  SPOIL(mode, p_cuMemHostAlloc(&made_host, 100, 0));
  if (made_host == NULL)
    MUST(p_cuMemHostAlloc(&made_host, 100, 0));
  SPOIL(mode, p_cuMemFreeHost(made_host));
  SPOIL(mode, p_cuMemHostRegister_v2(host_buffer, 4096, 0));
  p_cuMemHostUnregister(host_buffer);
  MUST(p_cuMemHostRegister_v2(host_buffer, 4096, 0));
  SPOIL(mode, p_cuMemHostUnregister(host_buffer));
  p_cuMemHostUnregister(host_buffer);
  SPOIL(mode, p_cuMemcpyHtoD_v2(mem, host_buffer, 16));
  SPOIL(mode, p_cuMemcpyDtoH_v2(host_buffer, mem, 16));
  SPOIL(mode, p_cuMemcpyDtoD_v2(mem, mem + 64, 16));
  SPOIL(mode, p_cuMemcpyHtoDAsync_v2(mem, host_buffer, 16, t));
  SPOIL(mode, p_cuMemcpyHtoDAsync_v2(mem, host_buffer, 16, s));
  SPOIL(mode, p_cuMemcpyDtoHAsync_v2(host_buffer, mem, 16, s));
  SPOIL(mode, p_cuMemsetD8_v2(mem, 0, 16));
  SPOIL(mode, p_cuMemsetD8Async(mem, 0, 16, s));
  SPOIL(mode, p_cuMemsetD8Async(mem, 0, 16, t));
  SPOIL(mode, launch(NULL));
  SPOIL(mode, launch(t));
  SPOIL(mode, launch(s));
  MUST(p_cuCtxSynchronize());
  SPOIL(mode, p_cuMemGetAddressRange_v2(&made_ptr, &n, mem));
  SPOIL(mode, p_cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mem));
  made_module = NULL;
  SPOIL(mode, p_cuModuleLoadData(&made_module, ptx));
  if (made_module == NULL)
    MUST(p_cuModuleLoadData(&made_module, ptx));
  SPOIL(mode, p_cuModuleUnload(made_module));
  SPOIL(mode, p_cuModuleGetFunction(&f, mod, "odd"));
  SPOIL(mode, p_cuModuleGetGlobal_v2(&made_ptr, &n, mod, "lt_version"));
  SPOIL(mode, p_cuFuncGetAttribute(&v, 0, f_odd));
  SPOIL(mode, p_cuGraphInstantiateWithFlags(&made_exec, some_graph, 0));
  SPOIL(mode, p_cuGraphLaunch(some_exec, t));
  SPOIL(mode, p_cuGraphLaunch(some_exec, s));
  SPOIL(mode, p_cuGraphUpload(some_exec, t));
  SPOIL(mode, p_cuStreamAddCallback(s, (CUstreamCallback)(uintptr_t)on_host, NULL, 0));
  MUST(p_cuCtxSynchronize());
  made_ptr = 0;
  SPOIL(mode, p_cuMemAllocAsync(&made_ptr, 100, t)); // the pool is empty
  if (made_ptr != 0)
    MUST(p_cuMemFreeAsync(made_ptr, t));
  MUST(p_cuMemAllocAsync(&spare, 100, t));
  MUST(p_cuCtxSynchronize());
  made_ptr = 0;
  SPOIL(mode, p_cuMemAllocAsync(&made_ptr, 100, t)); // the pool has some
  if (made_ptr != 0)
    SPOIL(mode, p_cuMemFreeAsync(made_ptr, t));
  else
    SPOIL(mode, p_cuMemFreeAsync(spare, t));
  CUmemPoolProps props = {.allocType = 1, .location = {1, 0}};
  made_pool = NULL;
  SPOIL(mode, p_cuMemPoolCreate(&made_pool, &props));
  if (made_pool != NULL)
    SPOIL(mode, p_cuMemPoolDestroy(made_pool));
  h = 0;
  SPOIL(mode, p_cuMemCreate(&h, 2 << 20, &prop, 0));
  if (h != 0)
    SPOIL(mode, p_cuMemRelease(h));
  made_ptr = 0;
  SPOIL(mode, p_cuMemAddressReserve(&made_ptr, 2 << 20, 0, 0, 0));
  if (made_ptr != 0)
    SPOIL(mode, p_cuMemAddressFree(made_ptr, 2 << 20));
  MUST(p_cuCtxSynchronize());
}

static int thread_mode;
static CUresult (*thread_call)(void);
static CUresult thread_result;

static void *thread_main(void *arg) {
  (void)arg;
  p_cuCtxSetCurrent(ctx);
  int mode = thread_mode;
  p_cuThreadExchangeStreamCaptureMode(&mode);
  thread_result = thread_call();
  return NULL;
}

static CUresult in_thread(int mode, CUresult (*call)(void)) {
  thread_mode = mode;
  thread_call = call;
  pthread_t th;
  pthread_create(&th, NULL, thread_main, NULL);
  pthread_join(th, NULL);
  return thread_result;
}

static CUresult call_query(void) { return p_cuEventQuery(e); }
static CUresult call_elapsed(void) { return p_cuEventElapsedTime(&ms, e, e); }
static CUresult call_record(void) { return p_cuEventRecord(e, t); }
static CUresult call_sync(void) { return p_cuStreamSynchronize(t); }
static CUresult call_event_sync(void) { return p_cuEventSynchronize(e); }
static CUresult call_ctx_sync(void) { return p_cuCtxSynchronize(); }
static CUresult call_free(void) { return p_cuMemFree_v2(0); }
static CUresult call_copy(void) { return p_cuMemcpyHtoD_v2(mem, host_buffer, 16); }
static CUresult call_create(void) { return p_cuEventCreate(&made_event, 0); }
static CUresult call_alloc(void) { return p_cuMemAlloc_v2(&made_ptr, 100); }
static CUresult call_id(void) { return p_cuStreamGetId(t, &id); }
static CUresult call_launch(void) { return launch(t); }
static CUresult call_launch_s(void) { return launch(s); }
static CUresult call_sync_s(void) { return p_cuStreamSynchronize(s); }
static CUgraph thread_graph;
static CUresult call_end(void) { return p_cuStreamEndCapture(s, &thread_graph); }

static void capture_other_thread(int mode, int other, const char *name) {
  section = name;
  MUST(p_cuEventRecord(e, t));
  MUST(p_cuStreamSynchronize(t));
  SPOIL(mode, in_thread(other, call_query));
  SPOIL(mode, in_thread(other, call_elapsed));
  SPOIL(mode, in_thread(other, call_record));
  SPOIL(mode, in_thread(other, call_sync));
  SPOIL(mode, in_thread(other, call_alloc));
  SPOIL(mode, in_thread(other, call_event_sync));
  SPOIL(mode, in_thread(other, call_ctx_sync));
  SPOIL(mode, in_thread(other, call_free));
  SPOIL(mode, in_thread(other, call_copy));
  SPOIL(mode, in_thread(other, call_create));
  SPOIL(mode, in_thread(other, call_id));
  SPOIL(mode, in_thread(other, call_launch));
  SPOIL(mode, in_thread(other, call_launch_s));
  SPOIL(mode, in_thread(other, call_sync_s));
  MUST(p_cuCtxSynchronize());
}

static void capture_global(void) { capture_same_thread(CU_STREAM_CAPTURE_MODE_GLOBAL, "capture GLOBAL"); }
static void capture_relaxed(void) { capture_same_thread(CU_STREAM_CAPTURE_MODE_RELAXED, "capture RELAXED"); }
static void capture_threads(void) {
  capture_other_thread(0, 0, "capture GLOBAL, thread GLOBAL");
  capture_other_thread(0, 1, "capture GLOBAL, thread THREAD_LOCAL");
  capture_other_thread(0, 2, "capture GLOBAL, thread RELAXED");
  capture_other_thread(1, 0, "capture THREAD_LOCAL, thread GLOBAL");
}

static void captures(void) {
  section = "captures";
  CUgraph g = NULL;
  CUevent a, b, fork, join;
  MUST(p_cuEventCreate(&a, 0));
  MUST(p_cuEventCreate(&b, 0));
  MUST(p_cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  MUST(p_cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  ASK(p_cuStreamEndCapture(s, &g));
  ASK(p_cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASK(p_cuStreamBeginCapture_v2(s, 3));
  v = 3;
  ASK(p_cuThreadExchangeStreamCaptureMode(&v));
  ASK(p_cuThreadExchangeStreamCaptureMode(&v));
  say("mode was %d", v);
  // Events of a capture.
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuEventRecord(a, s));
  ASK(launch(s));
  ASK(p_cuEventRecord(b, s));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuStreamEndCapture(s, &g));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuEventQuery(a));
  ASK(p_cuEventSynchronize(a));
  ASK(p_cuStreamWaitEvent(t, a, 0));
  ASK(p_cuStreamIsCapturing(t, &v));
  say("status = %d", v);
  n = 0;
  MUST(p_cuGraphGetNodes(g, NULL, &n));
  say("nodes = %zu", n);
  MUST(p_cuGraphDestroy(g));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuEventQuery(a));
  ASK(p_cuEventRecord(a, t));
  ASK(p_cuEventSynchronize(a));
  ASK(p_cuEventElapsedTime(&ms, a, a));
  // Asking a captured event while the capture goes on.
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (p_cuEventRecord(a, s), p_cuEventQuery(a)));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (p_cuEventRecord(a, s), p_cuEventSynchronize(a)));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (p_cuEventRecord(a, s), p_cuEventElapsedTime(&ms, a, a)));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (p_cuEventRecord(a, s), p_cuEventDestroy_v2(a)));
  MUST(p_cuEventCreate(&a, 0));
  // Forks.
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, p_cuStreamWaitEvent(s, b, 0)); // b: of an earlier capture
  MUST(p_cuEventDestroy_v2(b));
  MUST(p_cuEventCreate(&b, 0));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, p_cuStreamWaitEvent(s, b, 0)); // never recorded
  MUST(spin(t, 5));
  MUST(p_cuEventRecord(b, t));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, p_cuStreamWaitEvent(s, b, 0)); // pending elsewhere
  MUST(p_cuStreamSynchronize(t));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, p_cuStreamWaitEvent(s, b, 0)); // complete elsewhere
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, p_cuStreamWaitEvent(s, b, CU_EVENT_WAIT_EXTERNAL));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED,
        (launch(s), p_cuEventRecord(fork, s), p_cuStreamWaitEvent(t, fork, 0), launch(t)));
  ASK(p_cuStreamIsCapturing(t, &v));
  say("status of the forked stream = %d", v);
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED,
        (launch(s), p_cuEventRecord(fork, s), p_cuStreamWaitEvent(t, fork, 0)));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (launch(s), p_cuEventRecord(fork, s), p_cuStreamWaitEvent(t, fork, 0), launch(t),
                                         p_cuEventRecord(join, t), p_cuStreamWaitEvent(s, join, 0)));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (launch(s), p_cuEventRecord(fork, s), p_cuStreamWaitEvent(t, fork, 0),
                                         p_cuStreamEndCapture(t, &g)));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, (p_cuEventRecord(fork, s), p_cuStreamWaitEvent(NULL, fork, 0)));
  SPOIL(CU_STREAM_CAPTURE_MODE_GLOBAL, in_thread(0, call_end));
  SPOIL(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, in_thread(0, call_end));
  SPOIL(CU_STREAM_CAPTURE_MODE_RELAXED, in_thread(0, call_end));
  // After it is spoilt.
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASK(p_cuEventQuery(e));
  ASK(launch(s));
  ASK(p_cuEventRecord(a, s));
  ASK(p_cuEventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL));
  ASK(p_cuStreamWaitEvent(s, e, 0));
  ASK(p_cuStreamGetId(s, &id));
  ASK(p_cuEventQuery(e));
  ASK(p_cuMemsetD8Async(mem, 0, 4, s));
  ASK(p_cuStreamIsCapturing(s, &v));
  g = (CUgraph)1;
  ASK(p_cuStreamEndCapture(s, &g));
  say("graph is NULL = %d", g == NULL);
  ASK(launch(s));
  // Blocking streams and the legacy stream.
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuStreamIsCapturing(NULL, &v));
  ASK(p_cuStreamIsCapturing(blocking, &v));
  say("status = %d", v);
  ASK(launch(NULL));
  ASK(p_cuStreamIsCapturing(blocking, &v));
  say("status = %d", v);
  ASK(p_cuStreamEndCapture(blocking, &g));
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuStreamSynchronize(NULL));
  ASK(p_cuStreamEndCapture(blocking, &g));
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuStreamQuery(NULL));
  ASK(p_cuStreamEndCapture(blocking, &g));
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuEventRecord(a, NULL));
  ASK(p_cuStreamEndCapture(blocking, &g));
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuStreamGetId(NULL, &id));
  ASK(p_cuStreamEndCapture(blocking, &g));
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuMemcpyHtoD_v2(mem, host_buffer, 4));
  ASK(p_cuStreamEndCapture(blocking, &g));
  MUST(p_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuCtxSynchronize());
  ASK(p_cuStreamEndCapture(blocking, &g));
  // The per-thread default stream, and a stream destroyed in mid-capture.
  ASK(p_cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASK(p_cuStreamEndCapture(CU_STREAM_PER_THREAD, &g));
  CUstream st;
  MUST(p_cuStreamCreate(&st, CU_STREAM_NON_BLOCKING));
  MUST(p_cuStreamBeginCapture_v2(st, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASK(p_cuStreamDestroy_v2(st));
  ASK(p_cuEventQuery(e)); // is anything still capturing?
  // Beginning on a stream with work in flight.
  MUST(spin(s, 10));
  ASK(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASK(launch(s));
  ASK(p_cuStreamEndCapture(s, &g));
  MUST(p_cuGraphDestroy(g));
  MUST(p_cuStreamSynchronize(s));
}

static void graphs(void) {
  section = "graphs";
  CUevent a, b, w[3];
  CUgraph g;
  CUgraphExec x;
  CUgraphNode nodes[8];
  MUST(p_cuEventCreate(&a, 0));
  MUST(p_cuEventCreate(&b, 0));
  for (int i = 0; i < 3; i++)
    MUST(p_cuEventCreate(&w[i], 0));
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASK(p_cuEventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL));
  ASK(spin(s, 20));
  ASK(p_cuEventRecordWithFlags(b, s, CU_EVENT_RECORD_EXTERNAL));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  int status;
  uint64_t cid;
  CUgraph cg;
  const CUgraphNode *deps;
  ASK(p_cuStreamGetCaptureInfo_v2(s, &status, &cid, &cg, &deps, &n));
  say("dependencies = %zu", n);
  n = 0;
  ASK(p_cuGraphGetNodes(cg, NULL, &n));
  say("nodes so far = %zu", n);
  ASK(p_cuStreamEndCapture(s, &g));
  say("same graph = %d", g == cg);
  n = 8;
  ASK(p_cuGraphGetNodes(g, nodes, &n));
  say("nodes = %zu", n);
  for (size_t i = 0; i < n; i++) {
    MUST(p_cuGraphNodeGetType(nodes[i], &v));
    say("type of node %zu = %d", i, v);
  }
  CUevent got;
  ASK(p_cuGraphEventRecordNodeGetEvent(nodes[0], &got));
  say("its event = %d", got == a);
  ASK(p_cuGraphEventRecordNodeGetEvent(nodes[1], &got));
  ASK(p_cuGraphInstantiateWithFlags(&x, g, 0));
  ASK(p_cuEventQuery(a));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuGraphLaunch(x, s));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuEventQuery(b));
  MUST(p_cuStreamSynchronize(s));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  say("about 20 ms = %d", ms > 15 && ms < 40);
  MUST(spin(s, 20));
  ASK(p_cuGraphLaunch(x, s));
  ASK(p_cuEventQuery(a)); // the launch is queued behind the spin
  ASK(p_cuEventElapsedTime(&ms, a, b));
  ASK(p_cuEventElapsedTime(&ms, a, a));
  MUST(p_cuStreamSynchronize(s));
  ASK(p_cuEventElapsedTime(&ms, a, b));
  // Swapping events.
  for (volatile int i = 0; i < 3; i++) {
    ASK(p_cuGraphExecEventRecordNodeSetEvent(x, nodes[0], w[i]));
    ASK(p_cuGraphLaunch(x, s));
    MUST(p_cuStreamSynchronize(s));
    say("swap %d: elapsed %d, query %d", i, p_cuEventElapsedTime(&ms, w[i], w[i]), p_cuEventQuery(w[i]));
  }
  for (volatile int i = 0; i < 4; i++) {
    CUresult set = p_cuGraphExecEventRecordNodeSetEvent(x, nodes[0], w[i % 2]);
    MUST(p_cuGraphLaunch(x, s));
    MUST(p_cuStreamSynchronize(s));
    say("swap back and forth %d: set %d, elapsed %d, to the end %d", i, set,
        p_cuEventElapsedTime(&ms, w[i % 2], w[i % 2]), p_cuEventElapsedTime(&ms, w[i % 2], b));
  }
  // Swapping while replays are in flight, read at the end.
  CUevent flight[6];
  for (int i = 0; i < 6; i++) {
    MUST(p_cuEventCreate(&flight[i], 0));
    MUST(p_cuGraphExecEventRecordNodeSetEvent(x, nodes[0], flight[i]));
    MUST(p_cuGraphLaunch(x, s));
  }
  MUST(p_cuStreamSynchronize(s));
  for (int i = 0; i < 6; i++)
    say("swap in flight %d: elapsed %d, query %d", i, p_cuEventElapsedTime(&ms, flight[i], flight[i]), p_cuEventQuery(flight[i]));
  // Both ends swapped, then a mark that was recorded before by hand.
  MUST(p_cuEventRecord(w[2], t));
  MUST(p_cuStreamSynchronize(t));
  ASK(p_cuGraphExecEventRecordNodeSetEvent(x, nodes[0], w[2]));
  ASK(p_cuGraphExecEventRecordNodeSetEvent(x, nodes[2], flight[0]));
  ASK(p_cuGraphLaunch(x, s));
  MUST(p_cuStreamSynchronize(s));
  ASK(p_cuEventElapsedTime(&ms, w[2], flight[0]));
  say("about 20 ms = %d", ms > 15 && ms < 40);
  ASK(p_cuGraphExecEventRecordNodeSetEvent(x, nodes[1], w[2]));
  ASK(p_cuGraphExecEventRecordNodeSetEvent(x, nodes[0], untimed));
  ASK(p_cuGraphLaunch(x, s));
  MUST(p_cuStreamSynchronize(s));
  ASK(p_cuEventElapsedTime(&ms, untimed, untimed));
  ASK(p_cuEventQuery(untimed));
  // Recording outside of a graph an event that a graph records.
  ASK(p_cuEventRecord(b, t));
  MUST(p_cuStreamSynchronize(t));
  ASK(p_cuEventElapsedTime(&ms, b, b));
  ASK(p_cuGraphLaunch(x, NULL));
  MUST(p_cuCtxSynchronize());
  ASK(p_cuGraphExecDestroy(x));
  ASK(p_cuEventElapsedTime(&ms, b, b));
  ASK(p_cuGraphDestroy(g));
  // Destroying an executable graph in flight.
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(spin(s, 20));
  MUST(p_cuEventRecordWithFlags(b, s, CU_EVENT_RECORD_EXTERNAL));
  MUST(p_cuStreamEndCapture(s, &g));
  MUST(p_cuGraphInstantiateWithFlags(&x, g, 0));
  MUST(p_cuGraphDestroy(g));
  MUST(p_cuGraphLaunch(x, s));
  ASK(p_cuGraphExecDestroy(x));
  ASK(p_cuEventQuery(b));
  ASK(p_cuStreamSynchronize(s));
  ASK(p_cuEventQuery(b));
  ASK(p_cuEventElapsedTime(&ms, b, b));
  // Allocations, sets, copies and host functions in a capture.
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASK(p_cuMemAllocAsync(&made_ptr, 1000, s));
  ASK(p_cuMemsetD8Async(made_ptr, 1, 1000, s));
  ASK(p_cuMemcpyDtoDAsync_v2(mem, made_ptr, 16, s));
  ASK(p_cuLaunchHostFunc(s, on_host, NULL));
  ASK(p_cuMemFreeAsync(made_ptr, s));
  MUST(p_cuStreamEndCapture(s, &g));
  n = 8;
  MUST(p_cuGraphGetNodes(g, nodes, &n));
  for (size_t i = 0; i < n; i++) {
    MUST(p_cuGraphNodeGetType(nodes[i], &v));
    say("type of node %zu = %d", i, v);
  }
  n = 0;
  ASK(p_cuGraphGetEdges(g, NULL, NULL, &n));
  say("edges = %zu", n);
  MUST(p_cuGraphDestroy(g));
  ASK(p_cuGraphInstantiateWithFlags(&x, NULL, 0));
  CUDA_KERNEL_NODE_PARAMS kp;
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(spin(s, 3));
  MUST(p_cuStreamEndCapture(s, &g));
  n = 1;
  MUST(p_cuGraphGetNodes(g, nodes, &n));
  ASK(p_cuGraphKernelNodeGetParams_v2(nodes[0], &kp));
  say("function = %d, block %u, parameter = %llu", kp.func == f_spin, kp.blockDimX,
      kp.kernelParams != NULL ? *(unsigned long long *)kp.kernelParams[0] : 0);
  MUST(p_cuGraphDestroy(g));
}

// Memory ---------------------------------------------------------------------------

static size_t mem_free(void) {
  size_t f, total;
  MUST(p_cuMemGetInfo_v2(&f, &total));
  return f;
}

#define MIB ((size_t)1 << 20)

static bool blocks(CUresult (*call)(void)) {
  MUST(spin(s, 40));
  int64_t t0 = now_ns();
  CUresult r = call();
  bool b = now_ns() - t0 > 20000000;
  if (r != CUDA_SUCCESS)
    say("(failed: %d)", r);
  MUST(p_cuStreamSynchronize(s));
  return b;
}
static void *spare_host;
static CUmodule spare_module;
static CUresult do_free(void) { return p_cuMemFree_v2(spare); }
static CUresult do_alloc(void) { return p_cuMemAlloc_v2(&spare, 5 * MIB); }
static CUresult do_free_host(void) { return p_cuMemFreeHost(spare_host); }
static CUresult do_alloc_host(void) { return p_cuMemHostAlloc(&spare_host, 4096, 0); }
static CUresult do_unload(void) { return p_cuModuleUnload(spare_module); }
static CUresult do_load(void) { return p_cuModuleLoadData(&spare_module, ptx); }
static CUresult do_register(void) { return p_cuMemHostRegister_v2(host_buffer, 4096, 0); }
static CUresult do_unregister(void) { return p_cuMemHostUnregister(host_buffer); }
static CUresult do_dtoh(void) { return p_cuMemcpyDtoHAsync_v2(host_buffer, mem, 64, s); }
static CUresult do_htod(void) { return p_cuMemcpyHtoDAsync_v2(mem, host_buffer, 64, s); }
static CUresult do_dtoh_pinned(void) { return p_cuMemcpyDtoHAsync_v2(spare_host, mem, 64, s); }
static CUresult do_set(void) { return p_cuMemsetD8_v2(mem, 0, 64); }
static CUresult do_dtod(void) { return p_cuMemcpyDtoD_v2(mem, mem + 64, 64); }
static CUresult do_event_destroy(void) { return p_cuEventDestroy_v2(made_event); }
static CUresult do_free_async(void) { return p_cuMemFreeAsync(spare, t); }

static void memory(void) {
  section = "memory";
  CUdeviceptr a, b, c, base;
  size_t size;
  void *h;
  MUST(p_cuMemAlloc_v2(&a, 1000));
  MUST(p_cuMemAlloc_v2(&b, 1000));
  say("two of 1000 bytes lie %lld apart", (long long)(b - a));
  MUST(p_cuMemAlloc_v2(&c, 1));
  say("one of 1 byte comes %lld behind", (long long)(c - b));
  MUST(p_cuMemFree_v2(c));
  MUST(p_cuMemAlloc_v2(&c, 513));
  say("one of 513 bytes comes %lld behind", (long long)(c - b));
  MUST(p_cuMemFree_v2(c));
  ASK(p_cuMemGetAddressRange_v2(&base, &size, a + 999));
  say("base = %d, size = %zu", base == a, size);
  ASK(p_cuMemGetAddressRange_v2(&base, &size, a + 1000));
  ASK(p_cuMemGetAddressRange_v2(&base, &size, 16));
  ASK(p_cuMemFree_v2(a + 8));
  ASK(p_cuMemFree_v2(a));
  ASK(p_cuMemFree_v2(a));
  ASK(p_cuMemFree_v2(0));
  ASK(p_cuMemFree_v2(16));
  MUST(p_cuMemAlloc_v2(&c, 1000));
  say("freed address is given out again = %d", c == a);
  MUST(p_cuMemFree_v2(c));
  MUST(p_cuMemFree_v2(b));
  ASK(p_cuMemAlloc_v2(&a, 0));
  ASK(p_cuMemAlloc_v2(NULL, 10));
  ASK(p_cuMemAlloc_v2(&a, (size_t)1 << 40));
  ASK(p_cuMemAlloc_v2(&a, SIZE_MAX));
  size_t start = mem_free();
  MUST(p_cuMemAlloc_v2(&a, 2 * MIB));
  say("2 MiB take %zu MiB", (start - mem_free()) / MIB);
  MUST(p_cuMemFree_v2(a));
  MUST(p_cuMemAlloc_v2(&a, 2 * MIB + 1));
  say("2 MiB + 1 take %zu MiB", (start - mem_free()) / MIB);
  MUST(p_cuMemFree_v2(a));
  say("and all comes back = %d", mem_free() == start);
  MUST(p_cuMemAlloc_v2(&a, 2 * MIB - 1));
  MUST(p_cuMemAlloc_v2(&b, 2 * MIB - 1));
  say("two of 2 MiB - 1 take %zu MiB", (start - mem_free()) / MIB);
  MUST(p_cuMemFree_v2(a));
  MUST(p_cuMemFree_v2(b));
  say("and all comes back = %d", mem_free() == start);
  MUST(p_cuMemAllocPitch_v2(&a, &size, 700, 10, 4));
  say("pitch for 700 = %zu", size);
  ASK(p_cuMemGetAddressRange_v2(&base, &size, a));
  say("size = %zu", size);
  MUST(p_cuMemFree_v2(a));
  ASK(p_cuMemAllocPitch_v2(&a, &size, 700, 10, 3));
  ASK(p_cuMemAllocPitch_v2(&a, &size, 0, 10, 4));
  ASK(p_cuMemAllocManaged(&a, 100, 0));
  ASK(p_cuMemAllocManaged(&a, 100, CU_MEM_ATTACH_SINGLE));
  ASK(p_cuMemAllocManaged(&a, 0, CU_MEM_ATTACH_GLOBAL));
  ASK(p_cuMemAllocManaged(&a, 100, CU_MEM_ATTACH_GLOBAL));
  ASK(p_cuMemGetAddressRange_v2(&base, &size, a));
  say("size = %zu", size);
  ASK(p_cuMemFree_v2(a));
  say("and all comes back = %d", mem_free() == start);

  ASK(p_cuMemHostAlloc(&h, 0, 0));
  ASK(p_cuMemHostAlloc(&h, 100, 16));
  ASK(p_cuMemHostAlloc(&h, 100, 1));
  ASK(p_cuMemHostGetFlags(&u, h));
  say("flags = %u", u);
  ASK(p_cuMemHostGetDevicePointer_v2(&a, h, 0));
  say("same address = %d", a == (CUdeviceptr)(uintptr_t)h);
  ASK(p_cuMemGetAddressRange_v2(&base, &size, a));
  unsigned type = 0;
  ASK(p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
  say("type = %u", type);
  ASK(p_cuMemFree_v2(a));
  ASK(p_cuMemFreeHost(h));
  ASK(p_cuMemFreeHost(h));
  ASK(p_cuMemFreeHost(NULL));
  ASK(p_cuMemFreeHost((void *)(uintptr_t)mem));
  ASK(p_cuMemHostRegister_v2(host_buffer, 4096, 0));
  ASK(p_cuMemHostRegister_v2(host_buffer, 4096, 0));
  ASK(p_cuMemHostGetDevicePointer_v2(&a, host_buffer, 0));
  ASK(p_cuMemHostUnregister(host_buffer));
  ASK(p_cuMemHostUnregister(host_buffer));
  ASK(p_cuMemHostGetDevicePointer_v2(&a, host_buffer, 0));
  ASK(p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mem));
  say("type = %u", type);
  ASK(p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host_buffer));
  ASK(p_cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 16));
  int ordinal = 7;
  void *data[] = {&type, &ordinal};
  int attribs[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  ASK(p_cuPointerGetAttributes(2, attribs, data, (CUdeviceptr)(uintptr_t)host_buffer));
  say("type = %u, ordinal = %d", type, ordinal);

  // Copies beyond the end of what is there.
  MUST(p_cuMemAlloc_v2(&a, 4 * MIB));
  ASK(p_cuMemcpyHtoD_v2(a + 4 * MIB - 4, host_buffer, 16));
  ASK(p_cuMemcpyDtoH_v2(host_buffer, 16, 16));
  ASK(p_cuMemsetD8_v2(a + 4 * MIB - 4, 0, 16));
  ASK(p_cuMemsetD32_v2(a + 2, 0, 4));
  ASK(p_cuMemsetD8_v2(a, 0, 0));
  ASK(p_cuMemcpyHtoD_v2(a, host_buffer, 0));
  ASK(p_cuMemcpyHtoD_v2(a, NULL, 16));
  ASK(p_cuMemcpyDtoDAsync_v2(16, a, 16, s));
  ASK(p_cuMemcpy((CUdeviceptr)(uintptr_t)host_buffer, a, 16));
  ASK(p_cuMemcpy((CUdeviceptr)(uintptr_t)host_buffer, (CUdeviceptr)(uintptr_t)host_buffer + 64, 16));
  MUST(p_cuMemFree_v2(a));
  MUST(p_cuCtxSynchronize());
}

static void waits(void) {
  section = "what waits for the device";
  MUST(p_cuMemAlloc_v2(&spare, 5 * MIB));
  say("cuMemFree = %d", blocks(do_free));
  say("cuMemAlloc = %d", blocks(do_alloc));
  MUST(p_cuMemFree_v2(spare));
  MUST(p_cuMemAlloc_v2(&spare, 100));
  say("cuMemFree of little = %d", blocks(do_free));
  say("cuMemHostAlloc = %d", blocks(do_alloc_host));
  say("cuMemcpyDtoHAsync to pinned = %d", blocks(do_dtoh_pinned));
  say("cuMemFreeHost = %d", blocks(do_free_host));
  say("cuMemcpyDtoHAsync to pageable = %d", blocks(do_dtoh));
  say("cuMemcpyHtoDAsync from pageable = %d", blocks(do_htod));
  say("cuMemsetD8 beside it = %d", blocks(do_set));
  say("cuMemcpyDtoD beside it = %d", blocks(do_dtod));
  say("cuModuleLoadData = %d", blocks(do_load));
  say("cuModuleUnload = %d", blocks(do_unload));
  say("cuMemHostRegister = %d", blocks(do_register));
  say("cuMemHostUnregister = %d", blocks(do_unregister));
  MUST(p_cuEventCreate(&made_event, 0));
  MUST(spin(s, 40));
  MUST(p_cuEventRecord(made_event, s));
  say("cuEventDestroy = %d", blocks(do_event_destroy));
  MUST(p_cuMemAllocAsync(&spare, 100, t));
  say("cuMemFreeAsync = %d", blocks(do_free_async));
  MUST(p_cuMemAllocAsync(&spare, 100, t));
  MUST(p_cuStreamSynchronize(t));
  say("cuMemFree of pool memory = %d", blocks(do_free));
}

static void pools(void) {
  section = "pools";
  CUmemoryPool def, cur, own;
  CUdeviceptr a, b, base;
  uint64_t x;
  size_t size, start = mem_free();
  ASK(p_cuDeviceGetDefaultMemPool(&def, 0));
  ASK(p_cuDeviceGetMemPool(&cur, 0));
  say("current is default = %d", cur == def);
  MUST(p_cuStreamSynchronize(t));
  MUST(p_cuMemPoolTrimTo(def, 0));
  start = mem_free();
  ASK(p_cuMemAllocAsync(&a, 0, t));
  ASK(p_cuMemAllocAsync(&a, 1000, t));
  ASK(p_cuMemAllocAsync(&b, 1000, t));
  say("apart %lld", (long long)(b - a));
  MUST(p_cuStreamSynchronize(t));
  say("took %zu MiB", (start - mem_free()) / MIB);
  MUST(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &x));
  say("reserved = %llu", (unsigned long long)x);
  MUST(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &x));
  say("used = %llu", (unsigned long long)x);
  MUST(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &x));
  say("threshold = %llu", (unsigned long long)x);
  ASK(p_cuMemGetAddressRange_v2(&base, &size, a));
  say("base = %d, size = %zu", base == a, size);
  ASK(p_cuMemFreeAsync(a, t));
  ASK(p_cuMemFreeAsync(a, t));
  ASK(p_cuMemFree_v2(b));
  ASK(p_cuStreamSynchronize(t));
  MUST(p_cuMemPoolGetAttribute(def, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &x));
  say("reserved after freeing and synchronising = %llu", (unsigned long long)x);
  MUST(p_cuMemAlloc_v2(&a, 1000));
  ASK(p_cuMemFreeAsync(a, t));
  MUST(p_cuMemAlloc_v2(&a, 1000));
  ASK(p_cuMemFree_v2(a));
  CUmemPoolProps props = {.allocType = 1, .location = {1, 0}};
  ASK(p_cuMemPoolCreate(&own, &props));
  ASK(p_cuMemAllocFromPoolAsync(&a, 1000, own, t));
  ASK(p_cuMemPoolDestroy(own));
  ASK(p_cuMemFreeAsync(a, t));
  ASK(p_cuMemPoolDestroy(def));
  props.allocType = 0;
  ASK(p_cuMemPoolCreate(&own, &props));
  MUST(p_cuCtxSynchronize());
}

static void vmm(void) {
  section = "virtual memory";
  CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
  CUmemGenericAllocationHandle h, h2;
  CUmemAccessDesc acc = {{1, 0}, 3};
  CUdeviceptr va, base;
  size_t size;
  MUST(p_cuMemGetAllocationGranularity(&size, &prop, 0));
  say("granularity = %zu", size);
  ASK(p_cuMemAddressReserve(&va, 1000, 0, 0, 0));
  ASK(p_cuMemAddressReserve(&va, 8 * MIB, 3, 0, 0));
  MUST(p_cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0));
  ASK(p_cuMemCreate(&h, 1000, &prop, 0));
  ASK(p_cuMemCreate(&h, 2 * MIB, &prop, 0));
  ASK(p_cuMemMap(va, 1 * MIB, 0, h, 0));
  ASK(p_cuMemMap(va, 2 * MIB, 0, h, 0));
  ASK(p_cuMemMap(va, 2 * MIB, 0, h, 0));
  ASK(p_cuMemMap(va + 4 * MIB, 2 * MIB, 0, h, 0));
  ASK(p_cuMemMap(va + 8 * MIB, 2 * MIB, 0, h, 0));
  ASK(p_cuMemSetAccess(va, 8 * MIB, &acc, 1));
  ASK(p_cuMemSetAccess(va, 2 * MIB, &acc, 1));
  ASK(p_cuMemSetAccess(va + 4 * MIB, 2 * MIB, &acc, 1));
  ASK(p_cuMemsetD8_v2(va, 1, 16));
  ASK(p_cuMemGetAddressRange_v2(&base, &size, va + 100));
  say("base = %d, size = %zu", base == va, size);
  ASK(p_cuMemRetainAllocationHandle(&h2, (void *)(uintptr_t)(va + 100)));
  say("same handle = %d", h == h2);
  ASK(p_cuMemRelease(h2));
  ASK(p_cuMemRelease(h));
  ASK(p_cuMemRelease(h));
  ASK(p_cuMemAddressFree(va, 8 * MIB));
  ASK(p_cuMemFree_v2(va));
  ASK(p_cuMemUnmap(va, 1 * MIB));
  ASK(p_cuMemUnmap(va, 2 * MIB));
  ASK(p_cuMemUnmap(va, 2 * MIB));
  ASK(p_cuMemUnmap(va + 4 * MIB, 2 * MIB));
  ASK(p_cuMemAddressFree(va, 2 * MIB));
  ASK(p_cuMemAddressFree(va, 8 * MIB));
  ASK(p_cuMemAddressFree(va, 8 * MIB));
}

// Modules and launches -----------------------------------------------------------------

static void modules(void) {
  section = "modules";
  CUfunction f;
  CUmodule m;
  CUdeviceptr g;
  size_t off, size;
  const char *name;
  ASK(p_cuModuleGetFunction(&f, mod, "no_such"));
  ASK(p_cuModuleGetGlobal_v2(&g, &size, mod, "no_such"));
  ASK(p_cuModuleGetGlobal_v2(&g, &size, mod, "lt_version"));
  say("size = %zu", size);
  ASK(p_cuMemGetAddressRange_v2(&g, &size, g));
  ASK(p_cuMemFree_v2(g));
  for (size_t i = 0; i < 6; i++) {
    off = size = 0;
    CUresult r = p_cuFuncGetParamInfo(f_odd, i, &off, &size);
    say("parameter %zu = %d, offset %zu, size %zu", i, r, off, size);
  }
  ASK(p_cuFuncGetParamInfo(f_nothing, 0, &off, &size));
  ASK(p_cuFuncGetParamInfo(f_odd, 0, &off, NULL));
  ASK(p_cuFuncGetParamInfo(f_odd, 0, NULL, &size));
  ASK(p_cuFuncGetName(&name, f_odd));
  say("name = %s", name);
  ASK(p_cuFuncGetModule(&m, f_odd));
  say("module = %d", m == mod);
  ASK(p_cuModuleGetFunctionCount(&u, mod));
  say("functions = %u", u);
  ASK(p_cuModuleGetFunction(&f, mod, "odd"));
  say("same function = %d", f == f_odd);
  ASK(p_cuModuleUnload(NULL));
  static const char *const broken[] = {
      "",
      "hello",
      ".version 7.0\n",
      ".version 99.0\n.target sm_80\n.address_size 64\n",
      ".version 8.8\n.target sm_120\n.address_size 64\n",
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u64 a",
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u64 a)\n{ ret;",
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param a)\n{ ret; }",
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f(){ret;}\n.visible .entry f(){ret;}\n",
      ".version 7.0\n.target sm_80\n.address_size 64\n}\n",
      ".version 7.0\n.target sm_80\n.address_size 64\n.global .u32 x[2] = {1, 2, 3};",
      ".version 7.0\n.target sm_80\n.address_size 64\n/* no end",
      ".version 7.0\n.target sm_80\n.address_size 64\n",
      ".version 7.0\n.target sm_80\n",
  };
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
    char log[4096] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUresult r = p_cuModuleLoadDataEx(&m, broken[i], 2, options, values);
    fprintf(stderr, "text %zu: size %zu log %s\n", i, (size_t)values[1], log);
    say("text %zu = %d, says something = %d", i, r, log[0] != '\0');
    if (r == CUDA_SUCCESS)
      p_cuModuleUnload(m);
  }
  ASK(p_cuModuleLoadData(&m, NULL));
  ASK(p_cuModuleLoad(&m, "/no/such/file"));

  CUlibrary lib, l2;
  CUkernel k, k2;
  ASK(p_cuLibraryLoadData(&lib, ptx, NULL, NULL, 0, NULL, NULL, 0));
  ASK(p_cuLibraryGetKernel(&k, lib, "no_such"));
  ASK(p_cuLibraryGetKernel(&k, lib, "nothing"));
  ASK(p_cuLibraryGetKernel(&k2, lib, "nothing"));
  say("same kernel = %d", k == k2);
  ASK(p_cuKernelGetName(&name, k));
  ASK(p_cuKernelGetLibrary(&l2, k));
  ASK(p_cuKernelGetFunction(&f, k));
  ASK(p_cuFuncGetName(&name, f));
  say("name = %s", name);
  ASK(p_cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
  ASK(p_cuFuncGetName(&name, (CUfunction)k));
  ASK(p_cuFuncGetAttribute(&v, 0, (CUfunction)k));
  ASK(p_cuFuncGetModule(&m, (CUfunction)k));
  ASK(p_cuLibraryGetModule(&m, lib));
  ASK(p_cuStreamSynchronize(s));
  ASK(p_cuLibraryGetKernelCount(&u, lib));
  say("kernels = %u", u);
  ASK(p_cuLibraryUnload(lib));
}

static void launches(void) {
  section = "launches";
  uint64_t one = 1;
  void *params[] = {&one};
  size_t eight = 8, four = 4;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &one, CU_LAUNCH_PARAM_BUFFER_SIZE, &eight, CU_LAUNCH_PARAM_END};
  void *small[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &one, CU_LAUNCH_PARAM_BUFFER_SIZE, &four, CU_LAUNCH_PARAM_END};
  CUfunction sp = f_spin;
  ASK(p_cuLaunchKernel(sp, 0, 1, 1, 1, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 0, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 2147483648u, 1, 1, 1, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 65536, 1, 1, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 65536, 1, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 65535, 1, 1, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1025, 1, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 65, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 512, 4, 1, 0, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 49152, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 50000, s, params, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 300000, s, params, NULL));
  ASK(p_cuFuncSetAttribute(sp, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 50000, s, params, NULL));
  ASK(p_cuFuncSetAttribute(sp, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000));
  ASK(p_cuFuncSetAttribute(sp, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 0, s, NULL, extra));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 0, s, params, extra));
  ASK(p_cuLaunchKernel(sp, 1, 1, 1, 1, 1, 1, 0, s, NULL, small));
  ASK(p_cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
  CUlaunchConfig cfg = {1, 1, 1, 1, 1, 1, 0, s, NULL, 0};
  ASK(p_cuLaunchKernelEx(&cfg, sp, params, NULL));
  ASK(p_cuLaunchKernelEx(NULL, sp, params, NULL));
  ASK(p_cuLaunchCooperativeKernel(sp, 100000, 1, 1, 1024, 1, 1, 0, s, params));
  ASK(p_cuLaunchCooperativeKernel(sp, 132, 1, 1, 1024, 1, 1, 0, s, params));
  ASK(p_cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, sp, 0, 0));
  MUST(p_cuStreamSynchronize(s));
}

// Symbols ---------------------------------------------------------------------------------

static void *driver;

static void symbols(void) {
  section = "symbols";
  void *f;
  int st;
#define Q(name, version, flags)                                                                       \
  do {                                                                                                \
    f = (void *)1;                                                                                    \
    st = -1;                                                                                          \
    CUresult r_ = p_cuGetProcAddress_v2(name, &f, version, flags, &st);                               \
    say("cuGetProcAddress_v2(%s, %d, %d) = %d, status %d, found %d", #name, version, (int)flags, r_, st, f != NULL); \
  } while (0)
  Q("cuLaunchKernel", 13000, 0);
  Q("cuNoSuchThing", 13000, 0);
  Q("cuStreamGetId", 11000, 0);
  Q("cuMemAlloc_v2", 13000, 0);
  Q("cuLaunchKernel_ptsz", 13000, 0);
  Q("cuGetProcAddress_v2", 13000, 0);
  Q("", 13000, 0);
  Q("cuLaunchKernel", 13000, 3);
  Q("cuLaunchKernel", 13000, 8);
  Q("cuLaunchKernel", 99000, 0);
  Q("cuLaunchKernel", 0, 0);
  f = (void *)1;
  ASK(p_cuGetProcAddress("cuNoSuchThing", &f, 13000, 0));
  say("found %d", f != NULL);
  ASK(p_cuGetProcAddress("cuStreamGetId", &f, 11000, 0));
  ASK(p_cuGetProcAddress_v2("cuLaunchKernel", &f, 13000, 0, NULL));
  void *inst = NULL;
  ASK(p_cuGetProcAddress_v2("cuGraphInstantiate", &inst, 13000, 0, &st));
  say("cuGraphInstantiate at 13000 is _v2 = %d, WithFlags = %d", inst == dlsym(driver, "cuGraphInstantiate_v2"),
      inst == dlsym(driver, "cuGraphInstantiateWithFlags"));
  p_cuGetProcAddress_v2("cuGraphInstantiate", &inst, 11000, 0, &st);
  say("cuGraphInstantiate at 11000 is _v2 = %d", inst == dlsym(driver, "cuGraphInstantiate_v2"));
  // Each function is handed out under its base name at its version, not before.
  struct row {
    const char *sym, *base;
    int ver;
    bool twin;
    const char *twin_sym;
  };
  static const struct row rows[] = {
#define F(sym, base, ver) {#sym, #base, ver, false, NULL},
#define S(sym, sfx, base, ver) {#sym, #base, ver, true, #sym #sfx},
#include "functions.h"
#undef F
#undef S
  };
  int wrong = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const struct row *r = &rows[i];
    void *at = NULL, *before = NULL, *twin = NULL, *def = dlsym(driver, r->sym);
    p_cuGetProcAddress_v2(r->base, &at, r->ver, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &st);
    p_cuGetProcAddress_v2(r->base, &before, r->ver - 10, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &st);
    p_cuGetProcAddress_v2(r->base, &twin, r->ver < 7000 ? 7000 : r->ver, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &st);
    void *want = r->twin ? dlsym(driver, r->twin_sym) : def;
    if (at == def && before != def && (twin == want || r->ver < 7000) && (!r->twin || at != twin))
      continue;
    wrong++;
    // Where does it really begin?
    int first = 0;
    for (int ver = 2000; ver <= 13000 && first == 0; ver += 10) {
      void *p = NULL;
      p_cuGetProcAddress_v2(r->base, &p, ver, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &st);
      if (p != NULL && p == def)
        first = ver;
    }
    say("%s as %s from %d: at %d before %d twin %d; begins at %d", r->sym, r->base, r->ver, at == def, before == def,
        twin == want, first);
  }
  say("entries of the table that are otherwise = %d", wrong);
}

static void setup(void) {
  MUST(p_cuInit(0));
  MUST(p_cuDevicePrimaryCtxRetain(&ctx, 0));
  MUST(p_cuCtxSetCurrent(ctx));
  MUST(p_cuModuleLoadData(&mod, ptx));
  MUST(p_cuModuleGetFunction(&f_spin, mod, "lt_spin"));
  MUST(p_cuModuleGetFunction(&f_odd, mod, "odd"));
  MUST(p_cuModuleGetFunction(&f_nothing, mod, "nothing"));
  MUST(p_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  MUST(p_cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  MUST(p_cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  MUST(p_cuEventCreate(&e, 0));
  MUST(p_cuEventCreate(&e2, 0));
  MUST(p_cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  MUST(p_cuMemAlloc_v2(&mem, 4096));
  MUST(p_cuEventRecord(e, s));
  MUST(launch(s));
  MUST(spin(s, 1));
  MUST(p_cuStreamSynchronize(s));
  MUST(p_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(launch(s));
  MUST(p_cuStreamEndCapture(s, &some_graph));
  MUST(p_cuGraphInstantiateWithFlags(&some_exec, some_graph, 0));
}

int main(int argc, char **argv) {
  driver = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (driver == NULL) {
    fprintf(stderr, "conformance: %s\n", argc == 2 ? dlerror() : "which library?");
    return 2;
  }
  int missing = 0;
#define LOAD(f)                                          \
  *(void **)&p_##f = dlsym(driver, #f);                  \
  if (p_##f == NULL) {                                   \
    fprintf(stderr, "conformance: no %s\n", #f);         \
    missing++;                                           \
  }
#define F(sym, base, ver) LOAD(sym)
#define S(sym, sfx, base, ver) LOAD(sym) LOAD(sym##sfx)
#include "functions.h"
  static const char *const maybe[] = {"cuGraphGetId", "cuGraphExecGetId", "cuGraphNodeGetLocalId", "cuGraphNodeGetToolsId",
                                      "cuCtxGetDevice_v2", "cuCtxSynchronize_v2", "cuMemcpyBatchAsync", "cuKernelGetParamCount",
                                      "cuFuncGetParamCount", "cuDevicePrimaryCtxRelease", "cuStreamGetDevice", "cuLaunch",
                                      "cuEventRecordWithFlags", "cuCtxRecordEvent", "cuStreamBatchMemOp_v2", "cuLogsRegisterCallback"};
  for (size_t i = 0; i < sizeof maybe / sizeof maybe[0]; i++)
    fprintf(stderr, "dlsym %s = %d\n", maybe[i], dlsym(driver, maybe[i]) != NULL);

  // Each section has a process of its own, so that none inherits another's
  // troubles.
  static void (*const sections[])(void) = {
      before_init, errors, no_context, contexts, streams, events, capture_global, capture_relaxed, capture_threads,
      captures, graphs, modules, launches, memory, waits, pools, vmm, symbols,
  };
  for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      signal(SIGSEGV, on_crash);
      alarm(60);
      if (sections[i] != before_init)
        setup();
      sections[i]();
      exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) {
      printf("section %zu ended with %#x\n", i, status);
      fflush(stdout);
    }
  }
  return missing > 0;
}
