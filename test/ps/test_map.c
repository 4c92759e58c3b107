/* test_map.c - the geometry of shards, and the map from shards to servers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "ps/map.h"

/* Data in memory and in checkpoints depends on these values. */
static void constants_never_change(void **state)
{
    static const uint32_t ranks[] = { 3, 4, 5, 9 };
    uint32_t holders[PS_SHARDS * 2];
    uint64_t hash = 0;

    (void)state;
    assert_int_equal(PS_SHARDS, 1024);
    assert_int_equal(PS_BLOCK_ROWS, 64);
    assert_int_equal(ps_first_shard(0), 0);
    assert_int_equal(ps_first_shard(1), 389);
    assert_int_equal(ps_first_shard(3), 143);
    assert_int_equal(ps_first_shard(1025), 389);
    assert_int_equal(ps_shard_of(389, 0), 389);
    assert_int_equal(ps_shard_of(1000, 64 * 24), 0);
    assert_int_equal(ps_shard_of(0, 1000000), 265);
    assert_int_equal(ps_local_of(1000000), 15 * 64);
    assert_int_equal(ps_shard_of(PS_BY_ID, ps_row_of_id(0)), 904);
    assert_int_equal(ps_shard_of(PS_BY_ID, ps_row_of_id(-1)), 915);
    assert_int_equal(ps_shard_of(PS_BY_ID, ps_row_of_id(INT64_MIN)), 288);
    assert_int_equal(ps_shard_of(PS_BY_ID, ps_row_of_id(INT64_MAX)), 169);
    assert_int_equal(ps_shard_of(PS_BY_ID, ps_row_of_id(1000000)), 416);
    assert_int_equal(ps_map_make(ranks, 4, 2, holders), 2);
    for (uint32_t i = 0; i < 2 * PS_SHARDS; i++)
        hash = hash * 31 + ranks[holders[i]];
    assert_int_equal(hash, UINT64_C(0xdf1b3d42baa78009));
    assert_int_equal(ranks[holders[0]], 5);
    assert_int_equal(ranks[holders[1]], 9);
    assert_int_equal(ranks[holders[2 * 1023]], 3);
}

static void rows_of_ids_have_the_order_of_ids(void **state)
{
    static const int64_t ids[] = { INT64_MIN, INT64_MIN + 1, -5, -1, 0, 1, 7, INT64_MAX };

    (void)state;
    for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
        assert_int_equal(ps_id_of_row(ps_row_of_id(ids[i])), ids[i]);
        assert_true(i == 0 || ps_row_of_id(ids[i - 1]) < ps_row_of_id(ids[i]));
    }
    assert_int_equal(ps_row_of_id(INT64_MIN), 0);
    assert_int_equal(ps_row_of_id(INT64_MAX), UINT64_MAX);
}

static void rows_of_all_shards_are_the_rows_of_the_table(void **state)
{
    static const uint64_t sizes[] = { 0, 1, 63, 64, 65, 5000, 64 * 1024, 64 * 1024 + 1, 200001 };

    (void)state;
    for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
        for (uint32_t table = 0; table < 4; table++) {
            uint32_t first = ps_first_shard(table * 341);
            uint64_t total = 0, *next = calloc(PS_SHARDS, sizeof(*next));

            assert_non_null(next);
            for (uint64_t row = 0; row < sizes[k]; row++) { /* by their definition */
                uint32_t shard = (uint32_t)((row / 64 + first) % 1024);

                assert_int_equal(ps_shard_of(first, row), shard);
                assert_int_equal(ps_local_of(row), next[shard]);
                assert_int_equal(ps_row_of(first, shard, next[shard]), row);
                next[shard]++;
            }
            for (uint32_t shard = 0; shard < PS_SHARDS; shard++) {
                assert_int_equal(ps_local_rows(sizes[k], first, shard), next[shard]);
                total += next[shard];
            }
            assert_int_equal(total, sizes[k]);
            free(next);
        }
}

static void rows_near_the_limit_have_a_place(void **state)
{
    uint64_t row = UINT64_MAX - 5;

    (void)state;
    assert_int_equal(ps_row_of(7, ps_shard_of(7, row), ps_local_of(row)), row);
}

