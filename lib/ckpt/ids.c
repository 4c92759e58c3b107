/* ids.c - see ids.h. */
#include "ckpt/ids.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/rows.h"

enum { CHUNK = 1 << 15 }; /* rows that are read at once */

/* Finds <table>/<part>, a list of n integers; n UINT64_MAX: any number. */
static int find(const struct ckpt_rows *rows, enum ckpt_shard_kind kind, const char *table,
                const char *part, uint64_t n, uint32_t *out, struct err *err)
{
    struct ckpt_rows_tensor t;
    char *name;
    int rc;

    if (asprintf(&name, "%s/%s", table, part) < 0)
        return err_set(err, ERR_NOMEM, "ids of a checkpoint: out of memory");
    rc = ckpt_rows_find(rows, kind, name, out, err);
    free(name);
    if (rc < 0)
        return rc;
    ckpt_rows_describe(rows, kind, *out, &t);
    if (t.dtype != TENSOR_I64 || t.shape.rank != 1 || (n != UINT64_MAX && t.rows != n))
        return err_set(err, ERR_CORRUPT, "tensor '%s': expected int64, one for each row", t.name);
    return 0;
}

int ckpt_ids_open(const struct ckpt_rows *rows, const char *table, enum ckpt_group group,
                  struct ckpt_ids *out, struct err *err)
{
    static const char *const names[CKPT_GROUPS][3] = {
        { "ids", "last_step", "count" },
        { "candidate_ids", "candidate_last_step", "candidate_count" },
    };
    struct ckpt_rows_tensor t;
    int rc;

    *out = (struct ckpt_ids){ .rows = rows,
                              .table = table,
                              .group = group,
                              .kind = group == CKPT_TRAINED ? CKPT_SHARD_MODEL
                                                            : CKPT_SHARD_OPTIMIZER };
    rc = find(rows, out->kind, table, names[group][0], UINT64_MAX, &out->ids, err);
    if (rc < 0)
        return rc;
    ckpt_rows_describe(rows, out->kind, out->ids, &t);
    out->n = t.rows;
    rc = find(rows, CKPT_SHARD_OPTIMIZER, table, names[group][1], t.rows, &out->last_steps, err);
    if (rc == 0)
        rc = find(rows, CKPT_SHARD_OPTIMIZER, table, names[group][2], t.rows, &out->counts, err);
    return rc;
}

int ckpt_ids_find(const struct ckpt_ids *t, uint32_t shard, uint64_t *out, struct err *err)
{
    uint64_t low = 0, high = t->n;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int64_t id;
        int rc = ckpt_rows_read(t->rows, t->kind, t->ids, middle, 1, &id, err);

        if (rc < 0)
            return rc;
        if (shard_of_id(id) < shard)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low;
    return 0;
}

int ckpt_ids_read(const struct ckpt_ids *t, uint64_t first, uint64_t n, int64_t *ids,
                  int64_t *last_steps, int64_t *counts, struct err *err)
{
    int rc = ckpt_rows_read(t->rows, t->kind, t->ids, first, n, ids, err);

    if (rc == 0)
        rc =
            ckpt_rows_read(t->rows, CKPT_SHARD_OPTIMIZER, t->last_steps, first, n, last_steps, err);
    if (rc == 0)
        rc = ckpt_rows_read(t->rows, CKPT_SHARD_OPTIMIZER, t->counts, first, n, counts, err);
    return rc;
}

/* ---- checking ---- */

struct scan { /* of a group */
    struct ckpt_ids of;
    int64_t *ids, *last_steps, *counts; /* owned [CHUNK] */
    uint64_t first, n;                  /* rows of the chunk */
    uint64_t at;
};

static void close_scan(struct scan *s)
{
    free(s->ids);
    free(s->last_steps);
    free(s->counts);
}

static int open_scan(struct scan *s, const struct ckpt_rows *rows, const char *table,
                     enum ckpt_group group, struct err *err)
{
    *s = (struct scan){ .ids = calloc(CHUNK, sizeof(*s->ids)),
                        .last_steps = calloc(CHUNK, sizeof(*s->ids)),
                        .counts = calloc(CHUNK, sizeof(*s->ids)) };
    if (s->ids == NULL || s->last_steps == NULL || s->counts == NULL)
        return err_set(err, ERR_NOMEM, "ids of a checkpoint: out of memory");
    return ckpt_ids_open(rows, table, group, &s->of, err);
}

/* Do the ids a, b follow each other in a file? */
static bool is_before(int64_t a, int64_t b)
{
    uint32_t x = shard_of_id(a), y = shard_of_id(b);

    return x < y || (x == y && a < b);
}

