//go:build ignore

// SPDX-License-Identifier: Apache-2.0
//
// A library that asks CUPTI for activity records of kernels, copies and driver
// calls, the mechanism of the PyTorch profiler. It exists to measure what that
// costs a step; nothing of lanetrace uses CUPTI.
//
// build.go compiles it.
//
// A program switches records on and off with lanetrace_profiler_on and
// lanetrace_profiler_off, as decode --ab-profiler does; or the CUDA driver loads it
// into any program (CUDA_INJECTION64_PATH), and they are on from the start.
#include <cupti.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int lanetrace_profiler_on(void);
int lanetrace_profiler_off(void);
int lanetrace_profiler_kernels(void);
int InitializeInjection(void);

static const size_t buffer_bytes = 8u << 20;
static _Atomic uint64_t kernels, kernel_ns, buffers;
static int registered, loud;

static const CUpti_ActivityKind kinds[] = {
	CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
	CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
};
enum { num_kinds = sizeof kinds / sizeof kinds[0] };

static void CUPTIAPI requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
	*buffer = aligned_alloc(8, buffer_bytes);
	*size = *buffer ? buffer_bytes : 0;
	*max_records = 0;
}

static void CUPTIAPI completed(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	CUpti_Activity *r = NULL;
	(void)ctx;
	(void)stream;
	(void)size;
	while (cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS) {
		if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || r->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
			// start and end stand at the same place in every version of the record.
			const CUpti_ActivityKernel4 *k = (const CUpti_ActivityKernel4 *)r;
			kernels++;
			kernel_ns += k->end - k->start;
		}
	}
	free(buffer);
	// A program in Go ends without running exit handlers: say it as buffers come.
	if (buffers++ % 8 == 0 && loud)
		fprintf(stderr, "cupti: %llu kernel records, %.3f ms in kernels\n", (unsigned long long)kernels, (double)kernel_ns / 1e6);
}

// Records are on when it returns 0, else what CUPTI answered.
int lanetrace_profiler_on(void)
{
	CUptiResult r = CUPTI_SUCCESS;
	if (!registered)
		r = cuptiActivityRegisterCallbacks(requested, completed);
	if (r != CUPTI_SUCCESS)
		return (int)r;
	registered = 1;
	for (int i = 0; i < num_kinds; i++)
		if ((r = cuptiActivityEnable(kinds[i])) != CUPTI_SUCCESS)
			return (int)r;
	return 0;
}

// Records are off, and all there were have been read, when it returns 0.
int lanetrace_profiler_off(void)
{
	CUptiResult r, first = CUPTI_SUCCESS;
	for (int i = 0; i < num_kinds; i++)
		if ((r = cuptiActivityDisable(kinds[i])) != CUPTI_SUCCESS && first == CUPTI_SUCCESS)
			first = r;
	r = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	return (int)(first != CUPTI_SUCCESS ? first : r);
}

// How many kernels have been recorded so far, up to 2^31 - 1.
int lanetrace_profiler_kernels(void) { return kernels > INT32_MAX ? INT32_MAX : (int)kernels; }

int InitializeInjection(void)
{
	loud = 1;
	int r = lanetrace_profiler_on();
	if (r == 0)
		fprintf(stderr, "cupti: activity records are on\n");
	else
		fprintf(stderr, "cupti: activity records refused: %d\n", r);
	return r == 0;
}
