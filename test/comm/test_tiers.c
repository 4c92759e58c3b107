/* test_tiers.c - the all-reduce in tiers: which groups and subtrees, and a simulation of all nodes that compares the bytes and the
 * additions with those of a plain tree. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/rng.h"
#include "comm/tiers.h"
#include "comm/topology.h"

enum { NODES = 24, GRAIN = 16 };

struct group {
    struct group_member members[NODES];
    char hosts[NODES][4], locations[NODES][32];
    uint32_t n;
    struct topology topo;
};

/* Members with one rank each on hosts of their own. */
static void lay_out(struct group *g, const uint32_t *shares, enum topology_nodes nodes)
{
    struct err err;

    for (uint32_t i = 0; i < g->n; i++) {
        snprintf(g->hosts[i], sizeof(g->hosts[i]), "h%c", (char)('a' + i));
        g->members[i] = (struct group_member){ .name = "worker",
                                               .host_key = g->hosts[i],
                                               .data_address = "127.0.0.1:1",
                                               .location = g->locations[i],
                                               .n_devices = 1 };
    }
    if (topology_init(&g->topo, g->members, g->n, shares, true, nodes, &err) < 0)
        fail_msg("%s", err.text);
}

/* "xxy|z": the racks x and y are in one zone, z in another; '.': without a location. */
static void make(struct group *g, const char *layout, const uint32_t *shares,
                 enum topology_nodes nodes)
{
    char zone = 'A';

    memset(g, 0, sizeof(*g));
    for (; *layout != '\0'; layout++) {
        uint32_t i = g->n;

        zone = (char)(zone + (*layout == '|'));
        if (*layout == '|')
            continue;
        if (*layout != '.')
            snprintf(g->locations[i], sizeof(g->locations[i]), "%c/%c/%c", zone, *layout,
                     (char)('a' + i));
        g->n++;
    }
    lay_out(g, shares, nodes);
}

/* Writes the groups as "first node: first node of each root", each inner group with its children in brackets. */
static size_t describe(const struct tiers *t, uint32_t group, char *out, size_t n)
{
    const struct tier_group *g = &t->groups[group];
    size_t at = (size_t)snprintf(out, n, "%u", g->first);

    for (uint32_t q = g->roots; g->n_children > 0 && q < g->roots + g->n_roots; q++)
        at +=
            (size_t)snprintf(out + at, n - at, "%c%u", q > g->roots ? ',' : ':', t->root_first[q]);
    for (uint32_t i = 0; i < g->n_children; i++) {
        at += (size_t)snprintf(out + at, n - at, "%c", i == 0 ? '(' : ' ');
        at += describe(t, g->children + i, out + at, n - at);
    }
    return at + (size_t)snprintf(out + at, n - at, g->n_children > 0 ? ")" : "");
}

static void groups_are_those_of_the_locations_with_the_largest_subtrees(void **state)
{
    static const struct {
        const char *layout, *groups, *text;
        double traffic; /* between the children of all nodes */
    } rows[] = {
        { "xxxyyy", "0:0(0:0,2(0 1 2) 3:3,4(3 4 5))", "2 racks", 1.5 },
        { "xxyyzz", "0:0(0:0(0 1) 2:2(2 3) 4:4(4 5))", "3 racks", 4.0 / 3 },
        { "xxxyyyzzz", "0:0(0:0,2(0 1 2) 3:3,4(3 4 5) 6:6,8(6 7 8))", "3 racks", 2 },
        { "xxy", "0:0(0:0(0 1) 2)", "1 rack", 1 },
        { "xxyy|zz", "0:0(0:0(0:0(0 1) 2:2(2 3)) 4:4(4 5))", "2 zones, 2 racks", 1 },
        { "xxyy|zzww|uuvv",
          "0:0(0:0(0:0(0 1) 2:2(2 3)) 4:4(4:4(4 5) 6:6(6 7)) 8:8(8:8(8 9) 10:10(10 11)))",
          "3 zones, 6 racks", 4.0 / 3 },
        { "xy|zw", "0:0(0:0(0 1) 2:2(2 3))", "2 racks", 1 }, /* the narrowest groups are named racks */
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[256], levels[96];
        struct tiers t;
        struct group g;

        make(&g, rows[i].layout, NULL, TOPOLOGY_LINKED);
        assert_int_equal(tiers_init(&t, &g.topo, g.members, NULL), 0);
        describe(&t, 0, text, sizeof(text));
        assert_string_equal(text, rows[i].groups);
        assert_string_equal(tiers_describe(&t, levels, sizeof(levels)), rows[i].text);
        assert_true(tiers_traffic(&t, 0) > rows[i].traffic - 1e-9 &&
                    tiers_traffic(&t, 0) < rows[i].traffic + 1e-9);
        tiers_fini(&t);
        tiers_fini(&t);
        topology_fini(&g.topo);
    }
}

