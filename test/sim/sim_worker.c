#include "sim/sim_priv.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- a worker's actions ---- */

void sim_exit_process(struct sim *s, uint32_t rank, int code, const char *text)
{
    struct process *p = &s->tasks[rank];

    HOLDS(s, p->is_alive && p->exit_code == SIM_RUNNING); /* a process ends once */
    p->is_alive = false;
    p->exit_code = code;
    snprintf(p->exit_text, sizeof(p->exit_text), "%s", text);
    if (code == 0) /* 0 is a promise: never before the last checkpoint is verified */
        HOLDS(s, s->is_complete);
    sim_disconnect(s, rank);
    if (rank == 0)
        sim_coordinator_down(s);
    if (s->opts.supervised && (code == 138 || code == SIM_KILLED)) {
        p->incarnation = 0; /* what is under way to it is late */
        sim_later(s, rank, AT_START, SIM_RESTART_MS);
    }
}

static void end(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];

    sim_say(s, s->names[rank], "exit %d: %s", p->code, p->text);
    sim_exit_process(s, rank, p->code, p->text);
}

static void join(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];
    struct link l = { .rank = rank, .incarnation = p->incarnation };

    if (s->coord == NULL) { /* connection refused */
        sim_step(s, rank, MEMBER_EV_COORD_LOST, 138, "connection refused");
        return;
    }
    l.coordinator = s->tasks[0].incarnation;
    if (!VEC_PUSH(s->links, l))
        abort();
    p->link = (uint32_t)s->links.n - 1;
    sim_send(s, p->link, UP_JOIN, 0, NULL);
}

/* Training needs every member of the view. */
static bool can_train(const struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++) {
        const struct process *p = &s->tasks[i];

        if (!p->is_alive || p->is_cut || p->incarnation != s->in_view[i] ||
            p->worker.state < MEMBER_ACTIVE || p->worker.state > MEMBER_LEAVING ||
            (p->worker.state == MEMBER_LEAVING && p->leave == MEMBER_LEAVE_FAILED))
            return false;
    }
    return true;
}

static void perform(struct sim *s, uint32_t rank, enum member_action act, enum member_event ev)
{
    struct process *p = &s->tasks[rank];

    switch (act) {
    case MEMBER_DO_NOTHING:
        break;
    case MEMBER_DO_JOIN:
        sim_disconnect(s, rank);
        p->link = 0;
        p->generation = 0;
        if (ev == MEMBER_EV_START)
            join(s, rank);
        else
            sim_later(s, rank, AT_RETRY, 20 + sim_below(s, 20));
        break;
    case MEMBER_DO_TRAIN:
        sim_later(s, rank, AT_JOB_DONE, s->opts.job_ms + sim_below(s, 50));
        break;
    case MEMBER_DO_DRAIN: /* agreed over the data plane: all stop at the same step */
        if (can_train(s))
            for (uint32_t i = 0; i < s->opts.world; i++)
                sim_later(s, i, AT_STOPPED, 10 + sim_below(s, 10));
        break;
    case MEMBER_DO_LEAVE:
        sim_send(s, p->link, UP_LEAVE, (int)p->leave, p->text);
        break;
    case MEMBER_DO_ABORT:
    case MEMBER_DO_END:
        end(s, rank);
        break;
    }
}

void sim_step(struct sim *s, uint32_t rank, enum member_event ev, int code, const char *text)
{
    struct process *p = &s->tasks[rank];
    bool is_parked = p->generation > 0 && p->leave != MEMBER_LEAVE_FAILED;
    bool keeps_own = p->worker.state == MEMBER_LEAVING && !is_parked;
    const struct member_move *move;
    enum member_action act;

    if (!member_ignored(p->worker.state, ev) && !keeps_own) {
        p->code = code;
        if (text != p->text)
            snprintf(p->text, sizeof(p->text), "%s", text);
    }
    act = member_worker_step(&p->worker, ev, s->now_ms, &move);
    if (move == NULL)
        return;
    if (move->from != move->to)
        sim_say(s, s->names[rank], "%s -> %s on %s", member_state_name(move->from),
                member_state_name(move->to), member_event_name(ev));
    if (act == MEMBER_DO_LEAVE)
        p->leave = ev == MEMBER_EV_COMPLETE                            ? MEMBER_LEAVE_COMPLETE
                   : ev == MEMBER_EV_STOP || ev == MEMBER_EV_STOPPED   ? MEMBER_LEAVE_STOPPED
                                                                       : MEMBER_LEAVE_FAILED;
    perform(s, rank, act, ev);
}

