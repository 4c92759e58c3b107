/* store_dynamic.c - dynamic tables: rows that exist from the first step on that trains them.
 *
 * A row that is absent reads as its initial weights, a function of its id. Rules, all of them functions
 * of the steps and ids alone, so that every server and every repetition of a step has the same rows:
 *   - A step that is applied counts each row with a gradient, also with a gradient of zero. Before the step
 *     that is the n-th of a row (rules.admit_after), the gradient of the row is dropped; from that step on
 *     the row has weights and slots, and is trained. So a row that is admitted exists before its update.
 *   - Rows without a gradient are not updated (as with `lazy`), only their averages move.
 *   - After the update of a step that rules.sweep_steps divides, rows expire, and those above the shard's
 *     part of max_rows are removed (ps_dynamic_sweep()). A removed row is as if it had never existed.
 *     Each shard decides alone, so the decision does not depend on where shards are. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/err.h"
#include "ps/store_priv.h"

int store_dynamic_open(struct ps_store *s, struct store_table *t, struct err *err)
{
    const struct ps_rules *r = &t->is.rules;

    CHECK(r->sweep_steps > 0 && (r->max_rows == 0 || r->max_rows >= PS_SHARDS));
    t->dynamic = calloc(PS_SHARDS, sizeof(*t->dynamic));
    if (t->dynamic == NULL)
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        ps_dynamic_init(&t->dynamic[i], s->n_parts * t->is.width, r->admit_after);
    return 0;
}

void store_dynamic_close(struct store_table *t)
{
    for (uint32_t i = 0; t->dynamic != NULL && i < PS_SHARDS; i++)
        ps_dynamic_fini(&t->dynamic[i]);
    free(t->dynamic);
    t->dynamic = NULL;
}

/* ---- shards ---- */

void store_dynamic_add(struct ps_store *s, uint32_t shard, bool is_complete)
{
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (store_is_dynamic(&s->tables[i])) {
            s->tables[i].dynamic[shard].is_complete = is_complete;
            s->tables[i].dynamic[shard].filled = 0;
        }
}

void store_dynamic_drop(struct ps_store *s, uint32_t shard)
{
    for (uint32_t i = 0; i < s->n_tables; i++) {
        struct store_table *t = &s->tables[i];
        struct ps_dynamic *d;

        if (!store_is_dynamic(t))
            continue;
        d = &t->dynamic[shard];
        s->dynamic_bytes -= ps_dynamic_bytes(d);
        t->trained -= d->n_rows;
        ps_dynamic_fini(d);
        ps_dynamic_init(d, s->n_parts * t->is.width, t->is.rules.admit_after);
    }
}

void ps_store_restart(struct ps_store *s, uint32_t shard)
{
    CHECK(shard < PS_SHARDS && store_holds(s, shard) && !s->is_pending);
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (store_is_dynamic(&s->tables[i])) {
            s->tables[i].trained -= s->tables[i].dynamic[shard].n_rows;
            ps_dynamic_clear(&s->tables[i].dynamic[shard]); /* its memory stays, and is counted */
        }
    store_dynamic_add(s, shard, false);
}

uint64_t store_dynamic_bytes(const struct ps_store *s, uint32_t shard)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < s->n_tables; i++)
        if (store_is_dynamic(&s->tables[i]))
            bytes += ps_dynamic_bytes(&s->tables[i].dynamic[shard]);
    return bytes;
}

/* ---- rows ---- */

/* Writes a row that has no floats in the shard: initial weights, slots of zero, the average of the weights. */
static void make_row(const struct ps_store *s, uint32_t table, uint64_t row, float *out)
{
    size_t width = s->tables[table].is.width;

    CHECK(s->opts.fill(s->opts.arg, table, row, 1, out, NULL) == 0);
    memset(out + width, 0, (s->n_parts - 1) * width * sizeof(*out));
    if (s->opts.average > 0)
        memcpy(out + (s->n_parts - 1) * width, out, width * sizeof(*out));
}

void store_dynamic_read(const struct ps_store *s, uint32_t table, uint32_t part, uint64_t row,
                        float *out)
{
    const struct store_table *t = &s->tables[table];
    const struct ps_dynamic *d = &t->dynamic[ps_shard_of(PS_BY_ID, row)];
    const struct ps_id *id = ps_dynamic_find(d, row);
    size_t width = t->is.width;

    if (id != NULL && id->at != PS_NO_FLOATS)
        memcpy(out, ps_dynamic_floats(d, id) + part * width, width * sizeof(*out));
    else if (part == 0 || (s->opts.average > 0 && part == s->n_parts - 1))
        CHECK(s->opts.fill(s->opts.arg, table, row, 1, out, NULL) == 0);
    else
        memset(out, 0, width * sizeof(*out));
}

