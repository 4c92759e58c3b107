/* test_store.c - several stores with parts of the shards against an optimizer over whole tables.
 *
 * In each step ranks draw rows and gradients. The oracle adds them along the tree over the lanes
 * one element at a time, gives the sum to lib/optim as a packed gradient, and trains tables that
 * are whole. All states must have equal bits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "comm/comm.h"
#include "harness/ring.h"
#include "optim/optim.h"
#include "ps/store.h"
#include "tensor/packed.h"

enum { TABLES = 5, STORES = 4, MAX_RANKS = 7, PARTS_MAX = OPTIM_MAX_SLOTS + 2 };

static const struct ps_table tables[TABLES] = {
    { "wide", 5000, 8, 0, 1, 0.01, false, false, { 0 } },
    { "narrow", 70001, 1, 389, 0.5, 0, false, false, { 0 } },
    { "odd", 333, 3, 778, 2, 0.1, false, false, { 0 } },
    { "normal", 200, 64, 143, 1, 0, false, false, { 0 } },
    { "widest", 130, 192, 532, 1, 0.02, false, false, { 0 } },
};

static uint64_t draw(uint64_t *x, uint64_t below)
{
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return (*x * UINT64_C(0x2545f4914f6cdd1d) >> 16) % below;
}

static float initial(uint32_t table, uint64_t float_index)
{
    uint64_t x = float_index * 1000003 + table + 1;

    return (float)draw(&x, 2001) / 1000 - 1;
}

static int fill(void *arg, uint32_t table, uint64_t first_row, uint64_t n, float *out,
                struct err *err)
{
    size_t width = tables[table].width;

    (void)err;
    if (arg != NULL && first_row == *(const uint64_t *)arg)
        return err_set(err, ERR_NOENT, "no initial value");
    for (size_t i = 0; i < n * width; i++)
        out[i] = initial(table, first_row * width + i);
    return 0;
}

/* ---- the gradients of the ranks ---- */

struct draws {
    uint32_t n_ranks, shares[MAX_RANKS], first_leaf[MAX_RANKS];
    uint64_t n[MAX_RANKS][TABLES];
    uint64_t *rows[MAX_RANKS][TABLES];
    float *values[MAX_RANKS][TABLES];
};

static void draws_free(struct draws *d)
{
    for (uint32_t r = 0; r < d->n_ranks; r++)
        for (uint32_t t = 0; t < TABLES; t++) {
            free(d->rows[r][t]);
            free(d->values[r][t]);
        }
}

/* Draws a magnitude over a wide range, so that another order of additions changes the bits. */
static float gradient(uint64_t *x)
{
    float v = (float)draw(x, 1u << 24) / (1 << 23) - 1;

    return ldexpf(v, (int)draw(x, 12) - 6) + 0.0f; /* never -0 */
}

static void draws_make(struct draws *d, uint64_t *x, uint32_t n_ranks, uint32_t leaves)
{
    d->n_ranks = n_ranks;
    comm_share(NULL, leaves, n_ranks, d->shares);
    for (uint32_t r = 0, leaf = 0; r < n_ranks; leaf += d->shares[r++]) {
        d->first_leaf[r] = leaf;
        for (uint32_t t = 0; t < TABLES; t++) {
            uint64_t rows = tables[t].rows, n = 0, one_in = 2 + draw(x, 6);
            size_t room = rows < 4000 ? rows : 4000;

            d->rows[r][t] = malloc(room * sizeof(uint64_t));
            d->values[r][t] = malloc(room * tables[t].width * sizeof(float));
            assert_non_null(d->rows[r][t]);
            assert_non_null(d->values[r][t]);
            if (rows > 4000)
                one_in *= 17;
            for (uint64_t row = 0; row < rows && n < room; row++)
                if (draw(x, 5) > 0 ? draw(x, one_in) == 0 : row % 64 < 3 && draw(x, 3) == 0)
                    d->rows[r][t][n++] = row;
            if (draw(x, 8) == 0)
                n = 0;
            d->n[r][t] = n;
            for (size_t i = 0; i < n * tables[t].width; i++)
                d->values[r][t][i] = gradient(x);
        }
    }
}

/* ---- the oracle ---- */

struct oracle {
    struct packed_table packed_tables[TABLES];
    struct optim_param params[TABLES];
    struct packed packed;
    struct optim *optim;
    struct optim_state state;
    float *memory, *sums; /* sums: dense, of all tables */
    uint8_t *marked;      /* [all rows] */
    void *marks;
    float *older[PS_STALENESS_MAX]; /* owned; the weights before the last 1, 2, ... steps */
    size_t first_float[TABLES + 1], first_row[TABLES + 1];
};

