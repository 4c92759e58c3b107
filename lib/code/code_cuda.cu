/* code_cuda.cu - see code_cuda.cuh. A warp handles one block of CODE_BLOCK numbers at a time, and blocks that
 * are not coded element by element. Compiled without fused multiply-adds, so that the bits are those of a CPU. */
#include "code/code_cuda.cuh"

#include "code/code_warp.cuh"

namespace {

constexpr unsigned WARPS = 4, GRID_MAX = 2048;

/* The part of the vector that a kernel works on. */
struct span {
    const uint32_t *before;
    size_t n_blocks, first, n; /* of the map; the first block, the numbers */
    uint64_t seed;
    const uint64_t *step;
    size_t block_bytes;
    float *x;
};

struct block {
    size_t at, n;      /* the first number in the part; numbers */
    size_t n_before;   /* coded blocks of the part before it */
    size_t code_at;    /* bytes: among the codes of the whole vector */
    bool is_coded;
};

__device__ size_t coded_before(const span &p, size_t block)
{
    return p.before[block < p.n_blocks ? block : p.n_blocks];
}

__device__ size_t blocks_of(const span &p)
{
    return (p.n + CODE_BLOCK - 1) / CODE_BLOCK;
}

__device__ block block_of(const span &p, size_t i)
{
    size_t rest = p.n - i * CODE_BLOCK, before = coded_before(p, p.first + i);
    block b;

    b.at = i * CODE_BLOCK;
    b.n = min(rest, (size_t)CODE_BLOCK);
    b.n_before = before - coded_before(p, p.first);
    b.code_at = before * p.block_bytes;
    b.is_coded = coded_before(p, p.first + i + 1) > before;
    return b;
}

/* Bytes of the codes of the part. */
__device__ size_t coded_bytes(const span &p)
{
    return (coded_before(p, p.first + blocks_of(p)) - coded_before(p, p.first)) * p.block_bytes;
}

/* Where a message has code number `code` of a coded block. */
__device__ size_t code_in(const span &p, const block &b, uint32_t code)
{
    return code * coded_bytes(p) + b.n_before * p.block_bytes;
}

/* Where a message with n_codes has the numbers of a block that is not coded; 0 codes: of any block. */
__device__ size_t floats_in(const span &p, const block &b, uint32_t n_codes)
{
    return n_codes == 0
               ? b.at * sizeof(float)
               : n_codes * coded_bytes(p) + (b.at - b.n_before * CODE_BLOCK) * sizeof(float);
}

__device__ code_place place_of(const span &p, const block &b, uint32_t place)
{
    return { p.seed, p.first * CODE_BLOCK + b.at, (uint32_t)*p.step, place };
}

__device__ size_t first_block()
{
    return (size_t)blockIdx.x * WARPS + threadIdx.x / CODE_WARP;
}

__device__ size_t next_block()
{
    return (size_t)gridDim.x * WARPS;
}

/* ---- the kernels ---- */

template <int KIND> __global__ void round_blocks(const span p, uint32_t place, uint8_t *codes)
{
    unsigned t = threadIdx.x % CODE_WARP;

    for (size_t i = first_block(); i < blocks_of(p); i += next_block()) {
        block b = block_of(p, i);
        code_words c;

        if (!b.is_coded)
            continue;
        c = code_pack<KIND>(code_load(p.x + b.at, t), place_of(p, b, place), t);
        if (codes != NULL)
            code_write<KIND>(c, codes + b.code_at, t);
        code_store(code_unpack<KIND>(c), p.x + b.at, t);
    }
}

__global__ void join_blocks(const span p, const uint8_t *codes, size_t stride, uint32_t n_codes,
                            uint8_t *out)
{
    unsigned t = threadIdx.x % CODE_WARP;

    for (size_t i = first_block(); i < blocks_of(p); i += next_block()) {
        block b = block_of(p, i);

        for (uint32_t g = 0; b.is_coded && g < n_codes; g++) {
            const uint32_t *from = (const uint32_t *)(codes + g * stride + b.code_at);
            uint32_t *to = (uint32_t *)(out + code_in(p, b, g));

            for (size_t k = t; k < p.block_bytes / sizeof(*to); k += CODE_WARP)
                to[k] = from[k];
        }
        for (size_t k = t; !b.is_coded && k < b.n; k += CODE_WARP)
            ((float *)(out + floats_in(p, b, n_codes)))[k] = p.x[b.at + k];
    }
}

/* The message of another rank. */
__device__ const uint8_t *message_of(const cuda_code_tree &t, uint32_t rank)
{
    return t.received + t.stride * (rank < t.self ? rank : rank - 1);
}

template <int KIND>
__device__ code_numbers leaf_numbers(const span &p, const block &b, const cuda_code_tree &tree,
                                     const cuda_code_leaf &leaf, unsigned t)
{
    if (leaf.rank == tree.self)
        return code_load(p.x + b.at, t);
    if (leaf.n_codes == 0)
        return code_load((const float *)(message_of(tree, leaf.rank) + floats_in(p, b, 0)), t);
    return code_unpack<KIND>(
        code_read<KIND>(message_of(tree, leaf.rank) + code_in(p, b, leaf.code), t));
}

template <int KIND>
__device__ void sum_coded(const span &p, const block &b, const cuda_code_tree &tree, uint8_t *out,
                          unsigned t)
{
    code_numbers stack[CUDA_TREE_DEPTH], sum = {};
    unsigned top = 0;
    code_words c;

    for (uint32_t k = 0; k < tree.n_coded; k++) {
        cuda_code_leaf leaf = tree.leaves[k];

        sum = leaf_numbers<KIND>(p, b, tree, leaf, t);
        for (unsigned m = 1; m <= leaf.merges; m++) {
            code_numbers left = stack[--top];

            for (unsigned j = 0; j < CODE_OWN; j++)
                sum.v[j] = left.v[j] + sum.v[j];
            if (m == leaf.rounds_at)
                sum = code_unpack<KIND>(code_pack<KIND>(sum, place_of(p, b, leaf.place), t));
        }
        if (k + 1 < tree.n_coded)
            stack[top++] = sum;
    }
    c = code_pack<KIND>(sum, place_of(p, b, tree.place), t);
    code_write<KIND>(c, out + code_in(p, b, 0), t);
    code_store(code_unpack<KIND>(c), p.x + b.at, t);
}

__device__ float sum_number(const span &p, const block &b, const cuda_code_tree &tree, size_t k)
{
    const cuda_code_leaf *leaves = tree.leaves + tree.n_coded;
    float stack[CUDA_TREE_DEPTH], sum = 0;
    unsigned top = 0;

    for (uint32_t i = 0; i < tree.n_raw; i++) {
        cuda_code_leaf leaf = leaves[i];

        sum =
            leaf.rank == tree.self
                ? p.x[b.at + k]
                : ((const float *)(message_of(tree, leaf.rank) + floats_in(p, b, leaf.n_codes)))[k];
        for (unsigned m = leaf.merges; m > 0; m--)
            sum = stack[--top] + sum;
        if (i + 1 < tree.n_raw)
            stack[top++] = sum;
    }
    return sum;
}

template <int KIND>
__global__ void sum_blocks(const span p, const cuda_code_tree tree, uint8_t *out)
{
    unsigned t = threadIdx.x % CODE_WARP;

    for (size_t i = first_block(); i < blocks_of(p); i += next_block()) {
        block b = block_of(p, i);

        if (b.is_coded)
            sum_coded<KIND>(p, b, tree, out, t);
        for (size_t k = t; !b.is_coded && k < b.n; k += CODE_WARP) {
            float sum = sum_number(p, b, tree, k);

            p.x[b.at + k] = sum;
            ((float *)(out + floats_in(p, b, 1)))[k] = sum;
        }
    }
}

template <int KIND> __global__ void read_blocks(const span p, const uint8_t *in)
{
    unsigned t = threadIdx.x % CODE_WARP;

    for (size_t i = first_block(); i < blocks_of(p); i += next_block()) {
        block b = block_of(p, i);

        if (b.is_coded)
            code_store(code_unpack<KIND>(code_read<KIND>(in + code_in(p, b, 0), t)), p.x + b.at, t);
        for (size_t k = t; !b.is_coded && k < b.n; k += CODE_WARP)
            p.x[b.at + k] = ((const float *)(in + floats_in(p, b, 1)))[k];
    }
}

/* ---- launches ---- */

constexpr size_t block_bytes[CODE_KINDS] = { 0, 2 * CODE_BLOCK, 4 + 2 * CODE_BLOCK, 4 + CODE_BLOCK,
                                             CODE_LEAST_BYTES };
static_assert(CODE_BFLOAT16 == 1 && CODE_FLOAT16 == 2 && CODE_INT8 == 3 && CODE_INT4 == 4,
              "the order of block_bytes");

span span_of(const cuda_code *c, const cuda_code_part *p)
{
    return { c->before,
             c->n_blocks,
             p->begin / CODE_BLOCK,
             p->n,
             c->seed,
             c->step,
             block_bytes[c->kind],
             p->x };
}

unsigned grid_of(const cuda_code_part *p)
{
    size_t grid = (p->n + CODE_BLOCK * WARPS - 1) / (CODE_BLOCK * WARPS);

    return (unsigned)(grid < GRID_MAX ? grid : GRID_MAX);
}

/* Launches kernel<kind>. */
#define LAUNCH_KIND(kind_, kernel_, part_, s_, ...)                                                \
    do {                                                                                           \
        if ((kind_) == CODE_BFLOAT16)                                                              \
            CUDA_LAUNCH(kernel_<CODE_BFLOAT16>, grid_of(part_), WARPS *CODE_WARP, 0,               \
                        cuda_stream_of(s_), __VA_ARGS__);                                          \
        else if ((kind_) == CODE_FLOAT16)                                                          \
            CUDA_LAUNCH(kernel_<CODE_FLOAT16>, grid_of(part_), WARPS *CODE_WARP, 0,                \
                        cuda_stream_of(s_), __VA_ARGS__);                                          \
        else if ((kind_) == CODE_INT8)                                                             \
            CUDA_LAUNCH(kernel_<CODE_INT8>, grid_of(part_), WARPS *CODE_WARP, 0,                   \
                        cuda_stream_of(s_), __VA_ARGS__);                                          \
        else                                                                                       \
            CUDA_LAUNCH(kernel_<CODE_INT4>, grid_of(part_), WARPS *CODE_WARP, 0,                   \
                        cuda_stream_of(s_), __VA_ARGS__);                                          \
    } while (0)

}