static void exchange_has_one_level_where_groups_are_unknown_or_useless(void **state)
{
    static const struct {
        const char *layout;
        enum topology_nodes nodes;
    } rows[] = {
        { "xx.yyy", TOPOLOGY_FASTEST },  { "......", TOPOLOGY_FASTEST }, { "xxx", TOPOLOGY_FASTEST },
        { "xyz", TOPOLOGY_FASTEST },     { "xxyy", TOPOLOGY_FASTEST /* halving/doubling */ },
        { "xyyyyy", TOPOLOGY_FASTEST /* 2.0 in place of 1.67 */ },
        { "xxxyyy", TOPOLOGY_HOSTS },    { "x", TOPOLOGY_FASTEST },      { "x|y|z", TOPOLOGY_FASTEST },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tiers t = { .n_groups = 7 };
        struct group g;

        make(&g, rows[i].layout, NULL, rows[i].nodes);
        assert_int_equal(tiers_init(&t, &g.topo, g.members, NULL), 0);
        if (t.n_groups != 0)
            fail_msg("%s: %u groups", rows[i].layout, t.n_groups);
        assert_null(t.memory);
        topology_fini(&g.topo);
    }
}

/* ---- a simulation of all nodes ---- */

/* A node of the simulation first writes its list of steps, without data; then all lists are played. */
struct op {
    bool is_sum;
    struct tiers_end send, recv; /* of a transfer, whose posts are not done yet if the ends have elements */
    uint64_t tag;
    bool is_sent, is_received;
    uint32_t to, n, sources[NODES]; /* of a sum */
    uint32_t leaves[NODES + 1];
    struct comm_range x;
};

struct node {
    struct op *ops;
    uint32_t n_ops, room, at;
    uint32_t sources[NODES];
    /* What an element is: the set of leaves that it adds up, and a hash of the order of the additions. */
    struct value {
        uint32_t set;
        uint64_t hash;
    } *vector, *buffers;
};

struct world {
    struct group g;
    struct tiers t;
    size_t count, longest; /* elements of the vector; of a buffer */
    struct node nodes[NODES];
    double sent[NODES][NODES]; /* elements from a node to another */
};

static struct op *append(struct node *n)
{
    if (n->n_ops == n->room) {
        n->room = n->room > 0 ? 2 * n->room : 64;
        n->ops = realloc(n->ops, n->room * sizeof(*n->ops));
        assert_non_null(n->ops);
    }
    memset(&n->ops[n->n_ops], 0, sizeof(*n->ops));
    return &n->ops[n->n_ops++];
}

static int list_transfer(void *arg, const struct tiers_end *send, const struct tiers_end *recv,
                         uint64_t tag)
{
    struct op *op;

    if (send->x.begin == send->x.end && recv->x.begin == recv->x.end)
        return 0;
    op = append(arg);
    op->send = *send;
    op->recv = *recv;
    op->tag = tag;
    op->is_sent = send->x.begin == send->x.end;
    op->is_received = recv->x.begin == recv->x.end;
    return 0;
}

static void list_source(void *arg, uint32_t i, uint32_t buffer, struct comm_range x)
{
    (void)x;
    ((struct node *)arg)->sources[i] = buffer;
}

static void list_sum(void *arg, uint32_t buffer, uint32_t n, const uint32_t *leaves,
                     struct comm_range x)
{
    struct node *node = arg;
    struct op *op = append(node);

    op->is_sum = true;
    op->to = buffer;
    op->n = n;
    op->x = x;
    memcpy(op->sources, node->sources, n * sizeof(*op->sources));
    memcpy(op->leaves, leaves, (n + 1) * sizeof(*leaves));
}

static struct value join(struct value a, struct value b)
{
    assert_int_equal(a.set & b.set, 0);
    return (struct value){ a.set | b.set, (a.hash * 31 + b.hash) * 0x9e3779b97f4a7c15u + 1 };
}

static struct value leaf(uint32_t i)
{
    return (struct value){ 1u << i, i * 7919u + 3 };
}

/* The tree over the leaves [first, first + n) of `at`; each entry of `at` is what begins at this leaf, or empty. */
static struct value tree(const struct value *at, uint32_t first, uint32_t n)
{
    uint32_t half = 1, later = 0;

    for (uint32_t i = first + 1; i < first + n; i++)
        later += at[i].set != 0;
    if (later == 0)
        return at[first];
    while (half * 2 < n)
        half *= 2;
    return join(tree(at, first, half), tree(at, first + half, n - half));
}

static struct value *value_at(struct world *w, struct node *n, uint32_t buffer, size_t offset,
                              size_t begin)
{
    if (buffer == TIERS_VECTOR)
        return n->vector + begin;
    assert_true(buffer < w->t.n_buffers);
    return n->buffers + buffer * w->longest + offset;
}