static void oracle_open(struct oracle *o, const struct ps_store_opts *opts,
                        const struct optim_hyper *hyper)
{
    struct optim_opts oo = { .def = opts->optimizer, .params = o->params, .n_params = TABLES,
                             .n_parts = 1, .average = opts->average };
    size_t words, n;

    memset(o, 0, sizeof(*o));
    for (uint32_t t = 0; t < TABLES; t++) {
        const struct ps_table *is = &opts->tables[t];

        n = is->rows * is->width;
        o->packed_tables[t] = (struct packed_table){ .rows = is->rows, .width = is->width };
        o->params[t] = (struct optim_param){ o->first_float[t], n, is->rate_factor,
                                             is->weight_decay, false, &o->packed_tables[t],
                                             is->lazy, 0, false, 0, 0 };
        o->first_float[t + 1] = o->first_float[t] + n;
        o->first_row[t + 1] = o->first_row[t] + is->rows;
    }
    n = o->first_float[TABLES];
    words = packed_layout(o->packed_tables, TABLES);
    o->marks = malloc(packed_bytes(TABLES, words));
    o->memory = calloc(PARTS_MAX * n + n + n, sizeof(float));
    o->marked = calloc(o->first_row[TABLES], 1);
    assert_non_null(o->marks);
    assert_non_null(o->memory);
    assert_non_null(o->marked);
    o->sums = o->memory + (PARTS_MAX + 1) * n;
    o->packed = packed_init(o->packed_tables, TABLES, words, o->marks);
    o->state = (struct optim_state){ .w = o->memory, .packed = &o->packed,
                                     .values = o->memory + PARTS_MAX * n,
                                     .average = o->memory + (PARTS_MAX - 1) * n };
    for (uint32_t k = 0; k < opts->optimizer->n_slots; k++)
        if (optim_uses(opts->optimizer, hyper, k))
            o->state.slots[k] = o->memory + (1 + k) * n;
    for (uint32_t t = 0; t < TABLES; t++)
        for (size_t i = o->first_float[t]; i < o->first_float[t + 1]; i++)
            o->state.w[i] = o->state.average[i] = initial(t, i - o->first_float[t]);
    for (uint32_t i = 0; i < PS_STALENESS_MAX; i++) {
        o->older[i] = malloc(n * sizeof(float));
        assert_non_null(o->older[i]);
        memcpy(o->older[i], o->state.w, n * sizeof(float));
    }
    assert_int_equal(optim_new(&oo, &o->optim, NULL), 0);
}

/* Before a step. */
static void oracle_keep(struct oracle *o)
{
    float *oldest = o->older[PS_STALENESS_MAX - 1];

    for (uint32_t i = PS_STALENESS_MAX - 1; i > 0; i--)
        o->older[i] = o->older[i - 1];
    o->older[0] = oldest;
    memcpy(oldest, o->state.w, o->first_float[TABLES] * sizeof(float));
}

static void oracle_close(struct oracle *o)
{
    for (uint32_t i = 0; i < PS_STALENESS_MAX; i++)
        free(o->older[i]);
    optim_free(o->optim);
    free(o->marks);
    free(o->memory);
    free(o->marked);
}

/* The sum over the lanes [begin, begin + size) of element `of` of a row: halves first. at[r]: the
 * place of the row in the draws of rank r, -1 without. */
static bool tree_sum(const struct draws *d, uint32_t t, const int64_t *at, size_t of,
                     uint32_t begin, uint32_t size, float *out)
{
    float left = 0, right = 0;
    bool has_left, has_right;

    for (uint32_t r = 0; r < d->n_ranks; r++) {
        uint32_t first = d->first_leaf[r], end = first + d->shares[r];
        bool is_last = r + 1 == d->n_ranks;

        if (first == begin && (end == begin + size || (is_last && end <= begin + size))) {
            if (at[r] >= 0)
                *out = d->values[r][t][(size_t)at[r] * tables[t].width + of];
            return at[r] >= 0;
        }
    }
    if (size == 1)
        return false;
    has_left = tree_sum(d, t, at, of, begin, size / 2, &left);
    has_right = tree_sum(d, t, at, of, begin + size / 2, size / 2, &right);
    if (has_left && has_right)
        *out = left + right;
    else
        *out = has_left ? left : right;
    return has_left || has_right;
}

static void oracle_sum(struct oracle *o, const struct draws *d)
{
    size_t next = 0;

    memset(o->marked, 0, o->first_row[TABLES]);
    memset(o->sums, 0, o->first_float[TABLES] * sizeof(float));
    packed_clear(&o->packed);
    for (uint32_t t = 0; t < TABLES; t++) {
        size_t width = tables[t].width;
        uint64_t used[MAX_RANKS] = { 0 };

        for (uint64_t row = 0; row < tables[t].rows; row++) {
            int64_t at[MAX_RANKS];
            float sum;
            bool has = false;

            for (uint32_t r = 0; r < d->n_ranks; r++) {
                bool own = used[r] < d->n[r][t] && d->rows[r][t][used[r]] == row;

                at[r] = own ? (int64_t)used[r]++ : -1;
                has = has || own;
            }
            if (!has)
                continue;
            for (size_t i = 0; i < width; i++) {
                assert_true(tree_sum(d, t, at, i, 0, 64, &sum));
                o->sums[o->first_float[t] + row * width + i] = sum;
                o->state.values[next++] = sum;
            }
            o->marked[o->first_row[t] + row] = 1;
            o->packed.marks[o->packed_tables[t].first_word + row / 64] |= (uint64_t)1 << row % 64;
        }
    }
    packed_index(&o->packed);
    assert_int_equal(packed_floats(&o->packed), next);
}

