/* Results of the collectives, in every mixture of threads, shared memory and TCP, compared with an
 * oracle that adds in the specified order. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"
#include "comm/cast.h"
#include "harness/allocations.h"

enum { COUNT_MAX = 70001, GUARD = 64 };

/* Returns the element `i` of rank `rank` in call `round`. Floats have very different sizes, so that
 * another order of the additions gives other bits; integers are used where the order is not
 * specified. */
static double value(uint32_t rank, size_t i, uint32_t round)
{
    uint64_t x =
        (rank + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xc2b2ae3d27d4eb4fu ^ round * 0x165667b1u;
    double small;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    small = (double)(x % 1000003) / 1000003 - 0.5;
    return x >> 40 & 1 ? small * 1e6 : small * 1e-3;
}

static float tree_f32(uint32_t first, uint32_t n, const float *v, bool max)
{
    uint32_t left = 1;
    float a, b;

    if (n == 1)
        return v[first];
    while (left * 2 < n)
        left *= 2;
    a = tree_f32(first, left, v, max);
    b = tree_f32(first + left, n - left, v, max);
    return max ? (a > b ? a : b) : a + b;
}

static double tree_f64(uint32_t first, uint32_t n, const double *v, bool max)
{
    uint32_t left = 1;
    double a, b;

    if (n == 1)
        return v[first];
    while (left * 2 < n)
        left *= 2;
    a = tree_f64(first, left, v, max);
    b = tree_f64(first + left, n - left, v, max);
    return max ? (a > b ? a : b) : a + b;
}

/* Returns the element that an all-reduce must give, as bits. */
static uint64_t oracle(uint32_t world, size_t i, uint32_t round, enum tensor_dtype dtype, bool max)
{
    float f[64];
    double d[64];
    int64_t sum = 0, most = INT64_MIN;
    uint64_t bits = 0;

    for (uint32_t r = 0; r < world; r++) {
        d[r] = value(r, i, round);
        f[r] = (float)d[r];
        sum += (int64_t)d[r];
        most = (int64_t)d[r] > most ? (int64_t)d[r] : most;
    }
    if (dtype == TENSOR_F32) {
        f[0] = tree_f32(0, world, f, max);
        memcpy(&bits, f, sizeof(float));
    } else if (dtype == TENSOR_F64) {
        d[0] = tree_f64(0, world, d, max);
        memcpy(&bits, d, sizeof(double));
    } else {
        bits = (uint64_t)(max ? most : sum);
    }
    return bits;
}

static size_t element_bytes(enum tensor_dtype dtype)
{
    return dtype == TENSOR_F32 ? 4 : 8;
}

static void set(void *data, size_t i, enum tensor_dtype dtype, double v)
{
    if (dtype == TENSOR_F32)
        ((float *)data)[i] = (float)v;
    else if (dtype == TENSOR_F64)
        ((double *)data)[i] = v;
    else
        ((int64_t *)data)[i] = (int64_t)v;
}

static uint64_t get(const void *data, size_t i, enum tensor_dtype dtype)
{
    uint64_t bits = 0;

    memcpy(&bits, (const uint8_t *)data + i * element_bytes(dtype), element_bytes(dtype));
    return bits;
}

struct run {
    struct comm *c;
    uint32_t local, rank, world, round;
    uint8_t *data;
};

static void fill(struct run *u, size_t count, enum tensor_dtype dtype)
{
    memset(u->data, 0xa5, (count + GUARD) * element_bytes(dtype));
    for (size_t i = 0; i < count; i++)
        set(u->data, i, dtype, value(u->rank, i, u->round));
}

static void check_guard(struct run *u, size_t bytes)
{
    for (size_t i = bytes; i < bytes + GUARD; i++)
        EXPECT(u->data[i] == 0xa5, "rank %u: byte %zu after %zu was written", u->rank, i, bytes);
}

static void check_sums(struct run *u, struct comm_range x, size_t count, enum tensor_dtype dtype,
                       bool max, const char *what)
{
    size_t stride = count > 3000 ? 37 : 1; /* the oracle is slow */

    for (size_t i = x.begin; i < x.end; i += stride) {
        uint64_t want = oracle(u->world, i, u->round, dtype, max);

        EXPECT(get(u->data, i, dtype) == want,
               "%s (%s) rank %u of %u, element %zu of %zu %s: %llx, expected %llx", what,
               comm_describe(u->c), u->rank, u->world, i, count, tensor_dtype_name(dtype),
               (unsigned long long)get(u->data, i, dtype), (unsigned long long)want);
    }
    check_guard(u, count * element_bytes(dtype));
}

static void one_reduction(struct run *u, size_t count, enum tensor_dtype dtype, enum comm_op op)
{
    struct err err;

    u->round++;
    fill(u, count, dtype);
    EXPECT(comm_all_reduce(u->c, u->local, u->data, count, dtype, op, &err) == 0, "%s", err.text);
    check_sums(u, (struct comm_range){ 0, count }, count, dtype, op == COMM_MAX, "all-reduce");

    u->round++;
    fill(u, count, dtype);
    EXPECT(comm_reduce_scatter(u->c, u->local, u->data, count, dtype, op, &err) == 0, "%s",
           err.text);
    check_sums(u, comm_slice(u->world, u->rank, count), count, dtype, op == COMM_MAX,
               "reduce-scatter");

    /* an all-gather completes it to an all-reduce */
    EXPECT(comm_all_gather(u->c, u->local, u->data, count, dtype, &err) == 0, "%s", err.text);
    check_sums(u, (struct comm_range){ 0, count }, count, dtype, op == COMM_MAX, "all-gather");
}

static void one_broadcast(struct run *u, size_t bytes, uint32_t root)
{
    struct err err;

    u->round++;
    memset(u->data, 0xa5, bytes + GUARD);
    for (size_t i = 0; i < bytes && u->rank == root; i++)
        u->data[i] = (uint8_t)(i * 7 + i / 251 + root + u->round);
    EXPECT(comm_broadcast(u->c, u->local, u->data, bytes, root, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < bytes; i++)
        EXPECT(u->data[i] == (uint8_t)(i * 7 + i / 251 + root + u->round),
               "broadcast from %u to %u (%s): byte %zu of %zu", root, u->rank, comm_describe(u->c),
               i, bytes);
    check_guard(u, bytes);
}

static struct run run_of(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    return (struct run){ .c = c,
                         .local = local,
                         .rank = comm_first_rank(c) + local,
                         .world = comm_world(c),
                         .data = (uint8_t *)k->arenas[self].base + local * k->arena_bytes };
}

static void compute_everything(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    static const size_t counts[] = { 0, 1, 3, 16, 17, 100, 1000, 4097, COUNT_MAX };
    static const enum tensor_dtype dtypes[] = { TENSOR_F32, TENSOR_F64, TENSOR_I64 };
    struct run u = run_of(k, c, self, local);
    struct err err;

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        for (size_t d = 0; d < 3; d++) {
            one_reduction(&u, counts[i], dtypes[d], COMM_SUM);
            one_reduction(&u, counts[i], dtypes[d], COMM_MAX);
        }
    for (uint32_t root = 0; root < u.world; root++) {
        one_broadcast(&u, 0, root);
        one_broadcast(&u, 13, root);
        one_broadcast(&u, 300001, root);
    }
    for (int i = 0; i < 3; i++) {
        /* No rank leaves before all ranks have arrived. */
        atomic_fetch_add(&k->stage->number[i], 1);
        EXPECT(comm_barrier(c, local, &err) == 0, "%s", err.text);
        EXPECT(atomic_load(&k->stage->number[i]) == u.world, "barrier let rank %u through", u.rank);
    }
}

static void scene_everything(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, compute_everything);
    comm_close(c);
    EXPECT(atomic_load(&k->stage->told[self]) == 0, "on_broken was called: %s",
           k->stage->why[self]);
}

static void play_layouts(const char *const *layouts, bool shared_memory)
{
    struct cast k;

    for (; *layouts != NULL; layouts++) {
        cast_init(&k, *layouts, shared_memory, (COUNT_MAX + GUARD) * sizeof(double));
        cast_play(&k, scene_everything);
        cast_fini(&k);
    }
}

static void threads_of_one_process_agree_to_the_bit(void **state)
{
    static const char *const layouts[] = { "A1", "A2", "A3", "A4", "A7", "A8", NULL };

    (void)state;
    play_layouts(layouts, true);
}

static void processes_of_one_host_agree_to_the_bit(void **state)
{
    static const char *const layouts[] = { "A1 A1", "A1 A1 A1",    "A2 A1",
                                           "A2 A2", "A1 A3 A1 A1", "A1 A1 A1 A1 A1 A1 A1 A1",
                                           NULL };

    (void)state;
    play_layouts(layouts, true);
}

static void members_without_shared_memory_agree_to_the_bit(void **state)
{
    static const char *const layouts[] = { "A1 A1",
                                           "A1 A1 A1",
                                           "A1 A1 A1 A1",
                                           "A2 A2",
                                           "A1 A1 A1 A1 A1",
                                           "A1 A1 A1 A1 A1 A1 A1",
                                           "A1 A1 A1 A1 A1 A1 A1 A1",
                                           NULL };

    (void)state;
    play_layouts(layouts, false);
}

static void hosts_of_several_members_agree_to_the_bit(void **state)
{
    static const char *const layouts[] = {
        "A1 A1 B1 B1", "A2 B2",       "A1 B1 A1 B1", "A3 B1",    "A1 A2 B1",
        "A2 A2 B2 C2", "A4 B1 B1 C2", "A3 B2",       "A2 B3 A1", "A1 A1 A1 B1 B1 B1",
        "A2 A1 B1 B3", NULL
    };

    (void)state;
    play_layouts(layouts, true);
}

static void scene_racks(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    EXPECT(strstr(comm_describe(c), " rack") != NULL, "one level: %s", comm_describe(c));
    cast_ranks(k, c, self, compute_everything);
    comm_close(c);
}

static void hosts_in_racks_agree_to_the_bit(void **state)
{
    static const char *const layouts[] = {
        "A1@x B1@x C1@x D1@y E1@y F1@y",
        "A1@x B1@x C1@y D1@y E1@z F1@z",
        "A1@x B1@x C1@x D1@y E1@y F1@y G1@z H1@z I1@z",
        "A1@x B1@y C1@y D1@y E1@z F1@z G1@z",
        "A2@x B2@x C3@y D2@y E2@z",
        "A1@x A1@x B3@x C2@y C1@y D2@y",
        "A1@x B1@x C1@y",
        NULL
    };

    struct cast k;

    (void)state;
    for (size_t i = 0; layouts[i] != NULL; i++) {
        cast_init(&k, layouts[i], true, (COUNT_MAX + GUARD) * sizeof(double));
        cast_play(&k, scene_racks);
        cast_fini(&k);
    }
}

/* Reduces one gradient in different layouts of one world: the bits must be equal. */
static void leave_bits(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct run u = run_of(k, c, self, local);
    struct err err;
    uint64_t hash = 0;

    for (u.round = 1; u.round < 4; u.round++) {
        size_t count = u.round == 2 ? 100 : 20011;

        fill(&u, count, TENSOR_F32);
        EXPECT(comm_all_reduce(c, local, u.data, count, TENSOR_F32, COMM_SUM, &err) == 0, "%s",
               err.text);
        for (size_t i = 0; i < count; i++)
            hash = hash * 0x100000001b3 + get(u.data, i, TENSOR_F32);
    }
    atomic_store(&k->stage->number[u.rank], hash);
}

static void scene_bits(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, leave_bits);
    comm_close(c);
}

