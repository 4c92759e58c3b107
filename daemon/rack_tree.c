/* rack_tree.c - see rack_tree.h. */
#include "daemon/rack_tree.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/group_view.h"
#include "base/lane_tree.h"
#include "base/location.h"
#include "comm/traffic.h"

enum { TASKS_MAX = 256 /* the traffic takes time in proportion to the square of the tasks */ };

static const double useful = 0.05; /* least part of the traffic that the advice saves */

/* Returns the replicas of each group of tasks whose locations have `names` equal names; 0: the groups are unequal.
 * LOCATION_PARTS + 1 names: those of each task. */
static uint32_t group_size(const struct group_view *v, uint32_t n, unsigned names)
{
    uint32_t size = 0, at = 0;

    for (uint32_t m = 0; m < n; m++) {
        at += v->members[m].n_devices;
        if (m + 1 < n &&
            location_common(v->members[m].location, v->members[m + 1].location) >= names)
            continue;
        if (size != 0 && at != size)
            return 0;
        size = at;
        at = 0;
    }
    return size;
}

/* Levels whose groups are unequal are left out. */
static bool make_tree(const struct group_view *v, uint32_t n, uint32_t lanes, struct lane_tree *out)
{
    uint32_t factors[LANE_TREE_FACTORS], n_factors = 0, above = group_view_n_ranks(v);
    uint32_t each = lanes / above;

    for (unsigned names = 1; names <= LOCATION_PARTS + 1; names++) {
        uint32_t size = group_size(v, n, names);

        if (size == 0 || above % size != 0)
            continue;
        factors[n_factors++] = above / size;
        above = size;
    }
    factors[n_factors++] = above;
    factors[n_factors++] = each;
    CHECK(n_factors <= LANE_TREE_FACTORS);
    return lane_tree_make(factors, n_factors, out, NULL) == 0;
}

static bool in_one_rack(const char *a, const char *b)
{
    return location_rack(a) == location_rack(b) && memcmp(a, b, location_rack(a)) == 0;
}

bool rack_tree_advise(const struct group_view *v, const struct lane_tree *present, uint32_t lanes,
                      bool shared_memory, char out[RACK_TREE_TEXT_BYTES])
{
    uint32_t racks[TASKS_MAX] = { 0 }, n = group_view_n_trainers(v);
    double now, then;
    struct lane_tree tree;
    char text[LANE_TREE_TEXT_BYTES];
    struct err err;

    if (v->n_members > TASKS_MAX || lanes % group_view_n_ranks(v) != 0 ||
        !make_tree(v, n, lanes, &tree))
        return false;
    for (uint32_t m = 1; m < n; m++)
        racks[m] = racks[m - 1] + !in_one_rack(v->members[m - 1].location, v->members[m].location);
    if (comm_traffic(v, present, lanes, shared_memory, racks, &now, &err) < 0 ||
        comm_traffic(v, &tree, lanes, shared_memory, racks, &then, &err) < 0 ||
        now - then <= useful * now)
        return false;
    snprintf(out, RACK_TREE_TEXT_BYTES,
             "racks are no subtrees of the tree over %u lanes: a rack sends %.3g gradients in each step; with "
             "\"lane_tree\": %s in /train of the job it sends %.3g (%.0f %% less), and results differ in the last bits",
             lanes, now, lane_tree_text(&tree, lanes, text), then, 100 * (now - then) / now);
    return true;
}
