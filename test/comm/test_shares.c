/* test_shares.c - the division of lanes among ranks in racks and zones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/lane_tree.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/topology.h"

enum { RANKS = 16 };

/* "aab|c": a rank each, in the racks a, a, b, c; '|' is between two zones, and a repeated capital letter is a further rank of
 * the same task. */
static uint32_t borders_of(const char *layout, uint8_t *out)
{
    uint32_t n = 0;
    char before = 0;
    bool is_zone = false;

    for (; *layout != '\0'; layout++) {
        if (*layout == '|') {
            is_zone = true;
            continue;
        }
        out[n++] = is_zone ? 3 : *layout != before ? 2 : *layout >= 'a' ? 1 : 0;
        is_zone = false;
        before = *layout;
    }
    return n;
}

/* "1 1 2" */
static void text_of(const uint32_t *shares, uint32_t n, char *out, size_t size)
{
    size_t at = 0;

    for (uint32_t r = 0; r < n; r++)
        at += (size_t)snprintf(out + at, size - at, "%s%u", r > 0 ? " " : "", shares[r]);
}

static void racks_are_subtrees_where_the_sizes_allow_it(void **state)
{
    static const struct {
        const char *layout;
        uint32_t leaves;
        const char *shares;
    } rows[] = {
        { "aaabbb", 8, "1 1 2 1 1 2" },          { "aaabbb", 16, "2 2 4 2 2 4" },
        { "aaabbb", 64, "8 8 16 8 8 16" },       { "aaabbb", 6, "1 1 1 1 1 1" }, /* the sizes are fixed */
        { "aaabbb", 12, "2 2 2 2 2 2" },         { "aaaaab", 8, "1 1 1 1 2 2" }, /* a rank cannot have 4 */
        { "aaabbbccc", 9, "1 1 1 1 1 1 1 1 1" }, { "aaabbbccc", 27, "2 2 4 2 2 4 4 4 3" },
        { "aab", 4, "1 1 2" },                   { "abb", 4, "2 1 1" },
        { "ab|cc", 4, "1 1 1 1" },               { "aab|ccc", 8, "1 1 2 1 1 2" },
        { "a|abbb", 8, "2 2 1 1 2" },            { "AABBCC", 8, "1 1 1 1 2 2" },
        { "aaaaaa", 8, "1 1 1 1 2 2" },          { "aa", 2, "1 1" },
        { "a", 5, "5" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint8_t borders[RANKS];
        uint32_t shares[RANKS], n = borders_of(rows[i].layout, borders);
        char text[128];

        comm_share_groups(NULL, rows[i].leaves, n, borders, shares);
        text_of(shares, n, text, sizeof(text));
        if (strcmp(text, rows[i].shares) != 0)
            fail_msg("%s, %u leaves: %s, expected %s", rows[i].layout, rows[i].leaves, text,
                     rows[i].shares);
    }
}

static const struct rng_key key = { .seed = 7 };
static uint32_t drawn;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(rng_f32(&key, drawn++) * (float)n) % n;
}

static uint32_t least_of(const uint32_t *x, uint32_t n)
{
    uint32_t least = x[0];

    for (uint32_t i = 1; i < n; i++)
        least = x[i] < least ? x[i] : least;
    return least;
}

