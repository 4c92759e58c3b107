/* pack.c - plans the packs of records with a first-fit algorithm in file order: a record is added
 * to the first open pack with room for it, else to a new pack. At most OPEN_MAX packs are open;
 * before another is opened, the pack with the least room is closed. The plan is therefore a
 * function of the lengths only, the records of a pack are close to each other in the files, and
 * packs contain little padding. Packs are numbered in the order of opening and never contain
 * records of different parts of a mixture. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/err.h"
#include "data/data_priv.h"

enum { OPEN_MAX = 64 };

struct plan {
    struct data_packs *packs;
    const uint32_t *lengths; /* [n_records] */
    uint32_t *pack_of;       /* [n_records] owned */
    uint32_t open[OPEN_MAX]; /* open packs, in the order of opening */
    uint64_t room[OPEN_MAX]; /* items that still fit into each open pack */
    uint32_t n_open;
};

static void close_pack(struct plan *p, uint32_t i)
{
    p->n_open--;
    memmove(&p->open[i], &p->open[i + 1], (p->n_open - i) * sizeof(*p->open));
    memmove(&p->room[i], &p->room[i + 1], (p->n_open - i) * sizeof(*p->room));
}

static uint32_t open_pack(struct plan *p)
{
    uint32_t fullest = 0;

    if (p->n_open == OPEN_MAX) {
        for (uint32_t i = 1; i < OPEN_MAX; i++)
            if (p->room[i] < p->room[fullest])
                fullest = i;
        close_pack(p, fullest);
    }
    p->open[p->n_open] = p->packs->n++;
    p->room[p->n_open] = p->packs->length;
    return p->n_open++;
}

/* Plans the packs of the records [first, first + n). */
static void plan_part(struct plan *p, uint64_t first, uint64_t n)
{
    p->n_open = 0;
    for (uint64_t r = first; r < first + n; r++) {
        uint32_t length = p->lengths[r], i = 0;

        p->pack_of[r] = DATA_SKIPPED;
        if (length == DATA_SKIPPED)
            continue;
        while (i < p->n_open && p->room[i] < length)
            i++;
        if (i == p->n_open)
            i = open_pack(p);
        p->pack_of[r] = p->open[i];
        p->room[i] -= length;
        p->packs->items += length;
        if (p->room[i] == 0)
            close_pack(p, i);
    }
}

static int plan_parts(struct data_set *s, struct plan *p, struct err *err)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        struct data_order_part *part = &s->parts[i];
        uint32_t before = p->packs->n;
        uint64_t first = part->first;

        plan_part(p, first, part->n);
        part->first = before;
        part->n = p->packs->n - before;
        if (part->n == 0)
            return err_set(err, ERR_INPUT, "the files from '%s' on contain only bad records",
                           s->files[data_file_of(s, first)].origin);
    }
    return 0;
}

/* Lists the records by pack with a counting sort. */
static int list_records(struct plan *p, uint64_t n_records, struct err *err)
{
    struct data_packs *packs = p->packs;
    uint32_t n = 0;

    packs->starts = calloc((size_t)packs->n + 2, sizeof(*packs->starts));
    packs->records = malloc(n_records * sizeof(*packs->records));
    if (packs->starts == NULL || packs->records == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %" PRIu64 " records in packs", n_records);
    /* First, starts[i + 2] counts the records of pack i. Then starts[i + 1] is the position of the
     * next record of pack i, and finally the start of pack i + 1. */
    for (uint64_t r = 0; r < n_records; r++)
        if (p->pack_of[r] != DATA_SKIPPED)
            packs->starts[p->pack_of[r] + 2]++;
    for (uint32_t i = 0; i < packs->n; i++) {
        n += packs->starts[i + 2];
        packs->starts[i + 2] = n;
    }
    for (uint64_t r = 0; r < n_records; r++)
        if (p->pack_of[r] != DATA_SKIPPED)
            packs->records[packs->starts[p->pack_of[r] + 1]++] = (uint32_t)r;
    return 0;
}

/* Adds the lengths to the digest, so that tasks with different lengths do not train together. */
static int add_to_digest(struct data_set *s, const uint32_t *lengths, struct err *err)
{
    struct buf text = { 0 };
    uint8_t digest[DIGEST_BYTES];

    buf_printf(&text, "%s\npacks %" PRIu32 " %" PRIu64 " %08" PRIx32 "\n", s->digest, s->packs->n,
               s->packs->items, crc32c(0, lengths, s->n_records * sizeof(*lengths)));
    if (text.failed)
        return err_set(err, ERR_NOMEM, "data digest: out of memory");
    digest_sha256(text.data, text.len, digest);
    digest_hex(digest, s->digest);
    buf_fini(&text);
    return 0;
}

int data_pack(struct data_set *s, const struct data_opts *opts, struct err *err)
{
    struct plan p = { .packs = calloc(1, sizeof(*p.packs)) };
    uint32_t *lengths;
    int rc = 0;

    if (s->n_records >= DATA_SKIPPED - 1) {
        free(p.packs);
        return err_set(err, ERR_INPUT, "%" PRIu64 " records, and at most 2^32 - 3 can be packed",
                       s->n_records);
    }
    lengths = malloc(s->n_records * sizeof(*lengths));
    p.pack_of = malloc(s->n_records * sizeof(*p.pack_of));
    if (p.packs == NULL || lengths == NULL || p.pack_of == NULL)
        rc =
            err_set(err, ERR_NOMEM, "out of memory for %" PRIu64 " records in packs", s->n_records);
    if (rc == 0) {
        p.lengths = lengths;
        p.packs->length =
            s->layout.elements[s->layout.pack_by] / s->layout.inner[s->layout.pack_by];
        rc = data_record_lengths(s, opts, lengths, err);
    }
    if (rc == 0)
        rc = plan_parts(s, &p, err);
    if (rc == 0)
        rc = list_records(&p, s->n_records, err);
    s->packs = p.packs; /* owned by the set from here on, also after an error */
    if (rc == 0)
        rc = add_to_digest(s, lengths, err);
    free(lengths);
    free(p.pack_of);
    return rc < 0 ? err_wrap(err, rc, "pack records") : 0;
}

void data_packs_free(struct data_packs *p)
{
    if (p == NULL)
        return;
    free(p->starts);
    free(p->records);
    free(p);
}

uint64_t data_samples(const struct data_set *s)
{
    return s->packs != NULL ? s->packs->n : s->n_records;
}

double data_pack_fill(const struct data_set *s)
{
    if (s->packs == NULL)
        return 1;
    return (double)s->packs->items / ((double)s->packs->n * (double)s->packs->length);
}
