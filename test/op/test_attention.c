#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/rng.h"
#include "harness/gradcheck.h"
#include "harness/op_rig.h"

enum { MOST_STEPS = 4, MOST_SCORES = 1 << 18 };

enum shape_of_mask { CAUSAL, BAND, TAIL, PADDING, EACH, NOTHING, FIRST_ROWS };

struct step {
    const char *what;
    float number;        /* as in the op; of an "add": the value that hides */
    enum shape_of_mask mask;
    bool is_fed;         /* the mask is an input, not a constant */
};

struct trial {
    int64_t b, h, t, s, d, dv;
    bool turned; /* q is [b, t, h, d] and so on, as projections compute it; else [b, h, t, d] */
    struct step step[MOST_STEPS];
    float dropout;
    double lo, hi; /* range of q, k and v; 0: [-1, 1) */
    int64_t shared; /* query heads per head of k and v; 0: 1 */
    bool has_band, zero_empty;
    int64_t band[2];
};

static int64_t key_heads(const struct trial *c)
{
    return c->shared > 0 ? c->h / c->shared : c->h;
}

static const int64_t middle[] = { 0, 2, 1, 3 }, keys_last[] = { 0, 2, 3, 1 };

/* Returns true if key j of row i is masked. */
static bool hidden(const struct trial *c, enum shape_of_mask mask, int64_t b, int64_t h, int64_t i,
                   int64_t j)
{
    switch (mask) {
    case CAUSAL:
        return j > i;
    case BAND: /* a few keys around that of the row */
        return j > i || j + 20 < i;
    case TAIL:
        return j >= c->s - 40;
    case PADDING: /* the first keys, different in each sample */
        return j < 3 + 5 * b;
    case EACH: /* arbitrary, different in each head; never all keys */
        return j != i % c->s && (j * 7 + i * 3 + h * 5 + b) % 3 == 0;
    case FIRST_ROWS: /* all keys of some rows */
        return i % 30 == 2;
    case NOTHING:
        return false;
    }
    return false;
}

static struct shape mask_shape(const struct trial *c, enum shape_of_mask mask)
{
    if (mask == PADDING)
        return shape_of(4, c->b, (int64_t)1, (int64_t)1, c->s);
    if (mask == EACH)
        return shape_of(4, c->b, c->h, c->t, c->s);
    return mask == BAND ? shape_of(3, (int64_t)1, c->t, c->s) : shape_of(2, c->t, c->s);
}

static uint8_t masks[MOST_STEPS][MOST_SCORES * sizeof(float)];

static void fill_mask(const struct trial *c, const struct step *s, const struct shape *shape,
                      void *data)
{
    int64_t rank = shape->rank, n = shape_elements(shape), e;

    assert_true(n <= MOST_SCORES);
    for (e = 0; e < n; e++) {
        int64_t i = rank > 1 && shape->dim[rank - 2] > 1 ? e / c->s % c->t : 0;
        int64_t h = rank > 3 && shape->dim[1] > 1 ? e / c->s / c->t % c->h : 0;
        int64_t b = rank <= 3 ? 0 : e / (n / shape->dim[0]);
        bool is = hidden(c, s->mask, b, h, i, e % c->s);

        if (strcmp(s->what, "add") == 0)
            ((float *)data)[e] = is ? s->number : (float)(e % 5) * 0.125f;
        else
            ((uint8_t *)data)[e] = is == (strcmp(s->what, "fill") == 0);
    }
}

/* ---- a case for the harness ---- */

struct made {
    struct op_attr attrs[10];
    const char *names[MOST_STEPS];
    float numbers[MOST_STEPS];
    struct gradcheck_case gc;
};

static void add_perm(struct made *m, const char *name, const int64_t *perm)
{
    m->attrs[m->gc.n_attrs++] =
        (struct op_attr){ .name = name, .type = OP_ATTR_INTS, .n = 4, .ints = perm };
}

