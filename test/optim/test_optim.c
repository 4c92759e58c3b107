#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/optim.h"
#include "optim/reference.h"

enum { N_REFERENCES = sizeof(references) / sizeof(*references), LARGE = 3 * OPTIM_BLOCK + 777 };

/* The generator of make_reference.py. */
static float draw(uint32_t *x)
{
    *x = 1664525 * *x + 1013904223;
    return (float)(*x >> 8) / (1 << 24) - 0.5f;
}

static void draw_all(uint32_t *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = draw(x);
}

static struct optim_hyper hyper_of(const struct reference *r, uint64_t step)
{
    return (struct optim_hyper){ .learning_rate = r->learning_rate, .momentum = r->momentum,
                                 .beta1 = r->beta1, .beta2 = r->beta2, .epsilon = r->epsilon,
                                 .weight_decay = r->weight_decay, .step = step, .grad_scale = 1 };
}

static float scale_of(const float *g, size_t n, double clip)
{
    double partial[8];

    optim_square_sums(g, n, partial);
    return optim_clip(optim_norm(partial, (n + OPTIM_BLOCK - 1) / OPTIM_BLOCK), clip);
}

static void a_hundred_steps_end_where_pytorch_ends(void **state)
{
    (void)state;
    for (size_t r = 0; r < N_REFERENCES; r++) {
        const struct reference *ref = &references[r];
        const struct optim_def *def = optim_find(ref->optimizer);
        float w[REFERENCE_N], g[REFERENCE_N], memory[2][REFERENCE_N] = { { 0 } };
        float *slots[OPTIM_MAX_SLOTS] = { memory[0], memory[1] };
        uint32_t x = ref->seed;
        size_t shown = 0;

        assert_non_null(def);
        draw_all(&x, w, REFERENCE_N);
        for (uint64_t step = 1; step <= REFERENCE_STEPS; step++) {
            struct optim_hyper h = hyper_of(ref, step);

            draw_all(&x, g, REFERENCE_N);
            h.grad_scale = scale_of(g, REFERENCE_N, ref->clip);
            assert_true(ref->clip == 0 || h.grad_scale < 1);
            def->sweep(&h, REFERENCE_N, w, g, slots);
            if (step != reference_shown[shown])
                continue;
            for (size_t i = 0; i < REFERENCE_N; i++) {
                double e = fabs((double)w[i] - (double)ref->weights[shown][i]);

                /* Rounding alone: some units in the last place of weights up to about one. */
                if (e > 5e-7 + 2e-9 * (double)step)
                    fail_msg("%s, step %d, weight %zu: %.9g, expected %.9g", ref->what, (int)step,
                             i, (double)w[i], (double)ref->weights[shown][i]);
            }
            shown++;
        }
        assert_int_equal(shown, REFERENCE_SHOWN);
    }
}

/* The formulas of optim.h, one number at a time, every operation rounded where it stands. */
static void by_hand(const char *name, const struct optim_hyper *h, float *w_, float g,
                    float *slots[])
{
    volatile float w = *w_, d, a, b, c;
    volatile double p1 = 1, p2 = 1;

    d = g * h->grad_scale;
    if (strcmp(name, "adamw") != 0) {
        a = (float)h->weight_decay * w;
        d = d + a;
    }
    if (strcmp(name, "sgd") == 0) {
        a = (float)h->learning_rate * d;
        *w_ = w - a;
        return;
    }
    if (strcmp(name, "momentum") == 0) {
        a = (float)h->momentum * *slots[0];
        *slots[0] = a + d;
        a = (float)h->learning_rate * *slots[0];
        *w_ = w - a;
        return;
    }
    for (uint64_t i = 0; i < h->step; i++) { /* step 3 or less: the order of factors is no matter */
        p1 = p1 * h->beta1;
        p2 = p2 * h->beta2;
    }
    a = (float)h->beta1 * *slots[0];
    b = (float)(1 - h->beta1) * d;
    *slots[0] = a + b;
    c = d * d;
    a = (float)h->beta2 * *slots[1];
    b = (float)(1 - h->beta2) * c;
    *slots[1] = a + b;
    c = sqrtf(*slots[1]);
    c = c * (float)(1 / sqrt(1 - p2));
    c = c + (float)h->epsilon;
    c = *slots[0] / c;
    c = (float)(h->learning_rate / (1 - p1)) * c;
    if (strcmp(name, "adamw") == 0)
        w = w * (float)(1 - h->learning_rate * h->weight_decay);
    *w_ = w - c;
}

/* Vectors of any width, and no fused operations: the same bits as one number at a time. */
static void every_width_gives_the_bits_of_single_steps(void **state)
{
    enum { N = 1003 };
    size_t n_all;
    const struct optim_def *const *all = optim_all(&n_all);

    (void)state;
    assert_int_equal(n_all, 4);
    for (size_t k = 0; k < n_all; k++) {
        float w[2][N], g[N], m[2][N] = { { 0 } }, v[2][N] = { { 0 } };
        uint32_t x = 77;

        draw_all(&x, w[0], N);
        memcpy(w[1], w[0], sizeof(w[0]));
        for (uint64_t step = 1; step <= 3; step++) {
            struct optim_hyper h = { .learning_rate = 0.013, .momentum = 0.9, .beta1 = 0.87,
                                     .beta2 = 0.93, .epsilon = 1e-7, .weight_decay = 0.07,
                                     .step = step, .grad_scale = 0.37f };
            float *slots[OPTIM_MAX_SLOTS] = { m[0], v[0] };

            draw_all(&x, g, N);
            all[k]->sweep(&h, N, w[0], g, slots);
            for (size_t i = 0; i < N; i++) {
                float *one[OPTIM_MAX_SLOTS] = { &m[1][i], &v[1][i] };

                by_hand(all[k]->name, &h, &w[1][i], g[i], one);
            }
            assert_memory_equal(w[0], w[1], sizeof(w[0]));
            assert_memory_equal(m[0], m[1], sizeof(m[0]));
            assert_memory_equal(v[0], v[1], sizeof(v[0]));
        }
    }
}

