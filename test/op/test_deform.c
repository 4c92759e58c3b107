/* DeformColumns, a part of DeformConv: gradients against differences, and offsets that leave the
 * input. The values of PyTorch are in graph/test_op_cases.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "harness/gradcheck.h"

static const int64_t kernel[] = { 2, 2 }, pads[] = { 1, 0, 0, 1 };

static void refused(const struct gradcheck_case *gc, const char *part)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_true(gradcheck_forward(gc, &r, &err) < 0);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, err.text);
}

/* The offsets are not near integers, where the derivative jumps. */
static void gradients_match_differences(void **state)
{
    const struct op_attr attrs[] = {
        { .name = "kernel_shape", .type = OP_ATTR_INTS, .n = 2, .ints = kernel },
        { .name = "pads", .type = OP_ATTR_INTS, .n = 4, .ints = pads },
        { .name = "offset_group", .type = OP_ATTR_INT, .i = 2 },
    };
    struct gradcheck_case gc = { .domain = "trainerd", .op = "DeformColumns", .opset = 1, .attrs = attrs,
                                 .n_attrs = 3, .n_in = 3, .seed = 4,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 4, 3, 4) },
                                         { .shape = GRADCHECK_SHAPE(2, 16, 3, 4), .lo = 0.2, .hi = 0.8 },
                                         { .shape = GRADCHECK_SHAPE(2, 8, 3, 4) } } };

    (void)state;
    gradcheck_run(&gc);
    gc.in[1].lo = -1.8;
    gc.in[1].hi = -1.2;
    gradcheck_run(&gc);
    gc.n_in = 2; /* without a mask */
    gradcheck_run(&gc);
}

static void huge_offsets_are_safe(void **state)
{
    static const float x[] = { 1, 1, 1, 1 };
    static const float far[] = { NAN, 1e30f, -INFINITY, 0, 0, 0, 0, 3e9f };
    static const int64_t one[] = { 1, 1 };
    const struct op_attr attr = { .name = "kernel_shape", .type = OP_ATTR_INTS, .n = 2, .ints = one };
    struct gradcheck_case gc = { .domain = "trainerd", .op = "DeformColumns", .opset = 1, .attrs = &attr,
                                 .n_attrs = 1, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2), .data = x },
                                         { .shape = GRADCHECK_SHAPE(1, 2, 2, 2), .data = far } } };
    struct gradcheck_result r;
    struct err err = { 0 };
    int i;

    (void)state;
    if (gradcheck_backward(&gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    for (i = 0; i < 4; i++)
        assert_true(((float *)r.out[0].data)[i] == 0 && ((float *)r.din[0].data)[i] == 0);
    gradcheck_free(&r);
}

static void inconsistent_shapes_are_rejected(void **state)
{
    struct op_attr attrs[] = {
        { .name = "kernel_shape", .type = OP_ATTR_INTS, .n = 2, .ints = kernel },
        { .name = "offset_group", .type = OP_ATTR_INT, .i = 1 },
    };
    struct gradcheck_case gc = { .domain = "trainerd", .op = "DeformColumns", .opset = 1, .attrs = attrs,
                                 .n_attrs = 2, .n_in = 3,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 4, 3, 3) },
                                         { .shape = GRADCHECK_SHAPE(1, 8, 2, 2) },
                                         { .shape = GRADCHECK_SHAPE(1, 8, 2, 2) } } };

    (void)state;
    refused(&gc, "the mask has shape [1, 8, 2, 2]; expected [1, 4, 2, 2]");
    gc.in[1].shape.dim[1] = 6;
    refused(&gc, "the offset has shape [1, 6, 2, 2]; expected [1, 8, 2, 2]");
    attrs[1].i = 3;
    refused(&gc, "offset_group is 3; expected a divisor of the 4 channels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(huge_offsets_are_safe),
        cmocka_unit_test(inconsistent_shapes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/deform", tests, NULL, NULL);
}