static void make(const struct trial *c, struct made *m)
{
    uint32_t n = 0, i;

    memset(m, 0, sizeof(*m));
    m->gc = (struct gradcheck_case){ .domain = "trainerd", .op = "Attention", .opset = 1,
                                     .attrs = m->attrs, .n_in = 3, .seed = 5, .stream = 6,
                                     .run = { .seed = 77, .step = 12, .lane = 3 } };
    m->gc.in[0].shape =
        c->turned ? shape_of(4, c->b, c->t, c->h, c->d) : shape_of(4, c->b, c->h, c->t, c->d);
    m->gc.in[1].shape = c->turned ? shape_of(4, c->b, c->s, key_heads(c), c->d)
                                  : shape_of(4, c->b, key_heads(c), c->d, c->s);
    m->gc.in[2].shape = c->turned ? shape_of(4, c->b, c->s, key_heads(c), c->dv)
                                  : shape_of(4, c->b, key_heads(c), c->s, c->dv);
    for (i = 0; i < 3; i++)
        m->gc.in[i].lo = c->lo, m->gc.in[i].hi = c->hi;
    if (c->turned) {
        add_perm(m, "perm_q", middle);
        add_perm(m, "perm_k", keys_last);
        add_perm(m, "perm_v", middle);
        add_perm(m, "perm_y", middle);
    }
    for (; n < MOST_STEPS && c->step[n].what != NULL; n++) {
        const struct step *s = &c->step[n];
        struct gradcheck_tensor *in = &m->gc.in[m->gc.n_in];
        bool adds = strcmp(s->what, "add") == 0;

        m->names[n] = s->what;
        m->numbers[n] = adds ? 0 : s->number;
        if (strcmp(s->what, "scale") == 0 || strcmp(s->what, "cap") == 0)
            continue;
        in->shape = mask_shape(c, s->mask);
        in->dtype = adds ? TENSOR_F32 : TENSOR_BOOL;
        in->data = masks[n];
        in->constant = !s->is_fed;
        fill_mask(c, s, &in->shape, masks[n]);
        m->gc.n_in++;
    }
    if (n > 0) {
        m->attrs[m->gc.n_attrs++] = (struct op_attr){ .name = "steps", .type = OP_ATTR_STRINGS,
                                                      .n = n, .strings = m->names };
        m->attrs[m->gc.n_attrs++] = (struct op_attr){ .name = "numbers", .type = OP_ATTR_FLOATS,
                                                      .n = n, .floats = m->numbers };
    }
    if (c->has_band)
        m->attrs[m->gc.n_attrs++] =
            (struct op_attr){ .name = "band", .type = OP_ATTR_INTS, .n = 2, .ints = c->band };
    if (c->zero_empty)
        m->attrs[m->gc.n_attrs++] = (struct op_attr){ .name = "empty", .type = OP_ATTR_INT, .i = 1 };
    if (c->dropout > 0)
        m->attrs[m->gc.n_attrs++] =
            (struct op_attr){ .name = "dropout", .type = OP_ATTR_FLOAT, .f = c->dropout };
}

/* ---- the expected result, by the definition ---- */

static double *want; /* [b, h, t, dv] or turned */

static double at(const struct trial *c, const struct tensor *t, int64_t b, int64_t h, int64_t i,
                 int64_t j, int64_t rows, int64_t cols, int64_t heads)
{
    const float *x = t->data;

    h = h * heads / c->h;
    return (double)(c->turned ? x[((b * rows + i) * heads + h) * cols + j]
                              : x[((b * heads + h) * rows + i) * cols + j]);
}

static double score(const struct trial *c, const struct gradcheck_result *r, int64_t b, int64_t h,
                    int64_t i, int64_t j)
{
    const float *k = r->in[1].data;
    double x = 0;
    int64_t e;
    uint32_t n;

    for (e = 0; e < c->d; e++)
        x +=
            at(c, &r->in[0], b, h, i, e, c->t, c->d, c->h) *
            (c->turned
                 ? at(c, &r->in[1], b, h, j, e, c->s, c->d, key_heads(c))
                 : (double)k[((b * key_heads(c) + h * key_heads(c) / c->h) * c->d + e) * c->s + j]);
    for (n = 0; n < MOST_STEPS && c->step[n].what != NULL; n++) {
        const struct step *s = &c->step[n];
        struct shape shape = mask_shape(c, s->mask);
        bool is = hidden(c, s->mask, b, h, i, j);
        int64_t element = shape.rank == 4 && s->mask == PADDING ? b * c->s + j : i * c->s + j;

        if (s->mask == EACH)
            element = ((b * c->h + h) * c->t + i) * c->s + j;
        if (strcmp(s->what, "scale") == 0)
            x *= (double)s->number;
        else if (strcmp(s->what, "cap") == 0)
            x = (double)s->number * tanh(x / (double)s->number);
        else if (strcmp(s->what, "add") == 0)
            x = (double)(float)(x + (is ? (double)s->number : (double)(element % 5) * 0.125));
        else
            x = is ? (double)s->number : x;
    }
    if (c->has_band && ((c->band[0] > INT64_MIN / 2 && j < i + c->band[0]) ||
                        (c->band[1] < INT64_MAX / 2 && j > i + c->band[1])))
        x = -INFINITY;
    return x;
}

