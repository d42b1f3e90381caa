// A library that the CUDA driver loads into a program (CUDA_INJECTION64_PATH) and
// that asks CUPTI for activity records of kernels, copies and driver calls, the
// mechanism of the PyTorch profiler. It exists to measure what that costs a step;
// nothing of lanetrace uses CUPTI.
//
//   gcc -O2 -shared -fPIC -I$CUPTI/include -I$CUDA/include -o libinject.so inject.c -L$CUPTI/lib -l:libcupti.so.13
//   CUDA_INJECTION64_PATH=$PWD/libinject.so decode --ab 25 --ab-levels off
//
// It prints now and then how many kernel records came and the sum of their times.
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const size_t buffer_bytes = 8u << 20;
static uint64_t kernels, kernel_ns, buffers;

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
	if (buffers++ % 8 == 0)
		fprintf(stderr, "cupti: %llu kernel records, %.3f ms in kernels\n", (unsigned long long)kernels, (double)kernel_ns / 1e6);
}

int InitializeInjection(void);
int InitializeInjection(void)
{
	static const CUpti_ActivityKind kinds[] = {
		CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
		CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
	};
	if (cuptiActivityRegisterCallbacks(requested, completed) != CUPTI_SUCCESS) {
		fprintf(stderr, "cupti: callbacks refused\n");
		return 0;
	}
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		CUptiResult r = cuptiActivityEnable(kinds[i]);
		if (r != CUPTI_SUCCESS)
			fprintf(stderr, "cupti: activity kind %d refused: %d\n", (int)kinds[i], (int)r);
	}
	fprintf(stderr, "cupti: activity records are on\n");
	return 1;
}
