/* test_division.c - which lanes a replica computes, and which divisions a job allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/group_view.h"
#include "engine/engine.h"
#include "train/division.h"
#include "train/train_types.h"

static void replicas_have_the_lanes_of_their_share_or_of_their_pieces(void **state)
{
    static const struct group_piece pieces[] = { { 1, 0, 4 }, { 0, 4, 2 }, { 1, 6, 2 } };
    struct group_view equal = { 0 }, uneven = { .pieces = pieces, .n_pieces = 3 };
    struct engine_replica r = { 0 };
    static const uint32_t shares[] = { 2, 2, 4 };

    (void)state;
    division_place(&equal, shares, 2, &r);
    assert_true(r.rank == 2 && r.first_lane == 4 && r.n_lanes == 4 && r.n_second == 0);
    division_place(&uneven, NULL, 1, &r);
    assert_true(r.rank == 1 && r.n_lanes == 6 && r.n_second == 2);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(engine_lane(&r, i), i < 4 ? i : i + 2);
    division_place(&uneven, NULL, 0, &r); /* nothing of the division before remains */
    assert_true(r.rank == 0 && r.first_lane == 4 && r.n_lanes == 2 && r.n_second == 0);
    division_place(&equal, shares, 0, &r);
    assert_true(r.first_lane == 0 && r.n_lanes == 2 && r.n_second == 0);
}

static void replicas_help_the_one_before_them(void **state)
{
    static const struct group_piece two[] = { { 1, 0, 4 }, { 0, 4, 2 }, { 1, 6, 2 } };
    static const struct group_view equal = { .n_members = 1 }, uneven = { .pieces = two, .n_pieces = 3 };
    static const uint32_t shares[] = { 2, 1, 4 };
    static const struct {
        uint32_t rank, n_block, helped_lane, n_helped;
    } rows[] = { { 0, 1, 5, 2 }, { 1, 0, 1, 1 }, { 2, 2, 0, 0 } };
    struct engine_replica r = { .n_block = 9, .n_helped = 9 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        r.rank = rows[i].rank;
        division_place_spare(&equal, shares, 3, &r);
        assert_true(r.n_block == rows[i].n_block && r.helped_lane == rows[i].helped_lane &&
                    r.n_helped == rows[i].n_helped);
    }
    r.rank = 0; /* helps rank 1, whose second piece is 6, 7 */
    division_place_spare(&uneven, NULL, 2, &r);
    assert_true(r.n_block == 1 && r.helped_lane == 6 && r.n_helped == 2);
    r.rank = 0;
    division_place_spare(&equal, (uint32_t[]){ 8 }, 1, &r);
    assert_true(r.n_block == 0 && r.n_helped == 0);
}

static void memory_of_a_balanced_job_has_one_more_arena(void **state)
{
    static const struct {
        uint32_t replicas, least, lanes, piece, max_lanes, max_piece;
    } rows[] = {
        { 4, 4, 64, 32, 63, 32 }, { 4, 0, 64, 32, 63, 32 }, { 4, 1, 64, 32, 64, 64 },
        { 3, 3, 6, 4, 6, 4 },     { 2, 1, 6, 4, 6, 6 },     { 4, 4, 4, 2, 3, 2 },
        { 2, 2, 2, 2, 2, 2 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct train_opts o = { .replicas = rows[i].replicas,
                                .min_replicas = rows[i].least,
                                .lanes = rows[i].lanes,
                                .balances = true };
        struct engine_opts e = { 0 };

        assert_int_equal(division_max_piece(&o), rows[i].piece);
        division_limit(&o, &e);
        assert_int_equal(e.max_lanes, rows[i].max_lanes);
        assert_int_equal(e.max_piece, rows[i].max_piece);
        o.balances = false;
        division_limit(&o, &e);
        assert_int_equal(e.max_piece, 0);
        assert_true(e.max_lanes <= rows[i].max_lanes);
    }
}

static void division_that_the_job_does_not_allow_is_refused(void **state)
{
    static const struct {
        bool balances;
        uint32_t world, n;
        struct group_piece pieces[3];
        const char *why; /* NULL: it is allowed */
    } rows[] = {
        { true, 2, 3, { { 1, 0, 4 }, { 0, 4, 2 }, { 1, 6, 2 } }, NULL },
        { false, 2, 0, { { 0 } }, NULL },
        { false, 2, 2, { { 1, 0, 4 }, { 0, 4, 4 } }, "this job does not balance lanes" },
        { true, 1, 1, { { 0, 0, 8 } }, "it has one replica" },
        { true, 2, 2, { { 1, 0, 4 }, { 0, 4, 2 } }, "have 6 lanes; expected 8" },
        { true, 3, 3, { { 0, 0, 4 }, { 1, 4, 2 }, { 3, 6, 2 } }, "on one of 3 ranks" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct train_opts o = { .replicas = 4, .lanes = 8, .balances = rows[i].balances };
        struct group_view v = { .pieces = rows[i].pieces, .n_pieces = rows[i].n };
        struct err err = { .text = "" };
        int rc = division_check(&o, &v, rows[i].world, &err);

        assert_int_equal(rc, rows[i].why == NULL ? 0 : ERR_INPUT);
        if (rows[i].why != NULL)
            assert_non_null(strstr(err.text, rows[i].why));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_have_the_lanes_of_their_share_or_of_their_pieces),
        cmocka_unit_test(replicas_help_the_one_before_them),
        cmocka_unit_test(memory_of_a_balanced_job_has_one_more_arena),
        cmocka_unit_test(division_that_the_job_does_not_allow_is_refused),
    };

    return cmocka_run_group_tests_name("train/division", tests, NULL, NULL);
}
