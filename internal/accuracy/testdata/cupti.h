// SPDX-License-Identifier: Apache-2.0
//
// As much of CUPTI's interface as ../cupti/activity.c uses, for compiling it where
// there is none. The layouts are a stand-in's own.
#ifndef LT_TEST_CUPTI_H
#define LT_TEST_CUPTI_H

#include <stddef.h>
#include <stdint.h>

#define CUPTI_API_VERSION 130000
#define CUPTIAPI

typedef struct CUctx_st *CUcontext;
typedef enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_MAX_LIMIT_REACHED = 12 } CUptiResult;
typedef enum {
	CUPTI_ACTIVITY_KIND_MEMCPY = 1,
	CUPTI_ACTIVITY_KIND_MEMSET = 2,
	CUPTI_ACTIVITY_KIND_KERNEL = 3,
	CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
} CUpti_ActivityKind;
enum { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };

typedef struct { CUpti_ActivityKind kind; } CUpti_Activity;
typedef struct {
	CUpti_ActivityKind kind;
	uint64_t start, end;
	uint32_t streamId, correlationId;
	const char *name;
} CUpti_ActivityKernel10;
typedef struct {
	CUpti_ActivityKind kind;
	uint64_t bytes, start, end;
	uint32_t streamId, correlationId;
} CUpti_ActivityMemcpy;
typedef CUpti_ActivityMemcpy CUpti_ActivityMemset;

typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **buffer, size_t *size, size_t *max);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind);
CUptiResult cuptiActivityFlushAll(uint32_t);
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *);

#endif
