/* node_state.c - questions about the tasks and the view. */
#include "member/node_priv.h"

#include "base/check.h"

uint64_t node_retry_ms(uint32_t failures)
{
    uint64_t ms = (uint64_t)MEMBER_LEASE_POLL_MS << (failures < 16 ? failures - 1 : 15);

    return ms < MEMBER_LEASE_POLL_MS_MAX ? ms : MEMBER_LEASE_POLL_MS_MAX;
}

bool node_has_leaving_task(const struct member_node *n)
{
    for (uint32_t i = 0; i < n->opts.world; i++)
        if (n->peers[i].is_joined && n->peers[i].is_leaving)
            return true;
    return n->leave.is_requested;
}

bool node_is_present(const struct member_node *n, uint32_t rank)
{
    return n->peers[rank].is_joined && n->peers[rank].is_ready && !n->peers[rank].is_attaching &&
           n->peers[rank].quarantine.until == 0;
}

uint32_t node_n_present(const struct member_node *n)
{
    uint32_t present = 0;

    for (uint32_t i = 0; i < n->opts.world; i++)
        present += node_is_present(n, i);
    return present;
}

uint32_t node_n_trainers(const struct member_node *n)
{
    return n->opts.world - n->opts.n_ps;
}

uint32_t node_n_present_trainers(const struct member_node *n)
{
    uint32_t present = 0;

    for (uint32_t i = 0; i < node_n_trainers(n); i++)
        present += node_is_present(n, i);
    return present;
}

bool node_is_ps(const struct member_node *n, uint32_t rank)
{
    return rank >= node_n_trainers(n);
}

bool node_is_large_enough(const struct member_node *n, uint32_t n_trainers, uint32_t n_ps)
{
    return n_trainers >= n->opts.min_world && n_ps >= n->opts.min_ps;
}

const struct group_view *node_present_view(struct member_node *n)
{
    struct group_view *v = arena_alloc(&n->actions.memory, sizeof(*v));
    struct group_member *members =
        arena_array(&n->actions.memory, node_n_present(n), sizeof(*members));

    CHECK(v != NULL && members != NULL);
    v->members = members;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        const struct peer *p = &n->peers[i];

        if (!node_is_present(n, i))
            continue;
        members[v->n_members] = (struct group_member){ .rank = i,
                                                       .incarnation = p->incarnation,
                                                       .held = p->held,
                                                       .storage_failures = p->storage_failures,
                                                       .n_servers = p->n_servers };
        if (p->held > v->newest_step) {
            v->newest_step = p->held;
            v->newest_member = v->n_members;
        }
        v->n_members++;
    }
    v->coordinator = group_view_choose_coordinator(v);
    return v;
}

bool node_is_stopping(const struct member_node *n, uint32_t rank)
{
    const struct peer *p = &n->peers[rank];
    const struct group_member *member = group_view_find(&n->view, rank);

    return p->is_joined && !p->is_ready && p->quarantine.until == 0 && member != NULL &&
           member->incarnation == p->incarnation;
}

bool node_is_credible(const struct member_node *n, uint64_t generation)
{
    return generation <= n->highest_generation + MEMBER_GENERATIONS_AHEAD;
}

bool node_has_all_trainers(const struct member_node *n, const struct group_view *v)
{
    return group_view_n_trainers(v) == node_n_trainers(n);
}
