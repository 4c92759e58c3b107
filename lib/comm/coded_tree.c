/* coded_tree.c - see coded_tree.h. Each block of CODE_BLOCK numbers is summed on its own, with all partial
 * results in the first-level cache. */
#include "comm/coded_tree.h"

#include <string.h>

#include "base/check.h"
#include "base/clones.h"
#include "code/map.h"
#include "comm/reduce.h"

enum { DEPTH_MAX = 17 /* levels of a tree over COMM_MAX_LEAVES leaves */ };

struct block {
    const struct coded_tree *tree;
    const struct coded_sources *sources;
    size_t at, n;       /* the first element, and the number of elements */
    size_t offset;      /* of the first element in every source that is float32 */
    size_t wire_offset; /* bytes in every source of wire form */
    size_t more_offset; /* likewise of CODED_MORE */
    float (*partial)[2][CODE_BLOCK]; /* [DEPTH_MAX] */
};

CLONES static void add(float *restrict out, const float *restrict a, const float *restrict b,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void round_group(const struct block *b, uint32_t first, float *x)
{
    const struct coded_tree *t = b->tree;
    struct code_key key = t->key;

    key.place = b->sources->lanes[first] / t->group_lanes;
    code_map_round(t->map, &key, x, b->at, b->at + b->n, NULL);
}

/* Returns source i as float32: itself, or `out`, which it fills. */
static const float *leaf(const struct block *b, uint32_t i, float *out)
{
    const struct coded_source *s = &b->sources->from[i];

    if (s->form == CODED_WIRE || s->form == CODED_MORE) {
        size_t offset = s->form == CODED_WIRE ? b->wire_offset : b->more_offset;

        code_map_read(b->tree->map, (const uint8_t *)s->data + offset, b->at, b->at + b->n, out);
        return out;
    }
    if (s->form == CODED_SUM)
        return (const float *)s->data + b->offset;
    memcpy(out, (const float *)s->data + b->offset, b->n * sizeof(*out));
    round_group(b, i, out);
    return out;
}

/* Returns the sum of sources [first, first + n): a source, or `out`, which it fills. */
static const float *sum(const struct block *b, uint32_t first, uint32_t n, uint32_t depth,
                        float *out)
{
    const uint32_t *lanes = b->sources->lanes;
    const float *left, *right;
    uint32_t cut;

    if (n == 1)
        return leaf(b, first, out);
    cut = reduce_cut(lanes, first, n);
    CHECK(cut > first && depth < DEPTH_MAX);
    left = sum(b, first, cut - first, depth + 1, b->partial[depth][0]);
    right = sum(b, cut, first + n - cut, depth + 1, b->partial[depth][1]);
    add(out, left, right, b->n);
    if (lanes[first + n] - lanes[first] == b->tree->group_lanes)
        round_group(b, first, out);
    return out;
}

void coded_tree_sum(const struct coded_tree *t, size_t begin, size_t end, float *out)
{
    _Alignas(64) float result[CODE_BLOCK], partial[DEPTH_MAX][2][CODE_BLOCK];
    struct block b = { .tree = t, .partial = partial };

    CHECK(begin % CODE_BLOCK == 0);
    for (b.at = begin; b.at < end; b.at += b.n) {
        bool is_coded = code_map_is_coded(t->map, b.at / CODE_BLOCK);
        size_t bytes;
        const float *x;

        b.n = end - b.at < CODE_BLOCK ? end - b.at : CODE_BLOCK;
        b.offset = b.at - begin;
        b.sources = is_coded ? &t->coded : &t->raw;
        bytes = code_map_bytes(t->map, b.at, b.at + b.n);
        x = sum(&b, 0, b.sources->n, 0, result);
        if (x != out + b.offset)
            memcpy(out + b.offset, x, b.n * sizeof(*out));
        b.wire_offset += bytes;
        b.more_offset += is_coded ? bytes : 0;
    }
}
