/* sim_train.c - training: the members of a published view connect, and tasks with an older step
 * receive the state. A step then needs the contribution of all members, and each member applies it
 * a little later. If the group breaks in that window, some members have done the step and some have
 * not. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECT_LIMIT_MS = 5000,
    DATA_LIMIT_MS = 2500, /* time until the communicator gives up on a path */
    AGAIN_MS = 20,
    LEASE_AGAIN_MS = 5,
};
enum what {
    T_CONNECTED,
    T_RECEIVED,
    T_GIVES,
    T_APPLIES,
    T_ABORTED,
    T_BROKEN,
    T_PATH_DEAD,
    T_LATE,
    T_UNUSED, /* a parameter server: all training tasks have ended the generation */
};
enum news { NEWS_PAUSED, NEWS_ABORTED, NEWS_COMPLETE, NEWS_FAILED };

static struct sim_group *group(struct sim *s, uint32_t rank)
{
    return s->groups.at[s->tasks[rank].train.group];
}

static uint32_t coordinator_of(const struct sim_group *g)
{
    return g->view.members[g->view.coordinator].rank;
}

static void later(struct sim *s, uint32_t rank, uint64_t ms, enum what what, uint64_t value)
{
    const struct sim_task *t = &s->tasks[rank];

    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + ms,
                                    .kind = EV_TRAIN,
                                    .from = rank,
                                    .to = rank,
                                    .serial = t->serial,
                                    .link = t->train.run,
                                    .a = what,
                                    .b = value });
}

static void news(struct sim *s, uint32_t rank, enum news what, uint32_t peer)
{
    struct sim_task *t = &s->tasks[rank];

    t->train.is_over = true;
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + sim_random(s, 2),
                                    .kind = EV_NEWS,
                                    .from = rank,
                                    .to = rank,
                                    .serial = t->serial,
                                    .link = t->train.run,
                                    .a = what,
                                    .b = peer });
}

static void enter(struct sim *s, uint32_t rank, enum sim_phase phase)
{
    struct sim_train *t = &s->tasks[rank].train;

    t->phase = phase;
    t->since_ms = sim_clock(s, rank);
    t->place = phase <= RECEIVING ? (uint64_t)phase : 4 * s->tasks[rank].held + (uint64_t)phase;
    t->waits_for_lease = false;
}

static bool is_in(const struct sim *s, uint32_t rank, const struct sim_group *g)
{
    const struct sim_task *t = &s->tasks[rank];

    return t->node != NULL && t->train.phase != REST && s->groups.at[t->train.group] == g;
}

/* The training tasks end a generation, whether paused or complete; a parameter server ends it after
 * all of them. */
static void end_servers(struct sim *s, struct sim_group *g)
{
    for (uint32_t i = 0; i < g->view.n_members; i++)
        if (!sim_is_ps(s, g->view.members[i].rank) &&
            !s->tasks[g->view.members[i].rank].train.is_over &&
            is_in(s, g->view.members[i].rank, g))
            return;
    for (uint32_t i = 0; i < g->view.n_members; i++)
        if (sim_is_ps(s, g->view.members[i].rank) && is_in(s, g->view.members[i].rank, g))
            later(s, g->view.members[i].rank, sim_delay(s), T_UNUSED, 0);
}

/* A training task has paused or is complete. */
static void end_run(struct sim *s, uint32_t rank, enum news what)
{
    news(s, rank, what, MEMBER_NO_RANK);
    end_servers(s, group(s, rank));
}

/* ---- a group ---- */

bool sim_same_view(const struct group_view *a, const struct group_view *b)
{
    if (a->generation != b->generation || a->n_members != b->n_members ||
        a->newest_step != b->newest_step || a->newest_member != b->newest_member ||
        a->coordinator != b->coordinator)
        return false;
    for (uint32_t i = 0; i < a->n_members; i++)
        if (a->members[i].rank != b->members[i].rank || a->members[i].held != b->members[i].held ||
            a->members[i].incarnation != b->members[i].incarnation)
            return false;
    return true;
}

uint32_t sim_group_of(struct sim *s, uint32_t rank, const struct group_view *v)
{
    struct sim_group *g;

    for (size_t i = s->groups.n; i-- > 1;)
        if (sim_same_view(&s->groups.at[i]->view, v))
            return (uint32_t)i;
    g = sim_alloc(sizeof(*g));
    g->members = sim_alloc(v->n_members * sizeof(*g->members));
    memcpy(g->members, v->members, v->n_members * sizeof(*g->members));
    g->view = *v;
    g->view.members = g->members;
    for (uint32_t i = 0; i < v->n_members && v->members[i].rank < 64 * WORDS; i++)
        if (v->members[i].n_servers == 0)
            g->ranks[v->members[i].rank / 64] |= (uint64_t)1 << v->members[i].rank % 64;
    g->author = rank;
    g->author_serial = s->tasks[rank].serial;
    if (!VEC_PUSH(s->groups, g))
        abort();
    sim_judge_view(s, rank, &g->view);
    return (uint32_t)(s->groups.n - 1);
}