static void layouts_of_eight_ranks_give_equal_bits(void **state)
{
    static const char *const layouts[] = { "A8",         "A4 A4", "A4 B4",
                                           "A1 A3 B4",   "A5 B3", "A1 A1 A1 A1 B1 B1 C1 C1",
                                           "A2 B2 A2 B2" };
    uint64_t first = 0;
    struct cast k;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(layouts) / sizeof(*layouts); i++) {
        cast_init(&k, layouts[i / 2], i % 2 == 0, (20011 + GUARD) * sizeof(float));
        cast_play(&k, scene_bits);
        if (i == 0)
            first = atomic_load(&k.stage->number[0]);
        for (uint32_t r = 0; r < 8; r++)
            assert_int_equal(atomic_load(&k.stage->number[r]), first);
        cast_fini(&k);
    }
}

/* Fewer ranks do the work of a full group: each contributes the sum of its leaves, and all get the
 * bits of the full group. */
static void leave_bits_of_shares(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct run u = run_of(k, c, self, local);
    uint32_t first = 0, own = k->shares[u.rank], full = 0;
    size_t large = k->arena_bytes / sizeof(float) - GUARD;
    struct err err;

    for (uint32_t r = 0; r < u.rank; r++)
        first += k->shares[r];
    for (uint32_t r = 0; r < u.world; r++)
        full += k->shares[r];
    for (u.round = 1; u.round < 4; u.round++) {
        size_t count = u.round == 2 ? 100 : large;

        for (size_t i = 0; i < count; i++) {
            float v[64];

            for (uint32_t leaf = 0; leaf < full; leaf++)
                v[leaf] = (float)value(leaf, i, u.round);
            ((float *)u.data)[i] = tree_f32(first, own, v, false);
        }
        EXPECT(comm_all_reduce(c, local, u.data, count, TENSOR_F32, COMM_SUM, &err) == 0, "%s",
               err.text);
        for (size_t i = 0; i < count; i++)
            EXPECT(get(u.data, i, TENSOR_F32) == oracle(full, i, u.round, TENSOR_F32, false),
                   "%s of %u: rank %u, element %zu of %zu", comm_describe(c), full, u.rank, i,
                   count);
    }
}

