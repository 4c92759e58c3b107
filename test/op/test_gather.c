#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/shape/rows.h"
#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"
#include "harness/op_rig.h"
#include "tensor/packed.h"

#define INT(name_, i_) { .name = (name_), .type = OP_ATTR_INT, .i = (i_) }
#define STRING(name_, s_) { .name = (name_), .type = OP_ATTR_STRING, .s = (s_) }

static void unravel(const struct shape *s, size_t i, int64_t *at)
{
    uint32_t k;

    for (k = s->rank; k-- > 0; i /= (size_t)s->dim[k])
        at[k] = (int64_t)(i % (size_t)s->dim[k]);
}

static size_t ravel(const struct shape *s, const int64_t *at)
{
    size_t i = 0;
    uint32_t k;

    for (k = 0; k < s->rank; k++) {
        assert_true(at[k] >= 0 && at[k] < s->dim[k]);
        i = i * (size_t)s->dim[k] + (size_t)at[k];
    }
    return i;
}

/* ---- gathering ---- */

enum kind { AXIS, ELEMENTS, ND };

static const struct gathering {
    const char *op;
    enum kind kind;
    struct op_attr attr; /* axis or batch_dims */
    struct shape data, at, out;
} gatherings[] = {
    { "Gather", AXIS, INT("axis", 0), GRADCHECK_SHAPE(11, 5), GRADCHECK_SHAPE(2, 7),
      GRADCHECK_SHAPE(2, 7, 5) },
    { "Gather", AXIS, INT("axis", 1), GRADCHECK_SHAPE(2, 5, 3), GRADCHECK_SHAPE(4),
      GRADCHECK_SHAPE(2, 4, 3) },
    { "Gather", AXIS, INT("axis", -1), GRADCHECK_SHAPE(2, 3, 5), GRADCHECK_SHAPE(2, 2),
      GRADCHECK_SHAPE(2, 3, 2, 2) },
    { "Gather", AXIS, INT("axis", 1), GRADCHECK_SHAPE(4, 3, 2), { 0 }, GRADCHECK_SHAPE(4, 2) },
    { "Gather", AXIS, INT("axis", 0), GRADCHECK_SHAPE(7), { 0 }, { 0 } },
    { "Gather", AXIS, INT("axis", 0), GRADCHECK_SHAPE(7, 2), GRADCHECK_SHAPE(0),
      GRADCHECK_SHAPE(0, 2) },
    { "GatherElements", ELEMENTS, INT("axis", 0), GRADCHECK_SHAPE(5, 4), GRADCHECK_SHAPE(7, 3),
      GRADCHECK_SHAPE(7, 3) },
    { "GatherElements", ELEMENTS, INT("axis", -2), GRADCHECK_SHAPE(2, 5, 3),
      GRADCHECK_SHAPE(2, 4, 3), GRADCHECK_SHAPE(2, 4, 3) },
    { "GatherElements", ELEMENTS, INT("axis", 0), GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(1),
      GRADCHECK_SHAPE(1) },
    { "GatherND", ND, INT("batch_dims", 0), GRADCHECK_SHAPE(5, 4, 3), GRADCHECK_SHAPE(6, 2),
      GRADCHECK_SHAPE(6, 3) },
    { "GatherND", ND, INT("batch_dims", 0), GRADCHECK_SHAPE(5, 4), GRADCHECK_SHAPE(2, 3, 2),
      GRADCHECK_SHAPE(2, 3) },
    { "GatherND", ND, INT("batch_dims", 1), GRADCHECK_SHAPE(3, 4, 5), GRADCHECK_SHAPE(3, 2, 1),
      GRADCHECK_SHAPE(3, 2, 5) },
    { "GatherND", ND, INT("batch_dims", 2), GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(2, 3, 1),
      GRADCHECK_SHAPE(2, 3) },
};

static int64_t positive(int64_t i, int64_t dim)
{
    return i < 0 ? i + dim : i;
}

/* Position in the data of element `to` of the output, or of the updates. */
static void place(const struct gathering *g, const struct tensor *at, const int64_t *to,
                  int64_t *from)
{
    const int64_t *index = at->data;
    int64_t where[TENSOR_MAX_RANK], axis = positive(g->attr.i, g->data.rank);
    uint32_t k, batch, depth;

    if (g->kind == ELEMENTS) {
        memcpy(from, to, g->data.rank * sizeof(*from));
        from[axis] = positive(index[ravel(&g->at, to)], g->data.dim[axis]);
    } else if (g->kind == AXIS) {
        memcpy(from, to, (size_t)axis * sizeof(*from));
        from[axis] = positive(index[ravel(&g->at, to + axis)], g->data.dim[axis]);
        memcpy(from + axis + 1, to + axis + g->at.rank,
               (g->data.rank - 1 - (size_t)axis) * sizeof(*from));
    } else {
        batch = (uint32_t)g->attr.i;
        depth = (uint32_t)g->at.dim[g->at.rank - 1];
        memcpy(where, to, (g->at.rank - 1) * sizeof(*where));
        memcpy(from, to, batch * sizeof(*from));
        for (k = 0; k < depth; k++) {
            where[g->at.rank - 1] = k;
            from[batch + k] = positive(index[ravel(&g->at, where)], g->data.dim[batch + k]);
        }
        memcpy(from + batch + depth, to + g->at.rank - 1,
               (g->data.rank - batch - depth) * sizeof(*from));
    }
}