static void sum(struct world *w, struct node *n, const struct op *op)
{
    assert_true(op->x.end - op->x.begin <= w->longest);
    for (size_t i = 0; i < op->x.end - op->x.begin; i += GRAIN) {
        struct value at[32] = { { 0, 0 } };

        for (uint32_t k = 0; k < op->n; k++)
            at[op->leaves[k] - op->leaves[0]] = *value_at(w, n, op->sources[k], i, op->x.begin + i);
        *value_at(w, n, op->to, i, op->x.begin + i) =
            tree(at, 0, op->leaves[op->n] - op->leaves[0]);
    }
}

/* Moves the elements from node a to node b if b waits for them. */
static bool deliver(struct world *w, uint32_t a, uint32_t b)
{
    struct node *from = &w->nodes[a], *to = &w->nodes[b];
    struct op *s = &from->ops[from->at], *r = &to->ops[to->at];
    size_t n = s->send.x.end - s->send.x.begin;

    if (to->at == to->n_ops || r->is_sum || r->is_received || r->recv.node != a || r->tag != s->tag)
        return false;
    assert_memory_equal(&s->send.x, &r->recv.x, sizeof(s->send.x));
    assert_true(r->recv.buffer == TIERS_VECTOR || r->recv.offset + n <= w->longest);
    assert_true(s->send.buffer == TIERS_VECTOR || s->send.offset + n <= w->longest);
    for (size_t i = 0; i < n; i += GRAIN)
        *value_at(w, to, r->recv.buffer, r->recv.offset + i, r->recv.x.begin + i) =
            *value_at(w, from, s->send.buffer, s->send.offset + i, s->send.x.begin + i);
    w->sent[a][b] += (double)n;
    s->is_sent = r->is_received = true;
    return true;
}

/* Makes the next step of a node if that is possible. */
static bool advance(struct world *w, uint32_t i)
{
    struct node *n = &w->nodes[i];
    struct op *op = &n->ops[n->at];
    bool moved = false;

    if (n->at == n->n_ops)
        return false;
    if (op->is_sum)
        sum(w, n, op);
    else if (!op->is_sent)
        moved = deliver(w, i, op->send.node);
    if (!op->is_sum && (!op->is_sent || !op->is_received))
        return moved;
    n->at++;
    return true;
}

static void play(struct world *w)
{
    static const struct tiers_verbs verbs = { list_transfer, list_source, list_sum };
    bool moved = true;

    for (uint32_t i = 0; i < w->g.n; i++) {
        struct node *n = &w->nodes[i];

        n->vector = calloc(w->count, sizeof(*n->vector));
        n->buffers = calloc(w->t.n_buffers * w->longest + 1, sizeof(*n->buffers));
        for (size_t k = 0; k < w->count; k++) {
            struct value at[32] = { { 0, 0 } };
            uint32_t first = w->g.topo.node_leaves[i], size = w->g.topo.node_leaves[i + 1] - first;

            for (uint32_t l = 0; l < size; l++)
                at[l] = leaf(first + l);
            n->vector[k] = tree(at, 0, size);
        }
        assert_int_equal(tiers_all_reduce(&w->t, i, w->count, &verbs, n), 0);
    }
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < w->g.n; i++)
            moved = advance(w, i) || moved;
    }
}

/* Every node has the sum along the tree. */
static void expect_sums(struct world *w)
{
    struct value at[32] = { { 0, 0 } }, all;
    uint32_t leaves = w->g.topo.node_leaves[w->g.n];

    for (uint32_t i = 0; i < leaves; i++)
        at[i] = leaf(i);
    all = tree(at, 0, leaves);
    for (uint32_t i = 0; i < w->g.n; i++) {
        assert_int_equal(w->nodes[i].at, w->nodes[i].n_ops); /* no node waits for ever */
        for (size_t k = 0; k < w->count; k += GRAIN)
            assert_true(w->nodes[i].vector[k].hash == all.hash &&
                        w->nodes[i].vector[k].set == all.set);
    }
}

/* Children of a group send each other what tiers_traffic() states; the cuts are at multiples of 16, so exactly only on average. */
static void expect_traffic(const struct world *w, uint32_t group)
{
    const struct tier_group *g = &w->t.groups[group];
    double most = 0, slack = 4.0 * GRAIN * w->g.n;

    for (uint32_t i = 0; i < g->n_children; i++) {
        const struct tier_group *child = &w->t.groups[g->children + i];
        double sent = 0, received = 0;

        for (uint32_t a = child->first; a < child->end; a++)
            for (uint32_t b = g->first; b < g->end; b++) {
                sent += b < child->first || b >= child->end ? w->sent[a][b] : 0;
                received += b < child->first || b >= child->end ? w->sent[b][a] : 0;
            }
        most = sent > most ? sent : most;
        most = received > most ? received : most;
    }
    if (g->n_children == 0)
        return;
    assert_true(most <= tiers_traffic(&w->t, group) * (double)w->count + slack);
    assert_true(most >= tiers_traffic(&w->t, group) * (double)w->count - slack);
}

