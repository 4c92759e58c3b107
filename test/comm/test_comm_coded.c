/* The coded all-reduce: its bits are a function of lanes, groups, code and key, whatever members, hosts and
 * ranks compute them; and it sends the bytes that the formula states, according to the kernel. The oracle adds
 * and rounds along the tree over lanes, block by block. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/rng.h"
#include "code/map.h"
#include "comm/cast.h"
#include "comm/comm_priv.h"

enum { LANES = 8, LANES_MAX = 16, GUARD = 64, FIRST = 2 * CODE_BLOCK, SMALL = 11 * CODE_BLOCK + 37, LARGE = 600 * 1000 + 3 };

/* A scene: set before the processes are forked. */
static struct {
    enum code_kind kind;
    uint32_t lanes;
    size_t count;
} scene;

static float value(uint32_t lane, size_t i, uint32_t round)
{
    uint64_t x =
        (lane + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xc2b2ae3d27d4eb4fu ^ round * 0x165667b1u;
    float small;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    small = (float)(x % 1000003) / 1000003 - 0.5f;
    return x >> 40 & 1 ? small * 1e2f : small * 1e-1f;
}

/* Blocks 4 and 7 of the map are raw, and all from 2 blocks before the end on. */
static struct code_map open_map(void)
{
    struct code_map m;

    EXPECT(code_map_open(&m, scene.kind, FIRST + scene.count - 2 * CODE_BLOCK, NULL) == 0,
           "memory");
    code_map_raw(&m, 4 * CODE_BLOCK, 4 * CODE_BLOCK + 1);
    code_map_raw(&m, 7 * CODE_BLOCK, 7 * CODE_BLOCK + 1);
    code_map_index(&m);
    return m;
}

static struct code_key key_of(uint32_t round, uint32_t place)
{
    return (struct code_key){ .seed = 99, .step = round, .place = place };
}

static bool is_raw(size_t at)
{
    size_t b = at / CODE_BLOCK;

    return b == 4 || b == 7 || (b + 1) * CODE_BLOCK > FIRST + scene.count - 2 * CODE_BLOCK;
}

static void round_block(const struct code_map *m, size_t at, size_t n, struct code_key key,
                        float *x)
{
    uint8_t code[CODE_RAW_BYTES];

    if (is_raw(at))
        return;
    EXPECT(n == CODE_BLOCK, "a coded block is whole");
    code_encode(m->kind, &key, at, x, 1, code);
    code_decode(m->kind, code, 1, x);
}

/* The sum of lanes [first, first + n) of a block, whose groups are rounded. */
static void oracle(const struct code_map *m, uint32_t groups, uint32_t first, uint32_t n, size_t at,
                   size_t count, uint32_t round, float *out)
{
    uint32_t group = scene.lanes / groups;
    float right[CODE_BLOCK];

    if (n == 1) {
        for (size_t i = 0; i < count; i++)
            out[i] = value(first, at + i, round);
    } else {
        oracle(m, groups, first, n / 2, at, count, round, out);
        oracle(m, groups, first + n / 2, n / 2, at, count, round, right);
        for (size_t i = 0; i < count; i++)
            out[i] += right[i];
    }
    if (n == group)
        round_block(m, at, count, key_of(round, first / group), out);
}

/* The codes of the groups [first, first + n) in one piece of memory; codes[g] is set to those of each. */
static uint8_t *keep_codes(const struct code_map *m, uint32_t groups, uint32_t first, uint32_t n,
                           uint32_t round, const uint8_t **codes)
{
    size_t bytes = code_block_bytes(m->kind), all = (FIRST + scene.count) / CODE_BLOCK * bytes;
    uint8_t *memory = calloc(n + 1, all);
    uint32_t group = scene.lanes / groups;

    EXPECT(memory != NULL, "memory");
    for (uint32_t g = 0; g < n; g++) {
        uint8_t *to = memory + g * all;

        codes[g] = to;
        to += FIRST / CODE_BLOCK * bytes; /* blocks of the map before the data */
        for (size_t at = FIRST; at < FIRST + scene.count; at += CODE_BLOCK) {
            struct code_key key = key_of(round, first + g);
            float x[CODE_BLOCK];

            if (is_raw(at))
                continue;
            oracle(m, scene.lanes * 2, (first + g) * group, group, at, CODE_BLOCK, round, x);
            code_encode(m->kind, &key, at, x, 1, to);
            to += bytes;
        }
    }
    return memory;
}

static void reduce_rounds(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    float *data = (float *)((uint8_t *)k->arenas[self].base + local * k->arena_bytes);
    uint32_t rank = comm_first_rank(c) + local, first = 0, own;
    uint32_t group = scene.lanes / k->groups;
    struct code_map m = open_map();
    struct err err;

    for (uint32_t r = 0; r < rank; r++)
        first += k->shares[r];
    own = k->shares[rank];
    for (uint32_t round = 1; round <= 2; round++) {
        const uint8_t *codes[LANES_MAX];
        const struct comm_coding coding = {
            .map = &m, .first = FIRST, .key = key_of(round, 12345), .codes = codes
        };
        uint8_t *kept = keep_codes(&m, k->groups, first / group,
                                   comm_kept_codes(c, local, scene.kind), round, codes);

        memset(data, 0xa5, (scene.count + GUARD) * sizeof(float));
        for (size_t i = 0; i < scene.count; i += CODE_BLOCK) {
            size_t n = scene.count - i < CODE_BLOCK ? scene.count - i : CODE_BLOCK;

            /* a rank with one group passes its sum without the rounding */
            oracle(&m, own > group ? k->groups : scene.lanes * 2, first, own, FIRST + i, n, round,
                   data + i);
        }
        EXPECT(comm_all_reduce_coded(c, local, data, scene.count, &coding, &err) == 0, "%s",
               err.text);
        for (size_t i = 0; i < scene.count; i += CODE_BLOCK) {
            size_t n = scene.count - i < CODE_BLOCK ? scene.count - i : CODE_BLOCK;
            float want[CODE_BLOCK];

            oracle(&m, k->groups, 0, scene.lanes, FIRST + i, n, round, want);
            round_block(&m, FIRST + i, n, key_of(round, k->groups), want);
            EXPECT(memcmp(want, data + i, n * sizeof(float)) == 0,
                   "%s, %u groups of %u lanes, %s: rank %u, block %zu of %zu numbers",
                   comm_describe(c), k->groups, scene.lanes, code_name(scene.kind), rank,
                   i / CODE_BLOCK, scene.count);
        }
        for (size_t i = 0; i < GUARD * sizeof(float); i++)
            EXPECT(((uint8_t *)(data + scene.count))[i] == 0xa5, "rank %u wrote after its data",
                   rank);
        free(kept);
        /* an ordinary call between two coded calls */
        for (size_t i = 0; i < 5; i++)
            data[i] = (float)(rank + i);
        EXPECT(comm_all_reduce(c, local, data, 5, TENSOR_F32, COMM_MAX, &err) == 0, "%s", err.text);
        EXPECT(data[4] == (float)(comm_world(c) + 3), "a maximum of %g", (double)data[4]);
        memset(data, rank == comm_world(c) - 1 ? 7 : 0, 5000);
        EXPECT(comm_broadcast(c, local, data, 5000, comm_world(c) - 1, &err) == 0, "%s", err.text);
        for (size_t i = 0; i < 5000; i++)
            EXPECT(((uint8_t *)data)[i] == 7, "byte %zu of a broadcast", i);
        EXPECT(comm_barrier(c, local, &err) == 0, "%s", err.text);
    }
    code_map_close(&m);
}

static void scene_coded(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, reduce_rounds);
    comm_close(c);
    EXPECT(atomic_load(&k->stage->told[self]) == 0, "on_broken was called: %s",
           k->stage->why[self]);
}