static void scene_shares(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, leave_bits_of_shares);
    comm_close(c);
}

static void smaller_group_gives_the_bits_of_the_full_group(void **state)
{
    static const char *const layouts[] = { "A1",       "A2",       "A3",       "A1 B1",
                                           "A1 B1 C1", "A2 B1",    "A1 B3 A1", "A4 B1 B1",
                                           "A3 B4",    "A1 B1 C5", "A2 B2" };
    struct cast k;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(layouts) / sizeof(*layouts); i++) {
        uint32_t world = 0;

        cast_init(&k, layouts[i / 2], i % 2 == 0, (20011 + GUARD) * sizeof(float));
        for (uint32_t m = 0; m < k.n; m++)
            world += k.members[m].n_devices;
        comm_share(NULL, 8, world, k.shares);
        cast_play(&k, scene_shares);
        cast_fini(&k);
    }
}

static uint32_t below(uint32_t *at, uint32_t n)
{
    const struct rng_key key = { .seed = 20261121 };

    return rng_u32(&key, (*at)++) % n;
}

/* Any survivors of any full group, on any hosts. */
static void survivors_of_any_group_give_the_bits_of_the_full_group(void **state)
{
    uint32_t at_number = 0;
    struct cast k;

    (void)state;
    for (int i = 0; i < 60; i++) {
        uint32_t full = 2 + below(&at_number, 15);
        uint32_t world = 1 + below(&at_number, full);
        char layout[128] = "", host = 'A', rack = 'x';

        world = world > 9 ? 9 : world;
        for (uint32_t left = world, n; left > 0; left -= n) {
            size_t at = strlen(layout);

            n = 1 + below(&at_number, left < 3 ? left : 3);
            host = below(&at_number, 3) != 0 ? host : (char)('A' + below(&at_number, 3));
            if (i % 2 == 1) {
                rack = rack < 'z' && below(&at_number, 3) == 0 ? (char)(rack + 1) : rack;
                snprintf(layout + at, sizeof(layout) - at, "%c%u@%c ", host, n, rack);
                continue;
            }
            snprintf(layout + at, sizeof(layout) - at, "%c%u ", host, n);
        }
        cast_init(&k, layout, below(&at_number, 4) != 0, (5003 + GUARD) * sizeof(float));
        comm_share(NULL, full, world, k.shares);
        cast_play(&k, scene_shares);
        cast_fini(&k);
    }
}

