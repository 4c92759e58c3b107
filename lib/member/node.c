/* node.c - open, start, stop, ticks, deadline, and the events of the training of this task. The files that node.c calls
 * never call back: see node_priv.h. */
#include "member/node_priv.h"

#include <stdlib.h>

#include "base/check.h"

/* ---- open and close ---- */

static const struct member_ident *copy_ident(struct member_node *n,
                                             const struct member_ident *ident)
{
    struct member_ident *copy = arena_alloc(&n->memory, sizeof(*copy));

    CHECK(copy != NULL);
    *copy = member_ident_copy(ident, &n->memory);
    return copy;
}

/* Copies one string for each task. Returns NULL if there is no memory. */
static const char *const *copy_strings(struct member_node *n, const char *const *from)
{
    const char **copy = arena_array(&n->memory, n->opts.world, sizeof(*copy));

    for (uint32_t i = 0; copy != NULL && i < n->opts.world; i++) {
        copy[i] = arena_strdup(&n->memory, from[i]);
        if (copy[i] == NULL)
            return NULL;
    }
    return copy;
}

struct member_node *member_node_new(const struct member_node_opts *o, uint64_t now_ms)
{
    struct member_node *n = calloc(1, sizeof(*n));

    CHECK(o->world > 0 && o->self < o->world && o->incarnation != 0);
    CHECK(o->n_ps < o->world && o->min_world > 0 && o->min_world <= o->world - o->n_ps);
    CHECK(o->min_ps <= o->n_ps && (o->min_ps > 0) == (o->n_ps > 0));
    CHECK((o->n_servers > 0) == (o->self >= o->world - o->n_ps));
    if (n == NULL)
        return NULL;
    n->opts = *o;
    n->opts.silent_ms = o->silent_ms != 0 ? o->silent_ms : MEMBER_SILENCE_MS;
    n->opts.ident = copy_ident(n, o->ident);
    n->opts.names = copy_strings(n, o->names);
    n->opts.addresses = copy_strings(n, o->addresses);
    n->view_members = arena_array(&n->memory, o->world, sizeof(*n->view_members));
    n->peers = arena_array(&n->memory, o->world, sizeof(*n->peers));
    n->lease.members = arena_array(&n->memory, o->world, sizeof(*n->lease.members));
    n->lease.prior.ranks = arena_array(&n->memory, o->world, sizeof(*n->lease.prior.ranks));
    if (n->opts.names == NULL || n->opts.addresses == NULL || n->view_members == NULL ||
        n->peers == NULL || n->lease.members == NULL || n->lease.prior.ranks == NULL) {
        member_node_free(n);
        return NULL;
    }
    for (uint32_t i = 0; i < o->world; i++)
        n->peers[i].progress.last.phase = n->peers[i].progress.phase;
    n->out.rank = n->lease.prior.holder = n->seek.successor = MEMBER_NO_RANK;
    n->trouble.rank = MEMBER_NO_RANK;
    n->lease.record.holder = MEMBER_NO_RANK;
    n->own.progress.phase = "";
    n->clock.ticked_ms = n->clock.logged_ms = now_ms;
    return n;
}

void member_node_free(struct member_node *n)
{
    if (n == NULL)
        return;
    arena_fini(&n->memory);
    arena_fini(&n->actions.memory);
    free(n->actions.list);
    free(n);
}

/* ---- training of this task ---- */

/* Updates the state after the end of training. Returns false if the event is not of the present
 * generation, or no training was running. */
static bool record_stop(struct member_node *n, const struct member_event *e)
{
    if (n->own.training <= NODE_STOPPED || e->generation != n->view.generation)
        return false;
    n->own.training = NODE_STOPPED;
    n->own.is_connected = false;
    n->own.held = n->own.progress.held = e->held;
    n->own.progress.phase = "";
    return true;
}

/* PAUSED and ABORTED: the training has stopped and holds e->held. */
static void node_paused(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (record_stop(n, e))
        node_training_stopped(n, now_ms);
}

static void node_complete(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    bool was_alive = n->is_alive;

    if (!record_stop(n, e))
        return;
    if (was_alive && n->state == MEMBER_LEADING)
        node_training_complete(n);
    else if (was_alive && n->state == MEMBER_FOLLOWING && n->out.rank != MEMBER_NO_RANK)
        node_send_leader(n, &(struct member_msg){ .kind = MEMBER_MSG_COMPLETE,
                                           .generation = e->generation,
                                           .held = e->held,
                                           .text = "" });
    else
        node_training_stopped(n, now_ms);
}

