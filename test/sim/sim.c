#include "sim/sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/vec.h"

enum { TEXT = 320, COORD_TICK_MS = 150, STORY_BYTES = 1 << 16 };

/* A connection of one incarnation to one coordinator. */
struct link {
    uint32_t rank, incarnation, coordinator; /* which process, on both ends */
    uint64_t up_ms, down_ms;                 /* the last arrival in each direction: order is kept */
    bool is_broken;
};

enum kind {
    /* at a worker; link 0: from itself */
    AT_START, AT_TICK, AT_RETRY, AT_DEADLINE, AT_JOB_DONE, AT_STOPPED,
    DOWN_WAITING, DOWN_VIEW, DOWN_OVER, DOWN_ENDED, DOWN_ANSWER, DOWN_BEAT, DOWN_CLOSED,
    /* at the coordinator */
    AT_COORD_TICK, UP_JOIN, UP_BEAT, UP_LEAVE, UP_CLOSED,
};

struct event {
    uint64_t at_ms, number; /* ties by number */
    enum kind kind;
    uint32_t rank, incarnation; /* of the process that it is for, 0: whichever */
    uint32_t link;
    uint64_t generation;
    int value; /* answer, kind of Leave */
    char *text;        /* owned; may be NULL */
};

struct process {
    struct member_worker worker;
    uint32_t incarnation; /* 0: never started */
    bool is_alive, is_cut;
    int exit_code;
    char exit_text[TEXT];
    uint32_t link; /* 0: none */
    uint64_t heard_ms, generation;
    enum member_leave leave;
    int code; /* what it will end with */
    char text[TEXT];
};

struct sim {
    struct sim_opts opts;
    uint64_t now_ms, number, random;
    uint32_t next_incarnation;
    struct process *tasks;
    VEC(struct event) heap;
    VEC(struct link) links; /* [0] is none */

    /* the coordinator, in the process of rank 0 */
    struct member_coord *coord;
    uint32_t *seats;           /* link of the present Join, by rank */
    uint32_t *parked;          /* link of the Leave, by rank */
    uint32_t *in_view;         /* incarnations of the last view, by rank */
    uint32_t joining;          /* link of the Join that is being decided */
    bool *guilty;              /* something did happen to this task */
    bool is_trained;           /* the last step of this generation was made, by all at once */
    bool is_complete;          /* and the coordinator said so: the checkpoint is verified */

    char (*names)[16], (*addresses)[24];
    struct buf story;
};

static void step(struct sim *s, uint32_t rank, enum member_event ev, int code, const char *text);

/* ---- the tale ---- */

__attribute__((format(printf, 3, 4)))
static void say(struct sim *s, const char *who, const char *fmt, ...)
{
    va_list ap;

    if (s->story.len > STORY_BYTES)
        return;
    buf_printf(&s->story, "[%" PRIu64 "] %-8s > ", s->now_ms, who);
    va_start(ap, fmt);
    buf_vprintf(&s->story, fmt, ap);
    va_end(ap);
    buf_str(&s->story, "\n");
}

#define HOLDS(s_, cond_) ((cond_) ? (void)0 : broken(s_, #cond_, __LINE__))
static void broken(struct sim *s, const char *what, int line)
{
    fprintf(stderr, "%s\nsim.c:%d: seed %" PRIu64 ", world %u: does not hold: %s\n", sim_story(s), line,
            s->opts.seed, s->opts.world, what);
    abort();
}

/* ---- chance and time ---- */

static uint64_t below(struct sim *s, uint64_t n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return n > 0 ? (s->random >> 11) % n : 0;
}

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->number < b->number;
}

