#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/kit.h"
#include "optim/named.h"
#include "optim/optim.h"
#include "optim/reference.h"
#include "tensor/packed.h"

enum { N_REFERENCES = sizeof(references) / sizeof(*references) };

static struct optim_hyper hyper_of(const struct reference *r, uint64_t step)
{
    return (struct optim_hyper){ .learning_rate = r->rate, .momentum = r->momentum,
                                 .beta1 = r->beta1, .beta2 = r->beta2, .epsilon = r->epsilon,
                                 .trust_coefficient = r->trust, .nesterov = r->nesterov,
                                 .centered = r->centered, .step = step, .grad_scale = 1 };
}

/* One step as train makes it, in one thread that does the work of all parts. */
static void step_all(struct optim *o, uint32_t n_parts, struct optim_hyper *h, double clip,
                     double clip_value, const struct optim_state *state)
{
    for (uint32_t k = 0; k < n_parts; k++) {
        if (clip_value > 0)
            optim_clip_values(o, k, state, (float)clip_value);
        optim_measure_gradient(o, k, state);
    }
    h->grad_scale = optim_clip(optim_gradient_norm(o, 0), clip);
    for (uint32_t k = 0; optim_needs_norms(o) && k < n_parts; k++)
        optim_measure(o, k, h, state);
    for (uint32_t k = n_parts; k-- > 0;)
        optim_update(o, k, h, state);
}

static void a_hundred_steps_end_where_pytorch_ends(void **state)
{
    (void)state;
    for (size_t r = 0; r < N_REFERENCES; r++) {
        const struct reference *ref = &references[r];
        const struct optim_def *def = optim_named(ref->optimizer);
        const struct optim_param params[] = {
            { 0, REFERENCE_FIRST, 1, ref->decay, true, NULL, false, 0, false, 0, 0 },
            { REFERENCE_FIRST, REFERENCE_N - REFERENCE_FIRST, ref->factor, ref->decay2, true, NULL, false, 0, false, 0, 0 },
        };
        float w[REFERENCE_N], g[REFERENCE_N], memory[3][REFERENCE_N] = { { 0 } };
        struct optim_state s = { .w = w, .g = g };
        struct optim *o = optim_of(def, params, 2, 1, 0);
        uint32_t x = ref->seed;
        size_t shown = 0;

        for (uint32_t k = 0; k < def->n_slots; k++)
            if (optim_uses(def, &(struct optim_hyper){ .momentum = ref->momentum,
                                                       .centered = ref->centered }, k))
                s.slots[k] = memory[k];
        draw_all(&x, w, REFERENCE_N);
        for (uint64_t step = 1; step <= REFERENCE_STEPS; step++) {
            struct optim_hyper h = hyper_of(ref, step);

            draw_all(&x, g, REFERENCE_N);
            step_all(o, 1, &h, ref->clip, ref->clip_value, &s);
            assert_true(ref->clip == 0 || h.grad_scale < 1);
            if (step != reference_shown[shown])
                continue;
            for (size_t i = 0; i < REFERENCE_N; i++) {
                double e = fabs((double)w[i] - (double)ref->weights[shown][i]);

                /* Rounding alone: some units in the last place of weights up to about one. */
                if (e > 5e-7 + 4e-9 * (double)step)
                    fail_msg("%s, step %d, weight %zu: %.9g, expected %.9g", ref->what, (int)step,
                             i, (double)w[i], (double)ref->weights[shown][i]);
            }
            shown++;
        }
        assert_int_equal(shown, REFERENCE_SHOWN);
        optim_free(o);
    }
}

