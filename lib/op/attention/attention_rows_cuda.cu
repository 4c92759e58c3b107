/* attention_rows_cuda.cu - see attention_rows_cuda.cuh.
 *
 * A team computes a row: a warp, or a thread block if the row is long. A thread owns N adjacent
 * columns (4 if the row length is a multiple of 4: it then loads and stores them at once and draws
 * one block of random numbers) at every N * team-th column. Only this thread reads and writes them,
 * and the values that it stored in the previous pass are still in the L1 cache. */
#include "op/attention/attention_rows_cuda.cuh"

#include "op/act/rng_cuda.cuh"

enum { LONG = 1024 /* columns from which on a thread block computes a row */ };

/* ---- teams ---- */

template <bool WIDE> __device__ static inline float team_sum(float x, float *room)
{
    return WIDE ? op_block_sum(x, room) : op_warp_sum(x);
}

template <bool WIDE> __device__ static inline float team_max(float x, float *room)
{
    x = op_warp_max(x);
    if (WIDE) {
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            room[threadIdx.x / 32] = x;
        __syncthreads();
        x = op_warp_max(threadIdx.x % 32 < OP_THREADS / 32 ? room[threadIdx.x % 32] : -INFINITY);
    }
    return x;
}

/* ---- a row ---- */

template <typename T, int N> struct alignas(N * sizeof(T)) columns {
    T v[N];
};

template <int N, typename T> __device__ static inline columns<T, N> load(const T *p)
{
    return *(const columns<T, N> *)p;
}

struct row {
    int64_t index;                     /* row index in the whole call, for max and scale */
    int64_t first, end;                /* the keys inside the band */
    const void *mask[ATTENTION_STEPS]; /* row of each step's mask */
};

__device__ static inline struct row row_of(const struct attention_rows_device &r, int64_t i)
{
    struct row w;
    int64_t matrix = r.matrix + i / r.t, at = i % r.t;

    w.index = r.matrix * r.t + i;
    w.first = r.has_band ? at + r.lower : 0;
    w.end = r.has_band ? at + r.upper + 1 : r.s;
#pragma unroll
    for (int k = 0; k < ATTENTION_STEPS; k++) {
        ptrdiff_t offset;
        int64_t rest = matrix;

        if (k >= (int)r.n_steps || r.step[k].mask == NULL)
            continue;
        offset = at * r.step[k].row;
        for (int d = (int)r.rank; d-- > 0; rest /= r.batch[d])
            offset += rest % r.batch[d] * r.step[k].batch[d];
        w.mask[k] = (const char *)r.step[k].mask +
                    offset * (ptrdiff_t)(r.step[k].kind == ATTENTION_ADD ? 4 : 1);
    }
    return w;
}

/* Applies the steps to a score. *capped: the score after ATTENTION_CAP. */
__device__ static inline float step_on(const struct attention_rows_device &r, const struct row &w,
                                       int64_t j, float x, float *capped)
{
#pragma unroll
    for (int k = 0; k < ATTENTION_STEPS; k++) {
        if (k >= (int)r.n_steps)
            break;
        switch (r.step[k].kind) {
        case ATTENTION_SCALE: x *= r.step[k].number; break;
        case ATTENTION_ADD: x += ((const float *)w.mask[k])[j]; break;
        case ATTENTION_KEEP: x = ((const uint8_t *)w.mask[k])[j] != 0 ? x : r.step[k].number; break;
        case ATTENTION_FILL: x = ((const uint8_t *)w.mask[k])[j] != 0 ? r.step[k].number : x; break;
        case ATTENTION_CAP: *capped = x = r.step[k].number * tanhf(x / r.step[k].number); break;
        }
    }
    return j >= w.first && j < w.end ? x : -INFINITY;
}