static void push(struct sim *s, struct event e)
{
    size_t i;

    e.number = ++s->number;
    if (!VEC_PUSH(s->heap, e))
        abort();
    for (i = s->heap.n - 1; i > 0 && is_before(&e, &s->heap.at[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap.at[i] = s->heap.at[(i - 1) / 2];
    s->heap.at[i] = e;
}

static struct event pop(struct sim *s)
{
    struct event top = s->heap.at[0], last = s->heap.at[--s->heap.n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < s->heap.n) {
        if (child + 1 < s->heap.n && is_before(&s->heap.at[child + 1], &s->heap.at[child]))
            child++;
        if (!is_before(&s->heap.at[child], &last))
            break;
        s->heap.at[i] = s->heap.at[child];
        i = child;
    }
    if (s->heap.n > 0)
        s->heap.at[i] = last;
    return top;
}

static void later(struct sim *s, uint32_t rank, enum kind kind, uint64_t ms)
{
    push(s, (struct event){ .at_ms = s->now_ms + ms, .kind = kind, .rank = rank,
                            .incarnation = s->tasks[rank].incarnation });
}

/* ---- links ---- */

static bool is_coordinator_up(const struct sim *s)
{
    return s->coord != NULL;
}

static uint64_t coordinator_generation(const struct sim *s)
{
    return s->coord != NULL ? member_coord_generation(s->coord) : 0;
}

static void send(struct sim *s, uint32_t at, enum kind kind, int value, const char *text)
{
    struct link *l = &s->links.at[at];
    bool up = kind >= UP_JOIN;
    uint64_t *last = up ? &l->up_ms : &l->down_ms;
    uint64_t delay_ms = 1 + below(s, s->opts.delay_ms);

    if (at == 0 || l->is_broken || s->tasks[l->rank].is_cut)
        return;
    /* What a worker says carries the generation that it knows; a view, that of the coordinator. */
    *last = s->now_ms + delay_ms > *last ? s->now_ms + delay_ms : *last;
    push(s, (struct event){ .at_ms = *last, .kind = kind, .rank = up ? 0 : l->rank,
                            .incarnation = up ? l->coordinator : l->incarnation, .link = at,
                            
                            .generation = up ? s->tasks[l->rank].generation : coordinator_generation(s),
                            .value = value,
                            .text = text != NULL ? strdup(text) : NULL });
    if (s->opts.break_one_in > 0 && below(s, s->opts.break_one_in) == 0)
        sim_disconnect(s, l->rank);
}

/* Both ends hear of it, behind what is under way. */
static void break_link(struct sim *s, uint32_t at)
{
    if (at == 0 || s->links.at[at].is_broken)
        return;
    send(s, at, UP_CLOSED, 0, NULL);
    send(s, at, DOWN_CLOSED, 0, NULL);
    s->links.at[at].is_broken = true;
}

void sim_disconnect(struct sim *s, uint32_t rank)
{
    uint32_t at = s->tasks[rank].link, chance = s->opts.break_one_in;

    s->guilty[rank] = true;
    s->opts.break_one_in = 0; /* the news of it arrives */
    break_link(s, at);
    s->opts.break_one_in = chance;
}

/* ---- the coordinator ---- */

static const uint8_t *bytes(uint32_t incarnation)
{
    static uint8_t out[MEMBER_INCARNATION_BYTES];

    memcpy(out, &incarnation, sizeof(incarnation));
    return out;
}

static const struct member_ident ident = { "1", "job", "hash", "cluster", "cpu", "kernels", "" };

static void coordinator_up(struct sim *s)
{
    const char **names = calloc(s->opts.world, sizeof(*names));
    const char **addresses = calloc(s->opts.world, sizeof(*addresses));

    if (names == NULL || addresses == NULL)
        abort();
    for (uint32_t i = 0; i < s->opts.world; i++) {
        names[i] = s->names[i];
        addresses[i] = s->addresses[i];
        s->seats[i] = s->parked[i] = s->in_view[i] = 0;
        s->guilty[i] = s->tasks[i].is_cut;
    }
    s->coord = member_coord_new(&(struct member_coord_opts){ .world = s->opts.world,
                                                             .names = names,
                                                             .addresses = addresses,
                                                             .silent_ms = SIM_SILENT_MS,
                                                             .ident = &ident,
                                                             .n_devices = 1 },
                                s->now_ms);
    later(s, 0, AT_COORD_TICK, COORD_TICK_MS);
    free(names);
    free(addresses);
}

static void coordinator_down(struct sim *s)
{
    for (uint32_t i = 1; i < s->links.n; i++)
        if (s->links.at[i].coordinator == s->tasks[0].incarnation && !s->links.at[i].is_broken)
            break_link(s, i);
    member_coord_free(s->coord);
    s->coord = NULL;
}

static void publish_view(struct sim *s, const struct member_order *o)
{
    s->is_trained = false;
    say(s, "coord", "generation %" PRIu64 ": %u tasks", o->generation, s->opts.world);
    for (uint32_t i = 0; i < s->opts.world; i++) {
        HOLDS(s, member_coord_task(s->coord, i)->state == MEMBER_TASK_ACTIVE);
        HOLDS(s, s->seats[i] != 0);
        s->in_view[i] = s->links.at[s->seats[i]].incarnation;
        send(s, s->seats[i], DOWN_VIEW, 0, NULL);
    }
}

static void announce_over(struct sim *s, const struct member_order *o)
{
    say(s, "coord", "over: %s", o->text);
    HOLDS(s, o->culprit < s->opts.world && s->guilty[o->culprit]); /* nobody is blamed for nothing */
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (member_coord_task(s->coord, i)->state == MEMBER_TASK_ACTIVE || i == o->culprit)
            send(s, s->seats[i], DOWN_OVER, 0, o->text);
}

static void perform_orders(struct sim *s)
{
    struct member_order o;

    while (member_coord_next(s->coord, &o)) {
        switch (o.kind) {
        case MEMBER_ORDER_ADMIT:
            HOLDS(s, s->seats[o.rank] == 0 && s->joining != 0);
            s->seats[o.rank] = s->joining;
            send(s, s->joining, DOWN_WAITING, 0, NULL);
            s->joining = 0;
            break;
        case MEMBER_ORDER_REFUSE:
            HOLDS(s, false); /* all agree here */
            break;
        case MEMBER_ORDER_RETRY:
            send(s, s->joining, DOWN_ENDED, 0, o.text);
            s->joining = 0;
            break;
        case MEMBER_ORDER_VIEW:
            publish_view(s, &o);
            break;
        case MEMBER_ORDER_OVER:
            announce_over(s, &o);
            break;
        case MEMBER_ORDER_DROP:
            send(s, s->seats[o.rank], DOWN_ENDED, 0, o.text);
            s->seats[o.rank] = 0;
            break;
        case MEMBER_ORDER_RELEASE:
            HOLDS(s, s->parked[o.rank] != 0); /* it did ask */
            send(s, s->parked[o.rank], DOWN_ANSWER, o.complete, o.text);
            s->parked[o.rank] = 0;
            break;
        }
    }
}

static void at_coordinator(struct sim *s, const struct event *e)
{
    const struct link *l = &s->links.at[e->link];
    const uint8_t *inc = bytes(l->incarnation);

    if (!is_coordinator_up(s) || e->incarnation != s->tasks[0].incarnation)
        return; /* it has died meanwhile */
    if (e->kind == AT_COORD_TICK) {
        member_coord_tick(s->coord, s->now_ms);
        later(s, 0, AT_COORD_TICK, COORD_TICK_MS);
    } else if (e->kind == UP_JOIN) {
        struct member_join j = { .rank = l->rank, .ident = ident, .n_devices = 1 };

        memcpy(j.incarnation, inc, sizeof(j.incarnation));
        s->joining = e->link;
        member_coord_join(s->coord, &j, s->now_ms);
    } else if (e->kind == UP_BEAT) {
        struct member_beat b = { .rank = l->rank, .phase = "train" };
        bool known;

        memcpy(b.incarnation, inc, sizeof(b.incarnation));
        known = member_coord_beat(s->coord, &b, s->now_ms);
        send(s, e->link, DOWN_BEAT, known, NULL);
    } else if (e->kind == UP_LEAVE) {
        const struct member_task *t = member_coord_task(s->coord, l->rank);

        if (t->state == MEMBER_TASK_MISSING || memcmp(t->incarnation, inc, sizeof(t->incarnation)) != 0) {
            send(s, e->link, DOWN_ANSWER, true, NULL);
            return;
        }
        s->parked[l->rank] = e->link;
        if (l->rank == 0 && t->state == MEMBER_TASK_ACTIVE && e->value != MEMBER_LEAVE_FAILED &&
            member_coord_running(s->coord))
            s->is_complete |= e->value == MEMBER_LEAVE_COMPLETE;
        member_coord_leave(s->coord, l->rank, inc, e->generation, e->value, 0, e->text, s->now_ms);
    } else if (s->seats[l->rank] == e->link) { /* UP_CLOSED of the present stream */
        s->seats[l->rank] = 0;
        s->parked[l->rank] = s->parked[l->rank] == e->link ? 0 : s->parked[l->rank];
        member_coord_closed(s->coord, l->rank, inc, "", s->now_ms);
    }
    perform_orders(s);
    HOLDS(s, s->joining == 0); /* every Join is decided at once */
}

/* ---- a worker's actions ---- */

static void exit_process(struct sim *s, uint32_t rank, int code, const char *text)
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
        coordinator_down(s);
    if (s->opts.supervised && (code == 138 || code == SIM_KILLED)) {
        p->incarnation = 0; /* what is under way to it is late */
        later(s, rank, AT_START, SIM_RESTART_MS);
    }
}

static void end(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];

    say(s, s->names[rank], "exit %d: %s", p->code, p->text);
    exit_process(s, rank, p->code, p->text);
}

static void join(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];
    struct link l = { .rank = rank, .incarnation = p->incarnation };

    if (!is_coordinator_up(s)) { /* connection refused */
        step(s, rank, MEMBER_EV_COORD_LOST, 138, "connection refused");
        return;
    }
    l.coordinator = s->tasks[0].incarnation;
    if (!VEC_PUSH(s->links, l))
        abort();
    p->link = (uint32_t)s->links.n - 1;
    send(s, p->link, UP_JOIN, 0, NULL);
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
            later(s, rank, AT_RETRY, 20 + below(s, 20));
        break;
    case MEMBER_DO_TRAIN:
        later(s, rank, AT_JOB_DONE, s->opts.job_ms + below(s, 50));
        break;
    case MEMBER_DO_DRAIN: /* agreed over the data plane: all stop at the same step */
        if (can_train(s))
            for (uint32_t i = 0; i < s->opts.world; i++)
                later(s, i, AT_STOPPED, 10 + below(s, 10));
        break;
    case MEMBER_DO_LEAVE:
        send(s, p->link, UP_LEAVE, (int)p->leave, p->text);
        break;
    case MEMBER_DO_ABORT:
    case MEMBER_DO_END:
        end(s, rank);
        break;
    }
}

