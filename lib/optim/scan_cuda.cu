/* scan_cuda.cu - one pass over floats: the sum of squares, the checksum of base/checksum.h, and
 * whether an element is NaN or infinite; and a kernel of one block that combines the results of the
 * others. */
#include "optim/optim_cuda_priv.cuh"

static constexpr unsigned CHUNKS = CUDA_SCAN_FLOATS / OPTIM_CHUNK; /* chunks of a block */

namespace {

struct factors {
    uint32_t of[CHECKSUM_COLUMNS];
};

struct factors all_factors(void)
{
    struct factors f;

    for (unsigned c = 0; c < CHECKSUM_COLUMNS; c++)
        f.of[c] = checksum_factor[c];
    return f;
}

/* The results of a thread or a block so far. */
struct found {
    double squares = 0;
    unsigned long long sum = 0; /* the checksum, mod CHECKSUM_MODULUS */
    bool bad = false;
};

/* A value congruent to x mod 2^24 - 3, less than 2^24 + 3 (x >> 24). */
__device__ static inline unsigned long long fold(unsigned long long x)
{
    return (x & 0xffffff) + 3 * (x >> 24);
}

__device__ static inline float limited(float x, float limit)
{
    x = x > limit ? limit : x;
    return x < -limit ? -limit : x; /* a NaN stays one */
}

/* Processes four elements; each adds at most 2^32 * 2^8 * 2^9 to *sum. */
template <bool WHOLE>
__device__ static inline void look_at_four(float *x, const optim_range &r, unsigned e,
                                           uint32_t row_weight, const uint32_t factor[4],
                                           bool squares, float clip, struct found *f,
                                           unsigned long long *sum)
{
    optim_four q = optim_load<WHOLE>(x, r, e);

#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        uint32_t word = __float_as_uint(q.v[j]);

        *sum += (unsigned long long)word * (row_weight * factor[j]);
        f->bad = f->bad || (word & 0x7f800000) == 0x7f800000;
    }
    if (!squares)
        return;
    if (clip > 0) {
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            q.v[j] = limited(q.v[j], clip);
        optim_store<WHOLE>(x, r, e, q);
    }
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        f->squares += (double)q.v[j] * (double)q.v[j];
}

/* Returns the results of the block, in thread 0. */
__device__ static inline void join(const struct found &f, struct cuda_scan *out)
{
    double squares = optim_block_sum(f.squares);
    /* 256 sums below 2^24; the upper bits count the threads that found a non-finite element */
    unsigned long long rest = optim_block_sum(f.sum % CHECKSUM_MODULUS + (f.bad ? 1ull << 40 : 0));

    if (threadIdx.x == 0) {
        out->squares = squares;
        out->checksum = (uint32_t)((rest & ((1ull << 40) - 1)) % CHECKSUM_MODULUS);
        out->non_finite = rest >> 40 != 0;
    }
}

/* A block processes CHUNKS chunks. Without a table of chunks x is [n], and chunk i begins at 4096
 * i. The squares of chunks below n_squared are added; if clip > 0, their elements are clipped
 * first, and x is written. */
__global__ void scan_kernel(float *x, const struct optim_chunk *chunks, size_t n_chunks, size_t n,
                            size_t n_squared, float clip, struct factors factors,
                            struct cuda_scan *out)
{
    const unsigned column = threadIdx.x * 4 % CHECKSUM_COLUMNS;
    const uint32_t factor[4] = { factors.of[column], factors.of[column + 1], factors.of[column + 2],
                                 factors.of[column + 3] };
    size_t i = (size_t)blockIdx.x * CHUNKS, end = i + CHUNKS < n_chunks ? i + CHUNKS : n_chunks;
    struct found f;

    for (; i < end; i++) {
        size_t at = i * OPTIM_CHUNK;
        uint32_t here = n - at < OPTIM_CHUNK ? (uint32_t)(n - at) : OPTIM_CHUNK;
        const optim_range r(chunks != NULL ? chunks[i] : optim_chunk{ at, here, 0 });
        unsigned first_row = (unsigned)(r.base % OPTIM_CHUNK) / CHECKSUM_COLUMNS;
        unsigned long long sum = 0; /* over at most 16 elements: below 2^53 */

        for (unsigned e = threadIdx.x * 4; e < r.hi; e += OPTIM_THREADS * 4) {
            uint32_t row_weight = OPTIM_CHUNK / CHECKSUM_COLUMNS - first_row - e / CHECKSUM_COLUMNS;

            if (r.has_four(e))
                look_at_four<true>(x, r, e, row_weight, factor, i < n_squared, clip, &f, &sum);
            else
                look_at_four<false>(x, r, e, row_weight, factor, i < n_squared, clip, &f, &sum);
        }
        /* two folds give less than 2^25; times 24 bits and folded, less than 2^28: any number of
         * chunks fits */
        f.sum += fold(fold(fold(sum)) * checksum_key(r.base / OPTIM_CHUNK));
    }
    join(f, out + blockIdx.x);
}

/* One block: thread t adds parts t, t + 256, ... in this order. */
__global__ void join_kernel(const struct cuda_scan *parts, size_t n, struct cuda_scan *out)
{
    struct found f;

    for (size_t i = threadIdx.x; i < n; i += OPTIM_THREADS) {
        struct cuda_scan p = parts[i];

        f.squares += p.squares;
        f.sum += p.checksum;
        f.bad = f.bad || p.non_finite != 0;
    }
    join(f, out);
}

} // namespace

size_t optim_scan_count(size_t n_chunks)
{
    return (n_chunks + CHUNKS - 1) / CHUNKS;
}

static int run_scan(float *x, const struct optim_chunk *chunks, size_t n_chunks, size_t n,
                    size_t n_squared, float clip, struct cuda_scan *result,
                    struct cuda_scan *scratch, cudaStream_t s, struct err *err)
{
    size_t blocks = optim_scan_count(n_chunks);

    if (blocks > 0)
        CUDA_LAUNCH(scan_kernel, (unsigned)blocks, OPTIM_THREADS, 0, s, x, chunks, n_chunks, n,
                    n_squared, clip, all_factors(), scratch);
    CUDA_LAUNCH(join_kernel, 1, OPTIM_THREADS, 0, s, (const struct cuda_scan *)scratch, blocks,
                result);
    return cuda_launched(err);
}

int optim_scan_at(float *g, const struct optim_chunk *chunks, size_t n_chunks, size_t n_params,
                  float clip, struct cuda_scan *result, struct cuda_scan *scratch, cudaStream_t s,
                  struct err *err)
{
    return run_scan(g, chunks, n_chunks, 0, n_params, clip, result, scratch, s, err);
}

int cuda_scan(const float *x, size_t n, struct cuda_scan *result, struct cuda_stream *s,
              struct err *err)
{
    size_t n_chunks = (n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;

    /* without a limit, x is not written */
    return run_scan((float *)(uintptr_t)x, NULL, n_chunks, n, n_chunks, 0, result, result + 1,
                    cuda_stream_of(s), err);
}