static void go_on(struct sim *s, uint32_t at, uint64_t ms)
{
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + ms, .kind = EV_GROUP, .link = at });
}

/* The communicator of `culprit` has ended: the other members fail, each when it notices. Whether
 * the reduction in progress completed is random. */
static void break_group(struct sim *s, struct sim_group *g, uint32_t culprit, uint64_t after_ms)
{
    if (g->is_broken)
        return;
    g->is_broken = true;
    for (uint32_t i = 0; i < g->view.n_members; i++) {
        uint32_t rank = g->view.members[i].rank;
        struct sim_train *t = &s->tasks[rank].train;

        if (rank == culprit || !is_in(s, rank, g) || t->is_over)
            continue;
        if (t->will_apply && sim_random(s, 2) == 0)
            t->will_apply = false;
        later(s, rank, after_ms + sim_delay(s) + (g->is_connected ? 0 : sim_random(s, 300)),
              T_BROKEN, culprit);
    }
}

static bool data_passes(const struct sim *s, uint32_t a, uint32_t b, enum sim_plane plane)
{
    return sim_link_passes(s, a, b, plane) && sim_link_passes(s, b, a, plane);
}

static bool all_paths_open(struct sim *s, const struct sim_group *g, uint32_t *a, uint32_t *b)
{
    for (uint32_t i = 0; i < g->view.n_members; i++) {
        *a = *b = g->view.members[i].rank;
        if (s->tasks[*a].is_off || s->tasks[*a].is_stopped)
            return false;
        for (uint32_t j = 0; j < g->view.n_members && s->n_cuts > 0; j++) {
            *b = g->view.members[j].rank;
            if (!sim_link_passes(s, *a, *b, SIM_DATA | SIM_LARGE))
                return false;
        }
    }
    return true;
}

/* Returns the members with which `rank` can exchange no data. */
static struct member_loss dead_paths_of(const struct sim *s, const struct sim_group *g,
                                        uint32_t rank)
{
    struct member_loss l = { .peer = MEMBER_NO_RANK };

    for (uint32_t i = 0; i < g->view.n_members && l.n_dead_paths < MEMBER_REACH_MAX; i++)
        if (!data_passes(s, rank, g->view.members[i].rank, SIM_DATA))
            l.dead_paths[l.n_dead_paths++] = g->view.members[i].rank;
    if (l.n_dead_paths > 0)
        l.peer = l.dead_paths[0];
    return l;
}

/* Returns true if the network, or a task whose training hangs, delays all members. */
static bool is_held_up(struct sim *s, uint32_t at)
{
    struct sim_group *g = s->groups.at[at];
    uint32_t a, b;
    bool is_found = false;

    if (all_paths_open(s, g, &a, &b)) {
        g->stuck_ms = 0;
        return false;
    }
    if (g->stuck_ms == 0)
        g->stuck_ms = s->now_ms;
    if (s->now_ms - g->stuck_ms < DATA_LIMIT_MS || a == b) {
        go_on(s, at, AGAIN_MS);
        return true;
    }
    for (uint32_t i = 0; i < g->view.n_members; i++) {
        uint32_t rank = g->view.members[i].rank;

        if (dead_paths_of(s, g, rank).n_dead_paths == 0)
            continue;
        is_found = true;
        sim_print(s, rank, "the communicator finds dead paths");
        /* another member may report the dead path only */
        later(s, rank, sim_random(s, 20), T_PATH_DEAD, MEMBER_NO_RANK);
    }
    if (!is_found) { /* large packets are lost: one path was busy, and its sender notices */
        sim_print(s, a, "the communicator lost %s", s->names[b]);
        later(s, a, sim_random(s, 20), T_PATH_DEAD, b);
    }
    return true;
}

