#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_rig.h"
#include "op/op.h"

static const struct shape shapes[] = {
    { 3, { 2, 3, 5 } },     { 3, { 1, 1, 1 } },       { 4, { 2, 3, 4, 5 } },
    { 4, { 3, 17, 8, 8 } }, { 4, { 2, 64, 7, 7 } },   { 4, { 2, 1, 28, 28 } },
    { 4, { 4, 33, 1, 1 } }, { 5, { 2, 3, 2, 4, 3 } }, { 4, { 0, 3, 4, 5 } },
    { 4, { 2, 3, 40, 41 } } /* few channels */, { 3, { 2, 1030, 3 } }, { 4, { 1, 130, 10, 14 } },
};

static void expect_moved(const struct gradcheck_case *gc)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    if (gradcheck_backward(gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    assert_memory_equal(r.out[0].data, r.in[0].data, tensor_bytes(&r.in[0]));
    assert_memory_equal(r.din[0].data, r.dout[0].data, tensor_bytes(&r.in[0]));
    gradcheck_free(&r);
}

static void reorder_converts_layout_and_gradient_converts_back(void **state)
{
    size_t i, w;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (w = 0; w < 4; w++) {
            struct gradcheck_case gc = { .domain = "trainerd", .op = "Reorder", .opset = 1, .n_in = 1,
                                         .seed = i + 1, .probes = 3, .turned = w < 2,
                                         .layout = w % 2 == 0 ? TENSOR_PLAIN : TENSOR_CHANNELS_LAST,
                                         .in = { { .shape = shapes[i] } } };

            expect_moved(&gc);
            gc.half = OP_IN(0) | OP_OUT(0);
            for (int float16 = 0; float16 <= rig_on_gpu(); float16++) {
                gc.float16 = float16 != 0;
                expect_moved(&gc);
            }
        }
}

static void gradients_accumulate_and_may_be_missing(void **state)
{
    struct gradcheck_case gc = { .domain = "trainerd", .op = "Reorder", .opset = 1, .n_in = 1, .seed = 5,
                                 .probes = 3, .turned = true, .in = { { .shape = shapes[3] } } };
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t i;

    (void)state;
    gradcheck_run(&gc);
    gc.no_dout = OP_OUT(0);
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    for (i = 0; i < (size_t)tensor_elements(&r.in[0]); i++)
        assert_true(((float *)r.din[0].data)[i] == 0.0f);
    gradcheck_free(&r);
}

static void matrix_reorder_is_rejected(void **state)
{
    struct tensor in = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, (int64_t)2, (int64_t)3), NULL }, out;
    const struct tensor *at = &in;
    struct op_infer f = { .def = op_find("trainerd", "Reorder", 1),
                          .node = "r",
                          .n_in = 1,
                          .in = &at,
                          .n_out = 1,
                          .out = &out };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(f.def->infer(&f, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "Reorder 'r': input 0 has shape [2, 3]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reorder_converts_layout_and_gradient_converts_back),
        cmocka_unit_test(gradients_accumulate_and_may_be_missing),
        cmocka_unit_test(matrix_reorder_is_rejected),
    };

    return cmocka_run_group_tests_name("op/reorder", tests, NULL, NULL);
}