static void repeat_calls(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct run u = run_of(k, c, self, local);
    struct err err;
    uint64_t before = 0;

    memset(u.data, 0, 40000 * sizeof(float));
    for (uint32_t i = 0; i < 300; i++) {
        if (i == 100)
            before = allocations();
        EXPECT(comm_all_reduce(c, local, u.data, i % 2 ? 40000 : 40, TENSOR_F32, COMM_SUM, &err) ==
                       0 &&
                   comm_reduce_scatter(c, local, u.data, 999, TENSOR_F32, COMM_SUM, &err) == 0 &&
                   comm_all_gather(c, local, u.data, 999, TENSOR_F32, &err) == 0 &&
                   comm_broadcast(c, local, u.data, 999, i % u.world, &err) == 0 &&
                   comm_barrier(c, local, &err) == 0,
               "%s", err.text);
    }
    EXPECT(allocations() == before, "%llu allocations in warm calls",
           (unsigned long long)(allocations() - before));
}

/* Returns the lowest free descriptor: a change means that a descriptor was not closed. */
static int free_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static void scene_repeat(struct cast *k, uint32_t self)
{
    int before = free_fd();
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, repeat_calls);
    comm_close(c);
    EXPECT(free_fd() == before, "descriptor %d was left open", before);
}