static void peer_failed(struct member_node *n, const struct member_loss *loss, const char *text,
                        uint64_t now_ms)
{
    static const struct member_loss unknown = { .peer = MEMBER_NO_RANK };

    if (loss == NULL)
        loss = &unknown;
    if (n->is_alive && n->state == MEMBER_FOLLOWING && n->out.rank != MEMBER_NO_RANK)
        node_send_leader(n, &(struct member_msg){ .kind = MEMBER_MSG_TROUBLE,
                                           .generation = n->view.generation,
                                           .rank = loss->peer,
                                           .ranks = loss->dead_paths,
                                           .n_ranks = loss->n_dead_paths,
                                           .text = text });
    else if (n->is_alive && n->state == MEMBER_LEADING)
        node_trouble(n, n->opts.self, loss, text, now_ms);
    node_training_stopped(n, now_ms);
}

static void node_failed(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    enum member_failure kind = e->failure;
    bool everywhere = kind == MEMBER_FAIL_INPUT || kind == MEMBER_FAIL_STORAGE;
    const char *text;
    int code = kind == MEMBER_FAIL_INPUT || kind == MEMBER_FAIL_FILES ? 2 : 138;

    if (e->generation != 0 && !record_stop(n, e))
        return;
    text = node_copy_text(n, e->text);
    if (kind == MEMBER_FAIL_PEER) {
        peer_failed(n, e->loss, text, now_ms);
        return;
    }
    text = node_print(n, "%s failed: %s", node_name(n, n->opts.self), text);
    if (kind == MEMBER_FAIL_STORAGE && node_hand_over_save(n, text, now_ms))
        return;
    if (n->state == MEMBER_LEADING && everywhere)
        node_end_all(n, code, text);
    else if (n->state == MEMBER_LEADING)
        node_end_view(n, n->opts.self, text, now_ms);
    else if (n->out.rank != MEMBER_NO_RANK)
        node_send_leader(n, &(struct member_msg){ .kind = MEMBER_MSG_LEAVE,
                                           .code = code,
                                           .is_all = everywhere,
                                           .text = text });
    node_end(n, code, text);
}

static void node_own_reached(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (n->state == MEMBER_LEADING)
        node_reached(n, n->opts.self, e->round, e->loss->dead_paths, e->loss->n_dead_paths, now_ms);
    else if (n->state == MEMBER_FOLLOWING && n->out.rank != MEMBER_NO_RANK)
        node_send_leader(n, &(struct member_msg){ .kind = MEMBER_MSG_REACHED,
                                           .round = e->round,
                                           .ranks = e->loss->dead_paths,
                                           .n_ranks = e->loss->n_dead_paths,
                                           .text = "" });
}

static void node_connected(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    (void)now_ms;
    if (!n->is_alive || e->generation != n->view.generation || n->own.training <= NODE_STOPPED)
        return;
    n->own.is_connected = true;
    node_note_group(n);
    n->clock.heartbeat_ms = 0; /* sends the progress at the next tick */
}

static void update_progress(struct member_node *n, const struct member_progress *p)
{
    if (!n->is_alive || n->own.training <= NODE_STOPPED)
        return;
    n->own.progress = *p;
    if (p->held > n->deadline.step) {
        n->deadline.step = p->held;
        n->deadline.no_step_ms = n->deadline.over_ms = 0;
        n->deadline.has_blamed = false;
    }
}

/* ---- start, stop, ticks ---- */

static void node_start(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    (void)e;
    n->clock.ticked_ms = n->clock.heartbeat_ms = n->clock.logged_ms = now_ms;
    node_seek(n, now_ms);
}

static void node_opened(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (n->own.training != NODE_OPENING)
        return;
    if (e->text != NULL)
        node_storage_refuse(n, e->text);
    n->own.training = NODE_STOPPED;
    node_training_stopped(n, now_ms);
}

static void node_regroup(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (n->state == MEMBER_LEADING && n->own.is_connected && !node_has_leaving_task(n))
        node_start_pause(n, e->text, now_ms);
}

