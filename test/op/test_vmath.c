#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>

#include "base/check.h"
#include "op/op_priv.h"
#include "op/formula.h"
#include "op/vmath.h"

#define LOOP(name_)                                                                                \
    CLONES static void name_##_loop(const float *x, size_t n, float *y)                         \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = op_##name_##f(x[i]);                                                            \
    }                                                                                              \
    static float name_##_one(float x)                                                              \
    {                                                                                              \
        return op_##name_##f(x);                                                                   \
    }
LOOP(exp)
LOOP(log)
LOOP(tanh)
LOOP(sigmoid)
LOOP(expm1)
LOOP(log1p)
LOOP(softplus)
LOOP(erf)

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return isnan(x) ? x : fmax(x, 0) + log1p(exp(-fabs(x)));
}

static const struct function {
    const char *name;
    void (*loop)(const float *x, size_t n, float *y);
    float (*one)(float x);
    double (*exact)(double x);
    double ulps;
} functions[] = {
    { "exp", exp_loop, exp_one, exp, 1.0 },
    { "log", log_loop, log_one, log, 1.0 },
    { "tanh", tanh_loop, tanh_one, tanh, 2.0 },
    { "sigmoid", sigmoid_loop, sigmoid_one, sigmoid, 3.0 },
    { "expm1", expm1_loop, expm1_one, expm1, 4.0 },
    { "log1p", log1p_loop, log1p_one, log1p, 3.0 },
    { "softplus", softplus_loop, softplus_one, softplus, 3.0 },
    { "erf", erf_loop, erf_one, erf, 2.0 },
};

enum { BLOCK = 4099 };

static double distance_ulps(float got, double want)
{
    float rounded = (float)want, a = fabsf(rounded);

    if (got == rounded || (isnan(got) && isnan(want)))
        return 0;
    if (isnan(got) != isnan(want) || isinf(got) || isinf(rounded))
        return INFINITY;
    return fabs((double)got - want) / (a < 0x1p-126f ? 0x1p-149 : nextafterf(a, INFINITY) - a);
}

static void check(const struct function *f, const float *x, const float *y, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        double off = distance_ulps(y[i], f->exact((double)x[i]));
        float one = f->one(x[i]);

        if (off > f->ulps)
            fail_msg("%s(%a) = %a, %.2f ulp from %a", f->name, (double)x[i], (double)y[i], off,
                     f->exact((double)x[i]));
        if (float_bits(one) != float_bits(y[i]) && !(isnan(one) && isnan(y[i])))
            fail_msg("%s(%a): %a in a vector loop, %a alone", f->name, (double)x[i], (double)y[i],
                     (double)one);
    }
}

/* Iterates over all bit patterns with a stride: both signs, denormals, infinities and NaN. */
static void all_floats_are_within_stated_error(void **state)
{
    static float x[BLOCK], y[BLOCK];
    uint64_t bits = 0;
    size_t f, i;

    (void)state;
    while (bits <= UINT32_MAX) {
        for (i = 0; i < BLOCK; i++, bits += 3001)
            x[i] = float_of_bits((uint32_t)bits);
        for (f = 0; f < COUNT_OF(functions); f++) {
            functions[f].loop(x, BLOCK, y);
            check(&functions[f], x, y, BLOCK);
        }
    }
}

/* The range in which results are neither 0, 1 nor infinite, with a smaller stride. */
static void main_range_is_within_stated_error(void **state)
{
    static float x[BLOCK], y[BLOCK];
    size_t f, i, k;

    (void)state;
    for (k = 0; k < 40; k++) {
        float width = k < 20 ? 105.0f : k < 30 ? 2.0f : 0.01f;

        for (i = 0; i < BLOCK; i++)
            x[i] = width * (2.0f * ((float)(i * 40 + k) / (BLOCK * 40)) - 1.0f);
        for (f = 0; f < COUNT_OF(functions); f++) {
            functions[f].loop(x, BLOCK, y);
            check(&functions[f], x, y, BLOCK);
        }
    }
}

