/* test_memory.c - the layout of state and region, and what replaces them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "engine/memory.h"

enum { PARAMS = 96, TRAINED = 64, CONTROL = 16, REPLICAS = 3, WORDS = 4 };

static struct memory opened_with(const struct optim_hyper *h, bool has_average, uint32_t depth)
{
    struct memory_opts o = { .n_replicas = REPLICAS,
                             .head_bytes = 100,
                             .params = PARAMS,
                             .trained = TRAINED,
                             .dense = TRAINED,
                             .control = CONTROL,
                             .depth = depth,
                             .eval_words = WORDS,
                             .optimizer = optim_get(OPTIM_ADAM),
                             .hyper = h,
                             .has_average = has_average };
    struct memory m;
    struct err err;

    if (engine_memory_open(&m, &o, &err) < 0)
        fail_msg("%s", err.text);
    return m;
}

static struct memory opened(const struct optim_hyper *h, bool has_average)
{
    return opened_with(h, has_average, 4);
}

static void state_holds_parameters_slots_and_average_in_this_order(void **state)
{
    const struct optim_hyper h = { .beta1 = 0.9, .beta2 = 0.99 };
    struct memory m = opened(&h, true);

    (void)state;
    assert_ptr_equal(m.state, m.own.base);
    assert_ptr_equal(m.slots[0], m.state + PARAMS);
    assert_ptr_equal(m.slots[1], m.slots[0] + TRAINED);
    assert_ptr_equal(m.average, m.slots[1] + TRAINED);
    assert_int_equal(m.state_bytes, (PARAMS + 2 * TRAINED + PARAMS) * sizeof(float));
    engine_memory_close(&m);
}

static void residuals_are_last_and_exchange_floats_are_in_the_region_of_each_replica(void **state)
{
    const struct optim_hyper h = { .beta1 = 0.9, .beta2 = 0.99 };
    struct memory m = opened(&h, true);
    struct memory_opts o = m.opts;
    size_t state_bytes = m.state_bytes;
    struct device_mem spare;
    struct err err;

    (void)state;
    assert_null(m.residual);
    o.residual_floats = 100;
    o.exchange_floats = 1000;
    engine_memory_close(&m);
    assert_int_equal(engine_memory_open(&m, &o, &err), 0);
    assert_int_equal(m.state_bytes, state_bytes + 100 * sizeof(float));
    assert_ptr_equal(m.residual, (char *)m.state + state_bytes);
    for (uint32_t i = 0; i < o.n_replicas; i++) {
        const char *base = m.region.base;

        memset(m.arenas[i].exchange, 0xff, 1000 * sizeof(float));
        assert_true((char *)m.arenas[i].exchange >= base &&
                    (char *)(m.arenas[i].exchange + 1000) <= base + m.region_bytes);
    }
    assert_true(m.arenas[0].grads[0][0] == 0); /* nothing else was there */
    assert_int_equal(engine_memory_open_spare(&m, &spare, &err), 0);
    engine_memory_use_spare(&m, &spare, 5);
    assert_ptr_equal(m.residual, (char *)m.state + state_bytes);
    engine_memory_close(&m);
}

/* A model has the layout of the state without the outer momentum, which is of the held state alone. */
static void outer_momentum_follows_the_average_and_stays_that_of_the_held_state(void **state)
{
    const struct optim_hyper h = { .beta1 = 0.9, .beta2 = 0.99 };
    float model[PARAMS + 2 * TRAINED + PARAMS];
    struct memory_opts o;
    struct memory m = opened(&h, true);
    struct err err;

    (void)state;
    assert_null(m.outer);
    assert_int_equal(m.model_bytes, m.state_bytes);
    o = m.opts;
    o.has_outer = true;
    engine_memory_close(&m);
    assert_int_equal(engine_memory_open(&m, &o, &err), 0);
    assert_int_equal(m.model_bytes, sizeof(model));
    assert_int_equal(m.state_bytes, sizeof(model) + TRAINED * sizeof(float));
    assert_ptr_equal(m.outer, m.average + PARAMS);
    engine_memory_select(&m, model);
    assert_ptr_equal(m.state, model);
    assert_ptr_equal(m.slots[1], model + PARAMS + TRAINED);
    assert_ptr_equal(m.average, model + PARAMS + 2 * TRAINED);
    assert_ptr_equal(m.outer, (float *)m.own.base + PARAMS + 2 * TRAINED + PARAMS);
    engine_memory_select(&m, NULL);
    assert_ptr_equal(m.state, m.own.base);
    assert_ptr_equal(m.average, m.outer - PARAMS);
    engine_memory_close(&m);
}