static void node_stop(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    bool everywhere = e->everywhere;

    if (n->leave.is_requested && (n->leave.ends_job || !everywhere))
        return;
    n->leave.is_requested = true;
    n->leave.ends_job = n->leave.ends_job || everywhere;
    n->leave.since_ms = now_ms;
    if (n->state == MEMBER_LEADING && n->lead.phase == NODE_LIVE) {
        node_start_pause(n,
                         node_print(n, "%s was asked to %s", node_name(n, n->opts.self),
                                    everywhere ? "end the job" : "leave"),
                         now_ms);
        return;
    }
    if (n->state == MEMBER_LEADING) {
        node_gather(n, now_ms);
        return;
    }
    if (n->out.rank != MEMBER_NO_RANK)
        node_send_leave(n, 143,
                        node_print(n, "%s was asked to %s", node_name(n, n->opts.self),
                                   everywhere ? "end the job" : "leave"));
    if (!n->is_alive && n->own.training <= NODE_STOPPED && n->own.held == 0 && !everywhere)
        node_end(n, 143, "stopped before the first step");
}

static uint64_t shifted(uint64_t at_ms, uint64_t by_ms, uint64_t now_ms)
{
    return now_ms - at_ms > by_ms ? at_ms + by_ms : now_ms;
}

/* The clock jumped, or this process was suspended: extends the deadlines by slept_ms, so that no
 * task is blamed for messages that this process did not receive meanwhile. */
static void extend_deadlines(struct member_node *n, uint64_t slept_ms, uint64_t now_ms)
{
    n->straggler.rank = MEMBER_NO_RANK;
    n->out.called_ms = shifted(n->out.called_ms, slept_ms, now_ms);
    n->out.heard_ms = shifted(n->out.heard_ms, slept_ms, now_ms);
    n->out.moved_ms = shifted(n->out.moved_ms, slept_ms, now_ms);
    n->own.abort_ms = shifted(n->own.abort_ms, slept_ms, now_ms);
    n->adopted_ms = shifted(n->adopted_ms, slept_ms, now_ms);
    for (uint32_t i = 0; i < n->opts.world; i++) {
        n->peers[i].heard_ms = shifted(n->peers[i].heard_ms, slept_ms, now_ms);
        n->peers[i].joined_ms = shifted(n->peers[i].joined_ms, slept_ms, now_ms);
    }
}

static void send_heartbeat(struct member_node *n, uint64_t now_ms)
{
    struct member_msg m = { .kind = MEMBER_MSG_BEAT,
                            .generation = n->is_alive ? n->view.generation : 0,
                            .held = n->own.held,
                            .progress = n->own.progress,
                            .text = "" };

    if (now_ms - n->clock.heartbeat_ms < MEMBER_HEARTBEAT_MS)
        return;
    n->clock.heartbeat_ms = now_ms;
    if (n->state == MEMBER_LEADING)
        for (uint32_t i = 0; i < n->opts.world; i++)
            if (n->peers[i].is_joined && i != n->opts.self)
                node_send_member(n, i, &m);
    if (n->state != MEMBER_LEADING && n->out.rank != MEMBER_NO_RANK)
        node_send_leader(n, &m);
}

/* A view that connects has a time limit of its own: until then the watchdog names the task that
 * delays it, or the communicator reports the cause of the failure. */
static bool has_time_to_connect(const struct member_node *n, uint64_t now_ms)
{
    uint64_t moved_ms =
        n->straggler.since_ms > n->adopted_ms ? n->straggler.since_ms : n->adopted_ms;

    return n->state == MEMBER_LEADING && n->lead.phase != NODE_GATHERING &&
           now_ms - moved_ms <= n->opts.deadline_ms + n->opts.deadline_ms / 2;
}

/* Returns true if all tasks have joined this leader, which has no view, and none is in quarantine:
 * the leader waits only for tasks that open model and data, which may take long, or whose training
 * stops, which has a limit of its own. */
static bool has_all_tasks(const struct member_node *n)
{
    if (n->state != MEMBER_LEADING || n->lead.phase != NODE_GATHERING)
        return false;
    for (uint32_t i = 0; i < n->opts.world; i++)
        if (!n->peers[i].is_joined || n->peers[i].quarantine.until != 0)
            return false;
    return true;
}

static void watch_deadline(struct member_node *n, uint64_t passed_ms, uint64_t now_ms)
{
    /* A member leaves the deadline to its leader, which decides for all tasks. */
    if ((n->is_alive && n->own.is_connected) || n->state == MEMBER_FOLLOWING || has_all_tasks(n))
        return;
    n->deadline.no_step_ms += passed_ms;
    if (n->deadline.no_step_ms > n->opts.deadline_ms)
        n->deadline.over_ms += passed_ms;
    if (!has_time_to_connect(n, now_ms))
        (void)node_deadline_expired(n, now_ms);
}