static struct gradcheck_case gathering_case(const struct gathering *g)
{
    int64_t least = INT64_MAX;
    uint32_t k;

    for (k = 0; k < g->data.rank; k++)
        least = g->data.dim[k] < least ? g->data.dim[k] : least;
    if (g->kind != ND)
        least = g->data.dim[positive(g->attr.i, g->data.rank)];
    return (struct gradcheck_case){
        .op = g->op, .opset = 13, .attrs = &g->attr, .n_attrs = 1, .n_in = 2, .seed = 9,
        .in = { { .shape = g->data },
                { .dtype = TENSOR_I64, .shape = g->at, .lo = (double)-least,
                  .hi = (double)least } } };
}

static void gather_follows_definition_and_accumulates_gradients(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_U8, TENSOR_I64, TENSOR_F32 };
    size_t i, t, n, e;

    (void)state;
    for (i = 0; i < COUNT_OF(gatherings); i++) {
        const struct gathering *g = &gatherings[i];
        struct gradcheck_case gc = gathering_case(g);

        for (t = 0; t < COUNT_OF(types); t++) {
            struct gradcheck_result r;
            struct err err = { 0 };

            gc.in[0].dtype = types[t];
            gc.in[0].lo = types[t] == TENSOR_F32 ? -1 : 0;
            gc.in[0].hi = types[t] == TENSOR_F32 ? 1 : 200;
            if (gradcheck_forward(&gc, &r, &err) < 0)
                fail_msg("%s: %s", g->op, err.text);
            assert_true(shape_equal(&r.out[0].shape, &g->out));
            n = (size_t)tensor_elements(&r.out[0]);
            for (e = 0; e < n; e++) {
                int64_t to[TENSOR_MAX_RANK], from[TENSOR_MAX_RANK];

                unravel(&g->out, e, to);
                place(g, &r.in[1], to, from);
                assert_true(oracle_at(&r.out[0], e) == oracle_at(&r.in[0], ravel(&g->data, from)));
            }
            gradcheck_free(&r);
        }
        gradcheck_run(&gc);
        gc.in[1].dtype = TENSOR_I32;
        gradcheck_run(&gc);
    }
}

static void embedding_gradient_sums_in_order_of_indices(void **state)
{
    static const int64_t words[5] = { 2, 0, 2, -1, 2 };
    static const float dout[5] = { 1e8f, 3, 1, 5, -1e8f };
    /* (1e8 + 1) - 1e8 in float32 */
    static const double want[4] = { 3, 0, 0, 5 };
    struct gradcheck_case gc = { .op = "Gather", .opset = 13, .n_in = 2, .dout = { dout },
                                 .in = { { .shape = GRADCHECK_SHAPE(4, 1) },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(5),
                                           .data = words } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("dx", r.din[0].data, want, 4, 0);
    gradcheck_free(&r);
}

static void gather_index_out_of_range_is_rejected_with_position(void **state)
{
    static const int64_t high[3] = { 0, 1, 4 }, low[3] = { 0, -5, 1 };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(gatherings); i++) {
        struct gradcheck_case gc = gathering_case(&gatherings[i]);

        gc.in[0].shape = shape_of(1, (int64_t)4);
        gc.in[1].shape = gatherings[i].kind == ND ? shape_of(2, (int64_t)3, (int64_t)1)
                                                  : shape_of(1, (int64_t)3);
        gc.n_attrs = 0;
        gc.in[1].data = high;
        oracle_refused(&gc, ERR_INPUT, "index 2 is 4; the axis has 4 elements");
        gc.in[1].data = low;
        oracle_refused(&gc, ERR_INPUT, "index 1 is -5");
        gc.in[1].dtype = TENSOR_F32;
        gc.in[1].data = NULL;
        oracle_refused(&gc, ERR_INPUT, "the indices are float32");
    }
}

/* Gathers n rows, many of them equal, from a table [rows, width]. padding: the row without a
 * gradient; -1: none. */
static void check_table(int64_t rows, int64_t width, int64_t n, int64_t padding)
{
    const struct op_attr attr = { .name = ROWS_PADDING_ATTR, .type = OP_ATTR_INT, .i = padding };
    int64_t *at = calloc((size_t)n, sizeof(*at)), i, k;
    double *want = calloc((size_t)(rows * width), sizeof(*want));
    struct gradcheck_case gc = { .op = "Gather", .opset = 13, .n_in = 2, .seed = 3,
                                 .attrs = &attr, .n_attrs = padding >= 0 };
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_true(at != NULL && want != NULL);
    for (i = 0; i < n; i++)
        at[i] = i % 5 == 0 ? rows - 2 : i * 7919 % rows - (i % 3 == 0 ? rows : 0);
    gc.in[0].shape = shape_of(2, rows, width);
    gc.in[1] = (struct gradcheck_tensor){ .dtype = TENSOR_I64, .shape = shape_of(1, n),
                                          .data = at };
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    for (i = 0; i < n; i++)
        for (k = 0; k < width; k++) {
            int64_t row = positive(at[i], rows);

            want[row * width + k] +=
                row == padding ? 0 : (double)((const float *)r.dout[0].data)[i * width + k];
            assert_true(((const float *)r.out[0].data)[i * width + k] ==
                        ((const float *)r.in[0].data)[row * width + k]);
        }
    gradcheck_near("dx", r.din[0].data, want, (size_t)(rows * width), 2e-5);
    gradcheck_free(&r);
    free(at);
    free(want);
}