static void weights(const struct trial *c, const struct gradcheck_result *r, int64_t b, int64_t h,
                    int64_t i, double *w)
{
    const struct rng_key key = { 77, 12, 3, 6 };
    double most = -INFINITY, sum = 0;
    int64_t j;

    for (j = 0; j < c->s; j++) {
        w[j] = score(c, r, b, h, i, j);
        most = fmax(most, w[j]);
    }
    if (c->zero_empty && isinf(most)) {
        memset(w, 0, (size_t)c->s * sizeof(*w));
        return;
    }
    for (j = 0; j < c->s; j++)
        sum += w[j] = exp(w[j] - most);
    for (j = 0; j < c->s; j++) {
        uint64_t word = (uint64_t)(((b * c->h + h) * c->t + i) * c->s + j);
        bool kept = rng_u32(&key, word) >= (uint32_t)((double)c->dropout * 0x1p32 + 0.5);

        w[j] = kept ? w[j] / sum / (1 - (double)c->dropout) : 0;
    }
}

static void fill_want(const struct trial *c, const struct gradcheck_result *r)
{
    double *w = calloc((size_t)c->s, sizeof(*w));
    int64_t b, h, i, j, e;

    free(want);
    want = calloc((size_t)(c->b * c->h * c->t * c->dv), sizeof(*want));
    assert_true(w != NULL && want != NULL);
    for (b = 0; b < c->b; b++)
        for (h = 0; h < c->h; h++)
            for (i = 0; i < c->t; i++) {
                int64_t row = c->turned ? (b * c->t + i) * c->h + h : (b * c->h + h) * c->t + i;

                weights(c, r, b, h, i, w);
                for (j = 0; j < c->s; j++)
                    for (e = 0; e < c->dv; e++)
                        want[row * c->dv + e] +=
                            w[j] * at(c, &r->in[2], b, h, j, e, c->s, c->dv, key_heads(c));
            }
    free(w);
}

