#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

/* Ops that only move data are judged by a function from a place in output 0 to one in an input:
 * `to` and `from` are indices along each axis. Returns the input, or -1 for the fill value 0. */
typedef int from_fn(const void *arg, const int64_t *to, int64_t *from);

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

static void expect_moved(const struct gradcheck_case *gc, const struct shape *shape, from_fn *from,
                         const void *arg)
{
    struct gradcheck_result r;
    struct err err = { 0 };
    char got[192], want[192];
    size_t n, i;

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s: %s", gc->op, err.text);
    if (!shape_equal(&r.out[0].shape, shape))
        fail_msg("%s: shape %s, expected %s", gc->op,
                 shape_print(&r.out[0].shape, got, sizeof(got)),
                 shape_print(shape, want, sizeof(want)));
    assert_int_equal(r.out[0].dtype, r.in[0].dtype);
    n = (size_t)tensor_elements(&r.out[0]);
    for (i = 0; i < n; i++) {
        int64_t to[TENSOR_MAX_RANK], at[TENSOR_MAX_RANK];
        double is = oracle_at(&r.out[0], i), should = 0;
        int which;

        unravel(shape, i, to);
        which = from(arg, to, at);
        if (which >= 0)
            should = oracle_at(&r.in[which], ravel(&r.in[which].shape, at));
        if (is != should)
            fail_msg("%s: element %zu of %s is %g, expected %g", gc->op, i,
                     shape_print(shape, got, sizeof(got)), is, should);
    }
    gradcheck_free(&r);
}

/* For every size of element, in both layouts where the row takes them, and the gradients. */
static void check_moved(struct gradcheck_case *gc, uint32_t n_data, const struct shape *shape,
                        from_fn *from, const void *arg)
{
    static const enum tensor_dtype types[] = { TENSOR_U8, TENSOR_I32, TENSOR_I64, TENSOR_F32 };
    size_t t;
    uint32_t k;

    for (t = 0; t < COUNT_OF(types); t++) {
        for (k = 0; k < n_data; k++) {
            gc->in[k].dtype = types[t];
            gc->in[k].lo = types[t] == TENSOR_F32 ? -1 : 1;
            gc->in[k].hi = types[t] == TENSOR_F32 ? 1 : 100;
        }
        gc->layout = TENSOR_PLAIN;
        expect_moved(gc, shape, from, arg);
        gc->layout = TENSOR_CHANNELS_LAST;
        expect_moved(gc, shape, from, arg);
        gc->layout = TENSOR_PLAIN;
    }
    gradcheck_run(gc);
}

#define INTS(name_, ...)                                                                           \
    { .name = (name_), .type = OP_ATTR_INTS, .ints = (const int64_t[]){ __VA_ARGS__ },             \
      .n = sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t) }
#define INT(name_, i_) { .name = (name_), .type = OP_ATTR_INT, .i = (i_) }
#define STRING(name_, s_) { .name = (name_), .type = OP_ATTR_STRING, .s = (s_) }

/* A constant list of integers. */
static struct gradcheck_tensor list(const int64_t *values, int64_t n)
{
    return (struct gradcheck_tensor){ .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(n),
                                      .data = values, .constant = true };
}

/* ---- Transpose ---- */

struct permuted {
    struct shape in, out;
    struct op_attr perm;
    bool reversed;
};

static int from_permuted(const void *arg, const int64_t *to, int64_t *from)
{
    const struct permuted *p = arg;
    uint32_t k;

    for (k = 0; k < p->in.rank; k++)
        from[p->reversed ? p->in.rank - 1 - k : (uint32_t)p->perm.ints[k]] = to[k];
    return 0;
}

