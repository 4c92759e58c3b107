#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "comm/comm.h"
#include "comm/schedule.h"

enum { NODES_MAX = 64, SEGMENTS_MAX = 64 };

/* A symbolic sum: the nodes in it, and a hash of the order of the additions in which, as in
 * floating point, a + b is b + a but (a + b) + c is not a + (b + c). */
struct sum {
    uint64_t nodes, hash;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static struct sum leaf(uint32_t node)
{
    return (struct sum){ (uint64_t)1 << node, mix(node + 1) };
}

static struct sum plus(struct sum a, struct sum b)
{
    assert_true((a.nodes & b.nodes) == 0); /* no node is counted twice */
    return (struct sum){ a.nodes | b.nodes, mix(a.hash + b.hash) };
}

static struct sum tree(uint32_t first, uint32_t n)
{
    uint32_t left = 1;

    if (n == 1)
        return leaf(first);
    while (left * 2 < n)
        left *= 2;
    return plus(tree(first, left), tree(first + left, n - left));
}

/* Runs the nodes as over sockets without any buffer: a transfer happens when its sender and its
 * receiver have both reached it; a node continues when both of its transfers have happened. */
struct world {
    struct schedule s[NODES_MAX];
    uint32_t at[NODES_MAX];
    bool sent[NODES_MAX], received[NODES_MAX];
    struct sum have[NODES_MAX][SEGMENTS_MAX], in[NODES_MAX][SEGMENTS_MAX];
    /* of node i: the part of i's segment that node k sent */
    struct sum aside[NODES_MAX][NODES_MAX];
    uint32_t n;
};

static bool is_over(const struct world *w, uint32_t node)
{
    return w->at[node] == schedule_steps(&w->s[node]);
}

static bool transfer(struct world *w, uint32_t from)
{
    struct schedule_step out, in;

    if (is_over(w, from) || w->sent[from])
        return false;
    out = schedule_step(&w->s[from], w->at[from]);
    if (out.to == SCHEDULE_NONE || is_over(w, out.to) || w->received[out.to])
        return false;
    in = schedule_step(&w->s[out.to], w->at[out.to]);
    if (in.from != from)
        return false;
    assert_int_equal(out.send.begin, in.recv.begin);
    assert_int_equal(out.send.end, in.recv.end);
    assert_true(out.send.begin < out.send.end && out.send.end <= w->s[from].n_segments);
    memcpy(&w->in[out.to][in.recv.begin], &w->have[from][out.send.begin],
           (out.send.end - out.send.begin) * sizeof(struct sum));
    w->sent[from] = w->received[out.to] = true;
    return true;
}

static bool go_on(struct world *w, uint32_t node)
{
    struct schedule_step step;

    if (is_over(w, node))
        return false;
    step = schedule_step(&w->s[node], w->at[node]);
    if ((step.to != SCHEDULE_NONE && !w->sent[node]) ||
        (step.from != SCHEDULE_NONE && !w->received[node]))
        return false;
    for (uint32_t i = step.recv.begin; step.keep && i < step.recv.end; i++) {
        assert_int_equal(i, node);
        assert_int_equal(w->aside[node][step.from].nodes, 0); /* one message from each node */
        w->aside[node][step.from] = w->in[node][i];
    }
    for (uint32_t i = step.recv.begin;
         !step.keep && step.from != SCHEDULE_NONE && i < step.recv.end; i++)
        w->have[node][i] = step.add ? plus(w->have[node][i], w->in[node][i]) : w->in[node][i];
    w->sent[node] = w->received[node] = false;
    w->at[node]++;
    return true;
}

static struct sum tree_of(const struct sum *x, uint32_t first, uint32_t n)
{
    uint32_t left = 1;