/* The definition of the squares of a shard, for dense sums. */
static double squares_of(const struct oracle *o, uint32_t shard, float limit)
{
    double total = 0;

    for (uint32_t t = 0; t < TABLES; t++)
        for (uint64_t block = 0; block * 64 < tables[t].rows; block++) {
            const float *g = o->sums + o->first_float[t] + block * 64 * tables[t].width;
            uint64_t left = tables[t].rows - block * 64, rows = left < 64 ? left : 64;
            size_t n = rows * tables[t].width;
            double in_block = 0;

            if ((block + tables[t].first_shard) % 1024 != shard)
                continue;
            for (size_t at = 0; at < n; at += 4096) {
                double part[16] = { 0 };

                for (size_t i = at; i < n && i < at + 4096; i++) {
                    float x = limit > 0 && g[i] > limit ? limit : g[i];

                    x = limit > 0 && x < -limit ? -limit : x;
                    part[i % 16] += (double)x * (double)x;
                }
                for (int half = 8; half > 0; half /= 2)
                    for (int k = 0; k < half; k++)
                        part[k] += part[k + half];
                in_block += part[0];
            }
            total += in_block;
        }
    return total;
}

/* ---- the stores ---- */

/* Stores 0 and 1 are the two threads of a ps, store 2 is another ps, store 3 holds everything. */
static bool belongs(uint32_t store, uint32_t shard)
{
    bool first = shard * 7 % 10 < 6;

    if (store == 3)
        return true;
    return store == 2 ? !first : first && shard % 2 == store;
}

static void stores_open(struct ps_store *stores[STORES], const struct ps_store_opts *opts)
{
    for (uint32_t k = 0; k < STORES; k++) {
        struct ps_store_opts own = *opts;

        own.n_threads = k < 2 ? 2 : 0;
        own.thread = k < 2 ? k : 0;
        assert_int_equal(ps_store_open(&own, &stores[k], NULL), 0);
        for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
            if (belongs(k, shard))
                assert_int_equal(ps_store_add_shard(stores[k], shard, true, NULL), 0);
    }
}

/* Gives a store the parts of the ranks that are in its shards. */
static void reduce(struct ps_store *s, const struct draws *d)
{
    struct ps_part parts[MAX_RANKS * TABLES];
    void *memory[2 * MAX_RANKS * TABLES];
    uint32_t n = 0;
    struct err err = { 0 };

    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t r = 0; r < d->n_ranks; r++) {
            size_t width = tables[t].width;
            uint64_t *rows = malloc((d->n[r][t] + 1) * sizeof(*rows)), m = 0;
            float *values = malloc((d->n[r][t] + 1) * width * sizeof(*values));

            assert_non_null(rows);
            assert_non_null(values);
            for (uint64_t i = 0; i < d->n[r][t]; i++) {
                uint64_t row = d->rows[r][t][i];

                if (!ps_store_has(s, ps_shard_of(tables[t].first_shard, row)))
                    continue;
                memcpy(values + m * width, d->values[r][t] + i * width, width * sizeof(float));
                rows[m++] = row;
            }
            memory[2 * n] = rows;
            memory[2 * n + 1] = values;
            parts[n++] = (struct ps_part){ r, d->first_leaf[r], d->shares[r], t, m, rows, values };
            if (m == 0 && r % 2 == 1) { /* an empty part may be absent */
                n--;
                free(rows);
                free(values);
            }
        }
    if (ps_store_reduce(s, parts, n, &err) < 0)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < 2 * n; i++)
        free(memory[i]);
}

static void check_bits(const float *a, const float *b, size_t n, const char *what, uint32_t table,
                       uint64_t row)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(*a)) != 0)
            fail_msg("%s of table %u, row %u, float %u: %.9g, expected %.9g", what, (unsigned)table,
                     (unsigned)row, (unsigned)i, (double)a[i], (double)b[i]);
}

/* Compares all parts of the shards of a store with the whole tables. */
static void check_state(const struct ps_store *s, const struct oracle *o, double average,
                        uint32_t staleness)
{
    const float *parts[PARTS_MAX + PS_STALENESS_MAX] = { o->state.w };
    uint32_t n_parts = 1;
    float *got = malloc(70001 * sizeof(*got));

    assert_non_null(got);
    for (uint32_t k = 0; k < OPTIM_MAX_SLOTS; k++)
        if (o->state.slots[k] != NULL)
            parts[n_parts++] = o->state.slots[k];
    if (average > 0)
        parts[n_parts++] = o->state.average;
    for (uint32_t i = 0; i < staleness; i++)
        parts[n_parts++] = o->older[i];
    assert_int_equal(ps_store_n_parts(s), n_parts);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        for (uint32_t t = 0; ps_store_has(s, shard) && t < TABLES; t++) {
            size_t width = tables[t].width;
            uint64_t n = ps_local_rows(tables[t].rows, tables[t].first_shard, shard);

            for (uint32_t part = 0; part < n_parts; part++) {
                assert_int_equal(ps_store_export(s, shard, t, part, 0, n, got, NULL), 0);
                for (uint64_t i = 0; i < n; i++) {
                    uint64_t row = ps_row_of(tables[t].first_shard, shard, i);

                    check_bits(got + i * width, parts[part] + o->first_float[t] + row * width,
                               width, ps_store_part_name(s, part), t, row);
                }
            }
        }
    free(got);
}