static void transpose_puts_axes_where_perm_says(void **state)
{
    const struct permuted samples[] = {
        { GRADCHECK_SHAPE(3, 5), GRADCHECK_SHAPE(5, 3), INTS("perm", 1, 0), false },
        { GRADCHECK_SHAPE(67, 41), GRADCHECK_SHAPE(41, 67), INTS("perm", 0), true },
        { GRADCHECK_SHAPE(2, 7, 3, 5), GRADCHECK_SHAPE(2, 3, 7, 5), INTS("perm", 0, 2, 1, 3), false },
        { GRADCHECK_SHAPE(2, 3, 5, 7), GRADCHECK_SHAPE(2, 3, 7, 5), INTS("perm", 0, 1, 3, 2), false },
        { GRADCHECK_SHAPE(2, 3, 5, 7), GRADCHECK_SHAPE(2, 5, 7, 3), INTS("perm", 0, 2, 3, 1), false },
        { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(5, 4, 3, 2), INTS("perm", 0), true },
        { GRADCHECK_SHAPE(2, 1, 3, 1, 2, 2, 1, 3), GRADCHECK_SHAPE(3, 2, 1, 2, 1, 3, 1, 2),
          INTS("perm", 7, 4, 6, 5, 1, 2, 3, 0), false },
        { GRADCHECK_SHAPE(4), GRADCHECK_SHAPE(4), INTS("perm", 0), false },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(3, 0), INTS("perm", 1, 0), false },
        { { 0 }, { 0 }, INTS("perm", 0), true },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        struct gradcheck_case gc = { .op = "Transpose", .opset = 13, .attrs = &samples[i].perm,
                                     .n_attrs = !samples[i].reversed, .n_in = 1,
                                     .in = { { .shape = samples[i].in } } };

        check_moved(&gc, 1, &samples[i].out, from_permuted, &samples[i]);
    }
}

static void transpose_refuses_what_is_no_permutation(void **state)
{
    const struct op_attr twice = INTS("perm", 0, 0), far = INTS("perm", 0, 2),
                         few = INTS("perm", 0);
    struct gradcheck_case gc = { .op = "Transpose", .opset = 13, .n_attrs = 1, .n_in = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3) } } };

    (void)state;
    gc.attrs = &twice;
    oracle_refused(&gc, ERR_INPUT, "perm has 0 at 1");
    gc.attrs = &far;
    oracle_refused(&gc, ERR_INPUT, "perm has 2 at 1");
    gc.attrs = &few;
    oracle_refused(&gc, ERR_INPUT, "perm has 1 axes; the input has 2");
}

/* ---- DepthToSpace, SpaceToDepth ---- */

struct blocks {
    int64_t side, channels; /* of the wide side */
    bool outside, to_depth;
};

static int from_blocks(const void *arg, const int64_t *to, int64_t *from)
{
    const struct blocks *b = arg;
    int64_t s = b->side, i, j;

    from[0] = to[0];
    if (b->to_depth) {
        i = to[1] / b->channels / s;
        j = to[1] / b->channels % s;
        from[1] = to[1] % b->channels;
        from[2] = to[2] * s + i;
        from[3] = to[3] * s + j;
        return 0;
    }
    i = to[2] % s;
    j = to[3] % s;
    from[1] = b->outside ? (to[1] * s + i) * s + j : (i * s + j) * b->channels + to[1];
    from[2] = to[2] / s;
    from[3] = to[3] / s;
    return 0;
}

static void pixels_and_channels_change_places(void **state)
{
    static const struct op_attr attrs[] = { INT("blocksize", 2), STRING("mode", "CRD") };
    static const struct op_attr three[] = { INT("blocksize", 3) };
    const struct blocks dcr = { 2, 3, false, false }, crd = { 2, 3, true, false },
                        depth = { 3, 2, false, true };
    const struct shape wide = GRADCHECK_SHAPE(2, 3, 10, 14), deep = GRADCHECK_SHAPE(2, 18, 2, 3);
    struct gradcheck_case gc = { .op = "DepthToSpace", .opset = 13, .attrs = attrs, .n_attrs = 1,
                                 .n_in = 1, .in = { { .shape = GRADCHECK_SHAPE(2, 12, 5, 7) } } };

    (void)state;
    check_moved(&gc, 1, &wide, from_blocks, &dcr);
    gc.n_attrs = 2;
    check_moved(&gc, 1, &wide, from_blocks, &crd);
    gc.op = "SpaceToDepth";
    gc.attrs = three;
    gc.n_attrs = 1;
    gc.in[0].shape = shape_of(4, (int64_t)2, (int64_t)2, (int64_t)6, (int64_t)9);
    check_moved(&gc, 1, &deep, from_blocks, &depth);
    gc.in[0].shape.dim[3] = 10;
    oracle_refused(&gc, ERR_INPUT, "6 x 10 pixels do not divide into blocks of 3");
    gc.op = "DepthToSpace";
    oracle_refused(&gc, ERR_INPUT, "2 channels do not divide into blocks of 3 x 3");
}

/* ---- Concat ---- */

