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
    if (n->lease.is_mine)
        node_add_action(n, MEMBER_RELEASE);
    d = node_add_action(n, MEMBER_END);
    d->code = code;
    d->text = text;
}

void node_abort_training(struct member_node *n, const char *text)
{
    n->is_alive = n->is_connected = false;
    if (n->training != NODE_RUNNING && n->training != NODE_PAUSING)
        return;
    n->training = NODE_ABORTING;
    n->abort_ms = n->ticked_ms;
    text = node_copy_text(n, text);
    node_add_action(n, MEMBER_ABORT)->text = text;
}

void node_pause_training(struct member_node *n)
{
    if (n->training != NODE_RUNNING)
        return;
    n->training = NODE_PAUSING;
    node_add_action(n, MEMBER_PAUSE);
}

void node_set_progress(struct member_node *n, uint32_t rank, const struct member_progress *p, uint64_t now_ms)
{
    struct peer *to = &n->peers[rank];

    to->progress = *p;
    snprintf(to->phase, sizeof(to->phase), "%s", p->phase != NULL ? p->phase : "");
    to->progress.phase = to->phase;
    to->progress_ms = now_ms;
}
