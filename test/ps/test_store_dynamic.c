/* test_store_dynamic.c - dynamic tables in stores, against a list of rows that is searched one by one.
 *
 * The list trains its rows by the rules of store_dynamic.c with optim_update_rows() on memory of its own,
 * so it has the bits that every distribution of the shards must give. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "optim/optim.h"
#include "ps/store.h"
#include "ps/store_groups.h"

enum { IDS = 4000, TABLES = 3, STORES = 3, WIDTH = 5, PARTS_MAX = OPTIM_MAX_SLOTS + 2, STEPS = 24 };

static const struct ps_table tables[TABLES] = {
    { "plain", 0, 5, PS_BY_ID, 1, 0.01, false, false, { 1, 1000, 0, 0 } },
    { "fixed", 70, 3, 389, 1, 0, true, false, { 0 } },
    { "strict", 0, 4, PS_BY_ID, 0.5, 0, false, false, { 2, 4, 7, 1030 } },
};

static uint64_t draw(uint64_t *x, uint64_t below)
{
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return (*x * UINT64_C(0x2545f4914f6cdd1d) >> 16) % below;
}

static int64_t id_of(uint32_t i)
{
    static const int64_t first[] = { INT64_MIN, INT64_MAX, 0, -1, 1 };

    return i < sizeof(first) / sizeof(*first) ? first[i] : (int64_t)ps_mix64(i);
}

static int fill(void *arg, uint32_t table, uint64_t first_row, uint64_t n, float *out,
                struct err *err)
{
    (void)arg;
    (void)err;
    for (uint64_t i = 0; i < n * tables[table].width; i++) {
        uint64_t x = ps_mix64(first_row * 31 + i + table);

        out[i] = (float)(x % 2001) / 1000 - 1;
    }
    return 0;
}

/* ---- the list ---- */

struct item {
    uint64_t row, last_step;
    uint32_t count;
    bool is_used, has_floats;
    float floats[PARTS_MAX * WIDTH];
};

struct oracle {
    const struct optim_def *def;
    uint32_t n_parts, slot_parts[OPTIM_MAX_SLOTS];
    double average;
    struct item *items[TABLES]; /* owned [IDS] */
};

static void oracle_open(struct oracle *o, const struct ps_store_opts *opts)
{
    *o = (struct oracle){ .def = opts->optimizer, .n_parts = 1, .average = opts->average };
    for (uint32_t k = 0; k < o->def->n_slots; k++)
        if (optim_uses(o->def, opts->hyper, k))
            o->slot_parts[k] = o->n_parts++;
    o->n_parts += opts->average > 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        o->items[t] = calloc(IDS, sizeof(**o->items));
        assert_non_null(o->items[t]);
        for (uint32_t i = 0; i < IDS; i++)
            o->items[t][i].row = ps_row_of_id(id_of(i));
    }
}

static void oracle_close(struct oracle *o)
{
    for (uint32_t t = 0; t < TABLES; t++)
        free(o->items[t]);
}

static void initial_row(const struct oracle *o, uint32_t table, struct item *x)
{
    uint32_t width = tables[table].width;

    memset(x->floats, 0, sizeof(x->floats));
    fill(NULL, table, x->row, 1, x->floats, NULL);
    if (o->average > 0)
        memcpy(x->floats + (o->n_parts - 1) * width, x->floats, width * sizeof(float));
}

static struct optim_state state_of(const struct oracle *o, uint32_t width, struct item *x)
{
    struct optim_state s = { .w = x->floats };

    for (uint32_t k = 0; k < OPTIM_MAX_SLOTS; k++)
        if (o->slot_parts[k] > 0)
            s.slots[k] = x->floats + o->slot_parts[k] * width;
    if (o->average > 0)
        s.average = x->floats + (o->n_parts - 1) * width;
    return s;
}

