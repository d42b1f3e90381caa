//go:build ignore

// Stands in for CUPTI: each flush hands over a buffer with 40 kernels of 2 µs and a
// copy, if records are on.
#include "toolkit/include/cupti.h"

static CUpti_BuffersCallbackRequestFunc requested;
static CUpti_BuffersCallbackCompleteFunc completed;
static CUpti_ActivityKernel4 record;
static int left, enabled, was;

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c)
{
	if (requested)
		return 9; // twice
	requested = r;
	completed = c;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind k)
{
	enabled |= 1 << k;
	was = enabled;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind k)
{
	enabled &= ~(1 << k);
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **r)
{
	(void)buffer;
	(void)valid;
	if (left-- == 0)
		return 12;
	record.kind = left ? CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL : CUPTI_ACTIVITY_KIND_MEMCPY;
	record.start = 1000;
	record.end = 3000;
	*r = (CUpti_Activity *)&record;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
	uint8_t *buffer;
	size_t size, most;
	if (flag != CUPTI_ACTIVITY_FLAG_FLUSH_FORCED || !was)
		return CUPTI_SUCCESS;
	was = 0;
	requested(&buffer, &size, &most);
	left = 41;
	completed(0, 0, buffer, size, size);
	return CUPTI_SUCCESS;
}
