// SPDX-License-Identifier: Apache-2.0
//
// A library that the CUDA driver loads into a program (CUDA_INJECTION64_PATH) and
// that writes CUPTI's activity records of its kernels, copies and memsets to the
// file that LANETRACE_ACTIVITY_FILE names: CUPTI's word on how long each took, to
// hold lanetrace's against. ../activity.go reads the file.
//
// internal/cubench/cupti compiles it.
//
// A line is kind, start, end (ns), stream, correlation id, bytes, name, separated by
// tabs. The program asks for the rest by making FILE.flush; then all buffers are
// written, the last line is "end", the number of records and of those dropped, and
// the file, until then FILE.part, takes its name.
#include <cupti.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// The newest record of the headers that this is compiled with: what CUPTI writes.
#if !defined ACTIVITY_KERNEL
#if CUPTI_API_VERSION >= 130200
#define ACTIVITY_KERNEL CUpti_ActivityKernel11
#elif CUPTI_API_VERSION >= 130000
#define ACTIVITY_KERNEL CUpti_ActivityKernel10
#else
#define ACTIVITY_KERNEL CUpti_ActivityKernel9
#endif
#endif
// What is read of these two stands at the same place in every version of them.
#if !defined ACTIVITY_COPY
#define ACTIVITY_COPY CUpti_ActivityMemcpy
#define ACTIVITY_SET CUpti_ActivityMemset
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static char part[4096], whole[4096], ask[4096];
static uint64_t records;

enum { BUFFER_BYTES = 8 << 20 };

static void CUPTIAPI requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
	*buffer = aligned_alloc(8, BUFFER_BYTES);
	*size = *buffer ? BUFFER_BYTES : 0;
	*max_records = 0;
}

static void line(const char *kind, uint64_t start, uint64_t end, uint32_t stream, uint32_t correlation, uint64_t bytes, const char *name)
{
	fprintf(out, "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu64 "\t%s\n", kind, start, end, stream, correlation, bytes,
		name ? name : "");
	records++;
}

static void CUPTIAPI completed(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	CUpti_Activity *r = NULL;
	(void)ctx;
	(void)stream;
	(void)size;
	pthread_mutex_lock(&lock);
	while (out != NULL && cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS) {
		switch (r->kind) {
		case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
		case CUPTI_ACTIVITY_KIND_KERNEL: {
			const ACTIVITY_KERNEL *k = (const ACTIVITY_KERNEL *)r;
			line("kernel", k->start, k->end, k->streamId, k->correlationId, 0, k->name);
			break;
		}
		case CUPTI_ACTIVITY_KIND_MEMCPY: {
			const ACTIVITY_COPY *m = (const ACTIVITY_COPY *)r;
			line("copy", m->start, m->end, m->streamId, m->correlationId, m->bytes, "");
			break;
		}
		case CUPTI_ACTIVITY_KIND_MEMSET: {
			const ACTIVITY_SET *m = (const ACTIVITY_SET *)r;
			line("memset", m->start, m->end, m->streamId, m->correlationId, m->bytes, "");
			break;
		}
		default:
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	free(buffer);
}

// waits until the program asks for the rest.
static void *finish(void *unused)
{
	(void)unused;
	while (access(ask, F_OK) != 0)
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	CUptiResult r = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	if (r != CUPTI_SUCCESS)
		fprintf(stderr, "activity: flush: %d\n", (int)r);
	size_t dropped = 0;
	if (cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) != CUPTI_SUCCESS)
		fprintf(stderr, "activity: how many records were dropped is unknown\n");
	pthread_mutex_lock(&lock);
	fprintf(out, "end\t%" PRIu64 "\t%zu\n", records, dropped);
	if (fclose(out) != 0 || rename(part, whole) != 0)
		perror("activity: write the records");
	out = NULL;
	pthread_mutex_unlock(&lock);
	return NULL;
}

int InitializeInjection(void);
int InitializeInjection(void)
{
	static const CUpti_ActivityKind kinds[] = {
		CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
	};
	const char *path = getenv("LANETRACE_ACTIVITY_FILE");
	if (path == NULL || strlen(path) > sizeof whole - 16) {
		fprintf(stderr, "activity: LANETRACE_ACTIVITY_FILE names no file\n");
		return 0;
	}
	strcpy(whole, path);
	strcat(strcpy(part, path), ".part");
	strcat(strcpy(ask, path), ".flush");
	out = fopen(part, "w");
	if (out == NULL) {
		perror("activity: make the file");
		return 0;
	}
	if (cuptiActivityRegisterCallbacks(requested, completed) != CUPTI_SUCCESS) {
		fprintf(stderr, "activity: callbacks refused\n");
		return 0;
	}
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		CUptiResult r = cuptiActivityEnable(kinds[i]);
		if (r != CUPTI_SUCCESS)
			fprintf(stderr, "activity: kind %d refused: %d\n", (int)kinds[i], (int)r);
	}
	pthread_t t;
	if (pthread_create(&t, NULL, finish, NULL) != 0) {
		fprintf(stderr, "activity: no thread\n");
		return 0;
	}
	pthread_detach(t);
	fprintf(stderr, "activity: CUPTI records kernels, copies and memsets, version %d\n", (int)CUPTI_API_VERSION);
	return 1;
}