/* Compares verdicts with the definition, and those of different holders. */
static void check_verdicts(struct ps_store *stores[STORES], const struct oracle *o, float limit)
{
    struct ps_verdict *v = calloc(STORES, sizeof(*v));

    assert_non_null(v);
    for (uint32_t k = 0; k < STORES; k++)
        ps_store_verdict(stores[k], &v[k]);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++) {
        double expected = squares_of(o, shard, limit);

        for (uint32_t k = 0; k < STORES; k++) {
            bool own = belongs(k, shard);

            assert_memory_equal(&v[k].squares[shard], own ? &expected : &(double){ 0 },
                                sizeof(double));
            assert_int_equal(v[k].checksums[shard], own ? v[3].checksums[shard] : 0);
            assert_true(v[k].is_finite);
        }
        assert_true(expected == 0 || v[3].checksums[shard] != 0);
    }
    free(v);
}

struct way {
    bool lazy, decays;
    double average;
    float clip_value;
    bool nesterov, centered;
    double momentum;
    uint32_t staleness;
};

/* Reads rows of each age, some of them twice, in descending order. */
static void check_older_reads(const struct ps_store *s, const struct oracle *o, uint32_t staleness)
{
    uint64_t rows[67];
    float got[67 * 8];

    for (uint32_t age = 0; age <= staleness; age++) {
        const float *w = age > 0 ? o->older[age - 1] : o->state.w;

        for (uint64_t i = 0; i < 67; i++)
            rows[i] = 4999 - i / 2 * 113;
        assert_int_equal(ps_store_read(s, 0, age, rows, 67, got, NULL), 0);
        for (uint64_t i = 0; i < 67; i++)
            check_bits(got + i * 8, w + o->first_float[0] + rows[i] * 8, 8, "a read", 0, rows[i]);
    }
    assert_int_equal(ps_store_read(s, 0, staleness + 1, rows, 1, got, NULL), ERR_PEER);
}

/* Replaces a store by a new one with the parts of all shards. */
static void move_store(struct ps_store **s, const struct ps_store_opts *opts)
{
    struct ps_store *to = NULL;
    float *rows = malloc(70001 * sizeof(*rows));

    assert_non_null(rows);
    assert_int_equal(ps_store_open(opts, &to, NULL), 0);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++) {
        assert_int_equal(ps_store_add_shard(to, shard, false, NULL), 0);
        for (uint32_t t = 0; t < TABLES; t++)
            for (uint32_t part = 0; part < ps_store_n_parts(*s); part++) {
                uint64_t n = ps_local_rows(tables[t].rows, tables[t].first_shard, shard);

                assert_int_equal(ps_store_export(*s, shard, t, part, 0, n, rows, NULL), 0);
                assert_int_equal(ps_store_import(to, shard, t, part, 0, n, rows, NULL), 0);
            }
    }
    free(rows);
    ps_store_close(*s);
    *s = to;
}

static void train(enum optim_type type, const struct way *way, uint32_t n_ranks, uint32_t steps)
{
    struct ps_table own[TABLES];
    struct optim_hyper h = { .learning_rate = 0.03, .momentum = way->momentum, .beta1 = 0.9,
                             .beta2 = 0.97, .epsilon = 1e-8, .nesterov = way->nesterov,
                             .centered = way->centered, .trust = 7 };
    struct ps_store_opts opts = { .tables = own, .n_tables = TABLES, .optimizer = optim_get(type),
                                  .hyper = &h, .average = way->average,
                                  .staleness = way->staleness, .fill = fill };
    struct ps_store *stores[STORES];
    struct oracle o;
    uint64_t x = 88172645463325252u + n_ranks;

    for (uint32_t t = 0; t < TABLES; t++) {
        own[t] = tables[t];
        own[t].lazy = way->lazy && t != 2;
        if (!way->decays)
            own[t].weight_decay = 0;
    }
    oracle_open(&o, &opts, &h);
    stores_open(stores, &opts);
    for (uint32_t step = 1; step <= steps; step++) {
        struct draws d = { 0 };
        bool skip = step % 7 == 3;

        h.step = step;
        h.grad_scale = step % 2 == 0 ? 0.7f : 1;
        draws_make(&d, &x, n_ranks, 7 + (uint32_t)draw(&x, 30));
        oracle_sum(&o, &d);
        for (uint32_t k = 0; k < STORES; k++) {
            reduce(stores[k], &d);
            assert_true(ps_store_is_pending(stores[k]));
            if (way->clip_value > 0)
                ps_store_clip(stores[k], way->clip_value);
        }
        if (way->clip_value > 0)
            optim_clip_values(o.optim, 0, &o.state, way->clip_value);
        if (step < 4)
            check_verdicts(stores, &o, way->clip_value);
        oracle_keep(&o);
        if (!skip)
            optim_update(o.optim, 0, &h, &o.state);
        for (uint32_t k = 0; k < STORES; k++) {
            if (skip)
                ps_store_skip(stores[k]);
            else
                assert_int_equal(ps_store_commit(stores[k], &h, h.step, NULL), 0);
            assert_false(ps_store_is_pending(stores[k]));
        }
        draws_free(&d);
        if (way->staleness > 0)
            check_older_reads(stores[3], &o, way->staleness);
        if (way->staleness > 0 && step == 4)
            move_store(&stores[3], &opts);
    }
    for (uint32_t k = 0; k < STORES; k++)
        check_state(stores[k], &o, way->average, way->staleness);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++) /* holders can be compared */
        for (uint32_t k = 0; k < 3; k++)
            if (belongs(k, shard))
                assert_int_equal(ps_store_checksum(stores[k], shard),
                                 ps_store_checksum(stores[3], shard));
    for (uint32_t k = 0; k < STORES; k++)
        ps_store_close(stores[k]);
    oracle_close(&o);
}