static void large_table_gradient_sums_per_row(void **state)
{
    (void)state;
    check_table(70000, 4, 3000, -1);
    check_table(300, 3, 2500, -1);
    check_table(40, 8, 700, -1);
    check_table(2, 1, 1025, -1);
}

static void padding_row_has_no_gradient(void **state)
{
    static const int64_t words[3] = { 2, 0, 2 };
    const struct op_attr attr = { .name = ROWS_PADDING_ATTR, .type = OP_ATTR_INT, .i = 4 };
    struct gradcheck_case gc = { .op = "Gather", .opset = 13, .n_in = 2, .attrs = &attr, .n_attrs = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(4, 1) },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3),
                                           .data = words } } };

    (void)state;
    check_table(70000, 4, 3000, 69998); /* the row that a fifth of the indices select */
    check_table(300, 3, 2500, 298);
    check_table(300, 3, 2500, 17);
    check_table(40, 8, 700, 0);
    check_table(2, 1, 1025, 1);
    oracle_refused(&gc, ERR_INPUT, "padding_idx is 4; expected a row along axis 0, of 4 rows");
}

/* Rows 4, 1, 4, -1, 4 of six, where 5 is the padding row: slots 0, 1, 0, 2, 0. The kernels must not
 * read inputs 0 and 1. */
static void remote_table_is_read_and_updated_by_slot(void **state)
{
    static const int64_t slots[] = { 0, 1, 0, 2, 0 };
    static const uint8_t is_padding[] = { 0, 0, 0, 1, 0 };
    static const float compact[] = { 10, 11, 20, 21, 30, 31 };
    static const float want[] = { 10, 11, 20, 21, 10, 11, 30, 31, 10, 11 };
    float dy[] = { 1e8f, 1, 5, 6, 1, 2, 7, 8, -1e8f, 3 }, y[10] = { 0 };
    const struct op_lookup lookup = { slots, is_padding, compact };
    const struct op_attr attr = { .name = ROWS_PADDING_ATTR, .type = OP_ATTR_INT, .i = 5 };
    const struct op_def *def = op_find(NULL, "Gather", 13);
    struct rows param = { 0 };
    struct tensor in[] = { { .dtype = TENSOR_F32, .shape = shape_of(2, (int64_t)6, (int64_t)2) },
                           { .dtype = TENSOR_I64, .shape = shape_of(1, (int64_t)5) } },
                  out = { .data = y }, dout, din = in[0];
    const struct tensor *in_at[] = { &in[0], &in[1] }, *out_at[] = { &out },
                        *dout_at[] = { &dout }, *din_at[] = { &din, NULL };
    struct op_infer infer = { .def = def, .node = "g", .opset = 13, .attrs = &attr, .n_attrs = 1,
                              .n_in = 2, .in = in_at, .n_out = 1, .out = &out, .param = &param };
    uint64_t marks = 0;
    uint32_t before = 0;
    float sums[4] = { 0 };
    struct packed_rows rows = { .marks = &marks, .before = &before, .values = sums };
    struct op_call c = { .param = &param, .n_in = 2, .n_out = 1, .in = in_at, .out = out_at,
                         .dout = dout_at, .din = din_at, .rows = &rows, .lookup = &lookup };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(def->infer(&infer, &err), 0);
    dout = out;
    dout.data = dy;
    assert_int_equal(def->cpu.fwd(&c, &err), 0);
    assert_memory_equal(y, want, sizeof(want));
    assert_int_equal(marks, 3); /* not slot 2 */
    assert_int_equal(def->cpu.bwd(&c, &err), 0);
    assert_true(sums[0] == 0 && sums[1] == 6); /* (1e8 + 1) - 1e8 in float32 */
    assert_true(sums[2] == 5 && sums[3] == 6);
}

static void inconsistent_index_shapes_are_rejected(void **state)
{
    static const struct op_attr two = INT("axis", 2), batch = INT("batch_dims", 2);
    struct gradcheck_case gc = { .op = "Gather", .opset = 13, .attrs = &two, .n_attrs = 1,
                                 .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(4, 3) },
                                         { .dtype = TENSOR_I64,
                                           .shape = GRADCHECK_SHAPE(2, 5) } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "axis is 2; expected -2 to 1");
    gc.n_attrs = 0;
    gc.op = "GatherElements";
    oracle_refused(&gc, ERR_INPUT, "indices [2, 5] exceed data [4, 3] along an axis other than 0");
    gc.op = "GatherND";
    oracle_refused(&gc, ERR_INPUT, "addresses 5 axes of data [4, 3]");
    gc.attrs = &batch;
    gc.n_attrs = 1;
    oracle_refused(&gc, ERR_INPUT, "batch_dims is 2");
    gc.op = "Gather";
    gc.n_attrs = 0;
    gc.in[0].shape = shape_of(4, (int64_t)1, (int64_t)1, (int64_t)1, (int64_t)1);
    gc.in[1].shape =
        shape_of(6, (int64_t)1, (int64_t)1, (int64_t)1, (int64_t)1, (int64_t)1, (int64_t)1);
    oracle_refused(&gc, ERR_UNSUPPORTED, "9 dimensions; at most 8");
}