/* The formulas of optim.h, one number at a time, every operation rounded where it stands. */
struct hand {
    const struct optim_hyper *h;
    float w, g;
    float *slots[3];
    float mean, root; /* 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
};

static float decayed(const struct hand *k)
{
    volatile float d = k->g * k->h->grad_scale, a = (float)k->h->weight_decay * k->w;

    return d + a;
}

/* slot = keep * slot + rest * x */
static float averaged(const struct hand *k, int slot, double keep, float x)
{
    volatile float a = (float)keep * *k->slots[slot], b = (float)(1 - keep) * x;

    return *k->slots[slot] = a + b;
}

static float descend(const struct hand *k, double rate, float u)
{
    volatile float step = (float)rate * u;

    return k->w - step;
}

static float by_sgd(const struct hand *k)
{
    return descend(k, k->h->learning_rate, decayed(k));
}

static float by_momentum(const struct hand *k)
{
    volatile float d = decayed(k), a = (float)k->h->momentum * *k->slots[0];

    *k->slots[0] = a + d;
    a = (float)k->h->momentum * *k->slots[0];
    return descend(k, k->h->learning_rate, k->h->nesterov ? d + a : *k->slots[0]);
}

static float by_adagrad(const struct hand *k)
{
    volatile float d = decayed(k), square = d * d, root;

    *k->slots[0] = *k->slots[0] + square;
    root = sqrtf(*k->slots[0]);
    root = root + (float)k->h->epsilon;
    return descend(k, k->h->learning_rate, d / root);
}

static float by_rmsprop(const struct hand *k)
{
    volatile float d = decayed(k), square = d * d, x = averaged(k, 0, k->h->beta2, square), u;

    if (k->h->centered) {
        u = averaged(k, 2, k->h->beta2, d);
        u = u * u;
        x = x - u;
        x = x < 0 ? 0 : x;
    }
    u = sqrtf(x);
    u = u + (float)k->h->epsilon;
    u = d / u;
    if (k->h->momentum > 0) {
        x = (float)k->h->momentum * *k->slots[1];
        *k->slots[1] = x + u;
        u = *k->slots[1];
    }
    return descend(k, k->h->learning_rate, u);
}

/* m / (sqrt(v) * root + eps) */
static float ratio_of(const struct hand *k, float m, float v)
{
    volatile float c = sqrtf(v);

    c = c * k->root;
    c = c + (float)k->h->epsilon;
    return m / c;
}

static float by_adam(const struct hand *k, float d)
{
    volatile float square = d * d, m = averaged(k, 0, k->h->beta1, d);

    return ratio_of(k, m, averaged(k, 1, k->h->beta2, square));
}

static double adam_rate(const struct hand *k)
{
    double p = 1;

    for (uint64_t i = 0; i < k->h->step; i++)
        p *= k->h->beta1;
    return k->h->learning_rate / (1 - p);
}

static float by_plain_adam(const struct hand *k)
{
    return descend(k, adam_rate(k), by_adam(k, decayed(k)));
}

static float by_adamw(const struct hand *k)
{
    struct hand kept = *k;

    kept.w = k->w * (float)(1 - k->h->learning_rate * k->h->weight_decay);
    return descend(&kept, adam_rate(k), by_adam(k, k->g * k->h->grad_scale));
}

static float by_adamax(const struct hand *k)
{
    volatile float d = decayed(k), m = averaged(k, 0, k->h->beta1, d);
    volatile float old = (float)k->h->beta2 * *k->slots[1], new = fabsf(d) + (float)k->h->epsilon;

    *k->slots[1] = old > new ? old : new;
    return descend(k, adam_rate(k), m / *k->slots[1]);
}

static float by_lion(const struct hand *k)
{
    volatile float d = k->g * k->h->grad_scale, a = (float)k->h->beta1 * *k->slots[0];
    volatile float b = (float)(1 - k->h->beta1) * d, u = a + b;

    u = u > 0 ? 1 : u < 0 ? -1 : 0;
    averaged(k, 0, k->h->beta2, d);
    a = (float)k->h->weight_decay * k->w;
    return descend(k, k->h->learning_rate, u + a);
}

static float by_lars(const struct hand *k)
{
    volatile float d = decayed(k), a = (float)k->h->momentum * *k->slots[0];

    d = (float)(k->h->learning_rate * k->h->trust) * d;
    *k->slots[0] = a + d;
    return k->w - *k->slots[0];
}

static float by_lamb(const struct hand *k) /* its moments were moved before */
{
    volatile float m = *k->slots[0] * k->mean, u = ratio_of(k, m, *k->slots[1]);
    volatile float a = (float)k->h->weight_decay * k->w;

    return descend(k, k->h->learning_rate * k->h->trust, u + a);
}

static const struct {
    const char *name;
    float (*step)(const struct hand *k);
} hands[] = {
    { "sgd", by_sgd },         { "momentum", by_momentum }, { "adagrad", by_adagrad },
    { "rmsprop", by_rmsprop }, { "adam", by_plain_adam },   { "adamw", by_adamw },
    { "adamax", by_adamax },   { "lars", by_lars },         { "lamb", by_lamb },
    { "lion", by_lion },
};
enum { N_HANDS = sizeof(hands) / sizeof(*hands), N_SINGLE = 1003 };

/* Three steps of a row, whole and one number at a time. */
static void compare_with_hand(const struct optim_def *def, float (*step_one)(const struct hand *),
                              double momentum, bool flag)
{
    float w[2][N_SINGLE], g[N_SINGLE], slots[2][3][N_SINGLE] = { { { 0 } } };
    uint32_t x = 77;

    draw_all(&x, w[0], N_SINGLE);
    memcpy(w[1], w[0], sizeof(w[0]));
    for (uint64_t step = 1; step <= 3; step++) {
        struct optim_hyper h = { .learning_rate = 0.013, .momentum = momentum, .beta1 = 0.87,
                                 .beta2 = 0.93, .epsilon = 1e-7, .weight_decay = 0.07,
                                 .nesterov = flag, .centered = flag, .trust = 0.8, .step = step,
                                 .grad_scale = 0.37f };
        double p1 = 1, p2 = 1, sums[2];

        for (uint64_t i = 0; i < step; i++) { /* 3 or less: the order of factors is no matter */
            p1 = p1 * h.beta1;
            p2 = p2 * h.beta2;
        }
        draw_all(&x, g, N_SINGLE);
        if (def->measure != NULL)
            for (size_t k = 0; k < 2; k++)
                def->measure(&h, N_SINGLE, w[k], g,
                             (float *[]){ slots[k][0], slots[k][1], slots[k][2], NULL }, sums);
        def->sweep(&h, &(struct optim_run){ 0, N_SINGLE }, 1, w[0], g,
                   (float *[]){ slots[0][0], slots[0][1], slots[0][2], NULL });
        for (size_t i = 0; i < N_SINGLE; i++) {
            struct hand k = { .h = &h, .w = w[1][i], .g = g[i],
                              .slots = { &slots[1][0][i], &slots[1][1][i], &slots[1][2][i] },
                              .mean = (float)(1 / (1 - p1)), .root = (float)(1 / sqrt(1 - p2)) };

            w[1][i] = step_one(&k);
        }
        assert_memory_equal(w[0], w[1], sizeof(w[0]));
        assert_memory_equal(slots[0], slots[1], sizeof(slots[0]));
    }
}

/* Vectors of any width, and no fused operations: the same bits as one number at a time. */
static void every_width_gives_the_bits_of_single_steps(void **state)
{

    (void)state;
    assert_int_equal(OPTIM_TYPES, N_HANDS);
    for (size_t k = 0; k < N_HANDS; k++)
        for (int way = 0; way < 4; way++)
            compare_with_hand(optim_named(hands[k].name), hands[k].step, way & 1 ? 0.9 : 0,
                              (way & 2) != 0);
}

enum { ROWS_ALL = 4000, ROWS_FLOATS = 64 * ROWS_ALL };

struct row_memory {
    float w[ROWS_FLOATS], slots[3][ROWS_FLOATS];
};

/* Lists half of the rows, more than one sweep takes, in runs: up to 7 of adjacent ones. Returns their number. */
static size_t list_rows(size_t width, size_t *at)
{
    uint32_t x = 5;
    size_t n = 0;
    float run;

    for (size_t row = 0, k = 0; row < ROWS_ALL; k++) {
        draw_all(&x, &run, 1);
        for (size_t end = row + 1 + k % 7; row < end && row < ROWS_ALL; row++)
            if (run > 0)
                at[n++] = row * width;
    }
    for (size_t i = 0; i + 20 < n; i += 20) { /* not ascending, as the rows of a dynamic table */
        size_t other = at[i];

        at[i] = at[n - 1 - i / 2];
        at[n - 1 - i / 2] = other;
    }
    return n;
}

static void compare_rows(const struct optim_def *def, size_t width, const size_t *at, size_t n)
{
    static struct row_memory memory, expected;
    static float g[ROWS_FLOATS];
    struct optim_hyper h = { .learning_rate = 0.013, .momentum = 0.9, .beta1 = 0.87, .beta2 = 0.93,
                             .epsilon = 1e-7, .weight_decay = 0.07, .centered = true, .trust = 0.8,
                             .step = 3, .grad_scale = 0.37f };
    struct optim_state state = { .w = memory.w };
    uint32_t x = 78;

    draw_all(&x, memory.w, ROWS_ALL * width);
    draw_all(&x, g, n * width);
    for (uint32_t k = 0; k < def->n_slots; k++) {
        state.slots[k] = memory.slots[k];
        for (size_t i = 0; i < ROWS_ALL * width; i++)
            memory.slots[k][i] = memory.w[i] * memory.w[i];
    }
    expected = memory;
    optim_update_rows(def, &h, &state, at, n, width, g);
    for (size_t i = 0; i < n; i++)
        def->sweep(&h, &(struct optim_run){ at[i], width }, 1, expected.w, g + i * width,
                   (float *[]){ expected.slots[0], expected.slots[1], expected.slots[2], NULL });
    assert_memory_equal(&memory, &expected, sizeof(memory));
}

static void scattered_rows_get_the_bits_of_single_rows_and_the_others_stay(void **state)
{
    static const size_t widths[] = { 1, 3, 16, 17, 64 };
    static size_t at[ROWS_ALL];

    (void)state;
    for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++) {
        size_t n = list_rows(widths[i], at);

        assert_true(n > 1500);
        for (size_t k = 0; k < N_HANDS; k++)
            compare_rows(optim_named(hands[k].name), widths[i], at, n);
    }
}