/* Propagates a gradient back through the steps. capped: as returned by step_on(). */
__device__ static inline float step_back(const struct attention_rows_device &r, const struct row &w,
                                         int64_t j, float d, float capped)
{
#pragma unroll
    for (int k = ATTENTION_STEPS; k-- > 0;) {
        if (k >= (int)r.n_steps)
            continue;
        switch (r.step[k].kind) {
        case ATTENTION_SCALE: d *= r.step[k].number; break;
        case ATTENTION_ADD: break;
        case ATTENTION_KEEP: d = ((const uint8_t *)w.mask[k])[j] != 0 ? d : 0.0f; break;
        case ATTENTION_FILL: d = ((const uint8_t *)w.mask[k])[j] != 0 ? 0.0f : d; break;
        case ATTENTION_CAP: d *= 1.0f - (capped / r.step[k].number) * (capped / r.step[k].number); break;
        }
    }
    return d;
}

/* Factors of dropout for N columns from j on. */
template <int N>
__device__ static inline columns<float, N> kept(const struct attention_rows_device &r,
                                                const struct row &w, int64_t j)
{
    columns<float, N> on;
    uint32_t word[4];

    for (int k = 0; k < N; k++)
        on.v[k] = 1.0f;
    if (!r.dropout.drops)
        return on;
    rng_cuda_words(rng_cuda_key(r.device, r.stream), (uint64_t)(w.index * r.s + j), word);
#pragma unroll
    for (int k = 0; k < N; k++)
        on.v[k] = word[k] >= r.dropout.below ? r.dropout.scale : 0.0f;
    return on;
}

#define EACH_COLUMN(j_, r_) for (int64_t j_ = (int64_t)at * N; j_ < (r_).s; j_ += (int64_t)TEAM * N)

/* ---- kernels: a thread block computes OP_THREADS / TEAM rows ---- */

template <typename T, int N, bool WIDE>
__global__ void rows_fwd(struct attention_rows_device r, float *scores, T *weights)
{
    constexpr unsigned TEAM = WIDE ? OP_THREADS : 32;
    __shared__ float room[32];
    const unsigned at = threadIdx.x % TEAM;
    const int64_t i = (int64_t)blockIdx.x * (OP_THREADS / TEAM) + threadIdx.x / TEAM;
    float max = -INFINITY, sum = 0, scale, capped = 0;

    if (i >= r.matrices * r.t) /* the whole team returns */
        return;
    const struct row w = row_of(r, i);

    scores += i * r.s;
    weights += i * r.s;
    EACH_COLUMN(j, r)
    {
        columns<float, N> x = load<N>(scores + j);

#pragma unroll
        for (int k = 0; k < N; k++) {
            x.v[k] = step_on(r, w, j + k, x.v[k], &capped);
            max = fmaxf(max, x.v[k]);
        }
        *(columns<float, N> *)(scores + j) = x;
    }
    max = team_max<WIDE>(max, room);
    const bool empty = r.zero_empty && max == -INFINITY;

    max = empty ? 0.0f : max; /* all weights become e^-inf * 0 */
    EACH_COLUMN(j, r)
    {
        columns<float, N> x = load<N>(scores + j);

#pragma unroll
        for (int k = 0; k < N; k++) {
            x.v[k] = expf(x.v[k] - max);
            sum += x.v[k];
        }
        *(columns<float, N> *)(scores + j) = x;
    }
    sum = team_sum<WIDE>(sum, room);
    scale = empty ? 0.0f : 1.0f / sum;
    EACH_COLUMN(j, r)
    {
        const columns<float, N> x = load<N>(scores + j), on = kept<N>(r, w, j);
        columns<T, N> out;

#pragma unroll
        for (int k = 0; k < N; k++)
            out.v[k] = op_narrow<T>(on.v[k] != 0.0f ? x.v[k] * scale * on.v[k] : 0.0f);
        *(columns<T, N> *)(weights + j) = out;
    }
    if (at == 0 && r.max != NULL) {
        r.max[w.index] = max;
        r.scale[w.index] = scale;
    }
}