/* The tables are the last 16 of the trained parameters. Each step replaces them. */
static void delayed_tables_are_those_of_the_steps_before(void **state)
{
    enum { TABLES_AT = 48, AGES = 3 };
    const struct optim_hyper h = { .beta1 = 0.9, .beta2 = 0.99 };
    struct memory m = opened(&h, true);
    struct memory_opts o = m.opts;
    struct err err;

    (void)state;
    assert_null(m.delayed);
    assert_ptr_equal(engine_memory_delayed(&m, 0), m.state);
    engine_memory_delay(&m); /* no effect */
    engine_memory_close(&m);
    o.n_delayed = AGES;
    o.delayed_at = TABLES_AT;
    assert_int_equal(engine_memory_open(&m, &o, &err), 0);
    assert_ptr_equal(m.delayed, m.average + PARAMS);
    assert_int_equal(m.state_bytes,
                     (2 * PARAMS + 2 * TRAINED + AGES * (TRAINED - TABLES_AT)) * sizeof(float));
    for (size_t i = 0; i < PARAMS; i++)
        m.state[i] = 100 + (float)i;
    engine_memory_fill_delayed(&m);
    for (uint64_t step = 0; step < 6; step++) {
        for (uint32_t age = 0; age <= AGES; age++)
            for (size_t i = TABLES_AT; i < TRAINED; i++)
                assert_true(engine_memory_delayed(&m, age)[i] ==
                            100 + (float)i + (step > age ? 1000 * (float)(step - age) : 0));
        engine_memory_delay(&m);
        for (size_t i = 0; i < PARAMS; i++)
            m.state[i] += 1000;
    }
    assert_true(m.average[PARAMS - 1] == 0);
    engine_memory_close(&m);
}

/* Writes to every byte of every part and finds it unchanged after all others were written. */
static void parts_of_the_region_do_not_overlap(void **state)
{
    const struct optim_hyper h = { 0 };
    struct memory m = opened_with(&h, false, 5);
    uint8_t mark = 0;

    (void)state;
    assert_int_equal(m.depth, 5);
    memset(m.head, ++mark, 100);
    for (uint32_t r = 0; r < REPLICAS; r++)
        for (uint32_t d = 0; d < m.depth; d++) {
            memset(m.arenas[r].grads[d], ++mark, m.grads * sizeof(float));
            memset(m.arenas[r].sums[d], ++mark, WORDS * sizeof(double));
        }
    mark = 0;
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(((uint8_t *)m.head)[i], 1);
    mark = 1;
    for (uint32_t r = 0; r < REPLICAS; r++)
        for (uint32_t d = 0; d < m.depth; d++) {
            const uint8_t *grads = (const uint8_t *)m.arenas[r].grads[d];
            const uint8_t *sums = (const uint8_t *)m.arenas[r].sums[d];

            mark++;
            for (size_t i = 0; i < m.grads * sizeof(float); i++)
                assert_int_equal(grads[i], mark);
            mark++;
            for (size_t i = 0; i < WORDS * sizeof(double); i++)
                assert_int_equal(sums[i], mark);
            assert_true((const char *)sums + WORDS * sizeof(double) <=
                        (const char *)m.region.base + m.region_bytes);
        }
    engine_memory_close(&m);
}

static void state_beside_the_present_state_replaces_it_with_its_step(void **state)
{
    const struct optim_hyper h = { .beta1 = 0.9, .beta2 = 0.99 };
    struct memory m = opened(&h, true);
    struct device_mem aside;
    struct err err;

    (void)state;
    m.state[0] = 1;
    assert_int_equal(engine_memory_open_spare(&m, &aside, &err), 0);
    ((float *)aside.base)[0] = 2;
    assert_true(m.state[0] == 1);
    engine_memory_use_spare(&m, &aside, 7);
    assert_null(aside.base);
    assert_true(m.state[0] == 2);
    assert_int_equal(m.step, 7);
    assert_ptr_equal(m.slots[0], m.state + PARAMS);
    engine_memory_close(&m);
}

static void region_that_is_renewed_is_zero_and_the_state_stays(void **state)
{
    const struct optim_hyper h = { 0 };
    struct memory m = opened(&h, false);
    struct err err;

    (void)state;
    m.state[5] = 3;
    m.arenas[2].grads[1][0] = 4;
    assert_int_equal(engine_memory_replace_region(&m, &err), 0);
    assert_true(m.arenas[2].grads[1][0] == 0);
    assert_true(m.state[5] == 3);
    engine_memory_close(&m);
}

static void average_is_filled_with_statistics_or_with_all_parameters(void **state)
{
    const struct optim_hyper h = { 0 };
    struct memory m = opened(&h, true);

    (void)state;
    for (size_t i = 0; i < PARAMS; i++)
        m.state[i] = (float)i + 1;
    engine_memory_fill_average(&m, false);
    assert_true(m.average[TRAINED - 1] == 0);
    assert_memory_equal(m.average + TRAINED, m.state + TRAINED, (PARAMS - TRAINED) * sizeof(float));
    engine_memory_fill_average(&m, true);
    assert_memory_equal(m.average, m.state, PARAMS * sizeof(float));
    engine_memory_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_holds_parameters_slots_and_average_in_this_order),
        cmocka_unit_test(residuals_are_last_and_exchange_floats_are_in_the_region_of_each_replica),
        cmocka_unit_test(outer_momentum_follows_the_average_and_stays_that_of_the_held_state),
        cmocka_unit_test(delayed_tables_are_those_of_the_steps_before),
        cmocka_unit_test(parts_of_the_region_do_not_overlap),
        cmocka_unit_test(state_beside_the_present_state_replaces_it_with_its_step),
        cmocka_unit_test(region_that_is_renewed_is_zero_and_the_state_stays),
        cmocka_unit_test(average_is_filled_with_statistics_or_with_all_parameters),
    };

    return cmocka_run_group_tests_name("engine/memory", tests, NULL, NULL);
}