struct joined {
    struct shape in[4], out;
    uint32_t n;
    struct op_attr axis;
};

static int from_joined(const void *arg, const int64_t *to, int64_t *from)
{
    const struct joined *j = arg;
    int64_t axis = j->axis.i < 0 ? j->axis.i + j->out.rank : j->axis.i;
    uint32_t i = 0;

    memcpy(from, to, j->out.rank * sizeof(*from));
    for (; from[axis] >= j->in[i].dim[axis]; i++)
        from[axis] -= j->in[i].dim[axis];
    return (int)i;
}

static void concat_puts_inputs_behind_each_other(void **state)
{
    static const struct joined samples[] = {
        { { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(1), GRADCHECK_SHAPE(0), GRADCHECK_SHAPE(4) },
          GRADCHECK_SHAPE(8), 4, INT("axis", 0) },
        { { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 7, 4, 5) }, GRADCHECK_SHAPE(2, 10, 4, 5),
          2, INT("axis", 1) },
        { { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 4, 2), GRADCHECK_SHAPE(2, 3, 4, 1) },
          GRADCHECK_SHAPE(2, 3, 4, 8), 3, INT("axis", -1) },
        { { GRADCHECK_SHAPE(2, 3, 5), GRADCHECK_SHAPE(1, 3, 5) }, GRADCHECK_SHAPE(3, 3, 5), 2,
          INT("axis", -3) },
        { { GRADCHECK_SHAPE(2, 3) }, GRADCHECK_SHAPE(2, 3), 1, INT("axis", 1) },
    };
    size_t i;
    uint32_t k;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        struct gradcheck_case gc = { .op = "Concat", .opset = 13, .attrs = &samples[i].axis,
                                     .n_attrs = 1, .n_in = samples[i].n };

        for (k = 0; k < samples[i].n; k++)
            gc.in[k].shape = samples[i].in[k];
        check_moved(&gc, samples[i].n, &samples[i].out, from_joined, &samples[i]);
    }
}

static void concat_refuses_pieces_that_do_not_fit(void **state)
{
    static const struct op_attr axis = INT("axis", 0), far = INT("axis", 2);
    struct gradcheck_case gc = { .op = "Concat", .opset = 13, .n_attrs = 1, .attrs = &axis,
                                 .n_in = 2, .in = { { .shape = GRADCHECK_SHAPE(2, 3) },
                                                    { .shape = GRADCHECK_SHAPE(2, 4) } } };

    (void)state;
    oracle_refused(&gc, ERR_INPUT, "shapes [2, 3] and [2, 4]; they may differ along axis 0 only");
    gc.in[1].dtype = TENSOR_I64;
    oracle_refused(&gc, ERR_INPUT, "inputs are float32 and int64");
    gc.attrs = &far;
    oracle_refused(&gc, ERR_INPUT, "axis is 2; expected -2 to 1");
    gc.n_attrs = 0;
    oracle_refused(&gc, ERR_INPUT, "attribute 'axis' is missing");
}

/* ---- Split ---- */

static const struct split {
    uint32_t opset;
    struct shape in;
    int64_t axis;
    int64_t sizes[4]; /* given unless `by_itself` */
    uint32_t n;
    bool by_itself, num_outputs;
} splits[] = {
    { 11, GRADCHECK_SHAPE(2, 9, 3), 1, { 2, 3, 4 }, 3, false, false },
    { 11, GRADCHECK_SHAPE(2, 9, 3), -2, { 3, 3, 3 }, 3, true, false },
    { 13, GRADCHECK_SHAPE(2, 3, 8), -1, { 1, 0, 7 }, 3, false, false },
    { 13, GRADCHECK_SHAPE(6), 0, { 3, 3 }, 2, true, false },
    { 18, GRADCHECK_SHAPE(7, 2), 0, { 3, 3, 1 }, 3, true, true },
    { 18, GRADCHECK_SHAPE(2, 6, 4, 5), 1, { 4, 2 }, 2, false, false },
    { 18, GRADCHECK_SHAPE(5), 0, { 5 }, 1, true, true },
};

