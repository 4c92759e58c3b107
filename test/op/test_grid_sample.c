/* GridSample against PyTorch's grid_sample (and ONNX's evaluator), forward and backward. */
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

#include "op/grid_sample_data.h"

/* The generator of make_grid_sample.py. The caller frees the result. */
static float *numbers(const struct shape *s, uint32_t seed, float scale)
{
    size_t n = (size_t)shape_elements(s), i;
    float *out = malloc((n + 1) * sizeof(*out));

    assert_non_null(out);
    for (i = 0; i < n; i++) {
        seed = 1664525u * seed + 1013904223u;
        out[i] = ((float)(seed >> 8) / 0x1p24f - 0.5f) * scale;
    }
    return out;
}

static void compare(size_t i, const char *what, const struct tensor *got, const float *want)
{
    size_t n = (size_t)tensor_elements(got), k;

    for (k = 0; want != NULL && k < n; k++)
        if (!(fabs((double)((float *)got->data)[k] - (double)want[k]) <=
              2e-6 * (1 + fabs((double)want[k]))))
            fail_msg("case %zu (%s, %s, %d): %s %zu is %.9g, expected %.9g", i, grid_cases[i].mode,
                     grid_cases[i].padding, grid_cases[i].align, what, k,
                     (double)((float *)got->data)[k], (double)want[k]);
}

static void outputs_and_gradients_match_pytorch(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(grid_cases); i++) {
        const struct grid_case *g = &grid_cases[i];
        const struct op_attr attrs[] = {
            { .name = "mode", .type = OP_ATTR_STRING, .s = g->mode },
            { .name = "padding_mode", .type = OP_ATTR_STRING, .s = g->padding },
            { .name = "align_corners", .type = OP_ATTR_INT, .i = g->align },
        };
        float *x = numbers(&g->x, 1, 1), *grid = numbers(&g->grid, 3, 3.2f),
              *dy = numbers(&g->y, 2, 1);
        struct gradcheck_case gc = { .op = "GridSample", .opset = g->opset, .attrs = attrs,
                                     .n_attrs = 3, .n_in = 2,
                                     .in = { { .shape = g->x, .data = x },
                                             { .shape = g->grid, .data = grid } },
                                     .dout = { dy } };
        struct gradcheck_result r;
        struct err err = { 0 };

        if (gradcheck_backward(&gc, &r, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(shape_equal(&r.out[0].shape, &g->y));
        compare(i, "y", &r.out[0], g->out);
        compare(i, "dx", &r.din[0], g->dx);
        compare(i, "dgrid", &r.din[1], g->dgrid);
        gradcheck_free(&r);
        free(x);
        free(grid);
        free(dy);
    }
}

/* Gradients of the input for all modes, and of the grid where the weights are smooth. */
static void gradients_match_differences(void **state)
{
    static const char *const modes[] = { "nearest", "linear", "cubic" };
    static const char *const paddings[] = { "zeros", "border", "reflection" };
    size_t m, p;

    (void)state;
    for (m = 0; m < 3; m++)
        for (p = 0; p < 3; p++) {
            const struct op_attr attrs[] = {
                { .name = "mode", .type = OP_ATTR_STRING, .s = modes[m] },
                { .name = "padding_mode", .type = OP_ATTR_STRING, .s = paddings[p] },
            };
            struct gradcheck_case gc = { .op = "GridSample", .opset = 22, .attrs = attrs,
                                         .n_attrs = 2, .n_in = 2, .seed = 5,
                                         .not_wanted = OP_IN(1),
                                         .in = { { .shape = GRADCHECK_SHAPE(2, 3, 4, 5) },
                                                 { .shape = GRADCHECK_SHAPE(2, 3, 2, 2), .lo = -1.4,
                                                   .hi = 1.4, .constant = true } } };

            gradcheck_run(&gc);
        }
}

static void cubic_volume_gradients_match_differences(void **state)
{
    static const float places[] = { 0.1f, -0.3f, 0.2f, -0.35f, 0.15f, -0.2f };
    const struct op_attr attr = { .name = "mode", .type = OP_ATTR_STRING, .s = "cubic" };
    struct gradcheck_case gc = { .op = "GridSample", .opset = 20, .attrs = &attr, .n_attrs = 1,
                                 .n_in = 2, .seed = 6, .step = 1.0 / 256,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 2, 6, 5, 7) },
                                         { .shape = GRADCHECK_SHAPE(1, 1, 1, 2, 3),
                                           .data = places } } };

    (void)state;
    gradcheck_run(&gc);
}

/* Points at any distance, and NaN, read nothing; with padding "border" they read the border. */
static void unbounded_coordinates_are_safe(void **state)
{
    static const float far[] = { 1e30f, 0, -INFINITY, 0.5f, NAN, 0, 3e9f, -3e9f };
    static const char *const modes[] = { "nearest", "bilinear", "bicubic" };
    static const char *const paddings[] = { "zeros", "border", "reflection" };
    static const float ones[] = { 1, 1, 1, 1 };
    size_t m, p, i;

    (void)state;
    for (m = 0; m < 3; m++)
        for (p = 0; p < 3; p++) {
            const struct op_attr attrs[] = {
                { .name = "mode", .type = OP_ATTR_STRING, .s = modes[m] },
                { .name = "padding_mode", .type = OP_ATTR_STRING, .s = paddings[p] },
            };
            struct gradcheck_case gc = { .op = "GridSample", .opset = 16, .attrs = attrs,
                                         .n_attrs = 2, .n_in = 2,
                                         .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2),
                                                   .data = ones },
                                                 { .shape = GRADCHECK_SHAPE(1, 1, 4, 2),
                                                   .data = far } } };
            struct gradcheck_result r;
            struct err err = { 0 };

            if (gradcheck_backward(&gc, &r, &err) < 0)
                fail_msg("%s", err.text);
            for (i = 0; i < 4; i++) {
                float y = ((float *)r.out[0].data)[i];

                assert_true(y == (p == 1 && m < 2 && i != 2 ? 1.0f : 0.0f));
            }
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

static void invalid_shapes_and_modes_are_rejected(void **state)
{
    const struct op_attr mode = { .name = "mode", .type = OP_ATTR_STRING, .s = "lanczos" };
    struct gradcheck_case gc = { .op = "GridSample", .opset = 16, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2) },
                                         { .shape = GRADCHECK_SHAPE(2, 1, 4, 2) } } };

    (void)state;
    refused(&gc, "the input has shape [1, 1, 2, 2] and the grid [2, 1, 4, 2]");
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 4, 3);
    refused(&gc, "expected [n, c, ...]");
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 2, 2, 2);
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 1, 4, 3);
    refused(&gc, "4 to 4 dimensions"); /* opset 20 adds volumes */
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 2, 2);
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 4, 2);
    gc.attrs = &mode;
    gc.n_attrs = 1;
    refused(&gc, "mode is 'lanczos'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_and_gradients_match_pytorch),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(cubic_volume_gradients_match_differences),
        cmocka_unit_test(unbounded_coordinates_are_safe),
        cmocka_unit_test(invalid_shapes_and_modes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/grid_sample", tests, NULL, NULL);
}