static void cutting_the_range_changes_no_bit(void **state)
{
    size_t n_all;
    const struct optim_def *const *all = optim_all(&n_all);
    float *memory = calloc(7 * LARGE, sizeof(*memory)), *g = memory + 6 * LARGE;

    (void)state;
    for (size_t k = 0; k < n_all; k++) {
        struct optim_hyper h = { .learning_rate = 0.01, .momentum = 0.9, .beta1 = 0.9,
                                 .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.01, .step = 5,
                                 .grad_scale = 1 };
        float *whole[OPTIM_MAX_SLOTS] = { memory + LARGE, memory + 2 * LARGE };
        uint32_t x = 3;

        draw_all(&x, memory, 3 * LARGE);
        for (size_t i = 2 * LARGE; i < 3 * LARGE; i++) /* squares are not negative */
            memory[i] = fabsf(memory[i]);
        memcpy(memory + 3 * LARGE, memory, 3 * LARGE * sizeof(*memory));
        draw_all(&x, g, LARGE);
        all[k]->sweep(&h, LARGE, memory, g, whole);
        for (size_t at = 0, n = 1; at < LARGE; at += n, n = n * 3 % 1009) {
            float *part[OPTIM_MAX_SLOTS] = { memory + 4 * LARGE + at, memory + 5 * LARGE + at };

            if (n > LARGE - at)
                n = LARGE - at;
            all[k]->sweep(&h, n, memory + 3 * LARGE + at, g + at, part);
        }
        assert_memory_equal(memory, memory + 3 * LARGE, 3 * LARGE * sizeof(*memory));
    }
    free(memory);
}

static void rows_are_found_by_name_and_say_their_slots(void **state)
{
    (void)state;
    assert_int_equal(optim_find("sgd")->n_slots, 0);
    assert_int_equal(optim_find("momentum")->n_slots, 1);
    assert_string_equal(optim_find("momentum")->slots[0], "momentum");
    assert_int_equal(optim_find("adamw")->n_slots, 2);
    assert_string_equal(optim_find("adam")->slots[0], "exp_avg");
    assert_string_equal(optim_find("adam")->slots[1], "exp_avg_sq");
    assert_null(optim_find("Adam"));
    assert_null(optim_find(""));
}

static void the_norm_has_the_same_bits_whoever_computed_which_blocks(void **state)
{
    float *g = malloc(LARGE * sizeof(*g));
    double whole[4], parts[4], sum = 0;
    uint32_t x = 9;

    (void)state;
    draw_all(&x, g, LARGE);
    optim_square_sums(g, LARGE, whole);
    for (size_t i = 4; i-- > 0;) /* from the last to the first */
        optim_square_sums(g + i * OPTIM_BLOCK, i < 3 ? OPTIM_BLOCK : LARGE - 3 * OPTIM_BLOCK,
                          &parts[i]);
    assert_memory_equal(whole, parts, sizeof(whole));
    for (size_t i = 0; i < LARGE; i++)
        sum += (double)g[i] * (double)g[i];
    assert_true(fabs(optim_norm(whole, 4) - sqrt(sum)) < 1e-11 * sqrt(sum));
    assert_true(optim_norm(whole, 0) == 0);
    free(g);
}

/* The order of additions is fixed: 16 running sums, joined as a tree. */
static void a_square_sum_has_the_bits_of_its_definition(void **state)
{
    float g[1000];
    uint32_t x = 4;

    (void)state;
    draw_all(&x, g, 1000);
    for (size_t n = 0; n <= 1000; n += 37) {
        volatile double sums[16] = { 0 };
        double got = -1;

        for (size_t i = 0; i < n; i++)
            sums[i % 16] = sums[i % 16] + (double)g[i] * (double)g[i];
        for (size_t half = 8; half > 0; half /= 2)
            for (size_t k = 0; k < half; k++)
                sums[k] = sums[k] + sums[k + half];
        optim_square_sums(g, n, &got);
        assert_true(got == (n == 0 ? -1 : sums[0]));
    }
}

static void clipping_is_that_of_pytorch(void **state)
{
    (void)state;
    assert_true(optim_clip(5, 0) == 1);
    assert_true(optim_clip(0, 1) == 1);
    assert_true(optim_clip(0.5, 1) == 1);
    assert_true(optim_clip(4, 1) == (float)(1 / (4 + 1e-6)));
    assert_true(optim_clip(1, 1) == (float)(1 / (1 + 1e-6)));
    assert_true(optim_clip(INFINITY, 1) == 0);
    assert_true(isnan(optim_clip(NAN, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_steps_end_where_pytorch_ends),
        cmocka_unit_test(every_width_gives_the_bits_of_single_steps),
        cmocka_unit_test(cutting_the_range_changes_no_bit),
        cmocka_unit_test(rows_are_found_by_name_and_say_their_slots),
        cmocka_unit_test(the_norm_has_the_same_bits_whoever_computed_which_blocks),
        cmocka_unit_test(a_square_sum_has_the_bits_of_its_definition),
        cmocka_unit_test(clipping_is_that_of_pytorch),
    };

    return cmocka_run_group_tests_name("optim/optim", tests, NULL, NULL);
}
