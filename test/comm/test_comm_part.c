/* test_comm_part.c - an all-reduce among the ranks of a part, in every mixture of threads, shared
 * memory and TCP, compared with the tree over the leaves of the part. Parts make different numbers
 * of calls, between calls of all ranks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/cast.h"

enum { LEAVES = 16, LARGE = 20011, SMALL = 100 };

/* Floats of very different sizes, so that another order of the additions gives other bits. */
static float value(uint32_t leaf, size_t i, uint32_t round)
{
    uint64_t x =
        (leaf + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xc2b2ae3d27d4eb4fu ^ round * 0x165667b1u;
    float small;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    small = (float)(x % 1000003) / 1000003 - 0.5f;
    return x >> 40 & 1 ? small * 1e6f : small * 1e-3f;
}

static float tree(uint32_t first, uint32_t n, size_t i, uint32_t round)
{
    if (n == 1)
        return value(first, i, round);
    return tree(first, n / 2, i, round) + tree(first + n / 2, n / 2, i, round);
}

struct run {
    struct comm *c;
    uint32_t local, rank, first, n; /* leaves of this rank */
    uint32_t round;
    float *data;
};

/* All-reduces what the rank has of the leaves [begin, begin + all). */
static void reduce_leaves(struct run *u, uint32_t begin, uint32_t all, size_t count)
{
    struct err err;

    u->round++;
    for (size_t i = 0; i < count; i++)
        u->data[i] = tree(u->first, u->n, i, u->round);
    EXPECT(comm_all_reduce(u->c, u->local, u->data, count, TENSOR_F32, COMM_SUM, &err) == 0, "%s",
           err.text);
    for (size_t i = 0; i < count; i += 13) {
        float want = tree(begin, all, i, u->round);

        EXPECT(memcmp(&u->data[i], &want, sizeof(want)) == 0,
               "%s: rank %u, leaves %u to %u, element %zu of %zu: %g, expected %g",
               comm_describe(u->c), u->rank, begin, begin + all - 1, i, count, u->data[i], want);
    }
}

/* Divides the leaves into blocks; a rank with several blocks is a part alone. */
static void reduce_in_blocks(struct cast *k, struct run *u, uint32_t block)
{
    uint32_t begin = u->first / block * block, first = u->rank, n = 1, leaf = 0, base = u->round;
    struct err err;

    for (uint32_t r = 0; u->n < block && leaf < begin + block; leaf += k->shares[r++]) {
        if (leaf == begin)
            first = r;
        n = leaf >= begin ? r - first + 1 : 1;
    }
    EXPECT(comm_divide(u->c, u->local, first, n, &err) == 0, "%s", err.text);
    for (uint32_t session = 0; session < 3; session++) {
        comm_set_part(u->c, u->local, true);
        for (uint32_t call = 0; call < 2 + begin / block + session; call++)
            reduce_leaves(u, u->n < block ? begin : u->first, u->n < block ? block : u->n,
                          call % 2 == 0 ? LARGE : SMALL);
        comm_set_part(u->c, u->local, false);
        u->round = base + 100 * (session + 1); /* the same on all ranks */
        reduce_leaves(u, 0, LEAVES, session % 2 == 0 ? SMALL : LARGE);
    }
}

static void compute(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct run u = { .c = c,
                     .local = local,
                     .rank = comm_first_rank(c) + local,
                     .data = (float *)((uint8_t *)k->arenas[self].base + local * k->arena_bytes) };

    for (uint32_t r = 0; r < u.rank; r++)
        u.first += k->shares[r];
    u.n = k->shares[u.rank];
    for (uint32_t block = 1; block <= LEAVES; block *= 2) {
        u.round = block * 10000;
        reduce_in_blocks(k, &u, block);
    }
}

static void scene(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, compute);
    comm_close(c);
}

static void parts_of_any_size_give_the_bits_of_their_subtree(void **state)
{
    static const char *const layouts[] = {
        "A1",          "A8",       "A1 A1 A1 A1", "A2 A2",          "A1 B1 C1 D1",
        "A2 B2",       "A1 B1",    "A4 B4",       "A1 A1 B1 B1",    "A1 B1 A1 B1",
        "A1 A1 A1",    "A1 B1 C1", "A2 A1 B2",    "A1 A1 A1 B1 B1", "A1 B3 A1 C1",
        "A2 B2 A2 B2", "A3 B3",
    };
    struct cast k;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(layouts) / sizeof(*layouts); i++) {
        uint32_t world = 0;

        cast_init(&k, layouts[i / 2], i % 2 == 0, LARGE * sizeof(float));
        for (uint32_t m = 0; m < k.n; m++)
            world += k.members[m].n_devices;
        comm_share(NULL, LEAVES, world, k.shares);
        cast_play(&k, scene);
        cast_fini(&k);
    }
}

/* Rank 1 does not arrive in its part: rank 0 waits for as long as its patience allows, and the error
 * states that time. */
static void wait_alone(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    float *data = k->arenas[self].base;
    uint64_t begin = clock_ms();
    char waited[32];
    struct err err;

    snprintf(waited, sizeof(waited), "within %.3g s", (double)(3 * k->deadline_ms) / 1e3);
    EXPECT(comm_divide(c, local, 0, 2, &err) == 0, "%s", err.text);
    comm_set_part(c, local, true);
    if (self == 0) {
        comm_set_patience(c, local, 3);
        EXPECT(comm_all_reduce(c, local, data, 10, TENSOR_F32, COMM_SUM, &err) == ERR_TIMEOUT, "%s",
               err.text);
        EXPECT(clock_ms() - begin >= 3 * k->deadline_ms, "the wait ended after %llu ms",
               (unsigned long long)(clock_ms() - begin));
        EXPECT(strstr(err.text, "rank 1 (worker 1)") != NULL && strstr(err.text, waited) != NULL,
               "%s", err.text);
        atomic_store(&k->stage->number[0], 1);
        return;
    }
    cast_until(k, 0, 1);
}

static void scene_wait(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, wait_alone);
    comm_close(c);
}

static void rank_with_patience_waits_that_many_deadlines(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        cast_init(&k, "A1 A1", true, LARGE * sizeof(float));
        k.deadline_ms = ms;
        cast_start(&k, scene_wait);
        ms = cast_judge(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_any_size_give_the_bits_of_their_subtree),
        cmocka_unit_test(rank_with_patience_waits_that_many_deadlines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