/* Removes the oldest of the rows with, or without, floats in a shard until `most` are left. */
static void oracle_limit(struct oracle *o, uint32_t table, uint32_t shard, uint64_t most, bool has)
{
    for (;;) {
        struct item *oldest = NULL;
        uint64_t n = 0;

        for (uint32_t i = 0; i < IDS; i++) {
            struct item *x = &o->items[table][i];

            if (!x->is_used || x->has_floats != has || ps_shard_of(PS_BY_ID, x->row) != shard)
                continue;
            n++;
            if (oldest == NULL || x->last_step < oldest->last_step ||
                (x->last_step == oldest->last_step && x->row < oldest->row))
                oldest = x;
        }
        if (n <= most)
            return;
        oldest->is_used = oldest->has_floats = false;
        oldest->count = 0;
    }
}

static void oracle_sweep(struct oracle *o, uint32_t table, uint64_t step)
{
    const struct ps_rules *r = &tables[table].rules;

    for (uint32_t i = 0; i < IDS; i++) {
        struct item *x = &o->items[table][i];

        if (x->is_used && r->expire_steps > 0 && x->last_step + r->expire_steps < step) {
            x->is_used = x->has_floats = false;
            x->count = 0;
        }
    }
    for (uint32_t shard = 0; r->max_rows > 0 && shard < PS_SHARDS; shard++) {
        uint64_t most = r->max_rows / PS_SHARDS + (shard < r->max_rows % PS_SHARDS);

        oracle_limit(o, table, shard, most, true);
        oracle_limit(o, table, shard, most, false);
    }
}

/* ---- a step ---- */

struct step { /* the gradient of a step: part 0 has one half of the lanes, part 1 the other */
    uint64_t n[2][TABLES], *rows[2][TABLES];
    float *values[2][TABLES];
};

static int by_row(const void *pa, const void *pb)
{
    const uint64_t *a = pa, *b = pb;

    return *a < *b ? -1 : *a > *b;
}

static void step_make(struct step *st, uint64_t *x)
{
    for (int h = 0; h < 2; h++)
        for (uint32_t t = 0; t < TABLES; t++) {
            uint64_t n = 0, one_in = 2 + draw(x, 6);

            st->rows[h][t] = malloc(IDS * sizeof(uint64_t));
            st->values[h][t] = malloc(IDS * WIDTH * sizeof(float));
            assert_true(st->rows[h][t] != NULL && st->values[h][t] != NULL);
            for (uint32_t i = 0; i < (t == 1 ? tables[1].rows : IDS); i++)
                if (draw(x, one_in) == 0)
                    st->rows[h][t][n++] = t == 1 ? i : ps_row_of_id(id_of(i));
            qsort(st->rows[h][t], n, sizeof(uint64_t), by_row);
            for (uint64_t i = 0; i < n * tables[t].width; i++)
                st->values[h][t][i] = (float)draw(x, 1 << 20) / (1 << 19) - 1 + 0.0f;
            st->n[h][t] = n;
        }
}

static void step_free(struct step *st)
{
    for (int h = 0; h < 2; h++)
        for (uint32_t t = 0; t < TABLES; t++) {
            free(st->rows[h][t]);
            free(st->values[h][t]);
        }
}

static const float *find_gradient(const struct step *st, int h, uint32_t t, uint64_t row)
{
    const uint64_t *at = bsearch(&row, st->rows[h][t], st->n[h][t], sizeof(row), by_row);

    return at != NULL ? st->values[h][t] + (at - st->rows[h][t]) * tables[t].width : NULL;
}

static void oracle_step(struct oracle *o, const struct step *st, const struct optim_hyper *h)
{
    for (uint32_t t = 0; t < TABLES; t += 2) {
        struct optim_hyper own = optim_own_hyper(h, tables[t].rate_factor, tables[t].weight_decay);
        uint32_t width = tables[t].width;

        for (uint32_t i = 0; i < IDS; i++) {
            struct item *x = &o->items[t][i];
            const float *a = find_gradient(st, 0, t, x->row), *b = find_gradient(st, 1, t, x->row);
            struct optim_state state = state_of(o, width, x);
            size_t at = 0;
            float g[WIDTH];

            if (a != NULL || b != NULL) {
                x->is_used = true;
                x->count++;
                x->last_step = h->step;
                if (x->count >= tables[t].rules.admit_after && !x->has_floats) {
                    initial_row(o, t, x);
                    x->has_floats = true;
                }
                for (uint32_t k = 0; k < width; k++)
                    g[k] = a != NULL && b != NULL ? a[k] + b[k] : a != NULL ? a[k] : b[k];
                if (x->has_floats)
                    optim_update_rows(o->def, &own, &state, &at, 1, width, g);
            }
            if (x->has_floats && o->average > 0)
                optim_move_average(&state, 0, width, o->average);
        }
        if (h->step % tables[t].rules.sweep_steps == 0)
            oracle_sweep(o, t, h->step);
    }
}

