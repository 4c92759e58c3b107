/* Attention on a GPU, with and without cuDNN's fused kernels. Skipped without a GPU; tests that
 * need the emulator are skipped with a real GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/op_rig.h"

enum { QKVY = OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_OUT(0), STEPS = 3, MASK_MAX = 1 << 17 };

enum shape_of_mask { CAUSAL, AHEAD, PADDING, EACH, ROWS };

struct step {
    const char *what;
    float number; /* of an "add": the value that hides */
    enum shape_of_mask mask;
    bool is_fed;
};

struct trial {
    int64_t b, h, t, s, d, dv;
    bool turned; /* q is [b, t, h, d] and so on; else [b, h, t, d], and k is [b, h, s, d] */
    struct step step[STEPS];
    bool is_fused;
    int64_t shared; /* query heads per head of k and v; 0: 1 */
    bool has_band;
    int64_t band[2];
};

static const int64_t middle[] = { 0, 2, 1, 3 }, keys_last[] = { 0, 2, 3, 1 }, swapped[] = { 0, 1, 3, 2 };

static const struct trial trials[] = {
    { 2, 3, 37, 53, 64, 64, true, { { "scale", 0.125f, 0, false } }, .is_fused = true },
    { 1, 2, 130, 130, 64, 64, true, { { "scale", 0.125f, 0, false }, { "keep", -1e9f, CAUSAL, false } }, .is_fused = true },
    { 2, 1, 70, 70, 8, 24, false, { { "add", -INFINITY, CAUSAL, false } }, .is_fused = true },
    { 2, 2, 40, 65, 16, 8, true, { { "scale", 0.25f, 0, false }, { "scale", 2, 0, false },
                                   { "fill", -FLT_MAX, CAUSAL, false } }, .is_fused = true },
    { 2, 2, 33, 33, 16, 16, true, { { "scale", 0.25f, 0, false }, { "keep", -10000, CAUSAL, false },
                                    { "add", -10000, PADDING, true } }, .is_fused = true },
    { 2, 3, 20, 30, 32, 32, false, { { "keep", -FLT_MAX, EACH, true } }, .is_fused = true },
    { 2, 1, 20, 70, 8, 8, true, { { "fill", -INFINITY, PADDING, true } }, .is_fused = true },
    { 1, 2, 20, 70, 8, 8, true, { { "add", -1e9f, ROWS, false } }, .is_fused = true },
    { 2, 6, 21, 129, 8, 8, true, { { "scale", 0.25f, 0, false }, { "add", -1e9f, EACH, true } }, .is_fused = true },
    /* as the previous one, in parts */
    { 1, 10, 101, 130, 8, 8, true, { { "scale", 0.25f, 0, false } }, .is_fused = true },
    /* grouped heads, the causal band */
    { 2, 4, 37, 53, 64, 64, true, { { "scale", 0.125f, 0, false } }, .is_fused = true, .shared = 2 },
    { 2, 6, 70, 70, 16, 8, false, { { "scale", 0.25f, 0, false } }, .is_fused = true, .shared = 3, .has_band = true,
      .band = { INT64_MIN, 0 } },
    { 2, 4, 21, 30, 8, 8, true, { { "keep", -1e9f, EACH, true } }, .is_fused = true, .shared = 4 },
    /* not supported: head size, causal in the other direction, a number that hides too little, a
     * scale after the mask, two masks */
    { 1, 2, 20, 24, 12, 12, true, { { "scale", 0.25f, 0, false } }, .is_fused = false },
    { 1, 2, 30, 30, 8, 8, true, { { "keep", -100, CAUSAL, false } }, .is_fused = false },
    { 1, 2, 30, 30, 8, 8, true, { { "keep", -1e9f, CAUSAL, false }, { "scale", 0.5f, 0, false } }, .is_fused = false },
    { 2, 4, 30, 40, 12, 12, true, { { "scale", 0.25f, 0, false } }, .is_fused = false, .shared = 2 },
    { 1, 2, 30, 30, 8, 8, true, { { 0 } }, .is_fused = false, .has_band = true, .band = { -5, 0 } },
    { 1, 2, 30, 30, 8, 8, true, { { "cap", 2, 0, false } }, .is_fused = false },
    { 2, 2, 30, 30, 8, 8, true, { { "keep", -1e9f, AHEAD, false }, { "add", -1e4f, PADDING, true } }, .is_fused = false },
};