static void make_split(const struct split *s, struct op_attr *attrs, struct gradcheck_case *gc)
{
    *gc = (struct gradcheck_case){ .op = "Split", .opset = s->opset, .attrs = attrs, .n_attrs = 1,
                                   .n_in = 1, .n_out = s->n, .in = { { .shape = s->in } } };
    attrs[0] = (struct op_attr)INT("axis", s->axis);
    if (s->num_outputs)
        attrs[gc->n_attrs++] = (struct op_attr)INT("num_outputs", s->n);
    if (s->by_itself)
        return;
    if (s->opset < 13)
        attrs[gc->n_attrs++] = (struct op_attr){ .name = "split", .type = OP_ATTR_INTS,
                                                 .ints = s->sizes, .n = s->n };
    else
        gc->in[gc->n_in++] = list(s->sizes, s->n);
}

static void split_hands_out_pieces_and_collects_their_gradients(void **state)
{
    size_t i, n, e;
    uint32_t k;

    (void)state;
    for (i = 0; i < COUNT_OF(splits); i++) {
        const struct split *s = &splits[i];
        int64_t axis = s->axis < 0 ? s->axis + s->in.rank : s->axis, start = 0;
        struct op_attr attrs[3];
        struct gradcheck_case gc;
        struct gradcheck_result r;
        struct err err = { 0 };

        make_split(s, attrs, &gc);
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        for (k = 0; k < s->n; k++) {
            assert_int_equal(r.out[k].shape.dim[axis], s->sizes[k]);
            n = (size_t)tensor_elements(&r.out[k]);
            for (e = 0; e < n; e++) {
                int64_t at[TENSOR_MAX_RANK];

                unravel(&r.out[k].shape, e, at);
                at[axis] += start;
                assert_true(oracle_at(&r.out[k], e) ==
                            oracle_at(&r.in[0], ravel(&r.in[0].shape, at)));
            }
            start += s->sizes[k];
        }
        gradcheck_free(&r);
        gradcheck_run(&gc);
        for (k = 0; k < s->n; k++) { /* a piece that nobody reads, or that gets no gradient */
            gc.unread = OP_OUT(k);
            gradcheck_run(&gc);
            gc.unread = 0;
            gc.no_dout = OP_OUT(k);
            gradcheck_run(&gc);
            gc.no_dout = 0;
        }
    }
}

