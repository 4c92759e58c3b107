/* Kernels: behaviour defined by CUDA is computed, and undefined behaviour is detected. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime.h>

#include "cuda/emulator.h"
#include "cuda/test_kernels.h"
#include "cuda/test_kit.h"

/* ---- kernels ---- */

static void kernel_launch_computes_exactly_every_element(void **state)
{
    enum { N = 1000 };
    float x[N], y[N], *dx, *dy, *got;
    cudaStream_t s = new_stream();
    int i;

    (void)state;
    for (i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = 1.0f;
    }
    dx = new_floats(N, x);
    dy = new_floats(N, y);
    launch_axpy(N, 2.0f, dx, dy, s);
    launch_axpy(N, -1.0f, dx, dy, s);
    OK(cudaGetLastError());
    got = fetch(dy, sizeof(y));
    for (i = 0; i < N; i++)
        assert_true(got[i] == (float)i + 1.0f);
    free(got);
    OK(cudaFree(dx));
    OK(cudaFree(dy));
    OK(cudaStreamDestroy(s));
}

static void sum_kernel_with_shuffles_and_atomics_is_exact(void **state)
{
    static const uint32_t sizes[] = { 1, 31, 33, 256, 1000, 100000 };
    cudaStream_t s = new_stream();
    size_t k;

    (void)state;
    for (k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        uint32_t n = sizes[k], i;
        float *x = malloc(n * sizeof(*x)), *dx;
        int zero = 0, expected = 0, got, *dsum = new_memory(sizeof(*dsum));

        assert_non_null(x);
        for (i = 0; i < n; i++) {
            x[i] = (float)(i % 7) - 2.0f; /* sums of small integers are exact */
            expected += (int)x[i];
        }
        dx = new_floats(n, x);
        OK(cudaMemcpy(dsum, &zero, sizeof(zero), cudaMemcpyDefault));
        launch_sum(n, dx, dsum, s);
        OK(cudaStreamSynchronize(s));
        OK(cudaMemcpy(&got, dsum, sizeof(got), cudaMemcpyDefault));
        assert_int_equal(got, expected);
        free(x);
        OK(cudaFree(dx));
        OK(cudaFree(dsum));
    }
    OK(cudaStreamDestroy(s));
}

static void shared_memory_tile_is_visible_to_whole_block(void **state)
{
    enum { ROWS = 37, COLUMNS = 50 };
    float x[ROWS * COLUMNS], *dx, *dy, *got;
    cudaStream_t s = new_stream();
    int i;

    (void)state;
    for (i = 0; i < ROWS * COLUMNS; i++)
        x[i] = (float)i;
    dx = new_floats(ROWS * COLUMNS, x);
    dy = new_memory(sizeof(x));
    launch_transpose(ROWS, COLUMNS, dx, dy, s);
    got = fetch(dy, sizeof(x));
    for (i = 0; i < ROWS * COLUMNS; i++)
        assert_true(got[i % COLUMNS * ROWS + i / COLUMNS] == x[i]);
    free(got);
    OK(cudaFree(dx));
    OK(cudaFree(dy));
    OK(cudaStreamDestroy(s));
}

static void threads_of_3d_launch_run_exactly_once(void **state)
{
    const dim3 grid = { 3, 4, 5 }, block = { 8, 3, 2 };
    enum { N = 3 * 4 * 5 * 8 * 3 * 2 };
    cudaStream_t s = new_stream();
    unsigned int *y = new_memory(N * sizeof(*y)), *got, i;

    (void)state;
    OK(cudaMemsetAsync(y, 0, N * sizeof(*y), s));
    launch_position(grid, block, y, s);
    got = fetch(y, N * sizeof(*y));
    for (i = 0; i < N; i++)
        assert_int_equal(got[i], i);
    free(got);
    OK(cudaFree(y));
    OK(cudaStreamDestroy(s));
}

