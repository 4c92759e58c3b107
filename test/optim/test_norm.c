/* Sums of squares, norms and clipping: every sum has the bits of its definition, for any number of parts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/kit.h"
#include "optim/optim.h"
#include "tensor/packed.h"

enum { LARGE = 3 * OPTIM_BLOCK + 777 };

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
    assert_true(fabs(whole[0] + whole[1] + whole[2] + whole[3] - sum) < 1e-11 * sum);
    free(g);
}

/* ---- sharded tables ---- */

/* Narrow rows: many blocks of 64 rows in one shard; a partial last block; wide rows: a block of 64 rows
 * has several blocks of the optimizer, the last one partial. */
static const struct packed_table sharded_tables[] = {
    { .rows = 2 * 64 * 1024 + 100, .width = 1 },
    { .rows = 333, .width = 3 },
    { .rows = 200, .width = 100 },
    { .rows = 640, .width = 64 },
};
enum { SHARDED = sizeof(sharded_tables) / sizeof(*sharded_tables), DENSE = 5000,
       SHARDED_FLOATS = DENSE + 2 * 64 * 1024 + 100 + 999 + 20000 + 40960 };

/* Table 2 is between the sharded tables, and is not sharded. */
static bool is_sharded(uint32_t table)
{
    return table != 2;
}

/* The definition, one element at a time, of the dense gradient g. */
static double square_by_hand(const float *g, size_t n)
{
    double sum = 0;

    for (size_t at = 0; at < n; at += 4096) {
        double part[16] = { 0 };

        for (size_t i = at; i < n && i < at + 4096; i++)
            part[i % 16] += (double)g[i] * (double)g[i];
        for (int half = 8; half > 0; half /= 2)
            for (int k = 0; k < half; k++)
                part[k] += part[k + half];
        sum += part[0];
    }
    return sum;
}

static double norm_by_hand(const float *g, double more)
{
    double dense = 0, sharded = 0;

    for (size_t at = 0; at < DENSE; at += 4096)
        dense += square_by_hand(g + at, DENSE - at < 4096 ? DENSE - at : 4096);
    for (size_t at = 0, first = DENSE + 2 * 64 * 1024 + 100 + 999; at < 20000; at += 4096)
        dense += square_by_hand(g + first + at, 20000 - at < 4096 ? 20000 - at : 4096);
    for (uint64_t shard = 0; shard < 1024; shard++) {
        const float *of_table = g + DENSE;
        uint64_t number = 0;
        double in_shard = 0;

        for (uint32_t t = 0; t < SHARDED; t++) {
            size_t rows = sharded_tables[t].rows, width = sharded_tables[t].width;

            for (size_t r = 0; is_sharded(t) && r < rows; r += 64)
                if ((r / 64 + number * 389) % 1024 == shard)
                    in_shard += square_by_hand(of_table + r * width,
                                               (rows - r < 64 ? rows - r : 64) * width);
            number += is_sharded(t);
            of_table += rows * width;
        }
        sharded += in_shard;
    }
    return sqrt(dense + (sharded + more));
}

/* One row in `one_in` has a gradient. g: dense; values: the rows with a gradient. */
static void draw_sharded(uint32_t one_in, float *g, struct packed *rows, float *values)
{
    uint32_t x = 7 + one_in;
    size_t at = DENSE, next = 0;

    packed_clear(rows);
    draw_all(&x, g, DENSE);
    for (uint32_t t = 0; t < SHARDED; t++) {
        size_t width = rows->tables[t].width;

        for (size_t r = 0; r < rows->tables[t].rows; r++, at += width) {
            memset(g + at, 0, width * sizeof(*g));
            if ((r * 7 + t) % one_in != 0)
                continue;
            draw_all(&x, g + at, width);
            for (size_t i = 0; i < width; i++) /* over a wide range, so that the order matters */
                g[at + i] = ldexpf(g[at + i], (int)(r % 23) - 11);
            rows->marks[rows->tables[t].first_word + r / 64] |= (uint64_t)1 << r % 64;
            memcpy(values + next, g + at, width * sizeof(*g));
            next += width;
        }
    }
    packed_index(rows);
    assert_int_equal(at, SHARDED_FLOATS);
}

static void check_sharded(struct optim *o, uint32_t n_parts, const struct optim_state *state,
                          double expected)
{
    double norm;

    for (uint32_t part = n_parts; part-- > 0;)
        optim_measure_gradient(o, part, state);
    norm = optim_gradient_norm(o, 1.5);
    if (memcmp(&norm, &expected, sizeof(norm)) != 0)
        fail_msg("%u parts: norm %.17g, expected %.17g", n_parts, norm, expected);
}