int code_cuda_round(const struct cuda_code *c, const struct cuda_code_part *p, uint32_t place,
                    uint8_t *codes, struct cuda_stream *s, struct err *err)
{
    if (p->n == 0)
        return 0;
    LAUNCH_KIND(c->kind, round_blocks, p, s, span_of(c, p), place, codes);
    return cuda_launched(err);
}

int code_cuda_join(const struct cuda_code *c, const struct cuda_code_part *p, const uint8_t *codes,
                   size_t stride, uint32_t n_codes, uint8_t *out, struct cuda_stream *s,
                   struct err *err)
{
    if (p->n == 0)
        return 0;
    CUDA_LAUNCH(join_blocks, grid_of(p), WARPS * CODE_WARP, 0, cuda_stream_of(s), span_of(c, p),
                codes, stride, n_codes, out);
    return cuda_launched(err);
}

int code_cuda_sum(const struct cuda_code *c, const struct cuda_code_part *p,
                  const struct cuda_code_tree *t, uint8_t *out, struct cuda_stream *s,
                  struct err *err)
{
    if (p->n == 0)
        return 0;
    LAUNCH_KIND(c->kind, sum_blocks, p, s, span_of(c, p), *t, out);
    return cuda_launched(err);
}

int code_cuda_read(const struct cuda_code *c, const struct cuda_code_part *p, const uint8_t *in,
                   struct cuda_stream *s, struct err *err)
{
    if (p->n == 0)
        return 0;
    LAUNCH_KIND(c->kind, read_blocks, p, s, span_of(c, p), in);
    return cuda_launched(err);
}