    if (n == 1)
        return x[first];
    while (left * 2 < n)
        left *= 2;
    return plus(tree_of(x, first, left), tree_of(x, first + left, n - left));
}

static void run(struct world *w, enum schedule_what what, bool direct, uint32_t root,
                uint32_t n_segments)
{
    bool moved = true;

    for (uint32_t i = 0; i < w->n; i++) {
        w->s[i] = (struct schedule){ what, direct, w->n, i, root, n_segments };
        w->at[i] = 0;
    }
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < w->n; i++)
            moved |= transfer(w, i);
        for (uint32_t i = 0; i < w->n; i++)
            moved |= go_on(w, i);
    }
    for (uint32_t i = 0; i < w->n; i++)
        assert_true(is_over(w, i)); /* else there is a deadlock */
    for (uint32_t i = 0; direct && what == SCHEDULE_REDUCE_SCATTER && i < w->n; i++) {
        w->aside[i][i] = w->have[i][i];
        w->have[i][i] = tree_of(w->aside[i], 0, w->n);
    }
}

static void begin(struct world *w, uint32_t n)
{
    memset(w, 0, sizeof(*w));
    w->n = n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < SEGMENTS_MAX; k++)
            w->have[i][k] = leaf(i);
}

static uint64_t all(uint32_t n)
{
    return n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

/* Returns the segment that a node holds complete after the reduce-scatter. */
static uint32_t owner_of(const struct schedule *s, uint32_t node)
{
    return s->direct ? node : schedule_reverse(node, s->n_nodes);
}

static void reduce_scatter_leaves_every_sum_at_its_owner(void **state)
{
    struct world *w = *state;

    for (uint32_t n = 2; n <= NODES_MAX; n++) {
        for (int direct = !schedule_is_power(n); direct < 2; direct++) {
            uint64_t homes = 0;

            begin(w, n);
            run(w, SCHEDULE_REDUCE_SCATTER, direct, 0, n);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t home = owner_of(&w->s[i], i);

                assert_true(home < n);
                homes |= (uint64_t)1 << home;
                assert_int_equal(w->have[i][home].nodes, all(n));
            }
            assert_int_equal(homes, all(n)); /* every segment has one owner */
        }
    }
}

static void all_reduce_gives_equal_sums_on_all_nodes(void **state)
{
    struct world *w = *state;

    for (uint32_t n = 2; n <= NODES_MAX; n++) {
        for (int direct = !schedule_is_power(n); direct < 2; direct++) {
            begin(w, n);
            run(w, SCHEDULE_REDUCE_SCATTER, direct, 0, n);
            run(w, SCHEDULE_ALL_GATHER, direct, 0, n);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < n; k++) {
                    assert_int_equal(w->have[i][k].nodes, all(n));
                    assert_int_equal(w->have[i][k].hash, w->have[0][k].hash);
                }
        }
    }
}

static void all_schedules_add_along_the_tree(void **state)
{
    struct world *w = *state;

    for (uint32_t n = 2; n <= NODES_MAX; n++) {
        struct sum want = tree(0, n);

        begin(w, n);
        run(w, SCHEDULE_REDUCE_SCATTER, true, 0, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(w->have[i][owner_of(&w->s[i], i)].hash, want.hash);
        if (!schedule_is_power(n))
            continue;

        begin(w, n);
        run(w, SCHEDULE_REDUCE_SCATTER, false, 0, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(w->have[i][owner_of(&w->s[i], i)].hash, want.hash);
        begin(w, n);
        run(w, SCHEDULE_DOUBLING, false, 0, n);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < n; k++)
                assert_int_equal(w->have[i][k].hash, want.hash);
    }
}

static void tree_check_detects_another_order(void **state)
{
    struct sum other = plus(plus(plus(leaf(0), leaf(1)), leaf(2)), leaf(3));

    (void)state;
    assert_int_equal(other.nodes, tree(0, 4).nodes);
    assert_int_not_equal(other.hash, tree(0, 4).hash);
}

static void broadcast_reaches_all_nodes_from_every_root(void **state)
{
    struct world *w = *state;

    for (uint32_t n = 2; n <= NODES_MAX; n++) {
        for (int direct = !schedule_is_power(n); direct < 2; direct++) {
            for (uint32_t root = 0; root < n; root += n < 9 ? 1 : n / 4) {
                uint32_t segments = direct ? n : 1;

                begin(w, n);
                run(w, SCHEDULE_BROADCAST, direct, root, segments);
                if (direct)
                    run(w, SCHEDULE_ALL_GATHER, direct, root, segments);
                for (uint32_t i = 0; i < n; i++)
                    for (uint32_t k = 0; k < segments; k++)
                        assert_int_equal(w->have[i][k].hash, leaf(root).hash);
            }
        }
    }
}

/* As in the socket code, a rank may only send to and receive from its declared peers. */
static void halving_exchanges_only_at_distances_of_powers_of_two(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4096; n *= 2) {
        for (uint32_t node = 0; node < n; node += 1 + n / 64) {
            struct schedule s = { SCHEDULE_REDUCE_SCATTER, false, n, node, 0, n };
            uint32_t total = 0;

            for (uint32_t i = 0; i < schedule_steps(&s); i++) {
                struct schedule_step step = schedule_step(&s, i);

                assert_int_equal(step.to, node ^ (uint32_t)1 << i);
                assert_int_equal(step.from, step.to);
                total += step.send.end - step.send.begin;
            }
            assert_int_equal(total, n - 1); /* the minimum */
        }
    }
}