static void play(const char *layout, bool shared_memory, uint32_t groups)
{
    uint32_t world = 0;
    struct cast k;

    cast_init(&k, layout, shared_memory, (scene.count + GUARD) * sizeof(float));
    for (uint32_t m = 0; m < k.n; m++)
        world += k.members[m].n_devices;
    comm_share(NULL, scene.lanes, world, k.shares);
    k.groups = groups;
    cast_play(&k, scene_coded);
    cast_fini(&k);
}

static const char *const layouts[] = { "A1",       "A2",       "A3",    "A4",       "A8",          "A1 A1",
                                       "A1 B1",    "A1 B1 C1", "A2 B1", "A1 B3 A1", "A4 B1 B1",    "A3 B4",
                                       "A2 B2",    "A4 B4",    "A2 B6", "A5 B3",    "A2 B2 A2 B2", "A1 B1 C1 A1",
                                       "A1 A1 A1 A1 B1 B1 C1 C1" };

static void any_members_and_hosts_give_the_bits_of_the_tree(void **state)
{
    (void)state;
    scene.lanes = LANES;
    for (size_t i = 0; i < 2 * sizeof(layouts) / sizeof(*layouts); i++) {
        scene.count = i % 3 == 0 ? 5 * CODE_BLOCK : SMALL;
        for (uint32_t groups = 1; groups <= LANES; groups *= 2) {
            scene.kind = (enum code_kind)(CODE_BFLOAT16 + (i + groups / 2) % 4);
            play(layouts[i / 2], i % 2 == 0, groups);
        }
    }
}