/* ---- scattering ---- */

static const struct gathering scatterings[] = {
    { "ScatterElements", ELEMENTS, INT("axis", 0), GRADCHECK_SHAPE(5, 4), GRADCHECK_SHAPE(7, 3),
      GRADCHECK_SHAPE(7, 3) },
    { "ScatterElements", ELEMENTS, INT("axis", -1), GRADCHECK_SHAPE(2, 3, 6),
      GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(2, 3, 4) },
    { "ScatterElements", ELEMENTS, INT("axis", 0), GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(0),
      GRADCHECK_SHAPE(0) },
    { "ScatterND", ND, INT("axis", 0), GRADCHECK_SHAPE(5, 4, 3), GRADCHECK_SHAPE(6, 2),
      GRADCHECK_SHAPE(6, 3) },
    { "ScatterND", ND, INT("axis", 0), GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(2, 2, 1),
      GRADCHECK_SHAPE(2, 2) },
};

static double reduce(const char *how, double v, double u)
{
    return strcmp(how, "add") == 0   ? v + u
           : strcmp(how, "mul") == 0 ? v * u
           : strcmp(how, "max") == 0 ? fmax(v, u)
           : strcmp(how, "min") == 0 ? fmin(v, u)
                                     : u;
}

static void expect_scattered(const struct gathering *g, const struct gradcheck_case *gc,
                             const char *how)
{
    struct gradcheck_result r;
    struct err err = { 0 };
    double want[128];
    size_t n, i;

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s: %s", g->op, err.text);
    n = (size_t)tensor_elements(&r.in[0]);
    assert_true(n <= COUNT_OF(want));
    for (i = 0; i < n; i++)
        want[i] = oracle_at(&r.in[0], i);
    for (i = 0; i < (size_t)tensor_elements(&r.in[2]); i++) {
        int64_t to[TENSOR_MAX_RANK], at[TENSOR_MAX_RANK];
        double *v;

        unravel(&g->out, i, to);
        place(g, &r.in[1], to, at);
        v = &want[ravel(&g->data, at)];
        *v = reduce(how, *v, oracle_at(&r.in[2], i));
    }
    for (i = 0; i < n; i++)
        if (!(fabs(oracle_at(&r.out[0], i) - want[i]) <= 5e-7 * (1 + fabs(want[i]))))
            fail_msg("%s %s: element %zu is %g, expected %g", g->op, how, i,
                     oracle_at(&r.out[0], i), want[i]);
    gradcheck_free(&r);
}

static void scatter_applies_updates_in_order_and_backward_undoes_them(void **state)
{
    static const char *const hows[] = { "none", "add", "mul", "max", "min" };
    static const enum tensor_dtype types[] = { TENSOR_I32, TENSOR_I64, TENSOR_F32 };
    static float updates[128];
    size_t i, h, t;

    (void)state;
    for (i = 0; i < COUNT_OF(updates); i++) /* distinct from each other and from the data: kinks */
        updates[i] = (float)((i * 37) % 128) / 64 - 0.995f;
    for (i = 0; i < COUNT_OF(scatterings); i++)
        for (h = 0; h < COUNT_OF(hows); h++) {
            const struct gathering *g = &scatterings[i];
            struct op_attr attrs[2] = { STRING("reduction", hows[h]), g->attr };
            struct gradcheck_case gc = gathering_case(g);

            gc.opset = 18;
            gc.attrs = attrs;
            gc.n_attrs = g->kind == ELEMENTS ? 2 : 1;
            gc.n_in = 3;
            gc.in[1].lo = g->kind == ND && g->data.rank > 1 ? -4 : gc.in[1].lo;
            gc.in[1].hi = g->kind == ND && g->data.rank > 1 ? 4 : gc.in[1].hi;
            for (t = 0; t < COUNT_OF(types); t++) {
                gc.in[0] = (struct gradcheck_tensor){ .dtype = types[t], .shape = g->data,
                                                      .lo = -5, .hi = 5 };
                gc.in[2] = (struct gradcheck_tensor){ .dtype = types[t], .shape = g->out, .lo = -5,
                                                      .hi = 5 };
                expect_scattered(g, &gc, hows[h]);
            }
            gc.in[0] = (struct gradcheck_tensor){ .shape = g->data, .apart = true };
            gc.in[2] = (struct gradcheck_tensor){ .shape = g->out, .data = updates };
            gc.step = 1e-3;
            gradcheck_run(&gc);
        }
}

