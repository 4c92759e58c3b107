/* tier_steps.c - the steps of an all-reduce in tiers; tiers.h has the terms.
 *
 * Where the sum of a root is, for the elements that a node has: in the vector if the node belongs to the root, else in the
 * buffer in which the first part of the root arrived. Each level has buffers for the roots of the children of the
 * node's group, and uses them again for each block. */
#include <stdbool.h>

#include "base/check.h"
#include "comm/schedule.h"
#include "comm/tiers.h"

struct walk {
    const struct tiers *t;
    const struct tiers_verbs *verbs;
    void *arg;
    uint32_t node;
    uint32_t path[TIERS_MAX + 1]; /* the groups of the node: all nodes, ..., the node */
    uint32_t base[TIERS_MAX + 1]; /* first buffer of each level */
    uint32_t rounds[TIERS_MAX];   /* of the node's group of each level so far: makes tags different */
};

static const struct tier_group *group_at(const struct walk *w, uint32_t level)
{
    return &w->t->groups[w->path[level]];
}

static const struct tier_group *child_of(const struct walk *w, uint32_t level, uint32_t i)
{
    return &w->t->groups[group_at(w, level)->children + i];
}

/* The number of the node's child in its group. */
static uint32_t own_child(const struct walk *w, uint32_t level)
{
    return w->path[level + 1] - group_at(w, level)->children;
}

static struct comm_range block(const struct walk *w, uint32_t level, struct comm_range x,
                               uint32_t i)
{
    struct comm_range part = schedule_part(group_at(w, level)->n_children, i, x.end - x.begin);

    return (struct comm_range){ x.begin + part.begin, x.begin + part.end };
}

/* The part of a block that a node of a child has. */
static struct comm_range part(const struct walk *w, uint32_t level, uint32_t child,
                              struct comm_range x, uint32_t node)
{
    return tiers_part(w->t, group_at(w, level)->children + child, x, node);
}

static struct comm_range own_part(const struct walk *w, uint32_t level, struct comm_range x)
{
    return part(w, level, own_child(w, level), x, w->node);
}

static struct comm_range overlap(struct comm_range a, struct comm_range b)
{
    struct comm_range x = { a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end };

    return x.begin < x.end ? x : (struct comm_range){ 0, 0 };
}

/* ---- where sums are ---- */

static uint32_t place(const struct walk *w, uint32_t level, uint32_t root);

/* The place of a root of a child of the node's group. */
static uint32_t child_place(const struct walk *w, uint32_t level, uint32_t root)
{
    const struct tier_group *own = group_at(w, level + 1);

    return root >= own->roots && root < own->roots + own->n_roots
               ? place(w, level + 1, root)
               : w->base[level] + root - child_of(w, level, 0)->roots;
}

/* Returns the first root of a child in a root of the group. */
static uint32_t first_part(const struct walk *w, uint32_t level, uint32_t root)
{
    uint32_t q = child_of(w, level, 0)->roots;

    while (w->t->root_first[q] < w->t->root_first[root])
        q++;
    return q;
}

/* The place of a root of the node's group. */
static uint32_t place(const struct walk *w, uint32_t level, uint32_t root)
{
    const struct tier_group *g = group_at(w, level);
    uint32_t end = root + 1 < g->roots + g->n_roots ? w->t->root_first[root + 1] : g->end;

    if (w->node >= w->t->root_first[root] && w->node < end)
        return TIERS_VECTOR;
    return child_place(w, level, first_part(w, level, root));
}

/* ---- exchanges of children ---- */

/* A child at one end of a transfer: sends or receives elements of a block. */
struct side {
    uint32_t child;
    struct comm_range block, own; /* the part of the block that this node has */
};

static uint32_t most_nodes(const struct walk *w, uint32_t level)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < group_at(w, level)->n_children; i++) {
        uint32_t n = child_of(w, level, i)->end - child_of(w, level, i)->first;

        most = n > most ? n : most;
    }
    return most;
}

/* Returns what this node exchanges with node `index` of the child of `s`. */
static struct tiers_end end_of(const struct walk *w, uint32_t level, const struct side *s,
                               uint32_t index)
{
    const struct tier_group *g = child_of(w, level, s->child);
    struct tiers_end e = { .node = g->first + index, .buffer = TIERS_VECTOR };

    if (e.node < g->end)
        e.x = overlap(s->own, part(w, level, s->child, s->block, e.node));
    return e;
}

static uint64_t tag_of(const struct walk *w, uint32_t level, uint32_t label)
{
    return (uint64_t)level << 60 | (uint64_t)(w->rounds[level] & 0xfffffff) << 32 | label;
}