/* Reduces the rows of the shards that the store holds. */
static void store_reduce(struct ps_store *s, const struct step *st)
{
    struct ps_part parts[2 * TABLES];
    uint64_t *rows[2 * TABLES];
    float *values[2 * TABLES];
    uint32_t n_parts = 0;
    struct err err;

    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t h = 0; h < 2; h++, n_parts++) {
            uint32_t width = tables[t].width;
            uint64_t n = 0;

            rows[n_parts] = malloc(IDS * sizeof(uint64_t));
            values[n_parts] = malloc(IDS * WIDTH * sizeof(float));
            assert_true(rows[n_parts] != NULL && values[n_parts] != NULL);
            for (uint64_t i = 0; i < st->n[h][t]; i++) {
                if (!ps_store_has(s, ps_shard_of(tables[t].first_shard, st->rows[h][t][i])))
                    continue;
                rows[n_parts][n] = st->rows[h][t][i];
                memcpy(values[n_parts] + n++ * width, st->values[h][t] + i * width,
                       width * sizeof(float));
            }
            parts[n_parts] = (struct ps_part){ h, h, 1, t, n, rows[n_parts], values[n_parts] };
        }
    if (ps_store_reduce(s, parts, n_parts, &err) < 0)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n_parts; i++) {
        free(rows[i]);
        free(values[i]);
    }
}

/* ---- comparison ---- */

static void check_row(const struct ps_store *s, const struct oracle *o, uint32_t t, struct item *x)
{
    uint32_t width = tables[t].width;
    struct item initial = *x;

    initial_row(o, t, &initial);
    for (uint32_t part = 0; part < o->n_parts; part++) {
        const float *expected = (x->has_floats ? x->floats : initial.floats) + part * width;
        float got[WIDTH];

        assert_int_equal(ps_store_read_part(s, t, part, x->row, got, NULL), 0);
        if (memcmp(got, expected, width * sizeof(*got)) != 0)
            fail_msg("table %u, id %lld, part %u: %.9g, expected %.9g", t,
                     (long long)ps_id_of_row(x->row), part, (double)got[0], (double)expected[0]);
    }
}

static uint64_t trained_rows(const struct ps_store *s)
{
    struct ps_table_facts facts[4];
    uint32_t n = ps_store_facts(s, facts, 4);
    uint64_t rows = 0;

    assert_true(n <= 4);
    for (uint32_t i = 0; i < n; i++)
        rows += facts[i].rows;
    return rows;
}

static void check_store(const struct ps_store *s, const struct oracle *o)
{
    uint64_t n = 0;

    for (uint32_t t = 0; t < TABLES; t += 2)
        for (uint32_t i = 0; i < IDS; i++)
            if (ps_store_has(s, ps_shard_of(PS_BY_ID, o->items[t][i].row))) {
                check_row(s, o, t, &o->items[t][i]);
                n += o->items[t][i].has_floats;
            }
    assert_int_equal(trained_rows(s), n);
}

struct room {
    uint64_t rows[IDS], last_steps[IDS], counts[IDS];
    float values[IDS * PARTS_MAX * WIDTH];
};