static bool hidden(enum shape_of_mask mask, int64_t b, int64_t h, int64_t i, int64_t j)
{
    switch (mask) {
    case CAUSAL: return j > i;
    case AHEAD: return j > i + 1;
    case PADDING: return (j + b) % 4 == 3; /* never the first key: each row sees one */
    case EACH: return j != i && (j * 7 + i * 3 + h * 5 + b) % 3 == 0;
    case ROWS: return (i + j) % 5 == 1;
    }
    return false;
}

static uint8_t masks[STEPS][MASK_MAX];

static void fill_mask(const struct trial *c, const struct step *s, const struct shape *shape,
                      void *data)
{
    const bool adds = strcmp(s->what, "add") == 0;
    int64_t b, h, i, j, e = 0;

    assert_true(shape_elements(shape) * 4 <= MASK_MAX);
    for (b = 0; b < shape->dim[0]; b++)
        for (h = 0; h < shape->dim[1]; h++)
            for (i = 0; i < shape->dim[2]; i++)
                for (j = 0; j < c->s; j++, e++) {
                    bool is = hidden(s->mask, b, h, i, j);

                    if (adds) /* except for the causal mask it also adds weights */
                        ((float *)data)[e] = is                  ? s->number
                                             : s->mask == CAUSAL ? 0
                                                                 : (float)(e % 3) * 0.25f;
                    else
                        ((uint8_t *)data)[e] = is == (strcmp(s->what, "fill") == 0);
                }
}

struct made {
    struct op_attr attrs[8];
    const char *names[STEPS];
    float numbers[STEPS];
    struct gradcheck_case gc;
};

static void add_perm(struct made *m, const char *name, const int64_t *perm)
{
    m->attrs[m->gc.n_attrs++] = (struct op_attr){ .name = name, .type = OP_ATTR_INTS, .n = 4, .ints = perm };
}

static void make(const struct trial *c, struct made *m)
{
    const int64_t heads = c->shared > 0 ? c->h / c->shared : c->h;
    uint32_t n = 0;

    memset(m, 0, sizeof(*m));
    m->gc = (struct gradcheck_case){ .domain = "trainerd", .op = "Attention", .opset = 1, .attrs = m->attrs,
                                     .n_in = 3, .seed = 5, .half = QKVY };
    m->gc.in[0].shape =
        c->turned ? shape_of(4, c->b, c->t, c->h, c->d) : shape_of(4, c->b, c->h, c->t, c->d);
    m->gc.in[1].shape =
        c->turned ? shape_of(4, c->b, c->s, heads, c->d) : shape_of(4, c->b, heads, c->s, c->d);
    m->gc.in[2].shape =
        c->turned ? shape_of(4, c->b, c->s, heads, c->dv) : shape_of(4, c->b, heads, c->s, c->dv);
    add_perm(m, "perm_k", c->turned ? keys_last : swapped);
    if (c->turned) {
        add_perm(m, "perm_q", middle);
        add_perm(m, "perm_v", middle);
        add_perm(m, "perm_y", middle);
    }
    for (; n < STEPS && c->step[n].what != NULL; n++) {
        const struct step *s = &c->step[n];
        struct gradcheck_tensor *in = &m->gc.in[m->gc.n_in];
        const bool adds = strcmp(s->what, "add") == 0;

        m->names[n] = s->what;
        m->numbers[n] = adds ? 0 : s->number;
        if (strcmp(s->what, "scale") == 0 || strcmp(s->what, "cap") == 0)
            continue;
        in->shape = shape_of(4, s->mask == PADDING || s->mask == EACH ? c->b : (int64_t)1,
                             s->mask == EACH ? c->h : (int64_t)1,
                             s->mask == PADDING ? (int64_t)1 : c->t, c->s);
        in->dtype = adds ? TENSOR_F32 : TENSOR_BOOL;
        in->data = masks[n];
        in->constant = !s->is_fed;
        fill_mask(c, s, &in->shape, masks[n]);
        m->gc.n_in++;
    }
    if (c->has_band)
        m->attrs[m->gc.n_attrs++] = (struct op_attr){ .name = "band", .type = OP_ATTR_INTS, .n = 2, .ints = c->band };
    if (n == 0)
        return;
    m->attrs[m->gc.n_attrs++] =
        (struct op_attr){ .name = "steps", .type = OP_ATTR_STRINGS, .n = n, .strings = m->names };
    m->attrs[m->gc.n_attrs++] =
        (struct op_attr){ .name = "numbers", .type = OP_ATTR_FLOATS, .n = n, .floats = m->numbers };
}

