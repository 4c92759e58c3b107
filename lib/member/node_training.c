/* node_training.c - the training of this task (pause, abort, progress), and the end of the node. */
#include "member/node_priv.h"

#include <stdio.h>

void node_end(struct member_node *n, int code, const char *text)
{
    struct member_action *d;

    if (n->state == MEMBER_ENDED)
        return;
    text = node_copy_text(n, text);
    node_abort_training(n, text);
    n->state = MEMBER_ENDED;
    if (n->lease.record.is_mine)
        node_add_action(n, MEMBER_RELEASE);
    d = node_add_action(n, MEMBER_END);
    d->code = code;
    d->text = text;
}

void node_abort_training(struct member_node *n, const char *text)
{
    n->is_alive = n->own.is_connected = false;
    if (n->own.training != NODE_RUNNING && n->own.training != NODE_PAUSING)
        return;
    n->own.training = NODE_ABORTING;
    n->own.abort_ms = n->clock.ticked_ms;
    text = node_copy_text(n, text);
    node_add_action(n, MEMBER_ABORT)->text = text;
}

void node_pause_training(struct member_node *n)
{
    if (n->own.training != NODE_RUNNING)
        return;
    n->own.training = NODE_PAUSING;
    node_add_action(n, MEMBER_PAUSE);
}

void node_set_progress(struct member_node *n, uint32_t rank, const struct member_progress *p,
                       uint64_t now_ms)
{
    struct peer *to = &n->peers[rank];

    to->progress.last = *p;
    snprintf(to->progress.phase, sizeof(to->progress.phase), "%s",
             p->phase != NULL ? p->phase : "");
    to->progress.last.phase = to->progress.phase;
    to->progress.at_ms = now_ms;
}