/* Compares the export of a shard with the list. */
static void check_export(struct ps_store *s, const struct oracle *o, uint32_t shard, uint32_t t)
{
    struct room *r = malloc(sizeof(*r));
    struct ps_ids_room out = { 7, r->rows, r->last_steps, r->counts, r->values };
    uint64_t first = 0, n_all = 0;
    uint32_t stride = o->n_parts * tables[t].width;
    bool is_last = false;

    assert_non_null(r);
    while (!is_last) {
        int64_t n = ps_store_export_ids(s, shard, t, first, &out, &is_last, NULL);

        assert_true(n >= 0 && (n == 7 || is_last));
        for (int64_t k = 0; k < n; k++, n_all++) {
            uint32_t i = 0;
            struct item initial;

            assert_true(n_all == 0 || r->rows[k] >= first);
            while (o->items[t][i].row != r->rows[k])
                i++;
            initial = o->items[t][i];
            initial_row(o, t, &initial);
            assert_true(o->items[t][i].is_used);
            assert_int_equal(o->items[t][i].count, r->counts[k]);
            assert_int_equal(o->items[t][i].last_step, r->last_steps[k]);
            assert_memory_equal(r->values + k * stride,
                                o->items[t][i].has_floats ? o->items[t][i].floats : initial.floats,
                                stride * sizeof(float));
            first = r->rows[k] + 1;
        }
    }
    for (uint32_t i = 0; i < IDS; i++)
        n_all -= o->items[t][i].is_used && ps_shard_of(PS_BY_ID, o->items[t][i].row) == shard;
    assert_int_equal(n_all, 0);
    free(r);
}

static struct optim_hyper hyper_of(uint64_t step)
{
    return (struct optim_hyper){ .learning_rate = 0.03, .momentum = 0.9, .beta1 = 0.9,
                                 .beta2 = 0.97, .epsilon = 1e-8, .grad_scale = 0.7f, .step = step };
}

static struct ps_store *open_store(const struct optim_hyper *hyper, enum optim_type type,
                                   double average, uint32_t thread, uint32_t n_threads)
{
    struct ps_store_opts o = { .tables = tables, .n_tables = TABLES, .optimizer = optim_get(type),
                               .hyper = hyper, .average = average, .thread = thread,
                               .n_threads = n_threads, .fill = fill };
    struct ps_store *s;

    assert_int_equal(ps_store_open(&o, &s, NULL), 0);
    return s;
}

/* ---- tests ---- */

static void train(enum optim_type type, double average)
{
    struct optim_hyper hyper = hyper_of(0);
    struct ps_store_opts opts = { .optimizer = optim_get(type), .hyper = &hyper, .average = average };
    struct ps_store *stores[STORES];
    struct oracle oracle;
    uint64_t x = 17 + (uint64_t)type, bytes[STORES] = { 0 };

    oracle_open(&oracle, &opts);
    for (uint32_t i = 0; i < STORES; i++) {
        stores[i] = open_store(&hyper, type, average, i > 0 ? i - 1 : 0, i > 0 ? STORES - 1 : 1);
        for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
            if (i == 0 || shard % (STORES - 1) == i - 1)
                assert_int_equal(ps_store_add_shard(stores[i], shard, true, NULL), 0);
        bytes[i] = ps_store_bytes(stores[i]);
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct optim_hyper h = hyper_of(step);
        struct step st;

        step_make(&st, &x);
        for (uint32_t i = 0; i < STORES; i++) {
            store_reduce(stores[i], &st);
            if (step % 5 == 3)
                ps_store_discard(stores[i]); /* the step is skipped: it counts no row */
            else
                assert_int_equal(ps_store_commit(stores[i], &h, h.step, NULL), 0);
        }
        if (step % 5 != 3)
            oracle_step(&oracle, &st, &h);
        step_free(&st);
        for (uint32_t i = 0; i < STORES && (step % 4 == 0 || step < 3); i++)
            check_store(stores[i], &oracle);
    }
    for (uint32_t shard = 0; shard < PS_SHARDS; shard += 3) {
        check_export(stores[0], &oracle, shard, 0);
        check_export(stores[0], &oracle, shard, 2);
        assert_int_equal(ps_store_checksum(stores[0], shard),
                         ps_store_checksum(stores[1 + shard % (STORES - 1)], shard));
    }
    for (uint32_t i = 0; i < STORES; i++) {
        assert_true(ps_store_bytes(stores[i]) > bytes[i]);
        for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
            ps_store_drop_shard(stores[i], shard);
        assert_int_equal(ps_store_bytes(stores[i]), 0);
        assert_int_equal(trained_rows(stores[i]), 0);
        ps_store_close(stores[i]);
    }
    oracle_close(&oracle);
}

