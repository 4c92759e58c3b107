/* plain.h - what parameter servers must compute: lib/optim trains whole tables, with gradients that
 * are functions of (step, lane, table, row), added along the tree over the lanes one element at a
 * time. plain.history has the state after each step.
 *
 * A dynamic table is a whole table here too, of the ids that may occur: rows that the rules do not admit
 * have no gradient, and are initial after each step. */
#ifndef TEST_PS_PLAIN_H
#define TEST_PS_PLAIN_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "optim/optim.h"
#include "ps/store.h"
#include "tensor/fill.h"
#include "tensor/packed.h"

enum {
    PLAIN_TABLES = 4, /* the last one has rows in every shard, some with two blocks */
    PLAIN_PARTS = OPTIM_MAX_SLOTS + 2,
    PLAIN_WIDTH = 65, /* at most */
    PLAIN_STEPS = 32,
    PLAIN_IDS = 256, /* of a dynamic table */
};

static const struct ps_table plain_tables[PLAIN_TABLES] = {
    { "wide", 700, 8, 0, 1, 0.01, true, false, { 0 } },
    { "one row", 1, 3, 389, 0.5, 0, false, false, { 0 } },
    { "odd", 50, 65, 778, 2, 0.1, false, false, { 0 } },
    { "everywhere", 65636, 1, 143, 1, 0, true, false, { 0 } },
};

/* Widths as above. Of the 256 ids some share a shard, which keeps one admitted row and one other. */
static const struct ps_table plain_dynamic[] = {
    { "wide", 700, 8, 0, 1, 0.01, true, false, { 0 } },
    { "ids", 0, 3, PS_BY_ID, 0.5, 0.02, false, false, { 2, 2, 3, PS_SHARDS } },
    { "odd", 50, 65, 778, 2, 0.1, false, false, { 0 } },
};

struct plain_id { /* of a dynamic table */
    uint32_t count;
    uint64_t last_step;
};

struct plain {
    const struct ps_table *tables; /* [n_tables] */
    uint32_t n_tables, lanes, n_parts;
    uint32_t staleness; /* set by the test: the parts from n_parts on are older weights */
    enum optim_type type;
    double average;
    float clip;
    uint64_t steps;
    struct optim_hyper hyper; /* of the job */
    size_t first_float[PLAIN_TABLES + 1];
    double squares[PLAIN_STEPS + 1]; /* the votes of the first group; 0: not yet */
    float *history[PLAIN_STEPS + 1]; /* owned; [n_parts][floats] after each step */
};

static inline uint64_t plain_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b * UINT64_C(0xd1342543de82ef95)) + UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t plain_rows(const struct ps_table *t)
{
    return t->rows > 0 ? t->rows : PLAIN_IDS;
}

/* The number of a row in messages: ids from INT64_MIN to INT64_MAX. */
static inline uint64_t plain_number(const struct ps_table *t, uint64_t row)
{
    return t->rows > 0 ? row : row * (UINT64_MAX / (PLAIN_IDS - 1));
}

static inline uint32_t plain_shard(const struct ps_table *t, uint64_t row)
{
    return ps_shard_of(t->first_shard, plain_number(t, row));
}

static inline struct table_fill plain_fill(const struct ps_table *t)
{
    return t->rows > 0 ? (struct table_fill){ .kind = TABLE_FROM_FILE }
                       : table_fill_of(TABLE_NORMAL, 0.5, 7, t->name);
}

static inline float plain_initial(uint32_t table, uint64_t at)
{
    return (float)(int64_t)(plain_mix(at, table + 1) % 2001) / 1000 - 1;
}

static inline bool plain_skips(uint64_t step)
{
    return step % 4 == 3;
}

static inline struct optim_hyper plain_hyper(const struct plain *p, uint64_t step)
{
    struct optim_hyper h = p->hyper;

    h.step = step;
    h.learning_rate = 0.03 / (double)step;
    h.grad_scale = step % 2 == 0 ? 0.7f : 1;
    return h;
}

/* The gradient of a row in a lane. Some lanes have no rows. The magnitudes differ, so another order
 * of additions changes the bits. */
static inline bool plain_lane(uint64_t step, uint32_t lane, uint32_t table, uint64_t row,
                              float *out)
{
    uint64_t of_lane = plain_mix(plain_mix(step, lane), 7), x;

    if (of_lane % 3 == 0)
        return false;
    x = plain_mix(of_lane, plain_mix(table, row));
    if (x % (table == PLAIN_TABLES - 1 ? 97 : 4) != 0)
        return false;
    for (uint32_t i = 0; i < plain_tables[table].width; i++) {
        float v;

        x = plain_mix(x, i);
        v = (float)(int64_t)(x % (1 << 24)) / (1 << 23) - 1;
        out[i] = ldexpf(v, (int)(x >> 32) % 12 - 6) + 0.0f; /* never -0 */
    }
    return true;
}

/* The sum over the lanes [low, high) in the subtree [begin, begin + size). Returns false if none of
 * them has the row. */
