/* racks.c - see racks.h. */
#include "comm/racks.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/location.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "comm/topology.h"

enum { GRAIN = 16 /* of schedule_part(): two cuts add at most as many elements each */ };

/* ---- the racks of the nodes ---- */

static const char *location_of(const struct topology *t, const struct group_member *members,
                               uint32_t node)
{
    const char *s = members[t->member_of[t->node_first[node]]].location;

    return s != NULL ? s : "";
}

static bool same_rack(const char *a, const char *b)
{
    size_t n = location_rack(a);

    return n == location_rack(b) && memcmp(a, b, n) == 0;
}

static bool is_usable(const struct topology *t, const struct group_member *members)
{
    if (t->kind != TOPOLOGY_DIRECT || t->node_leaves == NULL)
        return false;
    for (uint32_t node = 0; node < t->n_nodes; node++)
        if (location_of(t, members, node)[0] == '\0')
            return false;
    return true;
}

static int allocate(struct racks *r, uint32_t nodes)
{
    uint32_t *p = calloc(4 * ((size_t)nodes + 1), sizeof(*p));

    if (p == NULL)
        return ERR_NOMEM;
    r->memory = p;
    r->first = p, p += nodes + 1;
    r->root_first = p, p += nodes + 1;
    r->root_leaves = p, p += nodes + 1;
    r->roots = p;
    return 0;
}

static void find_racks(struct racks *r, const struct topology *t,
                       const struct group_member *members)
{
    r->least = t->n_nodes;
    for (uint32_t node = 0, begin = 0; node < t->n_nodes; node++) {
        bool ends = node + 1 == t->n_nodes ||
                    !same_rack(location_of(t, members, node), location_of(t, members, node + 1));

        if (!ends)
            continue;
        r->first[++r->n_racks] = node + 1;
        r->least = node + 1 - begin < r->least ? node + 1 - begin : r->least;
        r->most = node + 1 - begin > r->most ? node + 1 - begin : r->most;
        begin = node + 1;
    }
}

/* Finds the roots in the subtree of the nodes [first, first + n). */
static void find_roots(struct racks *r, const struct topology *t, uint32_t first, uint32_t n)
{
    uint32_t rack = racks_of(r, first), middle;

    if (first + n <= r->first[rack + 1]) {
        r->root_first[r->n_roots] = first;
        r->root_leaves[r->n_roots++] = t->node_leaves[first];
        r->roots[rack + 1] = r->n_roots;
        return;
    }
    middle = reduce_cut(t->node_leaves, first, n);
    CHECK(middle > first); /* nodes are subtrees */
    find_roots(r, t, first, middle - first);
    find_roots(r, t, middle, first + n - middle);
}

int racks_init(struct racks *r, const struct topology *t, const struct group_member *members,
               struct err *err)
{
    struct racks made = { .n_racks = 0 };

    *r = made;
    if (!is_usable(t, members))
        return 0;
    if (allocate(&made, t->n_nodes) < 0)
        return err_set(err, ERR_NOMEM, "racks of %u nodes: out of memory", t->n_nodes);
    find_racks(&made, t, members);
    find_roots(&made, t, 0, t->n_nodes);
    made.root_first[made.n_roots] = t->n_nodes;
    made.root_leaves[made.n_roots] = t->node_leaves[t->n_nodes];
    if (made.n_racks == 1 || made.most == 1 || racks_traffic(&made) >= racks_direct_traffic(&made))
        racks_fini(&made);
    *r = made;
    return 0;
}

void racks_fini(struct racks *r)
{
    free(r->memory);
    *r = (struct racks){ .n_racks = 0 };
}

uint32_t racks_nodes(const struct racks *r, uint32_t rack)
{
    return r->first[rack + 1] - r->first[rack];
}

uint32_t racks_of(const struct racks *r, uint32_t node)
{
    uint32_t rack = 0;

    while (node >= r->first[rack + 1])
        rack++;
    return rack;
}

/* ---- the traffic ---- */

double racks_traffic(const struct racks *r)
{
    double most = 0, block = 1.0 / r->n_racks;

    for (uint32_t g = 0; g < r->n_racks; g++) {
        uint32_t own = r->roots[g + 1] - r->roots[g];
        double sent = (r->n_racks - 1) * block * (own + 1);
        double received = block * (r->n_roots - own) + (r->n_racks - 1) * block;

        most = sent > most ? sent : most;
        most = received > most ? received : most;
    }
    return most;
}

double racks_direct_traffic(const struct racks *r)
{
    double most = 0, all = r->first[r->n_racks];

    for (uint32_t g = 0; g < r->n_racks; g++) {
        double sent = 2 * racks_nodes(r, g) * (all - racks_nodes(r, g)) / all;

        most = sent > most ? sent : most;
    }
    return most;
}

/* ---- the parts of a vector ---- */

struct comm_range racks_part(const struct racks *r, uint32_t block, uint32_t nodes, uint32_t index,
                             size_t count)
{
    struct comm_range all = schedule_part(r->n_racks, block, count);
    struct comm_range part = schedule_part(nodes, index, all.end - all.begin);

    return (struct comm_range){ all.begin + part.begin, all.begin + part.end };
}

size_t racks_chunk(const struct racks *r, size_t most)
{
    CHECK(most > 4 * GRAIN);
    return (most / GRAIN - 2) * GRAIN * r->n_racks * r->least;
}
