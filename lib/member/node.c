/* node.c - open, actions, ticks, deadline, and the training of this task. */
#include "member/node_priv.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* ---- life ---- */

struct member_node *member_node_new(const struct member_node_opts *o, uint64_t now_ms)
{
    struct member_node *n = calloc(1, sizeof(*n));

    CHECK(o->world > 0 && o->self < o->world && o->incarnation != 0);
    CHECK(o->min_world > 0 && o->min_world <= o->world);
    if (n == NULL)
        return NULL;
    n->world = o->world;
    n->self = o->self;
    n->n_devices = o->n_devices;
    n->min_world = o->min_world;
    n->incarnation = o->incarnation;
    n->rejoin_ms = o->rejoin_ms;
    n->deadline_ms = o->deadline_ms;
    n->grace_ms = o->grace_ms;
    n->silent_ms = o->silent_ms != 0 ? o->silent_ms : MEMBER_SILENT_MS;
    n->has_lease = o->has_lease;
    n->ident = member_ident_copy(o->ident, &n->memory);
    n->names = arena_array(&n->memory, o->world, sizeof(*n->names));
    n->addresses = arena_array(&n->memory, o->world, sizeof(*n->addresses));
    n->seats = arena_array(&n->memory, o->world, sizeof(*n->seats));
    n->peers = arena_array(&n->memory, o->world, sizeof(*n->peers));
    n->lease_members = arena_array(&n->memory, o->world, sizeof(*n->lease_members));
    n->prior = arena_array(&n->memory, o->world, sizeof(*n->prior));
    if (n->names == NULL || n->addresses == NULL || n->seats == NULL || n->peers == NULL ||
        n->lease_members == NULL || n->prior == NULL) {
        member_node_free(n);
        return NULL;
    }
    for (uint32_t i = 0; i < o->world; i++) {
        n->names[i] = arena_strdup(&n->memory, o->names[i]);
        n->addresses[i] = arena_strdup(&n->memory, o->addresses[i]);
        CHECK(n->names[i] != NULL && n->addresses[i] != NULL);
        n->peers[i].progress.phase = n->peers[i].phase;
    }
    n->out = n->prior_holder = n->heir = MEMBER_NOBODY;
    n->trouble_rank = MEMBER_NOBODY;
    n->view.newest = MEMBER_NOBODY;
    n->lease.holder = MEMBER_NOBODY;
    n->progress.phase = "";
    n->ticked_ms = n->said_ms = now_ms;
    return n;
}

void member_node_free(struct member_node *n)
{
    if (n == NULL)
        return;
    arena_fini(&n->memory);
    arena_fini(&n->event);
    free(n->actions);
    free(n);
}

/* ---- actions ---- */

bool node_begin(struct member_node *n)
{
    CHECK(n->next_action == n->n_actions);
    n->next_action = n->n_actions = 0;
    n->events++;
    if (n->event.used > 0)
        arena_fini(&n->event);
    return n->state != MEMBER_ENDED;
}

struct member_action *node_do(struct member_node *n, enum member_action_kind what)
{
    struct member_action *d;

    if (n->n_actions == n->room) {
        n->room = n->room == 0 ? 16 : 2 * n->room;
        n->actions = realloc(n->actions, n->room * sizeof(*n->actions));
        CHECK(n->actions != NULL);
    }
    d = &n->actions[n->n_actions++];
    *d = (struct member_action){ .what = what, .rank = MEMBER_NOBODY, .text = "" };
    return d;
}

bool member_node_next(struct member_node *n, struct member_action *out)
{
    if (n->next_action == n->n_actions)
        return false;
    *out = n->actions[n->next_action++];
    return true;
}

static const char *keep(struct member_node *n, const char *text)
{
    char *copy = arena_strdup(&n->event, text != NULL ? text : "");

    CHECK(copy != NULL);
    return copy;
}

static const struct member_view *keep_view(struct member_node *n, const struct member_view *v)
{
    struct member_view *copy = arena_alloc(&n->event, sizeof(*copy));
    struct member_seat *seats = arena_array(&n->event, v->n, sizeof(*seats));

    CHECK(copy != NULL && seats != NULL);
    memcpy(seats, v->seats, v->n * sizeof(*seats));
    *copy = *v;
    copy->seats = seats;
    return copy;
}

const uint32_t *node_keep_ranks(struct member_node *n, const uint32_t *ranks, uint32_t n_ranks)
{
    uint32_t *copy;

    if (n_ranks == 0)
        return NULL;
    copy = arena_array(&n->event, n_ranks, sizeof(*copy));
    CHECK(copy != NULL);
    memcpy(copy, ranks, n_ranks * sizeof(*copy));
    return copy;
}

