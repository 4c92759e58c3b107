/* test_units.c - the ledger of units: which lanes of which steps are applied. The oracle is a plain array of
 * lanes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ps/units.h"

enum { STEPS = 60, LANES_MAX = 200 };

static uint64_t draw(uint64_t *random, uint64_t below)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random % below;
}

static struct ps_units open_units(uint32_t lanes, uint32_t bound)
{
    struct ps_units u;

    assert_int_equal(ps_units_open(&u, lanes, bound, NULL), 0);
    return u;
}

static void apply(struct ps_units *u, uint64_t step, uint32_t first, uint32_t n, double loss)
{
    const struct ps_unit unit = { step, first, n };

    assert_true(ps_units_is_free(u, &unit));
    ps_units_apply(u, &unit, &(struct ps_unit_facts){ .loss = loss, .norm = 2 * loss });
}

static void steps_are_complete_with_their_last_lane(void **state)
{
    struct ps_units u = open_units(4, 2);
    struct ps_step_facts facts[PS_FACTS_MAX];

    (void)state;
    assert_int_equal(u.complete, 0);
    apply(&u, 1, 0, 2, 1);
    apply(&u, 2, 0, 4, 5);
    assert_int_equal(u.complete, 0);
    assert_int_equal(ps_units_newest(&u), 2);
    assert_false(ps_units_may_begin(&u, 4));
    apply(&u, 1, 2, 2, 3);
    assert_int_equal(u.complete, 2);
    assert_int_equal(ps_units_newest(&u), 2);
    assert_true(ps_units_may_begin(&u, 5));
    assert_false(ps_units_may_begin(&u, 6));
    assert_false(ps_units_may_begin(&u, 2));
    assert_int_equal(ps_units_facts(&u, 0, facts), 2);
    assert_true(facts[0].step == 1 && facts[0].loss == 2 && facts[0].norm == 4);
    assert_true(facts[1].step == 2 && facts[1].loss == 5);
    assert_int_equal(ps_units_facts(&u, 1, facts), 1);
    assert_int_equal(ps_units_facts(&u, 2, facts), 0);
    ps_units_close(&u);
}

static void lanes_are_applied_once(void **state)
{
    struct ps_units u = open_units(8, 3);

    (void)state;
    apply(&u, 2, 2, 2, 0);
    for (uint32_t first = 0; first < 9; first++)
        for (uint32_t n = 0; n < 10; n++) {
            const struct ps_unit unit = { 2, first, n };
            bool overlaps = first < 4 && first + n > 2;

            assert_int_equal(ps_units_is_free(&u, &unit), n > 0 && first + n <= 8 && !overlaps);
        }
    assert_false(ps_units_is_free(&u, &(struct ps_unit){ 5, 0, 1 })); /* above the bound */
    assert_false(ps_units_is_free(&u, &(struct ps_unit){ 0, 0, 1 }));
    assert_false(ps_units_is_free(&u, &(struct ps_unit){ 1, UINT32_MAX, 2 }));
    ps_units_close(&u);
}

/* Blocks are aligned, as large as possible, and all lanes are found. */
static void next_unit_is_the_largest_aligned_block(void **state)
{
    uint64_t random = 88172645463325252u;

    (void)state;
    for (uint32_t trial = 0; trial < 2000; trial++) {
        uint32_t lanes = 1 + (uint32_t)draw(&random, LANES_MAX), first, n;
        struct ps_units u = open_units(lanes, 1);
        bool taken[LANES_MAX] = { false };

        for (uint32_t i = 0; i + 1 < lanes && i < 3; i++) {
            uint32_t lane = (uint32_t)draw(&random, lanes);

            if (!taken[lane])
                apply(&u, 1, lane, 1, 0);
            taken[lane] = true;
        }
        first = (uint32_t)draw(&random, lanes);
        n = 1 + (uint32_t)draw(&random, lanes - first);
        for (uint32_t at = first; at < first + n;) {
            struct ps_unit unit = ps_units_next(&u, 1, first, n);
            uint32_t size = 1;

            for (; at < first + n && taken[at]; at++)
                ;
            if (at == first + n) {
                assert_int_equal(unit.n, 0);
                break;
            }
            assert_int_equal(unit.first, at);
            assert_in_range(unit.n, 1, first + n - at);
            while (size < unit.n)
                size *= 2;
            assert_int_equal(unit.first % size, 0);
            assert_true(size == unit.n || unit.first + unit.n == lanes);
            for (uint32_t i = 0; i < unit.n; i++)
                assert_false(taken[at + i]);
            if (u.complete > 0)
                break;
            apply(&u, 1, unit.first, unit.n, 0);
            at += unit.n;
            if (u.complete > 0)
                break;
        }
        ps_units_close(&u);
    }
}

