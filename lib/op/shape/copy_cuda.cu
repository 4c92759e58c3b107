/* copy_cuda.cu - see copy_cuda.cuh. */
#include "op/shape/copy_cuda.cuh"

namespace {

enum { SIDE = 32, LEAST = 8 /* for shorter lines, square tiles do not pay */ };

template <typename T, int V, bool ADD>
__device__ static inline void store(op_pack<T, V> *y, op_pack<T, V> x)
{
    if constexpr (ADD) {
        op_pack<T, V> old = *y;

#pragma unroll
        for (int k = 0; k < V; k++)
            x.v[k] = op_narrow<T>(op_wide(old.v[k]) + op_wide(x.v[k]));
    }
    if constexpr (sizeof(x) == 4) { /* nvcc would split it */
        uint32_t word;

        memcpy(&word, &x, sizeof(word));
        *(uint32_t *)y = word;
    } else {
        *y = x;
    }
}

/* Copies units of V elements in the memory order of y, one per thread and iteration; two loads in
 * flight, four of small units. */
template <typename T, int V, bool ADD>
__global__ void copy_units(struct copy_walk w, size_t n, const op_pack<T, V> *x, op_pack<T, V> *y)
{
    constexpr int AT_ONCE = sizeof(T) * V < 16 ? 4 : 2;
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += AT_ONCE * step) {
        op_pack<T, V> value[AT_ONCE];
        int64_t to[AT_ONCE];

#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int64_t from = 0;

            to[k] = 0;
            if (i + (size_t)k * step >= n)
                continue;
            copy_place(w, i + (size_t)k * step, &from, &to[k]);
            value[k] = x[from];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + (size_t)k * step < n)
                store<T, V, ADD>(&y[to[k]], value[k]);
    }
}

/* Copies two axes, `a` with stride 1 in y and `b` with stride 1 in x, in square tiles of SIDE * V
 * elements: a block reads lines of x and writes lines of y, both in units of V. */
struct squares {
    int64_t a, b;                   /* sizes of the axes, in elements */
    int64_t a_from, b_to;           /* strides on the other side, in elements */
    struct op_divisor across, down; /* tiles along a, along b */
    struct copy_walk rest;          /* the other axes, in elements */
    size_t n;                       /* total number of tiles */
};

template <typename T, int V, bool ADD>
__global__ void copy_squares(struct squares q, const T *x, T *y)
{
    constexpr int WIDE = SIDE * V;
    __shared__ T room[WIDE][WIDE + 4 / (sizeof(T) < 4 ? sizeof(T) : 4)];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32;

    for (size_t i = blockIdx.x; i < q.n; i += gridDim.x) {
        uint64_t rest = i;
        int64_t a0 = (int64_t)op_digit(&rest, q.across) * WIDE,
                b0 = (int64_t)op_digit(&rest, q.down) * WIDE;
        int64_t from = 0, to = 0;

        copy_place(q.rest, rest, &from, &to);
#pragma unroll
        for (int r = 0; r < WIDE; r += 8) {
            int k = r + row;

            if (a0 + k >= q.a || b0 + lane * V >= q.b)
                continue;
            op_pack<T, V> u =
                *(const op_pack<T, V> *)(x + from + (a0 + k) * q.a_from + b0 + lane * V);

#pragma unroll
            for (int e = 0; e < V; e++)
                room[k][lane * V + e] = u.v[e];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < WIDE; r += 8) {
            op_pack<T, V> u;
            int k = r + row;

            if (b0 + k >= q.b || a0 + lane * V >= q.a)
                continue;
#pragma unroll
            for (int e = 0; e < V; e++)
                u.v[e] = room[lane * V + e][k];
            store<T, V, ADD>((op_pack<T, V> *)(y + to + (b0 + k) * q.b_to + a0 + lane * V), u);
        }
        __syncthreads();
    }
}

/* ---- selection of the kernel ---- */

size_t magnitude(ptrdiff_t step)
{
    return (size_t)(step < 0 ? -step : step);
}

/* Sorts the axes by their strides in y, innermost first, and merges adjacent ones. */
struct copy in_order_of_y(const struct copy *c)
{
    struct copy o = { .n = 0, .from = c->from, .to = c->to, .is_empty = c->is_empty };
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t k = o.n++;

        for (; k > 0 && magnitude(o.axis[k - 1].to) > magnitude(c->axis[i].to); k--)
            o.axis[k] = o.axis[k - 1];
        o.axis[k] = c->axis[i];
    }
    for (uint32_t i = 0; i < o.n; i++) {
        struct copy_axis *in = n > 0 ? &o.axis[n - 1] : NULL;

        if (in != NULL && o.axis[i].from == (ptrdiff_t)in->size * in->from &&
            o.axis[i].to == (ptrdiff_t)in->size * in->to)
            in->size *= o.axis[i].size;
        else
            o.axis[n++] = o.axis[i];
    }
    o.n = n;
    return o;
}

size_t elements(const struct copy *c)
{
    size_t n = 1;

    for (uint32_t k = 0; k < c->n; k++)
        n *= c->axis[k].size;
    return n;
}

/* Largest power of two, at most `most`, that divides all strides except 1, and the length of the
 * lines. */
