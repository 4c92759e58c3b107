/* shares.c - the equal division of the tree over lanes among ranks; comm.h has the contract.
 *
 * Without borders the largest part is halved until there is a part for each rank. With borders the same sizes are
 * allowed, but the ranks are divided where the border between them is the widest: a group of ranks between two
 * wide borders is then one subtree, if the sizes allow it. */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/lane_tree.h"
#include "base/location.h"

_Static_assert((int)LANE_TREE_LEAVES <= (int)COMM_MAX_LEAVES, "every tree of a job can be divided");

/* The allowed sizes of a share, which are those of the division without borders. */
struct limits {
    const struct lane_tree *tree;
    uint32_t least, most;
    const uint8_t *borders;
};

static void halve_largest(const struct lane_tree *tree, uint32_t lanes, uint32_t world,
                          uint32_t *shares)
{
    shares[0] = lanes;
    for (uint32_t n = 1; n < world; n++) {
        uint32_t most = 0, left;

        for (uint32_t i = 1; i < n; i++)
            most = shares[i] > shares[most] ? i : most;
        left = lane_tree_left(tree, shares[most]);
        memmove(shares + most + 1, shares + most, (n - most) * sizeof(*shares));
        shares[most + 1] = shares[most] - left;
        shares[most] = left;
    }
}

/* Returns the smallest number of ranks among which a tree can be divided. */
static uint32_t fewest(const struct limits *l, uint32_t lanes)
{
    uint32_t left;

    if (lanes <= l->most)
        return 1;
    left = lane_tree_left(l->tree, lanes);
    return fewest(l, left) + fewest(l, lanes - left);
}

/* Returns the largest number of ranks. */
static uint32_t greatest(const struct limits *l, uint32_t lanes)
{
    uint32_t left = lanes > 1 ? lane_tree_left(l->tree, lanes) : 1;

    if (lanes == 1 || left < l->least || lanes - left < l->least)
        return 1;
    return greatest(l, left) + greatest(l, lanes - left);
}

/* Returns the ranks of the left half in the division without borders. `shares` is overwritten. */
static uint32_t usual_cut(const struct lane_tree *tree, uint32_t lanes, uint32_t n,
                          uint32_t *shares)
{
    uint32_t cut = 0, left = lane_tree_left(tree, lanes);

    halve_largest(tree, lanes, n, shares);
    for (uint32_t sum = 0; sum < left; cut++)
        sum += shares[cut];
    return cut;
}

/* Returns where to cut the ranks [first, first + n): at the widest border from `begin` to `end`, and among equally wide
 * ones at that next to `usual`. */
static uint32_t choose_cut(const uint8_t *borders, uint32_t begin, uint32_t end, uint32_t usual)
{
    uint32_t best = usual;

    for (uint32_t cut = begin; cut <= end; cut++) {
        uint32_t away = cut > usual ? cut - usual : usual - cut;
        uint32_t nearest = best > usual ? best - usual : usual - best;

        if (borders[cut] > borders[best] || (borders[cut] == borders[best] && away < nearest))
            best = cut;
    }
    return best;
}

/* Divides a tree among the ranks [first, first + n). Each number of ranks from fewest() to greatest() is possible, since
 * the division with the most parts comes from that with the fewest by one more cut at a time. */
static void divide(const struct limits *l, uint32_t lanes, uint32_t first, uint32_t n,
                   uint32_t *shares)
{
    uint32_t left, begin, end, most, cut;

    if (n == 1) {
        shares[first] = lanes;
        return;
    }
    left = lane_tree_left(l->tree, lanes);
    begin = fewest(l, left);
    end = greatest(l, left);
    most = greatest(l, lanes - left);
    if (n > most && n - most > begin)
        begin = n - most;
    most = n - fewest(l, lanes - left);
    end = most < end ? most : end;
    cut = usual_cut(l->tree, lanes, n, shares + first);
    CHECK(begin <= cut && cut <= end);
    cut = choose_cut(l->borders + first, begin, end, cut);
    divide(l, left, first, cut, shares);
    divide(l, lanes - left, first + cut, n - cut, shares);
}

static bool is_possible(const struct lane_tree *tree, uint32_t lanes, uint32_t world)
{
    return world >= 1 && world <= COMM_MAX_RANKS && world <= lanes &&
           lane_tree_leaf(tree, lanes) <= COMM_MAX_LEAVES;
}

void comm_share(const struct lane_tree *tree, uint32_t lanes, uint32_t world, uint32_t *shares)
{
    CHECK(is_possible(tree, lanes, world));
    halve_largest(tree, lanes, world, shares);
}

void comm_share_groups(const struct lane_tree *tree, uint32_t lanes, uint32_t world,
                       const uint8_t *borders, uint32_t *shares)
{
    struct limits l = { .tree = tree, .least = lanes, .borders = borders };

    CHECK(is_possible(tree, lanes, world));
    halve_largest(tree, lanes, world, shares);
    for (uint32_t i = 0; i < world; i++) {
        l.least = shares[i] < l.least ? shares[i] : l.least;
        l.most = shares[i] > l.most ? shares[i] : l.most;
    }
    if (l.least < l.most)
        divide(&l, lanes, 0, world, shares);
}

/* Members with more equal names are nearer to each other. Ranks of one member: 0. */
static uint8_t border_before(const struct group_view *v, uint32_t member)
{
    return (uint8_t)(1 + LOCATION_PARTS -
                     location_common(v->members[member - 1].location, v->members[member].location));
}

void comm_share_view(const struct lane_tree *tree, uint32_t lanes, const struct group_view *v,
                     uint32_t *shares)
{
    uint32_t world = group_view_n_ranks(v), at = 0, trainers = group_view_n_trainers(v);
    bool has_locations = true;
    uint8_t *borders;

    for (uint32_t m = 0; m < trainers; m++) {
        const char *location = v->members[m].location;

        has_locations = has_locations && location != NULL && location[0] != '\0';
    }
    if (!has_locations) {
        comm_share(tree, lanes, world, shares);
        return;
    }
    borders = calloc(world, sizeof(*borders));
    CHECK(borders != NULL);
    for (uint32_t m = 0; m < trainers; at += v->members[m++].n_devices)
        borders[at] = m > 0 ? border_before(v, m) : 0;
    comm_share_groups(tree, lanes, world, borders, shares);
    free(borders);
}
