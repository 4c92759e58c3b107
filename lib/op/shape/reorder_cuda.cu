/* reorder_cuda.cu - see reorder.c: [n, c, inner] to [n, inner, c] or back, which transposes n
 * matrices. */
#include "op/op_cuda.cuh"

/* x [batch, rows, cols] -> y [batch, cols, rows], or y += . A block transposes tiles of 2^log_rows
 * x 2^log_cols numbers through shared memory, in a grid-stride loop: it reads along cols and writes
 * along rows, both contiguous. Each access is V numbers: rows and cols are multiples of V, x and y
 * are aligned. */
struct turn {
    size_t rows, cols, tiles;
    struct op_divisor across, down;         /* tiles in a matrix along cols, and along rows */
    unsigned log_rows, log_cols, pitch;     /* size of the tile; stride between its rows in shared
                                               memory, in numbers */
};

static constexpr unsigned TILE = 4096, TURN_THREADS = 256, TURN_AHEAD = 8;

/* Position in a tile of access e of V numbers, along rows of 2^log numbers: column and row. */
template <size_t V>
__device__ static inline void turn_place(unsigned e, unsigned log, unsigned *in, unsigned *row)
{
    *row = e * V >> log;
    *in = e * V & ((1u << log) - 1);
}

template <typename T, size_t V>
__global__ void turn_tiles(const T *x, T *y, struct turn t, bool add)
{
    CUDA_SHARED(T, tile);
    constexpr unsigned STEPS = TILE / V, ROUND = TURN_AHEAD * TURN_THREADS;

    for (size_t i = blockIdx.x; i < t.tiles; i += gridDim.x) {
        uint64_t matrix = i, col = op_digit(&matrix, t.across) << t.log_cols;
        uint64_t row = op_digit(&matrix, t.down) << t.log_rows;
        size_t rows = t.rows - row, cols = t.cols - col; /* remaining rows and columns */
        const T *from = x + (matrix * t.rows + row) * t.cols + col;
        T *to = y + (matrix * t.cols + col) * t.rows + row;

        for (unsigned e = threadIdx.x; e < STEPS; e += ROUND) {
            op_pack<T, V> p[TURN_AHEAD];
            unsigned r, k;

#pragma unroll
            for (unsigned u = 0; u < TURN_AHEAD; u++) {
                turn_place<V>(e + u * TURN_THREADS, t.log_cols, &k, &r);
                if (r < rows && k < cols)
                    p[u] = *(const op_pack<T, V> *)(from + r * t.cols + k);
            }
#pragma unroll
            for (unsigned u = 0; u < TURN_AHEAD; u++) {
                turn_place<V>(e + u * TURN_THREADS, t.log_cols, &k, &r);
                *(op_pack<T, V> *)(tile + r * t.pitch + k) = p[u]; /* beyond the end: never read */
            }
        }
        __syncthreads();
        for (unsigned e = threadIdx.x; e < STEPS; e += ROUND) {
            op_pack<T, V> p[TURN_AHEAD] = {};
            unsigned r, k;

#pragma unroll
            for (unsigned u = 0; u < TURN_AHEAD; u++) {
                turn_place<V>(e + u * TURN_THREADS, t.log_rows, &r, &k);
                if (add && r < rows && k < cols)
                    p[u] = *(const op_pack<T, V> *)(to + k * t.rows + r);
            }
#pragma unroll
            for (unsigned u = 0; u < TURN_AHEAD; u++) {
                op_pack<T, V> out;

                turn_place<V>(e + u * TURN_THREADS, t.log_rows, &r, &k);
#pragma unroll
                for (size_t v = 0; v < V; v++) {
                    T one = tile[(r + v) * t.pitch + k];

                    out.v[v] = add ? op_narrow<T>(op_wide(p[u].v[v]) + op_wide(one)) : one;
                }
                if (r < rows && k < cols)
                    *(op_pack<T, V> *)(to + k * t.rows + r) = out;
            }
        }
        __syncthreads();
    }
}

static unsigned log_of(size_t n, unsigned most)
{
    unsigned log = 0;

    while (log < most && ((size_t)1 << log) < n)
        log++;
    return log;
}

/* Chooses the tile: 64 x 64, or longer along one side if the other is short; at least V along
 * both. */
template <typename T, size_t V> static struct turn turn_of(size_t batch, size_t rows, size_t cols)
{
    const unsigned all = log_of(TILE, 31), least = log_of(V, 31);
    struct turn t = {};
    size_t across, down;

    t.rows = rows;
    t.cols = cols;
    t.log_rows = log_of(rows, all / 2);
    t.log_rows = t.log_rows < least ? least : t.log_rows;
    t.log_cols = log_of(cols, all - t.log_rows);
    t.log_cols = t.log_cols < least ? least : t.log_cols;
    t.log_rows = all - t.log_cols; /* the remaining bits */
    across = (cols + ((size_t)1 << t.log_cols) - 1) >> t.log_cols;
    down = (rows + ((size_t)1 << t.log_rows) - 1) >> t.log_rows;
    t.across = op_divisor_of(across);
    t.down = op_divisor_of(down);
    t.tiles = batch * across * down;
    /* The lanes of a warp then read from different banks of 4 bytes. */
    t.pitch =
        (1u << t.log_cols) + (unsigned)(4 / sizeof(T)) * (t.log_rows < 5 ? 32u >> t.log_rows : 1);
    return t;
}

template <typename T, size_t V>
static int launch(cudaStream_t s, const void *x, void *y, size_t batch, size_t rows, size_t cols,
                  bool add, struct err *err)
{
    struct turn t = turn_of<T, V>(batch, rows, cols);
    size_t shared = ((size_t)t.pitch << t.log_rows) * sizeof(T);

    CUDA_LAUNCH((turn_tiles<T, V>), op_blocks(t.tiles, 1), TURN_THREADS, shared, s, (const T *)x,
                (T *)y, t, add);
    return cuda_launched(err);
}

/* y = x or y += x, of one shape and type; tensors of one layout are copied directly. */
static int reorder(const struct op_call *c, const struct tensor *x, const struct tensor *y,
                   bool add, struct err *err)
{
    size_t n = (size_t)tensor_elements(x), batch, channels, inner, rows, cols;
    cudaStream_t s = op_stream(c);

    if (n == 0)
        return 0;
    if (x->layout == y->layout)
        OP_FLOATS(y->dtype,
                  return op_each(s, (T *)y->data, n, add, op_same(), err, (const T *)x->data));
    batch = (size_t)x->shape.dim[0];
    channels = (size_t)x->shape.dim[1];
    inner = n / batch / channels;
    rows = x->layout == TENSOR_PLAIN ? channels : inner;
    cols = x->layout == TENSOR_PLAIN ? inner : channels;
    if (x->dtype == TENSOR_F32)
        return launch<float, 1>(s, x->data, y->data, batch, rows, cols, add, err);
    OP_FLOATS(x->dtype,
              return rows % 2 == 0 && cols % 2 == 0 && op_aligned(x->data) && op_aligned(y->data)
                         ? launch<T, 2>(s, x->data, y->data, batch, rows, cols, add, err)
                         : launch<T, 1>(s, x->data, y->data, batch, rows, cols, add, err));
}

static int forward(const struct op_call *c, struct err *err)
{
    return reorder(c, c->in[0], c->out[0], false, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    return reorder(c, c->dout[0], c->din[0], op_cuda_adds(c, 0), err);
}

OP_CUDA(op_reorder, .fwd = forward, .bwd = backward);
