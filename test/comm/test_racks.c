/* test_racks.c - the racks of a topology: which nodes, which subtrees, which traffic, and which parts of a vector. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "comm/racks.h"
#include "comm/topology.h"

enum { MEMBERS = 16 };

struct group {
    struct group_member members[MEMBERS];
    char hosts[MEMBERS][4], locations[MEMBERS][8];
    uint32_t n;
    struct topology topo;
};

/* "xxy": members with one rank each on hosts of their own, in the racks x, x, y; '.': without a location. */
static void make(struct group *g, const char *layout, const uint32_t *shares,
                 enum topology_nodes nodes)
{
    struct err err;

    memset(g, 0, sizeof(*g));
    for (g->n = 0; layout[g->n] != '\0'; g->n++) {
        uint32_t i = g->n;

        snprintf(g->hosts[i], sizeof(g->hosts[i]), "h%c", (char)('a' + i));
        if (layout[i] != '.')
            snprintf(g->locations[i], sizeof(g->locations[i]), "%c/%c", layout[i], (char)('a' + i));
        g->members[i] = (struct group_member){ .name = "worker",
                                               .host_key = g->hosts[i],
                                               .data_address = "127.0.0.1:1",
                                               .location = g->locations[i],
                                               .n_devices = 1 };
    }
    if (topology_init(&g->topo, g->members, g->n, shares, true, nodes, &err) < 0)
        fail_msg("%s", err.text);
}

static void describe(const struct racks *r, char *out, size_t n)
{
    size_t at = 0;

    for (uint32_t i = 0; i < r->n_racks; i++) {
        at += (size_t)snprintf(out + at, n - at, "%s%u:", i > 0 ? " " : "", r->first[i]);
        for (uint32_t q = r->roots[i]; q < r->roots[i + 1]; q++)
            at += (size_t)snprintf(out + at, n - at, "%s%u", q > r->roots[i] ? "," : "",
                                   r->root_first[q]);
    }
}

static void nodes_of_a_rack_are_divided_into_the_largest_subtrees(void **state)
{
    /* racks as "first node: first node of each root", and the vectors that the busiest rack sends or receives */
    static const struct {
        const char *layout, *racks;
        double traffic, direct;
    } rows[] = {
        { "xxxyyy", "0:0,2 3:3,4", 1.5, 3 },
        { "xxyyzz", "0:0 2:2 4:4", 4.0 / 3, 8.0 / 3 },
        { "xxxyyyzzz", "0:0,2 3:3,4 6:6,8", 2, 4 },
        { "xxxxyyyyzzzz", "0:0 4:4 8:8", 4.0 / 3, 16.0 / 3 },
        { "xxy", "0:0 2:2", 1, 4.0 / 3 },
        { "xxxxyy", "0:0 4:4", 1, 8.0 / 3 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[128] = "";
        struct racks r;
        struct group g;

        make(&g, rows[i].layout, NULL, TOPOLOGY_FASTEST);
        assert_int_equal(racks_init(&r, &g.topo, g.members, NULL), 0);
        describe(&r, text, sizeof(text));
        assert_string_equal(text, rows[i].racks);
        assert_true(racks_traffic(&r) > rows[i].traffic - 1e-9 &&
                    racks_traffic(&r) < rows[i].traffic + 1e-9);
        assert_true(racks_direct_traffic(&r) > rows[i].direct - 1e-9 &&
                    racks_direct_traffic(&r) < rows[i].direct + 1e-9);
        assert_int_equal(r.root_leaves[r.n_roots], g.n);
        for (uint32_t node = 0; node < g.n; node++)
            assert_int_equal(rows[i].layout[r.first[racks_of(&r, node)]], rows[i].layout[node]);
        racks_fini(&r);
        racks_fini(&r);
        topology_fini(&g.topo);
    }
}

static void shares_of_unequal_size_have_the_subtrees_of_their_leaves(void **state)
{
    static const uint32_t shares[] = { 2, 1, 1, 4 }; /* the leaves 0-1, 2, 3, 4-7 */
    char text[128] = "";
    struct racks r;
    struct group g;

    (void)state;
    make(&g, "xxxy", shares, TOPOLOGY_FASTEST);
    assert_int_equal(racks_init(&r, &g.topo, g.members, NULL), 0);
    describe(&r, text, sizeof(text));
    assert_string_equal(text, "0:0 3:3");
    assert_int_equal(r.root_leaves[1], 4);
    assert_int_equal(r.root_leaves[2], 8);
    racks_fini(&r);
    topology_fini(&g.topo);
}

static void exchange_has_one_level_where_racks_are_unknown_or_useless(void **state)
{
    static const struct {
        const char *layout;
        enum topology_nodes nodes;
    } rows[] = {
        { "xx.yyy", TOPOLOGY_FASTEST },  { "......", TOPOLOGY_FASTEST }, { "xxx", TOPOLOGY_FASTEST },
        { "xyz", TOPOLOGY_FASTEST },     { "xxyy", TOPOLOGY_FASTEST /* halving/doubling */ },
        { "xyyyyy", TOPOLOGY_FASTEST /* 2.0 in place of 1.67 */ },
        { "xxxyyy", TOPOLOGY_HOSTS },    { "x", TOPOLOGY_FASTEST },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct racks r = { .n_racks = 7 };
        struct group g;

        make(&g, rows[i].layout, NULL, rows[i].nodes);
        assert_int_equal(racks_init(&r, &g.topo, g.members, NULL), 0);
        if (r.n_racks != 0)
            fail_msg("%s: %u racks", rows[i].layout, r.n_racks);
        assert_null(r.memory);
        topology_fini(&g.topo);
    }
}

static void parts_cover_every_element_once_and_fit_into_a_chunk(void **state)
{
    static const char *const layouts[] = { "xxxyyy", "xxxyyyzzz", "xxy", "xxxxyy", "xxyyyzzz" };
    static const size_t counts[] = { 0, 1, 15, 16, 17, 1000, 4099 };
    enum { MOST = 200 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        struct racks r;
        struct group g;

        make(&g, layouts[i], NULL, TOPOLOGY_LINKED);
        assert_int_equal(racks_init(&r, &g.topo, g.members, NULL), 0);
        assert_true(r.n_racks > 1);
        for (size_t k = 0; k <= COUNT_OF(counts); k++) {
            size_t count = k < COUNT_OF(counts) ? counts[k] : racks_chunk(&r, MOST);

            for (uint32_t rack = 0; rack < r.n_racks; rack++) { /* as the nodes of each rack cut it */
                size_t at = 0;

                for (uint32_t block = 0; block < r.n_racks; block++)
                    for (uint32_t n = 0; n < racks_nodes(&r, rack); n++) {
                        struct comm_range x =
                            racks_part(&r, block, racks_nodes(&r, rack), n, count);

                        assert_true(x.begin == at && x.end >= at &&
                                    (x.end % 16 == 0 || x.end == count));
                        assert_true(k < COUNT_OF(counts) || x.end - x.begin <= MOST);
                        at = x.end;
                    }
                assert_int_equal(at, count);
            }
        }
        assert_true(racks_chunk(&r, MOST) >= MOST / 2);
        racks_fini(&r);
        topology_fini(&g.topo);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_of_a_rack_are_divided_into_the_largest_subtrees),
        cmocka_unit_test(shares_of_unequal_size_have_the_subtrees_of_their_leaves),
        cmocka_unit_test(exchange_has_one_level_where_racks_are_unknown_or_useless),
        cmocka_unit_test(parts_cover_every_element_once_and_fit_into_a_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