int store_dynamic_read_rows(const struct ps_store *s, uint32_t table, const uint64_t *rows,
                            uint64_t n, float *out, struct err *err)
{
    const struct store_table *t = &s->tables[table];

    for (uint64_t i = 0; i < n; i++) {
        if (!store_has_row(s, t, rows[i]))
            return store_bad_row(t, rows[i], err);
        store_dynamic_read(s, table, 0, rows[i], out + i * t->is.width);
    }
    return 0;
}

/* ---- memory ---- */

struct growth {
    uint32_t n_ids, n_rows;
};

/* Makes room in the shards of a table. growth [PS_SHARDS]. */
static int make_room(struct ps_store *s, struct store_table *t, const struct growth *growth,
                     struct err *err)
{
    uint64_t bytes = 0;
    int rc = 0;

    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (growth[i].n_ids + growth[i].n_rows > 0)
            bytes += ps_dynamic_growth(&t->dynamic[i], growth[i].n_ids, growth[i].n_rows);
    if (bytes > 0 && s->opts.grow != NULL)
        rc = s->opts.grow(s->opts.arg, t->is.name, bytes, err);
    for (uint32_t i = 0; rc == 0 && bytes > 0 && i < PS_SHARDS; i++) {
        uint64_t before = ps_dynamic_bytes(&t->dynamic[i]);

        rc = ps_dynamic_make_room(&t->dynamic[i], growth[i].n_ids, growth[i].n_rows, err);
        s->dynamic_bytes += ps_dynamic_bytes(&t->dynamic[i]) - before;
    }
    return rc < 0 ? err_wrap(err, rc, "table '%s'", t->is.name) : 0;
}

int store_dynamic_reserve(struct ps_store *s, struct store_table *t, struct err *err)
{
    struct growth growth[PS_SHARDS] = { { 0 } };

    for (uint64_t i = 0; i < t->pending.n; i++) {
        uint64_t row = t->pending.rows[i];
        uint32_t shard = ps_shard_of(PS_BY_ID, row);
        const struct ps_dynamic *d = &t->dynamic[shard];
        const struct ps_id *id = ps_dynamic_find(d, row);

        if (!ps_dynamic_covers(d, row) || (id != NULL && id->at != PS_NO_FLOATS))
            continue;
        growth[shard].n_ids += id == NULL;
        growth[shard].n_rows += ps_dynamic_is_admitted(d, id != NULL ? id->count + 1 : 1);
    }
    return make_room(s, t, growth, err);
}

/* ---- the update ---- */

/* Returns the state of optim_update_rows(), of which float 0 is the first weight of the first row. */
static struct optim_state state_of(const struct ps_store *s, const struct store_table *t,
                                   const struct ps_dynamic *d)
{
    struct optim_state state = { .w = d->floats };

    for (uint32_t k = 0; k < OPTIM_MAX_SLOTS; k++)
        if (s->slot_parts[k] != 0)
            state.slots[k] = d->floats + s->slot_parts[k] * t->is.width;
    if (s->opts.average > 0)
        state.average = d->floats + (s->n_parts - 1) * t->is.width;
    return state;
}

/* Counts a row with a gradient. Returns its id if the step trains the row. */
static const struct ps_id *count_row(const struct ps_store *s, uint32_t table, struct ps_dynamic *d,
                                     uint64_t row, uint64_t step)
{
    struct ps_id *id;

    if (!ps_dynamic_covers(d, row))
        return NULL; /* the other server counts it before it sends the row */
    id = ps_dynamic_count(d, row, step);
    if (id->at == PS_NO_FLOATS) {
        if (!ps_dynamic_is_admitted(d, id->count))
            return NULL;
        make_row(s, table, row, ps_dynamic_admit(d, id));
    }
    return id;
}