static void split_refuses_sizes_that_do_not_add_up(void **state)
{
    static const struct {
        struct split s;
        const char *part;
    } samples[] = {
        { { 13, GRADCHECK_SHAPE(5), 0, { 2, 2 }, 2, false, false }, "leaves 1 elements of axis 0" },
        { { 13, GRADCHECK_SHAPE(5), 0, { 2, 4 }, 2, false, false }, "asks for 4 elements" },
        { { 13, GRADCHECK_SHAPE(5), 0, { -1, 6 }, 2, false, false }, "asks for -1 elements" },
        { { 13, GRADCHECK_SHAPE(5), 0, { 0 }, 2, true, false }, "do not divide into 2 pieces" },
        { { 18, GRADCHECK_SHAPE(2), 0, { 0 }, 4, true, true }, "do not divide into 4 pieces" },
        { { 11, GRADCHECK_SHAPE(5), 1, { 0 }, 1, true, false }, "axis is 1; expected -1 to 0" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        struct op_attr attrs[3];
        struct gradcheck_case gc;

        make_split(&samples[i].s, attrs, &gc);
        oracle_refused(&gc, ERR_INPUT, samples[i].part);
    }
}

/* ---- Slice ---- */

struct sliced {
    struct shape in, out;
    uint32_t n;
    int64_t start[3], end[3], axis[3], step[3]; /* axis[0] 99: no axes; step[0] 0: no steps */
    int64_t first[TENSOR_MAX_RANK], by[TENSOR_MAX_RANK]; /* what Python makes of it; by 0: 1 */
};

static int from_sliced(const void *arg, const int64_t *to, int64_t *from)
{
    const struct sliced *s = arg;
    uint32_t k;

    for (k = 0; k < s->in.rank; k++)
        from[k] = s->first[k] + to[k] * (s->by[k] != 0 ? s->by[k] : 1);
    return 0;
}

static const struct sliced slices[] = {
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(4), 1, { 2 }, { 6 }, { 99 }, { 0 }, { 2 }, { 0 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(3), 1, { -7 }, { -1 }, { 0 }, { 2 }, { 3 }, { 2 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(10), 1, { -1 }, { INT64_MIN }, { 0 }, { -1 }, { 9 },
      { -1 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(4), 1, { 100 }, { -11 }, { -1 }, { -3 }, { 9 }, { -3 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(1), 1, { 3 }, { INT64_MAX }, { 0 }, { INT64_MAX }, { 3 },
      { 0 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(1), 1, { 3 }, { INT64_MIN }, { 0 }, { INT64_MIN }, { 3 },
      { 0 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(0), 1, { 6 }, { 6 }, { 0 }, { 1 }, { 0 }, { 0 } },
    { GRADCHECK_SHAPE(10), GRADCHECK_SHAPE(0), 1, { 2 }, { 6 }, { 0 }, { -1 }, { 0 }, { 0 } },
    { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(0, 2), 2, { 1, 1 }, { 5, 5 }, { 99 }, { 0 }, { 0, 1 },
      { 0 } },
    { GRADCHECK_SHAPE(4, 6, 5, 7), GRADCHECK_SHAPE(4, 3, 5, 3), 2, { 1, -3 }, { 4, 100 }, { 1, -1 },
      { 0 }, { 0, 1, 0, 4 }, { 0 } },
    { GRADCHECK_SHAPE(3, 4, 5), GRADCHECK_SHAPE(1, 2, 3), 3, { 1, 3, 0 }, { 2, -5, 5 }, { 99 },
      { 1, -2, 2 }, { 1, 3, 0 }, { 1, -2, 2 } },
};

static struct gradcheck_case slice_case(const struct sliced *s)
{
    struct gradcheck_case gc = { .op = "Slice", .opset = 13, .n_in = 5,
                                 .in = { { .shape = s->in } } };

    gc.in[1] = list(s->start, s->n);
    gc.in[2] = list(s->end, s->n);
    gc.in[3] = list(s->axis, s->n);
    gc.in[4] = list(s->step, s->n);
    gc.in[3].absent = s->axis[0] == 99;
    gc.in[4].absent = s->step[0] == 0;
    return gc;
}

static void slice_cuts_as_python_does(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(slices); i++) {
        struct gradcheck_case gc = slice_case(&slices[i]);

        check_moved(&gc, 1, &slices[i].out, from_sliced, &slices[i]);
    }
}

static void slice_refuses_lists_that_do_not_match(void **state)
{
    static const int64_t zero = 0, twice[2] = { 0, 0 };
    struct gradcheck_case gc = slice_case(&slices[1]);

    (void)state;
    gc.in[4] = list(&zero, 1);
    oracle_refused(&gc, ERR_INPUT, "the step along axis 0 is 0");
    gc.in[4] = list(twice, 2);
    oracle_refused(&gc, ERR_INPUT, "1 starts, 1 ends, 1 axes and 2 steps");
    gc = slice_case(&slices[10]);
    gc.in[3] = list((const int64_t[]){ 0, 1, -2 }, 3);
    oracle_refused(&gc, ERR_INPUT, "axis 1 comes twice");
    gc.in[1].constant = false;
    oracle_refused(&gc, ERR_UNSUPPORTED, "input 1 is computed by the graph");
}

/* ---- Pad ---- */

struct padded {
    struct shape in, out;
    const char *mode;
    int64_t pads[8];
};

static int from_padded(const void *arg, const int64_t *to, int64_t *from)
{
    const struct padded *p = arg;
    uint32_t k;

    for (k = 0; k < p->in.rank; k++) {
        int64_t n = p->in.dim[k], i = to[k] - p->pads[k];

        if (strcmp(p->mode, "edge") == 0)
            i = i < 0 ? 0 : i >= n ? n - 1 : i;
        else if (strcmp(p->mode, "reflect") == 0)
            i = i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
        else if (strcmp(p->mode, "wrap") == 0)
            i = (i + n) % n;
        if (i < 0 || i >= n)
            return -1;
        from[k] = i;
    }
    return 0;
}

static const struct padded pads[] = {
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(10), "constant", { 2, 3 } },
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(2), "constant", { -1, -2 } },
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(5), "constant", { -3, 3 } },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 7, 6), "constant",
      { 0, 0, 1, 0, 0, 0, 2, 1 } },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 7, 6), "reflect",
      { 0, 0, 1, 0, 0, 0, 2, 1 } },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 10, 10), "edge",
      { 0, 0, 5, 4, 0, 0, 1, 1 } },
    { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(3, 5, 8), "wrap", { 1, 0, 4, 0, 2, 0 } },
    { GRADCHECK_SHAPE(6), GRADCHECK_SHAPE(8), "reflect", { 5, -3 } },
    { GRADCHECK_SHAPE(0, 2), GRADCHECK_SHAPE(2, 2), "constant", { 1, 0, 1, 0 } },
    { { 0 }, { 0 }, "constant", { 0 } },
};