static uint32_t most_of(const uint32_t *x, uint32_t n)
{
    uint32_t most = x[0];

    for (uint32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Sets bit n of the result if the tree can be divided into n subtrees of `least` to `most` lanes. Tries every way. */
static uint64_t possible(const struct lane_tree *t, uint32_t lanes, uint32_t least, uint32_t most)
{
    uint64_t sets = lanes >= least && lanes <= most ? 2 : 0, left, right;
    uint32_t half;

    if (lanes == 1)
        return sets;
    half = lane_tree_left(t, lanes);
    left = possible(t, half, least, most);
    right = possible(t, lanes - half, least, most);
    for (uint32_t n = 0; n < 64; n++)
        if (left >> n & 1)
            sets |= right << n;
    return sets;
}

static void check_division(const struct lane_tree *t, uint32_t lanes, uint32_t world)
{
    uint32_t cut = 1 + draw(world - 1), usual[RANKS], shares[RANKS], leaves[RANKS];
    uint32_t least, most, left = lane_tree_left(t, lanes), sum = 0;
    uint8_t borders[RANKS];
    struct group_member m = { .name = "a", .host_key = "A", .n_devices = world };
    struct topology topo;

    for (uint32_t r = 0; r < world; r++)
        borders[r] = r == cut ? 2 : (uint8_t)draw(2);
    comm_share(t, lanes, world, usual);
    comm_share_groups(t, lanes, world, borders, shares);
    least = least_of(usual, world);
    most = most_of(usual, world);
    assert_true(least_of(shares, world) >= least && most_of(shares, world) <= most);
    for (uint32_t r = 0; r < world; r++)
        sum += shares[r];
    assert_int_equal(sum, lanes);
    lane_tree_leaves(t, shares, world, leaves);
    assert_int_equal(topology_init(&topo, &m, 1, leaves, true, TOPOLOGY_FASTEST, NULL), 0);
    topology_fini(&topo);
    for (uint32_t r = sum = 0; r < cut; r++)
        sum += shares[r];
    if ((possible(t, left, least, most) >> cut & 1) &&
        (possible(t, lanes - left, least, most) >> (world - cut) & 1))
        assert_int_equal(sum, left);
}

static void divisions_are_subtrees_with_the_usual_sizes_and_two_racks_are_cut_if_possible(
    void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint32_t world = 2 + draw(RANKS - 1);

        check_division(NULL, world + draw(49), world);
    }
}

/* Every tree of up to 48 lanes that is not plain, in every world. */
static void divisions_of_lane_trees_are_subtrees_with_a_lane_each(void **state)
{
    uint32_t trees = 0;

    (void)state;
    for (uint32_t a = 1; a <= 16; a++)
        for (uint32_t b = 3; a * b <= 48; b++)
            for (uint32_t c = 1; a * b * c <= 48; c++) {
                const uint32_t factors[] = { a, b, c };
                uint32_t lanes = a * b * c;
                struct lane_tree t;

                assert_int_equal(lane_tree_make(factors, 3, &t, NULL), 0);
                if (t.n_blocks == 0)
                    continue;
                trees++;
                for (uint32_t world = 2; world <= RANKS && world <= lanes; world++)
                    for (int i = 0; i < 8; i++)
                        check_division(&t, lanes, world);
            }
    assert_true(trees > 100);
}

static void racks_are_subtrees_of_a_tree_with_a_factor_for_each_level(void **state)
{
    static const struct {
        uint32_t factors[3];
        const char *layout, *shares;
    } rows[] = {
        { { 3, 3, 1 }, "aaabbbccc", "1 1 1 1 1 1 1 1 1" },
        { { 3, 3, 1 }, "aaabbccc", "1 1 1 2 1 1 1 1" }, /* a host of the second rack is lost */
        { { 3, 3, 1 }, "abc", "3 3 3" },
        { { 3, 3, 1 }, "abbcc", "3 2 1 2 1" },
        { { 6, 3, 1 }, "aaabbb", "3 3 3 3 3 3" }, /* unequal in a plain tree */
        { { 2, 3, 3 }, "aaabbb", "3 3 3 3 3 3" },
        { { 2, 3, 1 }, "aaabbb", "1 1 1 1 1 1" },
        { { 4, 3, 1 }, "abc", "3 3 6" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const uint32_t *f = rows[i].factors;
        uint8_t borders[RANKS];
        uint32_t shares[RANKS], n = borders_of(rows[i].layout, borders);
        struct lane_tree t;
        char text[128];

        assert_int_equal(lane_tree_make(f, 3, &t, NULL), 0);
        comm_share_groups(&t, f[0] * f[1] * f[2], n, borders, shares);
        text_of(shares, n, text, sizeof(text));
        if (strcmp(text, rows[i].shares) != 0)
            fail_msg("%s, [%u, %u, %u]: %s, expected %s", rows[i].layout, f[0], f[1], f[2], text,
                     rows[i].shares);
    }
}

static void groups_of_a_view_are_those_of_its_locations(void **state)
{
    static const uint32_t in_racks[] = { 1, 1, 2, 1, 1, 2 }, usual[] = { 1, 1, 1, 1, 2, 2 };
    struct group_member m[7] = { { 0 } };
    struct group_view v = { .members = m, .n_members = 7 };
    const char *paths[] = { "z/a/1", "z/a/2", "z/a/3", "z/b/1", "z/b/2", "z/b/3" };
    uint32_t shares[6];

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        m[i].location = paths[i];
        m[i].n_devices = 1;
    }
    m[6].n_servers = 1; /* a parameter server without location */
    comm_share_view(NULL, 8, &v, shares);
    assert_memory_equal(shares, in_racks, sizeof(shares));
    m[2].location = "";
    comm_share_view(NULL, 8, &v, shares);
    assert_memory_equal(shares, usual, sizeof(shares));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(racks_are_subtrees_where_the_sizes_allow_it),
        cmocka_unit_test(divisions_are_subtrees_with_the_usual_sizes_and_two_racks_are_cut_if_possible),
        cmocka_unit_test(divisions_of_lane_trees_are_subtrees_with_a_lane_each),
        cmocka_unit_test(racks_are_subtrees_of_a_tree_with_a_factor_for_each_level),
        cmocka_unit_test(groups_of_a_view_are_those_of_its_locations),
    };

    return cmocka_run_group_tests_name("comm/shares", tests, NULL, NULL);
}
