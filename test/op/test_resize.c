#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "op/move_kit.h"

#define FLOAT(name_, f_) { .name = (name_), .type = OP_ATTR_FLOAT, .f = (float)(f_) }

#include "op/resize_data.h"

enum { X, ROI, SCALES, SIZES };

/* The generator of make_resize.py. The caller frees the result. */
static float *numbers(const struct shape *s, uint32_t seed)
{
    size_t n = (size_t)shape_elements(s), i;
    float *out = malloc((n + 1) * sizeof(*out));

    assert_non_null(out);
    for (i = 0; i < n; i++) {
        seed = 1664525u * seed + 1013904223u;
        out[i] = (float)(seed >> 8) / 0x1p24f - 0.5f;
    }
    return out;
}

static struct gradcheck_tensor floats(const float *values, int64_t n)
{
    return (struct gradcheck_tensor){ .shape = GRADCHECK_SHAPE(n), .data = values,
                                      .constant = true };
}

/* The caller owns x. */
static struct gradcheck_case case_of(const struct resize_case *r, const float *x)
{
    struct gradcheck_case gc = { .op = "Resize", .opset = r->opset, .attrs = r->attrs, .n_in = 4,
                                 .in = { { .shape = r->in, .data = x } } };
    bool cropped = false;
    uint32_t k;

    while (gc.n_attrs < COUNT_OF(r->attrs) && r->attrs[gc.n_attrs].name != NULL)
        gc.n_attrs++;
    for (k = 0; k < 2 * r->n; k++)
        cropped = cropped || r->roi[k] != 0;
    gc.in[ROI] = cropped ? floats(r->roi, 2 * (int64_t)r->n)
                         : (struct gradcheck_tensor){ .absent = true };
    gc.in[SCALES] = r->scales[0] != 0 ? floats(r->scales, r->n)
                                      : (struct gradcheck_tensor){ .absent = true };
    gc.in[SIZES] = r->scales[0] == 0 ? list(r->sizes, r->n)
                                     : (struct gradcheck_tensor){ .absent = true };
    return gc;
}

static void compare(const char *what, size_t i, const struct tensor *got, const float *want)
{
    size_t n = (size_t)tensor_elements(got), k;

    for (k = 0; k < n; k++)
        if (!(fabs(oracle_at(got, k) - (double)want[k]) <= 2e-6))
            fail_msg("case %zu: %s %zu is %.9g, expected %.9g", i, what, k, oracle_at(got, k),
                     (double)want[k]);
}

/* With align_corners, implementations differ if a scale gives no integer number of elements. */
static bool is_ambiguous(const struct resize_case *r)
{
    struct gradcheck_case gc = case_of(r, NULL);
    struct gradcheck_result result;
    struct err err = { 0 };

    if (gradcheck_backward(&gc, &result, &err) == 0) {
        gradcheck_free(&result);
        return false;
    }
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "a fractional number of elements; with align_corners"));
    return true;
}

static void outputs_and_gradients_match_onnx_runtime_and_pytorch(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(resize_cases); i++) {
        const struct resize_case *r = &resize_cases[i];
        float *x = numbers(&r->in, 1), *dy = numbers(&r->out, 2);
        struct gradcheck_case gc = case_of(r, x);
        struct gradcheck_result result;
        struct err err = { 0 };
        char text[192];
        int layout;

        gc.dout[0] = dy;
        for (layout = is_ambiguous(r) ? 2 : 0; layout < 2; layout++) {
            gc.layout = layout == 0 ? TENSOR_PLAIN : TENSOR_CHANNELS_LAST;
            if (gradcheck_backward(&gc, &result, &err) < 0)
                fail_msg("case %zu: %s", i, err.text);
            if (!shape_equal(&result.out[0].shape, &r->out))
                fail_msg("case %zu: shape %s", i,
                         shape_print(&result.out[0].shape, text, sizeof(text)));
            compare("y", i, &result.out[0], r->y);
            if (r->dx != NULL)
                compare("dx", i, &result.din[0], r->dx);
            gradcheck_free(&result);
        }
        free(x);
        free(dy);
    }
}

static void gradients_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(resize_cases); i++) {
        struct gradcheck_case gc = case_of(&resize_cases[i], NULL);

        gc.step = 0.25; /* the op is linear */
        if (!is_ambiguous(&resize_cases[i]))
            gradcheck_run(&gc);
    }
}