/* Parameters of many sizes: one float, a block and a float, many blocks; and gaps between them. */
static const struct optim_param cut_params[] = {
    { 0, 1, 1, 0.01, true, NULL, false, 0, false, 0, 0 },
    { 16, OPTIM_BLOCK, 0.5, 0, true, NULL, false, 0, false, 0, 0 },
    { 16 + OPTIM_BLOCK, OPTIM_BLOCK + 1, 1, 0.02, true, NULL, false, 0, false, 0, 0 },
    { 2 * OPTIM_BLOCK + 32, 5 * OPTIM_BLOCK + 777, 1, 0.01, true, NULL, false, 0, false, 0, 0 },
    { 7 * OPTIM_BLOCK + 1000, 300, 2, 0.01, false, NULL, false, 0, false, 0, 0 },
};
enum {
    N_CUT = sizeof(cut_params) / sizeof(*cut_params),
    CUT_FLOATS = 7 * OPTIM_BLOCK + 1300,
};

/* Three steps; memory: weights, gradient, slots, average. */
static void cut_steps(const struct optim_def *def, uint32_t n_parts, float *memory)
{
    struct optim *o = optim_of(def, cut_params, N_CUT, n_parts, 0.9);
    struct optim_state s = { .w = memory, .g = memory + CUT_FLOATS,
                             .average = memory + 5 * CUT_FLOATS };
    uint32_t x = 3;

    for (uint32_t k = 0; k < def->n_slots; k++)
        s.slots[k] = memory + (2 + k) * CUT_FLOATS;
    memset(memory, 0, 6 * CUT_FLOATS * sizeof(*memory));
    draw_all(&x, s.w, CUT_FLOATS);
    for (uint64_t step = 1; step <= 3; step++) {
        struct optim_hyper h = { .learning_rate = 0.01, .momentum = 0.9, .beta1 = 0.9,
                                 .beta2 = 0.99, .epsilon = 1e-8, .trust_coefficient = 0.01,
                                 .centered = true, .step = step };

        draw_all(&x, s.g, CUT_FLOATS);
        step_all(o, n_parts, &h, 0.5, 0.4, &s);
    }
    optim_free(o);
}

