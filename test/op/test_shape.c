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

/* The bytes of the output are those of the input. */
static void expect_view(const struct gradcheck_case *gc, const struct shape *want)
{
    struct gradcheck_result r;
    struct err err = { 0 };
    char got_text[192], want_text[192];

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s: %s", gc->op, err.text);
    if (!shape_equal(&r.out[0].shape, want))
        fail_msg("%s: shape %s, expected %s", gc->op,
                 shape_print(&r.out[0].shape, got_text, sizeof(got_text)),
                 shape_print(want, want_text, sizeof(want_text)));
    assert_int_equal(r.out[0].dtype, r.in[0].dtype);
    assert_memory_equal(r.out[0].data, r.in[0].data, tensor_bytes(&r.in[0]));
    gradcheck_free(&r);
}

static void identity_copies_any_type_and_gradients(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_I64, TENSOR_U8, TENSOR_BOOL };
    struct gradcheck_case gc = { .op = "Identity", .opset = 13, .n_in = 1,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 3, 5) } } };
    size_t i;

    (void)state;
    gradcheck_run(&gc);
    for (i = 0; i < COUNT_OF(types); i++) {
        gc.in[0].dtype = types[i];
        gc.in[0].hi = 100;
        expect_view(&gc, &gc.in[0].shape);
    }
    gc.in[0].shape = shape_of(0);
    expect_view(&gc, &gc.in[0].shape);
}

static void flatten_splits_shape_at_axis(void **state)
{
    static const struct {
        int64_t axis; /* 99: no attribute */
        struct shape in, out;
    } samples[] = {
        { 99, GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 60) },
        { 0, GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(1, 120) },
        { 4, GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(120, 1) },
        { -1, GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(24, 5) },
        { -3, GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(1, 24) },
        { 1, GRADCHECK_SHAPE(7), GRADCHECK_SHAPE(7, 1) },
        { 0, { 0 }, GRADCHECK_SHAPE(1, 1) },
        { 1, GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(0, 3) },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        const struct op_attr attr = { .name = "axis", .type = OP_ATTR_INT, .i = samples[i].axis };
        const struct gradcheck_case gc = { .op = "Flatten", .opset = 13, .attrs = &attr,
                                           .n_attrs = samples[i].axis == 99 ? 0 : 1, .n_in = 1,
                                           .in = { { .shape = samples[i].in } } };

        expect_view(&gc, &samples[i].out);
        gradcheck_run(&gc);
    }
}

static void flatten_with_invalid_axis_is_rejected(void **state)
{
    const struct op_attr attr = { .name = "axis", .type = OP_ATTR_INT, .i = 3 };
    const struct gradcheck_case gc = { .op = "Flatten", .opset = 13, .attrs = &attr, .n_attrs = 1,
                                       .n_in = 1, .in = { { .shape = GRADCHECK_SHAPE(2, 3) } } };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "axis is 3; expected -2 to 2 for shape [2, 3]"));
}

/* ---- Reshape ---- */

struct reshape {
    struct shape in;
    struct shape target; /* the constant; its dimensions may be 0 and -1 */
    int64_t allow_zero;
    struct shape out;
    const char *refused; /* or a part of the error message */
};

/* `attr` must outlive the case. */
static struct gradcheck_case reshape_case(const struct reshape *s, struct op_attr *attr)
{
    *attr = (struct op_attr){ .name = "allowzero", .type = OP_ATTR_INT, .i = s->allow_zero };
    return (struct gradcheck_case){
        .op = "Reshape", .opset = 14, .attrs = attr, .n_attrs = 1, .n_in = 2,
        .in = { { .shape = s->in },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(s->target.rank),
                  .data = s->target.dim, .constant = true } },
    };
}

static void reshape_follows_constant_shape(void **state)
{
    static const struct reshape samples[] = {
        { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(4, 6), 0, GRADCHECK_SHAPE(4, 6), NULL },
        { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(-1), 0, GRADCHECK_SHAPE(24), NULL },
        { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(0, -1), 0, GRADCHECK_SHAPE(2, 12), NULL },
        { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(0, 0, 4), 0, GRADCHECK_SHAPE(2, 3, 4), NULL },
        { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(1, -1, 8), 0, GRADCHECK_SHAPE(1, 3, 8), NULL },
        { GRADCHECK_SHAPE(1, 1), { 0 }, 0, { 0 }, NULL },
        { { 0 }, GRADCHECK_SHAPE(1, -1), 0, GRADCHECK_SHAPE(1, 1), NULL },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(3, 0), 1, GRADCHECK_SHAPE(3, 0), NULL },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(0, 3), 0, GRADCHECK_SHAPE(0, 3), NULL },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(-1, 3), 0, GRADCHECK_SHAPE(0, 3), NULL },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        struct op_attr attr;
        struct gradcheck_case gc = reshape_case(&samples[i], &attr);

        expect_view(&gc, &samples[i].out);
        gradcheck_run(&gc);
    }
}

static void reshape_to_invalid_shape_is_rejected_with_reason(void **state)
{
    static const struct reshape samples[] = {
        { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(4, 2), 0, { 0 }, "[4, 2] does not fit the input" },
        { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(4, -1), 0, { 0 }, "does not fit" },
        { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(-1, -1), 0, { 0 }, "more than one -1" },
        { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(-2, 3), 0, { 0 }, "has -2 at 0" },
        { GRADCHECK_SHAPE(6), GRADCHECK_SHAPE(2, 0), 0, { 0 }, "copies dimension 1" },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(0, -1), 1, { 0 }, "both 0 and -1" },
        { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(0, -1), 0, { 0 }, "does not fit" },
        { GRADCHECK_SHAPE(8, 5), GRADCHECK_SHAPE(INT64_MAX, INT64_MAX), 0, { 0 }, "does not fit" },
        { GRADCHECK_SHAPE(8, 16, 5, 5), GRADCHECK_SHAPE(16, 400), 0, { 0 }, "a batch of 16 seems" },
        { GRADCHECK_SHAPE(3, 4, 5), GRADCHECK_SHAPE(2, 20), 0, { 0 }, "dynamic batch axis" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(samples); i++) {
        struct op_attr attr;
        struct gradcheck_case gc = reshape_case(&samples[i], &attr);
        struct gradcheck_result r;
        struct err err = { 0 };

        assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
        if (strstr(err.text, samples[i].refused) == NULL)
            fail_msg("sample %zu: \"%s\" is not in \"%s\"", i, samples[i].refused, err.text);
    }
}

static void reshape_requires_constant_of_at_most_eight_dimensions(void **state)
{
    static const int64_t ones[TENSOR_MAX_RANK + 1] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    struct gradcheck_case gc = {
        .op = "Reshape", .opset = 13, .n_in = 2,
        .in = { { .shape = GRADCHECK_SHAPE(1) },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(COUNT_OF(ones)), .data = ones,
                  .constant = true } },
    };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "9 dimensions"));
    gc.in[1].constant = false;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "must be a constant"));
    gc.in[1].absent = true;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_copies_any_type_and_gradients),
        cmocka_unit_test(flatten_splits_shape_at_axis),
        cmocka_unit_test(flatten_with_invalid_axis_is_rejected),
        cmocka_unit_test(reshape_follows_constant_shape),
        cmocka_unit_test(reshape_to_invalid_shape_is_rejected_with_reason),
        cmocka_unit_test(reshape_requires_constant_of_at_most_eight_dimensions),
    };

    return cmocka_run_group_tests_name("op/shape", tests, NULL, NULL);
}