static int from_corner(const void *arg, const int64_t *to, int64_t *from)
{
    const float *scale = arg;
    uint32_t k;

    for (k = 0; k < 4; k++)
        from[k] = (int64_t)((double)to[k] / (double)scale[k]);
    return 0;
}

static void nearest_accepts_any_type(void **state)
{
    static const float up[4] = { 1, 1, 2, 3 }, down[4] = { 1, 2, 0.5f, 1 };
    static const struct op_attr attrs[] = {
        STRING("mode", "nearest"),
        STRING("nearest_mode", "floor"),
        STRING("coordinate_transformation_mode", "asymmetric"),
    };
    static const struct {
        const float *scales;
        struct shape out;
    } cases[] = { { up, GRADCHECK_SHAPE(2, 3, 8, 15) }, { down, GRADCHECK_SHAPE(2, 6, 2, 5) } };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_case gc = { .op = "Resize", .opset = 13, .attrs = attrs, .n_attrs = 3,
                                     .n_in = 3 };

        gc.in[X].shape = (struct shape)GRADCHECK_SHAPE(2, 3, 4, 5);
        gc.in[ROI].absent = true;
        gc.in[SCALES] = floats(cases[i].scales, 4);
        check_moved(&gc, 1, &cases[i].out, from_corner, cases[i].scales);
    }
}

static int from_itself(const void *arg, const int64_t *to, int64_t *from)
{
    (void)arg;
    memcpy(from, to, 3 * sizeof(*from));
    return 0;
}

static void scale_one_copies_and_empty_input_stays_empty(void **state)
{
    static const float one[3] = { 1, 1, 1 }, some[3] = { 1, 1, 0.5f };
    const struct op_attr linear = STRING("mode", "linear");
    const struct shape same = GRADCHECK_SHAPE(2, 3, 5), none = GRADCHECK_SHAPE(0, 3, 2),
                       gone = GRADCHECK_SHAPE(2, 3, 0);
    struct gradcheck_case gc = { .op = "Resize", .opset = 13, .n_in = 3,
                                 .in = { { .shape = same } } };

    (void)state;
    gc.in[ROI].absent = true;
    gc.in[SCALES] = floats(one, 3);
    check_moved(&gc, 1, &same, from_itself, NULL);
    gc.attrs = &linear;
    gc.n_attrs = 1;
    gradcheck_run(&gc);
    gc.n_attrs = 0;
    gc.in[SCALES] = floats(some, 3);
    gc.in[X].shape = (struct shape)GRADCHECK_SHAPE(0, 3, 4);
    check_moved(&gc, 1, &none, from_itself, NULL);
    gc.in[X].shape = (struct shape)GRADCHECK_SHAPE(2, 3, 1);
    check_moved(&gc, 1, &gone, from_itself, NULL);
}

static void infinite_neighbour_of_weight_zero_has_no_effect(void **state)
{
    static const float x[3] = { 1, INFINITY, 3 }, y[5] = { 1, INFINITY, INFINITY, INFINITY, 3 };
    static const float two[1] = { 5.0f / 3 };
    const struct shape out = GRADCHECK_SHAPE(5);
    const struct op_attr attrs[] = { STRING("mode", "linear"),
                                     STRING("coordinate_transformation_mode", "align_corners") };
    struct gradcheck_case gc = { .op = "Resize", .opset = 13, .attrs = attrs, .n_attrs = 2,
                                 .n_in = 3, .in = { { .shape = GRADCHECK_SHAPE(3), .data = x } } };

    (void)state;
    gc.in[ROI].absent = true;
    gc.in[SCALES] = floats(two, 1);
    oracle_floats(&gc, &out, y);
}