static void any_number_of_parts_gives_the_same_bits(void **state)
{
    size_t bytes = 6 * CUT_FLOATS * sizeof(float);
    float *one = malloc(bytes), *many = malloc(bytes);

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++) {
        cut_steps(optim_get(k), 1, one);
        for (uint32_t n_parts = 2; n_parts < 16; n_parts += 3) {
            cut_steps(optim_get(k), n_parts, many);
            if (memcmp(one, many, bytes) != 0)
                fail_msg("%s in %d parts", optim_get(k)->name, (int)n_parts);
        }
    }
    free(one);
    free(many);
}

/* ---- stretches ---- */

enum { ROWS = 300, WIDTH = 30, MATRIX = ROWS * WIDTH };

static bool is_left_out(size_t row)
{
    return row == 0 || row == 7 || row == 8 || row == ROWS - 1;
}

/* The rows of a matrix that are not left out, as stretches. */
static uint32_t stretches_of(struct optim_param *out, const struct packed_table *table)
{
    uint32_t n = 0;

    for (size_t row = 0; row < ROWS; row++)
        if (!is_left_out(row) && (row == 0 || is_left_out(row - 1)))
            out[n++] = (struct optim_param){ .first = row * WIDTH, .n = WIDTH, .rate_factor = 1,
                                             .weight_decay = 0.02, .adapts = true, .table = table,
                                             .skipped = row * WIDTH };
        else if (!is_left_out(row))
            out[n - 1].n += WIDTH;
    return n;
}

