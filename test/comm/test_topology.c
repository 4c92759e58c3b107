#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "comm/comm.h"
#include "comm/schedule.h"
#include "comm/topology.h"

enum { MEMBERS_MAX = 64 };

static char names[MEMBERS_MAX][16];
static char hosts[26][2];

/* Builds "A2 B1": one member with two ranks on host A, and one with one rank on host B. */
static void lay_out(struct topology *t, const char *text, const uint32_t *shares,
                    bool shared_memory)
{
    struct group_member m[MEMBERS_MAX];
    uint32_t n = 0;

    for (const char *at = text; *at != '\0'; n++) {
        int ranks = 0, used = 0;
        char host;

        assert_int_equal(sscanf(at, "%c%d %n", &host, &ranks, &used), 2);
        hosts[host - 'A'][0] = host;
        snprintf(names[n], sizeof(names[n]), "worker %u", n);
        m[n] = (struct group_member){ .name = names[n],
                                      .host_key = hosts[host - 'A'],
                                      .data_address = "127.0.0.1:1",
                                      .n_devices = (uint32_t)ranks };
        at += used;
    }
    assert_int_equal(topology_init(t, m, n, shares, shared_memory, TOPOLOGY_FASTEST, NULL), 0);
}

/* Expects "nodes 0 2 4; 2 channels" and the description. */
static void expect(const char *layout, bool shared_memory, const char *nodes, const char *text)
{
    struct topology t;
    char story[256] = "", line[192];
    size_t n = 0;

    lay_out(&t, layout, NULL, shared_memory);
    for (uint32_t i = 0; i < t.n_nodes; i++)
        n += (size_t)snprintf(story + n, sizeof(story) - n, "%u ", t.node_first[i]);
    snprintf(story + n, sizeof(story) - n, "x%u", t.n_channels);
    assert_string_equal(story, nodes);
    assert_string_equal(topology_describe(&t, line, sizeof(line)), text);
    topology_fini(&t);
}

/* Eight ranks on four hosts; every channel of a node has a link with that of each other node. */
static void requested_direct_exchange_connects_all_nodes_along_the_same_tree(void **state)
{
    struct group_member m[4];
    uint32_t peers[4];
    struct topology t;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        hosts[i][0] = (char)('A' + i);
        m[i] = (struct group_member){
            .name = "worker", .host_key = hosts[i], .data_address = "127.0.0.1:1", .n_devices = 2
        };
    }
    assert_int_equal(topology_init(&t, m, 4, NULL, true, TOPOLOGY_LINKED, NULL), 0);
    assert_int_equal(t.kind, TOPOLOGY_DIRECT);
    assert_int_equal(t.n_nodes, 4);
    assert_int_equal(t.n_channels, 2);
    for (uint32_t n = 0; n <= 4; n++) {
        assert_int_equal(t.node_first[n], 2 * n);
        assert_int_equal(t.node_leaves[n], 2 * n);
    }
    for (uint32_t r = 0; r < 8; r++) {
        assert_int_equal(topology_peers(&t, r, peers), 3);
        for (uint32_t i = 0; i < 3; i++)
            assert_true(peers[i] % 2 == r % 2 && peers[i] / 2 != r / 2);
    }
    topology_fini(&t);
    assert_int_equal(topology_init(&t, m, 1, NULL, true, TOPOLOGY_LINKED, NULL), 0);
    assert_int_equal(t.kind, TOPOLOGY_ONE_NODE);
    topology_fini(&t);
}

static void one_host_is_one_node_for_every_world(void **state)
{
    (void)state;
    expect("A1", true, "0 x1", "1 rank: 1 member, shared memory, binary tree");
    expect("A3", true, "0 x3", "3 ranks: 1 member, shared memory, binary tree");
    expect("A1 A1", true, "0 x2", "2 ranks: 1 host, shared memory, binary tree");
    expect("A2 A4 A1", true, "0 x7", "7 ranks: 1 host, shared memory, binary tree");
}

static void equal_aligned_hosts_are_the_nodes(void **state)
{
    (void)state;
    expect("A4 B4", true, "0 4 x4",
           "8 ranks: 2 members x 4, shared memory + tcp, halving/doubling");
    expect("A1 A1 A1 A1 B1 B1 B1 B1", true, "0 4 x4",
           "8 ranks: 2 hosts x 4, shared memory + tcp, halving/doubling");
    expect("A1 A1 B2 C2 D2", true, "0 2 4 6 x2",
           "8 ranks: 4 hosts x 2, shared memory + tcp, halving/doubling");
}

