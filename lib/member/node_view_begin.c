/* node_view_begin.c - the beginning of a view. */
#include "member/node_priv.h"

#include <string.h>

#include "base/check.h"

void node_coordinate(struct member_node *n, uint64_t now_ms)
{
    bool was_leading = n->state == MEMBER_LEADING;

    n->state = MEMBER_LEADING;
    node_start_gathering(n, now_ms);
    n->phase = NODE_LIVE;
    for (uint32_t i = 0; i < n->world; i++) {
        struct peer *p = &n->peers[i];
        const struct member_seat *seat = node_seat(&n->view, i);

        p->is_in_view = seat != NULL;
        p->dead.n = seat != NULL ? 0 : p->dead.n;
        /* a task in quarantine stays ready: it sends READY only once */
        p->is_ready = p->is_ready && p->quarantine_until != 0 && seat == NULL;
        p->is_complete = false;
        p->progress = (struct member_progress){ .phase = p->phase };
        p->phase[0] = '\0';
        if (i == n->self) {
            p->is_joined = true;
            p->incarnation = n->incarnation;
            continue;
        }
        /* its link in comes after its link to the previous leader */
        if (seat != NULL && !was_leading)
            p->joined_ms = p->heard_ms = now_ms;
        if (p->is_attaching && (seat == NULL || p->attach_generation != n->view.generation ||
                                p->incarnation != seat->incarnation))
            node_refuse(n, i, MEMBER_CONTINUE, "another view");
        p->is_attaching = false;
        if (seat != NULL)
            p->incarnation = seat->incarnation;
    }
    node_keep_lease(n, now_ms);
}

void node_adopt_view(struct member_node *n, const struct member_view *v, const char *text, uint64_t now_ms)
{
    struct member_action *d;
    uint32_t coordinator = v->seats[member_view_coordinator(v)].rank;

    CHECK(n->training == NODE_STOPPED && v->n <= n->world);
    text = node_copy_text(n, text);
    memmove(n->seats, v->seats, v->n * sizeof(*n->seats));
    n->view = *v;
    n->view.seats = n->seats;
    for (uint32_t i = 0; i < v->n; i++)
        if (v->seats[i].rank != n->self)
            n->peers[v->seats[i].rank].storage_failures = v->seats[i].storage_failures;
    if (v->generation > n->highest_generation)
        n->highest_generation = v->generation;
    n->is_alive = true;
    n->is_connected = n->storage_failed = false;
    n->own_dead.n = 0;
    n->training = NODE_RUNNING;
    n->progress = (struct member_progress){ .held = n->held, .phase = "" };
    n->adopted_ms = now_ms;
    /* replaces its progress in the previous view */
    node_set_progress(n, coordinator, &n->progress, now_ms);
    d = node_add_action(n, MEMBER_TRAIN);
    d->view = node_copy_view(n, &n->view);
    d->text = text;
    if (coordinator == n->self) {
        if (n->out_rank != MEMBER_NO_RANK)
            node_add_action(n, MEMBER_CLOSE_OUT);
        n->out_rank = MEMBER_NO_RANK;
        node_coordinate(n, now_ms);
    } else if (coordinator != n->out_rank) {
        if (n->out_rank != MEMBER_NO_RANK)
            node_add_action(n, MEMBER_CLOSE_OUT);
        n->out_rank = MEMBER_NO_RANK;
        node_redirect_links(n, coordinator);
        n->state = MEMBER_FOLLOWING;
        node_open_out(n, coordinator, true, now_ms);
    }
}