static uint32_t below(uint32_t *at, uint32_t n)
{
    const struct rng_key k = { .seed = 20261125 };

    return rng_u32(&k, (*at)++) % n;
}

/* Any survivors of any full group, on any hosts, with any groups and code. */
static void survivors_of_any_group_give_the_bits_of_the_tree(void **state)
{
    uint32_t at_number = 0;

    (void)state;
    for (int i = 0; i < 60; i++) {
        uint32_t levels = 1 + below(&at_number, 4), world;
        char layout[128] = "", host = 'A';

        scene.lanes = 1u << levels;
        world = 1 + below(&at_number, scene.lanes < 9 ? scene.lanes : 9);
        for (uint32_t left = world, n; left > 0; left -= n) {
            size_t at = strlen(layout);

            n = 1 + below(&at_number, left < 3 ? left : 3);
            host = below(&at_number, 3) != 0 ? host : (char)('A' + below(&at_number, 3));
            snprintf(layout + at, sizeof(layout) - at, "%c%u ", host, n);
        }
        scene.kind = (enum code_kind)(CODE_BFLOAT16 + below(&at_number, 4));
        scene.count = 5 * CODE_BLOCK + below(&at_number, 9 * CODE_BLOCK);
        play(layout, below(&at_number, 4) != 0, 1u << below(&at_number, levels + 1));
    }
}

static void all_codes_and_vectors_of_several_pieces_give_the_bits_of_the_tree(void **state)
{
    (void)state;
    scene.lanes = 4;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        scene.kind = (enum code_kind)kind;
        scene.count = LARGE / SLOW + 4 * CODE_BLOCK;
        play("A1 B1", true, 2);
        play("A2 B1", true, kind == CODE_INT8 ? 4 : 2);
        scene.count = 5 * CODE_BLOCK + 1;
        play("A1 B1", true, 2);
    }
}

static void encrypted_links_give_the_bits_of_the_tree(void **state)
{
    (void)state;
    cast_encrypts = true;
    scene.lanes = LANES;
    scene.count = SMALL;
    scene.kind = CODE_INT8;
    play("A1 B1 C1 D1", true, 4);
    cast_encrypts = false;
}

/* ---- bytes ---- */

/* Bytes that the kernel has sent over the links of rank 0 of this process. */
static uint64_t kernel_bytes(const struct comm *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->ranks[0].n_links; i++) {
        struct tcp_info info = { .tcpi_unacked = 1 };
        socklen_t n = sizeof(info);

        while (info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0)
            EXPECT(getsockopt(c->ranks[0].links[i].fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0,
                   "TCP_INFO");
        bytes += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    }
    return bytes;
}

enum { NODES = 4, SEGMENT = 64 * CODE_BLOCK };

/* Bytes that a node sends for a segment of `blocks` coded blocks to be added, if it has `groups` whole groups. */
static uint64_t scatter_bytes(uint32_t groups, uint64_t blocks)
{
    uint64_t coded = groups * code_block_bytes(scene.kind);

    return blocks * (groups > 0 && coded < CODE_RAW_BYTES ? coded : CODE_RAW_BYTES);
}

/* Two nodes of four ranks; block 3 of each segment is raw. Of the channels of a node each sends its part. */
static void reduce_as_host(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    enum { HOSTS = 2, RANKS = 4, PART = SEGMENT / CODE_BLOCK };
    float *data = (float *)((uint8_t *)k->arenas[self].base + local * k->arena_bytes);
    struct comm_coding coding = { .key = { .seed = 1 } };
    uint64_t raw = CODE_RAW_BYTES, want;
    struct code_map m;
    struct err err;

    EXPECT(code_map_open(&m, scene.kind, scene.count, NULL) == 0, "memory");
    for (uint32_t s = 0; s < HOSTS * RANKS; s++)
        code_map_raw(&m, s * SEGMENT + 3 * CODE_BLOCK, s * SEGMENT + 3 * CODE_BLOCK + 1);
    code_map_index(&m);
    coding.map = &m;
    for (size_t i = 0; i < scene.count; i++)
        data[i] = value(comm_first_rank(c) + local, i, 1);
    EXPECT(comm_all_reduce_coded(c, local, data, scene.count, &coding, &err) == 0, "%s", err.text);
    want = scatter_bytes(k->groups / HOSTS, PART - 1) + raw +
           (PART - 1) * code_block_bytes(scene.kind) + raw;
    EXPECT(comm_coded_bytes(c, local).sent == want, "%s, %u groups: %llu bytes, expected %llu",
           code_name(scene.kind), k->groups, (unsigned long long)comm_coded_bytes(c, local).sent,
           (unsigned long long)want);
    EXPECT(comm_barrier(c, local, &err) == 0, "%s", err.text);
    code_map_close(&m);
}

