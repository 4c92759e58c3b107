#include "sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

#include "sim/sim_priv.h"

/* What must be true of a task whenever nothing is being done. */
static void check(struct sim *s, uint32_t rank)
{
    const struct process *p = &s->tasks[rank];
    bool trains = p->worker.state == MEMBER_ACTIVE || p->worker.state == MEMBER_DRAINING;

    if (!p->is_alive)
        return;
    HOLDS(s, p->worker.state != MEMBER_GONE); /* gone is out of the process */
    HOLDS(s, !trains || p->generation > 0);
    if (trains && s->coord != NULL && s->links.at[p->link].coordinator == s->tasks[0].incarnation) {
        HOLDS(s, p->generation == member_coord_generation(s->coord));
        HOLDS(s, s->in_view[rank] ==
                     p->incarnation); /* a view is of those who joined, not of former selves */
    }
    if (p->worker.state == MEMBER_JOINING || p->worker.state == MEMBER_WAITING)
        HOLDS(s, s->now_ms - p->worker.since_ms <= s->opts.deadline_ms);
}

static void check_coordinator(struct sim *s)
{
    uint32_t present = 0, missing = 0;

    if (s->coord == NULL)
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
    struct event e = sim_pop(s);

    s->now_ms = e.at_ms;
    if (e.kind >= AT_COORD_TICK)
        sim_at_coordinator(s, &e);
    else
        sim_at_worker(s, &e);
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
    if (!s->tasks || !s->seats || !s->parked || !s->in_view || !s->guilty || !s->names ||
        !s->addresses || !VEC_PUSH(s->links, (struct link){ .is_broken = true }))
        abort();
    for (uint32_t i = 0; i < opts->world; i++) {
        snprintf(s->names[i], sizeof(s->names[i]), "worker %u", i % 100000);
        snprintf(s->addresses[i], sizeof(s->addresses[i]), "10.0.%u.%u:1", i / 256 % 256, i % 256);
        s->tasks[i].exit_code = SIM_RUNNING; /* or is about to */
        if (i < opts->world - opts->n_absent)
            sim_later(s, i, AT_START, sim_below(s, opts->start_ms + 1));
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
    sim_later(s, rank, AT_START, 0);
}

void sim_kill(struct sim *s, uint32_t rank)
{
    if (!s->tasks[rank].is_alive)
        return;
    sim_say(s, s->names[rank], "killed");
    s->guilty[rank] = true;
    sim_exit_process(s, rank, SIM_KILLED, "killed");
}

void sim_cut(struct sim *s, uint32_t rank)
{
    sim_say(s, s->names[rank], "cut off");
    s->guilty[rank] = true;
    s->tasks[rank].is_cut = true;
}

void sim_stop(struct sim *s, uint32_t rank)
{
    s->guilty[rank] |=
        s->tasks[rank].worker.state == MEMBER_WAITING; /* its view may be under way */
    if (s->tasks[rank].is_alive)
        sim_step(s, rank, MEMBER_EV_STOP, 143, "stopped before training began");
}

void sim_fail(struct sim *s, uint32_t rank, const char *reason)
{
    s->guilty[rank] = true;
    if (s->tasks[rank].is_alive)
        sim_step(s, rank, MEMBER_EV_FAILED, 138, reason);
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
