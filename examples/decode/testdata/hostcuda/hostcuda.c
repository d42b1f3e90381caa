// Runs one launch of one kernel of kernels/decode.cu on the host, for the test that
// compares the CUDA source with the sim's Go functions.
//
//	hostcuda NAME GX GY GZ BX BY BZ SHARED ORDER ARG... < arena > arena
//
// An ARG is p:OFFSET into the arena, n (a null pointer), i:VALUE or f:BITS. A
// block's threads are coroutines: each runs to the next barrier before another one
// begins, from the first to the last or, with ORDER 1, from the last to the first,
// so that a barrier that is missing shows in one of the two. The blocks run one
// after the other. Before each block the dynamic shared memory is filled with NaNs,
// so that reading what was not written shows.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct { unsigned x, y, z; } extent;
typedef struct { float x, y, z, w; } float4;

static extent threadIdx, blockIdx, blockDim, gridDim;
static void __syncthreads(void);

#define MAX_THREADS 1024
#define MAX_SHARED 65536
static _Alignas(16) char dynamic_shared[MAX_SHARED];

#define KERNEL static void
#define DYNAMIC_SHARED(type, name) type *name = (type *)dynamic_shared
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#include "../../kernels/decode.cu"

#define MAX_ARGS 16
static struct { void *p; unsigned bits; } args[MAX_ARGS];
static const char *kernel_name;
static int wanted; // number of arguments of the kernel

#define P(i) args[i].p
#define I(i) ((int)args[i].bits)
#define U(i) args[i].bits
static float F(int i)
{
	float f;
	memcpy(&f, &args[i].bits, 4);
	return f;
}

// call runs one thread of the kernel; with run 0 it only says how many arguments
// the kernel has, -1 for a kernel that is not there.
static int call(int run)
{
#define CASE(name, count, ...) \
	if (!strcmp(kernel_name, #name)) { \
		if (run) \
			name(__VA_ARGS__); \
		return count; \
	}
	CASE(fill_uniform, 5, P(0), U(1), U(2), F(3), F(4))
	CASE(admit_slots, 5, P(0), P(1), P(2), P(3), I(4))
	CASE(embed_rows, 7, P(0), P(1), P(2), P(3), P(4), I(5), I(6))
	CASE(rms_norm, 6, P(0), P(1), P(2), P(3), I(4), F(5))
	CASE(matmul, 7, P(0), P(1), P(2), I(3), I(4), I(5), I(6))
	CASE(rope_store, 9, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8))
	CASE(attention, 10, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8), F(9))
	CASE(swiglu, 3, P(0), P(1), I(2))
	CASE(sample, 11, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), I(8), I(9), F(10))
	return -1;
}

#define STACK 16384
static ucontext_t scheduler, fibers[MAX_THREADS];
static extent ids[MAX_THREADS];
static char done[MAX_THREADS];
static int current;

static void __syncthreads(void)
{
	int me = current;
	swapcontext(&fibers[me], &scheduler);
	current = me;
	threadIdx = ids[me];
}

static void fiber(void)
{
	call(1);
	done[current] = 1;
}

static void run_block(char *stacks, unsigned shared, int backward)
{
	static unsigned x, y, z; // static: getcontext may clobber a register
	unsigned n = 0, i, live;
	for (i = 0; i < shared / 4; i++)
		((unsigned *)dynamic_shared)[i] = 0x7fc00000u;
	for (z = 0; z < blockDim.z; z++)
		for (y = 0; y < blockDim.y; y++)
			for (x = 0; x < blockDim.x; x++) {
				ids[n] = (extent){x, y, z};
				done[n] = 0;
				getcontext(&fibers[n]);
				fibers[n].uc_stack.ss_sp = stacks + (size_t)n * STACK;
				fibers[n].uc_stack.ss_size = STACK;
				fibers[n].uc_link = &scheduler;
				makecontext(&fibers[n], fiber, 0);
				n++;
			}
	do {
		live = 0;
		for (i = 0; i < n; i++) {
			unsigned f = backward ? n - 1 - i : i;
			if (done[f])
				continue;
			current = (int)f;
			threadIdx = ids[f];
			swapcontext(&scheduler, &fibers[f]);
			live += !done[f];
		}
	} while (live);
}

static void fail(const char *why)
{
	fprintf(stderr, "hostcuda: %s\n", why);
	exit(1);
}

int main(int argc, char **argv)
{
	char *arena = NULL, *stacks;
	size_t size = 0, room = 0, n;
	unsigned shared;
	int i, backward;
	if (argc < 10)
		fail("too few arguments");
	do {
		if (size == room) {
			room = room ? 2 * room : 1 << 16;
			if (!(arena = realloc(arena, room)))
				fail("out of memory");
		}
		n = fread(arena + size, 1, room - size, stdin);
		size += n;
	} while (n > 0);
	kernel_name = argv[1];
	gridDim = (extent){atoi(argv[2]), atoi(argv[3]), atoi(argv[4])};
	blockDim = (extent){atoi(argv[5]), atoi(argv[6]), atoi(argv[7])};
	shared = atoi(argv[8]);
	backward = atoi(argv[9]);
	if (blockDim.x * blockDim.y * blockDim.z > MAX_THREADS || shared > MAX_SHARED)
		fail("block too large");
	if ((wanted = call(0)) < 0)
		fail("no such kernel");
	if (argc - 10 != wanted)
		fail("wrong number of arguments");
	for (i = 0; i < wanted; i++) {
		const char *a = argv[10 + i];
		if (a[0] == 'p')
			args[i].p = arena + strtoull(a + 2, NULL, 10);
		else if (a[0] != 'n')
			args[i].bits = (unsigned)strtoll(a + 2, NULL, 10);
	}
	if (!(stacks = malloc((size_t)MAX_THREADS * STACK)))
		fail("out of memory");
	for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
		for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
			for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
				run_block(stacks, shared, backward);
	if (fwrite(arena, 1, size, stdout) != size)
		fail("short write");
	return 0;
}