static void need_gpu(void)
{
    if (rig_on_gpu())
        return;
    print_message("TRAINERD_TEST_CUDA is not set\n");
    skip();
}

/* The saved data shows which kernel ran: it has one number per row, or two. */
static bool is_fused(const struct trial *c, const struct rig *r)
{
    return r->save.bytes == (size_t)(c->b * c->h * c->t) * sizeof(float);
}

static void open_rig(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted)
{
    struct err err = { 0 };

    if (rig_open(r, gc, wanted, &err) < 0)
        fail_msg("%s", err.text);
}

/* ---- tests ---- */

/* Rounding y to 16 bits changes the sum of y dy, which all gradients of a row share: in rows with
 * few keys cuDNN 9.14 on an H100 differs by 7.5 units of the largest number. The mean error stays
 * within 8 units of the mean size. */
static void expect_close(size_t trial, const char *what, const struct tensor *got,
                         const struct tensor *want, double unit)
{
    const float *a = got->data, *b = want->data;
    const size_t n = (size_t)tensor_elements(want);
    double size = 0, squares = 0, errors = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        size = fmax(size, fabs((double)b[i]));
        squares += (double)b[i] * (double)b[i];
        errors += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    if (!(errors <= 64 * unit * unit * squares))
        fail_msg("trial %zu, %s: the mean error is %.3g of the mean size", trial, what,
                 sqrt(errors / squares));
    for (i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= unit * (4 * fabs((double)b[i]) + 12 * size)))
            fail_msg("trial %zu, %s: element %zu: %.9g, %.9g in float32, largest %.9g", trial, what,
                     i, (double)a[i], (double)b[i], size);
}

static void output_matches_float32_up_to_rounding(void **state)
{
    static const char *const names[] = { "dq", "dk", "dv" };
    size_t i, k;
    int float16;

    (void)state;
    need_gpu();
    for (i = 0; i < COUNT_OF(trials); i++)
        for (float16 = 0; float16 < 2; float16++) {
            const double unit = float16 != 0 ? 0x1p-11 : 0x1p-8;
            struct gradcheck_result a, b;
            struct err err = { 0 };
            struct made m;

            make(&trials[i], &m);
            m.gc.float16 = float16 != 0;
            if (gradcheck_backward(&m.gc, &a, &err) < 0)
                fail_msg("%s", err.text);
            m.gc.rounded = m.gc.half;
            m.gc.half = 0;
            if (gradcheck_backward(&m.gc, &b, &err) < 0)
                fail_msg("%s", err.text);
            expect_close(i, "y", &a.out[0], &b.out[0], unit);
            for (k = 0; k < 3; k++)
                expect_close(i, names[k], &a.din[k], &b.din[k], unit);
            gradcheck_free(&a);
            gradcheck_free(&b);
        }
}