template <typename T, int N, bool WIDE>
__global__ void rows_bwd(struct attention_rows_device r, float *scores, float *dp, T *weights,
                         T *slopes)
{
    constexpr unsigned TEAM = WIDE ? OP_THREADS : 32;
    __shared__ float room[32];
    const unsigned at = threadIdx.x % TEAM;
    const int64_t i = (int64_t)blockIdx.x * (OP_THREADS / TEAM) + threadIdx.x / TEAM;
    float dot = 0, capped = 0;

    if (i >= r.matrices * r.t)
        return;
    const struct row w = row_of(r, i);
    const float max = r.max[w.index], scale = r.scale[w.index];

    scores += i * r.s;
    dp += i * r.s;
    weights += i * r.s;
    slopes += i * r.s;
    EACH_COLUMN(j, r)
    {
        const columns<float, N> on = kept<N>(r, w, j);
        columns<float, N> x = load<N>(scores + j), d = load<N>(dp + j);
        columns<T, N> out;

#pragma unroll
        for (int k = 0; k < N; k++) {
            const float p = expf(step_on(r, w, j + k, x.v[k], &capped) - max) * scale;

            x.v[k] = r.has_cap ? x.v[k] : p;
            d.v[k] = on.v[k] != 0.0f ? d.v[k] * on.v[k] : 0.0f;
            dot += p * d.v[k];
            out.v[k] = op_narrow<T>(on.v[k] != 0.0f ? p * on.v[k] : 0.0f);
        }
        *(columns<float, N> *)(scores + j) = x;
        *(columns<float, N> *)(dp + j) = d;
        *(columns<T, N> *)(weights + j) = out;
    }
    dot = team_sum<WIDE>(dot, room);
    EACH_COLUMN(j, r)
    {
        const columns<float, N> x = load<N>(scores + j), d = load<N>(dp + j);
        columns<T, N> out;

#pragma unroll
        for (int k = 0; k < N; k++) { /* recompute the weight, because the cap needs the score
                                         too */
            const float p =
                r.has_cap ? expf(step_on(r, w, j + k, x.v[k], &capped) - max) * scale : x.v[k];

            out.v[k] = op_narrow<T>(step_back(r, w, j + k, p * (d.v[k] - dot), capped));
        }
        *(columns<T, N> *)(slopes + j) = out;
    }
}

/* Runs the body with N and WIDE for rows of this length. */
#define ROWS_FORM(s_, ...)                                                                             \
    if ((s_) % 4 == 0 && (s_) > LONG) { constexpr int N = 4; constexpr bool WIDE = true; __VA_ARGS__; } \
    else if ((s_) % 4 == 0) { constexpr int N = 4; constexpr bool WIDE = false; __VA_ARGS__; }          \
    else if ((s_) > LONG) { constexpr int N = 1; constexpr bool WIDE = true; __VA_ARGS__; }             \
    else { constexpr int N = 1; constexpr bool WIDE = false; __VA_ARGS__; }

static unsigned blocks_of(const struct attention_rows_device *r)
{
    const int64_t rows = r->matrices * r->t, each = r->s > LONG ? 1 : OP_THREADS / 32;

    return (unsigned)((rows + each - 1) / each);
}

int attention_rows_device_fwd(const struct attention_rows_device *r, float *scores, void *weights,
                              enum tensor_dtype type, cudaStream_t stream, struct err *err)
{
    OP_FLOATS(type, ROWS_FORM(r->s, CUDA_LAUNCH((rows_fwd<T, N, WIDE>), blocks_of(r), OP_THREADS, 0,
                                                stream, *r, scores, (T *)weights)));
    return cuda_launched(err);
}

int attention_rows_device_bwd(const struct attention_rows_device *r, float *scores, float *dp,
                              void *weights, void *slopes, enum tensor_dtype type,
                              cudaStream_t stream, struct err *err)
{
    OP_FLOATS(type,
              ROWS_FORM(r->s, CUDA_LAUNCH((rows_bwd<T, N, WIDE>), blocks_of(r), OP_THREADS, 0,
                                          stream, *r, scores, dp, (T *)weights, (T *)slopes)));
    return cuda_launched(err);
}
