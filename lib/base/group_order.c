/* group_order.c - see group_order.h. */
#include "base/group_order.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/location.h"

enum { NAMED_RACKS = 4 /* of a description; of more racks only their number is stated */ };

struct place { /* of one member */
    const struct group_member *member;
    const char *first; /* location of member 0 */
    uint32_t index;    /* in the view */
};

static const char *location_of(const struct group_member *m)
{
    return m->location != NULL ? m->location : "";
}

static const struct group_member *find_unlocated(const struct group_view *v)
{
    for (uint32_t i = 0; i < v->n_members; i++)
        if (v->members[i].n_servers == 0 && location_of(&v->members[i])[0] == '\0')
            return &v->members[i];
    return NULL;
}

bool group_order_has_location(const struct group_view *v)
{
    for (uint32_t i = 0; i < v->n_members; i++)
        if (v->members[i].n_servers == 0 && location_of(&v->members[i])[0] != '\0')
            return true;
    return false;
}

bool group_order_is_located(const struct group_view *v)
{
    return find_unlocated(v) == NULL;
}

static int compare(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    const char *p = location_of(x->member), *q = location_of(y->member);
    bool x_trains = x->member->n_servers == 0, y_trains = y->member->n_servers == 0;
    unsigned near_x, near_y;
    int by_location;

    if (x_trains != y_trains)
        return x_trains ? -1 : 1;
    near_x = location_common(p, x->first);
    near_y = location_common(q, x->first);
    if (x_trains && near_x != near_y)
        return near_x > near_y ? -1 : 1;
    by_location = x_trains ? location_compare(p, q) : 0;
    if (by_location != 0)
        return by_location;
    return x->member->rank < y->member->rank ? -1 : x->member->rank > y->member->rank;
}

bool group_order_copy(const struct group_view *v, struct arena *memory, struct group_view *out)
{
    struct place *places = arena_array(memory, v->n_members, sizeof(*places));
    struct group_member *members = arena_array(memory, v->n_members, sizeof(*members));
    struct group_view ordered = *v;

    if (places == NULL || members == NULL)
        return false;
    for (uint32_t i = 0; i < v->n_members; i++)
        places[i] = (struct place){ &v->members[i], location_of(&v->members[0]), i };
    if (find_unlocated(v) == NULL)
        qsort(places, v->n_members, sizeof(*places), compare);
    for (uint32_t i = 0; i < v->n_members; i++) {
        members[i] = *places[i].member;
        if (places[i].index == v->self)
            ordered.self = i;
        if (places[i].index == v->coordinator)
            ordered.coordinator = i;
        if (places[i].index == v->newest_member)
            ordered.newest_member = i;
    }
    ordered.members = members;
    return group_view_copy(&ordered, memory, out);
}

static bool same_rack(const struct group_member *a, const struct group_member *b)
{
    size_t n = location_rack(location_of(a));

    return n == location_rack(location_of(b)) && memcmp(location_of(a), location_of(b), n) == 0;
}

/* Returns the end of the training tasks from `first` on that are in its rack. */
static uint32_t rack_end(const struct group_view *v, uint32_t first)
{
    uint32_t end = first + 1, trainers = group_view_n_trainers(v);

    while (end < trainers && same_rack(&v->members[first], &v->members[end]))
        end++;
    return end;
}

static void describe_racks(const struct group_view *v, char *out, size_t n)
{
    uint32_t racks = 0, trainers = group_view_n_trainers(v);
    size_t at;

    for (uint32_t i = 0; i < trainers; i = rack_end(v, i))
        racks++;
    at = (size_t)snprintf(out, n, "%u rack%s", racks, racks == 1 ? "" : "s");
    for (uint32_t i = 0; i < trainers && racks <= NAMED_RACKS && at < n; i = rack_end(v, i)) {
        const char *path = location_of(&v->members[i]);
        int length = (int)location_rack(path);
        uint32_t tasks = rack_end(v, i) - i;

        at += (size_t)snprintf(out + at, n - at, "%s%.*s%s%u task%s", i == 0 ? ": " : ", ", length,
                               path, length > 0 ? " with " : "", tasks, tasks == 1 ? "" : "s");
    }
}

const char *group_order_describe(const struct group_view *v, char *out, size_t n)
{
    const struct group_member *none = find_unlocated(v);
    char racks[GROUP_ORDER_TEXT_BYTES - 128];

    if (none == NULL) {
        describe_racks(v, racks, sizeof(racks));
        snprintf(out, n,
                 "ranks are in the order of locations, since all training tasks have one; %s",
                 racks);
    } else {
        snprintf(out, n, "ranks are in the order of the cluster, since %s has no location%s",
                 none->name != NULL ? none->name : "a task",
                 group_order_has_location(v) ? ", but others have one" : "");
    }
    return out;
}