static void template_kernel_with_commas_is_launched(void **state)
{
    enum { N = 1111 };
    float *x = new_memory(N * sizeof(*x)), *got;
    cudaStream_t s = new_stream();
    int i;

    (void)state;
    launch_fill(N, 0.5f, x, s);
    got = fetch(x, N * sizeof(*x));
    for (i = 0; i < N; i++)
        assert_true(got[i] == 0.5f * (float)i);
    free(got);
    OK(cudaFree(x));
    OK(cudaStreamDestroy(s));
}

static void atomics_under_contention_lose_no_update(void **state)
{
    enum { N = 1002 };
    cudaStream_t s = new_stream();
    unsigned int *counts = new_memory(4 * sizeof(*counts)), *c;
    unsigned long long *sum = new_memory(sizeof(*sum)), *t;
    int *bounds = new_memory(5 * sizeof(*bounds)), *b;

    (void)state;
    OK(cudaMemsetAsync(counts, 0, 4 * sizeof(*counts), s));
    OK(cudaMemsetAsync(sum, 0, sizeof(*sum), s));
    OK(cudaMemsetAsync(bounds, 0, 5 * sizeof(*bounds), s));
    launch_atomics(N, counts, sum, bounds, s);
    c = fetch(counts, 4 * sizeof(*counts));
    t = fetch(sum, sizeof(*sum));
    b = fetch(bounds, 5 * sizeof(*bounds));
    assert_int_equal(c[0], 251);
    assert_int_equal(c[1], 251);
    assert_int_equal(c[2], 250);
    assert_int_equal(c[3], 250);
    assert_int_equal(*t, (uint64_t)N * (N - 1) / 2);
    assert_int_equal(b[0], -(N - 1));
    assert_int_equal(b[1], N - 1);
    assert_int_equal(b[2], 255);
    assert_int_equal(b[3], 0);
    assert_int_equal(b[4], N);
    free(c);
    free(t);
    free(b);
    OK(cudaFree(counts));
    OK(cudaFree(sum));
    OK(cudaFree(bounds));
    OK(cudaStreamDestroy(s));
}

static void shuffles_and_votes_match_warp_semantics(void **state)
{
    enum { N = 96 };
    int *y = new_memory(N * 8 * sizeof(*y)), *got, i;
    cudaStream_t s = new_stream();

    (void)state;
    launch_warp(N, y, s);
    got = fetch(y, N * 8 * sizeof(*y));
    for (i = 0; i < N; i++) {
        int lane = i % 32, first = i - lane, *v = got + i * 8;

        assert_int_equal(v[0], first + 3);
        assert_int_equal(v[1], lane == 0 ? i : i - 1);
        assert_int_equal(v[2], lane % 8 < 6 ? i + 2 : i);
        assert_int_equal(v[3], first + (lane ^ 5));
        assert_int_equal(v[4], 0x49249249);
        assert_int_equal(v[5], 2);
        assert_int_equal(v[6], lane % 2 != 0 ? first + 1 + 2 : -1);
        assert_int_equal(v[7], lane < 16 ? first + 15 : first + 31);
    }
    free(got);
    OK(cudaFree(y));
    OK(cudaStreamDestroy(s));
}