static void connect_all(struct sim *s, uint32_t at)
{
    struct sim_group *g = s->groups.at[at];
    uint32_t first = coordinator_of(g);

    if (g->view.newest_step == 0 && s->tasks[first].storage == SIM_STORAGE_FAILS) {
        sim_train_fail(s, first, MEMBER_FAIL_LOCAL,
                       "read the newest checkpoint: input/output error");
        return;
    }
    if (g->view.newest_step == 0 && s->tasks[first].storage == SIM_STORAGE_HANGS) {
        go_on(s, at, AGAIN_MS);
        return;
    }
    g->step = g->view.newest_step > 0 ? g->view.newest_step : sim_store_newest(s, first);
    g->is_connected = true;
    for (uint32_t i = 0; i < g->view.n_members; i++)
        later(s, g->view.members[i].rank, sim_delay(s), T_CONNECTED, 0);
}

static void reduce(struct sim *s, uint32_t at)
{
    struct sim_group *g = s->groups.at[at];

    g->step++;
    g->given = 0;
    for (uint32_t i = 0; i < g->view.n_members; i++) {
        uint32_t rank = g->view.members[i].rank;

        if (sim_is_ps(s, rank))
            continue;
        s->tasks[rank].train.will_apply = true;
        later(s, rank, sim_delay(s), T_APPLIES, 2 * g->step + g->will_pause);
    }
    g->will_pause = false;
}

/* ---- a member ---- */

void sim_train_begin(struct sim *s, uint32_t rank, const struct group_view *v)
{
    struct sim_task *t = &s->tasks[rank];
    uint32_t at = sim_group_of(s, rank, v);
    struct sim_group *g = s->groups.at[at];
    bool was_stuck = t->train.is_stuck;

    if (t->train.phase != REST) {
        sim_fail_run(s, "%s is to train in generation %" PRIu64 " before it is at rest",
                     s->names[rank], v->generation);
        return;
    }
    t->train = (struct sim_train){
        .group = at, .run = t->train.run + 1, .steps = t->train.steps, .is_stuck = was_stuck
    };
    enter(s, rank, CONNECTING);
    if (t->held > v->newest_step)
        sim_fail_run(s,
                   "%s holds step %" PRIu64 ", and generation %" PRIu64
                   " would set it back to %" PRIu64,
                   s->names[rank], t->held, v->generation, v->newest_step);
    if (g->is_broken)
        later(s, rank, sim_delay(s) + sim_random(s, 300), T_BROKEN, MEMBER_NO_RANK);
    else if (++g->joined == v->n_members)
        go_on(s, at, sim_delay(s));
    later(s, rank, CONNECT_LIMIT_MS, T_LATE, 0);
}

void sim_train_pause(struct sim *s, uint32_t rank)
{
    s->tasks[rank].train.asked_pause = true;
}

void sim_train_abort_now(struct sim *s, uint32_t rank)
{
    struct sim_train *t = &s->tasks[rank].train;

    if (t->phase == REST || t->is_over || t->asked_abort)
        return;
    t->asked_abort = true;
    break_group(s, group(s, rank), rank, 0);
    if (!t->is_stuck)
        later(s, rank, sim_random(s, 4), T_ABORTED, 0);
}

void sim_train_fail(struct sim *s, uint32_t rank, enum member_failure kind, const char *text)
{
    struct sim_task *t = &s->tasks[rank];

    if (t->node == NULL || t->is_stopped || t->train.is_over)
        return;
    sim_print(s, rank, "fails: %s", text);
    if (t->train.phase == REST) {
        sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_FAILED, .failure = kind, .held = t->held, .text = text });
        sim_drain(s, rank);
        return;
    }
    t->train.failure = kind;
    t->train.loss = (struct member_loss){ .peer = MEMBER_NO_RANK };
    t->train.text = text;
    break_group(s, group(s, rank), rank, 0);
    news(s, rank, NEWS_FAILED, MEMBER_NO_RANK);
}

void sim_stuck(struct sim *s, uint32_t rank)
{
    sim_print(s, rank, "its training hangs");
    s->tasks[rank].train.is_stuck = s->tasks[rank].was_stuck = true;
}

void sim_train_process_gone(struct sim *s, uint32_t rank, bool is_silent)
{
    struct sim_task *t = &s->tasks[rank];

    if (t->train.group != 0 && t->train.phase != REST)
        break_group(s, group(s, rank), rank, is_silent ? DATA_LIMIT_MS : 0);
    t->train = (struct sim_train){ .run = t->train.run + 1 };
}