static void stores_train_to_the_bits_of_a_list_of_rows(void **state)
{
    (void)state;
    train(OPTIM_ADAGRAD, 0);
    train(OPTIM_ADAM, 0.9);
    train(OPTIM_SGD, 0);
}

/* Copies a few rows of each incomplete shard. Returns whether all are complete. */
static bool copy_some(struct ps_store *from, struct ps_store *to, uint64_t most, bool *is_complete)
{
    struct room *r = malloc(sizeof(*r));
    bool all = true;

    assert_non_null(r);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        for (uint32_t t = 0; t < TABLES; t += 2) {
            struct ps_ids_room out = { most, r->rows, r->last_steps, r->counts, r->values };
            uint64_t first;
            bool is_last;
            int64_t n;

            if (is_complete[shard * TABLES + t])
                continue;
            first = ps_store_next_row(to, shard, t);
            n = ps_store_export_ids(from, shard, t, first, &out, &is_last, NULL);
            assert_true(n >= 0);
            assert_int_equal(
                ps_store_import_ids(to, shard, t, first,
                                    &(struct ps_ids){ (uint64_t)n, r->rows, r->last_steps, r->counts,
                                                      r->values },
                                    is_last, NULL),
                0);
            is_complete[shard * TABLES + t] = is_last;
            all = all && is_last;
        }
    free(r);
    return all;
}

/* The second store takes part in every step from the first copy on. */
static void shard_that_is_copied_between_steps_gets_the_state_of_its_source(void **state)
{
    struct optim_hyper hyper = hyper_of(0);
    bool *is_complete = calloc(PS_SHARDS * TABLES, sizeof(*is_complete));
    struct ps_store *from = open_store(&hyper, OPTIM_ADAM, 0.9, 0, 1),
                    *to = open_store(&hyper, OPTIM_ADAM, 0.9, 0, 1);
    uint64_t x = 99;
    bool is_done = false;
    uint32_t n_restarts = 0;

    (void)state;
    assert_non_null(is_complete);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        assert_int_equal(ps_store_add_shard(from, shard, true, NULL), 0);
    for (uint64_t step = 1; step <= 60; step++) {
        struct optim_hyper h = hyper_of(step);
        struct step st;

        if (step == 6)
            for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
                assert_int_equal(ps_store_add_shard(to, shard, false, NULL), 0);
        if (step >= 6 && !is_done) /* one row at a time at first: sweeps fall between */
            is_done = copy_some(from, to, step < 15 ? 1 : 5, is_complete);
        step_make(&st, &x);
        store_reduce(from, &st);
        assert_int_equal(ps_store_commit(from, &h, h.step, NULL), 0);
        if (step >= 6) {
            store_reduce(to, &st);
            assert_int_equal(ps_store_commit(to, &h, h.step, NULL), 0);
        }
        step_free(&st);
        for (uint32_t shard = 0; step >= 6 && ps_store_sweeps(to, step) && shard < PS_SHARDS;
             shard++)
            if (!is_complete[shard * TABLES] || !is_complete[shard * TABLES + 2]) {
                ps_store_restart(to, shard);
                is_complete[shard * TABLES] = is_complete[shard * TABLES + 2] = false;
                n_restarts++;
            }
    }
    assert_true(is_done && n_restarts > 0);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++) { /* the fixed table of `to` was not copied */
        uint64_t n = ps_local_rows(tables[1].rows, tables[1].first_shard, shard);
        float rows[64 * 3];

        for (uint32_t part = 0; part < ps_store_n_parts(from); part++) {
            assert_int_equal(ps_store_export(from, shard, 1, part, 0, n, rows, NULL), 0);
            assert_int_equal(ps_store_import(to, shard, 1, part, 0, n, rows, NULL), 0);
        }
        assert_int_equal(ps_store_checksum(from, shard), ps_store_checksum(to, shard));
    }
    assert_int_equal(trained_rows(from), trained_rows(to));
    ps_store_close(from);
    ps_store_close(to);
    free(is_complete);
}