static void power_of_two_world_keeps_the_tree_for_any_hosts(void **state)
{
    (void)state;
    expect("A1 A1 B1 B1", false, "0 1 2 3 x1", "4 ranks: 4 members x 1, tcp, halving/doubling");
    expect("A3 B1", true, "0 1 2 3 x1",
           "4 ranks: 2 members of 1 to 3 as 4 groups (the hosts are unequal or their ranks "
           "alternate), tcp, halving/doubling");
    expect(
        "A1 B1 A1 B1", true, "0 1 2 3 x1",
        "4 ranks: 2 hosts x 2 as 4 groups (the hosts are unequal or their ranks alternate), tcp, "
        "halving/doubling");
    expect("A4 B2 C2", true, "0 2 4 6 x2",
           "8 ranks: 3 members of 2 to 4 as 4 groups (the hosts are unequal or their ranks "
           "alternate), shared memory + tcp, halving/doubling");
    expect("A6 B2", true, "0 2 4 6 x2",
           "8 ranks: 2 members of 2 to 6 as 4 groups (the hosts are unequal or their ranks "
           "alternate), shared memory + tcp, halving/doubling");
}

static void other_worlds_are_subtrees_side_by_side(void **state)
{
    (void)state;
    expect("A1 B1 C1", true, "0 1 2 x1", "3 ranks: 3 members x 1, tcp, direct");
    expect("A3 B3", true, "0 2 3 4 x1",
           "6 ranks: 2 members x 3 as 4 groups (the hosts are unequal or their ranks alternate), "
           "shared memory + tcp, direct");
    expect("A4 B4 C4", true, "0 4 8 x4", "12 ranks: 3 members x 4, shared memory + tcp, direct");
    expect("A2 B3 A1", true, "0 2 4 5 x1",
           "6 ranks: 2 hosts x 3 as 4 groups (the hosts are unequal or their ranks alternate), "
           "shared memory + tcp, direct");
}

static void shares_define_the_subtrees(void **state)
{
    static const uint32_t uneven[] = { 2, 1, 1 }, tail[] = { 4, 2, 1 }, crooked[] = { 1, 2, 1 },
                          threes[] = { 3, 3 }, twos[] = { 2, 2, 2, 2 };
    struct group_member m[] = {
        { .name = "a", .host_key = "A", .data_address = "", .n_devices = 1 },
        { .name = "b", .host_key = "B", .data_address = "", .n_devices = 1 },
        { .name = "c", .host_key = "B", .data_address = "", .n_devices = 1 }
    };
    struct topology t;
    struct err err;

    (void)state;
    assert_int_equal(topology_init(&t, m, 3, uneven, true, TOPOLOGY_FASTEST, NULL), 0);
    assert_int_equal(t.kind, TOPOLOGY_DIRECT);
    assert_int_equal(t.n_nodes, 2); /* 1 + 1 is a subtree on one host */
    assert_int_equal(t.node_leaves[1], 2);
    assert_int_equal(t.node_leaves[2], 4);
    topology_fini(&t);
    assert_int_equal(topology_init(&t, m, 3, tail, true, TOPOLOGY_FASTEST, NULL), 0);
    assert_int_equal(t.n_nodes, 2);
    topology_fini(&t);
    assert_int_equal(topology_init(&t, m, 3, crooked, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "subtrees"));
    assert_int_equal(topology_init(&t, m, 2, threes, true, TOPOLOGY_FASTEST, &err), ERR_INPUT); /* 6 are 4 + 2 */
    lay_out(&t, "A2 B2", twos, true);
    assert_int_equal(t.kind, TOPOLOGY_HALVING); /* as without shares */
    topology_fini(&t);
}

static void leaves_are_divided_into_subtrees_as_equal_as_possible(void **state)
{
    uint32_t shares[64];
    struct group_member m = { .name = "a", .host_key = "A", .data_address = "", .n_devices = 1 };
    struct topology t;

    (void)state;
    for (uint32_t full = 1; full <= 64; full++)
        for (uint32_t world = 1; world <= full; world++) {
            uint32_t all = 0, most = 0;

            comm_share(NULL, full, world, shares);
            for (uint32_t i = 0; i < world; i++) {
                all += shares[i];
                most = shares[i] > most ? shares[i] : most;
            }
            assert_int_equal(all, full);
            assert_true(most < 2 * ((full + world - 1) / world) || world == 1 || full < 3);
            m.n_devices = world;
            assert_int_equal(topology_init(&t, &m, 1, shares, true, TOPOLOGY_FASTEST, NULL), 0);
            topology_fini(&t);
        }
}