static void step(struct sim *s, uint32_t rank, enum member_event ev, int code, const char *text)
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
        say(s, s->names[rank], "%s -> %s on %s", member_state_name(move->from), member_state_name(move->to),
            member_event_name(ev));
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
            coordinator_up(s);
        exit_process(s, rank, 0, "complete already");
        return;
    }
    if (rank == 0)
        coordinator_up(s);
    later(s, rank, AT_TICK, SIM_HEARTBEAT_MS);
    later(s, rank, AT_DEADLINE, s->opts.deadline_ms);
    step(s, rank, MEMBER_EV_START, 138, "");
}

static void tick(struct sim *s, uint32_t rank)
{
    struct process *p = &s->tasks[rank];

    later(s, rank, AT_TICK, SIM_HEARTBEAT_MS);
    if (p->worker.state == MEMBER_JOINING)
        return;
    if (s->now_ms - p->heard_ms > SIM_SILENT_MS)
        step(s, rank, MEMBER_EV_COORD_LOST, 138, "the coordinator is silent");
    else
        send(s, p->link, UP_BEAT, 0, NULL);
}

static void on_answer(struct sim *s, uint32_t rank, const struct event *e)
{
    struct process *p = &s->tasks[rank];

    if (e->value != 0 || p->leave == MEMBER_LEAVE_FAILED)
        step(s, rank, MEMBER_EV_LEFT, p->code, p->text);
    else
        step(s, rank, MEMBER_EV_GROUP_OVER, 138, e->text);
}