static void check_forward(const struct trial *c)
{
    struct gradcheck_result r;
    struct err err = { 0 };
    struct made m;

    make(c, &m);
    if (gradcheck_forward(&m.gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    fill_want(c, &r);
    gradcheck_near("y", r.out[0].data, want, (size_t)(c->b * c->h * c->t * c->dv), 2e-6);
    gradcheck_free(&r);
}

/* ---- tests ---- */

#define SCALE { "scale", 0.375f, NOTHING, false }

static const struct trial trials[] = {
    { 1, 1, 1, 1, 1, 1, false, { SCALE }, .dropout = 0 },
    { 1, 1, 1, 9, 4, 4, true, { { 0 } }, .dropout = 0 },
    { 2, 3, 5, 7, 3, 4, true, { SCALE }, .dropout = 0 },             /* a group of matrices */
    { 7, 1, 33, 37, 9, 5, false, { SCALE }, .dropout = 0 },          /* a few groups */
    { 1, 2, 65, 65, 16, 16, true, { SCALE, { "keep", -FLT_MAX, CAUSAL, false } }, .dropout = 0 },
    { 1, 2, 130, 131, 7, 3, false, { SCALE, { "fill", -INFINITY, CAUSAL, false } }, .dropout = 0 },
    { 2, 1, 150, 150, 8, 8, true, { { "keep", -FLT_MAX, BAND, false }, SCALE }, .dropout = 0 },
    { 1, 2, 70, 200, 5, 8, true, { SCALE, { "add", -INFINITY, CAUSAL, false } }, .dropout = 0 },
    { 2, 2, 70, 90, 6, 6, true,
      { SCALE, { "add", -10000.0f, PADDING, true }, { "keep", -1e9f, EACH, true } }, .dropout = 0 },
    { 2, 1, 140, 140, 4, 4, true, /* rows that see only padding */
      { SCALE, { "keep", -FLT_MAX, CAUSAL, false }, { "add", -100.0f, PADDING, true } }, .dropout = 0 },
    { 2, 2, 129, 129, 8, 8, true, { SCALE, { "fill", -1e9f, CAUSAL, false } }, .dropout = 0.25f },
    { 3, 2, 9, 11, 4, 5, false, { { 0 } }, .dropout = 0.5f },
    /* long rows */
    { 1, 2, 3, 1028, 2, 2, true, { SCALE, { "keep", -FLT_MAX, TAIL, false } }, .dropout = 0.25f },
    { 1, 1, 2, 1030, 3, 2, false, { { 0 } }, .dropout = 0.25f },
    { 2, 4, 70, 70, 8, 6, true, { SCALE }, 0, 0, 0, .shared = 2 }, /* grouped heads */
    { 2, 6, 5, 9, 3, 4, false, { SCALE }, 0.25f, 0, 0, .shared = 3 },
    { 3, 4, 9, 9, 4, 4, true, { SCALE, { "add", -INFINITY, CAUSAL, false } }, 0, 0, 0, .shared = 4 },
    { 2, 4, 131, 131, 8, 8, true, { SCALE, { "keep", -FLT_MAX, CAUSAL, false } }, 0, 0, 0, .shared = 2 },
    { 2, 4, 65, 90, 4, 5, false, { SCALE, { "keep", -INFINITY, EACH, true } }, 0.25f, 0, 0, .shared = 2 },
    { 2, 4, 140, 70, 4, 5, true, { SCALE, { "fill", -INFINITY, EACH, false } }, 0, 0, 0, .shared = 4 },
    { 1, 2, 130, 130, 8, 8, true, { SCALE }, 0, 0, 0, .has_band = true, .band = { INT64_MIN, 0 } },
    { 1, 4, 150, 140, 4, 4, false, { SCALE }, 0.25f, 0, 0, .shared = 2, .has_band = true, .band = { -20, 5 } },
    { 2, 2, 9, 12, 4, 4, true, { SCALE, { "add", 0.5f, EACH, true } }, 0, 0, 0, .has_band = true, .band = { 0, 3 } },
    { 1, 2, 140, 90, 4, 4, true, { SCALE }, 0, 0, 0, .has_band = true, .zero_empty = true, .band = { -10, 2 } },
    { 1, 2, 100, 150, 4, 4, true, { SCALE, { "keep", -INFINITY, FIRST_ROWS, false } }, 0, 0, 0,
      .has_band = true, .zero_empty = true, .band = { -70, -20 } },
    { 2, 4, 70, 70, 4, 4, true, { SCALE, { "add", -INFINITY, FIRST_ROWS, true } }, 0.25f, 0, 0,
      .shared = 2, .zero_empty = true },
    { 1, 2, 129, 129, 4, 4, true, /* empty rows beside keys that no row of a block sees */
      { SCALE, { "keep", -INFINITY, CAUSAL, false }, { "fill", -INFINITY, FIRST_ROWS, false } }, 0, 0, 0,
      .zero_empty = true },
    { 1, 2, 5, 7, 3, 4, true, { { "scale", 2, NOTHING, false }, { "cap", 0.75f, NOTHING, false } }, .dropout = 0 },
    { 2, 2, 70, 80, 4, 4, true,
      { SCALE, { "cap", 0.5f, NOTHING, false }, { "keep", -INFINITY, CAUSAL, false } }, 0.25f, 0, 0, .shared = 2 },
    { 1, 1, 9, 9, 4, 4, true, { { "cap", 2, NOTHING, false }, { "scale", 3, NOTHING, false } }, 0, 0, 0,
      .has_band = true, .band = { -2, 2 } },
    { 1, 1, 100, 100, 4, 4, true, /* a wide range of scores */
      { { "scale", 4, NOTHING, false }, { "keep", -1000, CAUSAL, false } }, .lo = -8, .hi = 8 },
};

static void output_follows_definition(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(trials); i++)
        check_forward(&trials[i]);
}

static void gradients_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i + 1 < COUNT_OF(trials); i++) {
        struct made m;

        make(&trials[i], &m);
        m.gc.probes = 40;
        gradcheck_run(&m.gc);
    }
}