/* Ends this process if its training does not stop. The supervisor starts the task again. */
static void watch_abort(struct member_node *n, uint64_t now_ms)
{
    bool holds_up_leavers = n->leave.is_requested && n->state == MEMBER_LEADING;
    uint64_t limit_ms = holds_up_leavers ? MEMBER_LEAVE_REST_MS : MEMBER_STOPPING_MS;
    const char *text;

    if (n->own.training != NODE_ABORTING || now_ms - n->own.abort_ms < limit_ms ||
        n->state == MEMBER_ENDED)
        return;
    text = node_print(n, "training of %s does not stop%s%s%s%s", node_name(n, n->opts.self),
                      n->own.progress.phase[0] != '\0' ? ", in " : "", n->own.progress.phase,
                      n->cause[0] != '\0' ? "; first cause: " : "", n->cause);
    if (n->state == MEMBER_LEADING)
        node_redirect_links(n, MEMBER_NO_RANK);
    node_end(n, 138, text);
}

static void node_tick(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    uint64_t passed = now_ms > n->clock.ticked_ms ? now_ms - n->clock.ticked_ms : 0;
    uint64_t stop_limit = 2 * n->opts.grace_ms + MEMBER_STOPPING_MS;

    if (e->progress != NULL)
        update_progress(n, e->progress);
    n->clock.ticked_ms = now_ms;
    if (passed > n->opts.silent_ms) {
        n->clock.gap_ms = passed;
        n->clock.gap_until = now_ms + n->opts.silent_ms;
    }
    if (passed > MEMBER_HEARTBEAT_MS) {
        extend_deadlines(n, passed - MEMBER_TICK_MS, now_ms);
        passed = MEMBER_TICK_MS;
    }
    watch_deadline(n, passed, now_ms);
    watch_abort(n, now_ms);
    if (n->state == MEMBER_SEEKING || n->state == MEMBER_FOLLOWING)
        node_refuse_attaching(n, MEMBER_ATTACH_MS, now_ms);
    if (n->state == MEMBER_SEEKING)
        node_seek_tick(n, now_ms);
    else if (n->state == MEMBER_FOLLOWING)
        node_follow_tick(n, now_ms);
    if (n->state == MEMBER_LEADING)
        node_lead_tick(n, now_ms);
    if (n->leave.is_requested && n->state != MEMBER_ENDED &&
        now_ms - n->leave.since_ms > stop_limit)
        node_end(n, 138,
                 node_print(n, "%s was asked to leave, but no leader released it in time: %s",
                            node_name(n, n->opts.self), node_missing_text(n)));
    if (n->state != MEMBER_ENDED)
        send_heartbeat(n, now_ms);
}

/* ---- events ---- */

static node_event_fn *const handlers[] = {
    [MEMBER_EV_START] = node_start,         [MEMBER_EV_OPENED] = node_opened,
    [MEMBER_EV_TICK] = node_tick,           [MEMBER_EV_STOP] = node_stop,
    [MEMBER_EV_RECEIVED_IN] = node_received_in,   [MEMBER_EV_IN_CLOSED] = node_in_closed,
    [MEMBER_EV_RECEIVED_OUT] = node_received_out, [MEMBER_EV_OUT_CLOSED] = node_out_closed,
    [MEMBER_EV_PROBE_ANSWERED] = node_probe_answered,           [MEMBER_EV_PROBE_FAILED] = node_probe_failed,
    [MEMBER_EV_REACHED] = node_own_reached, [MEMBER_EV_CONNECTED] = node_connected,
    [MEMBER_EV_PAUSED] = node_paused,       [MEMBER_EV_ABORTED] = node_paused,
    [MEMBER_EV_COMPLETE] = node_complete,   [MEMBER_EV_FAILED] = node_failed,
    [MEMBER_EV_SAVED] = node_saved,         [MEMBER_EV_LEASE] = node_lease,
    [MEMBER_EV_STORAGE] = node_storage,     [MEMBER_EV_REGROUP] = node_regroup,
    [MEMBER_EV_OUT_PROGRESS] = node_out_progress,
};

void member_node_handle(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    CHECK((size_t)e->kind < COUNT_OF(handlers));
    if (node_begin_event(n))
        handlers[e->kind](n, e, now_ms);
}
