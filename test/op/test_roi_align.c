/* RoiAlign against torchvision's roi_align (mode max: ONNX's evaluator), forward and backward. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"

#include "op/roi_align_data.h"

enum { ROIS = COUNT_OF(roi_batch), N_X = 2 * 2 * 5 * 6, N_Y = ROIS * 2 * 2 * 3 };

/* The generator of make_roi_align.py. */
static void numbers(float *out, size_t n, uint32_t seed)
{
    size_t i;

    for (i = 0; i < n; i++) {
        seed = 1664525u * seed + 1013904223u;
        out[i] = (float)(seed >> 8) / 0x1p24f - 0.5f;
    }
}

static void compare(size_t i, const char *what, const struct tensor *got, const float *want)
{
    size_t n = (size_t)tensor_elements(got), k;

    for (k = 0; want != NULL && k < n; k++)
        if (!(fabs((double)((float *)got->data)[k] - (double)want[k]) <=
              5e-6 * (1 + fabs((double)want[k]))))
            fail_msg("case %zu: %s %zu is %.9g, expected %.9g", i, what, k,
                     (double)((float *)got->data)[k], (double)want[k]);
}

static void outputs_and_gradients_match_torchvision(void **state)
{
    float x[N_X], dy[N_Y];
    size_t i;

    (void)state;
    numbers(x, N_X, 1);
    numbers(dy, N_Y, 2);
    for (i = 0; i < COUNT_OF(roi_cases); i++) {
        const struct roi_case *t = &roi_cases[i];
        const struct op_attr attrs[] = {
            { .name = "mode", .type = OP_ATTR_STRING, .s = t->max ? "max" : "avg" },
            { .name = "output_height", .type = OP_ATTR_INT, .i = 2 },
            { .name = "output_width", .type = OP_ATTR_INT, .i = 3 },
            { .name = "sampling_ratio", .type = OP_ATTR_INT, .i = t->ratio },
            { .name = "spatial_scale", .type = OP_ATTR_FLOAT, .f = t->scale },
        };
        struct gradcheck_case gc = { .op = "RoiAlign", .opset = t->half_pixel ? 16 : 10, .attrs = attrs,
                                     .n_attrs = COUNT_OF(attrs), .n_in = 3,
                                     .in = { { .shape = GRADCHECK_SHAPE(2, 2, 5, 6), .data = x },
                                             { .shape = GRADCHECK_SHAPE(ROIS, 4), .data = roi_rois },
                                             { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(ROIS),
                                               .data = roi_batch } },
                                     .dout = { dy } };
        struct gradcheck_result r;
        struct err err = { 0 };

        if (gradcheck_backward(&gc, &r, &err) < 0)
            fail_msg("%s", err.text);
        compare(i, "y", &r.out[0], t->out);
        compare(i, "dx", &r.din[0], t->dx);
        gradcheck_free(&r);
    }
}

static void gradients_match_differences(void **state)
{
    static const float rois[] = { 0.3f, 0.4f, 3.6f, 2.9f, -2, 1, 9, 8, 1, 1, 2, 2 };
    static const int64_t batch[] = { 1, 0, 1 };
    static const char *const modes[] = { "avg", "max" }, *const places[] = { "half_pixel", "output_half_pixel" };
    int m, p, ratio;

    (void)state;
    for (m = 0; m < 2; m++)
        for (p = 0; p < 2; p++)
            for (ratio = 0; ratio < 4; ratio += 3) {
                const struct op_attr attrs[] = {
                    { .name = "mode", .type = OP_ATTR_STRING, .s = modes[m] },
                    { .name = "coordinate_transformation_mode", .type = OP_ATTR_STRING, .s = places[p] },
                    { .name = "output_height", .type = OP_ATTR_INT, .i = 2 },
                    { .name = "output_width", .type = OP_ATTR_INT, .i = 2 },
                    { .name = "sampling_ratio", .type = OP_ATTR_INT, .i = ratio },
                };
                struct gradcheck_case gc = { .op = "RoiAlign", .opset = 22, .attrs = attrs,
                                             .n_attrs = COUNT_OF(attrs), .n_in = 3, .seed = 3,
                                             .step = m == 1 ? 1.0 / 4096 : 0, .tol = m == 1 ? 5e-3 : 0,
                                             .in = { { .shape = GRADCHECK_SHAPE(2, 2, 4, 5), .apart = m == 1 },
                                                     { .shape = GRADCHECK_SHAPE(3, 4), .data = rois },
                                                     { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(3),
                                                       .data = batch } } };

                gradcheck_run(&gc);
            }
}

