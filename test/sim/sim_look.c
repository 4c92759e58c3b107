/* sim_look.c - queries for tests, and functions that run the simulation until a condition holds. */
#include "sim/sim_priv.h"

uint64_t sim_now(const struct sim *s)
{
    return s->now_ms;
}

const struct member_node *sim_node(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].node;
}

int sim_exit_code(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].exit_code;
}

const char *sim_exit_text(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].exit_text;
}

const char *sim_last_line(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].said;
}

uint64_t sim_last_line_ms(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].said_ms;
}

uint64_t sim_held(const struct sim *s, uint32_t rank)
{
    return s->tasks[rank].held;
}

uint64_t sim_newest(const struct sim *s)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < s->opts.world; i++)
        if (s->tasks[i].node != NULL && s->tasks[i].held > newest)
            newest = s->tasks[i].held;
    return newest;
}

uint64_t sim_generation(const struct sim *s, uint32_t rank)
{
    const struct sim_task *t = &s->tasks[rank];

    return t->node != NULL && t->train.phase >= COMPUTING && !t->train.is_over
               ? s->groups.at[t->train.group]->view.generation
               : 0;
}

uint32_t sim_alive(const struct sim *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->opts.world; i++)
        n += s->tasks[i].node != NULL;
    return n;
}

bool sim_is_complete(const struct sim *s)
{
    return s->complete_step != 0;
}

bool sim_is_together(const struct sim *s, uint32_t n)
{
    uint32_t group = 0, together = 0;

    for (uint32_t i = 0; i < s->opts.world; i++) {
        if (s->tasks[i].node == NULL)
            continue;
        if (sim_generation(s, i) == 0 || (group != 0 && s->tasks[i].train.group != group))
            return false;
        group = s->tasks[i].train.group;
        together++;
    }
    return together == n && n > 0 && s->groups.at[group]->view.n_members == n &&
           !s->groups.at[group]->is_broken;
}

static bool run_until(struct sim *s, bool (*is_so)(const struct sim *s, uint64_t value),
                      uint64_t value, uint64_t limit_ms)
{
    uint64_t limit = s->now_ms + limit_ms;

    while (!s->is_broken && !is_so(s, value)) {
        if (s->heap.n == 0 || s->heap.at[0].at_ms > limit) {
            s->now_ms = limit;
            return false;
        }
        sim_advance(s, s->heap.at[0].at_ms - s->now_ms); /* processes all events of that time */
    }
    return !s->is_broken;
}

static bool is_together(const struct sim *s, uint64_t n)
{
    return sim_is_together(s, (uint32_t)n);
}

bool sim_until_together(struct sim *s, uint32_t n, uint64_t limit_ms)
{
    return run_until(s, is_together, n, limit_ms);
}

static bool is_at(const struct sim *s, uint64_t step)
{
    return sim_newest(s) >= step;
}

bool sim_until_step(struct sim *s, uint64_t step, uint64_t limit_ms)
{
    return run_until(s, is_at, step, limit_ms);
}

static bool is_ended(const struct sim *s, uint64_t unused)
{
    (void)unused;
    for (uint32_t i = 0; i < s->opts.world; i++) {
        int code = s->tasks[i].exit_code;

        if (s->tasks[i].node != NULL || code == SIM_RUNNING ||
            (s->opts.restart_ms > 0 && (code == 138 || code == SIM_KILLED) && !s->tasks[i].is_off))
            return false;
    }
    return true;
}

bool sim_until_ended(struct sim *s, uint64_t limit_ms)
{
    return run_until(s, is_ended, 0, limit_ms);
}
