// Kernels of a small decoder-only transformer, in fp32, for examples/decode.
//
// The PTX beside this file is made from it by
//
//	nvcc -ptx -arch=compute_75 -O3 -o decode.ptx decode.cu
//
// The file is kept to what C and CUDA C share, so that a test can compile it with
// a C compiler, run every kernel on the host and compare. Such a harness defines
// KERNEL and DYNAMIC_SHARED before it includes the file.
//
// Conventions: matrices are row-major and dense. A row of a pass is one token of
// one sequence: row_slot says in which slot of the KV cache the sequence lives and
// row_pos which position in it the token has. history is [slots][ctx], the tokens
// of each slot's sequence; sampling appends to it, so that a next step can be
// enqueued before the host has seen what this one sampled. A value of a row never
// depends on the other rows of the pass: the order of every sum is fixed by the
// row alone. So a sequence's tokens are the same whatever it is batched with.

#ifndef KERNEL
#define KERNEL extern "C" __global__ void
#endif
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

// hash32 mixes all bits of x into all bits of the result.
static __device__ __forceinline__ unsigned hash32(unsigned x)
{
	x ^= x >> 16;
	x *= 0x85ebca6bu;
	x ^= x >> 13;
	x *= 0xc2b2ae35u;
	x ^= x >> 16;
	return x;
}

// fill_uniform sets dst[i] to offset + step * s, s a whole number in
// [-2^23, 2^23) that hangs on seed and i alone.
// Grid: any; block: any, one dimension each.
KERNEL fill_uniform(float *dst, unsigned n, unsigned seed, float step, float offset)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	unsigned stride = gridDim.x * blockDim.x;
	for (; i < n; i += stride) {
		int s = (int)(hash32(hash32(seed) ^ i) >> 8) - 8388608;
		dst[i] = offset + step * (float)s;
	}
}

// admit_slots takes new sequences in. admitted is [grid][4 + ctx]: slot, prompt
// length, top-k, sampling seed, and the prompt's tokens.
// Grid: one block a sequence; block: any.
KERNEL admit_slots(const int *admitted, int *history, int *slot_topk, int *slot_seed, int ctx)
{
	const int *a = admitted + (size_t)blockIdx.x * (4 + ctx);
	int slot = a[0];
	int length = a[1];
	unsigned i;
	if (threadIdx.x == 0) {
		slot_topk[slot] = a[2];
		slot_seed[slot] = a[3];
	}
	for (i = threadIdx.x; i < (unsigned)ctx; i += blockDim.x)
		history[(size_t)slot * ctx + i] = (int)i < length ? a[4 + i] : 0;
}

// embed_rows looks the rows' tokens up in table, [vocab][hidden].
// Grid: one block a row; block: any.
KERNEL embed_rows(float *x, const float *table, const int *history, const int *row_slot, const int *row_pos,
                  int hidden, int ctx)
{
	unsigned row = blockIdx.x, i;
	int token = history[(size_t)row_slot[row] * ctx + row_pos[row]];
	for (i = threadIdx.x; i < (unsigned)hidden; i += blockDim.x)
		x[(size_t)row * hidden + i] = table[(size_t)token * hidden + i];
}

// rms_norm writes the normalised row pick[row] of x, times w, to row of y; without
// a pick, row itself.
// Grid: one block a row of y; block: 256.
KERNEL __launch_bounds__(256) rms_norm(float *y, const float *x, const float *w, const int *pick, int hidden, float eps)
{
	__shared__ float sums[256];
	unsigned row = blockIdx.x, t = threadIdx.x, i, half;
	const float *in = x + (size_t)(pick ? (unsigned)pick[row] : row) * hidden;
	float sum = 0.0f, scale;
	for (i = t; i < (unsigned)hidden; i += 256)
		sum += in[i] * in[i];
	sums[t] = sum;
	__syncthreads();
	for (half = 128; half > 0; half >>= 1) {
		if (t < half)
			sums[t] += sums[t + half];
		__syncthreads();
	}
	scale = 1.0f / sqrtf(sums[0] / (float)hidden + eps);
	for (i = t; i < (unsigned)hidden; i += 256)
		y[(size_t)row * hidden + i] = in[i] * scale * w[i];
}