static void invalid_attributes_are_rejected(void **state)
{
    static const float scales[4] = { 1, 1, 2, 2 }, minus[4] = { 1, 1, -2, 2 },
                       nan[4] = { 1, 1, NAN, 2 }, longer[4] = { 1, 1, 2097153, 1 },
                       vast[4] = { 1, 1, 3e38f, 2 },
                       roi[8] = { 0, 0, 0, 0, 1, 1, 1e20f, 1 }, tiny[4] = { 1, 1, 1e-19f, 1 };
    static const int64_t sizes[4] = { 1, 1, 4, 4 }, wrong[4] = { 1, 1, -4, 4 }, twice[2] = { 1, 1 };
    static const struct op_attr mode = STRING("mode", "area"),
                                place = STRING("coordinate_transformation_mode", "middle"),
                                nearest = STRING("nearest_mode", "up"),
                                linear = STRING("mode", "linear"),
                                policy = STRING("keep_aspect_ratio_policy", "maybe"),
                                axes = { .name = "axes", .type = OP_ATTR_INTS, .n = 2,
                                         .ints = twice },
                                crop[] = { STRING("mode", "linear"), INT("antialias", 1),
                                           STRING("coordinate_transformation_mode",
                                                  "tf_crop_and_resize") };
    struct gradcheck_case gc = { .op = "Resize", .opset = 19, .n_attrs = 1, .n_in = 4,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 1, 2, 2) } } };

    (void)state;
    gc.in[ROI].absent = true;
    gc.in[SCALES] = floats(scales, 4);
    gc.in[SIZES] = list(sizes, 4);
    gc.attrs = &linear;
    oracle_refused(&gc, ERR_INPUT, "both scales and sizes; expected one of them");
    gc.in[SIZES].absent = true;
    gc.attrs = &mode;
    oracle_refused(&gc, ERR_INPUT, "mode is 'area'; expected nearest, linear or cubic");
    gc.attrs = &place;
    oracle_refused(&gc, ERR_INPUT, "coordinate_transformation_mode is 'middle'");
    gc.attrs = &nearest;
    oracle_refused(&gc, ERR_INPUT, "nearest_mode is 'up'");
    gc.attrs = &axes;
    oracle_refused(&gc, ERR_INPUT, "axis 1 is repeated");
    gc.attrs = &linear;
    gc.in[X].dtype = TENSOR_I32;
    oracle_refused(&gc, ERR_INPUT, "input 0 is int32; expected float32");
    gc.in[X].dtype = TENSOR_F32;
    gc.in[SCALES] = floats(scales, 3);
    oracle_refused(&gc, ERR_INPUT, "3 values of scales for 4 axes; expected 4");
    gc.in[SCALES] = floats(minus, 4);
    oracle_refused(&gc, ERR_INPUT, "axis 2 of 2 elements cannot be scaled by -2");
    gc.in[SCALES] = floats(vast, 4);
    oracle_refused(&gc, ERR_INPUT, "axis 2 of 2 elements cannot be scaled by 3e+38");
    gc.in[SCALES] = floats(longer, 4);
    oracle_refused(&gc, ERR_UNSUPPORTED, "is resized to 4194306; at most 4194304 are supported");
    gc.in[SCALES] = floats(nan, 4);
    oracle_refused(&gc, ERR_INPUT, "input 2 has nan at 2");
    gc.in[SCALES].constant = false;
    oracle_refused(&gc, ERR_UNSUPPORTED, "must be a constant of the model");
    gc.in[SCALES].absent = true;
    oracle_refused(&gc, ERR_INPUT, "neither scales and sizes");
    gc.in[SIZES] = list(wrong, 4);
    oracle_refused(&gc, ERR_INPUT, "axis 2 of 2 elements cannot be resized to -4");
    gc.in[SIZES] = list(sizes, 4);
    gc.attrs = &policy;
    oracle_refused(&gc, ERR_INPUT, "keep_aspect_ratio_policy is 'maybe'");
    gc.attrs = &linear;
    gc.in[X].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 0, 2);
    oracle_refused(&gc, ERR_INPUT, "axis 2 of 0 elements cannot be resized to 4");
    gc.in[X].shape = (struct shape)GRADCHECK_SHAPE(1, 1, 2, 2);
    gc.attrs = crop;
    gc.n_attrs = COUNT_OF(crop);
    oracle_refused(&gc, ERR_INPUT, "0 values of roi for 4 axes; expected 8");
    gc.in[ROI] = floats(roi, 8);
    gc.in[SCALES] = floats(tiny, 4);
    gc.in[SIZES].absent = true;
    oracle_refused(&gc, ERR_UNSUPPORTED, "filter of scale 1e-19 is wider than axis 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_and_gradients_match_onnx_runtime_and_pytorch),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(nearest_accepts_any_type),
        cmocka_unit_test(scale_one_copies_and_empty_input_stays_empty),
        cmocka_unit_test(infinite_neighbour_of_weight_zero_has_no_effect),
        cmocka_unit_test(invalid_attributes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/resize", tests, NULL, NULL);
}