size_t unit_of(const struct copy *c, const char *x, const char *y, size_t size, size_t most)
{
    size_t unit = most;
    auto fits = [&](ptrdiff_t step) { return step % (ptrdiff_t)unit == 0; };
    auto all_fit = [&]() {
        for (uint32_t k = 0; k < c->n; k++)
            if ((c->axis[k].from == 1 || c->axis[k].to == 1 ? !fits((ptrdiff_t)c->axis[k].size) : false) ||
                (c->axis[k].from != 1 && !fits(c->axis[k].from)) ||
                (c->axis[k].to != 1 && !fits(c->axis[k].to)))
                return false;
        return (uintptr_t)x % (unit * size) == 0 && (uintptr_t)y % (unit * size) == 0;
    };

    while (unit > 1 && !all_fit())
        unit /= 2;
    return unit;
}

template <typename T, int V, bool ADD>
int run_units(cudaStream_t s, const struct copy *c, const T *x, T *y, struct err *err)
{
    size_t n = elements(c) / V;
    struct copy_walk w = {};

    for (uint32_t k = 0; k < c->n; k++) {
        struct copy_axis a = c->axis[k];

        if (V > 1 && k == 0) {
            a.size /= V;
            a.from = a.to = V;
        }
        copy_walk_add(&w, &a, V);
    }
    constexpr size_t BYTES = sizeof(T) * V;
    using as_they_are = std::conditional_t<!ADD && BYTES % 4 == 0, uint32_t, T>; /* see op_halves */
    constexpr int N = (int)(BYTES / sizeof(as_they_are));

    CUDA_LAUNCH((copy_units<as_they_are, N, ADD>), op_blocks(n, OP_THREADS * (BYTES < 16 ? 4 : 2)),
                OP_THREADS, 0, s, w, n, (const op_pack<as_they_are, N> *)x,
                (op_pack<as_they_are, N> *)y);
    return cuda_launched(err);
}

/* a: the first axis; b: the axis with stride 1 in x. */
template <typename T, int V, bool ADD>
int run_squares(cudaStream_t s, const struct copy *c, uint32_t b, const T *x, T *y, struct err *err)
{
    constexpr size_t WIDE = SIDE * V;
    size_t across = (c->axis[0].size + WIDE - 1) / WIDE, down = (c->axis[b].size + WIDE - 1) / WIDE;
    struct squares q = {};

    q.a = (int64_t)c->axis[0].size;
    q.b = (int64_t)c->axis[b].size;
    q.a_from = c->axis[0].from;
    q.b_to = c->axis[b].to;
    q.across = op_divisor_of(across);
    q.down = op_divisor_of(down);
    q.n = elements(c) / (c->axis[0].size * c->axis[b].size) * across * down;
    for (uint32_t k = 1; k < c->n; k++)
        if (k != b)
            copy_walk_add(&q.rest, &c->axis[k], 1);
    CUDA_LAUNCH((copy_squares<T, V, ADD>), op_blocks(q.n, 1), OP_THREADS, 0, s, q, x, y);
    return cuda_launched(err);
}

/* The first axis has stride 1 in y. */
template <typename T, bool ADD>
int run(cudaStream_t s, const struct copy *c, const T *x, T *y, struct err *err)
{
    constexpr int PACK = 16 / sizeof(T), WORD = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    const struct copy_axis *in = &c->axis[0];
    uint32_t b = 0;

    x += c->from;
    y += c->to;
    if (c->n > 0 && in->from == 1 && in->to == 1) {
        size_t unit = unit_of(c, (const char *)x, (const char *)y, sizeof(T), PACK);

        if (unit == PACK)
            return run_units<T, PACK, ADD>(s, c, x, y, err);
        if (unit >= WORD && WORD > 1)
            return run_units<T, WORD, ADD>(s, c, x, y, err);
        return run_units<T, 1, ADD>(s, c, x, y, err);
    }
    for (uint32_t k = 1; k < c->n; k++)
        if (c->axis[k].from == 1)
            b = k;
    if (b == 0 || in->to != 1 || in->size < LEAST || c->axis[b].size < LEAST)
        return run_units<T, 1, ADD>(s, c, x, y, err);
    if (WORD > 1 && unit_of(c, (const char *)x, (const char *)y, sizeof(T), WORD) == WORD)
        return run_squares<T, WORD, ADD>(s, c, b, x, y, err);
    return run_squares<T, 1, ADD>(s, c, b, x, y, err);
}

bool is_sum(const struct copy *c)
{
    bool sums = false;

    for (uint32_t k = 0; k < c->n; k++)
        sums = sums || c->axis[k].to == 0;
    return sums;
}

} // namespace

int copy_cuda_run(cudaStream_t s, const struct copy *c, const void *x, void *y,
                  enum tensor_dtype dtype, bool add, void *scratch, struct err *err)
{
    struct copy o = in_order_of_y(c);

    if (o.is_empty)
        return 0;
    if (is_sum(&o))
        return copy_cuda_sum(s, &o, (const float *)x, (float *)y, add, scratch, err);
    if (add) {
        OP_FLOATS(dtype, return run<T, true>(s, &o, (const T *)x, (T *)y, err));
    }
    OP_SIZES(tensor_dtype_bytes(dtype), return run<U, false>(s, &o, (const U *)x, (U *)y, err));
    return 0;
}