#define MM_ROWS 16   // rows of c in a block
#define MM_COLS 32   // columns of c in a block: one warp's width
#define MM_SLICES 8  // slices of k, a warp each, summed at the end
#define MM_DEPTH 128 // k's of a in shared memory at once
#define MM_SPAN (MM_DEPTH / MM_SLICES)
#define MM_PITCH 5 // float4s from one k to the next in the tile; 5, not 4, spreads the banks

// matmul computes c = a w, or c = c + a w, with a [m][k], w [k][n], c [m][n].
// k is a multiple of 16, n of 32.
// Grid: (n / 32, m / 16 rounded up); block: 256.
KERNEL __launch_bounds__(256) matmul(float *c, const float *a, const float *w, int m, int n, int k, int accumulate)
{
	__shared__ float4 tile[MM_DEPTH * MM_PITCH];
	__shared__ float parts[MM_SLICES * MM_ROWS * MM_COLS];
	int t = (int)threadIdx.x;
	int lane = t % MM_COLS, slice = t / MM_COLS;
	int col = (int)blockIdx.x * MM_COLS + lane;
	int row0 = (int)blockIdx.y * MM_ROWS;
	int k0, i, j, s;
	float acc[MM_ROWS];
	float wv[MM_SPAN];

#pragma unroll
	for (i = 0; i < MM_ROWS; i++)
		acc[i] = 0.0f;
	for (k0 = 0; k0 < k; k0 += MM_DEPTH) {
		int first = k0 + slice * MM_SPAN;
		if (first < k) {
			const float *wp = w + (size_t)first * n + col;
#pragma unroll
			for (j = 0; j < MM_SPAN; j++)
				wv[j] = wp[(size_t)j * n];
		}
		for (i = t; i < MM_ROWS * MM_DEPTH; i += 256) {
			int row = i / MM_DEPTH, kk = i % MM_DEPTH;
			float v = 0.0f;
			if (row0 + row < m && k0 + kk < k)
				v = a[(size_t)(row0 + row) * k + k0 + kk];
			((float *)tile)[kk * MM_PITCH * 4 + row] = v;
		}
		__syncthreads();
		if (first < k) {
#pragma unroll
			for (j = 0; j < MM_SPAN; j++) {
				const float4 *av = tile + (slice * MM_SPAN + j) * MM_PITCH;
#pragma unroll
				for (i = 0; i < MM_ROWS / 4; i++) {
					float4 v = av[i];
					acc[4 * i + 0] += v.x * wv[j];
					acc[4 * i + 1] += v.y * wv[j];
					acc[4 * i + 2] += v.z * wv[j];
					acc[4 * i + 3] += v.w * wv[j];
				}
			}
		}
		__syncthreads();
	}
#pragma unroll
	for (i = 0; i < MM_ROWS; i++)
		parts[(slice * MM_ROWS + i) * MM_COLS + lane] = acc[i];
	__syncthreads();
	for (i = t; i < MM_ROWS * MM_COLS; i += 256) {
		int row = row0 + i / MM_COLS;
		size_t at = (size_t)row * n + (int)blockIdx.x * MM_COLS + i % MM_COLS;
		float sum = 0.0f;
		for (s = 0; s < MM_SLICES; s++)
			sum += parts[s * MM_ROWS * MM_COLS + i];
		if (row < m)
			c[at] = accumulate ? c[at] + sum : sum;
	}
}

