/* test_group_order.c - the order in which the members of a view get their ranks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/group_order.h"

enum { MEMBERS = 8 };

/* Members of the ranks 0, 10, 20, ... with these locations; n_servers of the last n_ps. */
struct group {
    struct group_member members[MEMBERS];
    struct group_view view;
};

static void make(struct group *g, const char *const *locations, uint32_t n, uint32_t n_ps)
{
    static const char *const names[MEMBERS] = { "worker 0", "worker 1", "worker 2", "worker 3",
                                                "worker 4", "worker 5", "worker 6", "worker 7" };

    for (uint32_t i = 0; i < n; i++)
        g->members[i] = (struct group_member){ .rank = 10 * i,
                                               .incarnation = i + 1,
                                               .name = names[i],
                                               .location = locations[i],
                                               .n_devices = i + n_ps < n ? 1 : 0,
                                               .n_servers = i + n_ps < n ? 0 : 2 };
    g->view = (struct group_view){ .generation = 3, .n_members = n, .members = g->members };
}

/* Returns the indices of the members in their order, as "0213". */
static const char *order_of(const char *const *locations, uint32_t n, uint32_t n_ps)
{
    static char out[MEMBERS + 1];
    struct arena memory = { 0 };
    struct group_view to;
    struct group g;

    make(&g, locations, n, n_ps);
    assert_true(group_order_copy(&g.view, &memory, &to));
    assert_int_equal(to.n_members, n);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (char)('0' + to.members[i].rank / 10);
    out[n] = '\0';
    arena_fini(&memory);
    return out;
}

static void members_are_ordered_by_location_if_all_have_one(void **state)
{
    static const struct {
        const char *locations[MEMBERS];
        uint32_t n, n_ps;
        const char *order;
    } rows[] = {
        { { "a/1", "b/1", "a/2", "b/2" }, 4, 0, "0213" },
        { { "b/1", "a/1", "b/2", "a/2" }, 4, 0, "0213" },       /* the rack of member 0 first */
        { { "z/9", "z/1", "a/1", "z/9" }, 4, 0, "0312" },       /* its host first, then its rack */
        { { "c/1", "b/9", "a/9", "b/1", "a/1" }, 5, 0, "04231" },
        { { "y/b/1", "x/b/1", "y/a/1", "y/b/2", "x/a/1" }, 5, 0, "03241" },
        { { "a/1", "b/1", "", "b/2" }, 4, 0, "0123" },          /* one has none */
        { { "a/1", "b/1", NULL, "a/2" }, 4, 0, "0123" },
        { { "a/1", "b/1", "a/2", "", "a/3" }, 5, 2, "02134" },  /* servers: last, by rank */
        { { "a/1", "b/1", "a/2", "b/9", "a/3" }, 5, 2, "02134" },
        { { "n2", "n1", "n3", "n2" }, 4, 0, "0312" },           /* without racks, by host */
        { { "a/1" }, 1, 0, "0" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *order = order_of(rows[i].locations, rows[i].n, rows[i].n_ps);

        if (strcmp(order, rows[i].order) != 0)
            fail_msg("row %zu: %s, expected %s", i, order, rows[i].order);
    }
}

static void indices_follow_their_members_and_pieces_stay(void **state)
{
    static const char *const locations[] = { "a/1", "b/1", "a/2", "b/2" };
    static const struct group_piece pieces[] = { { 1, 0, 4 }, { 0, 4, 4 } };

    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        struct arena memory = { 0 };
        struct group_view to;
        struct group g;

        make(&g, locations, 4, 0);
        g.view.self = i % 4;
        g.view.coordinator = i / 4 % 4;
        g.view.newest_member = i / 16;
        g.view.pieces = pieces;
        g.view.n_pieces = 2;
        memset(g.view.key, 7, sizeof(g.view.key));
        assert_true(group_order_copy(&g.view, &memory, &to));
        assert_int_equal(to.members[to.self].rank, 10 * (i % 4));
        assert_int_equal(to.members[to.coordinator].rank, 10 * (i / 4 % 4));
        assert_int_equal(to.members[to.newest_member].rank, 10 * (i / 16));
        assert_int_equal(to.generation, 3);
        assert_int_equal(to.n_pieces, 2);
        assert_memory_equal(to.pieces, pieces, sizeof(pieces));
        assert_memory_equal(to.key, g.view.key, sizeof(to.key));
        assert_ptr_not_equal(to.members[1].location, locations[2]); /* its own copy */
        assert_string_equal(to.members[1].location, "a/2");
        arena_fini(&memory);
    }
}

static void copy_without_memory_leaves_the_output_unchanged(void **state)
{
    static const char *const locations[] = { "a/1", "b/1" };
    struct arena memory = { 0 };
    struct group_view out = { .generation = 5 };
    struct group g;

    (void)state;
    make(&g, locations, 2, 0);
    assert_int_equal(fault_arm("mem@1", NULL), 0);
    assert_false(group_order_copy(&g.view, &memory, &out));
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_true(out.generation == 5 && out.members == NULL);
    arena_fini(&memory);
}

static void description_states_the_order_and_the_reason(void **state)
{
    static const struct {
        const char *locations[MEMBERS];
        uint32_t n;
        bool has_location;
        const char *text;
    } rows[] = {
        { { "z/a/1", "z/b/1", "z/a/2" }, 3, true,
          "ranks are in the order of locations, since all training tasks have one; 2 racks: z/a with 2 tasks, z/b "
          "with 1 task" },
        { { "n1", "n2" }, 2, true,
          "ranks are in the order of locations, since all training tasks have one; 1 rack: 2 tasks" },
        { { "a/1", "b/1", "c/1", "d/1", "e/1" }, 5, true,
          "ranks are in the order of locations, since all training tasks have one; 5 racks" },
        { { "a/1", "b/1", "" }, 3, true,
          "ranks are in the order of the cluster, since worker 2 has no location, but others have one" },
        { { "", NULL }, 2, false, "ranks are in the order of the cluster, since worker 0 has no location" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[GROUP_ORDER_TEXT_BYTES], cut[20];
        struct arena memory = { 0 };
        struct group_view to;
        struct group g;

        make(&g, rows[i].locations, rows[i].n, 0);
        assert_true(group_order_copy(&g.view, &memory, &to));
        assert_string_equal(group_order_describe(&to, text, sizeof(text)), rows[i].text);
        assert_int_equal(strlen(group_order_describe(&to, cut, sizeof(cut))), sizeof(cut) - 1);
        assert_true(group_order_has_location(&to) == rows[i].has_location);
        arena_fini(&memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_ordered_by_location_if_all_have_one),
        cmocka_unit_test(indices_follow_their_members_and_pieces_stay),
        cmocka_unit_test(copy_without_memory_leaves_the_output_unchanged),
        cmocka_unit_test(description_states_the_order_and_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