/* Two steps. The gradient is `noise` in rows that are left out; packed where there is a table. */
static void matrix_steps(const struct optim_def *def, const struct optim_param *params,
                         uint32_t n_params, struct packed_table *table, float weight, float noise,
                         float *memory, double *norm)
{
    size_t words = table != NULL ? packed_layout(table, 1) : 0;
    void *place = malloc(packed_bytes(1, words));
    struct packed rows = table != NULL ? packed_init(table, 1, words, place) : (struct packed){ 0 };
    struct optim *o = optim_of(def, params, n_params, 3, 0.9);
    struct optim_state s = { .w = memory, .g = memory + MATRIX, .average = memory + 5 * MATRIX,
                             .packed = table != NULL ? &rows : NULL, .values = memory + MATRIX };
    uint32_t x = 9;

    memset(memory, 0, 6 * MATRIX * sizeof(*memory));
    for (uint32_t k = 0; k < def->n_slots; k++)
        s.slots[k] = memory + (2 + k) * MATRIX;
    draw_all(&x, s.w, MATRIX);
    for (size_t i = 0; i < MATRIX; i++)
        s.w[i] = is_left_out(i / WIDTH) ? weight : s.w[i];
    memcpy(s.average, s.w, MATRIX * sizeof(*s.w));
    for (uint64_t step = 1; step <= 2; step++) {
        struct optim_hyper h = { .learning_rate = 0.01, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.99,
                                 .epsilon = 1e-8, .trust_coefficient = 0.01, .centered = true,
                                 .step = step };

        draw_all(&x, s.g, MATRIX);
        for (size_t i = 0; i < MATRIX; i++)
            s.g[i] = is_left_out(i / WIDTH) ? noise : s.g[i];
        if (table != NULL) { /* every row has a mark: the values lie as in the whole gradient */
            packed_clear(&rows);
            for (size_t r = 0; r < ROWS; r++)
                rows.marks[r / 64] |= (uint64_t)1 << r % 64;
            packed_index(&rows);
        }
        step_all(o, 3, &h, 0.5, 0.4, &s);
        *norm = optim_gradient_norm(o, 0);
    }
    memset(s.g, 0, MATRIX * sizeof(*s.g));
    optim_free(o);
    free(place);
}

static void rows_without_a_stretch_stay_and_the_others_move_as_if_those_were_zero(void **state)
{
    static const struct optim_param all_rows[] = { { 0, MATRIX, 1, 0.02, true, NULL, false, 0, false, 0, 0 } };
    struct packed_table table = { .rows = ROWS, .width = WIDTH };
    size_t bytes = 6 * MATRIX * sizeof(float);
    float *whole = malloc(bytes), *cut = malloc(bytes), *packed = malloc(bytes);
    struct optim_param params[ROWS];
    double norm[3];

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++) {
        uint32_t n = stretches_of(params, NULL);

        matrix_steps(optim_get(k), all_rows, 1, NULL, 0, 0, whole, &norm[0]);
        matrix_steps(optim_get(k), params, n, NULL, 0.75f, NAN, cut, &norm[1]);
        n = stretches_of(params, &table);
        matrix_steps(optim_get(k), params, n, &table, 0.75f, NAN, packed, &norm[2]);
        assert_memory_equal(cut, packed, bytes);
        assert_true(norm[1] == norm[2] && fabs(norm[1] - norm[0]) < 1e-12 * norm[0]);
        for (size_t i = 0; i < 6 * MATRIX; i++) {
            bool is_weight = i < MATRIX || i >= 5 * MATRIX;
            float want = is_left_out(i % MATRIX / WIDTH) ? (is_weight ? 0.75f : 0) : whole[i];

            if (!(fabsf(cut[i] - want) <= 2e-6f * fabsf(want)))
                fail_msg("%s: float %zu is %g, expected %g", optim_get(k)->name, i, (double)cut[i],
                         (double)want);
        }
    }
    free(whole);
    free(cut);
    free(packed);
}

/* ---- tables ---- */

enum { N_TABLES = N_CUT, CUT_WHOLE = 6 * CUT_FLOATS };

/* The parameters above as matrices. */
static struct packed_table cut_tables[N_TABLES] = {
    { .rows = 1, .width = 1 },    { .rows = OPTIM_BLOCK / 16, .width = 16 },
    { .rows = 241, .width = 17 }, { .rows = 733, .width = 29 },
    { .rows = 300, .width = 1 },
};