static void many_updates_of_few_elements_are_applied_and_undone(void **state)
{
    static const char *const hows[] = { "none", "add", "mul" };
    struct op_attr how = STRING("reduction", NULL);
    struct gradcheck_case gc = { .op = "ScatterND", .opset = 18, .attrs = &how, .n_attrs = 1,
                                 .n_in = 3, .probes = 3,
                                 .in = { { .shape = GRADCHECK_SHAPE(300, 2), .lo = 0.9, .hi = 1.1 },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1500, 1),
                                           .lo = -300, .hi = 300 },
                                         { .shape = GRADCHECK_SHAPE(1500, 2), .lo = 0.9,
                                           .hi = 1.1 } } };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(hows); i++) {
        how.s = hows[i];
        gradcheck_run(&gc);
    }
}

static void scatter_index_out_of_range_is_rejected_with_position(void **state)
{
    static const int64_t at[3] = { 1, 7, 2 };
    static const float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, u[6] = { -1, -2, -3, -4, -5, -6 };
    struct gradcheck_case gc = { .op = "ScatterND", .opset = 18, .n_in = 3,
                                 .in = { { .shape = GRADCHECK_SHAPE(4, 2), .data = x },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3, 1),
                                           .data = at },
                                         { .shape = GRADCHECK_SHAPE(3, 2), .data = u } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "index 1 is 7; the axis has 4 elements");
}

static void scatter_with_inconsistent_updates_is_rejected(void **state)
{
    static const struct op_attr max = STRING("reduction", "max"), add = STRING("reduction", "add");
    struct gradcheck_case gc = { .op = "ScatterND", .opset = 16, .attrs = &max, .n_in = 3,
                                 .in = { { .shape = GRADCHECK_SHAPE(4, 3) },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2, 1) },
                                         { .shape = GRADCHECK_SHAPE(2, 4) } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "updates have shape [2, 4]; expected [2, 3]");
    gc.in[2].shape = shape_of(2, (int64_t)2, (int64_t)3);
    gc.n_attrs = 1;
    oracle_refused(&gc, ERR_INPUT, "reduction is 'max'; expected none, add, mul");
    gc.attrs = &add;
    gc.in[0].dtype = gc.in[2].dtype = TENSOR_U8;
    oracle_refused(&gc, ERR_UNSUPPORTED, "reduction add of uint8");
    gc.in[2].dtype = TENSOR_F32;
    oracle_refused(&gc, ERR_INPUT, "data are uint8, updates float32");
}

/* ---- Cast ---- */

static const struct cast {
    enum tensor_dtype from, to;
    double in[6], out[6];
} casts[] = {
    { TENSOR_F32, TENSOR_I64, { 1.9f, -1.9f, 0, 1e30, -1e30, NAN },
      { 1, -1, 0, 0x1p63, -0x1p63, 0 } },
    { TENSOR_F32, TENSOR_I32, { 1.9f, -1.9f, 5, 1e30, -1e30, NAN },
      { 1, -1, 5, INT32_MAX, INT32_MIN, 0 } },
    { TENSOR_F32, TENSOR_U8, { 1.9f, -1.9f, 5, 1e30, 256, 255 }, { 1, 0, 5, 255, 255, 255 } },
    { TENSOR_F32, TENSOR_BOOL, { 0, -0.0, 0.5, -3, INFINITY, NAN }, { 0, 0, 1, 1, 1, 1 } },
    { TENSOR_F32, TENSOR_F64, { 0.5, 1e30f, -3, 0, INFINITY, NAN },
      { 0.5, 1e30f, -3, 0, INFINITY, NAN } },
    { TENSOR_F64, TENSOR_F32, { 0.5, 1.0 / 3, -3, 1e300, 0, NAN },
      { 0.5, (float)(1.0 / 3), -3, INFINITY, 0, NAN } },
    { TENSOR_I64, TENSOR_F32, { 1, -7, 1 << 24, 0x1000001p0, 0, 0x1p40 },
      { 1, -7, 1 << 24, 1 << 24, 0, 0x1p40 } },
    { TENSOR_I64, TENSOR_I32, { 1, -7, 0x1p32 + 5, -0x1p31 - 1, 0, 9 },
      { 1, -7, 5, INT32_MAX, 0, 9 } },
    { TENSOR_I64, TENSOR_BOOL, { 0, 1, 256, -1, 2, 0 }, { 0, 1, 1, 1, 1, 0 } },
    { TENSOR_I32, TENSOR_I64, { 0, 1, 256, -1, 2, 0 }, { 0, 1, 256, -1, 2, 0 } },
    { TENSOR_BOOL, TENSOR_F32, { 0, 1, 1, 0, 0, 1 }, { 0, 1, 1, 0, 0, 1 } },
    { TENSOR_BOOL, TENSOR_I64, { 0, 1, 1, 0, 0, 1 }, { 0, 1, 1, 0, 0, 1 } },
    { TENSOR_U8, TENSOR_F32, { 0, 1, 255, 7, 0, 1 }, { 0, 1, 255, 7, 0, 1 } },
    { TENSOR_I64, TENSOR_F64, { 0x1p53, -0x1p62, 1, 0, -1, 3 }, { 0x1p53, -0x1p62, 1, 0, -1, 3 } },
    { TENSOR_F32, TENSOR_U64, { 1.9f, -1.9f, 0x1p63f, 1e30, -1e30, NAN },
      { 1, 0, 0x1p63, 0x1p64, 0, 0 } },
    { TENSOR_U64, TENSOR_F32, { 1, 0x1p63, 0x1p63 + 0x1p39, 0x1p63 + 0x1p39 + 0x1p11, 0, 7 },
      { 1, 0x1p63, 0x1p63, 0x1p63 + 0x1p40, 0, 7 } },
    /* rounded once: through float32 or double these would be ties */
    { TENSOR_F64, TENSOR_F16, { 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11, 1 + 3 * 0x1p-11, 65519.999,
                                65520, -1e9 },
      { 1 + 0x1p-10, 1, 1 + 0x1p-9, 65504, INFINITY, -INFINITY } },
    { TENSOR_F64, TENSOR_BF16, { 1 + 0x1p-8 + 0x1p-40, 0x1p-134, 0x1.8p-134, 0x1p-133, 3.4e38,
                                 1e300 },
      { 1 + 0x1p-7, 0, 0x1p-133, 0x1p-133, INFINITY, INFINITY } },
    { TENSOR_I64, TENSOR_F16, { 65504, 65520, -65519, 2049, 2051, 0 },
      { 65504, INFINITY, -65504, 2048, 2052, 0 } },
    { TENSOR_F16, TENSOR_I64, { 1.5, -2.5, 65504, INFINITY, NAN, 0 },
      { 1, -2, 65504, 0x1p63, 0, 0 } },
    { TENSOR_BF16, TENSOR_F16, { 1.5, -0x1p-133, 0x1p-24, INFINITY, NAN, 0x1p16 },
      { 1.5, 0, 0x1p-24, INFINITY, NAN, INFINITY } },
    { TENSOR_BOOL, TENSOR_F16, { 0, 1, 1, 0, 0, 1 }, { 0, 1, 1, 0, 0, 1 } },
    { TENSOR_F32, TENSOR_F32, { 0.5, -1, 255, 7, 0, NAN }, { 0.5, -1, 255, 7, 0, NAN } },
};