// rope_store turns the rows' queries and keys by their positions, the queries in
// place, and stores keys and values in the cache of one layer,
// [slots][heads][ctx][head_dim]. qkv is [rows][3][heads][head_dim]; turn is
// [ctx][head_dim / 2][2], cosine and sine.
// Grid: one block a row; block: any.
KERNEL rope_store(float *qkv, float *k_cache, float *v_cache, const float *turn, const int *row_slot,
                  const int *row_pos, int heads, int head_dim, int ctx)
{
	unsigned row = blockIdx.x, i;
	int half = head_dim / 2, hidden = heads * head_dim;
	int slot = row_slot[row], pos = row_pos[row];
	float *q = qkv + (size_t)row * 3 * hidden;
	const float *k = q + hidden, *v = k + hidden;
	for (i = threadIdx.x; i < (unsigned)(heads * half); i += blockDim.x) {
		int head = (int)i / half, p = (int)i % half;
		int lo = head * head_dim + p, hi = lo + half;
		float co = turn[((size_t)pos * half + p) * 2], si = turn[((size_t)pos * half + p) * 2 + 1];
		size_t at = (((size_t)slot * heads + head) * ctx + pos) * head_dim + p;
		float x = q[lo], y = q[hi];
		q[lo] = x * co - y * si;
		q[hi] = y * co + x * si;
		x = k[lo];
		y = k[hi];
		k_cache[at] = x * co - y * si;
		k_cache[at + half] = y * co + x * si;
		v_cache[at] = v[lo];
		v_cache[at + half] = v[hi];
	}
}

#define ATT_THREADS 128

// attention is soft-max attention of each row's heads over the positions of its
// slot up to its own. out is [rows][heads][head_dim]. head_dim divides 128.
// Grid: (heads, rows); block: 128; shared: ctx floats.
KERNEL __launch_bounds__(ATT_THREADS) attention(float *out, const float *qkv, const float *k_cache, const float *v_cache,
                                                const int *row_slot, const int *row_pos, int heads, int head_dim,
                                                int ctx, float scale)
{
	DYNAMIC_SHARED(float, score);
	__shared__ float query[ATT_THREADS];
	__shared__ float part[ATT_THREADS];
	int t = (int)threadIdx.x, head = (int)blockIdx.x, row = (int)blockIdx.y;
	int n = row_pos[row] + 1;
	size_t base = ((size_t)row_slot[row] * heads + head) * ctx * head_dim;
	const float *ks = k_cache + base, *vs = v_cache + base;
	int groups = ATT_THREADS / head_dim, d = t % head_dim, g = t / head_dim;
	int i, j, half;
	float best = -3.4e38f, sum = 0.0f, total;

	if (t < head_dim)
		query[t] = qkv[((size_t)row * 3 * heads + head) * head_dim + t];
	__syncthreads();
	for (j = t; j < n; j += ATT_THREADS) {
		const float *key = ks + (size_t)j * head_dim;
		float dot = 0.0f;
		for (i = 0; i < head_dim; i++)
			dot += query[i] * key[i];
		dot *= scale;
		score[j] = dot;
		best = dot > best ? dot : best;
	}
	part[t] = best;
	__syncthreads();
	for (half = ATT_THREADS / 2; half > 0; half >>= 1) {
		if (t < half)
			part[t] = part[t] > part[t + half] ? part[t] : part[t + half];
		__syncthreads();
	}
	best = part[0];
	__syncthreads();
	for (j = t; j < n; j += ATT_THREADS) {
		float e = expf(score[j] - best);
		score[j] = e;
		sum += e;
	}
	part[t] = sum;
	__syncthreads();
	for (half = ATT_THREADS / 2; half > 0; half >>= 1) {
		if (t < half)
			part[t] += part[t + half];
		__syncthreads();
	}
	total = part[0];
	__syncthreads();
	sum = 0.0f;
	for (j = g; j < n; j += groups)
		sum += score[j] * vs[(size_t)j * head_dim + d];
	part[t] = sum;
	__syncthreads();
	if (t < head_dim) {
		sum = 0.0f;
		for (i = 0; i < groups; i++)
			sum += part[i * head_dim + t];
		out[((size_t)row * heads + head) * head_dim + t] = sum / total;
	}
}

