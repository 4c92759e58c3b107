/* reach.c - tests of data paths: the data addresses that belong to a REACH.
 *
 * A leader knows the addresses of the tasks that joined it. A member receives them with the REACH.
 * They are stored until the next REACH, because the node orders the test within the event of that
 * message. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>

#include "base/check.h"

const char *rdzv_reach_address(const struct rdzv *r, uint32_t rank)
{
    const char *address = rdzv_joined_get(r->joined, rank)->data_address;

    return address != NULL ? address : "";
}

void rdzv_reach_store(struct rdzv *r, const Trainerd__V1__Reach *m)
{
    r->n_reach = 0;
    for (size_t i = 0; i < m->n_peers && i < MEMBER_REACH_MAX; i++) {
        r->reach[r->n_reach].rank = wire_rank(&r->cluster, m->peers[i]->task);
        snprintf(r->reach[r->n_reach].address, sizeof(r->reach[0].address), "%s",
                 m->peers[i]->data_address);
        r->n_reach++;
    }
}

void rdzv_reach_test(struct rdzv *r, const struct member_action *a)
{
    bool leads = member_node_state(rdzv_node(r)) == MEMBER_LEADING;
    const char *addresses[MEMBER_REACH_MAX];

    CHECK(a->n_ranks <= MEMBER_REACH_MAX);
    for (uint32_t i = 0; i < a->n_ranks; i++) {
        addresses[i] = leads ? rdzv_reach_address(r, a->ranks[i]) : "";
        for (uint32_t k = 0; k < r->n_reach && !leads; k++)
            if (r->reach[k].rank == a->ranks[i])
                addresses[i] = r->reach[k].address;
    }
    r->opts.on_action(r->opts.arg, &(struct rdzv_action){ .action = a, .addresses = addresses });
}