static void stores_train_to_the_bits_of_whole_tables(void **state)
{
    static const struct way ways[] = {
        { .momentum = 0.9 },
        { .lazy = true, .nesterov = true, .momentum = 0.9, .centered = true, .average = 0.99 },
        { .decays = true, .clip_value = 0.5f, .average = 0.9 },
        { .lazy = true, .decays = true, .clip_value = 2, .centered = true },
    };
    static const enum optim_type types[] = { OPTIM_SGD, OPTIM_MOMENTUM, OPTIM_ADAGRAD,
                                             OPTIM_RMSPROP, OPTIM_ADAM, OPTIM_ADAMW, OPTIM_ADAMAX,
                                             OPTIM_LION };

    (void)state;
    for (size_t k = 0; k < sizeof(types) / sizeof(*types); k++)
        for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
            if (i == k % 4 || ring_is_nightly())
                train(types[k], &ways[i], 1 + (uint32_t)(k + 2 * i) % MAX_RANKS, i == 0 ? 17 : 6);
}

static void staleness_keeps_the_weights_before_the_last_steps(void **state)
{
    static const struct way ways[] = {
        { .staleness = 1 },
        { .staleness = 2, .average = 0.9 },
        { .staleness = 4, .lazy = true },
        { .staleness = 3, .decays = true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        train(OPTIM_ADAGRAD, &ways[i], 3, 11);
        train(OPTIM_ADAM, &ways[i], 2, 5 + (uint32_t)i);
    }
}

static void every_number_of_ranks_gives_the_sums_of_the_tree(void **state)
{
    static const struct way way = { .average = 0.5 };

    (void)state;
    for (uint32_t n = 1; n <= MAX_RANKS; n++)
        train(OPTIM_SGD, &way, n, 4);
}

/* ---- one small store ---- */

static struct ps_store *small_store(enum optim_type type, double average, ps_fill_fn *with,
                                    void *arg)
{
    static const struct optim_hyper h = { .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.99,
                                          .epsilon = 1e-8 };
    struct ps_store_opts opts = { .tables = tables, .n_tables = TABLES,
                                  .optimizer = optim_get(type), .hyper = &h, .average = average,
                                  .fill = with, .arg = arg };
    struct ps_store *s = NULL;

    assert_int_equal(ps_store_open(&opts, &s, NULL), 0);
    return s;
}

static void optimizers_with_norms_are_refused(void **state)
{
    static const enum optim_type types[] = { OPTIM_LARS, OPTIM_LAMB };

    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        struct optim_hyper h = { .learning_rate = 1 };
        struct ps_store_opts opts = { .tables = tables, .n_tables = TABLES, .hyper = &h,
                                      .optimizer = optim_get(types[k]), .fill = fill };
        struct ps_store *s = NULL;
        struct err err = { 0 };

        assert_int_equal(ps_store_open(&opts, &s, &err), ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, optim_get(types[k])->name));
        assert_null(s);
    }
}

static void table_beyond_the_address_space_is_an_error(void **state)
{
    static const struct ps_table huge = { "huge", UINT64_MAX, UINT32_MAX, 0, 1, 0, false, false, { 0 } };
    struct optim_hyper h = { .learning_rate = 1 };
    struct ps_store_opts opts = { .tables = &huge, .n_tables = 1, .hyper = &h,
                                  .optimizer = optim_get(OPTIM_SGD), .fill = fill };
    struct ps_store *s = NULL;

    (void)state;
    assert_int_equal(ps_store_open(&opts, &s, NULL), ERR_NOMEM);
    assert_null(s);
}

static void a_large_table_needs_memory_only_for_its_shards(void **state)
{
    static const struct ps_table large = { "large", UINT64_C(1) << 33, 16, 5, 1, 0, true, false, { 0 } };
    struct optim_hyper h = { .learning_rate = 1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1,
                             .step = 1, .grad_scale = 1 };
    struct ps_store_opts opts = { .tables = &large, .n_tables = 1, .hyper = &h,
                                  .optimizer = optim_get(OPTIM_ADAM), .fill = fill };
    uint64_t row = (UINT64_C(1) << 33) - 1;
    float g[16] = { 1 }, out[16];
    struct ps_part part = { 0, 0, 1, 0, 1, &row, g };
    struct ps_store *s = NULL;

    (void)state;
    assert_int_equal(ps_store_open(&opts, &s, NULL), 0);
    assert_int_equal(ps_store_add_shard(s, ps_shard_of(5, row), false, NULL), 0);
    assert_int_equal(ps_store_bytes(s), UINT64_C(3) << (33 - 10 + 6));
    assert_int_equal(ps_store_reduce(s, &part, 1, NULL), 0);
    assert_int_equal(ps_store_commit(s, &h, h.step, NULL), 0);
    assert_int_equal(ps_store_read(s, 0, 0, &row, 1, out, NULL), 0);
    assert_true(out[0] < 0 && out[1] == 0);
    ps_store_close(s);
}