/* Heads are the innermost axis: neither rows nor columns of a matrix are contiguous. */
static void operands_in_any_order_give_same_result(void **state)
{
    static const int64_t rows[] = { 0, 3, 1, 2 }, keys[] = { 0, 3, 2, 1 }, back[] = { 0, 2, 3, 1 };
    const struct trial c = { 2, 3, 5, 6, 4, 4, true, { SCALE }, .dropout = 0.25f };
    struct made m;

    (void)state;
    make(&c, &m);
    m.attrs[0].ints = rows;
    m.attrs[1].ints = keys;
    m.attrs[2].ints = rows;
    m.attrs[3].ints = back;
    m.gc.in[0].shape = shape_of(4, c.b, c.t, c.d, c.h);
    m.gc.in[1].shape = shape_of(4, c.b, c.s, c.d, c.h);
    m.gc.in[2].shape = shape_of(4, c.b, c.s, c.dv, c.h);
    m.gc.probes = 40;
    gradcheck_run(&m.gc);
}

/* Copies q, k and v of `from`, which are `turned` and of one shape, to thirds of the columns of
 * input 0. */
static void make_from_parts(const struct trial *c, const struct gradcheck_result *from,
                            float *whole, int64_t *parts, struct made *m)
{
    const int64_t columns = c->h * c->d;

    make(c, m);
    parts[0] = c->b;
    parts[1] = c->t;
    parts[2] = c->h;
    parts[3] = c->d;
    m->attrs[m->gc.n_attrs++] =
        (struct op_attr){ .name = "parts", .type = OP_ATTR_INTS, .n = 4, .ints = parts };
    for (int64_t row = 0; row < c->b * c->t; row++)
        for (int k = 0; k < 3; k++)
            memcpy(whole + (3 * row + k) * columns, (const float *)from->in[k].data + row * columns,
                   (size_t)columns * sizeof(float));
    m->gc.in[0] = (struct gradcheck_tensor){ .shape = shape_of(3, c->b, c->t, 3 * columns), .data = whole };
    m->gc.in[1].absent = m->gc.in[2].absent = true;
    m->gc.dout[0] = from->dout[0].data;
}

/* Compares bits; a GPU may use another kernel if strides differ. */
static void expect_part(const char *what, float got, float want, uint32_t half)
{
    if (rig_on_gpu() ? !(fabsf(got - want) <= (half ? 0x1p-6f : 1e-5f) * (1 + fabsf(want)))
                     : got != want)
        fail_msg("%s is %.9g, %.9g of inputs that lie alone", what, (double)got, (double)want);
}

static void parts_of_one_input_are_read_in_place(void **state)
{
    static const struct trial some[] = {
        { 2, 3, 7, 7, 5, 5, true, { SCALE }, .dropout = 0 },
        { 1, 2, 130, 130, 64, 64, true, { SCALE, { "fill", -INFINITY, CAUSAL, false } }, .dropout = 0 },
        { 2, 2, 70, 70, 8, 8, true, { SCALE, { "add", -10000.0f, PADDING, true } }, .dropout = 0.25f },
    };
    static float whole[2 * 3 * 130 * 128];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(some); i++)
        for (int halves = 0; halves < (rig_on_gpu() || op_has_bfloat16() ? 2 : 1); halves++) {
            const struct trial *c = &some[i];
            const int64_t columns = c->h * c->d;
            struct gradcheck_result alone, thirds;
            struct err err = { 0 };
            int64_t parts[4];
            struct made m;

            make(c, &m);
            m.gc.half = halves ? OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_OUT(0) : 0;
            if (gradcheck_backward(&m.gc, &alone, &err) < 0)
                fail_msg("%s", err.text);
            make_from_parts(c, &alone, whole, parts, &m);
            m.gc.half = halves ? OP_IN(0) | OP_OUT(0) : 0;
            if (gradcheck_backward(&m.gc, &thirds, &err) < 0)
                fail_msg("%s", err.text);
            for (int64_t e = 0; e < c->b * c->t * columns; e++) {
                expect_part("y", ((float *)thirds.out[0].data)[e], ((float *)alone.out[0].data)[e],
                            m.gc.half);
                for (int k = 0; k < 3; k++)
                    expect_part("a gradient",
                                ((float *)thirds.din[0]
                                     .data)[(e / columns * 3 + k) * columns + e % columns],
                                ((float *)alone.din[k].data)[e], m.gc.half);
            }
            m.gc.probes = 12;
            if (!halves) /* each alone, accumulated, and against differences */
                gradcheck_run(&m.gc);
            gradcheck_free(&alone);
            gradcheck_free(&thirds);
        }
}

/* More scores than a GPU processes at once: equal keys have equal weights, so y is the mean of
 * v. */
