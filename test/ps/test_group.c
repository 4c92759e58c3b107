/* test_group.c - whole groups with deaths at every message (group.h). SEEDS=n runs n random
 * histories. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "harness/ring.h"
#include "harness/sanitized.h"
#include "ps/group.h"

static const uint32_t all_seeds =
#if SANITIZED_ADDRESS
    25;
#else
    250;
#endif

static struct group *open_group(struct plain *plain, uint32_t n_trainers, uint32_t n_ps,
                                uint32_t replicas, uint64_t seed)
{
    static const uint64_t batches[] = { 100, 0, 10, 1 };
    struct group *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    g->plain = plain;
    g->replicas = replicas;
    g->batch_floats = batches[seed % 4];
    g->random = plain_mix(seed, 1) | 1;
    for (uint32_t t = 0; t < n_trainers; t++)
        g->trainers[t].lives = true;
    for (uint32_t p = 0; p < n_ps; p++)
        group_start_ps(g, p);
    return g;
}

static void close_group(struct group *g)
{
    group_close(g);
    free(g);
}

/* What happens between two generations: dead tasks come back, others join. */
enum change { NO_CHANGE, RESTARTS, ONE_MORE_PS, ONE_MORE_TRAINER, CHANGES };

static void start_first_absent_ps(struct group *g)
{
    for (uint32_t p = 0; p < PS; p++)
        if (!g->ps[p].lives) {
            group_start_ps(g, p);
            return;
        }
}

static void start_first_absent_trainer(struct group *g)
{
    for (uint32_t t = 0; t < TRAINERS; t++)
        if (!g->trainers[t].lives) {
            g->trainers[t].lives = true;
            g->trainers[t].done = 0;
            return;
        }
}

static void change(struct group *g, enum change how)
{
    bool ps = false, trainer = false;

    for (uint32_t k = 0; how == RESTARTS && k < g->n_kills; k++)
        if (g->kills[k].at <= g->n_events && !task_lives(g, g->kills[k].task)) {
            if (g->kills[k].task >= TRAINERS)
                group_start_ps(g, g->kills[k].task - TRAINERS);
            else
                start_first_absent_trainer(g);
        }
    if (how == ONE_MORE_PS)
        start_first_absent_ps(g);
    if (how == ONE_MORE_TRAINER)
        start_first_absent_trainer(g);
    for (uint32_t i = 0; i < PS; i++)
        ps = ps || g->ps[i].lives;
    for (uint32_t i = 0; i < TRAINERS; i++)
        trainer = trainer || g->trainers[i].lives;
    if (!ps)
        start_first_absent_ps(g);
    if (!trainer)
        start_first_absent_trainer(g);
}

/* Runs the job to its end. After a loss of rows the group returns to a checkpoint. */
static void run(struct group *g, enum change how)
{
    bool from = false;

    for (uint32_t n = 0;; n++) {
        uint64_t step = newest(g), checkpoint = group_draw(g, step + 1);

        assert_true(n < 30);
        if (g->plain->tables == plain_dynamic)
            checkpoint = 0; /* no other one has the rows of dynamic tables */
        if (group_generation(g, checkpoint, &from))
            return;
        if (!from) {
            step = newest(g);
            change(g, how);
            if (newest(g) < step || (newest(g) == 0 && step == 0))
                from = false;
        }
    }
}

static void groups_of_any_size_train_to_the_bits_of_whole_tables(void **state)
{
    static const enum optim_type types[] = { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAGRAD, OPTIM_RMSPROP };
    static const uint32_t staleness[] = { 0, 1, 0, 2, 0, 4, 3 };
    uint32_t n_later = 0, n_waits = 0, n_skipped = 0;

    (void)state;
    for (uint32_t i = 0; i < 48; i++) {
        struct plain plain;
        struct group *g;

        plain_open(&plain, types[i % 4], 3, 7 + i % 2, 8, i % 3 == 0 ? 0.9 : 0,
                   i % 5 == 0 ? 0.5f : 0);
        plain.staleness = staleness[i % 7];
        g = open_group(&plain, 1 + i % 4, 1 + i / 4 % 4, 1 + i / 16, i);
        run(g, NO_CHANGE);
        n_later += g->n_later;
        n_waits += g->n_waits;
        n_skipped += g->n_skipped;
        close_group(g);
        plain_close(&plain);
    }
    assert_true(n_later > 0 && n_waits > 0 && n_skipped > 0);
}

