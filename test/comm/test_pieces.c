/* test_pieces.c - the division of lanes among ranks of unequal speed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/group_view.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/pieces.h"

enum { WORLD_MAX = 12, LANES_MAX = 128 };

static uint32_t draw(uint32_t *at, uint32_t n)
{
    const struct rng_key key = { .seed = 20261125 };

    return rng_u32(&key, (*at)++) % n;
}

/* The number of ranks that compute each lane must be one: by counting, not by the rules of the code. */
static void assert_covers(const struct group_piece *p, uint32_t n, uint32_t lanes, uint32_t world)
{
    uint32_t of_lane[LANES_MAX] = { 0 }, of_rank[WORLD_MAX] = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        assert_true(p[i].rank < world && p[i].n > 0 && p[i].first + p[i].n <= lanes);
        assert_int_equal(__builtin_popcount(p[i].n), 1);
        assert_int_equal(p[i].first % p[i].n, 0);
        of_rank[p[i].rank]++;
        for (uint32_t l = p[i].first; l < p[i].first + p[i].n; l++)
            of_lane[l]++;
    }
    for (uint32_t l = 0; l < lanes; l++)
        assert_int_equal(of_lane[l], 1);
    for (uint32_t r = 0; r < world; r++)
        assert_in_range(of_rank[r], 1, 2);
}

static double seconds_of(const struct group_piece *p, uint32_t n, const double *seconds,
                         uint32_t world)
{
    uint32_t own[WORLD_MAX] = { 0 };
    double most = 0;

    for (uint32_t i = 0; i < n; i++)
        own[p[i].rank] += p[i].n;
    for (uint32_t r = 0; r < world; r++)
        most = own[r] * seconds[r] > most ? own[r] * seconds[r] : most;
    return most;
}

static double equal_seconds(const double *seconds, uint32_t world, uint32_t lanes)
{
    uint32_t shares[WORLD_MAX];
    double most = 0;

    comm_share(NULL, lanes, world, shares);
    for (uint32_t r = 0; r < world; r++)
        most = shares[r] * seconds[r] > most ? shares[r] * seconds[r] : most;
    return most;
}

static void divisions_of_random_speeds_are_valid_and_never_worse_than_equal_shares(void **state)
{
    struct group_piece out[PIECES_PER_RANK * WORLD_MAX];
    uint32_t at = 0, better = 0;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        uint32_t world = 1 + draw(&at, WORLD_MAX), lanes = world + draw(&at, LANES_MAX - world + 1);
        uint32_t most = 1u << draw(&at, 8), n;
        double seconds[WORLD_MAX], before;
        struct err err;

        for (uint32_t r = 0; r < world; r++)
            seconds[r] = 1e-3 * (1 + draw(&at, 1 << (1 + draw(&at, 12))));
        before = equal_seconds(seconds, world, lanes);
        assert_true(pieces_seconds(NULL, 0, NULL, seconds, world, lanes) == before);
        n = pieces_plan(seconds, world, lanes, most, out);
        if (n == 0)
            continue;
        better++;
        assert_covers(out, n, lanes, world);
        for (uint32_t p = 0; p < n; p++)
            assert_true(out[p].n <= most);
        assert_int_equal(pieces_check(out, n, lanes, world, most, &err), 0);
        assert_true(pieces_seconds(out, n, NULL, seconds, world, lanes) ==
                    seconds_of(out, n, seconds, world));
        assert_true(seconds_of(out, n, seconds, world) < before);
    }
    assert_true(better > 30000);
}

static void divisions_of_known_speeds_take_the_known_time(void **state)
{
    static const struct {
        uint32_t world, lanes;
        double seconds[8], equal, best;
    } rows[] = {
        { 4, 64, { 1, 1, 1, 2 }, 32, 20 },
        { 2, 64, { 1, 1 }, 32, 32 },
        { 2, 64, { 1, 3 }, 96, 48 },
        { 4, 16, { 1, 1, 1, 1 }, 4, 4 },
        { 8, 64, { 1, 1, 1, 1, 1, 1, 1, 4 }, 32, 9 },
        { 3, 6, { 1, 1, 4 }, 8, 4 },
        { 1, 64, { 7 }, 448, 448 },
        { 4, 4, { 1, 1, 1, 100 }, 100, 100 }, /* a rank has at least one lane */
    };
    struct group_piece out[16];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t n = pieces_plan(rows[i].seconds, rows[i].world, rows[i].lanes, 64, out);

        assert_true(equal_seconds(rows[i].seconds, rows[i].world, rows[i].lanes) == rows[i].equal);
        assert_int_equal(n > 0, rows[i].best < rows[i].equal);
        if (n > 0)
            assert_true(seconds_of(out, n, rows[i].seconds, rows[i].world) == rows[i].best);
    }
}