static void pad_continues_each_axis_by_its_mode(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(pads); i++) {
        const struct op_attr mode = STRING("mode", pads[i].mode);
        struct gradcheck_case gc = { .op = "Pad", .opset = 19, .attrs = &mode, .n_attrs = 1,
                                     .n_in = 2, .in = { { .shape = pads[i].in } } };

        gc.in[1] = list(pads[i].pads, 2 * pads[i].in.rank);
        check_moved(&gc, 1, &pads[i].out, from_padded, &pads[i]);
        gc.opset = 13;
        if (strcmp(pads[i].mode, "wrap") != 0)
            check_moved(&gc, 1, &pads[i].out, from_padded, &pads[i]);
    }
}

static void pad_takes_a_value_and_axes(void **state)
{
    static const float x[2] = { 1, 2 }, value = 7, y[8] = { 7, 1, 7, 7, 7, 2, 7, 7 };
    static const int64_t some[2] = { 1, 2 }, axes[1] = { -1 };
    const struct op_attr old[] = { INTS("pads", 0, 1, 0, 2),
                                   { .name = "value", .type = OP_ATTR_FLOAT, .f = 7 } };
    const struct shape out = GRADCHECK_SHAPE(2, 4);
    struct gradcheck_case gc = { .op = "Pad", .opset = 18, .n_in = 4,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 1), .data = x } } };

    (void)state;
    gc.in[1] = list(some, 2);
    gc.in[2] = (struct gradcheck_tensor){ .data = &value };
    gc.in[3] = list(axes, 1);
    oracle_floats(&gc, &out, y);
    gradcheck_run(&gc);
    gc = (struct gradcheck_case){ .op = "Pad", .opset = 10, .attrs = old, .n_attrs = 2, .n_in = 1,
                                  .in = { { .shape = GRADCHECK_SHAPE(2, 1), .data = x } } };
    oracle_floats(&gc, &out, y);
    gradcheck_run(&gc);
}

static void pad_refuses_what_it_cannot_continue(void **state)
{
    static const int64_t long_[2] = { 5, 0 }, crossing[2] = { -3, -3 }, absurd[2] = { INT64_MAX, 0 };
    static const struct op_attr reflect = STRING("mode", "reflect"), wrap = STRING("mode", "wrap");
    struct gradcheck_case gc = { .op = "Pad", .opset = 18, .attrs = &reflect, .n_attrs = 1,
                                 .n_in = 2, .in = { { .shape = GRADCHECK_SHAPE(5) } } };

    (void)state;
    gc.in[1] = list(long_, 2);
    oracle_refused(&gc, ERR_UNSUPPORTED, "to be padded by 5; there are 4 to repeat");
    gc.in[1] = list(long_, 1);
    oracle_refused(&gc, ERR_INPUT, "1 pads for 1 axes; expected two for each");
    gc.in[1] = list(absurd, 2);
    oracle_refused(&gc, ERR_INPUT, "absurd");
    gc.n_attrs = 0;
    gc.in[1] = list(crossing, 2);
    oracle_refused(&gc, ERR_INPUT, "cannot be padded by -3 and -3");
    gc.attrs = &wrap;
    gc.n_attrs = 1;
    oracle_refused(&gc, ERR_INPUT, "mode is 'wrap'; expected constant, reflect or edge");
}

/* ---- Expand, Tile ---- */

struct repeated {
    struct shape in, out;
    int64_t list[8], n;
    bool tiles;
};

static int from_repeated(const void *arg, const int64_t *to, int64_t *from)
{
    const struct repeated *r = arg;
    uint32_t skip = r->out.rank - r->in.rank, k;

    for (k = 0; k < r->in.rank; k++)
        from[k] = to[skip + k] % r->in.dim[k];
    return 0;
}