static inline bool plain_sum(uint64_t step, uint32_t table, uint64_t row, uint32_t begin,
                             uint32_t size, uint32_t low, uint32_t high, float *out)
{
    float right[PLAIN_WIDTH];
    bool has_left, has_right;

    if (begin >= high || begin + size <= low)
        return false;
    if (size == 1)
        return plain_lane(step, begin, table, row, out);
    has_left = plain_sum(step, table, row, begin, size / 2, low, high, out);
    has_right = plain_sum(step, table, row, begin + size / 2, size / 2, low, high, right);
    for (uint32_t i = 0; has_right && i < plain_tables[table].width; i++)
        out[i] = has_left ? out[i] + right[i] : right[i];
    return has_left || has_right;
}

/* The gradient of a row in the lanes [first, first + n). */
static inline bool plain_gradient(uint64_t step, uint32_t table, uint64_t row, uint32_t first,
                                  uint32_t n, float *out)
{
    return plain_sum(step, table, row, 0, 64, first, first + n, out);
}

/* Returns the version that the lanes of step t + 1 read. */
static inline uint64_t plain_read_by_lanes(const struct plain *p, uint64_t t)
{
    return t > p->staleness ? t - p->staleness : 0;
}

static inline uint32_t plain_all_parts(const struct plain *p)
{
    return p->n_parts + p->staleness;
}

static inline const float *plain_row(const struct plain *p, uint64_t step, uint32_t part,
                                     uint32_t table, uint64_t row)
{
    if (part >= p->n_parts) {
        uint64_t age = part - p->n_parts + 1;

        step = step > age ? step - age : 0;
        part = 0;
    }
    return p->history[step] + part * p->first_float[p->n_tables] + p->first_float[table] +
           row * p->tables[table].width;
}

/* Counts a gradient. Returns whether the row is trained. */
static inline bool plain_admits(const struct ps_table *t, struct plain_id *id, uint64_t step)
{
    if (plain_skips(step))
        return false;
    id->count++;
    id->last_step = step;
    return id->count >= t->rules.admit_after;
}

/* Sets the packed gradient of a step. */
static inline void plain_pack(const struct plain *p, uint64_t step, struct packed *packed,
                              float *values, struct plain_id *ids)
{
    packed_clear(packed);
    for (uint32_t t = 0; t < p->n_tables; t++)
        for (uint64_t row = 0; row < plain_rows(&p->tables[t]); row++)
            if (plain_gradient(step, t, row, 0, p->lanes, values) &&
                (p->tables[t].rows > 0 || plain_admits(&p->tables[t], &ids[row], step))) {
                packed->marks[packed->tables[t].first_word + row / 64] |= (uint64_t)1 << row % 64;
                values += p->tables[t].width;
            }
    packed_index(packed);
}

/* Removes the oldest id of a shard, among those that are trained or among the others, if there are more
 * than the shard's part of the limit. */
static inline bool plain_evict(const struct ps_table *t, struct plain_id *ids, uint32_t shard,
                               bool is_trained)
{
    uint32_t n = 0, oldest = PLAIN_IDS;

    for (uint32_t i = 0; i < PLAIN_IDS; i++) {
        if (ids[i].count == 0 || (ids[i].count >= t->rules.admit_after) != is_trained ||
            plain_shard(t, i) != shard)
            continue;
        n++;
        if (oldest == PLAIN_IDS || ids[i].last_step < ids[oldest].last_step)
            oldest = i;
    }
    if (n <= t->rules.max_rows / PS_SHARDS)
        return false;
    ids[oldest].count = 0;
    return true;
}

/* The rules after an update: rows that are not admitted are initial. */
static inline void plain_after(const struct plain *p, uint32_t table, uint64_t step,
                               struct plain_id *ids)
{
    const struct ps_table *t = &p->tables[table];
    const struct table_fill fill = plain_fill(t);
    size_t width = t->width;

    for (uint32_t i = 0; i < PLAIN_IDS && step % t->rules.sweep_steps == 0; i++)
        if (ids[i].last_step + t->rules.expire_steps < step)
            ids[i].count = 0;
    for (uint32_t shard = 0; shard < PS_SHARDS && step % t->rules.sweep_steps == 0; shard++)
        while (plain_evict(t, ids, shard, true) || plain_evict(t, ids, shard, false))
            continue;
    for (uint32_t i = 0; i < PLAIN_IDS; i++) {
        float *row = p->history[0] + p->first_float[table] + i * width;
        size_t all = p->first_float[p->n_tables];

        if (ids[i].count >= t->rules.admit_after)
            continue;
        for (uint32_t part = 1; part < p->n_parts; part++)
            memset(row + part * all, 0, width * sizeof(*row));
        table_fill_rows(&fill, t->width, (uint64_t)ps_id_of_row(plain_number(t, i)), 1, row);
        if (p->average > 0)
            memcpy(row + (p->n_parts - 1) * all, row, width * sizeof(*row));
    }
}

