/* reduce.c - the vectors are cut into blocks that stay in the first-level cache together with all
 * partial results, so memory is read once per source and written once per destination. Ordinary
 * stores are used: the line of an in-place result was just read, and non-temporal stores were
 * slower. */
#include "comm/reduce.h"

#include <string.h>

#include "base/check.h"
#include "base/clones.h"

enum { BLOCK_BYTES = 2048 };

#define SUM(a_, b_) ((a_) + (b_))
#define MAX(a_, b_) ((a_) > (b_) || (a_) != (a_) ? (a_) : (b_))
#define OR(a_, b_) ((a_) | (b_))

/* pair_*: out = a . b          quad_*: out = (a . b) . (c . d)          over n elements */
#define KERNELS(name_, type_, DO_)                                                                 \
    CLONES static void pair_##name_(void *out_, const void *const *in, size_t n)                     \
    {                                                                                              \
        type_ *restrict out = out_;                                                                \
        const type_ *restrict a = in[0], *restrict b = in[1];                                      \
                                                                                                   \
        for (size_t i = 0; i < n; i++)                                                             \
            out[i] = DO_(a[i], b[i]);                                                              \
    }                                                                                              \
    CLONES static void quad_##name_(void *out_, const void *const *in, size_t n)                     \
    {                                                                                              \
        type_ *restrict out = out_;                                                                \
        const type_ *restrict a = in[0], *restrict b = in[1], *restrict c = in[2],                 \
                              *restrict d = in[3];                                                 \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            type_ left = DO_(a[i], b[i]), right = DO_(c[i], d[i]);                                 \
                                                                                                   \
            out[i] = DO_(left, right);                                                             \
        }                                                                                          \
    }

KERNELS(sum_f32, float, SUM)
KERNELS(max_f32, float, MAX)
KERNELS(sum_f64, double, SUM)
KERNELS(max_f64, double, MAX)
KERNELS(sum_i64, uint64_t, SUM) /* unsigned: overflow wraps around */
KERNELS(max_i64, int64_t, MAX)
KERNELS(or_i64, int64_t, OR)

struct kernels {
    size_t element_bytes;
    void (*pair)(void *out, const void *const *in, size_t n);
    void (*quad)(void *out, const void *const *in, size_t n);
};

#define ROW(name_, type_) { sizeof(type_), pair_##name_, quad_##name_ }
static const struct kernels table[][3] = {
    [TENSOR_F32] = { [COMM_SUM] = ROW(sum_f32, float), [COMM_MAX] = ROW(max_f32, float) },
    [TENSOR_F64] = { [COMM_SUM] = ROW(sum_f64, double), [COMM_MAX] = ROW(max_f64, double) },
    [TENSOR_I64] = { [COMM_SUM] = ROW(sum_i64, int64_t),
                     [COMM_MAX] = ROW(max_i64, int64_t),
                     [COMM_OR] = ROW(or_i64, int64_t) },
};

bool reduce_can(enum tensor_dtype dtype, enum comm_op op)
{
    return (size_t)dtype < COUNT_OF(table) && (size_t)op < COUNT_OF(table[0]) &&
           table[dtype][op].pair != NULL;
}

struct block {
    const struct kernels *k;
    const void *const *from;
    const uint32_t *leaves;
    size_t offset, n;                   /* byte offset in every source; number of elements */
    uint8_t (*partial)[2][BLOCK_BYTES]; /* [REDUCE_DEPTH_MAX]: results of the left and the right half */
};

static const void *source(const struct block *b, uint32_t i)
{
    return (const uint8_t *)b->from[i] + b->offset;
}

uint32_t reduce_cut(const uint32_t *leaves, uint32_t first, uint32_t n)
{
    uint32_t all = leaves != NULL ? leaves[first + n] - leaves[first] : n, left = 1, i;

    while (left * 2 < all)
        left *= 2;
    if (leaves == NULL)
        return first + left;
    for (i = first + 1; i < first + n && leaves[i] - leaves[first] < left; i++)
        continue;
    return i < first + n && leaves[i] - leaves[first] == left ? i : 0;
}

/* Returns the reduction of sources [first, first + n): the source itself, or `out`, which it
 * fills. */
static const void *tree(struct block *b, uint32_t first, uint32_t n, uint32_t depth, void *out)
{
    const void *in[4];
    uint32_t cut;

    if (n == 1)
        return source(b, first);
    if (n == 4 && b->leaves == NULL) {
        for (uint32_t i = 0; i < 4; i++)
            in[i] = source(b, first + i);
        b->k->quad(out, in, b->n);
        return out;
    }
    cut = reduce_cut(b->leaves, first, n);
    CHECK(cut > first);
    in[0] = tree(b, first, cut - first, depth + 1, b->partial[depth][0]);
    in[1] = tree(b, cut, first + n - cut, depth + 1, b->partial[depth][1]);
    b->k->pair(out, in, b->n);
    return out;
}

void reduce(void *const *to, uint32_t n_to, const void *const *from, uint32_t n_from,
            const uint32_t *leaves, size_t count, enum tensor_dtype dtype, enum comm_op op)
{
    _Alignas(64) uint8_t out[BLOCK_BYTES], partial[REDUCE_DEPTH_MAX][2][BLOCK_BYTES];
    struct block b = { .from = from, .leaves = leaves, .partial = partial };
    size_t per_block;

    CHECK(reduce_can(dtype, op) && n_from >= 1 && n_from <= COMM_MAX_RANKS);
    b.k = &table[dtype][op];
    per_block = BLOCK_BYTES / b.k->element_bytes;
    for (size_t at = 0; at < count; at += per_block) {
        const void *result;

        b.n = count - at < per_block ? count - at : per_block;
        b.offset = at * b.k->element_bytes;
        result = tree(&b, 0, n_from, 0, out);
        for (uint32_t i = 0; i < n_to; i++)
            if ((uint8_t *)to[i] + b.offset != result)
                memcpy((uint8_t *)to[i] + b.offset, result, b.n * b.k->element_bytes);
    }
}

/* Each addition of the tree follows the last source of its right half. */
static void count_merges(const uint32_t *leaves, uint32_t first, uint32_t n, uint8_t *merges)
{
    uint32_t cut;

    if (n == 1)
        return;
    cut = reduce_cut(leaves, first, n);
    CHECK(cut > first);
    count_merges(leaves, first, cut - first, merges);
    count_merges(leaves, cut, first + n - cut, merges);
    merges[first + n - 1]++;
}

void reduce_merges(const uint32_t *leaves, uint32_t n, uint8_t *merges)
{
    CHECK(n >= 1 && n <= COMM_MAX_RANKS);
    memset(merges, 0, n);
    count_merges(leaves, 0, n, merges);
}