static uint32_t *map_of(const uint32_t *ranks, uint32_t n, uint32_t replicas)
{
    uint32_t *holders = malloc((size_t)PS_SHARDS * n * sizeof(*holders));

    assert_non_null(holders);
    assert_int_equal(ps_map_make(ranks, n, replicas, holders), replicas < n ? replicas : n);
    return holders;
}

static void holders_are_different_and_replicas_extend_them(void **state)
{
    uint32_t ranks[16];

    (void)state;
    for (uint32_t i = 0; i < 16; i++)
        ranks[i] = 10 + 3 * i;
    for (uint32_t n = 1; n <= 16; n++) {
        uint32_t *all = map_of(ranks, n, 99);

        for (uint32_t k = 1; k <= n; k++) { /* fewer replicas are the first ones */
            uint32_t *some = map_of(ranks, n, k);

            for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
                for (uint32_t i = 0; i < k; i++) {
                    assert_int_equal(some[shard * k + i], all[shard * n + i]);
                    for (uint32_t j = 0; j < i; j++)
                        assert_int_not_equal(some[shard * k + i], some[shard * k + j]);
                }
            free(some);
        }
        free(all);
    }
}

static void loss_of_a_ps_moves_only_its_shards(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 16; n++)
        for (uint32_t lost = 0; lost < n; lost++) {
            uint32_t before[16], after[16], m = 0, *old, *new;

            for (uint32_t i = 0; i < n; i++)
                before[i] = 4 + i;
            for (uint32_t i = 0; i < n; i++)
                if (i != lost)
                    after[m++] = before[i];
            old = map_of(before, n, n);
            new = map_of(after, m, m);
            for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
                for (uint32_t i = 0, at = 0; i < n; i++) /* the others keep their order */
                    if (old[shard * n + i] != lost)
                        assert_int_equal(after[new[shard * m + at++]], before[old[shard * n + i]]);
            free(old);
            free(new);
        }
}

/* Returns the largest deviation from the mean number of shards of a ps, in thousandths. */
static uint32_t imbalance(uint32_t first_rank, uint32_t n, uint32_t replicas)
{
    uint32_t ranks[16], held[16] = { 0 }, worst = 0, *holders;

    for (uint32_t i = 0; i < n; i++)
        ranks[i] = first_rank + i;
    holders = map_of(ranks, n, replicas);
    for (uint32_t i = 0; i < PS_SHARDS * replicas; i++)
        held[holders[i]]++;
    free(holders);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t off = (uint32_t)abs((int)(held[i] * n) - (int)(PS_SHARDS * replicas));

        worst = off > worst ? off : worst;
    }
    return worst * 1000 / (PS_SHARDS * replicas);
}

/* Rendezvous hashing deals shards like independent draws: the number of shards of a ps has the
 * standard deviation sqrt((n - 1) / 1024) of its mean, and the worst of n ps lies about two of
 * them off. */
static void shards_are_balanced_like_independent_draws(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 16; n++) {
        uint32_t sum = 0, limit = (uint32_t)(4 * sqrt((n - 1) / 1024.0) * 1000); /* 4 of them */

        for (uint32_t first = 1; first <= 32; first++) {
            uint32_t one = imbalance(first, n, 1);

            assert_in_range(one, 0, limit);
            sum += one;
            if (n > 2) /* replicas even out a part of the difference */
                assert_in_range(imbalance(first, n, 2), 0, limit);
        }
        if (n <= 8) /* 15 % on average over the sets of ranks */
            assert_in_range(sum / 32, 0, 150);
        assert_in_range(sum / 32, 0, 300);
    }
}

static void threads_share_the_shards_in_turn(void **state)
{
    (void)state;
    assert_int_equal(ps_thread_of(0, 3), 0);
    assert_int_equal(ps_thread_of(1022, 3), 2);
    assert_int_equal(ps_thread_of(77, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_never_change),
        cmocka_unit_test(rows_of_ids_have_the_order_of_ids),
        cmocka_unit_test(rows_of_all_shards_are_the_rows_of_the_table),
        cmocka_unit_test(rows_near_the_limit_have_a_place),
        cmocka_unit_test(holders_are_different_and_replicas_extend_them),
        cmocka_unit_test(loss_of_a_ps_moves_only_its_shards),
        cmocka_unit_test(shards_are_balanced_like_independent_draws),
        cmocka_unit_test(threads_share_the_shards_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