static void scene_host_bytes(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, reduce_as_host);
    comm_close(c);
}

static void hosts_with_several_groups_send_a_code_for_each_if_that_is_less_than_float32(
    void **state)
{
    struct cast k;

    (void)state;
    scene.lanes = 8;
    scene.count = 8 * SEGMENT;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++)
        for (uint32_t groups = 1; groups <= 8; groups *= 2) {
            scene.kind = (enum code_kind)kind;
            cast_init(&k, "A4 B4", true, scene.count * sizeof(float));
            k.groups = groups;
            cast_play(&k, scene_host_bytes);
            cast_fini(&k);
        }
}

/* Four nodes of one rank; no block is raw. Node i sends to each of 3 others its segment, coded if the node is
 * one group, and the code of the own segment; each with a head. */
static void scene_bytes(struct cast *k, uint32_t self)
{
    float *data = k->arenas[self].base;
    struct comm *c = cast_open(k, self);
    uint64_t coded = SEGMENT / CODE_BLOCK * code_block_bytes(scene.kind),
             plain = SEGMENT * sizeof(float);
    uint64_t want = (NODES - 1) * ((k->groups == NODES ? coded : plain) + coded), before;
    struct comm_coded_bytes counted;
    struct comm_coding coding = { .key = { .seed = 1 } };
    struct code_map m;
    struct err err;

    EXPECT(code_map_open(&m, scene.kind, scene.count, NULL) == 0, "memory");
    coding.map = &m;
    for (size_t i = 0; i < scene.count; i++)
        data[i] = value(self, i, 1);
    before = kernel_bytes(c);
    for (int call = 0; call < 3; call++)
        EXPECT(comm_all_reduce_coded(c, 0, data, scene.count, &coding, &err) == 0, "%s", err.text);
    counted = comm_coded_bytes(c, 0);
    EXPECT(counted.sent == 3 * want, "counted %llu bytes, expected %llu",
           (unsigned long long)counted.sent, (unsigned long long)(3 * want));
    EXPECT(counted.plain == 3 * (uint64_t)(NODES - 1) * 2 * plain, "counted %llu float32 bytes",
           (unsigned long long)counted.plain);
    want += 2 * (NODES - 1) * (MESSAGE_HEAD_SEALED + MESSAGE_SUM_BYTES);
    EXPECT(kernel_bytes(c) - before == 3 * want, "the kernel sent %llu bytes, expected %llu",
           (unsigned long long)(kernel_bytes(c) - before), (unsigned long long)(3 * want));
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text); /* no peer closes a link before */
    code_map_close(&m);
    comm_close(c);
}

static void bytes_on_the_wire_are_those_of_the_formula(void **state)
{
    struct cast k;

    (void)state;
    scene.lanes = NODES;
    scene.count = NODES * SEGMENT;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++)
        for (uint32_t groups = 2; groups <= NODES; groups *= 2) {
            scene.kind = (enum code_kind)kind;
            cast_init(&k, "A1 B1 C1 D1", true, scene.count * sizeof(float));
            k.groups = groups;
            cast_play(&k, scene_bytes);
            cast_fini(&k);
        }
}

/* Two members of one rank each, with `groups` / 2 groups: a rank sends the codes that it has kept. */
static void scene_kept_bytes(struct cast *k, uint32_t self)
{
    float *data = k->arenas[self].base;
    struct comm *c = cast_open(k, self);
    uint32_t kept = comm_kept_codes(c, 0, scene.kind), own = k->groups / 2;
    const uint8_t *codes[LANES_MAX];
    uint8_t *memory = calloc(LANES, scene.count * sizeof(float));
    struct comm_coding coding = { .key = { .seed = 1 }, .codes = codes };
    size_t blocks = scene.count / CODE_BLOCK / 2;
    uint64_t want;
    struct code_map m;
    struct err err;

    EXPECT(code_map_open(&m, scene.kind, scene.count, NULL) == 0 && memory != NULL, "memory");
    EXPECT(kept == (own > 1 && own * code_block_bytes(scene.kind) < CODE_RAW_BYTES ? own : 0),
           "%u kept", kept);
    for (uint32_t g = 0; g < kept; g++)
        codes[g] = memory + g * scene.count * sizeof(float);
    coding.map = &m;
    memset(data, 0, scene.count * sizeof(*data));
    EXPECT(comm_all_reduce_coded(c, 0, data, scene.count, &coding, &err) == 0, "%s", err.text);
    want = scatter_bytes(own, blocks) + blocks * code_block_bytes(scene.kind);
    EXPECT(comm_coded_bytes(c, 0).sent == want, "%s, %u groups: %llu bytes, expected %llu",
           code_name(scene.kind), k->groups, (unsigned long long)comm_coded_bytes(c, 0).sent,
           (unsigned long long)want);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    code_map_close(&m);
    free(memory);
    comm_close(c);
}