static void invalid_rows_are_not_imported(void **state)
{
    struct optim_hyper hyper = hyper_of(0);
    struct ps_store *s = open_store(&hyper, OPTIM_SGD, 0, 0, 1);
    uint64_t rows[3], steps[3] = { 1, 1, 1 }, counts[3] = { 1, 1, 1 };
    uint32_t shard = ps_shard_of(PS_BY_ID, ps_row_of_id(INT64_MAX)), n = 0;
    float values[3 * WIDTH] = { 0 };
    struct ps_ids in = { 1, rows, steps, counts, values };
    struct err err;

    (void)state;
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), ERR_PEER); /* not held */
    assert_int_equal(ps_store_add_shard(s, shard, false, NULL), 0);
    for (uint64_t row = 0; n < 3; row++)
        if (ps_shard_of(PS_BY_ID, row) == shard)
            rows[n++] = row;
    assert_int_equal(ps_store_import_ids(s, shard, 1, 0, &in, true, &err), ERR_PEER); /* fixed */
    assert_int_equal(ps_store_import_ids(s, shard, TABLES, 0, &in, true, &err), ERR_PEER);
    assert_int_equal(ps_store_import_ids(s, shard, 0, 1, &in, true, &err), ERR_PEER); /* not the next */
    in.n = 0;
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, false, &err), ERR_PEER); /* no progress */
    in.n = 2;
    counts[1] = 0;
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), ERR_PEER);
    counts[1] = (uint64_t)1 << 32;
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), ERR_PEER);
    counts[1] = 1;
    rows[1]++; /* of another shard */
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), ERR_PEER);
    rows[1] = rows[0];
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), ERR_PEER);
    assert_int_equal(trained_rows(s), 0);
    rows[1] = ps_row_of_id(INT64_MAX);
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, false, &err), ERR_PEER); /* none follows it */
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), 0);
    assert_int_equal(trained_rows(s), 2);
    in.n = 0;
    assert_int_equal(ps_store_import_ids(s, shard, 0, 0, &in, true, &err), ERR_PEER); /* complete */
    ps_store_close(s);
}

/* ---- memory ---- */

struct budget {
    uint64_t left, n_refused;
};

static int grow(void *arg, const char *table, uint64_t bytes, struct err *err)
{
    struct budget *b = arg;

    if (bytes > b->left) {
        b->n_refused++;
        return err_set(err, ERR_NOMEM, "%s: limit", table);
    }
    b->left -= bytes;
    return 0;
}