/* Random units of the steps that may begin, and copies through bytes. */
static void any_order_of_units_gives_the_same_ledger(void **state)
{
    uint64_t random = 1234567890123u;

    (void)state;
    for (uint32_t trial = 0; trial < 200; trial++) {
        uint32_t lanes = 1 + (uint32_t)draw(&random, 70), bound = 1 + (uint32_t)draw(&random, 4);
        struct ps_units u = open_units(lanes, bound), again = open_units(lanes, bound);
        bool(*taken)[70] = calloc(STEPS + 2 + PS_BOUND_MAX, sizeof(*taken));
        uint64_t complete = 0;

        assert_non_null(taken);
        while (complete < STEPS) {
            uint64_t step = complete + 1 + draw(&random, bound + 1);
            struct ps_unit unit = ps_units_next(&u, step, 0, lanes);
            uint8_t *bytes;

            if (unit.n == 0)
                continue;
            apply(&u, step, unit.first, unit.n, (double)step);
            memset(&taken[step][unit.first], true, unit.n);
            while (memchr(taken[complete + 1], false, lanes) == NULL)
                complete++;
            assert_int_equal(u.complete, complete);
            bytes = malloc(ps_units_bytes(&u));
            assert_non_null(bytes);
            ps_units_write(&u, bytes);
            assert_int_equal(ps_units_read(&again, bytes, ps_units_bytes(&u), NULL), 0);
            free(bytes);
            for (uint64_t s = complete + 1; s <= complete + 1 + bound; s++)
                for (uint32_t lane = 0; lane < lanes; lane++)
                    assert_int_equal(ps_units_is_free(&again, &(struct ps_unit){ s, lane, 1 }),
                                     !taken[s][lane]);
        }
        for (uint64_t after = complete - PS_FACTS_MAX; after <= complete; after++) {
            struct ps_step_facts facts[PS_FACTS_MAX];
            uint32_t n = ps_units_facts(&again, after, facts);

            assert_int_equal(n, complete - after);
            for (uint32_t i = 0; i < n; i++)
                assert_true(facts[i].step == after + 1 + i &&
                            fabs(facts[i].loss - (double)facts[i].step) < 1e-9);
        }
        free(taken);
        ps_units_close(&u);
        ps_units_close(&again);
    }
}

static void expect_refused(struct ps_units *u, const uint8_t *data, size_t n)
{
    struct err err = { 0 };

    assert_int_equal(ps_units_read(u, data, n, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "ledger of units"));
}

static void damaged_bytes_are_refused(void **state)
{
    enum { HEAD = 16, ROW = 24 + 8, FACTS = HEAD + 3 * ROW };
    struct ps_units u = open_units(5, 2), other = open_units(6, 2);
    uint8_t data[FACTS + PS_FACTS_MAX * 32], bad[sizeof(data)];

    (void)state;
    ps_units_begin(&u, 9);
    apply(&u, 10, 0, 4, 1);
    apply(&u, 11, 0, 5, 1);
    assert_int_equal(ps_units_bytes(&u), sizeof(data));
    ps_units_write(&u, data);
    for (size_t n = 0; n < sizeof(data); n++)
        expect_refused(&u, data, n);
    expect_refused(&other, data, sizeof(data));
    memcpy(bad, data, sizeof(data));
    bad[HEAD + 24] = 0x1f; /* step 10 would be complete */
    expect_refused(&u, bad, sizeof(bad));
    bad[HEAD + 24] = 0x2f; /* lane 5 */
    expect_refused(&u, bad, sizeof(bad));
    memcpy(bad, data, sizeof(data));
    bad[FACTS] = 1; /* step 1 in the place of another one */
    expect_refused(&u, bad, sizeof(bad));
    memcpy(bad, data, sizeof(data));
    memset(bad, 0xff, 8); /* the step */
    expect_refused(&u, bad, sizeof(bad));
    assert_int_equal(u.complete, 9); /* unchanged */
    assert_false(ps_units_is_free(&u, &(struct ps_unit){ 11, 0, 1 }));
    ps_units_close(&u);
    ps_units_close(&other);
}

static void job_without_asynchronous_phases_has_a_step_alone(void **state)
{
    struct ps_units u = { 0 }, again = { 0 };
    uint8_t data[16];

    (void)state;
    ps_units_begin(&u, 12);
    assert_int_equal(ps_units_bytes(&u), sizeof(data));
    ps_units_write(&u, data);
    assert_int_equal(ps_units_read(&again, data, sizeof(data), NULL), 0);
    assert_int_equal(again.complete, 12);
    assert_int_equal(ps_units_newest(&again), 12);
    assert_false(ps_units_is_free(&again, &(struct ps_unit){ 13, 0, 1 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_complete_with_their_last_lane),
        cmocka_unit_test(lanes_are_applied_once),
        cmocka_unit_test(next_unit_is_the_largest_aligned_block),
        cmocka_unit_test(any_order_of_units_gives_the_same_ledger),
        cmocka_unit_test(damaged_bytes_are_refused),
        cmocka_unit_test(job_without_asynchronous_phases_has_a_step_alone),
    };

    return cmocka_run_group_tests_name("ps/units", tests, NULL, NULL);
}