static void at_worker(struct sim *s, const struct event *e)
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
        step(s, e->rank, MEMBER_EV_ADMITTED, 0, "");
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
        step(s, e->rank, MEMBER_EV_DEADLINE, 138, "gave up");
        break;
    case AT_JOB_DONE:
        s->is_trained |= can_train(s);
        if (s->is_trained)
            step(s, e->rank, MEMBER_EV_COMPLETE, 0, "the job is complete");
        break;
    case AT_STOPPED:
        if (p->worker.state == MEMBER_ACTIVE || p->worker.state == MEMBER_DRAINING)
            step(s, e->rank, MEMBER_EV_STOPPED, p->worker.state == MEMBER_DRAINING ? 143 : 138, "stopped");
        break;
    case DOWN_VIEW:
        HOLDS(s, p->generation == 0);
        p->generation = e->generation;
        step(s, e->rank, MEMBER_EV_GROUP_READY, 0, "");
        break;
    case DOWN_OVER:
        step(s, e->rank, MEMBER_EV_GROUP_OVER, 138, e->text);
        break;
    case DOWN_ENDED:
        step(s, e->rank, MEMBER_EV_COORD_LOST, 138, e->text);
        break;
    case DOWN_CLOSED:
        step(s, e->rank, MEMBER_EV_COORD_LOST, 138, "lost the coordinator: its connection closed");
        break;
    case DOWN_ANSWER:
        on_answer(s, e->rank, e);
        break;
    case DOWN_BEAT:
        if (e->value == 0 && p->worker.state != MEMBER_LEAVING)
            step(s, e->rank, MEMBER_EV_COORD_LOST, 138, "the coordinator does not know us");
        break;
    default: /* DOWN_WAITING: done above */
        break;
    }
}

