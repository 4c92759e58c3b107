#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "data/order.h"

/* Sizes that divide each other or not, fewer records than a batch, and sizes of 1. */
static const struct {
    uint64_t n;
    uint32_t batch, lanes;
} cases[] = { { 1, 1, 1 },   { 7, 1, 1 },    { 7, 3, 3 },    { 8, 4, 2 },   { 10, 4, 4 },
              { 64, 16, 4 }, { 100, 12, 6 }, { 101, 10, 5 }, { 5, 8, 4 },   { 3, 32, 8 },
              { 257, 32, 1 }, { 1000, 48, 16 } };
/* Returns the sample of data_order_pick(), and whether it is real. */
static uint64_t order_record(const struct data_order *o, uint64_t step, uint32_t lane, uint32_t i,
                             bool *real)
{
    struct data_pick pick = data_order_pick(o, step, lane, i);

    assert_int_equal(pick.epoch, (step - 1) / data_order_steps(o));
    *real = pick.real;
    return pick.sample;
}

enum { N_CASES = sizeof(cases) / sizeof(*cases) };

static struct data_order order_of(size_t c, bool shuffle, bool pad)
{
    return (struct data_order){ .n = cases[c].n, .seed = 11 + c, .global_batch = cases[c].batch,
                                .lanes = cases[c].lanes, .shuffle = shuffle, .pad = pad };
}

static void order_epoch_contains_each_sample_once(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_CASES; c++) {
        for (int kind = 0; kind < 4; kind++) {
            struct data_order o = order_of(c, kind & 1, kind & 2);
            uint64_t steps = data_order_steps(&o), full = o.n / o.global_batch;
            uint64_t expected = o.pad ? o.n : full * o.global_batch;

            assert_int_equal(steps, o.pad ? (o.n + o.global_batch - 1) / o.global_batch : full);
            for (uint64_t epoch = 0; epoch < 3 && steps > 0; epoch++) {
                uint8_t *seen = calloc(o.n, 1);
                uint64_t n_real = 0;

                for (uint64_t k = epoch * steps + 1; k <= (epoch + 1) * steps; k++)
                    for (uint32_t l = 0; l < o.lanes; l++)
                        for (uint32_t i = 0; i < o.global_batch / o.lanes; i++) {
                            bool real;
                            uint64_t r = order_record(&o, k, l, i, &real);

                            assert_true(r < o.n);
                            n_real += real;
                            assert_false(real && seen[r]++);
                        }
                assert_int_equal(n_real, expected);
                free(seen);
            }
        }
    }
}

static void order_without_shuffling_is_the_identity(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_CASES; c++) {
        struct data_order o = order_of(c, false, true);
        uint64_t steps = data_order_steps(&o), position = 0;

        for (uint64_t k = 1; k <= 2 * steps; k++) {
            position = k == steps + 1 ? 0 : position;
            for (uint32_t l = 0; l < o.lanes; l++)
                for (uint32_t i = 0; i < o.global_batch / o.lanes; i++, position++) {
                    bool real;

                    assert_int_equal(order_record(&o, k, l, i, &real), position % o.n);
                    assert_int_equal(real, position < o.n);
                }
        }
    }
}

static void order_padding_repeats_the_start_of_the_epoch(void **state)
{
    struct data_order o = { .n = 10, .seed = 3, .global_batch = 8, .lanes = 2, .shuffle = true,
                            .pad = true };
    bool real;

    (void)state;
    for (uint64_t epoch = 0; epoch < 4; epoch++)
        for (uint32_t i = 0; i < 6; i++) { /* positions 10 .. 15: lane 0 samples 2, 3, lane 1 */
            uint64_t fill = order_record(&o, epoch * 2 + 2, (i + 2) / 4, (i + 2) % 4, &real);

            assert_false(real);
            assert_int_equal(fill, order_record(&o, epoch * 2 + 1, i / 4, i % 4, &real));
            assert_true(real);
        }
}

/* Sample j of the global batch is the same record for any number of lanes. */
static void order_is_independent_of_the_number_of_lanes(void **state)
{
    (void)state;
    for (uint32_t lanes = 1; lanes <= 24; lanes++) {
        struct data_order one = { .n = 90, .seed = 5, .global_batch = 24, .lanes = 1,
                                  .shuffle = true };
        struct data_order cut = one;

        if (24 % lanes != 0)
            continue;
        cut.lanes = lanes;
        for (uint64_t k = 1; k < 8; k++)
            for (uint32_t j = 0; j < 24; j++) {
                bool real;
                uint32_t size = 24 / lanes;

                assert_int_equal(order_record(&one, k, 0, j, &real),
                                 order_record(&cut, k, j / size, j % size, &real));
            }
    }
}

static void order_differs_between_epochs_and_seeds(void **state)
{
    struct data_order a = { .n = 1000, .seed = 1, .global_batch = 1000, .lanes = 1,
                            .shuffle = true };
    struct data_order b = a;
    uint32_t same_epoch = 0, same_seed = 0, in_place = 0;

    (void)state;
    b.seed = 2;
    for (uint32_t i = 0; i < 1000; i++) {
        bool real;
        uint64_t r = order_record(&a, 1, 0, i, &real);

        in_place += r == i;
        same_epoch += r == order_record(&a, 2, 0, i, &real);
        same_seed += r == order_record(&b, 1, 0, i, &real);
    }
    assert_in_range(in_place, 0, 20); /* the expected value for a random order is 1 */
    assert_in_range(same_epoch, 0, 20);
    assert_in_range(same_seed, 0, 20);
}

static void order_of_a_batch_larger_than_the_set_has_steps_only_with_padding(void **state)
{
    struct data_order o = { .n = 5, .global_batch = 8, .lanes = 4 };

    (void)state;
    assert_int_equal(data_order_steps(&o), 0);
    o.pad = true;
    assert_int_equal(data_order_steps(&o), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_epoch_contains_each_sample_once),
        cmocka_unit_test(order_without_shuffling_is_the_identity),
        cmocka_unit_test(order_padding_repeats_the_start_of_the_epoch),
        cmocka_unit_test(order_is_independent_of_the_number_of_lanes),
        cmocka_unit_test(order_differs_between_epochs_and_seeds),
        cmocka_unit_test(order_of_a_batch_larger_than_the_set_has_steps_only_with_padding),
    };

    return cmocka_run_group_tests_name("data/order", tests, NULL, NULL);
}
