/* node_view_begin.c - the beginning of a view. */
#include "member/node_priv.h"

#include "base/check.h"

void node_coordinate(struct member_node *n, uint64_t now_ms)
{
    bool was_leading = n->state == MEMBER_LEADING;

    n->state = MEMBER_LEADING;
    node_start_gathering(n, now_ms);
    n->lead.phase = NODE_LIVE;
    for (uint32_t i = 0; i < n->opts.world; i++) {
        struct peer *p = &n->peers[i];
        const struct group_member *member = group_view_find(&n->view, i);

        p->is_in_view = member != NULL;
        if (member != NULL) {
            p->quarantine.until = 0; /* of an earlier time as the leader */
            p->quarantine.dead.n = 0;
        }
        /* a task in quarantine stays ready: it sends READY only once */
        p->is_ready = p->is_ready && p->quarantine.until != 0 && member == NULL;
        p->is_complete = false;
        p->progress.last = (struct member_progress){ .phase = p->progress.phase };
        p->progress.phase[0] = '\0';
        if (i == n->opts.self) {
            p->is_joined = true;
            p->incarnation = n->opts.incarnation;
            continue;
        }
        /* its link in comes after its link to the previous leader */
        if (member != NULL && !was_leading)
            p->joined_ms = p->heard_ms = now_ms;
        if (p->is_attaching && (member == NULL || p->attach_generation != n->view.generation ||
                                p->incarnation != member->incarnation))
            node_refuse(n, i, MEMBER_CONTINUE, "another view");
        p->is_attaching = false;
        if (member != NULL)
            p->incarnation = member->incarnation;
    }
    node_keep_lease(n, now_ms);
}

/* Copies the view without its connection data and its key, which the caller of the node owns. */
static void store_view(struct member_node *n, const struct group_view *v)
{
    n->view = (struct group_view){ .generation = v->generation,
                                   .n_members = v->n_members,
                                   .members = n->view_members,
                                   .coordinator = v->coordinator,
                                   .newest_step = v->newest_step,
                                   .newest_member = v->newest_member };
    for (uint32_t i = 0; i < v->n_members; i++) {
        const struct group_member *m = &v->members[i];

        n->view_members[i] = (struct group_member){ .rank = m->rank,
                                                    .incarnation = m->incarnation,
                                                    .held = m->held,
                                                    .storage_failures = m->storage_failures,
                                                    .n_servers = m->n_servers };
        if (m->rank == n->opts.self)
            n->view.self = i;
        else
            n->peers[m->rank].storage_failures = m->storage_failures;
    }
}

void node_adopt_view(struct member_node *n, const struct group_view *v, const char *text,
                     uint64_t now_ms)
{
    struct member_action *d;
    uint32_t coordinator = v->members[v->coordinator].rank;

    CHECK(n->own.training == NODE_STOPPED && v->n_members <= n->opts.world);
    text = node_copy_text(n, text);
    store_view(n, v);
    if (v->generation > n->highest_generation)
        n->highest_generation = v->generation;
    n->is_alive = true;
    /* a parameter server holds no step: the step of the view shows that the group has advanced */
    if (node_is_ps(n, n->opts.self) && v->newest_step > n->deadline.step) {
        n->deadline.step = v->newest_step;
        n->deadline.no_step_ms = 0;
    }
    n->own.is_connected = n->storage.has_failed = false;
    n->seek.dead_paths.n = 0;
    n->own.training = NODE_RUNNING;
    n->own.progress = (struct member_progress){ .held = n->own.held, .phase = "" };
    n->adopted_ms = now_ms;
    /* replaces its progress in the previous view */
    node_set_progress(n, coordinator, &n->own.progress, now_ms);
    d = node_add_action(n, MEMBER_TRAIN);
    d->view = node_copy_view(n, &n->view);
    d->text = text;
    if (coordinator == n->opts.self) {
        if (n->out.rank != MEMBER_NO_RANK)
            node_add_action(n, MEMBER_CLOSE_OUT);
        n->out.rank = MEMBER_NO_RANK;
        node_coordinate(n, now_ms);
    } else if (coordinator != n->out.rank) {
        if (n->out.rank != MEMBER_NO_RANK)
            node_add_action(n, MEMBER_CLOSE_OUT);
        n->out.rank = MEMBER_NO_RANK;
        node_redirect_links(n, coordinator);
        n->state = MEMBER_FOLLOWING;
        node_open_out(n, coordinator, true, now_ms);
    }
}
