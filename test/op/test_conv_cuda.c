/* Convolutions on a GPU if the library lacks an engine for the preferred form: EMULATED_CUDNN
 * (test/cuda/include/cudnn.h) lists the missing ones. Skipped without a GPU; tests that need the
 * emulator are skipped with a real GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "device/device.h"
#include "harness/op_rig.h"

enum { IO = OP_IN(0) | OP_OUT(0) };

#define T(...) { .shape = GRADCHECK_SHAPE(__VA_ARGS__) }
#define INT(name_, i_) { .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define INTS(name_, ...)                                                                           \
    { .name = name_, .type = OP_ATTR_INTS, .n = sizeof((int64_t[]){ __VA_ARGS__ }) / 8,            \
      .ints = (const int64_t[]){ __VA_ARGS__ } }
#define ATTRS(...)                                                                                 \
    .attrs = (const struct op_attr[]){ __VA_ARGS__ },                                              \
    .n_attrs = sizeof((const struct op_attr[]){ __VA_ARGS__ }) / sizeof(struct op_attr)
#define CASE(op_, n_in_, ...)                                                                      \
    { .op = op_, .opset = 13, .n_in = n_in_, .seed = 9, .step = 0.25, .probes = 4, __VA_ARGS__ }

static const struct gradcheck_case cases[] = {
    CASE("Conv", 3, .in = { T(2, 16, 7, 6), T(8, 16, 3, 3), T(8) }, ATTRS(INTS("pads", 1, 1, 1, 1))),
    CASE("Conv", 2, .in = { T(2, 8, 5, 4), T(16, 8, 1, 1) }, ATTRS(INTS("strides", 2, 1))),
    CASE("Conv", 3, .in = { T(1, 6, 6, 6), T(9, 2, 3, 2), T(9) },
         ATTRS(INT("group", 3), INTS("pads", 0, 1, 2, 0), INTS("dilations", 2, 1))),
    CASE("Conv", 2, .in = { T(2, 8, 9), T(8, 1, 3) }, ATTRS(INT("group", 8), INTS("pads", 0, 2))),
    CASE("Conv", 2, .in = { T(1, 2, 3, 4, 5), T(3, 2, 2, 2, 2) }, ATTRS(INTS("pads", 1, 0, 1, 0, 1, 1))),
    CASE("ConvTranspose", 3, .in = { T(2, 8, 4, 3), T(8, 5, 3, 3), T(5) },
         ATTRS(INTS("strides", 2, 2), INTS("pads", 1, 1, 1, 1), INTS("output_padding", 1, 1))),
    CASE("ConvTranspose", 2, .in = { T(1, 4, 6), T(4, 2, 4) }, ATTRS(INT("group", 2), INTS("pads", 2, 0))),
};

static void need_gpu(void)
{
    if (rig_on_gpu())
        return;
    print_message("TRAINERD_TEST_CUDA is not set\n");
    skip();
}

/* Compares gradients of 16-bit images with those of the same numbers in float32. */
static void expect_close(const struct gradcheck_case *gc, const struct tensor *got,
                         const struct tensor *want, double unit)
{
    const float *a = got->data, *b = want->data;
    size_t n = (size_t)tensor_elements(want), i;
    double size = 0;

    for (i = 0; b != NULL && i < n; i++)
        size += fabs((double)b[i]) / (double)n;
    for (i = 0; b != NULL && i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= unit * (4 * fabs((double)b[i]) + 4 * size)))
            fail_msg("%s, %s: element %zu: %.9g, %.9g in float32", gc->op,
                     gc->float16 ? "float16" : "bfloat16", i, (double)a[i], (double)b[i]);
}

static void expect_half_like_float(const struct gradcheck_case *wanted, bool float16)
{
    struct gradcheck_case half = *wanted, wide = *wanted;
    struct gradcheck_result a, b;
    struct err err = { 0 };
    uint32_t i;

    half.half = IO;
    half.rounded = OP_IN(1);
    wide.rounded = IO | OP_IN(1);
    half.float16 = wide.float16 = float16;
    if (gradcheck_backward(&half, &a, &err) < 0 || gradcheck_backward(&wide, &b, &err) < 0)
        fail_msg("%s", err.text);
    expect_close(&half, &a.out[0], &b.out[0], float16 ? 0x1p-11 : 0x1p-8);
    for (i = 0; i < half.n_in; i++)
        expect_close(&half, &a.din[i], &b.din[i], float16 ? 0x1p-11 : 0x1p-8);
    gradcheck_free(&a);
    gradcheck_free(&b);
}

