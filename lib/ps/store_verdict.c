/* store_verdict.c - the pending gradient: clipping, checksums, squares. */
#include <string.h>

#include "base/check.h"
#include "base/checksum.h"
#include "ps/store_priv.h"

void ps_store_clip(struct ps_store *s, float limit)
{
    CHECK(s->is_pending);
    for (uint32_t i = 0; i < s->n_tables; i++)
        optim_clamp(s->tables[i].pending.values, s->tables[i].pending.n * s->tables[i].is.width,
                    limit);
}

/* Adds the squares of one block of rows: g [n rows] of the block that begins with row
 * `first_row`. Wide rows make several optimizer blocks, which are added in order. */
static double block_squares(const uint64_t *rows, const float *g, uint64_t n, size_t width)
{
    double sums[OPTIM_SUMS] = { 0 }, total = 0;
    size_t block = 0; /* first float of the optimizer block in `sums` */

    if (PS_BLOCK_ROWS * width <= OPTIM_BLOCK)
        return optim_square_rows(rows, n, width, PS_BLOCK_ROWS, g);
    for (uint64_t i = 0; i < n; i++) {
        size_t at = rows[i] % PS_BLOCK_ROWS * width, end = at + width;

        while (at < end) {
            size_t stop;

            if (at >= block + OPTIM_BLOCK) {
                total += optim_square_total(sums);
                memset(sums, 0, sizeof(sums));
                block = at / OPTIM_BLOCK * OPTIM_BLOCK;
            }
            stop = end < block + OPTIM_BLOCK ? end : block + OPTIM_BLOCK;
            optim_square_add(sums, at - block, g, stop - at);
            g += stop - at;
            at = stop;
        }
    }
    return total + optim_square_total(sums);
}

/* Returns the contribution of a row, below 2^25: the caller reduces it by CHECKSUM_MODULUS. A row that is marked
 * with a gradient of zero differs from a row without a gradient. */
static uint32_t row_checksum(size_t at, const float *g, size_t width, bool *is_finite)
{
    return checksum_part(g, width, at, is_finite) + checksum_key(~(uint64_t)at);
}

/* Of the pending gradient of a dynamic table. */
static void judge_dynamic(const struct ps_store *s, uint32_t table, struct ps_verdict *out)
{
    static const uint64_t first_of_block = 0;
    const struct store_table *t = &s->tables[table];
    size_t width = t->is.width;

    for (uint64_t k = 0; k < t->pending.n; k++) {
        uint64_t row = t->pending.rows[k];
        uint32_t shard = ps_shard_of(t->is.first_shard, row);
        const float *g = t->pending.values + k * width;

        out->checksums[shard] = checksum_add(
            out->checksums[shard], row_checksum(ps_mix64(row + table), g, width, &out->is_finite));
        out->squares[shard] += block_squares(&first_of_block, g, 1, width);
    }
}

void ps_store_verdict(const struct ps_store *s, struct ps_verdict *out)
{
    *out = (struct ps_verdict){ .is_finite = true };
    CHECK(s->is_pending);
    for (uint32_t i = 0; i < s->n_tables; i++) {
        const struct store_table *t = &s->tables[i];
        const uint64_t *rows = t->pending.rows;
        size_t width = t->is.width;

        if (store_is_dynamic(t)) {
            judge_dynamic(s, i, out);
            continue;
        }
        for (uint64_t k = 0, n; k < t->pending.n; k += n) {
            uint64_t block = rows[k] / PS_BLOCK_ROWS;
            uint32_t shard = ps_shard_of(t->is.first_shard, rows[k]);
            uint32_t sum = 0; /* of at most 64 rows: no overflow */

            for (n = 0; k + n < t->pending.n && rows[k + n] / PS_BLOCK_ROWS == block; n++)
                sum += row_checksum(t->offset + ps_local_of(rows[k + n]) * width,
                                    t->pending.values + (k + n) * width, width, &out->is_finite);
            out->checksums[shard] = checksum_add(out->checksums[shard], sum);
            out->squares[shard] += block_squares(rows + k, t->pending.values + k * width, n, width);
        }
    }
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        out->checksum = checksum_add(out->checksum, out->checksums[shard]);
}