/* Compares each row of the chunk with the row before it; `before`: the last id of the chunk before. */
static int check_chunk(const struct scan *s, int64_t before, uint64_t step, struct err *err)
{
    for (uint64_t i = 0; i < s->n; i++) {
        int64_t last = i > 0 ? s->ids[i - 1] : before;

        if (s->first + i > 0 && !is_before(last, s->ids[i]))
            return err_set(err, ERR_CORRUPT,
                           "table '%s', row %" PRIu64 ": id %" PRId64 " after id %" PRId64
                           "; expected the order of shards, in a shard ascending ids",
                           s->of.table, s->first + i, s->ids[i], last);
        if (s->last_steps[i] < 1 || (uint64_t)s->last_steps[i] > step || s->counts[i] < 1 ||
            s->counts[i] > UINT32_MAX)
            return err_set(err, ERR_CORRUPT,
                           "table '%s', id %" PRId64 ": count %" PRId64 ", last step %" PRId64
                           "; expected at least 1, the step at most %" PRIu64,
                           s->of.table, s->ids[i], s->counts[i], s->last_steps[i], step);
    }
    return 0;
}

/* Moves to the next row. *is_end: all rows were read. */
static int next(struct scan *s, uint64_t step, bool *is_end, struct err *err)
{
    int64_t before = s->n > 0 ? s->ids[s->n - 1] : 0;
    int rc;

    *is_end = s->at == s->of.n;
    if (*is_end || s->at < s->first + s->n)
        return 0;
    s->first = s->at;
    s->n = s->of.n - s->at < CHUNK ? s->of.n - s->at : CHUNK;
    rc = ckpt_ids_read(&s->of, s->first, s->n, s->ids, s->last_steps, s->counts, err);
    return rc == 0 ? check_chunk(s, before, step, err) : rc;
}

static int check_table(const struct ckpt_rows *rows, const char *table, uint64_t step,
                       struct err *err)
{
    struct scan scans[CKPT_GROUPS] = { { .ids = NULL } };
    bool is_end[CKPT_GROUPS] = { false };
    int rc = 0;

    for (int g = 0; rc == 0 && g < CKPT_GROUPS; g++)
        rc = open_scan(&scans[g], rows, table, g, err);
    while (rc == 0 && !(is_end[0] && is_end[1])) {
        int64_t id[CKPT_GROUPS] = { 0 };

        for (int g = 0; rc == 0 && g < CKPT_GROUPS; g++) {
            rc = next(&scans[g], step, &is_end[g], err);
            if (rc == 0 && !is_end[g])
                id[g] = scans[g].ids[scans[g].at - scans[g].first];
        }
        if (rc < 0 || (is_end[0] && is_end[1]))
            break;
        if (!is_end[0] && !is_end[1] && id[0] == id[1])
            rc = err_set(err, ERR_CORRUPT, "table '%s': id %" PRId64 " is trained and a candidate",
                         table, id[0]);
        /* the row that comes first */
        scans[is_end[0] || (!is_end[1] && is_before(id[1], id[0]))].at++;
    }
    for (int g = 0; g < CKPT_GROUPS; g++)
        close_scan(&scans[g]);
    return rc;
}

/* Checks that each file has the ids of its shards; they are in order. */
static int check_files(const struct ckpt_rows *rows, const char *table, struct err *err)
{
    int rc = 0;

    for (int g = 0; rc == 0 && g < CKPT_GROUPS; g++) {
        struct ckpt_rows_tensor t;
        struct ckpt_ids ids;
        uint64_t expected = 0, found;

        rc = ckpt_ids_open(rows, table, g, &ids, err);
        if (rc < 0)
            return rc;
        ckpt_rows_describe(rows, ids.kind, ids.ids, &t);
        for (uint32_t f = 0; rc == 0 && f < CKPT_SHARD_FILES; f++) {
            expected += t.in_file[f];
            rc = ckpt_ids_find(&ids, (f + 1) * CKPT_FILE_SHARDS, &found, err);
            if (rc == 0 && found != expected)
                rc = err_set(err, ERR_CORRUPT,
                             "tensor '%s': file %" PRIu32 " ends with row %" PRIu64
                             ", but its shards with row %" PRIu64,
                             t.name, f, expected, found);
        }
    }
    return rc;
}

int ckpt_ids_check(const struct ckpt_rows *rows, uint64_t step, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < ckpt_rows_count(rows, CKPT_SHARD_MODEL); i++) {
        struct ckpt_rows_tensor t;

        ckpt_rows_describe(rows, CKPT_SHARD_MODEL, i, &t);
        if (t.group > 0 && t.dtype == TENSOR_F32)
            rc = check_table(rows, t.name, step, err);
        if (rc == 0 && t.group > 0 && t.dtype == TENSOR_F32)
            rc = check_files(rows, t.name, err);
    }
    return rc;
}
