/* tiers.c - the groups of nodes; tiers.h has the terms. tier_steps.c has the steps. */
#include "comm/tiers.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "comm/topology.h"

enum {
    GRAIN = 16,      /* of schedule_part() */
    CUT_GRAINS = 4,  /* the cuts of all levels together add at most so many to a part */
};

/* The nodes while groups are sought. */
struct plan {
    const uint32_t *leaves; /* of the nodes */
    /* [nodes] equal names of the locations of the nodes i - 1 and i. Two neighbours with the fewest equal names in a group
     * are in different children of it. */
    uint8_t *common;
};

static const char *location_of(const struct topology *t, const struct group_member *members,
                               uint32_t node)
{
    const char *s = members[t->member_of[t->node_first[node]]].location;

    return s != NULL ? s : "";
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

/* ---- children and roots of a range of nodes ---- */

/* Returns the equal names that separate the children of the nodes [first, end). */
static uint8_t border_of(const struct plan *p, uint32_t first, uint32_t end)
{
    uint8_t least = UINT8_MAX;

    for (uint32_t i = first + 1; i < end; i++)
        least = p->common[i] < least ? p->common[i] : least;
    return least;
}

/* Returns the end of the child that begins at `first`. */
static uint32_t child_end(const struct plan *p, uint32_t first, uint32_t end, uint8_t border)
{
    uint32_t i = first + 1;

    while (i < end && p->common[i] > border)
        i++;
    return i;
}

/* Writes the first nodes of the roots of the nodes [begin, end) in the subtree of the nodes [first, first + n). Returns their
 * number. out NULL: only counts. */
static uint32_t find_roots(const uint32_t *leaves, uint32_t first, uint32_t n, uint32_t begin,
                           uint32_t end, uint32_t *out)
{
    uint32_t middle, left;

    if (first >= end || first + n <= begin)
        return 0;
    if (first >= begin && first + n <= end) {
        if (out != NULL)
            *out = first;
        return 1;
    }
    middle = reduce_cut(leaves, first, n);
    CHECK(middle > first); /* nodes are subtrees */
    left = find_roots(leaves, first, middle - first, begin, end, out);
    return left + find_roots(leaves, middle, first + n - middle, begin, end,
                             out != NULL ? out + left : NULL);
}

/* ---- the traffic of a level ---- */

/* A child in one of two exchanges: the parts that it has of the n parts into which a vector is cut, and the roots of all its
 * parts. */
struct side {
    double parts, roots;
};

/* Returns the most vectors that a side sends to the others, or receives from them. `all`: the sum of the sides. */
static double traffic_of(struct side s, struct side all)
{
    double others = (all.parts - s.parts) / all.parts;
    double sent = (s.roots + s.parts) * others;
    double received = (all.roots - s.roots) * s.parts / all.parts + s.parts * others;

    return sent > received ? sent : received;
}

/* Returns the side of the nodes [first, end). flat: its children take part in its place. */
static struct side side_of(const struct plan *p, uint32_t n_nodes, uint32_t first, uint32_t end,
                           bool flat)
{
    struct side s = { 0, 0 };
    uint8_t border = border_of(p, first, end);

    if (!flat || end - first == 1)
        return (struct side){ 1, find_roots(p->leaves, 0, n_nodes, first, end, NULL) };
    for (uint32_t i = first, next; i < end; i = next) {
        next = child_end(p, i, end, border);
        s.parts++;
        s.roots += find_roots(p->leaves, 0, n_nodes, i, next, NULL);
    }
    return s;
}

static double level_traffic(const struct plan *p, uint32_t n_nodes, uint32_t first, uint32_t end,
                            bool flat)
{
    struct side all = { 0, 0 };
    uint8_t border = border_of(p, first, end);
    double most = 0;

    for (uint32_t i = first; i < end; i = child_end(p, i, end, border)) {
        struct side s = side_of(p, n_nodes, i, child_end(p, i, end, border), flat);

        all.parts += s.parts;
        all.roots += s.roots;
    }
    for (uint32_t i = first; i < end; i = child_end(p, i, end, border)) {
        double one = traffic_of(side_of(p, n_nodes, i, child_end(p, i, end, border), flat), all);

        most = one > most ? one : most;
    }
    return most;
}

/* Makes the children of the children of [first, end) its own children, if no child then sends more. Inner groups are decided
 * first. */
static void drop_useless_levels(struct plan *p, uint32_t n_nodes, uint32_t first, uint32_t end)
{
    uint8_t border = border_of(p, first, end);

    if (end - first == 1)
        return;
    for (uint32_t i = first, next; i < end; i = next) {
        next = child_end(p, i, end, border);
        drop_useless_levels(p, n_nodes, i, next);
    }
    if (level_traffic(p, n_nodes, first, end, true) >
        level_traffic(p, n_nodes, first, end, false) + 1e-9)
        return;
    for (uint32_t i = first, next; i < end; i = next) {
        uint8_t inner;

        next = child_end(p, i, end, border);
        inner = border_of(p, i, next);
        for (uint32_t k = i + 1; k < next; k++)
            p->common[k] = p->common[k] == inner ? border : p->common[k];
    }
}

/* ---- the groups ---- */

static int allocate(struct tiers *t, struct plan *p, uint32_t nodes)
{
    /* a tree whose inner groups have two children or more, and at most a root and an end for each node of each level */
    size_t groups = 2 * (size_t)nodes, roots = (size_t)nodes * (TIERS_MAX + 2) + groups;
    uint32_t *memory = calloc(2 * roots, sizeof(*memory));

    t->groups = calloc(groups, sizeof(*t->groups));
    t->memory = memory;
    t->root_first = memory;
    t->root_leaf = memory != NULL ? memory + roots : NULL;
    p->common = calloc(nodes, sizeof(*p->common));
    return memory != NULL && t->groups != NULL && p->common != NULL ? 0 : ERR_NOMEM;
}

static void add_group(struct tiers *t, const struct plan *p, uint32_t n_nodes, uint32_t first,
                      uint32_t end, uint32_t *n_roots)
{
    struct tier_group *g = &t->groups[t->n_groups++];

    *g = (struct tier_group){ .first = first, .end = end, .roots = *n_roots };
    g->n_roots = find_roots(p->leaves, 0, n_nodes, first, end, t->root_first + *n_roots);
    *n_roots += g->n_roots;
    t->root_first[*n_roots] = end; /* replaced by the next sibling */
    for (uint32_t q = g->roots; q <= *n_roots; q++)
        t->root_leaf[q] = p->leaves[t->root_first[q]];
}

/* Appends the children of group g. */
static void add_children(struct tiers *t, const struct plan *p, uint32_t n_nodes, uint32_t g,
                         uint32_t *n_roots)
{
    uint32_t first = t->groups[g].first, end = t->groups[g].end;
    uint8_t border = border_of(p, first, end);

    if (end - first == 1)
        return;
    t->groups[g].children = t->n_groups;
    for (uint32_t i = first, next; i < end; i = next) {
        next = child_end(p, i, end, border);
        add_group(t, p, n_nodes, i, next, n_roots);
        t->groups[g].n_children++;
    }
    (*n_roots)++; /* the end of the last sibling */
}

/* Measures the groups below g, which is at this level. Returns the parts into which g cuts a vector at least. */
static uint32_t measure(struct tiers *t, uint32_t g, uint32_t level, uint32_t buffers)
{
    const struct tier_group *all = &t->groups[g];
    uint32_t least = UINT32_MAX;

    if (all->n_children == 0) {
        t->n_levels = level > t->n_levels ? level : t->n_levels;
        t->n_buffers = buffers > t->n_buffers ? buffers : t->n_buffers;
        return 1;
    }
    for (uint32_t i = 0; i < all->n_children; i++)
        buffers += t->groups[all->children + i].n_roots;
    for (uint32_t i = 0; i < all->n_children; i++) {
        uint32_t parts = measure(t, all->children + i, level + 1, buffers);

        least = parts < least ? parts : least;
    }
    return all->n_children * least;
}

int tiers_init(struct tiers *t, const struct topology *topo, const struct group_member *members,
               struct err *err)
{
    struct tiers made = { .n_groups = 0 };
    struct plan p = { .leaves = topo->node_leaves };
    uint32_t n_roots = 0, nodes = topo->n_nodes;
    int rc = 0;

    *t = made;
    if (!is_usable(topo, members))
        return 0;
    if (allocate(&made, &p, nodes) < 0)
        rc = err_set(err, ERR_NOMEM, "groups of %u nodes: out of memory", nodes);
    for (uint32_t i = 1; i < nodes && rc == 0; i++)
        p.common[i] = (uint8_t)location_common(location_of(topo, members, i - 1),
                                               location_of(topo, members, i));
    if (rc == 0) {
        drop_useless_levels(&p, nodes, 0, nodes);
        add_group(&made, &p, nodes, 0, nodes, &n_roots);
        n_roots++;
        for (uint32_t g = 0; g < made.n_groups; g++)
            add_children(&made, &p, nodes, g, &n_roots);
        made.parts = measure(&made, 0, 0, 0);
    }
    free(p.common);
    if (rc == 0 && made.n_levels > 1)
        *t = made;
    else
        tiers_fini(&made);
    return rc;
}

void tiers_fini(struct tiers *t)
{
    free(t->memory);
    free(t->groups);
    *t = (struct tiers){ .n_groups = 0 };
}

double tiers_traffic(const struct tiers *t, uint32_t group)
{
    const struct tier_group *g = &t->groups[group];
    struct side all = { g->n_children, 0 };
    double most = 0;

    for (uint32_t i = 0; i < g->n_children; i++)
        all.roots += t->groups[g->children + i].n_roots;
    for (uint32_t i = 0; i < g->n_children; i++) {
        double one = traffic_of((struct side){ 1, t->groups[g->children + i].n_roots }, all);

        most = one > most ? one : most;
    }
    return most;
}

/* ---- the description ---- */

/* Adds the inner groups below g to those of their levels. */
static void count_groups(const struct tiers *t, uint32_t g, uint32_t level, uint32_t *n)
{
    const struct tier_group *all = &t->groups[g];

    if (all->n_children == 0)
        return;
    n[level]++;
    for (uint32_t i = 0; i < all->n_children; i++)
        count_groups(t, all->children + i, level + 1, n);
}

const char *tiers_describe(const struct tiers *t, char *out, size_t n)
{
    static const char *const names[] = { "rack", "zone", "region", "area" };
    uint32_t counts[TIERS_MAX + 1] = { 0 };
    size_t at = 0;

    count_groups(t, 0, 0, counts);
    for (uint32_t level = 1; level < t->n_levels && at < n; level++)
        at += (size_t)snprintf(out + at, n - at, "%s%u %s%s", level > 1 ? ", " : "", counts[level],
                               names[t->n_levels - 1 - level], counts[level] > 1 ? "s" : "");
    return out;
}

/* ---- the parts of a vector ---- */

static struct comm_range block_of(struct comm_range x, uint32_t n, uint32_t i)
{
    struct comm_range part = schedule_part(n, i, x.end - x.begin);

    return (struct comm_range){ x.begin + part.begin, x.begin + part.end };
}

struct comm_range tiers_part(const struct tiers *t, uint32_t group, struct comm_range x,
                             uint32_t node)
{
    const struct tier_group *g = &t->groups[group];

    while (g->n_children > 0) {
        uint32_t i = 0;

        while (node >= t->groups[g->children + i].end)
            i++;
        x = block_of(x, g->n_children, i);
        g = &t->groups[g->children + i];
    }
    return x;
}

size_t tiers_chunk(const struct tiers *t, size_t most)
{
    CHECK(most > 2 * CUT_GRAINS * GRAIN);
    return (most / GRAIN - CUT_GRAINS) * GRAIN * t->parts;
}