static void many_scores_are_computed_in_groups(void **state)
{
    const struct trial c = { 2, 2, 1025, 2048, 1, 1, false, { { 0 } }, .dropout = 0 };
    struct gradcheck_result r;
    struct err err = { 0 };
    struct made m;
    int64_t matrix, i;
    float *none;

    (void)state;
    make(&c, &m);
    none = calloc((size_t)(4 * c.s), sizeof(*none));
    assert_non_null(none);
    m.gc.in[1].data = none;
    if (gradcheck_forward(&m.gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    for (matrix = 0; matrix < 4; matrix++) {
        double mean = 0;

        for (i = 0; i < c.s; i++)
            mean += (double)((float *)r.in[2].data)[matrix * c.s + i] / (double)c.s;
        for (i = 0; i < c.t; i++)
            assert_true(fabs((double)((float *)r.out[0].data)[matrix * c.t + i] - mean) < 1e-6);
    }
    gradcheck_free(&r);
    free(none);
}

/* Keys hidden from all rows by a constant mask are never read: they may even be NaN. (GPUs read
 * them.) */
static void keys_hidden_from_all_rows_are_not_read(void **state)
{
    struct trial c = { 1, 1, 70, 128, 4, 4, true, { { "keep", -FLT_MAX, TAIL, false } }, .dropout = 0 };
    bool gpu = rig_on_gpu();
    float k[128 * 4], v[128 * 4];
    struct gradcheck_result r;
    struct err err = { 0 };
    struct made m;
    uint32_t i, fed;

    (void)state;
    for (i = 0; i < COUNT_OF(k); i++) {
        k[i] = i < (128 - 32) * 4 ? (float)(i % 7) * 0.25f : NAN;
        v[i] = i < (128 - 32) * 4 ? (float)(i % 5) : NAN;
    }
    for (fed = 0; fed < 2; fed++) {
        c.step[0].is_fed = fed != 0;
        make(&c, &m);
        m.gc.in[1].data = k;
        m.gc.in[2].data = v;
        if (gradcheck_forward(&m.gc, &r, &err) < 0)
            fail_msg("%s", err.text);
        for (i = 0; i < 70 * 4; i++)
            assert_true(isnan(((float *)r.out[0].data)[i]) == (fed != 0 || gpu));
        gradcheck_free(&r);
    }
}

/* The lowest number gives uniform weights over all keys, including future ones; -inf gives NaN. */
static void row_without_visible_keys_matches_softmax(void **state)
{
    static const float numbers[] = { -FLT_MAX, -1e9f, -INFINITY };
    struct trial c = { 1, 2, 129, 129, 4, 4, true,
                       { SCALE, { "keep", 0, CAUSAL, false }, { "fill", 0, FIRST_ROWS, false } }, .dropout = 0 };
    struct gradcheck_result r;
    struct err err = { 0 };
    struct made m;
    uint32_t i, e, k;

    (void)state;
    for (i = 0; i < COUNT_OF(numbers); i++) {
        c.step[1].number = c.step[2].number = numbers[i];
        make(&c, &m);
        if (gradcheck_backward(&m.gc, &r, &err) < 0)
            fail_msg("%s", err.text);
        fill_want(&c, &r);
        gradcheck_near("y", r.out[0].data, want, 129 * 2 * 4, 2e-6);
        for (e = 0; e < 129 * 2 * 4; e++)
            assert_true(isnan(((float *)r.out[0].data)[e]) ==
                        (isinf(numbers[i]) && e / 8 % 30 == 2));
        for (k = 0; k < 3; k++) /* no other NaN */
            for (e = 0; e < 129 * 2 * 4; e++)
                assert_true(isinf(numbers[i]) || isfinite(((float *)r.din[k].data)[e]));
        gradcheck_free(&r);
        if (!isinf(numbers[i])) {
            m.gc.probes = 40;
            gradcheck_run(&m.gc);
        }
    }
}

static void evaluation_saves_nothing_and_drops_nothing(void **state)
{
    struct trial c = { 2, 2, 70, 70, 5, 5, true, { SCALE }, .dropout = 0.5f };
    struct gradcheck_result r;
    struct err err = { 0 };
    struct made m;

    (void)state;
    make(&c, &m);
    m.gc.eval = true;
    if (gradcheck_forward(&m.gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    c.dropout = 0;
    fill_want(&c, &r);
    gradcheck_near("y", r.out[0].data, want, 2 * 2 * 70 * 5, 2e-6);
    gradcheck_free(&r);
}

static void refused(struct made *m, const char *why)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(&m->gc, &r, &err), ERR_INPUT);
    if (strstr(err.text, why) == NULL)
        fail_msg("'%s' lacks '%s'", err.text, why);
}

static void inconsistent_inputs_are_rejected(void **state)
{
    static const int64_t twice[] = { 0, 2, 2, 3 };
    const struct trial c = { 1, 2, 5, 7, 3, 4, true, { { "keep", -1, CAUSAL, true } }, .dropout = 0 };
    static const char *const other[] = { "keeps" };
    static const int64_t parts[][4] = { { 1, 5, 2, 3 }, { 1, 5, 2, 2 }, { 1, 5, 0, 3 }, { 1, 5, INT64_MAX, 2 },
                                        /* the last: inputs */
                                        { 1, 5, 3, 4 }, { 5, -1, 2, 3 }, { 1, 5, 2, 3 } };
    struct made m;

    (void)state;
    make(&c, &m);
    m.gc.in[1].shape.dim[3] = 4;
    refused(&m, "k [1, 2, 4, 7]");
    make(&c, &m);
    m.gc.in[2].shape.dim[0] = 2;
    refused(&m, "are not [.., t, d]");
    make(&c, &m);
    m.gc.in[0].shape.dim[1] = 0;
    refused(&m, "are not [.., t, d]");
    make(&c, &m);
    m.gc.in[3].shape.dim[1] = 1;
    refused(&m, "mask [5, 1] does not broadcast");
    make(&c, &m);
    m.gc.in[3].dtype = TENSOR_F32;
    refused(&m, "input 3 is float32; expected bool");
    make(&c, &m);
    m.attrs[0].ints = twice;
    refused(&m, "perm_q: expected each of 0 to 3 once");
    make(&c, &m);
    m.attrs[1].n = 3;
    refused(&m, "perm_k has 3 axes; expected 4");
    make(&c, &m);
    m.attrs[4].strings = other;
    refused(&m, "step 'keeps'; expected scale, add, keep, fill or cap");
    make(&c, &m);
    m.attrs[5].n = 0;
    refused(&m, "1 steps with 0 numbers");
    make(&c, &m);
    m.gc.in[0].shape.dim[2] = 3; /* heads of q; k and v have 2 */
    refused(&m, "are not a multiple of those of k and v");
    make(&c, &m);
    m.attrs[m.gc.n_attrs++] = (struct op_attr){ .name = "band", .type = OP_ATTR_INTS, .n = 1, .ints = twice };
    refused(&m, "band: expected two integers");
    make(&c, &m);
    m.names[0] = "cap";
    refused(&m, "step cap with number -1");
    make(&c, &m);
    m.gc.n_in = 3;
    refused(&m, "input 3 is missing");
    make(&c, &m);
    m.gc.in[4] = m.gc.in[3];
    m.gc.n_in = 5;
    refused(&m, "5 inputs; the steps need 4");
    make(&c, &m);
    m.attrs[m.gc.n_attrs++] =
        (struct op_attr){ .name = "dropout", .type = OP_ATTR_FLOAT, .f = 1.5f };
    refused(&m, "ratio is 1.5; expected 0 to 1");
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        make(&c, &m);
        m.attrs[m.gc.n_attrs++] =
            (struct op_attr){ .name = "parts", .type = OP_ATTR_INTS, .n = 4, .ints = parts[i] };
        m.gc.in[0].shape = i == 0 ? shape_of(0) : shape_of(3, (int64_t)1, (int64_t)5, (int64_t)18);
        m.gc.in[1].absent = m.gc.in[2].absent = i + 1 < COUNT_OF(parts);
        refused(&m, "parts: expected the shape of a third of the columns of input 0");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_follows_definition),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(operands_in_any_order_give_same_result),
        cmocka_unit_test(parts_of_one_input_are_read_in_place),
        cmocka_unit_test(many_scores_are_computed_in_groups),
        cmocka_unit_test(keys_hidden_from_all_rows_are_not_read),
        cmocka_unit_test(row_without_visible_keys_matches_softmax),
        cmocka_unit_test(evaluation_saves_nothing_and_drops_nothing),
        cmocka_unit_test(inconsistent_inputs_are_rejected),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);

    free(want);
    return rc;
}