static bool has(const uint32_t *list, uint32_t n, uint32_t x)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return false;
}

static void check_invariants(const struct topology *t)
{
    uint32_t a[COMM_MAX_RANKS], b[COMM_MAX_RANKS], spoken = 0, first, end;

    for (uint32_t r = 0; r < t->world; r++) {
        uint32_t node = t->node_of[r], n = topology_peers(t, r, a);

        assert_true(r >= t->node_first[node] && r < t->node_first[node + 1]);
        assert_int_equal(t->host_of[t->member_of[r]],
                         t->host_of[t->member_of[t->node_first[node]]]);
        for (uint32_t k = 0; k < n; k++) {
            assert_true(a[k] != r && a[k] < t->world && t->node_of[a[k]] != node);
            assert_true(has(b, topology_peers(t, a[k], b), r));
        }
        /* the peers in the schedules are connected */
        for (int what = 0; n > 0 && what < 4; what++) {
            struct schedule s = { (enum schedule_what)what,
                                  t->kind == TOPOLOGY_DIRECT,
                                  t->n_nodes,
                                  node,
                                  t->n_nodes / 2,
                                  what == SCHEDULE_BROADCAST && t->kind == TOPOLOGY_HALVING
                                      ? 1
                                      : t->n_nodes };

            if (s.direct && what == SCHEDULE_DOUBLING)
                continue;
            for (uint32_t i = 0; i < schedule_steps(&s); i++) {
                struct schedule_step step = schedule_step(&s, i);
                uint32_t index = r - t->node_first[node];

                if (step.to != SCHEDULE_NONE)
                    assert_true(has(a, n, t->node_first[step.to] + index));
                if (step.from != SCHEDULE_NONE)
                    assert_true(has(a, n, t->node_first[step.from] + index));
            }
        }
    }
    for (uint32_t node = 0; node < t->n_nodes; node++)
        for (uint32_t c = 0; c < t->n_channels; c++) {
            topology_represented(t, node, c, &first, &end);
            assert_int_equal(first, spoken); /* each rank by one channel, in order */
            assert_true(end > first);
            spoken = end;
        }
    assert_int_equal(spoken, t->world);
}

static void every_small_layout_is_consistent(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 4 * 9 * 9 * 9 * 9;
         code++) { /* up to 4 members: 3 hosts, 3 sizes */
        char text[64] = "";
        uint32_t x = code / 4;
        struct topology t;

        for (uint32_t m = 0; m <= code % 4; m++, x /= 9)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%c%u ", 'A' + x % 3,
                     1 + x / 3 % 3);
        if (x != 0) /* equal to a shorter layout */
            continue;
        lay_out(&t, text, NULL, code % 7 != 0);
        check_invariants(&t);
        topology_fini(&t);
    }
}