static void update_shard(const struct ps_store *s, uint32_t table, struct ps_dynamic *d,
                         const struct optim_hyper *own, uint64_t step, const uint32_t *order,
                         uint32_t n)
{
    const struct store_table *t = &s->tables[table];
    struct optim_state state = state_of(s, t, d);
    size_t width = t->is.width;

    for (uint32_t i = 0; i < n; i++) {
        const struct ps_id *id = count_row(s, table, d, t->pending.rows[order[i]], step);
        size_t at = id != NULL ? (size_t)id->at * d->stride : 0;

        if (id != NULL)
            optim_update_rows(s->opts.optimizer, own, &state, &at, 1, width,
                              t->pending.values + order[i] * width);
    }
    for (uint32_t i = 0; s->opts.average > 0 && i < d->n_rows; i++)
        optim_move_average(&state, (size_t)i * d->stride, width, s->opts.average);
}

static bool sweeps(const struct store_table *t, uint64_t step)
{
    const struct ps_rules *r = &t->is.rules;

    return store_is_dynamic(t) && step % r->sweep_steps == 0 &&
           (r->expire_steps > 0 || r->max_rows > 0);
}

bool ps_store_sweeps(const struct ps_store *s, uint64_t step)
{
    bool any = false;

    for (uint32_t i = 0; i < s->n_tables; i++)
        any = any || sweeps(&s->tables[i], step);
    return any;
}

static void sweep(const struct ps_rules *r, uint32_t shard, struct ps_dynamic *d, uint64_t step)
{
    uint64_t oldest = r->expire_steps > 0 && step > r->expire_steps ? step - r->expire_steps : 0;

    ps_dynamic_sweep(d, oldest, r->max_rows / PS_SHARDS + (shard < r->max_rows % PS_SHARDS));
}

void store_dynamic_update(struct ps_store *s, uint32_t table, const struct optim_hyper *own,
                          uint64_t step, const uint32_t *order, const uint32_t *first)
{
    struct store_table *t = &s->tables[table];
    bool is_sweep = sweeps(t, step);

    for (uint32_t shard = 0; shard < PS_SHARDS; shard++) {
        struct ps_dynamic *d = &t->dynamic[shard];
        uint32_t before = d->n_rows, after;

        if (!store_holds(s, shard))
            continue;
        update_shard(s, table, d, own, step, order + first[shard], first[shard + 1] - first[shard]);
        after = d->n_rows;
        if (is_sweep && d->is_complete)
            sweep(&t->is.rules, shard, d, step);
        t->admitted += after - before;
        t->expired += after - d->n_rows;
        t->trained += d->n_rows;
        t->trained -= before;
    }
}

/* ---- the state of a shard ---- */

static int find(const struct ps_store *s, uint32_t shard, uint32_t table, struct ps_dynamic **out,
                struct err *err)
{
    if (table >= s->n_tables)
        return store_unknown_table(s, table, err);
    if (!store_is_dynamic(&s->tables[table]))
        return err_set(err, ERR_PEER, "parameter server: table '%s' is not dynamic",
                       s->tables[table].is.name);
    if (shard >= PS_SHARDS || !store_holds(s, shard))
        return err_set(err, ERR_PEER,
                       "parameter server: shard %" PRIu32 " is not held by this server", shard);
    *out = &s->tables[table].dynamic[shard];
    return 0;
}

static int find_complete(const struct ps_store *s, uint32_t shard, uint32_t table,
                         struct ps_dynamic **out, struct err *err)
{
    int rc = find(s, shard, table, out, err);

    if (rc == 0 && !(*out)->is_complete)
        rc = err_set(err, ERR_PEER, "parameter server: shard %" PRIu32 " is not complete", shard);
    return rc;
}

int64_t ps_store_count_ids(const struct ps_store *s, uint32_t shard, uint32_t table, uint64_t first,
                           struct err *err)
{
    struct ps_dynamic *d;
    int64_t n = find_complete(s, shard, table, &d, err);

    for (uint32_t i = 0; n >= 0 && i < d->n_ids; i++)
        n += d->ids[i].row >= first;
    return n;
}

int64_t ps_store_export_ids(const struct ps_store *s, uint32_t shard, uint32_t table,
                            uint64_t first, const struct ps_ids_room *out, bool *is_last,
                            struct err *err)
{
    struct ps_dynamic *d;
    uint32_t n, *order;
    int rc = find_complete(s, shard, table, &d, err);

