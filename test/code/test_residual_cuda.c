/* Codes with residuals on a GPU (code/top_k_cuda.cuh, code/power_sgd_cuda.cuh) against those on CPUs, byte by byte: an
 * emulated GPU, or with TRAINERD_TEST_CUDA=1 the first GPU that the plugin finds. The CPU's have oracles of their own in
 * test_top_k.c and test_power_sgd.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "code/gpu_kit.h"
#include "code/power_sgd.h"
#include "code/residual.h"
#include "code/top_k.h"
#include "engine/lanes.h"
#include "harness/emulated_gpus.h"

static void take_from_gpu(void *to, void *from, size_t bytes)
{
    from_gpu(to, from, bytes);
    cuda->free(from);
}

/* NaN has other bits on a GPU. */
static void expect_floats(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof(got[i])) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: number %zu is %a, expected %a", what, i, (double)got[i], (double)want[i]);
}

static uint32_t next(uint32_t *s)
{
    *s = 1664525 * *s + 1013904223;
    return *s >> 8;
}

/* Numbers of `spread` binades from 2^base on; many are equal with few bits. */
static void fill(float *x, size_t n, int base, uint32_t spread, uint32_t bits, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double size = ldexp(1 + (double)(next(&seed) >> (24 - bits)) / ldexp(1, (int)bits),
                            base + (int)(next(&seed) % spread));

        x[i] = (float)(next(&seed) % 2 == 0 ? size : -size);
    }
}

/* ---- residuals ---- */

static void residual_and_gradient_are_added_as_on_a_cpu(void **state)
{
    enum { N = 1237 };
    static float gradient[N], residual[N], want[N], got[N];
    float *there, *gradient_there;

    (void)state;
    fill(gradient, N, -102, 6, 23, 1);
    fill(residual, N, -102, 6, 23, 2);
    for (size_t i = 0; i < N; i += 5)
        residual[i] = -gradient[i];
    gradient[3] = NAN;
    gradient[4] = -INFINITY;
    code_residual_add(gradient, residual, N, want);
    there = to_gpu(residual, sizeof(residual));
    gradient_there = to_gpu(gradient, sizeof(gradient));
    MUST(cuda->math->residual_add(there, gradient_there, N, stream, &err));
    take_from_gpu(got, there, sizeof(got));
    cuda->free(gradient_there);
    expect_floats(got, want, N, "sum");
}

/* ---- top_k ---- */

enum { TOP_K_MOST = 2 * TOP_K_BLOCK + 777 };

static const size_t lengths[] = { 1, 31, 512, 513, TOP_K_BLOCK - 1, TOP_K_BLOCK, TOP_K_BLOCK + 1, TOP_K_MOST };
static const double fractions[] = { 1e-9, 0.01, 0.05, 0.3, 1 };

static void expect_equal_codes(const float *x, size_t n, double fraction, const char *what)
{
    static float left[TOP_K_MOST], got_left[TOP_K_MOST];
    static uint8_t want[8 * TOP_K_MOST], got[8 * TOP_K_MOST];
    size_t bytes = top_k_bytes(fraction, n);
    float *x_there = to_gpu(x, n * sizeof(*x));
    uint8_t *code_there;

    memset(got, 0xa5, bytes + 4);
    code_there = to_gpu(got, bytes + 4);
    memcpy(left, x, n * sizeof(*x));
    memset(want, 0xa5, bytes + 4);
    top_k_encode(fraction, left, n, want);
    MUST(cuda->math->top_k_encode(fraction, x_there, n, code_there, stream, &err));
    take_from_gpu(got, code_there, bytes + 4);
    take_from_gpu(got_left, x_there, n * sizeof(*x));
    for (size_t i = 0; i < bytes + 4; i++)
        if (got[i] != want[i])
            fail_msg("%s, fraction %g of %zu: byte %zu of %zu is %02x, expected %02x", what,
                     fraction, n, i, bytes, got[i], want[i]);
    expect_floats(got_left, left, n, what);
}

