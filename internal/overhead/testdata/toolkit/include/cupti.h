// Stands in for CUPTI's header: what internal/cubench/cupti/inject.c uses of it.
#include <stddef.h>
#include <stdint.h>

typedef int CUptiResult;
typedef void *CUcontext;
#define CUPTI_SUCCESS 0
#define CUPTIAPI

typedef enum {
	CUPTI_ACTIVITY_KIND_MEMCPY = 1,
	CUPTI_ACTIVITY_KIND_MEMSET = 2,
	CUPTI_ACTIVITY_KIND_KERNEL = 3,
	CUPTI_ACTIVITY_KIND_DRIVER = 4,
	CUPTI_ACTIVITY_KIND_RUNTIME = 5,
	CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10
} CUpti_ActivityKind;
typedef enum { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 } CUpti_ActivityFlag;

typedef struct {
	CUpti_ActivityKind kind;
} CUpti_Activity;
typedef struct {
	CUpti_ActivityKind kind;
	uint64_t start, end;
} CUpti_ActivityKernel4;

typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **, size_t *, size_t *);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext, uint32_t, uint8_t *, size_t, size_t);

CUptiResult cuptiActivityGetNextRecord(uint8_t *, size_t, CUpti_Activity **);
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind);
CUptiResult cuptiActivityDisable(CUpti_ActivityKind);
CUptiResult cuptiActivityFlushAll(uint32_t);