static const struct rng_key key = { .seed = 11 };
static uint32_t drawn;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(rng_f32(&key, drawn++) * (float)n) % n;
}

/* Hosts in zones and racks of random size, some without a zone, with equal shares or with those of racks. */
static void make_random(struct world *w, uint32_t *leaves)
{
    uint32_t shares[NODES];
    struct group_view v = { .members = w->g.members };
    bool has_zones = draw(4) > 0;

    memset(&w->g, 0, sizeof(w->g));
    for (uint32_t zone = 0, zones = 1 + draw(3); zone < zones; zone++)
        for (uint32_t rack = 0, racks = 1 + draw(3); rack < racks; rack++)
            for (uint32_t i = 0, hosts = 1 + draw(4); i < hosts && w->g.n < 20; i++, w->g.n++)
                snprintf(w->g.locations[w->g.n], sizeof(w->g.locations[0]),
                         has_zones ? "z%u/r%u/h%u" : "r%u-%u/h%u", zone, rack, i);
    for (uint32_t i = 0; i < w->g.n; i++)
        w->g.members[i] =
            (struct group_member){ .location = w->g.locations[i], .n_devices = 1 };
    v.n_members = w->g.n;
    *leaves = w->g.n + draw(32 - w->g.n);
    comm_share_view(NULL, *leaves, &v, shares);
    lay_out(&w->g, *leaves > w->g.n ? shares : NULL, TOPOLOGY_LINKED);
}

static void random_trees_of_groups_add_along_the_tree_and_send_what_is_stated(void **state)
{
    static struct world w;
    uint32_t n_tiered = 0, n_deep = 0;

    (void)state;
    for (int round = 0; round < 4000; round++) {
        uint32_t leaves;

        memset(&w, 0, sizeof(w));
        make_random(&w, &leaves);
        assert_int_equal(tiers_init(&w.t, &w.g.topo, w.g.members, NULL), 0);
        if (w.t.n_groups > 0) {
            size_t most = GRAIN * (9 + draw(20));

            w.count = draw(3) > 0 ? tiers_chunk(&w.t, most) : 1 + draw(400);
            w.longest = most;
            play(&w);
            expect_sums(&w);
            for (uint32_t g = 0; g < w.t.n_groups; g++)
                expect_traffic(&w, g);
            n_tiered++;
            n_deep += w.t.n_levels > 2;
        }
        for (uint32_t i = 0; i < w.g.n; i++) {
            free(w.nodes[i].ops);
            free(w.nodes[i].vector);
            free(w.nodes[i].buffers);
        }
        tiers_fini(&w.t);
        topology_fini(&w.g.topo);
    }
    assert_true(n_tiered > 1000 && n_deep > 500);
}

static void parts_cover_every_element_once_and_fit_into_a_chunk(void **state)
{
    static const char *const layouts[] = { "xxxyyy", "xxxyyyzzz", "xxy", "xxyy|zzww|uuv" };
    static const size_t counts[] = { 0, 1, 15, 16, 17, 1000, 4099 };
    enum { MOST = 200 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        struct tiers t;
        struct group g;

        make(&g, layouts[i], NULL, TOPOLOGY_LINKED);
        assert_int_equal(tiers_init(&t, &g.topo, g.members, NULL), 0);
        assert_true(t.n_groups > 1);
        for (size_t k = 0; k <= COUNT_OF(counts); k++) {
            size_t count = k < COUNT_OF(counts) ? counts[k] : tiers_chunk(&t, MOST), at = 0;

            for (uint32_t node = 0; node < g.n; node++) {
                struct comm_range x = tiers_part(&t, 0, (struct comm_range){ 0, count }, node);

                assert_true(x.begin == at && x.end >= at && (x.end % 16 == 0 || x.end == count));
                assert_true(k < COUNT_OF(counts) || x.end - x.begin <= MOST);
                at = x.end;
            }
            assert_int_equal(at, count);
        }
        tiers_fini(&t);
        topology_fini(&g.topo);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_those_of_the_locations_with_the_largest_subtrees),
        cmocka_unit_test(exchange_has_one_level_where_groups_are_unknown_or_useless),
        cmocka_unit_test(random_trees_of_groups_add_along_the_tree_and_send_what_is_stated),
        cmocka_unit_test(parts_cover_every_element_once_and_fit_into_a_chunk),
    };

    return cmocka_run_group_tests_name("comm/tiers", tests, NULL, NULL);
}