static void slices_cover_a_vector_once_at_multiples_of_16(void **state)
{
    static const size_t counts[] = { 0, 1, 15, 16, 17, 31, 100, 1023, 4096, 1000003, SIZE_MAX / 8 };

    (void)state;
    for (uint32_t world = 1; world <= 64; world++) {
        for (size_t k = 0; k < sizeof(counts) / sizeof(*counts); k++) {
            size_t sum = 0, most = 0, least = SIZE_MAX;

            for (uint32_t r = 0; r < world; r++) {
                struct comm_range x = comm_slice(world, r, counts[k]);

                assert_true(x.begin <= x.end && x.end <= counts[k]);
                assert_true(x.begin % 16 == 0 || x.begin == counts[k]);
                assert_true(x.end % 16 == 0 || x.end == counts[k]);
                sum += x.end - x.begin;
                most = x.end - x.begin > most ? x.end - x.begin : most;
                least = x.end - x.begin < least ? x.end - x.begin : least;
                for (uint32_t q = 0; q < world; q++) { /* of this total and disjoint: a cover */
                    struct comm_range y = comm_slice(world, q, counts[k]);

                    if (q != r)
                        assert_true(x.end <= y.begin || y.end <= x.begin || x.begin == x.end ||
                                    y.begin == y.end);
                }
            }
            assert_int_equal(sum, counts[k]);
            assert_true(most - least <= 31);
        }
    }
}

static void slices_of_a_power_of_two_lie_in_mirrored_order(void **state)
{
    (void)state;
    assert_int_equal(comm_slice(4, 0, 64).begin, 0);
    assert_int_equal(comm_slice(4, 2, 64).begin, 16);
    assert_int_equal(comm_slice(4, 1, 64).begin, 32);
    assert_int_equal(comm_slice(4, 3, 64).begin, 48);
    assert_int_equal(comm_slice(3, 1, 48).begin, 16);
    assert_int_equal(comm_slice(4096, 1, 1 << 20).begin, 1 << 19);
}

static int setup(void **state)
{
    *state = malloc(sizeof(struct world));
    return *state == NULL;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatter_leaves_every_sum_at_its_owner),
        cmocka_unit_test(all_reduce_gives_equal_sums_on_all_nodes),
        cmocka_unit_test(all_schedules_add_along_the_tree),
        cmocka_unit_test(tree_check_detects_another_order),
        cmocka_unit_test(broadcast_reaches_all_nodes_from_every_root),
        cmocka_unit_test(halving_exchanges_only_at_distances_of_powers_of_two),
        cmocka_unit_test(slices_cover_a_vector_once_at_multiples_of_16),
        cmocka_unit_test(slices_of_a_power_of_two_lie_in_mirrored_order),
    };

    return cmocka_run_group_tests_name("comm/schedule", tests, setup, teardown);
}