static const struct repeated repeats[] = {
    { GRADCHECK_SHAPE(3, 1), GRADCHECK_SHAPE(2, 3, 6), { 2, 1, 6 }, 3, false },
    { GRADCHECK_SHAPE(3, 4), GRADCHECK_SHAPE(3, 4), { 1 }, 1, false },
    { { 0 }, GRADCHECK_SHAPE(101), { 101 }, 1, false },
    { GRADCHECK_SHAPE(1, 5, 1, 1), GRADCHECK_SHAPE(2, 5, 3, 4), { 2, 1, 3, 4 }, 4, false },
    { GRADCHECK_SHAPE(1, 3), GRADCHECK_SHAPE(0, 3), { 0, 3 }, 2, false },
    { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(12), { 4 }, 1, true },
    { GRADCHECK_SHAPE(2, 3, 2, 5), GRADCHECK_SHAPE(4, 3, 6, 10), { 2, 1, 3, 2 }, 4, true },
    { GRADCHECK_SHAPE(2, 1, 3), GRADCHECK_SHAPE(2, 7, 3), { 1, 7, 1 }, 3, true },
    { GRADCHECK_SHAPE(1, 2, 1, 2, 1, 2, 1, 2), GRADCHECK_SHAPE(2, 4, 2, 4, 2, 2, 2, 4),
      { 2, 2, 2, 2, 2, 1, 2, 2 }, 8, true },
    { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(0, 3), { 0, 1 }, 2, true },
    { { 0 }, { 0 }, { 0 }, 0, true },
};

static void repetition_copies_and_its_gradient_sums(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(repeats); i++) {
        struct gradcheck_case gc = { .op = repeats[i].tiles ? "Tile" : "Expand", .opset = 13,
                                     .n_in = 2, .in = { { .shape = repeats[i].in } } };

        gc.in[1] = list(repeats[i].list, repeats[i].n);
        check_moved(&gc, 1, &repeats[i].out, from_repeated, &repeats[i]);
    }
}

static void repetition_refuses_shapes_that_cannot_be(void **state)
{
    static const int64_t minus[1] = { -1 }, other[1] = { 4 }, many[9] = { 1 },
                         vast[3] = { INT64_MAX, INT64_MAX, 3 };
    struct gradcheck_case gc = { .op = "Expand", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(3) } } };

    (void)state;
    gc.in[1] = list(minus, 1);
    oracle_refused(&gc, ERR_INPUT, "the shape has -1 at 0");
    gc.in[1] = list(other, 1);
    oracle_refused(&gc, ERR_INPUT, "[3] and [4] do not broadcast");
    gc.in[1] = list(many, 9);
    oracle_refused(&gc, ERR_UNSUPPORTED, "9 dimensions; at most 8");
    gc.in[1] = list(vast, 3);
    oracle_refused(&gc, ERR_INPUT, "too many elements");
    gc.op = "Tile";
    oracle_refused(&gc, ERR_INPUT, "3 repeats for 1 dimensions");
    gc.in[1] = list(minus, 1);
    oracle_refused(&gc, ERR_INPUT, "repeats has -1 at 0");
}

/* ---- Squeeze, Unsqueeze ---- */

static int from_same(const void *arg, const int64_t *to, int64_t *from)
{
    const struct shape *const *both = arg; /* in, out: the bytes do not move */
    size_t i = ravel(both[1], to);

    unravel(both[0], i, from);
    return 0;
}

static const struct axes {
    const char *op;
    struct shape in, out;
    int64_t axes[3], n; /* n -1: none */
} axes[] = {
    { "Squeeze", GRADCHECK_SHAPE(1, 3, 1, 2), GRADCHECK_SHAPE(3, 2), { 0 }, -1 },
    { "Squeeze", GRADCHECK_SHAPE(1, 3, 1, 2), GRADCHECK_SHAPE(1, 3, 2), { -2 }, 1 },
    { "Squeeze", GRADCHECK_SHAPE(1, 1), { 0 }, { 0, 1 }, 2 },
    { "Unsqueeze", GRADCHECK_SHAPE(3, 2), GRADCHECK_SHAPE(1, 3, 2, 1), { 0, -1 }, 2 },
    { "Unsqueeze", GRADCHECK_SHAPE(3, 2), GRADCHECK_SHAPE(3, 1, 2), { 1 }, 1 },
    { "Unsqueeze", { 0 }, GRADCHECK_SHAPE(1), { 0 }, 1 },
};

