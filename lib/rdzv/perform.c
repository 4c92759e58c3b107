/* perform.c - performs the actions of the node: on the links and probes here, the others by the
 * daemon. group.c calls rdzv_perform() through a pointer, because the links and probes call group.c
 * with their events. */
#include "rdzv/rdzv_priv.h"

static void probe(struct rdzv *r, uint32_t rank)
{
    struct member_status ours;

    member_node_status(rdzv_node(r), &ours);
    rdzv_probes_start(r->probes, rank, &ours);
}

static void train(struct rdzv *r, const struct member_action *a)
{
    struct rdzv_action out = { .action = a, .view = rdzv_views_get(r->views, a->view) };

    if (out.view != NULL)
        r->opts.on_action(r->opts.arg, &out);
    else
        rdzv_report(r, &(struct member_event){ .kind = MEMBER_EV_FAILED,
                                                  .generation = a->view->generation,
                                                  .failure = MEMBER_FAIL_PEER,
                                                  .text = "the view of the TRAIN action was not received" });
}

/* The node has ended. */
static void end(struct rdzv *r, const struct member_action *a)
{
    rdzv_probes_shut(r->probes);
    rdzv_client_close(r->client);
    rdzv_links_close_all(r->links);
    rdzv_trace(r, "the membership has ended, code %d: %.600s", a->code, a->text);
    r->opts.on_action(r->opts.arg, &(struct rdzv_action){ .action = a });
}

/* Links and probes are handled here; the daemon performs the other actions. */
void rdzv_perform(struct rdzv *r, const struct member_action *a)
{
    switch (a->kind) {
    case MEMBER_OPEN_OUT:
        rdzv_client_open(r->client, a->rank);
        return;
    case MEMBER_CLOSE_OUT:
        rdzv_client_close(r->client);
        return;
    case MEMBER_SEND_LEADER:
        rdzv_client_send(r->client, a->msg);
        return;
    case MEMBER_SEND_MEMBER:
        rdzv_links_send(r->links, a->rank, a->msg);
        return;
    case MEMBER_CLOSE_IN:
        rdzv_links_close(r->links, a->rank);
        return;
    case MEMBER_PROBE:
        probe(r, a->rank);
        return;
    case MEMBER_TRAIN:
        train(r, a);
        return;
    case MEMBER_REACH:
        rdzv_reach_test(r, a);
        return;
    case MEMBER_END:
        end(r, a);
        return;
    default:
        r->opts.on_action(r->opts.arg, &(struct rdzv_action){ .action = a });
        return;
    }
}