static void unsupported_form_is_converted_to_supported_form(void **state)
{
    static const char *const lacks[] = { "", "plain", "same_types", "no_add", "plain,no_add" };
    size_t i, k;

    (void)state;
    need_gpu();
    for (k = 0; k < COUNT_OF(lacks); k++) {
        setenv("EMULATED_CUDNN", lacks[k], 1);
        for (i = 0; i < COUNT_OF(cases); i++) {
            gradcheck_run(&cases[i]);
            expect_half_like_float(&cases[i], false);
            expect_half_like_float(&cases[i], true);
        }
    }
    unsetenv("EMULATED_CUDNN");
}

static void unsupported_convolution_is_rejected_with_description(void **state)
{
    static const char *const says[] = {
        "Conv 'checked': cuDNN 9.", "convolution, bfloat16",
        "x [2, 16, 7, 6], w bfloat16 [8, 16, 3, 3], y [2, 8, 7, 6]",
        "strides [1, 1], dilations [1, 1], pads [1, 1]", "CUDNN_STATUS_NOT_SUPPORTED",
    };
    struct gradcheck_case gc = cases[0];
    struct gradcheck_result r;
    struct device devices[DEVICE_MAX];
    struct cuda_gpu gpu;
    struct err err = { 0 };
    uint32_t n;
    size_t i;

    (void)state;
    need_gpu();
    assert_int_equal(device_parse("cuda:0", 0, devices, &n, &err), 0);
    assert_int_equal(device_cuda(&devices[0])->gpus(&gpu, 1, &n, &err), 0);
    if (strstr(gpu.name, "mulated") == NULL) {
        print_message("%s refuses nothing\n", gpu.name);
        skip();
    }
    gc.half = IO;
    setenv("EMULATED_CUDNN", "refuse", 1);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_UNSUPPORTED);
    unsetenv("EMULATED_CUDNN");
    for (i = 0; i < COUNT_OF(says); i++)
        if (strstr(err.text, says[i]) == NULL)
            fail_msg("'%s' does not say '%s'", err.text, says[i]);
}

/* More pixels than one block sums, and images with and without whole packs of channels. */
static void bias_gradient_over_many_pixels_is_exact(void **state)
{
    static const struct shape shapes[] = { { 4, { 3, 2, 40, 30 } }, { 4, { 1, 2, 1200, 1 } } };
    static const int64_t filters[] = { 8, 3, 72 };
    size_t i, k, f, e;
    int float16;

    (void)state;
    need_gpu();
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(filters); k++)
            for (float16 = 0; float16 < 2; float16++) {
                struct gradcheck_case gc = CASE("Conv", 3, .half = IO, .float16 = float16 != 0);
                const int64_t *d = shapes[i].dim;
                size_t pixels = (size_t)(d[0] * d[2] * d[3]), plane = (size_t)(d[2] * d[3]);
                struct gradcheck_result r;
                struct err err = { 0 };
                const float *dy;

                gc.in[0].shape = shapes[i];
                gc.in[1].shape = shape_of(4, filters[k], (int64_t)2, (int64_t)1, (int64_t)1);
                gc.in[2].shape = shape_of(1, filters[k]);
                gc.not_wanted = OP_IN(0) | OP_IN(1);
                assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
                dy = r.dout[0].data;
                for (f = 0; f < (size_t)filters[k]; f++) {
                    double sum = 0, got = (double)((float *)r.din[2].data)[f];

                    for (e = 0; e < pixels; e++)
                        sum += (double)dy[(e / plane * (size_t)filters[k] + f) * plane + e % plane];
                    if (!(fabs(got - sum) <= 1e-4))
                        fail_msg("filter %zu of %d: %.9g, expected %.9g", f, (int)filters[k], got,
                                 sum);
                }
                gradcheck_free(&r);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsupported_form_is_converted_to_supported_form),
        cmocka_unit_test(unsupported_convolution_is_rejected_with_description),
        cmocka_unit_test(bias_gradient_over_many_pixels_is_exact),
    };

    return cmocka_run_group_tests_name("op/conv on GPUs", tests, NULL, NULL);
}