static void supported_nodes_use_fused_kernels(void **state)
{
    static const int64_t parts[] = { 1, 130, 2, 64 };
    struct rig r;
    struct made m;
    size_t i;

    (void)state;
    need_gpu();
    for (i = 0; i < COUNT_OF(trials); i++) {
        make(&trials[i], &m);
        open_rig(&r, &m.gc, UINT32_MAX);
        if (is_fused(&trials[i], &r) != trials[i].is_fused)
            fail_msg("trial %zu is %sfused", i, trials[i].is_fused ? "not " : "");
        rig_close(&r);
    }
    make(&trials[1], &m); /* q, k and v in one input */
    m.attrs[m.gc.n_attrs++] = (struct op_attr){ .name = "parts", .type = OP_ATTR_INTS, .n = 4, .ints = parts };
    m.gc.in[0].shape = shape_of(3, (int64_t)1, (int64_t)130, (int64_t)(3 * 2 * 64));
    m.gc.in[1].absent = m.gc.in[2].absent = true;
    m.gc.half = OP_IN(0) | OP_OUT(0);
    open_rig(&r, &m.gc, UINT32_MAX);
    assert_true(is_fused(&trials[1], &r));
    rig_close(&r);
    make(&trials[0], &m);
    m.gc.half = 0; /* float32, and a mix */
    open_rig(&r, &m.gc, UINT32_MAX);
    assert_false(is_fused(&trials[0], &r));
    rig_close(&r);
    m.gc.half = QKVY & ~OP_IN(0);
    open_rig(&r, &m.gc, UINT32_MAX);
    assert_false(is_fused(&trials[0], &r));
    rig_close(&r);
}

/* Compares the bits of each gradient: alone, together with the others, and accumulated. */
static void expect_added(const struct trial *c)
{
    struct rig all, one;
    struct err err = { 0 };
    struct made m;
    uint32_t i;
    size_t e;

    make(c, &m);
    open_rig(&all, &m.gc, UINT32_MAX);
    assert_int_equal(rig_fwd(&all, RIG_POISON_BIG, &err), 0);
    rig_bwd(&all, RIG_POISON_BIG, 0);
    for (i = 0; i < 3; i++) {
        const size_t n = (size_t)tensor_elements(&all.din[i]);
        struct tensor sum, want;

        open_rig(&one, &m.gc, OP_IN(i));
        assert_int_equal(rig_fwd(&one, RIG_POISON_NAN, &err), 0);
        rig_bwd(&one, RIG_POISON_NAN, 0);
        assert_memory_equal(one.din[i].data, all.din[i].data, n * 2);
        for (e = 0; e < n; e++)
            ((uint16_t *)one.din[i].data)[e] = 0x4040; /* 3 */
        rig_bwd(&one, RIG_POISON_NAN, OP_IN(i));
        rig_take(&one.din[i], &sum, true);
        rig_take(&all.din[i], &want, true);
        for (e = 0; e < n; e++)
            assert_true((double)((float *)sum.data)[e] ==
                        rig_round_half(3 + (double)((float *)want.data)[e]));
        free(sum.data);
        free(want.data);
        rig_close(&one);
    }
    rig_close(&all);
}

static void gradients_alone_or_accumulated_have_same_bits(void **state)
{
    static const size_t some[] = { 4, 11 /* grouped heads */ };

    (void)state;
    need_gpu();
    for (size_t i = 0; i < COUNT_OF(some); i++)
        expect_added(&trials[some[i]]);
}

static void evaluation_saves_nothing(void **state)
{
    struct gradcheck_result a, b;
    struct err err = { 0 };
    struct made m;

    (void)state;
    need_gpu();
    make(&trials[1], &m);
    assert_int_equal(gradcheck_forward(&m.gc, &a, &err), 0);
    m.gc.eval = true;
    assert_int_equal(gradcheck_forward(&m.gc, &b, &err), 0);
    assert_memory_equal(a.out[0].data, b.out[0].data,
                        (size_t)tensor_elements(&a.out[0]) * sizeof(float));
    gradcheck_free(&a);
    gradcheck_free(&b);
}