/* Finds the code of a 16-bit float by trying all codes. */
static uint16_t code_of(enum tensor_dtype t, double v)
{
    uint32_t code;

    for (code = 0; code < 65536; code++) {
        uint16_t one = (uint16_t)code;
        const struct tensor x = { .dtype = t, .data = &one };
        double is = oracle_at(&x, 0);

        if (isnan(v) ? isnan(is) : is == v)
            return one;
    }
    fail_msg("%g is no %s", v, tensor_dtype_name(t));
    return 0;
}

static void fill(enum tensor_dtype t, const double *v, void *data)
{
    size_t i;

    for (i = 0; i < 6; i++)
        switch ((int)t) {
        case TENSOR_F32: ((float *)data)[i] = (float)v[i]; break;
        case TENSOR_F64: ((double *)data)[i] = v[i]; break;
        case TENSOR_I64: ((int64_t *)data)[i] = (int64_t)v[i]; break;
        case TENSOR_I32: ((int32_t *)data)[i] = (int32_t)v[i]; break;
        case TENSOR_U64: ((uint64_t *)data)[i] = (uint64_t)v[i]; break;
        case TENSOR_F16:
        case TENSOR_BF16: ((uint16_t *)data)[i] = code_of(t, v[i]); break;
        default: ((uint8_t *)data)[i] = (uint8_t)v[i]; break;
        }
}

static void cast_rounds_to_nearest_representable_value(void **state)
{
    static const double like[2];
    size_t i, k;

    (void)state;
    for (i = 0; i < 2 * COUNT_OF(casts); i++) {
        const struct cast *c = &casts[i / 2];
        const struct op_attr to = INT("to", c->to);
        struct gradcheck_case gc = { .op = i % 2 == 0 ? "Cast" : "CastLike", .opset = 15,
                                     .attrs = &to, .n_attrs = i % 2 == 0, .n_in = 1 + i % 2 };
        struct gradcheck_result r;
        struct err err = { 0 };
        double in[6];

        fill(c->from, c->in, in);
        gc.in[0] = (struct gradcheck_tensor){ .dtype = c->from, .shape = GRADCHECK_SHAPE(3, 2),
                                              .data = in };
        gc.in[1] = (struct gradcheck_tensor){ .dtype = c->to, .shape = GRADCHECK_SHAPE(2),
                                              .data = like };
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        assert_int_equal(r.out[0].dtype, c->to);
        for (k = 0; k < 6; k++) {
            double got = oracle_at(&r.out[0], k);

            if (isnan(c->out[k]) ? !isnan(got) : got != c->out[k])
                fail_msg("%g from %s to %s is %g, expected %g", c->in[k],
                         tensor_dtype_name(c->from), tensor_dtype_name(c->to), got, c->out[k]);
        }
        gradcheck_free(&r);
    }
}