static const float ones[] = { 1, 1, 1, 1 };

/* The run time must not depend on the coordinates: a region may be larger than any image. */
static void unbounded_regions_are_safe(void **state)
{
    static const float far[] = { NAN, 0, 1, 1, -INFINITY, 0, INFINITY, 1, -1e30f, -1e30f, 1e30f, 1e30f,
                                 -5e8f, -5e8f, 4e8f, 4e8f };
    static const int64_t batch[4] = { 0 };
    static const char *const modes[] = { "avg", "max" };
    int m, i;

    (void)state;
    for (m = 0; m < 2; m++) {
        const struct op_attr mode = { .name = "mode", .type = OP_ATTR_STRING, .s = modes[m] };
        struct gradcheck_case gc = { .op = "RoiAlign", .opset = 16, .attrs = &mode, .n_attrs = 1, .n_in = 3,
                                     .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2), .data = ones },
                                             { .shape = GRADCHECK_SHAPE(4, 4), .data = far },
                                             { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(4),
                                               .data = batch } } };
        struct gradcheck_result r;
        struct err err = { 0 };

        if (gradcheck_backward(&gc, &r, &err) < 0)
            fail_msg("%s", err.text);
        for (i = 0; i < 3; i++)
            assert_true(((float *)r.out[0].data)[i] == 0);
        assert_true(isfinite(((float *)r.out[0].data)[3]));
        gradcheck_free(&r);
    }
}

static void refused(const struct gradcheck_case *gc, const char *part)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_true(gradcheck_forward(gc, &r, &err) < 0);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, err.text);
}

static void index_beyond_batch_is_reported(void **state)
{
    static const float rois[] = { 0, 0, 1, 1, 0, 0, 1, 1 };
    static const int64_t wrong[][2] = { { 0, 1 }, { 0, -1 } };
    struct gradcheck_case gc = { .op = "RoiAlign", .opset = 16, .n_in = 3,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2), .data = ones },
                                         { .shape = GRADCHECK_SHAPE(2, 4), .data = rois },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2) } } };

    (void)state;
    gc.in[2].data = wrong[0];
    refused(&gc, "batch_indices[1] is 1; expected 0 to 0");
    gc.in[2].data = wrong[1];
    refused(&gc, "batch_indices[1] is -1; expected 0 to 0");
}

static void invalid_attributes_and_shapes_are_rejected(void **state)
{
    static const struct {
        struct op_attr attr;
        const char *part;
    } wrong[] = {
        { { .name = "mode", .type = OP_ATTR_STRING, .s = "min" }, "mode is 'min'; expected avg or max" },
        { { .name = "sampling_ratio", .type = OP_ATTR_INT, .i = 1 << 30 }, "sampling_ratio is 1073741824" },
        { { .name = "output_height", .type = OP_ATTR_INT, .i = 0 }, "output_height is 0" },
        { { .name = "spatial_scale", .type = OP_ATTR_FLOAT, .f = -1 }, "spatial_scale is -1" },
    };
    struct gradcheck_case gc = { .op = "RoiAlign", .opset = 16, .n_attrs = 1, .n_in = 3,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2) },
                                         { .shape = GRADCHECK_SHAPE(2, 4) },
                                         { .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(2) } } };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(wrong); i++) {
        gc.attrs = &wrong[i].attr;
        refused(&gc, wrong[i].part);
    }
    gc.n_attrs = 0;
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(3, 4);
    refused(&gc, "the regions have shape [3, 4] and batch_indices [2]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_and_gradients_match_torchvision),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(unbounded_regions_are_safe),
        cmocka_unit_test(index_beyond_batch_is_reported),
        cmocka_unit_test(invalid_attributes_and_shapes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/roi_align", tests, NULL, NULL);
}
