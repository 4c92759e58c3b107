/* NonMaxSuppression against torchvision's nms. ONNX's node tests are in conformance/cases.gz. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_rig.h"

#include "op/non_max_suppression_data.h"

enum { BOXES = 40, CLASSES = 2 };

/* The generator of make_non_max_suppression.py. */
static void numbers(float *out, size_t n, uint32_t seed)
{
    size_t i;

    for (i = 0; i < n; i++) {
        seed = 1664525u * seed + 1013904223u;
        out[i] = (float)(seed >> 8) / 0x1p24f - 0.5f;
    }
}

/* The planner computes this op on the CPU, also for GPUs. */
static void skip_on_gpu(void)
{
    if (rig_on_gpu())
        skip();
}

static void expect(const struct gradcheck_case *gc, const int64_t *want, size_t n)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(r.out[0].shape.dim[0], n);
    assert_int_equal(r.out[0].shape.dim[1], 3);
    assert_memory_equal(r.out[0].data, want, 3 * n * sizeof(*want));
    gradcheck_free(&r);
}

static void selected_boxes_match_torchvision(void **state)
{
    static const int64_t most[] = { BOXES };
    float boxes[BOXES * 4], scores[CLASSES * BOXES];
    size_t i, k;

    (void)state;
    skip_on_gpu();
    numbers(boxes, BOXES * 4, 1);
    numbers(scores, CLASSES * BOXES, 2);
    for (i = 0; i < BOXES; i++)
        for (k = 0; k < 2; k++)
            boxes[4 * i + 2 + k] = boxes[4 * i + k] + (0.5f + fabsf(boxes[4 * i + 2 + k]));
    for (i = 0; i < COUNT_OF(nms_cases); i++) {
        const struct gradcheck_case gc = {
            .op = "NonMaxSuppression", .opset = 11, .n_in = 4,
            .in = { { .shape = GRADCHECK_SHAPE(1, BOXES, 4), .data = boxes, .constant = true },
                    { .shape = GRADCHECK_SHAPE(1, CLASSES, BOXES), .data = scores, .constant = true },
                    { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1), .data = most, .constant = true },
                    { .data = &nms_cases[i].iou, .constant = true } } };

        expect(&gc, nms_cases[i].kept, nms_cases[i].n);
    }
}

static const float two[] = { 0, 0, 1, 1, 0, 0.1f, 1, 1.1f };
static const float threshold = 0.5f;
static const int64_t all = INT64_MAX;

static void equal_and_nan_scores_have_defined_order(void **state)
{
    static const float equal[] = { 0.5f, 0.5f }, none[] = { NAN, -3 };
    static const int64_t first[] = { 0, 0, 0 }, last[] = { 0, 0, 1 };
    struct gradcheck_case gc = {
        .op = "NonMaxSuppression", .opset = 11, .n_in = 4,
        .in = { { .shape = GRADCHECK_SHAPE(1, 2, 4), .data = two, .constant = true },
                { .shape = GRADCHECK_SHAPE(1, 1, 2), .data = equal, .constant = true },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1), .data = &all, .constant = true },
                { .data = &threshold, .constant = true } } };

    (void)state;
    skip_on_gpu();
    expect(&gc, first, 1);
    gc.in[1].data = none;
    expect(&gc, last, 1);
}

static void refused(const struct gradcheck_case *gc, const char *part)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_true(gradcheck_forward(gc, &r, &err) < 0);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, err.text);
}

static void unknown_or_invalid_inputs_are_rejected(void **state)
{
    static const float wide = 1.5f;
    struct gradcheck_case gc = {
        .op = "NonMaxSuppression", .opset = 10, .n_in = 4,
        .in = { { .shape = GRADCHECK_SHAPE(1, 2, 4) },
                { .shape = GRADCHECK_SHAPE(1, 1, 2), .constant = true },
                { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(1), .data = &all, .constant = true },
                { .data = &wide, .constant = true } } };

    (void)state;
    refused(&gc, "input 0 is computed by the graph, and decides how many boxes are kept");
    gc.in[0].constant = true;
    refused(&gc, "iou_threshold is 1.5; expected 0 to 1");
    gc.in[3].data = &threshold;
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 3);
    refused(&gc, "the boxes have shape [1, 2, 4] and the scores [1, 1, 3]");
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(1, 1 << 19, 4);
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 1 << 19);
    refused(&gc, "more than 2^36 comparisons");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selected_boxes_match_torchvision),
        cmocka_unit_test(equal_and_nan_scores_have_defined_order),
        cmocka_unit_test(unknown_or_invalid_inputs_are_rejected),
    };

    return cmocka_run_group_tests_name("op/non_max_suppression", tests, NULL, NULL);
}