/* Rows of 256 floats; the last one is shorter, and its block has 20 rows. */
static void norm_of_sharded_dense_parameters_has_the_bits_of_its_definition(void **state)
{
    enum { FLOATS = (3 * 64 + 20) * 256 - 100, BLOCK = 64 * 256, SMALL = 10 };
    const struct optim_param params[] = {
        { .n = FLOATS, .rate_factor = 1, .is_sharded = true, .first_shard = 1022, .width = 256 },
        { .first = FLOATS, .n = SMALL, .rate_factor = 1, .is_sharded = true, .first_shard = 1, .width = 256 },
    };
    float *g = calloc(FLOATS + SMALL, sizeof(*g));
    double expected = 0;
    uint32_t x = 9;

    (void)state;
    draw_all(&x, g, FLOATS + SMALL);
    for (size_t i = 0; i < FLOATS; i++)
        g[i] = ldexpf(g[i], (int)(i % 23) - 11);
    /* shards 0 and 1, then 1022 and 1023, which have blocks 2, 3, 0, 1 */
    expected += square_by_hand(g + 2 * BLOCK, BLOCK);
    expected +=
        square_by_hand(g + 3 * BLOCK, FLOATS - 3 * BLOCK) + square_by_hand(g + FLOATS, SMALL);
    expected += square_by_hand(g, BLOCK);
    expected += square_by_hand(g + BLOCK, BLOCK);
    expected = sqrt(0 + (expected + 1.5));
    for (uint32_t n_parts = 1; n_parts <= 7; n_parts += 3) {
        struct optim *o = optim_of(optim_get(OPTIM_SGD), params, 2, n_parts, 0);

        check_sharded(o, n_parts, &(struct optim_state){ .g = g }, expected);
        optim_free(o);
    }
    free(g);
}

static void norm_with_sharded_tables_has_the_bits_of_its_definition_for_any_parts(void **state)
{
    static const uint32_t density[] = { 1, 5, 300 };
    struct packed_table tables[SHARDED];
    struct optim_param params[1 + SHARDED] = { { .n = DENSE, .rate_factor = 1 } };
    size_t words, at = DENSE;
    float *g = malloc(SHARDED_FLOATS * sizeof(*g)), *values = malloc(SHARDED_FLOATS * sizeof(*g));
    void *memory;
    struct packed rows;

    (void)state;
    memcpy(tables, sharded_tables, sizeof(tables));
    words = packed_layout(tables, SHARDED);
    memory = malloc(packed_bytes(SHARDED, words));
    rows = packed_init(tables, SHARDED, words, memory);
    for (uint32_t t = 0, number = 0; t < SHARDED; t++) {
        size_t n = tables[t].rows * tables[t].width;

        params[1 + t] = (struct optim_param){ .first = at, .n = n, .rate_factor = 1,
                                              .table = &tables[t], .is_sharded = is_sharded(t),
                                              .first_shard = number * 389 % 1024,
                                              .width = tables[t].width };
        number += is_sharded(t);
        at += n;
    }
    for (uint32_t n_parts = 1; n_parts <= 40; n_parts += 13)
        for (uint32_t k = 0; k < sizeof(density) / sizeof(*density); k++) {
            struct optim_state s = { .g = g };
            struct optim *o = optim_of(optim_get(OPTIM_SGD), params, 1 + SHARDED, n_parts, 0);
            double expected;

            draw_sharded(density[k], g, &rows, values);
            expected = norm_by_hand(g, 1.5);
            check_sharded(o, n_parts, &s, expected);
            memset(g + DENSE, 0xff, (SHARDED_FLOATS - DENSE) * sizeof(*g)); /* not read */
            s.packed = &rows;
            s.values = values;
            check_sharded(o, n_parts, &s, expected);
            optim_free(o);
        }
    free(g);
    free(values);
    free(memory);
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

static void square_sum_of_rows_has_the_bits_of_its_definition(void **state)
{
    enum { PERIOD = 64, WIDTH_MAX = 65 };
    static float g[PERIOD * WIDTH_MAX];
    uint64_t rows[PERIOD];
    uint32_t x = 6;

    (void)state;
    draw_all(&x, g, PERIOD * WIDTH_MAX);
    for (size_t width = 1; width <= WIDTH_MAX - 1; width++)
        for (size_t stride = 1; stride <= 9; stride += 4) {
            volatile double sums[16] = { 0 };
            size_t n = 0;

            for (size_t row = stride - 1; row < PERIOD; row += stride) {
                rows[n] = 3 * PERIOD + row;
                for (size_t i = 0; i < width; i++) {
                    double v = (double)g[n * width + i];

                    sums[(row * width + i) % 16] = sums[(row * width + i) % 16] + v * v;
                }
                n++;
            }
            for (size_t half = 8; half > 0; half /= 2)
                for (size_t k = 0; k < half; k++)
                    sums[k] = sums[k] + sums[k + half];
            assert_true(optim_square_rows(rows, n, width, PERIOD, g) == sums[0]);
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
        cmocka_unit_test(the_norm_has_the_same_bits_whoever_computed_which_blocks),
        cmocka_unit_test(norm_of_sharded_dense_parameters_has_the_bits_of_its_definition),
        cmocka_unit_test(norm_with_sharded_tables_has_the_bits_of_its_definition_for_any_parts),
        cmocka_unit_test(a_square_sum_has_the_bits_of_its_definition),
        cmocka_unit_test(square_sum_of_rows_has_the_bits_of_its_definition),
        cmocka_unit_test(clipping_is_that_of_pytorch),
    };

    return cmocka_run_group_tests_name("optim/norm", tests, NULL, NULL);
}
