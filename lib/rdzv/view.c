/* view.c - a view with the data that the node does not have: the key of its generation, and the
 * addresses and devices of each member. The view of the newest generation that was published or
 * received is stored. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

struct rdzv_views {
    struct rdzv *r;
    struct arena memory;   /* of `view` */
    struct rdzv_view view; /* generation 0: no view */
};

static const char *copy(struct rdzv_views *v, const char *s)
{
    char *own = arena_strdup(&v->memory, s);

    CHECK(own != NULL);
    return own;
}

/* Replaces the view by an empty one with n members. */
static struct rdzv_member *begin(struct rdzv_views *v, uint32_t n)
{
    struct rdzv_member *members;

    arena_fini(&v->memory);
    members = arena_array(&v->memory, n, sizeof(*members));
    CHECK(members != NULL);
    v->view = (struct rdzv_view){ .members = members, .n_members = n };
    return members;
}

static void add(struct rdzv_views *v, struct rdzv_member *m, struct rdzv_member from)
{
    *m = from;
    m->name = v->r->cluster.tasks[m->rank].name;
    m->address = v->r->cluster.tasks[m->rank].address;
    m->data_address = copy(v, from.data_address);
    m->host_key = copy(v, from.host_key);
    if (m->rank == v->r->opts.self)
        v->view.self = (uint32_t)(m - v->view.members);
}

void rdzv_views_store(struct rdzv_views *v, const Trainerd__V1__View *m)
{
    struct rdzv_member *members = begin(v, (uint32_t)m->n_members);

    for (uint32_t i = 0; i < m->n_members; i++) {
        const Trainerd__V1__Member *from = m->members[i];

        add(v, &members[i],
            (struct rdzv_member){ .rank = wire_rank(&v->r->cluster, from->task),
                                  .incarnation = from->incarnation,
                                  .n_devices = from->n_devices,
                                  .data_address = from->data_address,
                                  .host_key = from->host_key,
                                  .held = from->step_held,
                                  .storage_failures = from->storage_failures });
    }
    memcpy(v->view.key, m->key.data, sizeof(v->view.key));
    v->view.generation = m->generation;
    v->view.newest_step = m->newest_step;
    v->view.newest_member = m->newest_member;
}

static bool is_same(const struct rdzv_view *a, const struct member_view *b)
{
    if (a->generation != b->generation || a->n_members != b->n)
        return false;
    for (uint32_t i = 0; i < b->n; i++)
        if (a->members[i].rank != b->seats[i].rank ||
            a->members[i].incarnation != b->seats[i].incarnation)
            return false;
    return true;
}

static struct rdzv_member self(const struct rdzv *r)
{
    return (struct rdzv_member){ .rank = r->opts.self,
                                 .incarnation = r->opts.incarnation,
                                 .n_devices = r->opts.n_devices,
                                 .data_address = r->opts.data_address,
                                 .host_key = r->opts.host_key };
}

/* Builds a view that this task publishes. Returns false if one of its members never joined this
 * task: another task published the view. */
static bool make(struct rdzv_views *v, const struct member_view *from)
{
    struct rdzv_member *members = begin(v, from->n);

    for (uint32_t i = 0; i < from->n; i++) {
        const struct member_seat *seat = &from->seats[i];
        struct rdzv_member m =
            seat->rank == v->r->opts.self ? self(v->r) : rdzv_joined_get(v->r->joined, seat->rank);

        if (m.n_devices == 0 || m.incarnation != seat->incarnation)
            return false;
        m.held = seat->held;
        m.storage_failures = seat->storage_failures;
        add(v, &members[i], m);
        if (seat->rank == from->newest)
            v->view.newest_member = i;
    }
    CHECK(rng_os(v->view.key, sizeof(v->view.key)) ==
          0); /* cannot fail after the kernel has booted */
    v->view.newest_step = from->newest_step;
    v->view.generation = from->generation;
    return true;
}

const struct rdzv_view *rdzv_views_get(struct rdzv_views *v, const struct member_view *view)
{
    if (!is_same(&v->view, view) && !make(v, view))
        return NULL;
    v->view.coordinator = member_view_coordinator(view);
    return &v->view;
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
    free(v);
}