/* What must be true of a task whenever nothing is being done. */
static void check(struct sim *s, uint32_t rank)
{
    const struct process *p = &s->tasks[rank];
    bool trains = p->worker.state == MEMBER_ACTIVE || p->worker.state == MEMBER_DRAINING;

    if (!p->is_alive)
        return;
    HOLDS(s, p->worker.state != MEMBER_GONE); /* gone is out of the process */
    HOLDS(s, !trains || p->generation > 0);
    if (trains && is_coordinator_up(s) && s->links.at[p->link].coordinator == s->tasks[0].incarnation) {
        HOLDS(s, p->generation == member_coord_generation(s->coord));
        HOLDS(s, s->in_view[rank] == p->incarnation); /* a view is of those who joined, not of former selves */
    }
    if (p->worker.state == MEMBER_JOINING || p->worker.state == MEMBER_WAITING)
        HOLDS(s, s->now_ms - p->worker.since_ms <= s->opts.deadline_ms);
}

static void check_coordinator(struct sim *s)
{
    uint32_t present = 0, missing = 0;

    if (!is_coordinator_up(s))
        return;
    for (uint32_t i = 0; i < s->opts.world; i++) {
        enum member_task_state state = member_coord_task(s->coord, i)->state;

        present += state == MEMBER_TASK_JOINED || state == MEMBER_TASK_ACTIVE;
        missing += state == MEMBER_TASK_MISSING;
    }
    HOLDS(s, present == member_coord_present(s->coord));
    HOLDS(s, missing == 0 || member_coord_generation(s->coord) == 0);
    HOLDS(s, present < s->opts.world || member_coord_generation(s->coord) > 0);
}

static void run_one(struct sim *s)
{
    struct event e = pop(s);

    s->now_ms = e.at_ms;
    if (e.kind >= AT_COORD_TICK)
        at_coordinator(s, &e);
    else
        at_worker(s, &e);
    check(s, e.kind >= AT_COORD_TICK ? s->links.at[e.link].rank : e.rank);
    if (s->opts.world <= 16 || e.kind == AT_COORD_TICK)
        check_coordinator(s);
    free(e.text);
}

/* ---- the outside ---- */

struct sim *sim_new(const struct sim_opts *opts)
{
    struct sim *s = calloc(1, sizeof(*s));

    if (s == NULL)
        abort();
    s->opts = *opts;
    s->random = (opts->seed + 1) * 0x9e3779b97f4a7c15u;
    s->tasks = calloc(opts->world, sizeof(*s->tasks));
    s->seats = calloc(opts->world, sizeof(*s->seats));
    s->parked = calloc(opts->world, sizeof(*s->parked));
    s->in_view = calloc(opts->world, sizeof(*s->in_view));
    s->guilty = calloc(opts->world, sizeof(*s->guilty));
    s->names = calloc(opts->world, sizeof(*s->names));
    s->addresses = calloc(opts->world, sizeof(*s->addresses));
    if (!s->tasks || !s->seats || !s->parked || !s->in_view || !s->guilty || !s->names || !s->addresses ||
        !VEC_PUSH(s->links, (struct link){ .is_broken = true }))
        abort();
    for (uint32_t i = 0; i < opts->world; i++) {
        snprintf(s->names[i], sizeof(s->names[i]), "worker %u", i % 100000);
        snprintf(s->addresses[i], sizeof(s->addresses[i]), "10.0.%u.%u:1", i / 256 % 256, i % 256);
        s->tasks[i].exit_code = SIM_RUNNING; /* or is about to */
        if (i < opts->world - opts->n_absent)
            later(s, i, AT_START, below(s, opts->start_ms + 1));
    }
    return s;
}