static const struct member_msg *keep_msg(struct member_node *n, const struct member_msg *m)
{
    struct member_msg *copy = arena_alloc(&n->event, sizeof(*copy));

    CHECK(copy != NULL);
    *copy = *m;
    copy->text = keep(n, m->text);
    copy->progress.phase = keep(n, m->progress.phase);
    copy->ranks = node_keep_ranks(n, m->ranks, m->n_ranks);
    if (m->view != NULL)
        copy->view = keep_view(n, m->view);
    return copy;
}

void node_say(struct member_node *n, bool is_trouble, const char *text)
{
    struct member_action *d;

    text = keep(n, text);
    d = node_do(n, MEMBER_SAY);
    d->text = text;
    d->is_trouble = is_trouble;
}

void node_tell(struct member_node *n, const struct member_msg *m)
{
    CHECK(n->out != MEMBER_NOBODY);
    node_do(n, MEMBER_TELL)->msg = keep_msg(n, m);
}

void node_send(struct member_node *n, uint32_t rank, const struct member_msg *m)
{
    struct member_action *d;

    CHECK(n->peers[rank].is_joined && rank != n->self);
    d = node_do(n, MEMBER_SEND);
    d->rank = rank;
    d->msg = keep_msg(n, m);
}

void node_set_cause(struct member_node *n, const char *text)
{
    snprintf(n->cause, sizeof(n->cause), "%s", text);
}

uint64_t node_pause_ms(uint32_t failures)
{
    uint64_t ms = (uint64_t)MEMBER_LOOK_MS << (failures < 16 ? failures - 1 : 15);

    return ms < MEMBER_LOOK_MS_MAX ? ms : MEMBER_LOOK_MS_MAX;
}

void node_finish(struct member_node *n, int code, const char *text)
{
    struct member_action *d;

    if (n->state == MEMBER_ENDED)
        return;
    text = keep(n, text);
    node_abort(n, text);
    n->state = MEMBER_ENDED;
    if (n->lease.is_mine)
        node_do(n, MEMBER_RELEASE);
    d = node_do(n, MEMBER_END);
    d->code = code;
    d->text = text;
}

/* ---- the own training ---- */

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

void node_adopt(struct member_node *n, const struct member_view *v, const char *text, uint64_t now_ms)
{
    struct member_action *d;
    uint32_t coordinator = v->seats[member_view_coordinator(v)].rank;

    CHECK(n->rest == NODE_AT_REST && v->n <= n->world);
    text = keep(n, text);
    memmove(n->seats, v->seats, v->n * sizeof(*n->seats));
    n->view = *v;
    n->view.seats = n->seats;
    for (uint32_t i = 0; i < v->n; i++)
        if (v->seats[i].rank != n->self)
            n->peers[v->seats[i].rank].storage_failures = v->seats[i].storage_failures;
    if (v->generation > n->known)
        n->known = v->generation;
    n->is_alive = true;
    n->is_connected = n->storage_failed = false;
    n->own_dead.n = 0;
    n->rest = NODE_RUNNING;
    n->progress = (struct member_progress){ .held = n->held, .phase = "" };
    n->adopted_ms = now_ms;
    /* replaces its progress in the previous view */
    node_keep_progress(n, coordinator, &n->progress, now_ms);
    d = node_do(n, MEMBER_TRAIN);
    d->view = keep_view(n, &n->view);
    d->text = text;
    if (coordinator == n->self) {
        if (n->out != MEMBER_NOBODY)
            node_do(n, MEMBER_HANG_UP);
        n->out = MEMBER_NOBODY;
        node_coordinate(n, now_ms);
    } else if (coordinator != n->out) {
        if (n->out != MEMBER_NOBODY)
            node_do(n, MEMBER_HANG_UP);
        n->out = MEMBER_NOBODY;
        node_turn_away(n, coordinator);
        n->state = MEMBER_FOLLOWING;
        node_call(n, coordinator, true, now_ms);
    }
}

void node_abort(struct member_node *n, const char *text)
{
    n->is_alive = n->is_connected = false;
    if (n->rest != NODE_RUNNING && n->rest != NODE_PAUSING)
        return;
    n->rest = NODE_ABORTING;
    n->abort_ms = n->ticked_ms;
    text = keep(n, text);
    node_do(n, MEMBER_ABORT)->text = text;
}

