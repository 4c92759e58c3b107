/* test_route.c - the servers that hold a shard, from the view of a generation. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "base/group_view.h"
#include "ps/route.h"

/* Routes are large. */
static struct ps_route *make(const struct group_member *members, uint32_t n, uint32_t replicas)
{
    struct group_view view = { .generation = 1, .members = members, .n_members = n };
    struct ps_route *r = malloc(sizeof(*r));

    assert_non_null(r);
    ps_route_make(&view, replicas, r);
    return r;
}

static void check(const struct group_member *members, uint32_t n, uint32_t replicas)
{
    struct ps_route *r = make(members, n, replicas);
    uint32_t ranks[8], first[8], threads[8], holders[PS_SHARDS * PS_REPLICAS_MAX];
    uint32_t n_ps = 0, n_ranks = 0, n_servers = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_ranks += members[i].n_devices;
        if (members[i].n_servers == 0)
            continue;
        ranks[n_ps] = members[i].rank;
        first[n_ps] = n_servers;
        threads[n_ps++] = members[i].n_servers;
        n_servers += members[i].n_servers;
    }
    assert_int_equal(r->n_ranks, n_ranks);
    assert_int_equal(r->n_servers, n_servers);
    assert_int_equal(r->n_holders, ps_map_make(ranks, n_ps, replicas, holders));
    assert_int_equal(r->n_holders, replicas < n_ps ? replicas : n_ps);
    for (uint32_t s = 0; s < PS_SHARDS; s++)
        for (uint32_t h = 0; h < r->n_holders; h++) {
            uint32_t ps = holders[s * r->n_holders + h];

            assert_int_equal(ps_route_holders(r, s)[h], first[ps] + s % threads[ps]);
        }
    free(r);
}

static void holders_are_those_of_the_map_and_their_threads(void **state)
{
    static const struct group_member members[] = {
        { .rank = 0, .n_devices = 2 }, { .rank = 1, .n_devices = 1 },
        { .rank = 3, .n_devices = 4 }, { .rank = 4, .n_servers = 1 },
        { .rank = 6, .n_servers = 3 }, { .rank = 7, .n_servers = 2 },
        { .rank = 9, .n_servers = 16 },
    };

    (void)state;
    for (uint32_t n = 4; n <= 7; n++)
        for (uint32_t replicas = 1; replicas <= PS_REPLICAS_MAX; replicas++)
            check(members, n, replicas);
}

static void group_without_ps_has_no_holders(void **state)
{
    static const struct group_member members[] = { { .rank = 0, .n_devices = 2 } };
    struct ps_route *r = make(members, 1, 2);

    (void)state;
    assert_int_equal(r->n_ranks, 2);
    assert_int_equal(r->n_servers, 0);
    assert_int_equal(r->n_holders, 0);
    free(r);
}

/* A change of the number of threads, or of the trainers, moves no shard to another ps. */
static void threads_and_trainers_move_no_shard_between_ps(void **state)
{
    static const struct group_member a[] = { { .rank = 0, .n_devices = 1 },
                                             { .rank = 4, .n_servers = 1 },
                                             { .rank = 5, .n_servers = 1 } };
    static const struct group_member b[] = { { .rank = 0, .n_devices = 1 },
                                             { .rank = 1, .n_devices = 7 },
                                             { .rank = 4, .n_servers = 5 },
                                             { .rank = 5, .n_servers = 2 } };
    struct ps_route *of_a = make(a, 3, 1), *of_b = make(b, 4, 1);

    (void)state;
    for (uint32_t s = 0; s < PS_SHARDS; s++)
        assert_int_equal(ps_route_holders(of_a, s)[0], ps_route_holders(of_b, s)[0] >= 5);
    free(of_a);
    free(of_b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holders_are_those_of_the_map_and_their_threads),
        cmocka_unit_test(group_without_ps_has_no_holders),
        cmocka_unit_test(threads_and_trainers_move_no_shard_between_ps),
    };

    return cmocka_run_group_tests_name("ps/route", tests, NULL, NULL);
}
