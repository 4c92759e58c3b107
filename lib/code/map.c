/* map.c - see map.h. Works on runs of blocks that are all coded or all raw. */
#include "code/map.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

int code_map_open(struct code_map *m, enum code_kind kind, size_t elements, struct err *err)
{
    CHECK((uint64_t)elements >> 34 == 0);
    *m = (struct code_map){ .kind = kind, .n_blocks = elements / CODE_BLOCK };
    m->is_coded = malloc(m->n_blocks + 1); /* never 0 bytes */
    m->before = calloc(m->n_blocks + 1, sizeof(*m->before));
    if (m->is_coded == NULL || m->before == NULL)
        return err_set(err, ERR_NOMEM, "map of a code: out of memory");
    memset(m->is_coded, 1, m->n_blocks);
    code_map_index(m);
    return 0;
}

void code_map_close(struct code_map *m)
{
    free(m->is_coded);
    free(m->before);
    *m = (struct code_map){ 0 };
}

void code_map_raw(struct code_map *m, size_t begin, size_t end)
{
    m->is_indexed = false;
    for (size_t b = begin / CODE_BLOCK;
         begin < end && b < m->n_blocks && b <= (end - 1) / CODE_BLOCK; b++)
        m->is_coded[b] = 0;
}

void code_map_index(struct code_map *m)
{
    m->is_indexed = true;
    for (size_t b = 0; b < m->n_blocks; b++)
        m->before[b + 1] = m->before[b] + m->is_coded[b];
}

size_t code_map_coded(const struct code_map *m)
{
    CHECK(m->is_indexed);
    return (size_t)m->before[m->n_blocks] * CODE_BLOCK;
}

size_t code_map_coded_before(const struct code_map *m, size_t begin)
{
    size_t b = begin / CODE_BLOCK;

    CHECK(m->is_indexed);
    return m->before[b < m->n_blocks ? b : m->n_blocks] * code_block_bytes(m->kind);
}

struct run {
    size_t n; /* elements */
    bool is_coded;
};

/* Returns the longest run of elements [at, end) of one kind. */
static struct run run_at(const struct code_map *m, size_t at, size_t end)
{
    size_t b = at / CODE_BLOCK;
    struct run r = { .is_coded = code_map_is_coded(m, b) };

    CHECK(at % CODE_BLOCK == 0);
    if (b >= m->n_blocks)
        return (struct run){ .n = end - at };
    while (b < m->n_blocks && b * CODE_BLOCK < end && code_map_is_coded(m, b) == r.is_coded)
        b++;
    if (b == m->n_blocks && !r.is_coded)
        return (struct run){ .n = end - at };
    r.n = (b * CODE_BLOCK < end ? b * CODE_BLOCK : end) - at;
    CHECK(!r.is_coded || r.n % CODE_BLOCK == 0);
    return r;
}

static size_t run_bytes(const struct code_map *m, const struct run *r)
{
    return r->is_coded ? r->n / CODE_BLOCK * code_block_bytes(m->kind) : r->n * sizeof(float);
}

size_t code_map_bytes(const struct code_map *m, size_t begin, size_t end)
{
    size_t bytes = 0;
    struct run r;

    for (size_t at = begin; at < end; at += r.n) {
        r = run_at(m, at, end);
        bytes += run_bytes(m, &r);
    }
    return bytes;
}

size_t code_map_coded_bytes(const struct code_map *m, size_t begin, size_t end)
{
    return code_map_coded_before(m, end) - code_map_coded_before(m, begin);
}

void code_map_write_coded(const struct code_map *m, const struct code_key *key, const float *x,
                          size_t begin, size_t end, uint8_t *out)
{
    struct run r;

    for (size_t at = begin; at < end; at += r.n) {
        r = run_at(m, at, end);
        if (!r.is_coded)
            continue;
        code_encode(m->kind, key, at, x + (at - begin), r.n / CODE_BLOCK, out);
        out += run_bytes(m, &r);
    }
}

void code_map_write(const struct code_map *m, const struct code_key *key, const float *x,
                    size_t begin, size_t end, uint8_t *out)
{
    struct run r;

    for (size_t at = begin; at < end; at += r.n) {
        r = run_at(m, at, end);
        if (r.is_coded)
            code_encode(m->kind, key, at, x + (at - begin), r.n / CODE_BLOCK, out);
        else
            memcpy(out, x + (at - begin), r.n * sizeof(float));
        out += run_bytes(m, &r);
    }
}

void code_map_read(const struct code_map *m, const uint8_t *in, size_t begin, size_t end, float *y)
{
    struct run r;

    for (size_t at = begin; at < end; at += r.n) {
        r = run_at(m, at, end);
        if (r.is_coded)
            code_decode(m->kind, in, r.n / CODE_BLOCK, y + (at - begin));
        else
            memcpy(y + (at - begin), in, r.n * sizeof(float));
        in += run_bytes(m, &r);
    }
}

void code_map_join(const struct code_map *m, const uint8_t *codes, const float *x, size_t begin,
                   size_t end, uint8_t *out)
{
    struct run r;

    for (size_t at = begin; at < end; at += r.n) {
        size_t bytes;

        r = run_at(m, at, end);
        bytes = run_bytes(m, &r);
        memcpy(out, r.is_coded ? codes : (const uint8_t *)(x + (at - begin)), bytes);
        codes += r.is_coded ? bytes : 0;
        out += bytes;
    }
}

void code_map_round(const struct code_map *m, const struct code_key *key, float *x, size_t begin,
                    size_t end, uint8_t *codes)
{
    size_t bytes = code_block_bytes(m->kind);
    uint8_t scratch[CODE_RAW_BYTES];
    struct run r;

    for (size_t at = begin; at < end; at += r.n) {
        r = run_at(m, at, end);
        for (size_t i = 0; r.is_coded && i < r.n; i += CODE_BLOCK) {
            uint8_t *code = codes != NULL ? codes : scratch;
            float *block = x + (at - begin) + i;

            code_encode(m->kind, key, at + i, block, 1, code);
            code_decode(m->kind, code, 1, block);
            codes += codes != NULL ? bytes : 0;
        }
    }
}