static void rows_in_every_shard_and_two_blocks(void **state)
{
    struct plain plain;
    struct group *g;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 4, 8, 4, 0.5, 0);
    g = open_group(&plain, 2, 3, 2, 5);
    g->n_kills = 1;
    g->kills[0] = (struct kill){ 9000, TRAINERS + 1 };
    run(g, RESTARTS);
    close_group(g);
    plain_close(&plain);
}

/* Deaths of `n` tasks at once, before each event of a run without deaths. */
static void every_boundary(struct plain *plain, uint32_t n_trainers, uint32_t n_ps,
                           uint32_t replicas, uint32_t stride)
{
    struct group *g = open_group(plain, n_trainers, n_ps, replicas, 3);
    uint64_t n_events;
    uint32_t n_refused = 0, n_committed = 0, n_copied = 0, n_followed = 0;

    run(g, NO_CHANGE);
    n_events = g->n_events;
    close_group(g);
    for (uint64_t at = 1, i = 0; at <= n_events; at += stride)
        for (uint32_t victim = 0; victim < n_trainers + n_ps; victim++, i++) {
            g = open_group(plain, n_trainers, n_ps, replicas, 3);
            g->n_kills = 1;
            g->kills[0].at = at;
            g->kills[0].task = victim < n_trainers ? victim : TRAINERS + victim - n_trainers;
            run(g, (enum change)(plain_mix(i, 2) % CHANGES));
            n_refused += g->n_refused;
            n_committed += g->n_committed;
            n_copied += g->n_copied;
            n_followed += g->n_followed;
            close_group(g);
        }
    assert_true(n_committed > 0 && n_copied > 0);
    assert_true((n_followed > 0) == (replicas > 1)); /* copies during the steps */
    assert_true((n_refused > 0) == (replicas == 1)); /* one death loses no rows with two holders */
}

static void death_of_any_task_at_any_event_changes_no_bit(void **state)
{
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 3, 8, 4, 0.9, 0);
    every_boundary(&plain, 2, 2, 1, SANITIZED_ADDRESS ? 97 : (uint32_t)ring_count(41, 7));
    every_boundary(&plain, 2, 3, 2, SANITIZED_ADDRESS ? 113 : (uint32_t)ring_count(53, 9));
    every_boundary(&plain, 3, 3, 3, SANITIZED_ADDRESS ? 179 : (uint32_t)ring_count(83, 17));
    plain_close(&plain);
}

/* Lanes read the rows after step max(0, t - 1 - staleness), wherever the shards move. */
static void death_of_any_task_at_any_event_changes_no_version_that_lanes_read(void **state)
{
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 3, 8, 6, 0, 0);
    plain.staleness = 1;
    every_boundary(&plain, 2, 3, 2, SANITIZED_ADDRESS ? 113 : (uint32_t)ring_count(101, 31));
    plain.staleness = 2;
    every_boundary(&plain, 2, 2, 1, SANITIZED_ADDRESS ? 89 : (uint32_t)ring_count(67, 23));
    plain.staleness = 4;
    every_boundary(&plain, 3, 3, 2, SANITIZED_ADDRESS ? 127 : (uint32_t)ring_count(127, 43));
    plain_close(&plain);
}

/* Returns the number of shards that were copied during steps. */
static uint32_t random_deaths(struct plain *plain, uint64_t n)
{
    uint32_t n_followed = 0;

    for (uint64_t seed = 0; seed < n; seed++) {
        uint64_t x = plain_mix(seed, 11);
        struct group *g;

        plain->staleness = plain->tables == plain_dynamic || x / 512 % 2 == 0
                               ? 0
                               : 1 + (uint32_t)(x / 1024 % PS_STALENESS_MAX);
        g = open_group(plain, 1 + x % 4, 1 + x / 4 % 4, 1 + (uint32_t)(x / 16 % 3), seed);
        g->n_kills = KILLS;
        for (uint32_t k = 0; k < KILLS; k++) {
            g->kills[k].at = 1 + group_draw(g, 900);
            g->kills[k].task = (uint32_t)group_draw(g, TASKS);
        }
        if (x / 64 % 2 == 0) /* a pair at the same time */
            g->kills[1].at = g->kills[0].at;
        run(g, (enum change)(x / 128 % CHANGES));
        n_followed += g->n_followed;
        close_group(g);
    }
    return n_followed;
}