static void step_on(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    bool is_first = coordinator_of(group(s, rank)) == rank;

    if (s->opts.steps > 0 && t->held >= s->opts.steps) {
        enter(s, rank, SAVING_LAST);
        if (is_first)
            sim_store_save(s, rank, t->held, false, true);
        else
            end_run(s, rank, NEWS_COMPLETE);
        return;
    }
    if (is_first && s->opts.save_every > 0 && t->held > 0 && t->held % s->opts.save_every == 0)
        sim_store_save(s, rank, t->held, false, false);
    enter(s, rank, COMPUTING);
    later(s, rank, s->opts.step_ms * (75 + sim_random(s, 50)) / 100 + 1, T_GIVES, 0);
}

static void connected(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];

    if (sim_is_ps(s, rank)) {
        enter(s, rank, COMPUTING);
        sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_CONNECTED, .generation = group(s, rank)->view.generation });
        return;
    }
    if (t->train.phase == CONNECTING && t->held != group(s, rank)->step) {
        enter(s, rank, RECEIVING);
        t->held = 0; /* the state is being overwritten */
        later(s, rank, 1 + sim_random(s, s->opts.transfer_ms), T_RECEIVED, 0);
        return;
    }
    if (t->train.phase == RECEIVING)
        t->held = group(s, rank)->step;
    t->train.phase = COMPUTING;
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_CONNECTED, .generation = group(s, rank)->view.generation });
    step_on(s, rank);
}

/* A step needs the answers of all parameter servers. */
static bool servers_answer(const struct sim *s, const struct sim_group *g)
{
    for (uint32_t i = 0; i < g->view.n_members; i++)
        if (sim_is_ps(s, g->view.members[i].rank) &&
            s->tasks[g->view.members[i].rank].train.is_stuck)
            return false;
    return true;
}

static void gives(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    struct sim_group *g = group(s, rank);

    if (t->train.is_stuck)
        return;
    if (coordinator_of(g) == rank) {
        if (member_node_needs_lease(t->node) && !sim_store_is_held(s, rank)) {
            t->train.waits_for_lease = true;
            later(s, rank, LEASE_AGAIN_MS, T_GIVES, 0);
            return;
        }
        sim_judge_permit(s, rank, g);
    }
    enter(s, rank, GIVEN);
    g->will_pause |= t->train.asked_pause;
    if (++g->given == group_view_n_trainers(&g->view) && !g->is_broken && servers_answer(s, g) &&
        !is_held_up(s, t->train.group))
        reduce(s, t->train.group);
}

static void applies(struct sim *s, uint32_t rank, uint64_t step, bool pauses)
{
    struct sim_task *t = &s->tasks[rank];

    if (!t->train.will_apply)
        return;
    t->train.will_apply = false;
    sim_judge_apply(s, rank, step);
    t->held = step;
    t->train.steps++;
    if (t->train.asked_abort)
        return; /* the update completes nevertheless */
    if (pauses && (s->opts.steps == 0 || step < s->opts.steps))
        end_run(s, rank, NEWS_PAUSED);
    else
        step_on(s, rank);
}

static void broken(struct sim *s, uint32_t rank, enum what what, uint32_t peer)
{
    struct sim_task *t = &s->tasks[rank];

    if (t->train.asked_abort || t->train.is_stuck)
        return;
    if (t->train.will_apply) {
        later(s, rank, 1, what, peer);
        return;
    }
    t->train.failure = MEMBER_FAIL_PEER;
    t->train.loss = (struct member_loss){ .peer = peer };
    if (what == T_PATH_DEAD && peer == MEMBER_NO_RANK)
        t->train.loss = dead_paths_of(s, group(s, rank), rank);
    else if (what == T_PATH_DEAD)
        t->train.loss = (struct member_loss){ peer, { peer }, 1 };
    peer = t->train.loss.peer;
    t->train.text = what == T_PATH_DEAD ? "nothing is acknowledged" : "connection reset by peer";
    news(s, rank, NEWS_FAILED, peer);
    /* the other members receive the name of the lost peer */
    break_group(s, group(s, rank), what == T_PATH_DEAD ? peer : rank, 0);
}

static void tell_node(struct sim *s, uint32_t rank, const struct sim_event *e)
{
    struct sim_task *t = &s->tasks[rank];
    struct member_event event = { .generation = group(s, rank)->view.generation,
                                  .held = t->held,
                                  .failure = t->train.failure,
                                  .loss = &t->train.loss,
                                  .text = t->train.text };

    t->train.phase = REST;
    t->train.is_over = t->train.asked_pause = t->train.asked_abort = false;
    switch ((enum news)e->a) {
    case NEWS_PAUSED:
        sim_print(s, rank, "paused after step %" PRIu64, t->held);
        event.kind = MEMBER_EV_PAUSED;
        break;
    case NEWS_ABORTED:
        sim_print(s, rank, "aborted, holds step %" PRIu64, t->held);
        event.kind = MEMBER_EV_ABORTED;
        break;
    case NEWS_COMPLETE:
        sim_print(s, rank, "has done all steps");
        event.kind = MEMBER_EV_COMPLETE;
        break;
    case NEWS_FAILED:
        sim_print(s, rank, "training failed, holds step %" PRIu64 ": %s (%s)", t->held,
                  t->train.text, e->b == MEMBER_NO_RANK ? "no task named" : s->names[e->b]);
        event.kind = MEMBER_EV_FAILED;
        break;
    }
    sim_handle(s, rank, event);
}