/* Casts x [n] to `to`; the caller frees the result. */
static struct gradcheck_result cast(enum tensor_dtype from, enum tensor_dtype to, const void *x,
                                    int64_t n)
{
    const struct op_attr attr = INT("to", to);
    struct gradcheck_case gc = { .op = "Cast", .opset = 13, .attrs = &attr, .n_attrs = 1, .n_in = 1,
                                 .in = { { .dtype = from, .shape = GRADCHECK_SHAPE(n),
                                           .data = x } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    return r;
}

static void cast_of_every_16_bit_float_round_trips_and_midpoints_round_to_even(void **state)
{
    enum { N = 65536 };
    static const enum tensor_dtype types[2] = { TENSOR_F16, TENSOR_BF16 };
    static uint16_t codes[N];
    static float between[3 * N];
    size_t t, i, n;

    (void)state;
    for (i = 0; i < N; i++)
        codes[i] = (uint16_t)i;
    for (t = 0; t < 2; t++) {
        struct gradcheck_result wide = cast(types[t], TENSOR_F32, codes, N), back, near;
        const float *v = wide.out[0].data;
        const uint16_t *got;

        back = cast(TENSOR_F32, types[t], v, N);
        for (i = 0; i < N; i++) {
            double want = oracle_at(&wide.in[0], i);
            uint16_t again = ((const uint16_t *)back.out[0].data)[i];

            if (isnan(want) ? !isnan(v[i]) || !isnan(oracle_at(&back.out[0], i))
                            : (double)v[i] != want || again != i)
                fail_msg("%s %#zx became %g and %#x", tensor_dtype_name(types[t]), i, (double)v[i],
                         again);
        }
        /* the midpoints between adjacent codes, and the floats on both sides of them */
        for (i = n = 0; i + 1 < N; i++)
            if (isfinite(v[i]) && isfinite(v[i + 1]) && (i ^ (i + 1)) < 0x8000) {
                between[n] = v[i] / 2 + v[i + 1] / 2;
                between[n + 1] = nextafterf(between[n], v[i]);
                between[n + 2] = nextafterf(between[n], v[i + 1]);
                n += 3;
            }
        near = cast(TENSOR_F32, types[t], between, (int64_t)n);
        got = near.out[0].data;
        for (i = n = 0; i + 1 < N; i++)
            if (isfinite(v[i]) && isfinite(v[i + 1]) && (i ^ (i + 1)) < 0x8000) {
                if (got[n] != i + i % 2 || got[n + 1] != i || got[n + 2] != i + 1)
                    fail_msg("beside the middle of %s %#zx and the next: %#x %#x %#x",
                             tensor_dtype_name(types[t]), i, got[n], got[n + 1], got[n + 2]);
                n += 3;
            }
        gradcheck_free(&wide);
        gradcheck_free(&back);
        gradcheck_free(&near);
    }
}

static void cast_passes_gradients_of_floats_and_rejects_unknown_types(void **state)
{
    static const struct op_attr to = INT("to", TENSOR_F32), text = INT("to", 8),
                                none = INT("to", 99);
    struct gradcheck_case gc = { .op = "Cast", .opset = 13, .attrs = &to, .n_attrs = 1, .n_in = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3, 300) } } };

    (void)state;
    gradcheck_run(&gc);
    gc.attrs = &text;
    oracle_refused(&gc, ERR_UNSUPPORTED, "supported are float16, bfloat16, float32");
    gc.attrs = &none;
    oracle_refused(&gc, ERR_UNSUPPORTED, "to type 99");
}

/* ---- ops of shapes and constants ---- */

static void shape_and_size_read_no_data(void **state)
{
    static const struct op_attr span[] = { INT("start", 1), INT("end", -1) };
    static const struct op_attr far[] = { INT("start", -9), INT("end", 9) };
    static const int64_t dims[4] = { 2, 3, 4, 5 }, size = 120;
    const struct shape four = GRADCHECK_SHAPE(4), two = GRADCHECK_SHAPE(2), scalar = { 0 };
    struct gradcheck_case gc = { .op = "Shape", .opset = 13, .n_in = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3, 4, 5) } } };

    (void)state;
    assert_true(op_find(NULL, "Shape", 13)->of_shape && op_find(NULL, "Size", 13)->of_shape);
    oracle_ints(&gc, &four, dims);
    gc.opset = 15;
    oracle_ints(&gc, &four, dims);
    gc.attrs = span;
    gc.n_attrs = 2;
    oracle_ints(&gc, &two, dims + 1);
    gc.attrs = far;
    oracle_ints(&gc, &four, dims);
    gc.op = "Size";
    gc.n_attrs = 0;
    oracle_ints(&gc, &scalar, &size);
}