static void dynamic_shared_memory_above_48_kib_requires_attribute(void **state)
{
    enum { N = 227 * 256 };
    float *x = malloc(N * sizeof(*x)), *dx, *dy, *got;
    cudaStream_t s = new_stream();
    int i;

    (void)state;
    assert_non_null(x);
    for (i = 0; i < N; i++)
        x[i] = (float)i;
    dx = new_floats(N, x);
    dy = new_memory(N * sizeof(*x));
    OK(launch_reverse(48 << 8, 48 << 10, 0, dx, dy, s));
    OK(cudaStreamSynchronize(s));
    assert_true(fetch_float(dy) == (float)((48 << 8) - 1));
    assert_int_equal(launch_reverse(N, 228 << 10, 1, dx, dy, s), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    OK(launch_reverse(N, 227 << 10, 1, dx, dy, s));
    got = fetch(dy, N * sizeof(*x));
    for (i = 0; i < N; i++)
        assert_true(got[i] == (float)(N - 1 - i));
    free(got);
    free(x);
    OK(cudaFree(dx));
    OK(cudaFree(dy));
    OK(cudaStreamDestroy(s));
}

static void unwritten_memory_reads_as_nan(void **state)
{
    enum { N = 512 };
    float *y = new_memory(N * sizeof(*y)), *got;
    cudaStream_t s = new_stream();
    int i;

    (void)state;
    assert_true(isnan(fetch_float(y)));
    launch_unwritten(y, s);
    launch_unwritten(y, s); /* the second launch does not see data of the first either */
    got = fetch(y, N * sizeof(*y));
    for (i = 0; i < N; i++)
        assert_true(isnan(got[i]));
    free(got);
    OK(cudaFree(y));
    OK(cudaStreamDestroy(s));
}

/* Rounds in double arithmetic: to the nearest multiple of the spacing. */
static float rounded(float x, int bits, int least_exponent)
{
    int exponent;
    double unit;

    if (x == 0.0f || isnan(x) || isinf(x))
        return x;
    frexp((double)x, &exponent);
    exponent = exponent - 1 < least_exponent ? least_exponent : exponent - 1;
    unit = ldexp(1.0, exponent - bits);
    return (float)(nearbyint((double)x / unit) * unit);
}

static void float_conversions_round_to_nearest_even(void **state)
{
    enum { N = 20000 };
    float *x = malloc(N * sizeof(*x)), *dx, *dbf16, *dhalf, *bf16, *half;
    static const float special[] = { 0.0f,    -0.0f,    1.0f,     65504.0f, 65519.9f, 65520.0f,
                                     1e-8f,   2.98e-8f, 6e-8f,    6.1e-5f,  -6.0e-5f, 1e38f,
                                     3.4e38f, INFINITY, -INFINITY, NAN,     1e-40f,   3.39e38f };
    cudaStream_t s = new_stream();
    uint32_t i, bits = 12345;

    (void)state;
    assert_non_null(x);
    for (i = 0; i < N; i++) {
        bits = bits * 1664525 + 1013904223;
        x[i] = ldexpf((float)(bits >> 8) / 16777216.0f - 0.5f, (int)(bits % 40) - 26);
        if (i % 3 == 0) /* a tie in one of the formats */
            x[i] = (float)(2 * (bits >> 8) % 4096 + 1) * (i % 2 == 0 ? 1.0f : 0x1p-20f);
        if (i < sizeof(special) / sizeof(special[0]))
            x[i] = special[i];
    }
    dx = new_floats(N, x);
    dbf16 = new_memory(N * sizeof(*x));
    dhalf = new_memory(N * sizeof(*x));
    launch_round(N, dx, dbf16, dhalf, s);
    bf16 = fetch(dbf16, N * sizeof(*x));
    half = fetch(dhalf, N * sizeof(*x));
    for (i = 0; i < N; i++) {
        float b = rounded(x[i], 7, -126), h = rounded(x[i], 10, -14);

        if (fabsf(h) >= 65536.0f)
            h = copysignf(INFINITY, h);
        assert_true(isnan(x[i])
                        ? isnan(bf16[i]) && isnan(half[i])
                        : bf16[i] == b && half[i] == h && signbit(bf16[i]) == signbit(x[i]) &&
                              signbit(half[i]) == signbit(x[i]));
    }
    free(x);
    free(bf16);
    free(half);
    OK(cudaFree(dx));
    OK(cudaFree(dbf16));
    OK(cudaFree(dhalf));
    OK(cudaStreamDestroy(s));
}

/* Returns the order in which 64 blocks run; the caller frees it. */
static unsigned int *block_order(void)
{
    cudaStream_t s = new_stream();
    unsigned int *next = new_memory(sizeof(*next)), *first = new_memory(64 * sizeof(*first)), *got;

    OK(cudaMemsetAsync(next, 0, sizeof(*next), s));
    launch_order(64, next, first, s);
    got = fetch(first, 64 * sizeof(*first));
    OK(cudaFree(next));
    OK(cudaFree(first));
    OK(cudaStreamDestroy(s));
    return got;
}

static void print_order(int argument)
{
    unsigned int *order = block_order(), i;

    (void)argument;
    for (i = 0; i < 64; i++)
        fprintf(stderr, "%u ", order[i]);
    free(order);
}

static void blocks_run_once_in_order_of_seed(void **state)
{
    unsigned int *order = block_order(), seen[64] = { 0 }, i, ascending = 0;
    char first[1024], again[1024], other[1024];

    (void)state;
    for (i = 0; i < 64; i++) {
        assert_true(order[i] < 64);
        assert_int_equal(seen[order[i]]++, 0);
        ascending += i > 0 && order[i] == order[i - 1] + 1;
    }
    free(order);
    assert_true(ascending < 63);
    assert_true(scene_ends_well("print_order", 0, "EMULATED_SEED=7", first, sizeof(first)));
    assert_true(scene_ends_well("print_order", 0, "EMULATED_SEED=7", again, sizeof(again)));
    assert_true(scene_ends_well("print_order", 0, "EMULATED_SEED=8", other, sizeof(other)));
    assert_string_equal(first, again);
    assert_string_not_equal(first, other);
}

/* ---- undefined behaviour ---- */

static void launch_mistaken(int which)
{
    cudaStream_t s = new_stream();
    float *x = new_memory(which == MISTAKE_INTO_SLACK ? 32 : 256);

    launch_mistake((enum launch_mistake)which, x, s);
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(x));
}

