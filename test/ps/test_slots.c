/* test_slots.c - slots of rows against a list that is searched from its beginning. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "ps/slots.h"

static uint64_t draw(uint64_t *x, uint64_t below)
{
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return (*x * UINT64_C(0x2545f4914f6cdd1d) >> 16) % below;
}

/* Consecutive rows, rows with equal low bits, and any rows. */
static int64_t draw_row(uint64_t *x, uint32_t way)
{
    if (way == 0)
        return (int64_t)draw(x, 300);
    if (way == 1)
        return (int64_t)(draw(x, 300) << 32);
    return (int64_t)(draw(x, UINT64_C(1) << 40) % 1000 * draw(x, 3) * 7919);
}

static void slots_are_numbered_in_the_order_of_first_lookup(void **state)
{
    enum { ROOM = 256, ROUNDS = 300 };
    uint64_t x = 99, list[ROOM];

    (void)state;
    for (uint32_t way = 0; way < 3; way++) {
        struct ps_slots s;

        assert_int_equal(ps_slots_init(&s, ROOM, NULL), 0);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            size_t n = 0;

            for (uint32_t call = 0; call < 4; call++) {
                int64_t rows[64], asked[64];
                size_t n_rows = draw(&x, 65);

                for (size_t i = 0; i < n_rows; i++)
                    asked[i] = rows[i] = draw_row(&x, way);
                ps_slots_resolve(&s, rows, n_rows);
                for (size_t i = 0; i < n_rows; i++) {
                    size_t at = 0;

                    while (at < n && list[at] != (uint64_t)asked[i])
                        at++;
                    if (at == n)
                        list[n++] = (uint64_t)asked[i];
                    assert_int_equal(rows[i], at);
                }
                assert_int_equal(s.n, n);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(s.rows[i], list[i]);
            }
            s.fetched = s.n;
            ps_slots_clear(&s);
            assert_int_equal(s.n, 0);
            assert_int_equal(s.fetched, 0);
            for (size_t i = 0; i <= s.mask; i++)
                assert_int_equal(s.index[i], 0);
        }
        ps_slots_fini(&s);
    }
}

static void every_slot_of_the_room_can_be_used(void **state)
{
    static const size_t rooms[] = { 1, 2, 7, 8, 9, 1000 };

    (void)state;
    for (size_t k = 0; k < sizeof(rooms) / sizeof(*rooms); k++) {
        struct ps_slots s;

        assert_int_equal(ps_slots_init(&s, rooms[k], NULL), 0);
        for (uint32_t round = 0; round < 3; round++) {
            for (size_t i = 0; i < 2 * rooms[k]; i++) {
                int64_t row = (int64_t)(i % rooms[k] * (round == 1 ? 1024 : 1));

                ps_slots_resolve(&s, &row, 1);
                assert_int_equal(row, i % rooms[k]);
            }
            ps_slots_clear(&s);
        }
        ps_slots_fini(&s);
    }
}

static void no_room_and_no_rows_are_allowed(void **state)
{
    struct ps_slots s = { 0 };

    (void)state;
    ps_slots_fini(&s);
    assert_int_equal(ps_slots_init(&s, 0, NULL), 0);
    ps_slots_resolve(&s, NULL, 0);
    ps_slots_clear(&s);
    ps_slots_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_numbered_in_the_order_of_first_lookup),
        cmocka_unit_test(every_slot_of_the_room_can_be_used),
        cmocka_unit_test(no_room_and_no_rows_are_allowed),
    };

    return cmocka_run_group_tests_name("ps/slots", tests, NULL, NULL);
}
