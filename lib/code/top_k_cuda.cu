/* top_k_cuda.cu - see top_k_cuda.cuh. A block of threads handles one block of TOP_K_BLOCK numbers at a time; thread t
 * has the numbers t, t + THREADS, ... No step depends on the order in which threads run: counts are sums of integers,
 * and floats are added along the tree by the thread that has them. */
#include "code/top_k_cuda.cuh"

extern "C" {
#include "code/top_k.h"
}
#include "code/code_formula.h"
#include "code/residual_formula.h"
#include "code/top_k_formula.h"

namespace {

constexpr unsigned THREADS = 512, WARP = 32, WARPS = THREADS / WARP, OWN = TOP_K_BLOCK / THREADS;
constexpr unsigned GRID_MAX = 2048, ROUNDS = 31; /* bits of an absolute value */

/* A block of the vector. */
struct block {
    size_t at, n;   /* the first number; numbers */
    size_t code_at; /* bytes */
    uint32_t k;     /* numbers that are sent */
};

__device__ block block_of(double fraction, size_t n, size_t i)
{
    block b;

    b.at = i * TOP_K_BLOCK;
    b.n = min(n - b.at, (size_t)TOP_K_BLOCK);
    b.code_at = i * top_k_block_bytes(top_k_count(fraction, TOP_K_BLOCK));
    b.k = top_k_count(fraction, b.n);
    return b;
}

__device__ size_t blocks_of(size_t n)
{
    return (n + TOP_K_BLOCK - 1) / TOP_K_BLOCK;
}

/* ---- encoding ---- */

/* Returns the sum over all threads. All of them make the call. */
__device__ uint32_t sum_of_threads(uint32_t count, uint32_t *of_warps)
{
    uint32_t sum = 0;

    for (unsigned d = 1; d < WARP; d *= 2)
        count += __shfl_xor_sync(0xffffffffu, count, d);
    if (threadIdx.x % WARP == 0)
        of_warps[threadIdx.x / WARP] = count;
    __syncthreads();
    for (unsigned w = 0; w < WARPS; w++)
        sum += of_warps[w];
    __syncthreads();
    return sum;
}

__device__ uint32_t count_from(const uint32_t *sizes, uint32_t n_own, uint32_t least,
                               uint32_t *of_warps)
{
    uint32_t count = 0;

    for (unsigned j = 0; j < n_own; j++)
        count += sizes[j] >= least;
    return sum_of_threads(count, of_warps);
}

/* As threshold() of top_k.c. */
__device__ uint32_t threshold(const uint32_t *sizes, uint32_t n_own, uint32_t k, uint32_t *equal,
                              uint32_t *of_warps)
{
    uint32_t found = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t bit = 1u << (ROUNDS - 1 - round);
        uint32_t count = count_from(sizes, n_own, found | bit, of_warps);

        if (count >= k)
            found |= bit;
        if (count == k) {
            *equal = k;
            return found;
        }
    }
    *equal = k - count_from(sizes, n_own, found + 1, of_warps);
    return found;
}

/* The numbers of warp w in round j, in the order of their indices: a count of those above the threshold in the lower
 * half of a word, and of those equal to it in the upper half. counts [OWN * WARPS] becomes the counts before each. */
__device__ void count_before(uint32_t *counts)
{
    uint32_t before = 0;

    if (threadIdx.x == 0)
        for (unsigned i = 0; i < OWN * WARPS; i++) {
            uint32_t count = counts[i];

            counts[i] = before;
            before += count;
        }
    __syncthreads();
}

/* Writes the numbers above the threshold, and the first `equal` that are equal to it. */
__device__ void write_numbers(float *x, const uint32_t *sizes, uint32_t n_own, uint32_t least,
                              uint32_t equal, uint8_t *out, uint16_t *chosen, uint32_t *counts)
{
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t lower = (1u << lane) - 1, above[OWN], same[OWN];

    for (unsigned j = 0; j < OWN; j++) {
        above[j] = __ballot_sync(0xffffffffu, j < n_own && sizes[j] > least);
        same[j] = __ballot_sync(0xffffffffu, j < n_own && sizes[j] == least);
        if (lane == 0)
            counts[j * WARPS + warp] = (uint32_t)__popc(above[j]) | (uint32_t)__popc(same[j]) << 16;
    }
    __syncthreads();
    count_before(counts);
    for (unsigned j = 0; j < n_own; j++) {
        uint32_t before = counts[j * WARPS + warp], index = threadIdx.x + j * THREADS;
        uint32_t n_above = (before & 0xffffu) + (uint32_t)__popc(above[j] & lower);
        uint32_t n_same = (before >> 16) + (uint32_t)__popc(same[j] & lower);

        if (sizes[j] < least || (sizes[j] == least && n_same >= equal))
            continue;
        n_above += min(n_same, equal);
        ((float *)out)[n_above] = x[index];
        chosen[n_above] = (uint16_t)index;
        x[index] = 0;
    }
    __syncthreads();
}

/* A thread writes pairs of indices, which have bytes of their own. */
__device__ void write_indices(const uint16_t *chosen, uint32_t k, uint8_t *out)
{
    uint8_t *indices = out + k * sizeof(float);
    size_t bytes = k * sizeof(float) + (k * TOP_K_INDEX_BITS + 7) / 8;

    for (uint32_t i = 2 * threadIdx.x; i < k; i += 2 * THREADS) {
        top_k_put_index(indices, i, chosen[i]);
        if (i + 1 < k)
            top_k_put_index(indices, i + 1, chosen[i + 1]);
    }
    for (size_t i = bytes + threadIdx.x; i < top_k_block_bytes(k); i += THREADS)
        out[i] = 0;
}