// swiglu computes y = silu(gate) * up of gate_up, [rows][2][ffn].
// Grid: (ffn / block rounded up, rows); block: any.
KERNEL swiglu(float *y, const float *gate_up, int ffn)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
	if (i < (unsigned)ffn) {
		float gate = gate_up[(size_t)row * 2 * ffn + i];
		float up = gate_up[(size_t)row * 2 * ffn + ffn + i];
		y[(size_t)row * ffn + i] = gate / (1.0f + expf(-gate)) * up;
	}
}

#define SAMPLE_THREADS 256
#define SAMPLE_MAX_K 16

// sample draws each selected row's next token from its slot's top k logits, of
// equal ones the lowest first; k 1 is greedy. The draw hangs on the slot's seed and
// the position alone. The token goes to out[row] and is appended to history.
// row_slot and row_pos are indexed by pick[row].
// Grid: one block a selected row; block: 256.
KERNEL __launch_bounds__(SAMPLE_THREADS) sample(int *out, int *history, const float *logits, const int *pick,
                                                const int *row_slot, const int *row_pos, const int *slot_topk,
                                                const int *slot_seed, int vocab, int ctx, float inv_temperature)
{
	__shared__ float best_value[SAMPLE_THREADS];
	__shared__ int best_index[SAMPLE_THREADS];
	__shared__ float top_value[SAMPLE_MAX_K];
	__shared__ int top_index[SAMPLE_MAX_K];
	int t = (int)threadIdx.x, row = (int)blockIdx.x;
	int slot = row_slot[pick[row]], pos = row_pos[pick[row]];
	int k = slot_topk[slot], i, r, half;
	const float *in = logits + (size_t)row * vocab;
	float last_value = 3.4e38f;
	int last_index = -1;

	k = k < 1 ? 1 : k > SAMPLE_MAX_K ? SAMPLE_MAX_K : k;
	for (r = 0; r < k; r++) {
		float value = -3.4e38f;
		int index = 0x7fffffff;
		for (i = t; i < vocab; i += SAMPLE_THREADS) {
			float v = in[i];
			if ((v < last_value || (v == last_value && i > last_index)) && v > value) {
				value = v;
				index = i;
			}
		}
		best_value[t] = value;
		best_index[t] = index;
		__syncthreads();
		for (half = SAMPLE_THREADS / 2; half > 0; half >>= 1) {
			if (t < half) {
				float v = best_value[t + half];
				int at = best_index[t + half];
				if (v > best_value[t] || (v == best_value[t] && at < best_index[t])) {
					best_value[t] = v;
					best_index[t] = at;
				}
			}
			__syncthreads();
		}
		last_value = best_value[0];
		last_index = best_index[0];
		if (t == 0) {
			top_value[r] = last_value;
			top_index[r] = last_index;
		}
		__syncthreads();
	}
	if (t == 0) {
		float first = top_value[0], sum = 0.0f, draw;
		int token = top_index[0];
		if (k > 1) {
			for (i = 0; i < k; i++) {
				top_value[i] = expf((top_value[i] - first) * inv_temperature);
				sum += top_value[i];
			}
			draw = (float)(hash32(hash32((unsigned)slot_seed[slot]) ^ (unsigned)pos) >> 8) / 16777216.0f * sum;
			for (i = 0; i < k; i++) {
				token = top_index[i];
				draw -= top_value[i];
				if (draw < 0.0f)
					break;
			}
		}
		if (token < 0 || token >= vocab)
			token = 0; // no logit was a number
		out[row] = token;
		if (pos + 1 < ctx)
			history[(size_t)slot * ctx + pos + 1] = token;
	}
}
