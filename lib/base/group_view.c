/* group_view.c - see group_view.h. */
#include "base/group_view.h"

#include "base/arena.h"

const struct group_member *group_view_find(const struct group_view *v, uint32_t rank)
{
    uint32_t low = 0, high = v->n_members;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (v->members[mid].rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low < v->n_members && v->members[low].rank == rank ? &v->members[low] : NULL;
}

uint32_t group_view_n_trainers(const struct group_view *v)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->n_members; i++)
        n += v->members[i].n_servers == 0;
    return n;
}

uint32_t group_view_n_ranks(const struct group_view *v)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->n_members; i++)
        n += v->members[i].n_devices;
    return n;
}

uint32_t group_view_choose_coordinator(const struct group_view *v)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < v->n_members; i++)
        if (v->members[i].n_servers == 0 &&
            v->members[i].storage_failures < v->members[best].storage_failures)
            best = i;
    return best;
}

static bool copy_string(struct arena *memory, const char **s)
{
    if (*s == NULL)
        return true;
    *s = arena_strdup(memory, *s);
    return *s != NULL;
}

bool group_view_copy(const struct group_view *v, struct arena *memory, struct group_view *out)
{
    struct group_member *members = arena_array(memory, v->n_members, sizeof(*members));
    struct group_piece *pieces = NULL;

    if (v->n_pieces > 0)
        pieces = arena_array(memory, v->n_pieces, sizeof(*pieces));
    if (members == NULL || (v->n_pieces > 0 && pieces == NULL))
        return false;
    for (uint32_t i = 0; i < v->n_pieces; i++)
        pieces[i] = v->pieces[i];
    for (uint32_t i = 0; i < v->n_members; i++) {
        struct group_member *m = &members[i];

        *m = v->members[i];
        if (!copy_string(memory, &m->name) || !copy_string(memory, &m->data_address) ||
            !copy_string(memory, &m->host_key) || !copy_string(memory, &m->location))
            return false;
    }
    *out = *v;
    out->members = members;
    out->pieces = pieces;
    return true;
}