static void invalid_kernel_ends_process_with_reason(void **state)
{
    static const struct {
        enum launch_mistake which;
        const char *says;
    } kernels[] = {
        { MISTAKE_RETURN_BEFORE_BARRIER, "threads 40 to 63 have returned" },
        { MISTAKE_TWO_BARRIERS, "threads 32 to 63 wait at __syncthreads" },
        { MISTAKE_SHUFFLE_OF_HALF, "mistaken: block (0, 0, 0): not all threads reach" },
        { MISTAKE_NOT_IN_MASK, "is not in the mask 0000ffff" },
        { MISTAKE_BLOCK_TOO_LARGE, "block (1025, 1, 1), expected 1 to 1024 threads" },
        { MISTAKE_GRID_TOO_LARGE, "grid (1, 65536, 1)" },
        { MISTAKE_SHARED_TOO_LARGE, "49153 bytes of shared memory" },
        { MISTAKE_BEYOND_END, "0 bytes beyond an allocation of 256 bytes" },
        { MISTAKE_INTO_SLACK, "written at 32 of an allocation of 32 bytes" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        expect_death("launch_mistaken", (int)kernels[i].which, NULL, kernels[i].says);
}

static const struct scene scenes[] = {
    { "print_order", print_order },
    { "launch_mistaken", launch_mistaken },
};

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernel_launch_computes_exactly_every_element),
        cmocka_unit_test(sum_kernel_with_shuffles_and_atomics_is_exact),
        cmocka_unit_test(shared_memory_tile_is_visible_to_whole_block),
        cmocka_unit_test(threads_of_3d_launch_run_exactly_once),
        cmocka_unit_test(template_kernel_with_commas_is_launched),
        cmocka_unit_test(atomics_under_contention_lose_no_update),
        cmocka_unit_test(shuffles_and_votes_match_warp_semantics),
        cmocka_unit_test(dynamic_shared_memory_above_48_kib_requires_attribute),
        cmocka_unit_test(unwritten_memory_reads_as_nan),
        cmocka_unit_test(float_conversions_round_to_nearest_even),
        cmocka_unit_test(blocks_run_once_in_order_of_seed),
        cmocka_unit_test(invalid_kernel_ends_process_with_reason),
    };

    scenes_play(scenes, sizeof(scenes) / sizeof(scenes[0]), argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