static void axes_of_size_one_come_and_go(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(axes); i++) {
        const struct op_attr attr = { .name = "axes", .type = OP_ATTR_INTS, .ints = axes[i].axes,
                                      .n = (size_t)(axes[i].n < 0 ? 0 : axes[i].n) };
        const struct shape *both[2] = { &axes[i].in, &axes[i].out };
        struct gradcheck_case gc = { .op = axes[i].op, .opset = 11, .attrs = &attr,
                                     .n_attrs = axes[i].n > 0, .n_in = 1,
                                     .in = { { .shape = axes[i].in } } };

        check_moved(&gc, 1, &axes[i].out, from_same, both);
        gc.opset = 13;
        gc.n_attrs = 0;
        if (axes[i].n > 0)
            gc.in[gc.n_in++] = list(axes[i].axes, axes[i].n);
        check_moved(&gc, 1, &axes[i].out, from_same, both);
    }
}

static void an_axis_that_is_not_one_or_not_there_is_refused(void **state)
{
    static const int64_t one[1] = { 1 }, four[1] = { 4 }, twice[2] = { 0, -4 };
    struct gradcheck_case gc = { .op = "Squeeze", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 3) } } };

    (void)state;
    gc.in[1] = list(one, 1);
    oracle_refused(&gc, ERR_INPUT, "axis 1 of [1, 3] is not of size 1");
    gc.in[1] = list(four, 1);
    oracle_refused(&gc, ERR_INPUT, "axis is 4; expected -2 to 1");
    gc.op = "Unsqueeze";
    oracle_refused(&gc, ERR_INPUT, "axis is 4; expected -3 to 2");
    gc.in[1] = list(twice, 2);
    oracle_refused(&gc, ERR_INPUT, "axis 0 comes twice");
}

/* ---- Trilu ---- */

struct triangle {
    int64_t upper, k;
};

static int from_triangle(const void *arg, const int64_t *to, int64_t *from)
{
    const struct triangle *t = arg;
    int64_t off = to[2] - to[1]; /* of [n, rows, cols] */

    memcpy(from, to, 3 * sizeof(*from));
    return (t->upper != 0 ? off >= t->k : off <= t->k) ? 0 : -1;
}

static void trilu_keeps_one_side_of_a_diagonal(void **state)
{
    static const struct shape shapes[] = { GRADCHECK_SHAPE(2, 4, 6), GRADCHECK_SHAPE(2, 5, 3),
                                           GRADCHECK_SHAPE(0, 3, 3), GRADCHECK_SHAPE(1, 1, 1) };
    static const int64_t ks[] = { 0, 1, -2, 7, -7, INT64_MAX, INT64_MIN };
    size_t i, s, k;

    (void)state;
    for (i = 0; i < 2; i++)
        for (s = 0; s < COUNT_OF(shapes); s++)
            for (k = 0; k < COUNT_OF(ks); k++) {
                const struct triangle t = { (int64_t)i, ks[k] };
                const struct op_attr upper = INT("upper", (int64_t)i);
                struct gradcheck_case gc = { .op = "Trilu", .opset = 14, .attrs = &upper,
                                             .n_attrs = 1, .n_in = 2,
                                             .in = { { .shape = shapes[s] },
                                                     { .dtype = TENSOR_I64, .data = &ks[k] } } };

                check_moved(&gc, 1, &shapes[s], from_triangle, &t);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transpose_puts_axes_where_perm_says),
        cmocka_unit_test(transpose_refuses_what_is_no_permutation),
        cmocka_unit_test(pixels_and_channels_change_places),
        cmocka_unit_test(concat_puts_inputs_behind_each_other),
        cmocka_unit_test(concat_refuses_pieces_that_do_not_fit),
        cmocka_unit_test(split_hands_out_pieces_and_collects_their_gradients),
        cmocka_unit_test(split_refuses_sizes_that_do_not_add_up),
        cmocka_unit_test(slice_cuts_as_python_does),
        cmocka_unit_test(slice_refuses_lists_that_do_not_match),
        cmocka_unit_test(pad_continues_each_axis_by_its_mode),
        cmocka_unit_test(pad_takes_a_value_and_axes),
        cmocka_unit_test(pad_refuses_what_it_cannot_continue),
        cmocka_unit_test(repetition_copies_and_its_gradient_sums),
        cmocka_unit_test(repetition_refuses_shapes_that_cannot_be),
        cmocka_unit_test(axes_of_size_one_come_and_go),
        cmocka_unit_test(an_axis_that_is_not_one_or_not_there_is_refused),
        cmocka_unit_test(trilu_keeps_one_side_of_a_diagonal),
    };

    return cmocka_run_group_tests_name("op/move", tests, NULL, NULL);
}