static void big_worlds_are_consistent_and_bounded(void **state)
{
    static const uint32_t ranks[] = { 64, 48, 63, 1 };
    struct group_member m[64];
    char host[64][8];
    struct topology t;
    struct err err;

    (void)state;
    for (size_t k = 0; k < sizeof(ranks) / sizeof(*ranks); k++) {
        for (uint32_t i = 0; i < 64; i++) {
            snprintf(host[i], sizeof(host[i]), "h%u", i / (k == 3 ? 3 : 1));
            m[i] = (struct group_member){
                .name = "w", .host_key = host[i], .data_address = "", .n_devices = ranks[k]
            };
        }
        assert_int_equal(topology_init(&t, m, 64, NULL, true, TOPOLOGY_FASTEST, NULL), 0);
        check_invariants(&t);
        topology_fini(&t);
    }
    m[5].n_devices = UINT32_MAX;
    assert_int_equal(topology_init(&t, m, 64, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "4096"));
    m[5].n_devices = 0;
    assert_int_equal(topology_init(&t, m, 64, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
    assert_int_equal(topology_init(&t, m, 0, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
}

/* ---- parameter servers ---- */

/* Expects the parts of `t` that concern the ranks to be those of `plain`, the group without ps. */
static void check_same_ranks(const struct topology *t, const struct topology *plain)
{
    uint32_t a[COMM_MAX_RANKS], b[COMM_MAX_RANKS], first[2], end[2];

    assert_int_equal(t->kind, plain->kind);
    assert_int_equal(t->world, plain->world);
    assert_int_equal(t->n_hosts, plain->n_hosts);
    assert_int_equal(t->n_nodes, plain->n_nodes);
    assert_int_equal(t->n_channels, plain->n_channels);
    assert_int_equal(t->n_trainers, plain->n_members);
    assert_int_equal(t->leaves != NULL, plain->leaves != NULL);
    assert_int_equal(t->node_leaves != NULL, plain->node_leaves != NULL);
    assert_memory_equal(t->node_first, plain->node_first, (t->n_nodes + 1) * sizeof(uint32_t));
    assert_memory_equal(t->node_of, plain->node_of, t->world * sizeof(uint32_t));
    if (t->leaves != NULL)
        assert_memory_equal(t->leaves, plain->leaves, (t->world + 1) * sizeof(uint32_t));
    if (t->node_leaves != NULL)
        assert_memory_equal(t->node_leaves, plain->node_leaves,
                            (t->n_nodes + 1) * sizeof(uint32_t));
    for (uint32_t r = 0; r < t->world; r++) {
        uint32_t n = topology_peers(t, r, a);

        assert_int_equal(n, topology_peers(plain, r, b));
        assert_memory_equal(a, b, n * sizeof(*a));
        assert_int_equal(t->host_of[t->member_of[r]], plain->host_of[plain->member_of[r]]);
    }
    for (uint32_t node = 0; node < t->n_nodes; node++)
        for (uint32_t c = 0; c < t->n_channels; c++) {
            topology_represented(t, node, c, &first[0], &end[0]);
            topology_represented(plain, node, c, &first[1], &end[1]);
            assert_true(first[0] == first[1] && end[0] == end[1]);
        }
}

/* Points are numbered in the order of the members: the ranks, then the servers. */
static void check_points(const struct topology *t, const struct group_member *m)
{
    uint32_t rank = 0, server = t->world;

    for (uint32_t i = 0; i < t->n_members; i++) {
        assert_int_equal(t->first_rank[i], rank);
        assert_int_equal(t->world + t->first_server[i], server);
        for (uint32_t k = 0; k < m[i].n_devices; k++)
            assert_int_equal(t->member_of[rank++], i);
        for (uint32_t k = 0; k < m[i].n_servers; k++)
            assert_int_equal(t->member_of[server++], i);
        if (m[i].n_devices == 0) { /* alone, also on a host with trainers */
            assert_true(t->host_of[i] >= t->n_hosts);
            assert_int_equal(t->leader_of[t->host_of[i]], i);
        }
    }
    assert_int_equal(rank, t->world);
    assert_int_equal(server, t->world + t->n_servers);
}

static void servers_do_not_change_the_ranks(void **state)
{
    static const char *const layouts[] = { "A1",       "A2 B2", "A1 A1",    "A1 B1 C1", "A3 B1",
                                           "A1 B1 A1", "A2 A4", "A4 B2 C2", "A2 B3 A1" };
    static const uint32_t uneven[8] = { 2, 1, 1, 1, 1, 1, 1, 1 };

    (void)state;
    for (size_t k = 0; k < sizeof(layouts) / sizeof(*layouts); k++)
        for (uint32_t code = 0; code < 32; code++) { /* where the ps are, memory, shares */
            struct group_member plain[4], with[8];
            uint32_t n = 0, n_with = 0;
            bool shared_memory = (code & 8) != 0;
            struct topology t, u;
            struct err err;

            for (const char *at = layouts[k]; *at != '\0'; n++) {
                int ranks = 0, used = 0;
                char host;

                assert_int_equal(sscanf(at, "%c%d %n", &host, &ranks, &used), 2);
                hosts[host - 'A'][0] = host;
                plain[n] = (struct group_member){ .name = "w",
                                                  .host_key = hosts[host - 'A'],
                                                  .data_address = "",
                                                  .n_devices = (uint32_t)ranks };
                at += used;
            }
            for (uint32_t i = 0; i <= n; i++) {
                if (code >> i & 1 && i < 3)
                    with[n_with++] = (struct group_member){ .name = "ps",
                                                            .host_key = hosts[0],
                                                            .data_address = "",
                                                            .n_servers = 1 + i };
                if (i < n)
                    with[n_with++] = plain[i];
            }
            if (topology_init(&t, plain, n, code & 16 ? uneven : NULL, shared_memory, false, &err) <
                0) {
                assert_int_equal(topology_init(&u, with, n_with, code & 16 ? uneven : NULL,
                                               shared_memory, false, &err),
                                 ERR_INPUT);
                continue;
            }
            assert_int_equal(topology_init(&u, with, n_with, code & 16 ? uneven : NULL,
                                           shared_memory, false, &err),
                             0);
            check_same_ranks(&u, &t);
            check_points(&u, with);
            check_invariants(&u);
            topology_fini(&u);
            topology_fini(&t);
        }
}

static void members_share_memory_with_the_first_one_that_has_their_host_key(void **state)
{
    static const struct group_member m[] = {
        { .name = "a", .host_key = "B", .data_address = "", .n_devices = 1 },
        { .name = "ps", .host_key = "A", .data_address = "", .n_servers = 1 },
        { .name = "b", .host_key = "A", .data_address = "", .n_devices = 1 },
        { .name = "ps", .host_key = "B", .data_address = "", .n_servers = 2 },
        { .name = "ps", .host_key = "C", .data_address = "", .n_servers = 1 },
    };
    static const uint32_t shared[] = { 0, 1, 1, 0, 4 };
    struct topology t;
    struct err err;
    char text[192];

    (void)state;
    for (int memory = 0; memory < 2; memory++) {
        assert_int_equal(topology_init(&t, m, 5, NULL, memory, TOPOLOGY_FASTEST, &err), 0);
        for (uint32_t i = 0; i < 5; i++)
            assert_int_equal(t.shares_with[i], memory ? shared[i] : i);
        (void)topology_describe(&t, text, sizeof(text));
        assert_non_null(
            strstr(text, memory ? "; 4 servers over shared memory + tcp" : "; 4 servers over tcp"));
        topology_fini(&t);
    }
}

static void group_needs_a_rank_and_members_of_one_kind(void **state)
{
    struct group_member m[] = {
        { .name = "a", .host_key = "A", .data_address = "", .n_devices = 1 },
        { .name = "ps", .host_key = "A", .data_address = "", .n_servers = 3 }
    };
    struct topology t;
    struct err err;
    char text[192];

    (void)state;
    assert_int_equal(topology_init(&t, m, 2, NULL, true, TOPOLOGY_FASTEST, &err), 0);
    assert_string_equal(
        topology_describe(&t, text, sizeof(text)),
        "1 rank: 1 member, shared memory, binary tree; 3 servers over shared memory");
    topology_fini(&t);
    assert_int_equal(topology_init(&t, m, 2, NULL, false, TOPOLOGY_FASTEST, &err), 0);
    assert_string_equal(topology_describe(&t, text, sizeof(text)),
                        "1 rank: 1 member, shared memory, binary tree; 3 servers over tcp");
    topology_fini(&t);
    assert_int_equal(topology_init(&t, m + 1, 1, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "without replicas"));
    m[1].n_devices = 1;
    assert_int_equal(topology_init(&t, m, 2, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "ps has 1 replicas and 3 servers"));
    m[1].n_devices = 0;
    m[1].n_servers = COMM_MAX_SERVERS + 1;
    assert_int_equal(topology_init(&t, m, 2, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
    m[1].n_servers = 0;
    assert_int_equal(topology_init(&t, m, 2, NULL, true, TOPOLOGY_FASTEST, &err), ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_host_is_one_node_for_every_world),
        cmocka_unit_test(requested_direct_exchange_connects_all_nodes_along_the_same_tree),
        cmocka_unit_test(equal_aligned_hosts_are_the_nodes),
        cmocka_unit_test(power_of_two_world_keeps_the_tree_for_any_hosts),
        cmocka_unit_test(other_worlds_are_subtrees_side_by_side),
        cmocka_unit_test(shares_define_the_subtrees),
        cmocka_unit_test(leaves_are_divided_into_subtrees_as_equal_as_possible),
        cmocka_unit_test(every_small_layout_is_consistent),
        cmocka_unit_test(big_worlds_are_consistent_and_bounded),
        cmocka_unit_test(servers_do_not_change_the_ranks),
        cmocka_unit_test(members_share_memory_with_the_first_one_that_has_their_host_key),
        cmocka_unit_test(group_needs_a_rank_and_members_of_one_kind),
    };

    return cmocka_run_group_tests_name("comm/topology", tests, NULL, NULL);
}