static void ranks_with_several_groups_send_the_codes_that_they_have_kept(void **state)
{
    struct cast k;

    (void)state;
    scene.count = 2 * SEGMENT;
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++)
        for (uint32_t groups = 2; groups <= 8; groups *= 2) {
            scene.kind = (enum code_kind)kind;
            cast_init(&k, "A1 B1", true, scene.count * sizeof(float));
            k.groups = groups;
            comm_share(NULL, 8, 2, k.shares);
            cast_play(&k, scene_kept_bytes);
            cast_fini(&k);
        }
}

static void ranks_in_one_memory_send_nothing(void **state)
{
    (void)state;
    scene.lanes = 4;
    scene.count = SMALL;
    scene.kind = CODE_INT8;
    play("A4", true, 4); /* without a link, a byte that is sent would end the process */
}

/* ---- errors ---- */

static void refuse(const char *layout, const uint32_t shares[4], uint32_t groups, const char *text)
{
    struct cast k;
    struct comm_opts o;
    struct comm *c;
    struct err err;

    cast_init(&k, layout, true, 4096);
    memcpy(k.shares, shares, 4 * sizeof(*shares));
    k.groups = groups;
    o = cast_opts(&k, 0);
    assert_int_equal(comm_open(&o, &c, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, text));
    cast_fini(&k);
}

static void groups_that_are_no_subtrees_are_refused(void **state)
{
    static const uint32_t four[] = { 1, 1, 1, 1 }, six[] = { 2, 2, 1, 1 }, twelve[4] = { 4, 4, 4 };

    (void)state;
    refuse("A4", four, 3, "3 groups of 4 lanes; expected powers of two");
    refuse("A4", four, 8,
           "8 groups of 4 lanes; expected powers of two, and at least as many lanes as groups");
    refuse("A4", six, 2, "2 groups of 6 lanes; expected powers of two");
    refuse("A3", twelve, 4, "4 groups of 12 lanes; expected powers of two");
}

/* A member that makes another call is named. */
static void scene_other_code(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct comm_coding coding = { .key = { .seed = 1 } };
    struct code_map m;
    struct err err;

    EXPECT(code_map_open(&m, self == 0 ? CODE_INT8 : CODE_INT4, scene.count, NULL) == 0, "memory");
    coding.map = &m;
    EXPECT(comm_all_reduce_coded(c, 0, k->arenas[self].base, scene.count, &coding, &err) ==
               ERR_PEER,
           "two codes in one call");
    EXPECT(strstr(err.text, "coded all-reduce of 1024 float32 (int8)") != NULL &&
               strstr(err.text, "(int4)") != NULL,
           "%s", err.text);
    code_map_close(&m);
    comm_close(c);
}

static void members_with_other_codes_detect_it(void **state)
{
    struct cast k;

    (void)state;
    scene.count = 4 * CODE_BLOCK;
    for (int i = 0; i < 2; i++) {
        cast_init(&k, i == 0 ? "A1 B1" : "A1 A1", true, scene.count * sizeof(float));
        k.groups = 2;
        cast_play(&k, scene_other_code);
        cast_fini(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_members_and_hosts_give_the_bits_of_the_tree),
        cmocka_unit_test(survivors_of_any_group_give_the_bits_of_the_tree),
        cmocka_unit_test(all_codes_and_vectors_of_several_pieces_give_the_bits_of_the_tree),
        cmocka_unit_test(encrypted_links_give_the_bits_of_the_tree),
        cmocka_unit_test(bytes_on_the_wire_are_those_of_the_formula),
        cmocka_unit_test(hosts_with_several_groups_send_a_code_for_each_if_that_is_less_than_float32),
        cmocka_unit_test(ranks_with_several_groups_send_the_codes_that_they_have_kept),
        cmocka_unit_test(ranks_in_one_memory_send_nothing),
        cmocka_unit_test(groups_that_are_no_subtrees_are_refused),
        cmocka_unit_test(members_with_other_codes_detect_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