static void largest_numbers_have_the_bytes_of_the_cpu(void **state)
{
    static float x[TOP_K_MOST];

    (void)state;
    for (size_t k = 0; k < COUNT_OF(lengths); k++)
        for (size_t f = 0; f < COUNT_OF(fractions); f++) {
            size_t n = lengths[k];

            fill(x, n, -20, 30, 23, 11);
            expect_equal_codes(x, n, fractions[f], "numbers of all sizes");
            fill(x, n, 0, 2, 1, 12);
            expect_equal_codes(x, n, fractions[f], "numbers of four sizes");
            memset(x, 0, sizeof(x));
            expect_equal_codes(x, n, fractions[f], "zeros");
            x[n / 2] = -1e-29f;
            expect_equal_codes(x, n, fractions[f], "one number");
            x[n - 1] = f % 2 == 0 ? NAN : -INFINITY;
            expect_equal_codes(x, n, fractions[f], "a number that is not finite");
        }
}

/* y [n] = the sum of codes [first, first + n_codes), by the definition of the tree. */
static void sum_on_cpu(const uint8_t *codes, size_t stride, uint32_t first, uint32_t n_codes,
                       double fraction, float *y, size_t n)
{
    float *right;

    if (n_codes == 1) {
        top_k_decode(fraction, codes + first * stride, n, y);
        return;
    }
    right = malloc(n * sizeof(*right));
    assert_non_null(right);
    sum_on_cpu(codes, stride, first, n_codes / 2, fraction, y, n);
    sum_on_cpu(codes, stride, first + n_codes / 2, n_codes / 2, fraction, right, n);
    tree_add_f32(y, right, n);
    free(right);
}

static void sums_follow_the_tree_over_groups(void **state)
{
    enum { GROUPS = 16 };
    static float x[TOP_K_MOST], want[TOP_K_MOST], got[TOP_K_MOST];

    (void)state;
    for (size_t f = 0; f < COUNT_OF(fractions); f++) {
        size_t stride = top_k_bytes(fractions[f], TOP_K_MOST) + 16;
        uint8_t *codes = calloc(GROUPS, stride), *there;

        assert_non_null(codes);
        for (uint32_t g = 0; g < GROUPS; g++) {
            fill(x, TOP_K_MOST, -12, 20, 23, g + 1);
            top_k_encode(fractions[f], x, TOP_K_MOST, codes + g * stride);
        }
        there = to_gpu(codes, GROUPS * stride);
        for (uint32_t n_codes = 1; n_codes <= GROUPS; n_codes *= 2) {
            float *y = to_gpu(x, sizeof(x));

            sum_on_cpu(codes, stride, 0, n_codes, fractions[f], want, TOP_K_MOST);
            MUST(cuda->math->top_k_sum(fractions[f], there, stride, n_codes, y, TOP_K_MOST, stream,
                                       &err));
            take_from_gpu(got, y, sizeof(got));
            expect_floats(got, want, TOP_K_MOST, "sum");
        }
        cuda->free(there);
        free(codes);
    }
}

/* The last index of a code is none of its block. */
static void index_beyond_a_block_makes_its_first_number_nan(void **state)
{
    enum { N = 100, K = 5 };
    float x[N], got[N], *y;
    uint8_t code[64], *there;

    (void)state;
    fill(x, N, 0, 3, 23, 5);
    assert_int_equal(top_k_bytes(0.05, N), K * 4 + 8);
    top_k_encode(0.05, x, N, code);
    code[K * 4 + 6] = N;
    code[K * 4 + 7] = 0;
    y = to_gpu(x, sizeof(x));
    there = to_gpu(code, sizeof(code));
    MUST(cuda->math->top_k_sum(0.05, there, 64, 1, y, N, stream, &err));
    take_from_gpu(got, y, sizeof(got));
    cuda->free(there);
    assert_true(isnan(got[0]));
    for (size_t i = 1; i < N; i++)
        assert_false(isnan(got[i]));
}

/* ---- power_sgd ---- */

static const struct power_sgd shapes[] = { { 1, 3, 1, 7, 0 },   { 3, 1, 1, 7, 1 },     { 17, 15, 2, 7, 2 },
                                           { 64, 48, 4, 7, 3 }, { 70, 290, 5, 7, 4 },  { 300, 33, 3, 7, 5 },
                                           { 40, 64, 8, UINT64_C(0x123456789abcdef), 6 } };

enum { MOST = 300 * 290, FACTOR_MOST = 8 * 300 };

struct step { /* what a step with the code makes of a matrix */
    float q[FACTOR_MOST], p[FACTOR_MOST], orthonormal[FACTOR_MOST], next_q[FACTOR_MOST], y[MOST], left[MOST];
};