void node_pause(struct member_node *n)
{
    if (n->rest != NODE_RUNNING)
        return;
    n->rest = NODE_PAUSING;
    node_do(n, MEMBER_PAUSE);
}

void node_keep_progress(struct member_node *n, uint32_t rank, const struct member_progress *p, uint64_t now_ms)
{
    struct peer *to = &n->peers[rank];

    to->progress = *p;
    snprintf(to->phase, sizeof(to->phase), "%s", p->phase != NULL ? p->phase : "");
    to->progress.phase = to->phase;
    to->progress_ms = now_ms;
}

/* Updates the state after the end of training. Returns false if the event is not of the present
 * generation, or no training was running. */
static bool comes_to_rest(struct member_node *n, const struct member_event *e)
{
    if (n->rest <= NODE_AT_REST || e->generation != n->view.generation)
        return false;
    n->rest = NODE_AT_REST;
    n->is_connected = false;
    n->held = n->progress.held = e->held;
    n->progress.phase = "";
    return true;
}

void node_rest(struct member_node *n, uint64_t now_ms)
{
    if (n->state == MEMBER_LEADING)
        node_own_rest(n, now_ms);
    else
        node_tell_ready(n);
}

/* PAUSED and ABORTED: the training has stopped and holds e->held. */
static void node_paused(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (comes_to_rest(n, e))
        node_rest(n, now_ms);
}

static void node_complete(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    bool was_alive = n->is_alive;

    if (!comes_to_rest(n, e))
        return;
    if (was_alive && n->state == MEMBER_LEADING)
        node_own_complete(n);
    else if (was_alive && n->state == MEMBER_FOLLOWING && n->out != MEMBER_NOBODY)
        node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_COMPLETE,
                                           .generation = e->generation,
                                           .held = e->held,
                                           .text = "" });
    else
        node_rest(n, now_ms);
}

static void peer_failed(struct member_node *n, const struct member_loss *loss, const char *text, uint64_t now_ms)
{
    static const struct member_loss unknown = { .peer = MEMBER_NOBODY };

    if (loss == NULL)
        loss = &unknown;
    if (n->is_alive && n->state == MEMBER_FOLLOWING && n->out != MEMBER_NOBODY)
        node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_TROUBLE,
                                           .generation = n->view.generation,
                                           .rank = loss->peer,
                                           .ranks = loss->dead_paths,
                                           .n_ranks = loss->n_dead_paths,
                                           .text = text });
    else if (n->is_alive && n->state == MEMBER_LEADING)
        node_trouble(n, n->self, loss, text, now_ms);
    node_rest(n, now_ms);
}

static void node_failed(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    enum member_failure kind = e->failure;
    bool everywhere = kind == MEMBER_FAIL_INPUT || kind == MEMBER_FAIL_STORAGE;
    const char *text;
    int code = kind == MEMBER_FAIL_INPUT || kind == MEMBER_FAIL_FILES ? 2 : 138;

    if (e->generation != 0 && !comes_to_rest(n, e))
        return;
    text = keep(n, e->text);
    if (kind == MEMBER_FAIL_PEER) {
        peer_failed(n, e->loss, text, now_ms);
        return;
    }
    text = node_print(n, "%s failed: %s", node_name(n, n->self), text);
    if (kind == MEMBER_FAIL_STORAGE && node_another_writes(n, text, now_ms))
        return;
    if (n->state == MEMBER_LEADING && everywhere)
        node_end_all(n, code, text);
    else if (n->state == MEMBER_LEADING)
        node_over(n, n->self, text, now_ms);
    else if (n->out != MEMBER_NOBODY)
        node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_LEAVE,
                                           .code = code,
                                           .is_all = everywhere,
                                           .text = text });
    node_finish(n, code, text);
}

static void node_own_reached(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    if (n->state == MEMBER_LEADING)
        node_reached(n, n->self, e->round, e->loss->dead_paths, e->loss->n_dead_paths, now_ms);
    else if (n->state == MEMBER_FOLLOWING && n->out != MEMBER_NOBODY)
        node_tell(n, &(struct member_msg){ .kind = MEMBER_MSG_REACHED,
                                           .round = e->round,
                                           .ranks = e->loss->dead_paths,
                                           .n_ranks = e->loss->n_dead_paths,
                                           .text = "" });
}

static void node_connected(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    (void)now_ms;
    if (!n->is_alive || e->generation != n->view.generation || n->rest <= NODE_AT_REST)
        return;
    n->is_connected = true;
    n->beat_ms = 0; /* sends the progress at the next tick */
}