void sim_free(struct sim *s)
{
    for (size_t i = 0; i < s->heap.n; i++)
        free(s->heap.at[i].text);
    VEC_FINI(s->heap);
    VEC_FINI(s->links);
    member_coord_free(s->coord);
    buf_fini(&s->story);
    free(s->tasks);
    free(s->seats);
    free(s->parked);
    free(s->in_view);
    free(s->guilty);
    free(s->names);
    free(s->addresses);
    free(s);
}

void sim_advance_ms(struct sim *s, uint64_t ms)
{
    uint64_t until_ms = s->now_ms + ms;

    while (s->heap.n > 0 && s->heap.at[0].at_ms <= until_ms)
        run_one(s);
    s->now_ms = until_ms;
}

static bool are_active(const struct sim *s)
{
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (!s->tasks[i].is_alive || s->tasks[i].worker.state != MEMBER_ACTIVE)
            return false;
    return true;
}

void sim_run_until_active(struct sim *s)
{
    uint64_t limit_ms = s->now_ms + 60000;

    while (!are_active(s)) {
        HOLDS(s, s->heap.n > 0 && s->now_ms < limit_ms);
        run_one(s);
        while (s->heap.n > 0 && s->heap.at[0].at_ms == s->now_ms)
            run_one(s); /* are_active() looks at all: once a millisecond is enough */
    }
}

bool sim_run_to_the_end(struct sim *s, uint64_t ms)
{
    uint64_t limit_ms = s->now_ms + ms;

    for (;;) {
        bool any = false;

        for (uint32_t i = 0; i < s->opts.world && !any; i++) {
            int code = s->tasks[i].exit_code;

            any = code == SIM_RUNNING || (s->opts.supervised && code != 0 && code != 143);
        }
        if (!any)
            return true;
        if (s->now_ms >= limit_ms)
            return false;
        sim_advance_ms(s, 10);
    }
}

void sim_start(struct sim *s, uint32_t rank)
{
    later(s, rank, AT_START, 0);
}

void sim_kill(struct sim *s, uint32_t rank)
{
    if (!s->tasks[rank].is_alive)
        return;
    say(s, s->names[rank], "killed");
    s->guilty[rank] = true;
    exit_process(s, rank, SIM_KILLED, "killed");
}

void sim_cut(struct sim *s, uint32_t rank)
{
    say(s, s->names[rank], "cut off");
    s->guilty[rank] = true;
    s->tasks[rank].is_cut = true;
}

void sim_stop(struct sim *s, uint32_t rank)
{
    s->guilty[rank] |= s->tasks[rank].worker.state == MEMBER_WAITING; /* its view may be under way */
    if (s->tasks[rank].is_alive)
        step(s, rank, MEMBER_EV_STOP, 143, "stopped before training began");
}

void sim_fail(struct sim *s, uint32_t rank, const char *reason)
{
    s->guilty[rank] = true;
    if (s->tasks[rank].is_alive)
        step(s, rank, MEMBER_EV_FAILED, 138, reason);
}

uint64_t sim_now_ms(const struct sim *s)
{
    return s->now_ms;
}

enum member_state sim_state(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].worker.state;
}

int sim_exit_code(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].exit_code;
}

const char *sim_exit_text(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].exit_text;
}

uint64_t sim_generation(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].generation;
}

bool sim_is_complete(const struct sim *s)
{
    return s->is_complete;
}

const char *sim_story(const struct sim *s)
{
    return s->story.data != NULL ? s->story.data : "";
}

void sim_forget(struct sim *s)
{
    buf_reset(&s->story);
    if (s->story.data != NULL)
        s->story.data[0] = '\0';
}