/* The lowest maximum over all amounts of at most two blocks for each rank, by trying all of them. */
static double try_all(const double *seconds, uint32_t world, uint32_t lanes, double most)
{
    double best = -1;

    for (uint32_t own = 1; own <= lanes; own++) {
        double here = own * seconds[0] > most ? own * seconds[0] : most, rest;

        if (__builtin_popcount(own) > 2)
            continue;
        rest = world > 1 ? try_all(seconds + 1, world - 1, lanes - own, here) : -1;
        if (world == 1 && own == lanes)
            rest = here;
        if (rest >= 0 && (best < 0 || rest < best))
            best = rest;
    }
    return best;
}

static void divisions_are_the_best_of_all(void **state)
{
    struct group_piece out[PIECES_PER_RANK * 4];
    uint32_t at = 1 << 30;

    (void)state;
    for (int i = 0; i < 300; i++) {
        uint32_t world = 1 + draw(&at, 4), lanes = world + draw(&at, 30), n;
        double seconds[4], best, equal;

        for (uint32_t r = 0; r < world; r++)
            seconds[r] = 1 + draw(&at, 20);
        n = pieces_plan(seconds, world, lanes, 64, out);
        best = try_all(seconds, world, lanes, 0);
        equal = equal_seconds(seconds, world, lanes);
        if (n > 0)
            assert_true(seconds_of(out, n, seconds, world) == best);
        else
            assert_true(best < 0 || equal <= best);
    }
}

static void groups_beyond_the_limits_keep_equal_shares(void **state)
{
    static double seconds[PIECES_MAX_RANKS + 1];
    static struct group_piece out[2 * (PIECES_MAX_RANKS + 1)];

    (void)state;
    for (uint32_t r = 0; r <= PIECES_MAX_RANKS; r++)
        seconds[r] = r == 0 ? 4 : 1;
    assert_true(pieces_plan(seconds, PIECES_MAX_RANKS, PIECES_MAX_LANES, 4096, out) > 0);
    assert_int_equal(pieces_plan(seconds, PIECES_MAX_RANKS + 1, PIECES_MAX_LANES, 4096, out), 0);
    assert_int_equal(pieces_plan(seconds, 4, 2 * PIECES_MAX_LANES, 8192, out), 0);
}

static void invalid_divisions_are_refused(void **state)
{
    static const struct {
        uint32_t n;
        struct group_piece pieces[4];
    } rows[] = {
        { 2, { { 0, 0, 4 }, { 1, 4, 2 } } },                         /* 6 of 8 lanes */
        { 2, { { 0, 0, 4 }, { 1, 4, 8 } } },                         /* 12 */
        { 3, { { 0, 0, 2 }, { 1, 2, 4 }, { 0, 6, 2 } } },            /* not aligned */
        { 2, { { 0, 0, 4 }, { 1, 0, 4 } } },                         /* a lane twice */
        { 2, { { 0, 0, 4 }, { 2, 4, 4 } } },                         /* no such rank */
        { 3, { { 0, 0, 4 }, { 1, 4, 3 }, { 1, 7, 1 } } },            /* no power of two */
        { 1, { { 0, 0, 8 } } },                                      /* rank 1 has none, and 8 is too large */
        { 4, { { 1, 0, 4 }, { 0, 4, 2 }, { 0, 6, 1 }, { 0, 7, 1 } } }, /* three pieces */
        { 3, { { 0, 0, 2 }, { 1, 2, 2 }, { 0, 4, 4 } } },            /* the second is larger */
        { 0, { { 0, 0, 0 } } },
        { 3, { { 0, 0, 4 }, { 1, 4, 4 }, { 1, 8, 0 } } },
        { 2, { { 0, 0, 4 }, { 1, UINT32_MAX, 4 } } },
    };
    static const struct group_piece right[] = { { 1, 0, 4 }, { 0, 4, 2 }, { 1, 6, 2 } };
    struct err err;

    (void)state;
    assert_int_equal(pieces_check(right, 3, 8, 2, 4, &err), 0);
    assert_int_equal(pieces_check(right, 3, 8, 2, 2, &err), ERR_INPUT);
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(pieces_check(rows[i].pieces, rows[i].n, 8, 2, 4, &err), ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divisions_of_random_speeds_are_valid_and_never_worse_than_equal_shares),
        cmocka_unit_test(divisions_of_known_speeds_take_the_known_time),
        cmocka_unit_test(divisions_are_the_best_of_all),
        cmocka_unit_test(groups_beyond_the_limits_keep_equal_shares),
        cmocka_unit_test(invalid_divisions_are_refused),
    };

    return cmocka_run_group_tests_name("comm/pieces", tests, NULL, NULL);
}