/* Three steps of gradients that are zero but for some rows; packed or whole. */
static void table_steps(const struct optim_def *def, bool is_packed, bool decays, double average,
                        uint32_t n_parts, uint32_t one_in, float *memory, double norms[3])
{
    size_t words = packed_layout(cut_tables, N_TABLES);
    void *place = malloc(packed_bytes(N_TABLES, words));
    float *values = malloc(CUT_FLOATS * sizeof(*values));
    struct packed rows = packed_init(cut_tables, N_TABLES, words, place);
    struct optim_param params[N_TABLES];
    struct optim_state s = { .w = memory, .g = memory + CUT_FLOATS, .packed = &rows,
                             .values = values, .average = memory + 5 * CUT_FLOATS };
    struct optim *o;
    uint32_t x = 5;

    for (uint32_t t = 0; t < N_TABLES; t++) {
        params[t] = cut_params[t];
        assert_int_equal(params[t].n, cut_tables[t].rows * cut_tables[t].width);
        params[t].weight_decay *= decays;
        params[t].table = is_packed && t != 2 ? &cut_tables[t] : NULL; /* one stays whole */
    }
    o = optim_of(def, params, N_TABLES, n_parts, average);
    memset(memory, 0, CUT_WHOLE * sizeof(*memory));
    for (uint32_t k = 0; k < def->n_slots; k++)
        s.slots[k] = memory + (2 + k) * CUT_FLOATS;
    draw_all(&x, s.w, CUT_FLOATS);
    for (uint64_t step = 1; step <= 3; step++) {
        struct optim_hyper h = { .learning_rate = 0.01, .momentum = 0.9, .beta1 = 0.9,
                                 .beta2 = 0.99, .epsilon = 1e-8, .trust_coefficient = 0.01,
                                 .centered = true, .step = step };
        size_t next = 0;

        memset(s.g, 0, CUT_FLOATS * sizeof(*s.g));
        memset(values, 0xFF, CUT_FLOATS * sizeof(*values));
        packed_clear(&rows);
        for (uint32_t t = 0; t < N_TABLES; t++)
            for (size_t r = 0; r < cut_tables[t].rows; r++) {
                size_t width = cut_tables[t].width;
                float *g = s.g + params[t].first + r * width;

                draw_all(&x, g, 1);
                if ((r + step) % one_in != 0) {
                    g[0] = 0;
                    continue;
                }
                draw_all(&x, g, width);
                rows.marks[cut_tables[t].first_word + r / 64] |= (uint64_t)1 << r % 64;
                memcpy(values + next, g, width * sizeof(*g));
                next += width;
            }
        packed_index(&rows);
        assert_int_equal(packed_floats(&rows), next);
        for (uint32_t t = 0; is_packed && t < N_TABLES; t++)
            if (t != 2) /* nobody looks there */
                memset(s.g + params[t].first, 0xFF, params[t].n * sizeof(*s.g));
        step_all(o, n_parts, &h, 0.5, 0.4, &s);
        norms[step - 1] = optim_gradient_norm(o, 0);
    }
    memset(s.g, 0, CUT_FLOATS * sizeof(*s.g));
    optim_free(o);
    free(place);
    free(values);
}

static void packed_gradients_move_weights_to_the_bits_of_whole_ones(void **state)
{
    static const uint32_t density[] = { 1, 2, 9, 100 };
    float *whole = malloc(CUT_WHOLE * sizeof(float)), *packed = malloc(CUT_WHOLE * sizeof(float));

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++)
        for (uint32_t way = 0; way < 16; way++) {
            uint32_t one_in = density[way / 4];
            double norms[2][3], average = way & 2 ? 0.9 : 0;

            table_steps(optim_get(k), false, way & 1, average, 1, one_in, whole, norms[0]);
            table_steps(optim_get(k), true, way & 1, average, 1 + way, one_in, packed, norms[1]);
            assert_memory_equal(norms[0], norms[1], sizeof(norms[0]));
            if (memcmp(whole, packed, CUT_WHOLE * sizeof(float)) != 0)
                fail_msg("%s, way %u", optim_get(k)->name, way);
        }
    free(whole);
    free(packed);
}

/* What is read would turn into a NaN: 0 times infinity. */
static void rows_without_a_mark_are_not_looked_at(void **state)
{
    static const char *const names[] = { "sgd", "adagrad" };
    struct packed_table table = { .rows = 1000, .width = 5 };
    const struct optim_param p = { .n = 5000, .rate_factor = 1, .table = &table };
    size_t words = packed_layout(&table, 1);
    void *memory = malloc(packed_bytes(1, words));

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        static float w[5000], sum[5000], values[5000];
        struct packed rows = packed_init(&table, 1, words, memory);
        struct packed_rows kernel = { .marks = rows.marks };
        struct optim_state s = { .w = w, .slots = { sum }, .packed = &rows, .values = values };
        struct optim_hyper h = { .learning_rate = 0.1, .epsilon = 1e-8, .step = 1 };
        struct optim *o = optim_of(optim_named(names[k]), &p, 1, 1, 0);

        for (size_t i = 0; i < 5000; i++) {
            bool marked = i / 5 % 7 == 0;

            w[i] = marked ? 1 : INFINITY;
            sum[i] = marked ? 0 : NAN;
            values[i] = 0.5f;
            if (marked)
                packed_mark(&kernel, i / 5);
        }
        packed_index(&rows);
        step_all(o, 1, &h, 1000, 1, &s);
        for (size_t i = 0; i < 5000; i++)
            assert_true(i / 5 % 7 == 0 ? w[i] < 1 : isinf(w[i]));
        optim_free(o);
    }
    free(memory);
}