__device__ void choose_nonfinite(uint32_t k, uint8_t *out, uint16_t *chosen)
{
    for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
        ((float *)out)[i] = code_no_scale(UINT32_MAX);
        chosen[i] = (uint16_t)i;
    }
    __syncthreads();
}

__global__ void encode_blocks(double fraction, float *x, size_t n, uint8_t *out)
{
    __shared__ uint32_t of_warps[WARPS], counts[OWN * WARPS];
    __shared__ uint16_t chosen[TOP_K_BLOCK];

    for (size_t i = blockIdx.x; i < blocks_of(n); i += gridDim.x) {
        block b = block_of(fraction, n, i);
        uint32_t sizes[OWN], n_own = 0, least, equal;

        for (unsigned j = 0; j < OWN && threadIdx.x + j * THREADS < b.n; j++)
            sizes[n_own++] = code_size(x[b.at + threadIdx.x + j * THREADS]);
        if (count_from(sizes, n_own, 0x7f800000u, of_warps) > 0) {
            choose_nonfinite(b.k, out + b.code_at, chosen);
        } else {
            least = threshold(sizes, n_own, b.k, &equal, of_warps);
            write_numbers(x + b.at, sizes, n_own, least, equal, out + b.code_at, chosen, counts);
        }
        write_indices(chosen, b.k, out + b.code_at);
        __syncthreads(); /* before the next block writes `chosen` */
    }
}

/* ---- decoding ---- */

/* y [TOP_K_BLOCK] of shared memory = the numbers of a code. */
__device__ void decode(const uint8_t *in, const block &b, float *y, unsigned *is_invalid)
{
    for (unsigned i = threadIdx.x; i < TOP_K_BLOCK; i += THREADS)
        y[i] = 0;
    if (threadIdx.x == 0)
        *is_invalid = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < b.k; i += THREADS) {
        uint32_t index = top_k_get_index(in + b.k * sizeof(float), i);

        if (index < b.n)
            y[index] = ((const float *)in)[i];
        else
            atomicOr(is_invalid, 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0 && *is_invalid != 0) /* the thread that has y[0] */
        y[0] = code_no_scale(UINT32_MAX);
}

__global__ void sum_blocks(double fraction, const uint8_t *codes, size_t stride, uint32_t n_codes,
                           float *y, size_t n)
{
    __shared__ float part[TOP_K_BLOCK];
    __shared__ unsigned is_invalid;

    for (size_t i = blockIdx.x; i < blocks_of(n); i += gridDim.x) {
        float stack[CUDA_TREE_DEPTH][OWN], sum[OWN] = {};
        block b = block_of(fraction, n, i);
        unsigned top = 0;

        for (uint32_t g = 0; g < n_codes; g++) {
            decode(codes + g * stride + b.code_at, b, part, &is_invalid);
            for (unsigned j = 0; j < OWN; j++)
                sum[j] = part[threadIdx.x + j * THREADS];
            __syncthreads(); /* before the next code replaces `part` */
            for (uint32_t ended = g; ended % 2 == 1; ended /= 2) {
                top--;
                for (unsigned j = 0; j < OWN; j++)
                    sum[j] = stack[top][j] + sum[j];
            }
            for (unsigned j = 0; g + 1 < n_codes && j < OWN; j++)
                stack[top][j] = sum[j];
            top++;
        }
        for (unsigned j = 0; j < OWN && threadIdx.x + j * THREADS < b.n; j++)
            y[b.at + threadIdx.x + j * THREADS] = sum[j];
    }
}

__global__ void add_residual(float *x, const float *gradient, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        x[i] = code_flush(gradient[i] + x[i]);
}

unsigned grid_of(size_t n, size_t of_a_block)
{
    size_t grid = (n + of_a_block - 1) / of_a_block;

    return (unsigned)(grid < GRID_MAX ? grid : GRID_MAX);
}

}

int code_cuda_residual_add(float *x, const float *gradient, size_t n, struct cuda_stream *s,
                           struct err *err)
{
    if (n == 0)
        return 0;
    CUDA_LAUNCH(add_residual, grid_of(n, THREADS), THREADS, 0, cuda_stream_of(s), x, gradient, n);
    return cuda_launched(err);
}

int code_cuda_top_k_encode(double fraction, float *x, size_t n, uint8_t *out, struct cuda_stream *s,
                           struct err *err)
{
    if (n == 0)
        return 0;
    CUDA_LAUNCH(encode_blocks, grid_of(n, TOP_K_BLOCK), THREADS, 0, cuda_stream_of(s), fraction, x,
                n, out);
    return cuda_launched(err);
}

int code_cuda_top_k_sum(double fraction, const uint8_t *codes, size_t stride, uint32_t n_codes,
                        float *y, size_t n, struct cuda_stream *s, struct err *err)
{
    if (n == 0)
        return 0;
    CUDA_LAUNCH(sum_blocks, grid_of(n, TOP_K_BLOCK), THREADS, 0, cuda_stream_of(s), fraction, codes,
                stride, n_codes, y, n);
    return cuda_launched(err);
}