static void growth_beyond_the_limit_fails_before_the_step_changes_a_row(void **state)
{
    struct budget budget = { 100000, 0 };
    struct optim_hyper hyper = hyper_of(0);
    struct ps_store_opts o = { .tables = tables, .n_tables = TABLES,
                               .optimizer = optim_get(OPTIM_ADAM), .hyper = &hyper, .fill = fill,
                               .grow = grow, .arg = &budget };
    struct ps_store *s;
    struct err err;
    uint64_t step = 0, bytes, n_rows = 0, before;

    (void)state;
    assert_int_equal(ps_store_open(&o, &s, NULL), 0);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        assert_int_equal(ps_store_add_shard(s, shard, true, NULL), 0);
    bytes = before = ps_store_bytes(s);
    while (budget.n_refused == 0) {
        uint64_t row = ps_row_of_id((int64_t)++step * 1000003);
        float g[WIDTH] = { 1, 2, 3, 4, 5 };
        struct ps_part part = { 0, 0, 1, 0, 1, &row, g };
        struct optim_hyper h = hyper_of(step);
        int rc = ps_store_reduce(s, &part, 1, &err);

        if (rc == 0) {
            assert_int_equal(ps_store_commit(s, &h, h.step, NULL), 0);
            n_rows++;
            assert_int_equal(ps_store_bytes(s) - bytes, 100000 - budget.left);
            continue;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_non_null(strstr(err.text, "table 'plain': plain: limit"));
        assert_false(ps_store_is_pending(s));
    }
    assert_int_equal(trained_rows(s), n_rows);
    assert_true(n_rows > 10 && ps_store_bytes(s) - before <= 100000);
    ps_store_close(s);
}

/* ---- the rules at their boundaries ---- */

enum { STRICT = 2 }; /* admitted in the second step, sweeps at steps 4, 8, ..., expires after 7 */

static struct ps_store *open_strict(void)
{
    static const struct optim_hyper hyper = { .learning_rate = 0.5 };
    struct ps_store_opts o = { .tables = tables, .n_tables = TABLES,
                               .optimizer = optim_get(OPTIM_SGD), .hyper = &hyper, .fill = fill };
    struct ps_store *s;

    assert_int_equal(ps_store_open(&o, &s, NULL), 0);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        assert_int_equal(ps_store_add_shard(s, shard, true, NULL), 0);
    return s;
}

/* A step in which the rows [n] have the gradient g, in ascending order. */
static void step_of(struct ps_store *s, uint64_t step, const uint64_t *rows, uint32_t n, float g)
{
    struct optim_hyper h = { .learning_rate = 0.5, .step = step, .grad_scale = 1 };
    float values[8 * WIDTH];
    struct ps_part part = { 0, 0, 1, STRICT, n, rows, values };

    assert_true(n <= 8);
    for (uint32_t i = 0; i < 8 * WIDTH; i++)
        values[i] = g;
    assert_int_equal(ps_store_reduce(s, &part, n > 0, NULL), 0);
    assert_int_equal(ps_store_commit(s, &h, h.step, NULL), 0);
}

static float weight(struct ps_store *s, uint64_t row)
{
    float w[WIDTH];

    assert_int_equal(ps_store_read(s, STRICT, 0, &row, 1, w, NULL), 0);
    return w[0];
}

static void row_is_trained_from_its_second_step_and_removed_by_the_sweep_after_its_limit(
    void **state)
{
    /* steps of gradients, and the step that removes the row: the first multiple of 4 after last + 7 */
    static const struct {
        uint64_t first, last, removed;
    } cases[] = { { 1, 2, 12 }, { 1, 4, 12 }, { 2, 5, 16 }, { 3, 9, 20 }, { 7, 8, 16 } };
    struct ps_table_facts facts[2];

    (void)state;
    for (uint32_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        struct ps_store *s = open_strict();
        uint64_t row = ps_row_of_id(-77);
        float initial = weight(s, row);

        for (uint64_t step = 1; step <= 24; step++) {
            bool has_gradient = step == cases[c].first || step == cases[c].last;
            bool is_trained = step >= cases[c].last && step < cases[c].removed;

            step_of(s, step, &row, has_gradient, 1);
            assert_true(weight(s, row) == (is_trained ? initial - 0.25f : initial)); /* rate_factor 0.5 */
            assert_int_equal(ps_store_is_initial(s, STRICT, row), !is_trained);
            assert_int_equal(ps_store_facts(s, facts, 2), 2);
            assert_int_equal(facts[1].rows, is_trained);
            assert_int_equal(facts[1].admitted, step >= cases[c].last);
            assert_int_equal(facts[1].expired, step >= cases[c].removed);
            assert_string_equal(facts[1].name, "strict");
        }
        /* as new: it is counted again */
        step_of(s, 25, &row, 1, 1);
        assert_true(weight(s, row) == initial);
        step_of(s, 26, &row, 1, 1);
        assert_true(weight(s, row) == initial - 0.25f);
        ps_store_close(s);
    }
}

static void candidate_without_a_second_gradient_is_forgotten_by_the_sweep(void **state)
{
    struct ps_store *s = open_strict();
    uint64_t row = ps_row_of_id(5);
    float initial = weight(s, row);

    (void)state;
    step_of(s, 4, &row, 1, 1);
    step_of(s, 12, NULL, 0, 0); /* 4 is not before 12 - 7 = 5? it is: the count is gone */
    step_of(s, 13, &row, 1, 1);
    assert_true(weight(s, row) == initial);
    step_of(s, 14, &row, 1, 1);
    assert_true(weight(s, row) != initial);
    ps_store_close(s);
}

static void full_shard_loses_its_oldest_rows_of_equal_ones_the_lowest(void **state)
{
    struct ps_store *s = open_strict();
    uint64_t rows[4]; /* of one shard that keeps 1030 / 1024 rows: shard 9 keeps one */
    uint32_t n = 0;

    (void)state;
    for (int64_t id = 0; n < 4; id++)
        if (shard_of_id(id) == 9)
            rows[n++] = ps_row_of_id(id);
    step_of(s, 1, rows, 4, 1);
    step_of(s, 2, rows, 4, 1);
    step_of(s, 3, rows, 2, 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_false(ps_store_is_initial(s, STRICT, rows[i]));
    step_of(s, 4, NULL, 0, 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(ps_store_is_initial(s, STRICT, rows[i]), i != 1);
    ps_store_close(s);
}

/* The bits of a row do not depend on the step that makes it, or on the store. */
static void row_made_in_step_5_and_in_another_store_in_step_50_has_the_same_values(void **state)
{
    struct ps_store *a = open_strict(), *b = open_strict();
    uint64_t others[2] = { ps_row_of_id(1), ps_row_of_id(2) };

    (void)state;
    for (uint64_t step = 1; step < 50; step++)
        step_of(b, step, others, step % 3, 2);
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t row = ps_row_of_id(id_of(i));
        float x[WIDTH], y[WIDTH];

        step_of(a, 5 + 2 * i, &row, 1, 0);
        step_of(a, 6 + 2 * i, &row, 1, 0);
        assert_int_equal(ps_store_read(b, STRICT, 0, &row, 1, y, NULL), 0); /* before it is made there */
        step_of(b, 49 + 2 * i, &row, 1, 0);
        step_of(b, 50 + 2 * i, &row, 1, 0);
        assert_int_equal(ps_store_read(a, STRICT, 0, &row, 1, x, NULL), 0);
        if (row != others[0] && row != others[1])
            assert_memory_equal(x, y, 4 * sizeof(float));
        assert_int_equal(ps_store_read(b, STRICT, 0, &row, 1, y, NULL), 0);
        assert_false(ps_store_is_initial(a, STRICT, row) && (6 + 2 * i) % 4 != 0);
        if (row != others[0] && row != others[1])
            assert_memory_equal(x, y, 4 * sizeof(float));
    }
    ps_store_close(a);
    ps_store_close(b);
}

static void row_of_a_checkpoint_keeps_its_group_with_another_admit_after(void **state)
{
    struct ps_store *s = open_strict();

    (void)state;
    assert_int_equal(ps_store_group_count(s, STRICT, CKPT_TRAINED, 1), 2); /* the checkpoint admits at once */
    assert_int_equal(ps_store_group_count(s, STRICT, CKPT_TRAINED, 9), 9);
    assert_int_equal(ps_store_group_count(s, STRICT, CKPT_CANDIDATES, 1), 1);
    assert_int_equal(ps_store_group_count(s, STRICT, CKPT_CANDIDATES, 9), 1); /* it admits after more */
    assert_int_equal(ps_store_group_count(s, 0, CKPT_CANDIDATES, 3), 3); /* every row is trained now */
    ps_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_train_to_the_bits_of_a_list_of_rows),
        cmocka_unit_test(shard_that_is_copied_between_steps_gets_the_state_of_its_source),
        cmocka_unit_test(invalid_rows_are_not_imported),
        cmocka_unit_test(growth_beyond_the_limit_fails_before_the_step_changes_a_row),
        cmocka_unit_test(row_is_trained_from_its_second_step_and_removed_by_the_sweep_after_its_limit),
        cmocka_unit_test(candidate_without_a_second_gradient_is_forgotten_by_the_sweep),
        cmocka_unit_test(full_shard_loses_its_oldest_rows_of_equal_ones_the_lowest),
        cmocka_unit_test(row_made_in_step_5_and_in_another_store_in_step_50_has_the_same_values),
        cmocka_unit_test(row_of_a_checkpoint_keeps_its_group_with_another_admit_after),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