void sim_train_last_saved(struct sim *s, uint32_t rank)
{
    struct sim_train *t = &s->tasks[rank].train;

    if (t->phase == SAVING_LAST && !t->is_over && !t->asked_abort) {
        s->complete_step = s->tasks[rank].held;
        sim_print(s, rank, "the last checkpoint is verified");
        end_run(s, rank, NEWS_COMPLETE);
    }
}

void sim_train_event(struct sim *s, struct sim_event *e)
{
    struct sim_train *t = &s->tasks[e->to].train;

    if (e->kind == EV_GROUP) {
        struct sim_group *g = s->groups.at[e->link];

        if (g->is_broken || is_held_up(s, e->link))
            return;
        if (!g->is_connected)
            connect_all(s, e->link);
        else if (g->given == group_view_n_trainers(&g->view))
            reduce(s, e->link);
        return;
    }
    if (e->link != t->run || t->phase == REST)
        return;
    if (e->kind == EV_NEWS) {
        tell_node(s, e->to, e);
        return;
    }
    if (t->is_over)
        return;
    switch ((enum what)e->a) {
    case T_ABORTED:
        if (t->will_apply && sim_random(s, 2) == 0) /* the update has begun and completes */
            later(s, e->to, sim_delay(s), T_ABORTED, 0);
        else
            news(s, e->to, NEWS_ABORTED, MEMBER_NO_RANK);
        return;
    case T_APPLIES:
        applies(s, e->to, e->b / 2, e->b & 1);
        return;
    case T_UNUSED:
        if (!t->asked_abort && !t->is_stuck)
            news(s, e->to, NEWS_PAUSED, MEMBER_NO_RANK);
        return;
    case T_BROKEN:
    case T_PATH_DEAD:
        broken(s, e->to, (enum what)e->a, (uint32_t)e->b);
        return;
    default:
        break;
    }
    if (t->asked_abort)
        return;
    if (e->a == T_CONNECTED || e->a == T_RECEIVED)
        connected(s, e->to);
    else if (e->a == T_GIVES)
        gives(s, e->to);
    else if (t->phase == CONNECTING) /* T_LATE */
        broken(s, e->to, T_BROKEN, MEMBER_NO_RANK);
}

void sim_train_test_paths(struct sim *s, uint32_t rank, const struct member_action *d)
{
    struct sim_event e = { .kind = EV_REACHED, .from = rank, .to = rank, .serial = s->tasks[rank].serial, .a = d->round };
    uint64_t ms = 2 * sim_delay(s);

    for (uint32_t i = 0; i < d->n_ranks; i++)
        if (!data_passes(s, rank, d->ranks[i], SIM_DATA) ||
            !sim_link_passes(s, rank, d->ranks[i], SIM_LARGE)) {
            e.tested.dead_paths[e.tested.n_dead_paths++] = d->ranks[i];
            ms = MEMBER_REACH_MS;
        }
    e.at_ms = s->now_ms + ms;
    sim_push(s, e);
}

void sim_train_tested(struct sim *s, const struct sim_event *e)
{
    sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_REACHED, .round = e->a, .loss = &e->tested });
}

void sim_train_progress(struct sim *s, uint32_t rank, struct member_progress *out)
{
    static const char *const names[] = { "", "connect", "state", "compute", "reduce", "save" };
    const struct sim_train *t = &s->tasks[rank].train;

    *out = (struct member_progress){ .held = s->tasks[rank].held,
                                     .place = t->place,
                                     .phase = names[t->phase] };
    if (t->phase != REST)
        out->phase_ms = sim_clock(s, rank) - t->since_ms;
    if (sim_is_ps(s, rank) && t->phase != REST)
        out->place = UINT64_MAX; /* it never delays a step */
    if (t->phase > RECEIVING && t->phase < SAVING_LAST && t->steps >= 3 && !t->waits_for_lease)
        out->limit_ms = 10 * s->opts.step_ms + 300;
    if (t->waits_for_lease)
        out->phase = "lease";
}