/* Sends the roots of the own child to another child, and receives those of a third one. */
static int exchange_roots(struct walk *w, uint32_t level, const struct side *to,
                          const struct side *from)
{
    const struct tier_group *own = group_at(w, level + 1), *other = child_of(w, level, from->child);
    uint32_t most = most_nodes(w, level), index = w->node - own->first;

    for (uint32_t step = 0; step < most; step++) {
        struct tiers_end send = end_of(w, level, to, (index + step) % most);
        struct tiers_end recv = end_of(w, level, from, (index + most - step) % most);

        for (uint32_t q = 0; q < own->n_roots || q < other->n_roots; q++) {
            struct tiers_end s = send, r = recv;

            if (q < own->n_roots)
                s.buffer = place(w, level + 1, own->roots + q);
            else
                s.x = (struct comm_range){ 0, 0 };
            if (q < other->n_roots)
                r.buffer = child_place(w, level, other->roots + q);
            else
                r.x = (struct comm_range){ 0, 0 };
            s.offset = s.x.begin - (s.x.begin < s.x.end ? to->own.begin : 0);
            r.offset = r.x.begin - (r.x.begin < r.x.end ? from->own.begin : 0);
            if (w->verbs->transfer(w->arg, &s, &r, tag_of(w, level, q)) < 0)
                return -1;
        }
    }
    w->rounds[level]++;
    return 0;
}

/* The same for sums, which are in the vector. */
static int exchange_sums(struct walk *w, uint32_t level, const struct side *to,
                         const struct side *from)
{
    uint32_t most = most_nodes(w, level), index = w->node - group_at(w, level + 1)->first;

    for (uint32_t step = 0; step < most; step++) {
        struct tiers_end send = end_of(w, level, to, (index + step) % most);
        struct tiers_end recv = end_of(w, level, from, (index + most - step) % most);

        if (w->verbs->transfer(w->arg, &send, &recv, tag_of(w, level, step)) < 0)
            return -1;
    }
    w->rounds[level]++;
    return 0;
}

/* ---- the steps of a group ---- */

/* Adds up the roots of all children, for the elements x that this node has. */
static void add_roots(struct walk *w, uint32_t level, struct comm_range x)
{
    const struct tier_group *g = group_at(w, level), *last = child_of(w, level, g->n_children - 1);
    uint32_t q = child_of(w, level, 0)->roots, all = last->roots + last->n_roots;

    for (uint32_t root = g->roots; root < g->roots + g->n_roots; root++) {
        bool is_last = root + 1 == g->roots + g->n_roots;
        uint32_t end = is_last ? g->end : w->t->root_first[root + 1], first = q;

        for (; q < all && w->t->root_first[q] < end; q++)
            w->verbs->source(w->arg, q - first, child_place(w, level, q), x);
        w->verbs->add(w->arg, place(w, level, root), q - first, w->t->root_leaf + first, x);
    }
}

static int scatter(struct walk *w, uint32_t level, struct comm_range x)
{
    uint32_t n = group_at(w, level)->n_children, own;
    struct comm_range mine;

    if (n == 0)
        return 0;
    own = own_child(w, level);
    mine = block(w, level, x, own);
    for (uint32_t i = 1; i < n; i++) {
        struct side to = { .child = (own + i) % n }, from = { .child = (own + n - i) % n };

        to.block = block(w, level, x, to.child);
        to.own = own_part(w, level, to.block);
        from.block = mine;
        from.own = own_part(w, level, mine);
        if (scatter(w, level + 1, to.block) < 0 || exchange_roots(w, level, &to, &from) < 0)
            return -1;
    }
    if (scatter(w, level + 1, mine) < 0)
        return -1;
    add_roots(w, level, own_part(w, level, mine));
    return 0;
}

static int gather(struct walk *w, uint32_t level, struct comm_range x)
{
    uint32_t n = group_at(w, level)->n_children, own;
    struct comm_range mine;

    if (n == 0)
        return 0;
    own = own_child(w, level);
    mine = block(w, level, x, own);
    for (uint32_t i = 1; i < n; i++) {
        struct side to = { .child = (own + i) % n }, from = { .child = (own + n - i) % n };

        to.block = mine;
        to.own = own_part(w, level, mine);
        from.block = block(w, level, x, from.child);
        from.own = own_part(w, level, from.block);
        if (exchange_sums(w, level, &to, &from) < 0)
            return -1;
    }
    for (uint32_t i = 0; i < n; i++)
        if (gather(w, level + 1, block(w, level, x, i)) < 0)
            return -1;
    return 0;
}

static void find_path(struct walk *w)
{
    uint32_t level = 0;

    for (const struct tier_group *g = group_at(w, 0); g->n_children > 0; g = group_at(w, level)) {
        uint32_t child = g->children, n = 0;

        for (uint32_t i = 0; i < g->n_children; i++)
            n += child_of(w, level, i)->n_roots;
        while (w->node >= w->t->groups[child].end)
            child++;
        CHECK(level < TIERS_MAX);
        w->base[level + 1] = w->base[level] + n;
        w->path[++level] = child;
    }
}

int tiers_all_reduce(const struct tiers *t, uint32_t node, size_t count,
                     const struct tiers_verbs *verbs, void *arg)
{
    struct walk w = { .t = t, .verbs = verbs, .arg = arg, .node = node };
    struct comm_range all = { 0, count };

    find_path(&w);
    return scatter(&w, 0, all) < 0 ? -1 : gather(&w, 0, all);
}