/* Forward has none of the t * s numbers; backward has 16 bits for each in as many matrices as fit
 * 256 MiB. */
static void scratch_is_independent_of_score_matrix(void **state)
{
    static const struct trial many = { 24, 16, 1024, 1024, 8, 8, true, { { 0 } }, .is_fused = true };
    static const struct trial wide = { 1, 6, 5000, 5000, 8, 8, true, { { 0 } }, .is_fused = true };
    struct rig r;
    struct made m;

    (void)state;
    need_gpu();
    make(&many, &m);
    m.gc.eval = true;
    open_rig(&r, &m.gc, 0);
    assert_true(r.scratch.bytes <= 24 * 16 * 1024 * 4 + (1 << 20));
    rig_close(&r);
    m.gc.eval = false;
    open_rig(&r, &m.gc, UINT32_MAX);
    assert_true(is_fused(&many, &r));
    assert_true(r.scratch.bytes <=
                ((size_t)256 << 20) + 24 * 16 * 1024 * (4 + 3 * 8 * 2) + (1 << 20));
    rig_close(&r);
    make(&wide, &m); /* 51 MB per head: 3 of 6 at a time */
    open_rig(&r, &m.gc, UINT32_MAX);
    assert_true(is_fused(&wide, &r));
    assert_true(r.scratch.bytes <=
                (size_t)3 * 5056 * 5120 * 2 + 6 * 5000 * (4 + 3 * 8 * 2) + (1 << 20));
    rig_close(&r);
}

/* Equal layers share the graph of the first, and may be closed in any order. */
static void equal_layers_close_in_any_order(void **state)
{
    struct rig first, second, third;
    struct err err = { 0 };
    struct made m;
    size_t bytes;

    (void)state;
    need_gpu();
    make(&trials[2], &m);
    open_rig(&first, &m.gc, UINT32_MAX);
    open_rig(&second, &m.gc, UINT32_MAX);
    assert_int_equal(rig_fwd(&first, RIG_POISON_BIG, &err), 0);
    assert_int_equal(rig_fwd(&second, RIG_POISON_NAN, &err), 0);
    bytes = (size_t)tensor_elements(&first.out[0]) * 2;
    assert_memory_equal(first.out[0].data, second.out[0].data, bytes);
    rig_bwd(&first, RIG_POISON_BIG, 0);
    rig_close(&second);
    open_rig(&third, &m.gc, UINT32_MAX);
    assert_int_equal(rig_fwd(&third, RIG_POISON_NAN, &err), 0);
    rig_bwd(&third, RIG_POISON_NAN, 0);
    assert_memory_equal(first.din[0].data, third.din[0].data,
                        (size_t)tensor_elements(&first.din[0]) * 2);
    rig_close(&first);
    assert_int_equal(rig_fwd(&third, RIG_POISON_NAN, &err), 0);
    rig_close(&third);
}

static void missing_engines_fall_back_to_products(void **state)
{
    struct made m;
    struct rig r;

    (void)state;
    need_gpu();
    make(&trials[1], &m);
    setenv("EMULATED_CUDNN", "refuse", 1);
    open_rig(&r, &m.gc, UINT32_MAX);
    unsetenv("EMULATED_CUDNN");
    if (is_fused(&trials[1], &r)) {
        rig_close(&r);
        print_message("a true GPU refuses nothing\n");
        skip();
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_matches_float32_up_to_rounding),
        cmocka_unit_test(supported_nodes_use_fused_kernels),
        cmocka_unit_test(gradients_alone_or_accumulated_have_same_bits),
        cmocka_unit_test(evaluation_saves_nothing),
        cmocka_unit_test(scratch_is_independent_of_score_matrix),
        cmocka_unit_test(equal_layers_close_in_any_order),
        cmocka_unit_test(missing_engines_fall_back_to_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