static void take_progress(struct member_node *n, const struct member_progress *p)
{
    if (!n->is_alive || n->rest <= NODE_AT_REST)
        return;
    n->progress = *p;
    if (p->held > n->stepped) {
        n->stepped = p->held;
        n->outside_ms = 0;
        n->has_blamed = false;
    }
}

/* ---- start, stop, ticks ---- */

static void node_start(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    (void)e;
    n->ticked_ms = n->beat_ms = n->said_ms = now_ms;
    node_seek(n, now_ms);
}

static void node_opened(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    (void)e;
    if (n->rest != NODE_OPENING)
        return;
    n->rest = NODE_AT_REST;
    node_rest(n, now_ms);
}

static void node_stop(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    bool everywhere = e->everywhere;

    if (n->is_stopping && (n->stops_all || !everywhere))
        return;
    n->is_stopping = true;
    n->stops_all = n->stops_all || everywhere;
    n->stop_ms = now_ms;
    if (n->state == MEMBER_LEADING && n->phase == NODE_LIVE) {
        node_start_pause(n, node_print(n, "%s was asked to %s", node_name(n, n->self),
                                       everywhere ? "end the job" : "leave"), now_ms);
        return;
    }
    if (n->state == MEMBER_LEADING) {
        node_gather(n, now_ms);
        return;
    }
    if (n->out != MEMBER_NOBODY)
        node_tell_leave(n, 143, node_print(n, "%s was asked to %s", node_name(n, n->self),
                                           everywhere ? "end the job" : "leave"));
    if (!n->is_alive && n->rest <= NODE_AT_REST && n->held == 0 && !everywhere)
        node_finish(n, 143, "stopped before the first step");
}

static uint64_t later(uint64_t at_ms, uint64_t by_ms, uint64_t now_ms)
{
    return now_ms - at_ms > by_ms ? at_ms + by_ms : now_ms;
}

/* The clock jumped, or this process was suspended: extends the deadlines by slept_ms, so that no
 * task is blamed for messages that this process did not receive meanwhile. */
static void forgive(struct member_node *n, uint64_t slept_ms, uint64_t now_ms)
{
    n->behind = MEMBER_NOBODY;
    n->out_ms = later(n->out_ms, slept_ms, now_ms);
    n->out_heard_ms = later(n->out_heard_ms, slept_ms, now_ms);
    n->abort_ms = later(n->abort_ms, slept_ms, now_ms);
    n->adopted_ms = later(n->adopted_ms, slept_ms, now_ms);
    for (uint32_t i = 0; i < n->world; i++) {
        n->peers[i].heard_ms = later(n->peers[i].heard_ms, slept_ms, now_ms);
        n->peers[i].joined_ms = later(n->peers[i].joined_ms, slept_ms, now_ms);
    }
}

static void beat(struct member_node *n, uint64_t now_ms)
{
    struct member_msg m = { .kind = MEMBER_MSG_BEAT,
                            .generation = n->is_alive ? n->view.generation : 0,
                            .held = n->held,
                            .progress = n->progress,
                            .text = "" };

    if (now_ms - n->beat_ms < MEMBER_BEAT_MS)
        return;
    n->beat_ms = now_ms;
    if (n->state == MEMBER_LEADING)
        for (uint32_t i = 0; i < n->world; i++)
            if (n->peers[i].is_joined && i != n->self)
                node_send(n, i, &m);
    if (n->state != MEMBER_LEADING && n->out != MEMBER_NOBODY)
        node_tell(n, &m);
}

/* A view that connects has a time limit of its own: until then the watchdog names the task that
 * delays it, or the communicator reports the cause of the failure. */
static bool may_connect_yet(const struct member_node *n, uint64_t now_ms)
{
    uint64_t moved_ms = n->behind_ms > n->adopted_ms ? n->behind_ms : n->adopted_ms;

    return n->state == MEMBER_LEADING && n->phase != NODE_GATHERING &&
           now_ms - moved_ms <= n->deadline_ms + n->deadline_ms / 2;
}

bool node_time_is_up(struct member_node *n)
{
    const char *text;

    if (n->outside_ms <= n->deadline_ms)
        return false;
    text = node_print(n, "no step for %.1f s (train.deadline_seconds): %s",
                      (double)n->outside_ms / 1e3, node_missing(n));
    if (n->state == MEMBER_LEADING)
        node_end_all(n, 138, text);
    else
        node_finish(n, 138, text);
    return true;
}

