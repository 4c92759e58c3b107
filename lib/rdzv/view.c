/* view.c - a view with the data that the node does not have: the key of its generation, and the
 * connection data of each member. The view of the newest generation that was published or received
 * is stored. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

struct rdzv_views {
    struct rdzv *r;
    struct arena division_memory;
    struct group_view division; /* whose members have these pieces, in every view that they form */
    struct arena placement_memory;
    struct group_view placement; /* whose members have these locations, in every view that they form */
    struct arena memory;    /* of `view` */
    struct group_view view; /* generation 0: no view */
};

void rdzv_views_store(struct rdzv_views *v, const struct group_view *from)
{
    const struct group_member *self = group_view_find(from, v->r->opts.self);

    arena_fini(&v->memory);
    CHECK(group_view_copy(from, &v->memory, &v->view));
    v->view.self = self != NULL ? (uint32_t)(self - from->members) : 0;
}

static bool has_same_members(const struct group_view *a, const struct group_view *b)
{
    if (a->n_members != b->n_members)
        return false;
    for (uint32_t i = 0; i < b->n_members; i++)
        if (a->members[i].rank != b->members[i].rank ||
            a->members[i].incarnation != b->members[i].incarnation)
            return false;
    return true;
}

static bool is_same(const struct group_view *a, const struct group_view *b)
{
    return a->generation == b->generation && has_same_members(a, b);
}

void rdzv_views_divide(struct rdzv_views *v, const struct group_view *members,
                       const struct group_piece *pieces, uint32_t n_pieces)
{
    struct group_view from = *members;

    from.pieces = pieces;
    from.n_pieces = n_pieces;
    arena_fini(&v->division_memory);
    CHECK(group_view_copy(&from, &v->division_memory, &v->division));
}

void rdzv_views_place(struct rdzv_views *v, const struct group_view *members,
                      const char *const *locations)
{
    struct group_view from = *members;
    struct group_member *placed = calloc(from.n_members, sizeof(*placed));

    CHECK(placed != NULL);
    memcpy(placed, members->members, from.n_members * sizeof(*placed));
    for (uint32_t i = 0; i < from.n_members; i++)
        placed[i].location = locations[i];
    from.members = placed;
    arena_fini(&v->placement_memory);
    CHECK(group_view_copy(&from, &v->placement_memory, &v->placement));
    free(placed);
}

/* Stores a view that this task publishes, with a new key. Returns false if one of its members never
 * joined this task: another task published the view. */
static bool complete(struct rdzv_views *v, const struct group_view *from)
{
    struct group_view view = *from;
    struct group_member *members = calloc(from->n_members, sizeof(*members));
    bool is_own = true, is_placed = has_same_members(&v->placement, from);

    CHECK(members != NULL);
    for (uint32_t i = 0; i < from->n_members && is_own; i++) {
        const struct group_member *m = &from->members[i],
                                  *joined = rdzv_joined_get(v->r->joined, m->rank);

        is_own = joined->n_devices + joined->n_servers > 0 && joined->incarnation == m->incarnation;
        members[i] = *joined;
        members[i].held = m->held;
        members[i].storage_failures = m->storage_failures;
        if (is_placed && v->placement.members[i].location != NULL)
            members[i].location = v->placement.members[i].location;
    }
    if (is_own) {
        view.members = members;
        if (has_same_members(&v->division, from)) {
            view.pieces = v->division.pieces;
            view.n_pieces = v->division.n_pieces;
        }
        CHECK(rng_os(view.key, sizeof(view.key)) ==
              0); /* cannot fail after the kernel has booted */
        rdzv_views_store(v, &view);
    }
    free(members);
    return is_own;
}

const struct group_view *rdzv_views_get(struct rdzv_views *v, const struct group_view *view)
{
    return is_same(&v->view, view) || complete(v, view) ? &v->view : NULL;
}

struct rdzv_views *rdzv_views_new(struct rdzv *r)
{
    struct rdzv_views *v = calloc(1, sizeof(*v));

    CHECK(v != NULL);
    v->r = r;
    return v;
}

void rdzv_views_free(struct rdzv_views *v)
{
    if (v == NULL)
        return;
    arena_fini(&v->memory);
    arena_fini(&v->division_memory);
    arena_fini(&v->placement_memory);
    free(v);
}