static void huge_pages_fill_places_that_have_few_rows_and_that_memory_is_counted(void **state)
{
    /* a place has 64 rows of 16 floats; huge pages are used if at least half of all places are full */
    static const struct {
        uint64_t rows, memory;
    } cases[] = { { 40000, PS_SHARDS * 4096 }, { 65536, PS_SHARDS * 4096 }, { 20000, 20000 * 64 } };
    struct optim_hyper h = { .learning_rate = 1, .step = 1, .grad_scale = 1 };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ps_table t = { "table", cases[i].rows, 16, 0, 1, 0, false, false, { 0 } };
        struct ps_store_opts opts = { .tables = &t, .n_tables = 1, .hyper = &h,
                                      .optimizer = optim_get(OPTIM_SGD), .fill = fill };
        struct ps_store *s = NULL;
        uint64_t bytes = 0;

        assert_int_equal(ps_store_open(&opts, &s, NULL), 0);
        for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
            bytes += ps_store_shard_bytes(s, shard);
        assert_int_equal(bytes, cases[i].rows * 64);
        assert_int_equal(ps_store_memory(s, PS_SHARDS, bytes), cases[i].memory);
        ps_store_close(s);
    }
}

static void reads_give_rows_in_the_requested_order(void **state)
{
    struct ps_store *s = small_store(OPTIM_SGD, 0, fill, NULL);
    uint64_t rows[100], x = 5;
    float out[100 * 8];
    struct err err = { 0 };

    (void)state;
    for (uint32_t shard = 0; shard < PS_SHARDS; shard += 2)
        assert_int_equal(ps_store_add_shard(s, shard, true, NULL), 0);
    for (uint32_t i = 0; i < 100; i++)
        rows[i] = draw(&x, 39) * 128 + draw(&x, 64); /* blocks 0, 2, 4, ... */
    assert_int_equal(ps_store_read(s, 0, 0, rows, 100, out, NULL), 0);
    for (uint32_t i = 0; i < 800; i++)
        assert_true(out[i] == initial(0, rows[i / 8] * 8 + i % 8));
    assert_int_equal(ps_store_read(s, 0, 0, NULL, 0, NULL, NULL), 0);
    rows[50] = 64;
    assert_int_equal(ps_store_read(s, 0, 0, rows, 100, out, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "shard 1"));
    rows[50] = 5000;
    assert_int_equal(ps_store_read(s, 0, 0, rows, 100, out, &err), ERR_PEER);
    assert_int_equal(ps_store_read(s, TABLES, 0, rows, 1, out, &err), ERR_PEER);
    ps_store_drop_shard(s, 0);
    assert_false(ps_store_has(s, 0));
    rows[0] = 1;
    assert_int_equal(ps_store_read(s, 0, 0, rows, 1, out, &err), ERR_PEER);
    ps_store_close(s);
}

static void failed_fill_leaves_no_shard(void **state)
{
    uint64_t bad = 64;
    struct ps_store *s = small_store(OPTIM_SGD, 0, fill, &bad);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(ps_store_add_shard(s, 1, true, &err), ERR_NOENT);
    assert_non_null(strstr(err.text, "'wide'"));
    assert_false(ps_store_has(s, 1));
    assert_int_equal(ps_store_bytes(s), 0);
    assert_int_equal(ps_store_add_shard(s, 2, true, &err), 0);
    assert_true(ps_store_bytes(s) > 0);
    assert_int_equal(ps_store_add_shard(s, 1, false, &err), 0);
    ps_store_close(s);
}

static void invalid_parts_are_refused_and_nothing_is_pending(void **state)
{
    struct ps_store *s = small_store(OPTIM_SGD, 0, fill, NULL);
    static const uint64_t good[] = { 1, 2 }, equal[] = { 2, 2 }, down[] = { 2, 1 };
    static const uint64_t far[] = { 1, 5000 }, absent[] = { 1, 64 };
    static const float g[16] = { 1 };
    const struct {
        const char *expected;
        struct ps_part parts[2];
    } cases[] = {
        { "ascending", { { 0, 0, 1, 0, 2, equal, g }, { 1, 1, 1, 0, 2, good, g } } },
        { "ascending", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 1, 0, 2, down, g } } },
        { "row 5000 of 5000", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 1, 0, 2, far, g } } },
        { "shard 1", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 1, 0, 2, absent, g } } },
        { "table 5 of 5", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 1, 5, 2, good, g } } },
        { "subtree", { { 0, 0, 1, 0, 2, good, g }, { 1, 0, 1, 0, 2, good, g } } },
        { "subtree", { { 0, 1, 1, 0, 2, good, g }, { 1, 0, 1, 0, 2, good, g } } },
        { "subtree", { { 0, 0, 3, 0, 2, good, g }, { 1, 3, 1, 0, 2, good, g } } },
        { "subtree", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 2, 0, 0, good, g } } },
        { "exceed", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 0, 0, 2, good, g } } },
        { "exceed", { { 0, 0, 1, 0, 2, good, g }, { 1, 1, 65536, 0, 2, good, g } } },
        { "exceed", { { 0, 0, 1, 0, 2, good, g }, { 1, UINT32_MAX, 1, 0, 2, good, g } } },
    };

    (void)state;
    assert_int_equal(ps_store_add_shard(s, 0, true, NULL), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct err err = { 0 };

        assert_int_equal(ps_store_reduce(s, cases[i].parts, 2, &err), ERR_PEER);
        if (strstr(err.text, cases[i].expected) == NULL)
            fail_msg("'%s' does not contain '%s'", err.text, cases[i].expected);
        assert_false(ps_store_is_pending(s));
    }
    assert_int_equal(ps_store_reduce(s, NULL, 0, NULL), 0); /* no rank has rows */
    assert_true(ps_store_is_pending(s));
    ps_store_close(s);
}

