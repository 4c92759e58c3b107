/* shard_files.c - see shard_files.h. */
#include "ckpt/shard_files.h"

#include <inttypes.h>
#include <stdio.h>

#include <xxhash.h>

const struct ckpt_integers ckpt_integers[CKPT_INTEGERS] = {
    { "last_step", CKPT_TRAINED },
    { "count", CKPT_TRAINED },
    { "candidate_ids", CKPT_CANDIDATES },
    { "candidate_last_step", CKPT_CANDIDATES },
    { "candidate_count", CKPT_CANDIDATES },
};

void ckpt_shard_file_name(enum ckpt_shard_kind kind, uint32_t file, char out[CKPT_FILE_NAME_BYTES])
{
    snprintf(out, CKPT_FILE_NAME_BYTES, "%s-%05" PRIu32 "-of-%05d.safetensors",
             kind == CKPT_SHARD_MODEL ? "model" : "optimizer", file, CKPT_SHARD_FILES);
}

/* Blocks of 64 rows are dealt to the shards in turn. Counting from first_shard instead of 0, block b has the
 * number b + first_shard, and its shard is this number mod 1024. Returns how many of the numbers below `end`
 * belong to the file. */
static uint64_t blocks_below(uint32_t file, uint64_t end)
{
    uint64_t whole = end / SHARDS, rest = end % SHARDS, first = (uint64_t)file * CKPT_FILE_SHARDS;

    rest = rest < first ? 0 : rest - first;
    return whole * CKPT_FILE_SHARDS + (rest < CKPT_FILE_SHARDS ? rest : CKPT_FILE_SHARDS);
}

uint64_t ckpt_shard_rows_before(uint32_t first_shard, uint32_t file, uint64_t row)
{
    uint64_t block = row / SHARD_BLOCK_ROWS;
    uint64_t blocks = blocks_below(file, block + first_shard) - blocks_below(file, first_shard);

    return blocks * SHARD_BLOCK_ROWS +
           (ckpt_shard_file_of(first_shard, row) == file ? row % SHARD_BLOCK_ROWS : 0);
}

bool ckpt_shard_next(uint64_t rows, uint32_t first_shard, uint32_t file, uint64_t *row, uint64_t *n)
{
    uint64_t shard, end;

    if (*row >= rows)
        return false;
    shard = shard_of_block(first_shard, *row / SHARD_BLOCK_ROWS);
    if (shard / CKPT_FILE_SHARDS != file) { /* continue at the first shard of the file */
        uint64_t distance = ((uint64_t)file * CKPT_FILE_SHARDS + SHARDS - shard) % SHARDS;

        *row = (*row / SHARD_BLOCK_ROWS + distance) * SHARD_BLOCK_ROWS;
        if (*row >= rows)
            return false;
        shard = (uint64_t)file * CKPT_FILE_SHARDS;
    }
    end =
        (*row / SHARD_BLOCK_ROWS + CKPT_FILE_SHARDS - shard % CKPT_FILE_SHARDS) * SHARD_BLOCK_ROWS;
    *n = (end < rows ? end : rows) - *row;
    return true;
}

uint64_t ckpt_sizes_before(const struct ckpt_sizes *s, enum ckpt_group group, uint32_t file,
                           uint32_t shard)
{
    uint64_t n = 0;

    for (uint32_t i = file * CKPT_FILE_SHARDS; i < shard; i++)
        n += s->rows[group][i];
    return n;
}

uint64_t ckpt_shard_sum(const void *data, uint64_t n, size_t row_bytes, uint64_t at)
{
    const char *row = data;
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n; i++, row += row_bytes, at += row_bytes)
        sum += XXH3_64bits_withSeed(row, row_bytes, at);
    return sum;
}