static void warm_call_allocates_nothing_and_close_leaks_no_descriptor(void **state)
{
    static const char *const layouts[] = { "A2", "A1 A1", "A1 B1", "A1 A1 B1", NULL };
    struct cast k;

    (void)state;
    for (size_t i = 0; layouts[i] != NULL; i++) {
        cast_init(&k, layouts[i], true, 40000 * sizeof(float));
        cast_play(&k, scene_repeat);
        cast_fini(&k);
    }
}

static _Thread_local struct {
    bool waits;
    _Atomic uint64_t *said; /* number of the stage */
} heard;

static void on_wait(bool waits)
{
    heard.waits = waits;
    atomic_fetch_add(heard.said, waits);
}

enum { SAID = 3, OPENING = 32 }; /* stage: calls of on_wait of each rank; of each member that connects */

/* Rank 1 arrives after the others have called on_wait repeatedly. */
static void waiting_rank(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    float *x = (float *)((uint8_t *)k->arenas[self].base + local * k->arena_bytes);
    uint32_t rank = comm_first_rank(c) + local;
    struct err err;

    heard.said = &k->stage->number[rank];
    for (uint32_t i = 0; i < 1000; i++)
        x[i] = 1;
    for (uint32_t r = 0; rank == 1 && r < comm_world(c); r++)
        cast_until(k, (int)r, r == 1 ? 0 : SAID);
    EXPECT(comm_all_reduce(c, local, x, 1000, TENSOR_F32, COMM_SUM, &err) == 0, "%s", err.text);
    EXPECT(!heard.waits, "rank %u still waits", rank);
}

static void waiting_scene(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;

    o.on_wait = on_wait;
    heard.said = &k->stage->number[OPENING + self];
    if (self == 1) /* the ranks with connections to it wait for these first */
        cast_until(k, OPENING, SAID);
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    EXPECT(!heard.waits, "member %u still waits, connected", self);
    cast_ranks(k, c, self, waiting_rank);
    comm_close(c);
}

static void waiting_rank_calls_on_wait_until_the_wait_ends(void **state)
{
    static const char *const layouts[] = { "A4", "A1 A1", "A1 B1 C1 D1", "A2 B2", "A1 B1 C1" };
    struct cast k;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        cast_init(&k, layouts[i], true, 1 << 16);
        cast_play(&k, waiting_scene);
        cast_fini(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_one_process_agree_to_the_bit),
        cmocka_unit_test(processes_of_one_host_agree_to_the_bit),
        cmocka_unit_test(members_without_shared_memory_agree_to_the_bit),
        cmocka_unit_test(hosts_of_several_members_agree_to_the_bit),
        cmocka_unit_test(hosts_in_racks_agree_to_the_bit),
        cmocka_unit_test(layouts_of_eight_ranks_give_equal_bits),
        cmocka_unit_test(smaller_group_gives_the_bits_of_the_full_group),
        cmocka_unit_test(survivors_of_any_group_give_the_bits_of_the_full_group),
        cmocka_unit_test(warm_call_allocates_nothing_and_close_leaks_no_descriptor),
        cmocka_unit_test(waiting_rank_calls_on_wait_until_the_wait_ends),
    };
    const struct CMUnitTest under_tls[] = {
        cmocka_unit_test(members_without_shared_memory_agree_to_the_bit),
        cmocka_unit_test(warm_call_allocates_nothing_and_close_leaks_no_descriptor),
    };
    int failed;

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    failed = cmocka_run_group_tests_name("comm/comm", tests, NULL, NULL);
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/comm under TLS", under_tls, NULL, NULL);
}