    if (rc < 0)
        return rc;
    order = malloc(((size_t)d->n_ids + 1) * sizeof(*order));
    if (order == NULL)
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    n = ps_dynamic_list(d, first, out->most < UINT32_MAX ? (uint32_t)out->most : UINT32_MAX, order,
                        is_last);
    for (uint32_t i = 0; i < n; i++) {
        const struct ps_id *id = &d->ids[order[i]];
        float *values = out->values + (size_t)i * d->stride;

        out->rows[i] = id->row;
        out->last_steps[i] = id->last_step;
        out->counts[i] = id->count;
        if (id->at != PS_NO_FLOATS)
            memcpy(values, ps_dynamic_floats(d, id), d->stride * sizeof(*values));
        else
            make_row(s, table, id->row, values);
    }
    free(order);
    return n;
}

static int check_ids(const struct store_table *t, uint32_t shard, uint64_t first,
                     const struct ps_ids *in, struct err *err)
{
    for (uint64_t i = 0; i < in->n; i++)
        if (in->rows[i] < first || (i > 0 && in->rows[i] <= in->rows[i - 1]) ||
            ps_shard_of(PS_BY_ID, in->rows[i]) != shard || in->counts[i] == 0 ||
            in->counts[i] > UINT32_MAX)
            return err_set(err, ERR_PEER,
                           "parameter server: table '%s', shard %" PRIu32 ": row of id %" PRId64
                           " with count %" PRIu64 "; expected ascending ids of the shard",
                           t->is.name, shard, ps_id_of_row(in->rows[i]), in->counts[i]);
    return 0;
}

uint64_t ps_store_next_row(const struct ps_store *s, uint32_t shard, uint32_t table)
{
    CHECK(table < s->n_tables && store_is_dynamic(&s->tables[table]) && shard < PS_SHARDS);
    return s->tables[table].dynamic[shard].filled;
}

/* Returns how many rows of a shard have a pending gradient. Those that were not complete when it was reduced
 * had no part in store_dynamic_reserve(). */
static uint32_t count_pending(const struct store_table *t, uint32_t shard)
{
    uint32_t n = 0;

    for (uint64_t i = 0; i < t->pending.n; i++)
        n += ps_shard_of(PS_BY_ID, t->pending.rows[i]) == shard;
    return n;
}

int ps_store_import_ids(struct ps_store *s, uint32_t shard, uint32_t table, uint64_t first,
                        const struct ps_ids *in, bool is_last, struct err *err)
{
    struct growth growth[PS_SHARDS] = { { 0 } };
    struct ps_dynamic *d;
    uint32_t n_admitted = 0;
    int rc = find(s, shard, table, &d, err);

    if (rc == 0 && (d->is_complete || first != d->filled || in->n > UINT32_MAX / 4 ||
                    (!is_last && (in->n == 0 || in->rows[in->n - 1] == UINT64_MAX))))
        rc =
            err_set(err, ERR_PEER,
                    "parameter server: shard %" PRIu32 ": these rows are not the next ones", shard);
    if (rc == 0)
        rc = check_ids(&s->tables[table], shard, first, in, err);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < in->n; i++)
        n_admitted += ps_dynamic_is_admitted(d, (uint32_t)in->counts[i]);
    growth[shard].n_ids = growth[shard].n_rows = count_pending(&s->tables[table], shard);
    growth[shard].n_ids += (uint32_t)in->n;
    growth[shard].n_rows += n_admitted;
    rc = make_room(s, &s->tables[table], growth, err);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < in->n; i++) {
        struct ps_id *id =
            ps_dynamic_add(d, in->rows[i], in->last_steps[i], (uint32_t)in->counts[i]);

        if (ps_dynamic_is_admitted(d, id->count))
            memcpy(ps_dynamic_admit(d, id), in->values + i * d->stride,
                   d->stride * sizeof(*in->values));
    }
    s->tables[table].trained += n_admitted;
    d->is_complete = is_last;
    if (!is_last)
        d->filled = in->rows[in->n - 1] + 1;
    return 0;
}

uint32_t store_dynamic_checksum(const struct ps_store *s, uint32_t table, uint32_t shard)
{
    const struct ps_dynamic *d = &s->tables[table].dynamic[shard];
    uint32_t sum = 0;
    bool is_finite = true; /* not used */

    for (uint32_t i = 0; i < d->n_ids; i++) {
        const struct ps_id *id = &d->ids[i];
        uint64_t key = ps_mix64(id->row + table);

        sum = checksum_add(sum, checksum_key(ps_mix64(key ^ id->last_step) ^ id->count));
        if (id->at != PS_NO_FLOATS)
            sum = checksum_add(sum,
                               checksum_part(ps_dynamic_floats(d, id), d->stride, key, &is_finite));
    }
    return sum;
}
