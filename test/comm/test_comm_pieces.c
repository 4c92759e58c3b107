/* test_comm_pieces.c - an all-reduce of ranks with pieces of lanes, in every mixture of threads, shared
 * memory and TCP, compared with the tree over all lanes; and the other collectives in such a group. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "comm/cast.h"
#include "comm/pieces.h"

enum {
    RANKS_MAX = 9,
    LANES_MAX = 64,
    LARGE = 40011, /* three parts that are stored aside, between two hosts */
    STRIDE = 40064 * sizeof(float),
};

static struct group_piece pieces[PIECES_PER_RANK * RANKS_MAX];
static uint32_t n_pieces, n_lanes;

/* Floats of very different sizes, so that another order of the additions gives other bits. */
static double value(uint32_t lane, size_t i, uint32_t round)
{
    uint64_t x =
        (lane + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xc2b2ae3d27d4eb4fu ^ round * 0x165667b1u;
    double small;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    small = (double)(x % 1000003) / 1000003 - 0.5;
    return x >> 40 & 1 ? small * 1e6 : small * 1e-3;
}

/* The tree over n lanes: the left half is the largest power of two below n. */
static float tree_f32(uint32_t first, uint32_t n, size_t i, uint32_t round)
{
    uint32_t left = 1;

    if (n == 1)
        return (float)value(first, i, round);
    while (left * 2 < n)
        left *= 2;
    return tree_f32(first, left, i, round) + tree_f32(first + left, n - left, i, round);
}

static double tree_f64(uint32_t first, uint32_t n, size_t i, uint32_t round)
{
    uint32_t left = 1;

    if (n == 1)
        return value(first, i, round) / 3;
    while (left * 2 < n)
        left *= 2;
    return tree_f64(first, left, i, round) + tree_f64(first + left, n - left, i, round);
}

struct run {
    struct comm *c;
    uint32_t local, rank, round;
    uint8_t *data;
};

static void sum_floats(struct run *u, size_t count)
{
    uint32_t which = 0;
    float *data = (float *)u->data;
    struct err err;

    u->round++;
    for (uint32_t p = 0; p < n_pieces; p++)
        if (pieces[p].rank == u->rank) {
            float *to = (float *)(u->data + which++ * STRIDE);

            for (size_t i = 0; i < count; i++)
                to[i] = tree_f32(pieces[p].first, pieces[p].n, i, u->round);
        }
    EXPECT(comm_all_reduce_pieces(u->c, u->local, data, STRIDE, count, TENSOR_F32, &err) == 0, "%s",
           err.text);
    for (size_t i = 0; i < count; i += count < 1000 ? 1 : 17) {
        float want = tree_f32(0, n_lanes, i, u->round);

        EXPECT(memcmp(&data[i], &want, sizeof(want)) == 0,
               "%s: rank %u, element %zu of %zu: %g, expected %g", comm_describe(u->c), u->rank, i,
               count, data[i], want);
    }
}

static void sum_doubles(struct run *u, size_t count)
{
    uint32_t which = 0;
    double *data = (double *)u->data;
    struct err err;

    u->round++;
    for (uint32_t p = 0; p < n_pieces; p++)
        if (pieces[p].rank == u->rank)
            for (size_t i = 0; i < count; i++)
                ((double *)(u->data + which * STRIDE))[i] =
                    tree_f64(pieces[p].first, pieces[p].n, i, u->round),
                                              which += i + 1 == count;
    EXPECT(comm_all_reduce_pieces(u->c, u->local, data, STRIDE, count, TENSOR_F64, &err) == 0, "%s",
           err.text);
    for (size_t i = 0; i < count; i++)
        EXPECT(data[i] == tree_f64(0, n_lanes, i, u->round), "%s: rank %u, double %zu",
               comm_describe(u->c), u->rank, i);
}

/* The calls that have no order of additions. */
static void make_other_calls(struct run *u)
{
    uint32_t world = comm_world(u->c);
    int64_t *data = (int64_t *)u->data;
    double *numbers = (double *)u->data;
    struct err err;

    for (size_t i = 0; i < 3000; i++)
        data[i] = (int64_t)1 << u->rank | (int64_t)1 << (20 + i % 7);
    EXPECT(comm_all_reduce(u->c, u->local, data, 3000, TENSOR_I64, COMM_OR, &err) == 0, "%s",
           err.text);
    for (size_t i = 0; i < 3000; i++)
        EXPECT(data[i] == ((((int64_t)1 << world) - 1) | (int64_t)1 << (20 + i % 7)), "element %zu",
               i);
    for (size_t i = 0; i < 10; i++)
        numbers[i] = (double)((u->rank + i) % world);
    EXPECT(comm_all_reduce(u->c, u->local, data, 10, TENSOR_F64, COMM_MAX, &err) == 0, "%s",
           err.text);
    for (size_t i = 0; i < 10; i++)
        EXPECT(numbers[i] == world - 1, "maximum %zu", i);
    memset(data, (int)u->rank, 5000);
    EXPECT(comm_broadcast(u->c, u->local, data, 5000, world - 1, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < 5000; i++)
        EXPECT(((uint8_t *)data)[i] == world - 1, "byte %zu", i);
    EXPECT(comm_barrier(u->c, u->local, &err) == 0, "%s", err.text);
}

static void compute(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct run u = { .c = c,
                     .local = local,
                     .rank = comm_first_rank(c) + local,
                     .data = (uint8_t *)k->arenas[self].base + local * k->arena_bytes };

    sum_floats(&u, LARGE);
    make_other_calls(&u);
    sum_floats(&u, 100);
    sum_doubles(&u, 77);
    sum_floats(&u, 1);
    sum_floats(&u, LARGE);
}

static struct comm *open_pieces(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;

    o.view.pieces = pieces;
    o.view.n_pieces = n_pieces;
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    return c;
}

static void scene(struct cast *k, uint32_t self)
{
    struct comm *c = open_pieces(k, self);

    cast_ranks(k, c, self, compute);
    comm_close(c);
}

static uint32_t below(uint32_t *at, uint32_t n)
{
    const struct rng_key key = { .seed = 20261126 };

    return rng_u32(&key, (*at)++) % n;
}

static int by_lane(const void *a, const void *b)
{
    const struct group_piece *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* Divides lanes among the ranks at random: amounts for random speeds, at random aligned places. */
static void divide(uint32_t *at, uint32_t world)
{
    struct err err;

    for (;;) {
        double seconds[RANKS_MAX];
        uint32_t mask;

        n_lanes = below(at, 4) > 0 ? 1u << (4 + below(at, 3)) : world + below(at, 40);
        for (uint32_t r = 0; r < world; r++)
            seconds[r] = 1 + below(at, 9);
        n_pieces = pieces_plan(seconds, world, n_lanes, LANES_MAX, pieces);
        mask = __builtin_popcount(n_lanes) == 1 ? below(at, n_lanes) : 0;
        for (uint32_t p = 0; p < n_pieces; p++)
            pieces[p].first ^= mask & ~(pieces[p].n - 1);
        qsort(pieces, n_pieces, sizeof(*pieces), by_lane);
        if (n_pieces > world &&
            pieces_check(pieces, n_pieces, n_lanes, world, LANES_MAX, &err) == 0)
            return;
    }
}

static void any_division_on_any_hosts_gives_the_bits_of_the_tree(void **state)
{
    uint32_t at = 0;
    struct cast k;

    (void)state;
    for (int i = 0; i < 60; i++) {
        uint32_t world = 2 + below(&at, RANKS_MAX - 1);
        char layout[128] = "", host = 'A';

        for (uint32_t left = world, n; left > 0; left -= n) {
            size_t end = strlen(layout);

            n = 1 + below(&at, left < 3 ? left : 3);
            host = below(&at, 3) != 0 ? host : (char)('A' + below(&at, 3));
            snprintf(layout + end, sizeof(layout) - end, "%c%u ", host, n);
        }
        divide(&at, world);
        cast_init(&k, layout, below(&at, 4) != 0, 2 * STRIDE);
        cast_play(&k, scene);
        cast_fini(&k);
    }
}

/* One rank believes in another division. */
static void scene_of_two_divisions(struct cast *k, uint32_t self)
{
    static const struct group_piece other[] = { { 1, 0, 4 }, { 0, 4, 2 }, { 0, 6, 1 }, { 1, 7, 1 } };
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err = { 0 };

    memcpy(pieces, other, sizeof(other));
    if (self == 1) {
        pieces[0].rank = 0;
        pieces[1].rank = 1;
        pieces[2].rank = 1;
        pieces[3].rank = 0;
    }
    o.view.pieces = pieces;
    o.view.n_pieces = 4;
    EXPECT(cast_connect(&o, &c, &err) < 0, "a group with two divisions");
}

static void ranks_with_unequal_divisions_do_not_connect(void **state)
{
    struct cast k;

    (void)state;
    cast_init(&k, "A1 B1", true, 4096);
    k.deadline_ms = 300 * SLOW;
    cast_play(&k, scene_of_two_divisions);
    cast_fini(&k);
}

static void pieces_that_are_no_division_are_refused(void **state)
{
    static const struct group_piece three[] = { { 0, 0, 4 }, { 1, 4, 2 } };
    struct comm *c = NULL;
    struct err err;
    struct cast k;

    (void)state;
    cast_init(&k, "A1 B1", true, 4096);
    for (int i = 0; i < 3; i++) {
        struct comm_opts o = cast_opts(&k, 0);

        o.view.pieces = three;
        o.view.n_pieces = i == 0 ? 1 : 2;
        o.groups = i == 1 ? 2 : 0;
        assert_int_equal(comm_open(&o, &c, &err), i < 2 ? ERR_INPUT : 0);
        assert_non_null(i < 2 ? strstr(err.text, i == 0 ? "rank 1 has no lanes" : "compression")
                              : "");
    }
    comm_close(c);
    cast_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_division_on_any_hosts_gives_the_bits_of_the_tree),
        cmocka_unit_test(ranks_with_unequal_divisions_do_not_connect),
        cmocka_unit_test(pieces_that_are_no_division_are_refused),
    };

    return cmocka_run_group_tests_name("comm/comm_pieces", tests, NULL, NULL);
}