/* Marked rows move as ever, momentum or not; the others and their slots do not. */
static void lazy_rows_stay_where_they_are(void **state)
{
    struct packed_table table = { .rows = 70, .width = 4 };
    uint64_t memory[32];
    size_t words = packed_layout(&table, 1);

    (void)state;
    assert_true(packed_bytes(1, words) <= sizeof(memory));
    for (size_t k = 0; k < OPTIM_TYPES; k++) {
        struct packed rows = packed_init(&table, 1, words, memory);
        struct packed_rows kernel = { .marks = rows.marks };
        float m[2][4][280], values[280];
        uint32_t x = 11;

        if (optim_get(k)->measure != NULL)
            continue; /* norms are over all rows */
        draw_all(&x, values, 280);
        draw_all(&x, m[0][0], 4 * 280);
        for (size_t i = 0; i < 4 * 280; i++)
            m[0][i / 280][i % 280] += 1; /* slots of squares are not negative */
        memcpy(m[1], m[0], sizeof(m[0]));
        for (size_t r = 0; r < 70; r++)
            if (r % 3 == 1)
                packed_mark(&kernel, r);
        packed_index(&rows);
        for (int lazy = 0; lazy < 2; lazy++) {
            const struct optim_param p = { .n = 280, .rate_factor = 1, .weight_decay = 0.1,
                                           .table = &table, .lazy = lazy };
            struct optim_hyper h = { .learning_rate = 0.1, .momentum = 0.9, .beta1 = 0.9,
                                     .beta2 = 0.99, .epsilon = 1e-6, .centered = true, .step = 7 };
            struct optim_state s = { .w = m[lazy][0], .packed = &rows, .values = values };
            struct optim *o = optim_of(optim_get(k), &p, 1, 1, 0);

            for (uint32_t slot = 0; slot < optim_get(k)->n_slots; slot++)
                s.slots[slot] = m[lazy][1 + slot];
            assert_int_equal(optim_skipping_tables(o, &h), lazy);
            step_all(o, 1, &h, 0, 0, &s);
            optim_free(o);
        }
        x = 11;
        draw_all(&x, values, 280);
        for (uint32_t slot = 0; slot < 4; slot++)
            for (size_t i = 0; i < 280; i++) {
                float start;

                draw_all(&x, &start, 1);
                if (i / 4 % 3 == 1)
                    assert_true(m[1][slot][i] == m[0][slot][i]);
                else
                    assert_true(m[1][slot][i] == start + 1);
            }
    }
}

/* A NaN in the norm reaches every weight, whatever its own gradient was. */
static void a_gradient_that_is_no_number_ruins_every_row(void **state)
{
    size_t words;
    struct packed_table table = { .rows = 100, .width = 3 };
    const struct optim_param p = { .n = 300, .rate_factor = 1, .table = &table };
    float w[300] = { 0 }, values[300] = { NAN };
    uint64_t memory[8];
    struct packed rows;
    struct optim_state s = { .w = w, .packed = &rows, .values = values };
    struct optim_hyper h = { .learning_rate = 0.1, .step = 1 };
    struct optim *o = optim_of(optim_get(OPTIM_SGD), &p, 1, 1, 0);

    (void)state;
    words = packed_layout(&table, 1);
    assert_true(packed_bytes(1, words) <= sizeof(memory));
    rows = packed_init(&table, 1, words, memory);
    rows.marks[0] = 4;
    packed_index(&rows);
    step_all(o, 1, &h, 1, 0, &s);
    for (size_t i = 0; i < 300; i++)
        assert_true(isnan(w[i]));
    optim_free(o);
}

static void gaps_between_parameters_are_left_alone(void **state)
{
    float *memory = malloc(6 * CUT_FLOATS * sizeof(*memory)), *before = malloc(CUT_FLOATS * 4);
    uint32_t x = 3;

    (void)state;
    draw_all(&x, before, CUT_FLOATS);
    cut_steps(optim_get(OPTIM_ADAMW), 3, memory);
    for (size_t i = 0, p = 0; i < CUT_FLOATS; i++) {
        while (p + 1 < N_CUT && i >= cut_params[p].first + cut_params[p].n)
            p++;
        if (i < cut_params[p].first) {
            assert_true(memory[i] == before[i]);
            assert_true(memory[5 * CUT_FLOATS + i] == 0);
        } else {
            assert_true(memory[i] != before[i]);
        }
    }
    free(memory);
    free(before);
}

/* average_k = d average + (1 - d) w, rounded as it stands. */
static void the_average_follows_the_weights(void **state)
{
    const struct optim_param p = { 0, 5, 1, 0, true, NULL, false, 0, false, 0, 0 };
    struct optim *o = optim_of(optim_get(OPTIM_SGD), &p, 1, 1, 0.75);
    float w[5] = { 1, 2, 3, 4, 5 }, average[5] = { 1, 2, 3, 4, 5 }, g[5], expected[5];
    struct optim_state s = { .w = w, .g = g, .average = average };
    uint32_t x = 9;

    (void)state;
    memcpy(expected, average, sizeof(average));
    for (uint64_t step = 1; step <= 20; step++) {
        struct optim_hyper h = { .learning_rate = 0.3, .step = step, .grad_scale = 1 };

        draw_all(&x, g, 5);
        optim_update(o, 0, &h, &s);
        for (size_t i = 0; i < 5; i++) {
            volatile float a = 0.75f * expected[i], b = 0.25f * w[i];

            expected[i] = a + b;
        }
        assert_memory_equal(average, expected, sizeof(average));
    }
    optim_free(o);
}