static void generator_ops_build_tensors_from_small_inputs(void **state)
{
    static const int64_t dims[2] = { 2, 3 }, sevens[6] = { 7, 7, 7, 7, 7, 7 };
    static const int64_t range[3] = { 7, 4, 1 };
    static const float zeros[6] = { 0 }, floats[4] = { 0.5f, 0.75f, 1, 1.25f };
    static const int64_t from = 7, to = -1, by = -3, seven = 7, none = 0;
    static const float f_from = 0.5f, f_to = 1.5f, f_by = 0.25f;
    static const float eye[6] = { 0, 1, 0, 0, 0, 1 };
    static const int64_t below[6] = { 0, 0, 0, 1, 0, 0 };
    struct tensor value = { .dtype = TENSOR_I64, .data = (void *)(uintptr_t)&seven };
    const struct op_attr attr = { .name = "value", .type = OP_ATTR_TENSOR, .tensor = &value };
    static const struct op_attr above[] = { INT("k", 1) };
    static const struct op_attr under[] = { INT("k", -1), INT("dtype", TENSOR_I64) };
    const struct shape two_three = GRADCHECK_SHAPE(2, 3), three = GRADCHECK_SHAPE(3),
                       four = GRADCHECK_SHAPE(4);
    struct gradcheck_case gc = { .op = "ConstantOfShape", .opset = 13, .n_in = 1, .attrs = &attr,
                                 .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2),
                                           .data = dims, .constant = true } } };

    (void)state;
    oracle_floats(&gc, &two_three, zeros);
    gc.n_attrs = 1;
    oracle_ints(&gc, &two_three, sevens);
    gc.in[0].constant = false;
    oracle_refused(&gc, ERR_UNSUPPORTED, "must be a constant of the model");
    gc = (struct gradcheck_case){ .op = "Range", .opset = 11, .n_in = 3,
                                  .in = { { .dtype = TENSOR_I64, .data = &from, .constant = true },
                                          { .dtype = TENSOR_I64, .data = &to, .constant = true },
                                          { .dtype = TENSOR_I64, .data = &by,
                                            .constant = true } } };
    oracle_ints(&gc, &three, range);
    gc.in[2].data = &none;
    oracle_refused(&gc, ERR_INPUT, "by 0 is infinite");
    gc.in[0] = (struct gradcheck_tensor){ .data = &f_from, .constant = true };
    gc.in[1] = (struct gradcheck_tensor){ .data = &f_to, .constant = true };
    gc.in[2] = (struct gradcheck_tensor){ .data = &f_by, .constant = true };
    oracle_floats(&gc, &four, floats);
    gc = (struct gradcheck_case){ .op = "EyeLike", .opset = 9, .n_in = 1, .attrs = above,
                                  .n_attrs = 1, .in = { { .shape = GRADCHECK_SHAPE(2, 3) } } };
    oracle_floats(&gc, &two_three, eye);
    gc.attrs = under;
    gc.n_attrs = 2;
    oracle_ints(&gc, &two_three, below);
}

static void non_zero_and_one_hot_follow_definition(void **state)
{
    static const float x[6] = { 0, 1, 0, NAN, -2, 0 };
    static const int64_t places[6] = { 0, 1, 1, 1, 0, 1 };
    static const int64_t at[3] = { 1, -1, 5 }, depth = 3;
    static const float values[2] = { -1, 4 };
    static const float last[9] = { -1, 4, -1, -1, -1, 4, -1, -1, -1 };
    static const float first[9] = { -1, -1, -1, 4, -1, -1, -1, 4, -1 };
    static const struct op_attr zero = INT("axis", 0);
    const struct shape two_three = GRADCHECK_SHAPE(2, 3), square = GRADCHECK_SHAPE(3, 3);
    struct gradcheck_case gc = { .op = "NonZero", .opset = 13, .n_in = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3), .data = x,
                                           .constant = true } } };

    (void)state;
    oracle_ints(&gc, &two_three, places);
    gc.in[0].constant = false;
    oracle_refused(&gc, ERR_UNSUPPORTED, "must be a constant");
    gc = (struct gradcheck_case){ .op = "OneHot", .opset = 11, .n_in = 3, .attrs = &zero,
                                  .in = { { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3),
                                            .data = at },
                                          { .dtype = TENSOR_I64, .data = &depth, .constant = true },
                                          { .shape = GRADCHECK_SHAPE(2), .data = values } } };
    oracle_floats(&gc, &square, last);
    gc.n_attrs = 1;
    oracle_floats(&gc, &square, first);
    gc.in[2].shape.dim[0] = 1;
    oracle_refused(&gc, ERR_INPUT, "values has 1 elements; expected 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_follows_definition_and_accumulates_gradients),
        cmocka_unit_test(embedding_gradient_sums_in_order_of_indices),
        cmocka_unit_test(gather_index_out_of_range_is_rejected_with_position),
        cmocka_unit_test(large_table_gradient_sums_per_row),
        cmocka_unit_test(padding_row_has_no_gradient),
        cmocka_unit_test(remote_table_is_read_and_updated_by_slot),
        cmocka_unit_test(inconsistent_index_shapes_are_rejected),
        cmocka_unit_test(scatter_applies_updates_in_order_and_backward_undoes_them),
        cmocka_unit_test(many_updates_of_few_elements_are_applied_and_undone),
        cmocka_unit_test(scatter_index_out_of_range_is_rejected_with_position),
        cmocka_unit_test(scatter_with_inconsistent_updates_is_rejected),
        cmocka_unit_test(cast_rounds_to_nearest_representable_value),
        cmocka_unit_test(cast_of_every_16_bit_float_round_trips_and_midpoints_round_to_even),
        cmocka_unit_test(cast_passes_gradients_of_floats_and_rejects_unknown_types),
        cmocka_unit_test(shape_and_size_read_no_data),
        cmocka_unit_test(generator_ops_build_tensors_from_small_inputs),
        cmocka_unit_test(non_zero_and_one_hot_follow_definition),
    };

    return cmocka_run_group_tests_name("op/gather", tests, NULL, NULL);
}