static void results_at_limits_are_exact(void **state)
{
    (void)state;
    assert_true(exp_one(0.0f) == 1.0f);
    assert_true(exp_one(-INFINITY) == 0.0f);
    assert_true(exp_one(INFINITY) == INFINITY);
    assert_true(exp_one(88.73f) == INFINITY);
    assert_true(exp_one(-103.9f) == 0x1p-149f);
    assert_true(isnan(exp_one(NAN)));
    assert_true(log_one(1.0f) == 0.0f);
    assert_true(log_one(0.0f) == -INFINITY);
    assert_true(log_one(-0.0f) == -INFINITY);
    assert_true(log_one(INFINITY) == INFINITY);
    assert_true(isnan(log_one(-1.0f)));
    assert_true(isnan(log_one(-INFINITY)));
    assert_true(isnan(log_one(NAN)));
    assert_true(tanh_one(INFINITY) == 1.0f);
    assert_true(tanh_one(-INFINITY) == -1.0f);
    assert_int_equal(float_bits(tanh_one(-0.0f)), float_bits(-0.0f));
    assert_true(isnan(tanh_one(NAN)));
    assert_true(sigmoid_one(0.0f) == 0.5f);
    assert_true(sigmoid_one(INFINITY) == 1.0f);
    assert_true(sigmoid_one(-INFINITY) == 0.0f);
    assert_true(isnan(sigmoid_one(NAN)));
    assert_true(expm1_one(-INFINITY) == -1.0f && expm1_one(INFINITY) == INFINITY);
    assert_true(log1p_one(-1.0f) == -INFINITY && log1p_one(INFINITY) == INFINITY);
    assert_true(isnan(log1p_one(-2.0f)) && log1p_one(1e-30f) == 1e-30f);
    assert_true(softplus_one(-INFINITY) == 0.0f && softplus_one(INFINITY) == INFINITY);
    assert_true(erf_one(INFINITY) == 1.0f && erf_one(-4.0f) == -1.0f);
    assert_int_equal(float_bits(erf_one(-0.0f)), float_bits(-0.0f));
}

/* ---- powers ---- */

CLONES static void pow_loop(const float *a, const float *b, size_t n, float *y)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = vm_pow(a[i], b[i]);
}

static void check_powers(const float *a, const float *b, size_t n)
{
    static float y[BLOCK];
    size_t i;

    pow_loop(a, b, n, y);
    for (i = 0; i < n; i++) {
        double want = pow((double)a[i], (double)b[i]);
        float one = vm_pow(a[i], b[i]);

        if (distance_ulps(y[i], want) > 1 || (y[i] == 0 && !signbit(y[i]) != !signbit(want)))
            fail_msg("pow(%a, %a) = %a, expected %a", (double)a[i], (double)b[i], (double)y[i],
                     want);
        if (float_bits(one) != float_bits(y[i]) && !(isnan(one) && isnan(y[i])))
            fail_msg("pow(%a, %a): %a in a vector loop, %a alone", (double)a[i], (double)b[i],
                     (double)y[i], (double)one);
    }
}

static void powers_are_within_stated_error(void **state)
{
    static float a[BLOCK], b[BLOCK];
    uint64_t s = 1;
    size_t k, i;

    (void)state;
    for (k = 0; k < 200; k++) {
        for (i = 0; i < BLOCK; i++) {
            uint32_t u, v;

            s = s * 6364136223846793005u + 1442695040888963407u;
            u = (uint32_t)(s >> 32);
            s = s * 6364136223846793005u + 1442695040888963407u;
            v = (uint32_t)(s >> 32);
            a[i] = k % 2 == 0 ? float_of_bits(u) : (float)(u % 100000) / 1000.0f;
            b[i] = k % 4 == 0  ? float_of_bits(v)
                   : k % 4 < 3 ? (float)(v % 81) / 4.0f - 10.0f
                               : (float)(v % 4001) / 100.0f - 20.0f;
        }
        check_powers(a, b, BLOCK);
    }
}

static void powers_of_special_values_match_c(void **state)
{
    static const float values[] = { 0, -0.0f, 1, -1, 2, -2, 0.5f, -0.5f, 3, -3, INFINITY, -INFINITY,
                                    NAN, 1e-40f, -1e-40f, 1e38f, -1e38f, 0x1p24f + 2, 0x1p23f + 1,
                                    1.5f };
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(values); i++)
        for (k = 0; k < COUNT_OF(values); k++)
            check_powers(&values[i], &values[k], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_floats_are_within_stated_error),
        cmocka_unit_test(main_range_is_within_stated_error),
        cmocka_unit_test(results_at_limits_are_exact),
        cmocka_unit_test(powers_are_within_stated_error),
        cmocka_unit_test(powers_of_special_values_match_c),
    };

    return cmocka_run_group_tests_name("op/vmath", tests, NULL, NULL);
}