static void watch_deadline(struct member_node *n, uint64_t passed_ms, uint64_t now_ms)
{
    uint32_t joined = 0;

    /* A member leaves the deadline to its leader, which decides for all tasks. */
    if ((n->is_alive && n->is_connected) || n->state == MEMBER_FOLLOWING)
        return;
    for (uint32_t i = 0; n->state == MEMBER_LEADING && i < n->world; i++)
        joined += n->peers[i].is_joined;
    if (joined == n->world && n->phase == NODE_GATHERING)
        return; /* all tasks have joined, and open model and data */
    n->outside_ms += passed_ms;
    if (!may_connect_yet(n, now_ms))
        (void)node_time_is_up(n);
}

/* Ends this process if its training does not stop. The supervisor starts the task again. */
static void watch_abort(struct member_node *n, uint64_t now_ms)
{
    bool holds_up_leavers = n->is_stopping && n->state == MEMBER_LEADING;
    uint64_t limit_ms = holds_up_leavers ? MEMBER_LEAVE_REST_MS : MEMBER_STOPPING_MS;
    const char *text;

    if (n->rest != NODE_ABORTING || now_ms - n->abort_ms < limit_ms || n->state == MEMBER_ENDED)
        return;
    text = node_print(n, "training of %s does not stop%s%s%s%s", node_name(n, n->self),
                      n->progress.phase[0] != '\0' ? ", in " : "", n->progress.phase,
                      n->cause[0] != '\0' ? "; it began with: " : "", n->cause);
    if (n->state == MEMBER_LEADING)
        node_turn_away(n, MEMBER_NOBODY);
    node_finish(n, 138, text);
}

static void node_tick(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    uint64_t passed = now_ms > n->ticked_ms ? now_ms - n->ticked_ms : 0;
    uint64_t stop_limit = 2 * n->grace_ms + MEMBER_STOPPING_MS;

    if (e->progress != NULL)
        take_progress(n, e->progress);
    n->ticked_ms = now_ms;
    if (passed > n->silent_ms) {
        n->gap_ms = passed;
        n->gap_until = now_ms + n->silent_ms;
    }
    if (passed > MEMBER_BEAT_MS) {
        forgive(n, passed - MEMBER_TICK_MS, now_ms);
        passed = MEMBER_TICK_MS;
    }
    watch_deadline(n, passed, now_ms);
    watch_abort(n, now_ms);
    if (n->state == MEMBER_SEEKING || n->state == MEMBER_FOLLOWING)
        node_drop_attaching(n, MEMBER_ATTACH_MS, now_ms);
    if (n->state == MEMBER_SEEKING)
        node_seek_tick(n, now_ms);
    else if (n->state == MEMBER_FOLLOWING)
        node_follow_tick(n, now_ms);
    if (n->state == MEMBER_LEADING)
        node_lead_tick(n, now_ms);
    if (n->is_stopping && n->state != MEMBER_ENDED && now_ms - n->stop_ms > stop_limit)
        node_finish(n, 138, node_print(n, "%s was asked to leave, and nobody released it in time: %s",
                                       node_name(n, n->self), node_missing(n)));
    if (n->state != MEMBER_ENDED)
        beat(n, now_ms);
}

/* ---- events ---- */

static node_event_fn *const handlers[] = {
    [MEMBER_EV_START] = node_start,         [MEMBER_EV_OPENED] = node_opened,
    [MEMBER_EV_TICK] = node_tick,           [MEMBER_EV_STOP] = node_stop,
    [MEMBER_EV_HEARD_IN] = node_heard_in,   [MEMBER_EV_IN_CLOSED] = node_in_closed,
    [MEMBER_EV_HEARD_OUT] = node_heard_out, [MEMBER_EV_OUT_CLOSED] = node_out_closed,
    [MEMBER_EV_HERE] = node_here,           [MEMBER_EV_NOT_HERE] = node_not_here,
    [MEMBER_EV_REACHED] = node_own_reached, [MEMBER_EV_CONNECTED] = node_connected,
    [MEMBER_EV_PAUSED] = node_paused,       [MEMBER_EV_ABORTED] = node_paused,
    [MEMBER_EV_COMPLETE] = node_complete,   [MEMBER_EV_FAILED] = node_failed,
    [MEMBER_EV_SAVED] = node_saved,         [MEMBER_EV_LEASE] = node_lease,
    [MEMBER_EV_STORAGE] = node_storage,
};

void member_node_handle(struct member_node *n, const struct member_event *e, uint64_t now_ms)
{
    CHECK((size_t)e->kind < COUNT_OF(handlers));
    if (node_begin(n))
        handlers[e->kind](n, e, now_ms);
}