static inline void plain_open_tables(struct plain *p, const struct ps_table *tables,
                                     enum optim_type type, uint32_t n_tables, uint32_t lanes,
                                     uint64_t steps, double average, float clip)
{
    struct plain_id ids[PLAIN_IDS] = { { 0, 0 } };
    const struct optim_def *def = optim_get(type);
    struct packed_table shapes[PLAIN_TABLES];
    struct optim_param params[PLAIN_TABLES];
    struct optim_opts opts = { .def = def, .params = params, .n_params = n_tables, .n_parts = 1,
                               .average = average };
    struct optim_state state = { 0 };
    struct packed packed;
    struct optim *optim;
    size_t words, n;
    void *marks;

    *p = (struct plain){ .tables = tables, .n_tables = n_tables, .lanes = lanes, .type = type, .average = average,
                         .clip = clip, .steps = steps,
                         .hyper = { .learning_rate = 0.03, .momentum = 0.9, .beta1 = 0.9,
                                    .beta2 = 0.97, .epsilon = 1e-8, .grad_scale = 1 } };
    assert_true(steps <= PLAIN_STEPS);
    for (uint32_t t = 0; t < n_tables; t++) {
        const struct ps_table *is = &tables[t];

        n = plain_rows(is) * is->width;
        shapes[t] = (struct packed_table){ .rows = plain_rows(is), .width = is->width };
        params[t] = (struct optim_param){ p->first_float[t], n, is->rate_factor, is->weight_decay,
                                          false, &shapes[t],
                                          is->lazy || is->rows == 0, 0, false, 0, 0 };
        p->first_float[t + 1] = p->first_float[t] + n;
    }
    n = p->first_float[n_tables];
    words = packed_layout(shapes, n_tables);
    marks = malloc(packed_bytes(n_tables, words));
    p->history[0] = calloc(PLAIN_PARTS * n, sizeof(float));
    state.values = malloc(n * sizeof(float));
    assert_true(marks != NULL && p->history[0] != NULL && state.values != NULL);
    packed = packed_init(shapes, n_tables, words, marks);
    state.packed = &packed;
    state.w = p->history[0];
    p->n_parts = 1;
    for (uint32_t k = 0; k < def->n_slots; k++)
        if (optim_uses(def, &p->hyper, k))
            state.slots[k] = p->history[0] + p->n_parts++ * n;
    if (average > 0)
        state.average = p->history[0] + p->n_parts++ * n;
    for (uint32_t t = 0; t < n_tables; t++)
        for (size_t i = p->first_float[t]; i < p->first_float[t + 1]; i++) {
            state.w[i] = plain_initial(t, i - p->first_float[t]);
            if (average > 0)
                state.average[i] = state.w[i];
        }
    for (uint32_t t = 0; t < n_tables; t++)
        if (tables[t].rows == 0)
            plain_after(p, t, 1, ids);
    assert_int_equal(optim_new(&opts, &optim, NULL), 0);
    for (uint64_t step = 1; step <= steps; step++) { /* history[0] is the state that is trained */
        struct optim_hyper h = plain_hyper(p, step);

        p->history[step] = malloc(p->n_parts * n * sizeof(float));
        assert_non_null(p->history[step]);
        memcpy(p->history[step], p->history[0], p->n_parts * n * sizeof(float));
        plain_pack(p, step, &packed, state.values, ids);
        if (clip > 0)
            optim_clip_values(optim, 0, &state, clip);
        if (plain_skips(step))
            continue;
        optim_update(optim, 0, &h, &state);
        for (uint32_t t = 0; t < n_tables; t++)
            if (tables[t].rows == 0)
                plain_after(p, t, step, ids);
    }
    for (uint64_t step = 0; step < steps; step++) { /* now history[k + 1] is the state after step k */
        float *first = p->history[step];

        p->history[step] = p->history[step + 1];
        p->history[step + 1] = first;
    }
    optim_free(optim);
    free(state.values);
    free(marks);
}

static inline void plain_open(struct plain *p, enum optim_type type, uint32_t n_tables,
                              uint32_t lanes, uint64_t steps, double average, float clip)
{
    plain_open_tables(p, plain_tables, type, n_tables, lanes, steps, average, clip);
}

static inline void plain_close(struct plain *p)
{
    for (uint64_t i = 0; i <= p->steps; i++)
        free(p->history[i]);
}

/* A source of the state after a step, for the leader. */
struct plain_source {
    const struct plain *plain;
    uint64_t step;
    uint32_t n_progress; /* calls of plain_progress() */
};

static inline int plain_progress(void *arg, struct err *err)
{
    (void)err;
    ((struct plain_source *)arg)->n_progress++;
    return 0;
}

static inline int plain_read(void *arg, uint32_t table, uint32_t part, uint64_t first, uint64_t n,
                             float *out, struct err *err)
{
    const struct plain_source *s = arg;

    (void)err;
    memcpy(out, plain_row(s->plain, s->step, part, table, first),
           n * s->plain->tables[table].width * sizeof(float));
    return 0;
}

#endif