/* ---- events at a worker ---- */

static void start(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];

    if (p->is_alive)
        return;
    *p = (struct process){ .is_alive = true, .incarnation = ++s->next_incarnation,
                           .exit_code = SIM_RUNNING, .heard_ms = s->now_ms, .code = 138 };
    member_worker_init(&p->worker, s->now_ms);
    if (s->is_complete) { /* the newest checkpoint says so */
        if (rank == 0)
            sim_coordinator_up(s);
        sim_exit_process(s, rank, 0, "complete already");
        return;
    }
    if (rank == 0)
        sim_coordinator_up(s);
    sim_later(s, rank, AT_TICK, SIM_HEARTBEAT_MS);
    sim_later(s, rank, AT_DEADLINE, s->opts.deadline_ms);
    sim_step(s, rank, MEMBER_EV_START, 138, "");
}

static void tick(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];

    sim_later(s, rank, AT_TICK, SIM_HEARTBEAT_MS);
    if (p->worker.state == MEMBER_JOINING)
        return;
    if (s->now_ms - p->heard_ms > SIM_SILENT_MS)
        sim_step(s, rank, MEMBER_EV_COORD_LOST, 138, "the coordinator is silent");
    else
        sim_send(s, p->link, UP_BEAT, 0, NULL);
}

static void on_answer(struct sim *s, uint32_t rank, const struct event *e)
{
    struct process *p = &s->tasks[rank];

    if (e->value != 0 || p->leave == MEMBER_LEAVE_FAILED)
        sim_step(s, rank, MEMBER_EV_LEFT, p->code, p->text);
    else
        sim_step(s, rank, MEMBER_EV_GROUP_OVER, 138, e->text);
}

void sim_at_worker(struct sim *s, const struct event *e)
{
    struct process *p = &s->tasks[e->rank];

    if (e->kind == AT_START) {
        start(s, e->rank);
        return;
    }
    if (!p->is_alive || e->incarnation != p->incarnation || (e->link != 0 && e->link != p->link))
        return; /* for a former self, or from a former connection */
    if (p->is_cut && e->link != 0)
        return;
    if (e->link != 0 && e->kind != DOWN_CLOSED && e->kind != DOWN_ENDED)
        p->heard_ms = s->now_ms;
    if (p->worker.state == MEMBER_JOINING && (e->kind == DOWN_WAITING || e->kind == DOWN_VIEW))
        sim_step(s, e->rank, MEMBER_EV_ADMITTED, 0, "");
    switch (e->kind) {
    case AT_TICK:
        tick(s, e->rank);
        break;
    case AT_RETRY:
        if (p->worker.state == MEMBER_JOINING && p->link == 0)
            join(s, e->rank);
        break;
    case AT_DEADLINE:
        s->guilty[e->rank] |= p->worker.state == MEMBER_WAITING; /* its view may be under way */
        sim_step(s, e->rank, MEMBER_EV_DEADLINE, 138, "gave up");
        break;
    case AT_JOB_DONE:
        s->is_trained |= can_train(s);
        if (s->is_trained)
            sim_step(s, e->rank, MEMBER_EV_COMPLETE, 0, "the job is complete");
        break;
    case AT_STOPPED:
        if (p->worker.state == MEMBER_ACTIVE || p->worker.state == MEMBER_DRAINING)
            sim_step(s, e->rank, MEMBER_EV_STOPPED, p->worker.state == MEMBER_DRAINING ? 143 : 138,
                     "stopped");
        break;
    case DOWN_VIEW:
        HOLDS(s, p->generation == 0);
        p->generation = e->generation;
        sim_step(s, e->rank, MEMBER_EV_GROUP_READY, 0, "");
        break;
    case DOWN_OVER:
        sim_step(s, e->rank, MEMBER_EV_GROUP_OVER, 138, e->text);
        break;
    case DOWN_ENDED:
        sim_step(s, e->rank, MEMBER_EV_COORD_LOST, 138, e->text);
        break;
    case DOWN_CLOSED:
        sim_step(s, e->rank, MEMBER_EV_COORD_LOST, 138,
                 "lost the coordinator: its connection closed");
        break;
    case DOWN_ANSWER:
        on_answer(s, e->rank, e);
        break;
    case DOWN_BEAT:
        if (e->value == 0 && p->worker.state != MEMBER_LEAVING)
            sim_step(s, e->rank, MEMBER_EV_COORD_LOST, 138, "the coordinator does not know us");
        break;
    default: /* DOWN_WAITING: done above */
        break;
    }
}