/* A parameter of zeros, a gradient of zeros: the ratio is 1 and nothing is divided by zero. */
static void without_a_norm_the_ratio_is_one(void **state)
{
    static const char *const names[] = { "lars", "lamb" };
    const struct optim_param p = { 0, 4, 1, 0, true, NULL, false, 0, false, 0, 0 };

    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (int zero = 0; zero < 2; zero++) {
            struct optim *o = optim_of(optim_named(names[k]), &p, 1, 1, 0);
            float w[4] = { 0 }, g[4] = { 0 }, memory[2][4] = { { 0 } };
            struct optim_state s = { .w = w, .g = g, .slots = { memory[0], memory[1] } };
            struct optim_hyper h = { .learning_rate = 0.5, .momentum = 0.9, .beta1 = 0.9,
                                     .beta2 = 0.9, .epsilon = 1e-6, .trust_coefficient = 0.001,
                                     .step = 1, .grad_scale = 1 };

            for (int i = 0; i < 4; i++)
                (zero ? w : g)[i] = 1;
            optim_measure(o, 0, &h, &s);
            optim_update(o, 0, &h, &s);
            for (int i = 0; i < 4; i++)
                assert_true(zero ? w[i] == 1 : fabsf(w[i] + 0.5f) < 1e-5f);
            optim_free(o);
        }
}

static void a_bad_gradient_is_not_hidden(void **state)
{
    static const float bad[] = { NAN, INFINITY };

    (void)state;
    for (size_t k = 0; k < OPTIM_TYPES; k++)
        for (size_t b = 0; b < 2; b++) {
            const struct optim_param p = { 0, 2, 1, 0.1, true, NULL, false, 0, false, 0, 0 };
            struct optim *o = optim_of(optim_get(k), &p, 1, 1, 0);
            float w[2] = { 1, 1 }, g[2] = { bad[b], 0 }, memory[3][2] = { { 0 } };
            struct optim_state s = { .w = w, .g = g,
                                     .slots = { memory[0], memory[1], memory[2] } };
            struct optim_hyper h = { .learning_rate = 0.5, .momentum = 0.9, .beta1 = 0.9,
                                     .beta2 = 0.9, .epsilon = 1e-6, .trust_coefficient = 0.001,
                                     .step = 1, .grad_scale = 1 };

            if (optim_needs_norms(o))
                optim_measure(o, 0, &h, &s);
            optim_update(o, 0, &h, &s);
            if (isfinite(w[0]))
                fail_msg("%s: %g", optim_get(k)->name, (double)w[0]);
            optim_free(o);
        }
}

static void optimizer_slots_have_the_names_of_checkpoints(void **state)
{
    (void)state;
    assert_int_equal(optim_get(OPTIM_SGD)->n_slots, 0);
    assert_int_equal(optim_get(OPTIM_MOMENTUM)->n_slots, 1);
    assert_string_equal(optim_get(OPTIM_MOMENTUM)->slots[0].name, "momentum");
    assert_int_equal(optim_get(OPTIM_ADAMW)->n_slots, 2);
    assert_string_equal(optim_get(OPTIM_ADAM)->slots[0].name, "exp_avg");
    assert_string_equal(optim_get(OPTIM_ADAM)->slots[1].name, "exp_avg_sq");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_steps_end_where_pytorch_ends),
        cmocka_unit_test(every_width_gives_the_bits_of_single_steps),
        cmocka_unit_test(scattered_rows_get_the_bits_of_single_rows_and_the_others_stay),
        cmocka_unit_test(any_number_of_parts_gives_the_same_bits),
        cmocka_unit_test(rows_without_a_stretch_stay_and_the_others_move_as_if_those_were_zero),
        cmocka_unit_test(packed_gradients_move_weights_to_the_bits_of_whole_ones),
        cmocka_unit_test(rows_without_a_mark_are_not_looked_at),
        cmocka_unit_test(lazy_rows_stay_where_they_are),
        cmocka_unit_test(a_gradient_that_is_no_number_ruins_every_row),
        cmocka_unit_test(gaps_between_parameters_are_left_alone),
        cmocka_unit_test(the_average_follows_the_weights),
        cmocka_unit_test(without_a_norm_the_ratio_is_one),
        cmocka_unit_test(a_bad_gradient_is_not_hidden),
        cmocka_unit_test(optimizer_slots_have_the_names_of_checkpoints),
    };

    return cmocka_run_group_tests_name("optim/optim", tests, NULL, NULL);
}
