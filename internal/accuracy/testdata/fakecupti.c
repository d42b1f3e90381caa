// SPDX-License-Identifier: Apache-2.0
//
// A program with a CUPTI of its own that has four records to give: what
// ../cupti/activity.c makes of them is the test's to read.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int InitializeInjection(void);

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static int enabled, given;

static CUpti_ActivityKernel10 kernels[] = {
	{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 2000, 2500, 7, 3, "second"},
	{CUPTI_ACTIVITY_KIND_KERNEL, 1000, 1500, 7, 2, "first"},
};
static CUpti_ActivityMemcpy copies[] = {
	{CUPTI_ACTIVITY_KIND_MEMCPY, 4096, 3000, 3100, 7, 4},
	{CUPTI_ACTIVITY_KIND_MEMSET, 64, 4000, 4001, 8, 5},
};
static CUpti_Activity other = {(CUpti_ActivityKind)99};
static CUpti_Activity *all[] = {(CUpti_Activity *)&kernels[0], (CUpti_Activity *)&kernels[1], &other, (CUpti_Activity *)&copies[0],
				(CUpti_Activity *)&copies[1]};

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c)
{
	request = r;
	complete = c;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
	enabled |= 1 << kind;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
	uint8_t *buffer;
	size_t size, max;
	if (flag != CUPTI_ACTIVITY_FLAG_FLUSH_FORCED || enabled != (1 << 1 | 1 << 2 | 1 << 10))
		exit(3);
	request(&buffer, &size, &max);
	if (buffer == NULL || size == 0 || max != 0)
		exit(4);
	complete(NULL, 0, buffer, size, 1);
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
	(void)buffer;
	(void)valid;
	if (given == sizeof all / sizeof all[0])
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	*record = all[given++];
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext ctx, uint32_t stream, size_t *dropped)
{
	(void)ctx;
	(void)stream;
	*dropped = getenv("DROP") != NULL ? 5 : 0;
	return CUPTI_SUCCESS;
}

int main(void)
{
	char path[4096];
	const char *whole = getenv("LANETRACE_ACTIVITY_FILE");
	if (InitializeInjection() != 1)
		return 2;
	FILE *f = fopen(strcat(strcpy(path, whole), ".flush"), "w");
	fclose(f);
	for (int i = 0; i < 1000 && access(whole, F_OK) != 0; i++)
		usleep(10000);
	return 0;
}