static void step_on_cpu(const struct power_sgd *s, const float *x, struct step *out)
{
    power_sgd_begin(s, out->q);
    power_sgd_left(s, x, out->q, out->p);
    memcpy(out->orthonormal, out->p, sizeof(out->p));
    power_sgd_orthogonalize(s, out->orthonormal);
    power_sgd_right(s, x, out->orthonormal, out->next_q);
    power_sgd_decode(s, out->orthonormal, out->next_q, out->y);
    memcpy(out->left, x, s->rows * s->cols * sizeof(*x));
    power_sgd_subtract(s, out->orthonormal, out->next_q, out->left);
}

static void step_on_gpu(const struct power_sgd *s, const float *x, struct step *out)
{
    const struct cuda_math *math = cuda->math;
    size_t n = s->rows * s->cols;
    float *q = to_gpu(out->q, sizeof(out->q)), *p = to_gpu(out->p, sizeof(out->p));
    float *next_q = to_gpu(out->next_q, sizeof(out->next_q)), *y = to_gpu(out->y, sizeof(out->y));
    float *left = to_gpu(x, n * sizeof(*x));

    MUST(math->power_sgd_begin(s, q, stream, &err));
    MUST(math->power_sgd_left(s, left, q, p, stream, &err));
    MUST(cuda->copy(out->p, p, sizeof(out->p), stream, &err));
    MUST(math->power_sgd_orthogonalize(s, p, stream, &err));
    MUST(math->power_sgd_right(s, left, p, next_q, stream, &err));
    MUST(math->power_sgd_decode(s, p, next_q, y, stream, &err));
    MUST(math->power_sgd_subtract(s, p, next_q, left, stream, &err));
    take_from_gpu(out->q, q, sizeof(out->q));
    take_from_gpu(out->orthonormal, p, sizeof(out->p));
    take_from_gpu(out->next_q, next_q, sizeof(out->next_q));
    take_from_gpu(out->y, y, sizeof(out->y));
    take_from_gpu(out->left, left, n * sizeof(*x));
}

static void expect_equal_steps(const struct power_sgd *s, const float *x, const float *q,
                               const char *what)
{
    static struct step want, got;
    size_t n = s->rows * s->cols, n_p = s->rank * s->rows, n_q = s->rank * s->cols;

    memset(&want, 0, sizeof(want));
    memcpy(want.q, q, n_q * sizeof(*q));
    memcpy(&got, &want, sizeof(got));
    step_on_cpu(s, x, &want);
    step_on_gpu(s, x, &got);
    expect_floats(got.q, want.q, n_q, what);
    expect_floats(got.p, want.p, n_p, what);
    expect_floats(got.orthonormal, want.orthonormal, n_p, what);
    expect_floats(got.next_q, want.next_q, n_q, what);
    expect_floats(got.y, want.y, n, what);
    expect_floats(got.left, want.left, n, what);
}

static void factors_have_the_bits_of_the_cpu(void **state)
{
    static float x[MOST], q[FACTOR_MOST];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const struct power_sgd *s = &shapes[i];
        size_t n = s->rows * s->cols;

        memset(q, 0, sizeof(q));
        fill(x, n, -8, 8, 23, 3);
        expect_equal_steps(s, x, q, "random factors");
        fill(q, FACTOR_MOST, -3, 4, 23, 4);
        expect_equal_steps(s, x, q, "warm start");
        for (size_t r = 1; r < s->rows; r++) /* rank 1: rows of P depend on the first one */
            for (size_t c = 0; c < s->cols; c++)
                x[r * s->cols + c] = x[c] * (float)r;
        expect_equal_steps(s, x, q, "rows that depend on others");
        memset(x, 0, sizeof(x));
        expect_equal_steps(s, x, q, "zeros");
        x[n / 2] = NAN;
        expect_equal_steps(s, x, q, "a number that is not finite");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_and_gradient_are_added_as_on_a_cpu),
        cmocka_unit_test(largest_numbers_have_the_bytes_of_the_cpu),
        cmocka_unit_test(sums_follow_the_tree_over_groups),
        cmocka_unit_test(index_beyond_a_block_makes_its_first_number_nan),
        cmocka_unit_test(factors_have_the_bits_of_the_cpu),
    };

    (void)argc;
    emulated_gpus(argv);
    open_gpu();
    return cmocka_run_group_tests_name("code/residual_cuda", tests, NULL, NULL);
}
