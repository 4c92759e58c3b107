/* sharded.c - sums of squares of sharded parameters: a sum for each block of 64 rows, and a sum for each shard
 * of those of its blocks. lib/ps computes the same sums of the rows that a server holds. */
#include <string.h>

#include "optim/optim_priv.h"
#include "tensor/packed.h"
#include "tensor/shards.h"

/* The sum of n floats from float `at` of the arena, in place. */
static double dense_sum(const float *g, size_t n)
{
    double sum = 0;

    for (size_t at = 0; at < n; at += OPTIM_BLOCK) {
        double part;

        optim_square_sums(g + at, n - at < OPTIM_BLOCK ? n - at : OPTIM_BLOCK, &part);
        sum += part;
    }
    return sum;
}

/* The sum of floats [begin, end) of a table. */
static double packed_sum(const struct optim_state *s, const struct packed_table *table,
                         size_t begin, size_t end)
{
    double sum = 0;

    for (size_t at = begin; at < end; at += OPTIM_BLOCK) {
        size_t stop = end - at < OPTIM_BLOCK ? end : at + OPTIM_BLOCK;
        struct packed_run run =
            packed_runs(s->packed, (uint32_t)(table - s->packed->tables), at, stop);
        double sums[OPTIM_SUMS] = { 0 };

        while (packed_next(&run))
            optim_square_add(sums, run.at - at, s->values + run.values, run.n);
        sum += optim_square_total(sums);
    }
    return sum;
}

size_t optim_sharded_blocks(const struct optim_param *p)
{
    return (p->n - 1) / (SHARD_BLOCK_ROWS * p->width) + 1;
}

void optim_sharded_squares(const struct optim_state *s, const struct optim_param *p, size_t first,
                           size_t end, double *sums)
{
    size_t floats = SHARD_BLOCK_ROWS * p->width;

    for (size_t b = first; b < end; b++) {
        size_t at = b * floats, stop = p->n - at < floats ? p->n : at + floats;

        if (s->packed == NULL || p->table == NULL)
            sums[b] = dense_sum(s->g + p->first + at, stop - at);
        else if (s->packed->marks[p->table->first_word + b] == 0) /* a word has 64 rows */
            sums[b] = 0;
        else
            sums[b] = packed_sum(s, p->table, at, stop);
    }
}

double optim_sharded_total(const struct optim_param *params, const size_t *first_sum,
                           uint32_t n_params, const double *sums)
{
    double shards[SHARDS] = { 0 }, total = 0;

    for (uint32_t i = 0; i < n_params; i++)
        for (size_t b = first_sum[i]; b < first_sum[i + 1]; b++)
            shards[shard_of_block(params[i].first_shard, b - first_sum[i])] += sums[b];
    for (uint32_t k = 0; k < SHARDS; k++)
        total += shards[k];
    return total;
}
