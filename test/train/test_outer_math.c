/* test_outer_math.c - tests the arithmetic of an outer step against plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/outer_math.h"

enum { MODELS = 16, ELEMENTS = 1003 };

static float number(uint32_t model, size_t i)
{
    uint32_t x = (model + 1) * 2654435761u ^ (uint32_t)(i + 1) * 2246822519u;

    x ^= x >> 15;
    x *= 2654435761u;
    return ((float)(x % 20001) - 10000) * (x >> 30 == 0 ? 1e3f : 1e-6f);
}

static float tree(const float *v, uint32_t n)
{
    return n == 1 ? v[0] : tree(v, n / 2) + tree(v + n / 2, n / 2);
}

static float **make_models(void)
{
    float **w = calloc(MODELS, sizeof(*w));

    assert_non_null(w);
    for (uint32_t g = 0; g < MODELS; g++) {
        w[g] = calloc(ELEMENTS, sizeof(**w));
        assert_non_null(w[g]);
        for (size_t i = 0; i < ELEMENTS; i++)
            w[g][i] = number(g, i);
    }
    return w;
}

static void free_models(float **w)
{
    for (uint32_t g = 0; g < MODELS; g++)
        free(w[g]);
    free(w);
}

static void sum_over_models_follows_the_tree_over_groups(void **state)
{
    float **w = make_models(), theta[ELEMENTS], out[ELEMENTS];

    (void)state;
    for (size_t i = 0; i < ELEMENTS; i++)
        theta[i] = number(99, i);
    for (uint32_t n = 1; n <= MODELS; n *= 2)
        for (int delta = 0; delta < 2; delta++) {
            enum { AT = 5 };

            outer_sum(out, (const float *const *)w, n, delta ? theta : NULL, AT, ELEMENTS - AT);
            for (size_t i = AT; i < ELEMENTS; i++) {
                float v[MODELS], want;

                for (uint32_t g = 0; g < n; g++)
                    v[g] = delta ? theta[i] - w[g][i] : w[g][i];
                want = tree(v, n);
                if (memcmp(&out[i - AT], &want, sizeof(want)) != 0)
                    fail_msg("%u models, element %zu: %g, expected %g", n, i, out[i - AT], want);
            }
        }
    free_models(w);
}

/* The sum of two tasks with a half of the models each is that of one task. */
static void sums_of_two_halves_add_up_to_the_whole_sum(void **state)
{
    float **w = make_models(), whole[ELEMENTS], left[ELEMENTS], right[ELEMENTS];

    (void)state;
    outer_sum(whole, (const float *const *)w, MODELS, NULL, 0, ELEMENTS);
    outer_sum(left, (const float *const *)w, MODELS / 2, NULL, 0, ELEMENTS);
    outer_sum(right, (const float *const *)w + MODELS / 2, MODELS / 2, NULL, 0, ELEMENTS);
    for (size_t i = 0; i < ELEMENTS; i++) {
        left[i] += right[i];
        assert_memory_equal(&left[i], &whole[i], sizeof(float));
    }
    free_models(w);
}

/* A task without a model adds 0, which turns -0 into 0. */
static void sum_is_never_negative_zero(void **state)
{
    const float w[2] = { -0.0f, 0.0f }, theta[2] = { -0.0f, -0.0f };
    const float *const models[1] = { w };
    float out[2];

    (void)state;
    outer_sum(out, models, 1, NULL, 0, 2);
    assert_false(signbit(out[0]) || signbit(out[1]));
    outer_sum(out, models, 1, theta, 0, 2);
    assert_false(signbit(out[0]) || signbit(out[1]));
}

/* torch.optim.SGD(lr, momentum, nesterov=True): v = m v + d; theta -= lr (d + m v). */
static void nesterov_takes_the_steps_of_its_formula(void **state)
{
    float theta = 1, velocity = 0;
    double t = 1, v = 0;

    (void)state;
    for (int k = 0; k < 50; k++) {
        float d = (float)sin(k);

        outer_nesterov(&theta, &velocity, &d, 1, 0.7f, 0.9f);
        v = 0.9 * v + sin(k);
        t -= 0.7 * (sin(k) + 0.9 * v);
        assert_true(fabs(theta - t) < 1e-4 && fabs(velocity - v) < 1e-4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_over_models_follows_the_tree_over_groups),
        cmocka_unit_test(sums_of_two_halves_add_up_to_the_whole_sum),
        cmocka_unit_test(sum_is_never_negative_zero),
        cmocka_unit_test(nesterov_takes_the_steps_of_its_formula),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