static uint64_t seeds(void)
{
    const char *asked = getenv("SEEDS");

    return asked != NULL ? strtoull(asked, NULL, 10) : all_seeds;
}

static void random_deaths_and_changes_of_the_group_change_no_bit(void **state)
{
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 3, 8, 6, 0.9, 0.5f);
    (void)random_deaths(&plain, seeds());
    plain_close(&plain);
}

/* ---- memory ---- */

/* A fifth more than what each server holds now. */
static void limit_rooms(struct group *g)
{
    for (uint32_t i = 0; i < g->n_servers; i++)
        if (lives(g, g->n_ranks + i)) {
            struct ps_server_stats stats;

            ps_server_stats(server_at(g, i), &stats);
            g->room[g->owner[i]][g->thread[i]] = stats.bytes + stats.bytes / 5;
        }
}

/* Three ps with two holders of each row have 2/3 of the rows each. Their memory has no room for all rows, as two of them
 * would have. */
static void second_copy_that_exceeds_the_memory_is_not_made_and_no_row_is_lost(void **state)
{
    (void)state;
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        struct plain plain;
        struct group *g;
        bool from = false;

        plain_open_tables(&plain, dynamic ? plain_dynamic : plain_tables, OPTIM_ADAM, 3, 8, 24, 0,
                          0);
        g = open_group(&plain, 3, 3, 2, 4);
        g->n_kills = 1;
        g->kills[0] = (struct kill){ 700, TRAINERS + 1 };
        assert_false(group_generation(g, 0, &from));
        assert_int_equal(g->route.n_holders, 2);
        limit_rooms(g);
        g->kills[0] = (struct kill){ g->n_events + 800, 0 };
        assert_false(group_generation(g, 0, &from));
        assert_int_equal(g->route.n_holders, 1);
        start_first_absent_ps(g);
        if (dynamic) /* the tables have grown */
            limit_rooms(g);
        g->n_kills = 0;
        assert_true(group_generation(g, 0, &from));
        assert_true(dynamic || g->route.n_holders == 2); /* shards that move away count, too */
        assert_int_equal(g->n_exceeded + g->n_refused, 0);
        close_group(g);
        plain_close(&plain);
    }
}

/* ---- dynamic tables ---- */

static void groups_with_a_dynamic_table_train_to_the_bits_of_its_rules(void **state)
{
    static const enum optim_type types[] = { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAGRAD, OPTIM_RMSPROP };
    uint32_t n_reports = 0;

    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        struct plain plain;
        struct group *g;

        plain_open_tables(&plain, plain_dynamic, types[i % 4], 3, 7 + i % 2, 12,
                          i % 3 == 0 ? 0.9 : 0, i % 5 == 0 ? 0.5f : 0);
        g = open_group(&plain, 1 + i % 4, 1 + i / 4 % 4, 1 + i % 3, i);
        run(g, NO_CHANGE);
        n_reports += g->n_reports;
        close_group(g);
        plain_close(&plain);
    }
    assert_true(n_reports > 0); /* each server has generated rows */
}

static void deaths_and_copies_change_no_bit_of_a_dynamic_table(void **state)
{
    struct plain plain;

    (void)state;
    plain_open_tables(&plain, plain_dynamic, OPTIM_ADAM, 3, 8, 8, 0.9, 0.5f);
    assert_true(random_deaths(&plain, seeds() / 2) > 0);
    plain_close(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_any_size_train_to_the_bits_of_whole_tables),
        cmocka_unit_test(rows_in_every_shard_and_two_blocks),
        cmocka_unit_test(death_of_any_task_at_any_event_changes_no_bit),
        cmocka_unit_test(death_of_any_task_at_any_event_changes_no_version_that_lanes_read),
        cmocka_unit_test(random_deaths_and_changes_of_the_group_change_no_bit),
        cmocka_unit_test(second_copy_that_exceeds_the_memory_is_not_made_and_no_row_is_lost),
        cmocka_unit_test(groups_with_a_dynamic_table_train_to_the_bits_of_its_rules),
        cmocka_unit_test(deaths_and_copies_change_no_bit_of_a_dynamic_table),
    };

    return cmocka_run_group_tests_name("ps/group", tests, NULL, NULL);
}