static void verdict_reports_a_gradient_that_is_not_finite(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    struct ps_store *s = small_store(OPTIM_SGD, 0, fill, NULL);
    uint64_t row = 3;
    float g[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, out[8];
    struct ps_part part = { 0, 0, 1, 0, 1, &row, g };
    struct ps_verdict *v = calloc(2, sizeof(*v));

    (void)state;
    assert_non_null(v);
    assert_int_equal(ps_store_add_shard(s, 0, true, NULL), 0);
    for (uint32_t k = 0; k < 3; k++) {
        g[5] = bad[k];
        assert_int_equal(ps_store_reduce(s, &part, 1, NULL), 0);
        ps_store_verdict(s, v);
        assert_false(v->is_finite);
        ps_store_discard(s);
        assert_int_equal(ps_store_read(s, 0, 0, &row, 1, out, NULL), 0);
        for (uint32_t i = 0; i < 8; i++)
            assert_true(out[i] == initial(0, row * 8 + i));
    }
    memset(g, 0, sizeof(g)); /* a zero gradient and no gradient have different checksums */
    assert_int_equal(ps_store_reduce(s, &part, 1, NULL), 0);
    ps_store_verdict(s, &v[0]);
    ps_store_discard(s);
    assert_int_equal(ps_store_reduce(s, &part, 0, NULL), 0);
    ps_store_verdict(s, &v[1]);
    assert_true(v[0].is_finite && v[1].is_finite);
    assert_int_not_equal(v[0].checksum, v[1].checksum);
    free(v);
    ps_store_close(s);
}

static void exported_state_is_imported_with_its_bits(void **state)
{
    struct ps_store *from = small_store(OPTIM_ADAM, 0.9, fill, NULL);
    struct ps_store *to = small_store(OPTIM_ADAM, 0.9, fill, NULL);
    static const char *const names[] = { "weights", "exp_avg", "exp_avg_sq", "average" };
    struct optim_hyper h = { .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8,
                             .step = 1, .grad_scale = 1 };
    uint64_t row = 3;
    float g[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, rows[64 * 8];
    struct ps_part part = { 0, 0, 1, 0, 1, &row, g };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(ps_store_n_parts(from), 4);
    assert_int_equal(ps_store_add_shard(from, 0, true, NULL), 0);
    assert_int_equal(ps_store_reduce(from, &part, 1, NULL), 0);
    assert_int_equal(ps_store_commit(from, &h, h.step, NULL), 0);
    assert_int_equal(ps_store_add_shard(to, 0, false, NULL), 0);
    assert_int_not_equal(ps_store_checksum(from, 0), ps_store_checksum(to, 0));
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t k = 0; k < 4; k++) {
            uint64_t n = ps_local_rows(tables[t].rows, tables[t].first_shard, 0);

            assert_string_equal(ps_store_part_name(from, k), names[k]);
            for (uint64_t i = 0, m; i < n; i += m) {
                m = n - i < 13 ? n - i : 13;
                assert_int_equal(ps_store_export(from, 0, t, k, i, m, rows, NULL), 0);
                assert_int_equal(ps_store_import(to, 0, t, k, i, m, rows, NULL), 0);
            }
        }
    assert_int_equal(ps_store_checksum(from, 0), ps_store_checksum(to, 0));
    assert_int_equal(ps_store_export(from, 0, 0, 0, 1, 64, rows, &err), ERR_PEER);
    assert_int_equal(ps_store_export(from, 0, 0, 0, 65, 0, rows, &err), ERR_PEER);
    assert_int_equal(ps_store_export(from, 0, 0, 0, 1, UINT64_MAX, rows, &err), ERR_PEER);
    assert_int_equal(ps_store_export(from, 1, 0, 0, 0, 1, rows, &err), ERR_PEER);
    assert_int_equal(ps_store_export(from, 1024, 0, 0, 0, 1, rows, &err), ERR_PEER);
    assert_int_equal(ps_store_export(from, 0, TABLES, 0, 0, 1, rows, &err), ERR_PEER);
    assert_int_equal(ps_store_import(to, 0, 0, 4, 0, 1, rows, &err), ERR_PEER);
    ps_store_close(from);
    ps_store_close(to);
}

/* Adam changes every row of a table without lazy rows: each log has all of them. */
static void logs_of_all_rows_count_as_memory(void **state)
{
    static const struct optim_hyper h = { .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8 };
    static const struct ps_table large[2] = { { "all", 640 * 1024, 2, 0, 1, 0, false, false, { 0 } },
                                              { "lazy", 64 * 1024, 8, 0, 1, 0, true, false, { 0 } } };
    struct ps_store_opts opts = { .tables = large, .n_tables = 2, .staleness = 3,
                                  .optimizer = optim_get(OPTIM_ADAM), .hyper = &h, .fill = fill };
    uint64_t places = 3 * 4 * (640 * 2 + 64 * 8), logs = 3 * 640 * (16 + 2 * 4), bytes;
    struct ps_store *s = NULL;

    (void)state;
    assert_int_equal(ps_store_open(&opts, &s, NULL), 0);
    bytes = ps_store_shard_bytes(s, 7);
    assert_int_equal(bytes, places + logs);
    assert_true(ps_store_memory(s, 5, 5 * bytes) >= 5 * bytes);
    assert_true(ps_store_memory(s, 5, 5 * bytes) < 5 * (bytes + 4096));
    ps_store_close(s);
}

/* Rows arrive in any order, twice, and with weights that they had before. */
static void older_rows_are_imported_over_what_the_logs_have(void **state)
{
    static const struct optim_hyper h = { .learning_rate = 0.1, .epsilon = 1e-8 };
    static const float versions[][4] = { { 1, 2, 1, 3 }, { 5, 5, 6, 5 }, { 1, 1, 1, 1 }, { 4, 3, 2, 4 } };
    struct ps_store_opts opts = { .tables = tables, .n_tables = TABLES, .staleness = 3,
                                  .optimizer = optim_get(OPTIM_SGD), .hyper = &h, .fill = fill };
    struct ps_store *s = NULL;
    float got[8], row[8];

    (void)state;
    assert_int_equal(ps_store_open(&opts, &s, NULL), 0);
    assert_int_equal(ps_store_add_shard(s, 0, false, NULL), 0);
    for (size_t i = 0; i < sizeof(versions) / sizeof(*versions); i++)
        for (uint64_t local = 20; local-- > 0;) {
            uint64_t of_row = ps_row_of(tables[0].first_shard, 0, local);

            for (uint32_t part = 0; part < 4; part++) {
                for (size_t k = 0; k < 8; k++)
                    row[k] = versions[i][part] + (float)local;
                assert_int_equal(ps_store_import(s, 0, 0, part, local, 1, row, NULL), 0);
            }
            for (uint32_t age = 0; age < 4; age++) {
                assert_int_equal(ps_store_read(s, 0, age, &of_row, 1, got, NULL), 0);
                assert_true(got[7] == versions[i][age] + (float)local);
                assert_int_equal(ps_store_export(s, 0, 0, age, local, 1, got, NULL), 0);
                assert_true(got[0] == versions[i][age] + (float)local);
            }
        }
    ps_store_close(s);
}

/* ps_store_add_shard() with `fill` is the definition of initial rows. */
static void initial_rows_set_weights_and_average_and_leave_slots_zero(void **state)
{
    struct ps_store *filled = small_store(OPTIM_ADAM, 0.9, fill, NULL);
    struct ps_store *to = small_store(OPTIM_ADAM, 0.9, NULL, NULL);
    float rows[13 * 192];
    struct err err = { 0 };

    (void)state;
    assert_int_equal(ps_store_add_shard(filled, 0, true, NULL), 0);
    assert_int_equal(ps_store_add_shard(to, 0, false, NULL), 0);
    assert_int_not_equal(ps_store_checksum(filled, 0), ps_store_checksum(to, 0));
    for (uint32_t t = 0; t < TABLES; t++) {
        uint64_t n = ps_local_rows(tables[t].rows, tables[t].first_shard, 0);

        for (uint64_t i = 0, m; i < n; i += m) {
            m = n - i < 13 ? n - i : 13;
            assert_int_equal(ps_store_export(filled, 0, t, 0, i, m, rows, NULL), 0);
            assert_int_equal(ps_store_import_initial(to, 0, t, i, m, rows, NULL), 0);
        }
    }
    assert_int_equal(ps_store_checksum(filled, 0), ps_store_checksum(to, 0));
    assert_int_equal(ps_store_import_initial(to, 1, 0, 0, 1, rows, &err), ERR_PEER);
    ps_store_close(filled);
    ps_store_close(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_train_to_the_bits_of_whole_tables),
        cmocka_unit_test(staleness_keeps_the_weights_before_the_last_steps),
        cmocka_unit_test(every_number_of_ranks_gives_the_sums_of_the_tree),
        cmocka_unit_test(optimizers_with_norms_are_refused),
        cmocka_unit_test(table_beyond_the_address_space_is_an_error),
        cmocka_unit_test(a_large_table_needs_memory_only_for_its_shards),
        cmocka_unit_test(huge_pages_fill_places_that_have_few_rows_and_that_memory_is_counted),
        cmocka_unit_test(reads_give_rows_in_the_requested_order),
        cmocka_unit_test(failed_fill_leaves_no_shard),
        cmocka_unit_test(invalid_parts_are_refused_and_nothing_is_pending),
        cmocka_unit_test(verdict_reports_a_gradient_that_is_not_finite),
        cmocka_unit_test(exported_state_is_imported_with_its_bits),
        cmocka_unit_test(logs_of_all_rows_count_as_memory),
        cmocka_unit_test(older_rows_are_imported_over_what_the_logs_have),
        cmocka_unit_test(initial_rows_set_weights_and_average_and_leave_slots_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
