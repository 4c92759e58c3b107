/* node_state.c - questions about the tasks and the view. */
#include "member/node_priv.h"

#include "base/check.h"

uint64_t node_retry_ms(uint32_t failures)
{
    uint64_t ms = (uint64_t)MEMBER_LEASE_POLL_MS << (failures < 16 ? failures - 1 : 15);

    return ms < MEMBER_LEASE_POLL_MS_MAX ? ms : MEMBER_LEASE_POLL_MS_MAX;
}

const struct member_seat *node_seat(const struct member_view *v, uint32_t rank)
{
    uint32_t low = 0, high = v->n;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (v->seats[mid].rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low < v->n && v->seats[low].rank == rank ? &v->seats[low] : NULL;
}

bool node_any_leaves(const struct member_node *n)
{
    for (uint32_t i = 0; i < n->world; i++)
        if (n->peers[i].is_joined && n->peers[i].is_leaving)
            return true;
    return n->is_stopping;
}

bool node_is_present(const struct member_node *n, uint32_t rank)
{
    return n->peers[rank].is_joined && n->peers[rank].is_ready && !n->peers[rank].is_attaching &&
           n->peers[rank].quarantine_until == 0;
}

uint32_t node_n_present(const struct member_node *n)
{
    uint32_t present = 0;

    for (uint32_t i = 0; i < n->world; i++)
        present += node_is_present(n, i);
    return present;
}

const struct member_view *node_present_view(struct member_node *n)
{
    struct member_view *v = arena_alloc(&n->event, sizeof(*v));
    struct member_seat *seats = arena_array(&n->event, node_n_present(n), sizeof(*seats));

    CHECK(v != NULL && seats != NULL);
    v->seats = seats;
    v->newest = MEMBER_NO_RANK;
    for (uint32_t i = 0; i < n->world; i++) {
        const struct peer *p = &n->peers[i];

        if (!node_is_present(n, i))
            continue;
        seats[v->n++] = (struct member_seat){ i, p->incarnation, p->held, p->storage_failures };
        if (p->held > v->newest_step) {
            v->newest_step = p->held;
            v->newest = i;
        }
    }
    return v;
}

bool node_is_stopping(const struct member_node *n, uint32_t rank)
{
    const struct peer *p = &n->peers[rank];
    const struct member_seat *seat = node_seat(&n->view, rank);

    return p->is_joined && !p->is_ready && p->quarantine_until == 0 && seat != NULL &&
           seat->incarnation == p->incarnation;
}

bool node_is_full_view(const struct member_view *v, uint32_t world)
{
    return v->n == world;
}

uint32_t member_view_coordinator(const struct member_view *v)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < v->n; i++)
        if (v->seats[i].storage_failures < v->seats[best].storage_failures)
            best = i;
    return best;
}
