#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/move_kit.h"

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

static void transpose_permutes_axes(void **state)
{
    const struct permuted samples[] = {
        { GRADCHECK_SHAPE(3, 5), GRADCHECK_SHAPE(5, 3), INTS("perm", 1, 0), false },
        { GRADCHECK_SHAPE(67, 41), GRADCHECK_SHAPE(41, 67), INTS("perm", 0), true },
        { GRADCHECK_SHAPE(2, 7, 3, 5), GRADCHECK_SHAPE(2, 3, 7, 5),
          INTS("perm", 0, 2, 1, 3), false },
        { GRADCHECK_SHAPE(2, 3, 5, 7), GRADCHECK_SHAPE(2, 3, 7, 5),
          INTS("perm", 0, 1, 3, 2), false },
        { GRADCHECK_SHAPE(2, 3, 5, 7), GRADCHECK_SHAPE(2, 5, 7, 3),
          INTS("perm", 0, 2, 3, 1), false },
        { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(5, 4, 3, 2), INTS("perm", 0), true },
        { GRADCHECK_SHAPE(2, 1, 3, 1, 2, 2, 1, 3), GRADCHECK_SHAPE(3, 2, 1, 2, 1, 3, 1, 2),
          INTS("perm", 7, 4, 6, 5, 1, 2, 3, 0), false },
        { GRADCHECK_SHAPE(2, 136, 72), GRADCHECK_SHAPE(2, 72, 136), INTS("perm", 0, 2, 1), false },
        { GRADCHECK_SHAPE(9, 2, 34), GRADCHECK_SHAPE(34, 2, 9), INTS("perm", 0), true },
        { GRADCHECK_SHAPE(2, 5, 3, 16), GRADCHECK_SHAPE(2, 3, 5, 16),
          INTS("perm", 0, 2, 1, 3), false },
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

static void transpose_with_invalid_perm_is_rejected(void **state)
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
    int64_t side, channels; /* of the wide tensor */
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

static void depth_to_space_and_back_move_blocks(void **state)
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

static void concat_joins_inputs_along_axis(void **state)
{
    static const struct joined samples[] = {
        { { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(1), GRADCHECK_SHAPE(0), GRADCHECK_SHAPE(4) },
          GRADCHECK_SHAPE(8), 4, INT("axis", 0) },
        { { GRADCHECK_SHAPE(3, 16), GRADCHECK_SHAPE(3, 32) }, GRADCHECK_SHAPE(3, 48), 2,
          INT("axis", 1) },
        { { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 7, 4, 5) },
          GRADCHECK_SHAPE(2, 10, 4, 5), 2, INT("axis", 1) },
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

static void concat_with_inconsistent_inputs_is_rejected(void **state)
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
    int64_t sizes[4]; /* explicit unless `by_itself` */
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

static void split_divides_input_and_concatenates_gradients(void **state)
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
        for (k = 0; k < s->n; k++) { /* an output that is not read, or without a gradient */
            gc.unread = OP_OUT(k);
            gradcheck_run(&gc);
            gc.unread = 0;
            gc.no_dout = OP_OUT(k);
            gradcheck_run(&gc);
            gc.no_dout = 0;
        }
    }
}

static void split_with_inconsistent_sizes_is_rejected(void **state)
{
    static const struct {
        struct split s;
        const char *part;
    } samples[] = {
        { { 13, GRADCHECK_SHAPE(5), 0, { 2, 2 }, 2, false, false }, "leaves 1 elements of axis 0" },
        { { 13, GRADCHECK_SHAPE(5), 0, { 2, 4 }, 2, false, false }, "requests 4 elements" },
        { { 13, GRADCHECK_SHAPE(5), 0, { -1, 6 }, 2, false, false }, "requests -1 elements" },
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
    /* the normalised values, as in Python; by 0: 1 */
    int64_t first[TENSOR_MAX_RANK], by[TENSOR_MAX_RANK];
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

static void slice_matches_python(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(slices); i++) {
        struct gradcheck_case gc = slice_case(&slices[i]);

        check_moved(&gc, 1, &slices[i].out, from_sliced, &slices[i]);
    }
}

static void slice_with_inconsistent_lists_is_rejected(void **state)
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
    oracle_refused(&gc, ERR_INPUT, "axis 1 is repeated");
    gc.in[1].constant = false;
    oracle_refused(&gc, ERR_UNSUPPORTED, "input 1 is computed by the graph");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transpose_permutes_axes),
        cmocka_unit_test(transpose_with_invalid_perm_is_rejected),
        cmocka_unit_test(depth_to_space_and_back_move_blocks),
        cmocka_unit_test(concat_joins_inputs_along_axis),
        cmocka_unit_test(concat_with_inconsistent_inputs_is_rejected),
        cmocka_unit_test(split_divides_input_and_concatenates_gradients),
        cmocka_unit_test(split_with_inconsistent_sizes_is_rejected),
        cmocka_unit_test(slice_matches_python),
        cmocka_unit_test(slice_with_inconsistent_lists_is_rejected),
    };

    return cmocka_run_group_tests_name("op/move", tests, NULL, NULL);
}
