/* trial.c - see trial.h. */
#include "daemon/trial.h"

#include <string.h>

double trial_median(const double x[TRIAL_WINDOWS])
{
    double low = x[0] < x[1] ? x[0] : x[1], high = x[0] < x[1] ? x[1] : x[0];

    return x[2] < low ? low : x[2] > high ? high : x[2];
}

bool trial_enter(struct trial *t, uint64_t generation)
{
    if (generation == t->generation)
        return false;
    t->generation = generation;
    t->steps = 0;
    t->n_windows = 0;
    return true;
}

void trial_drop(struct trial *t)
{
    t->is_open = t->may_return = false;
}

bool trial_counts(struct trial *t, uint64_t steps, double seconds)
{
    bool is_early = t->steps < TRIAL_WARM_UP;

    t->steps += steps;
    if (t->patience < seconds)
        t->patience = seconds;
    return !is_early;
}

bool trial_keep(struct trial *t, double step_seconds)
{
    if (t->n_windows == TRIAL_WINDOWS)
        memmove(t->step_seconds, t->step_seconds + 1,
                (TRIAL_WINDOWS - 1) * sizeof(*t->step_seconds));
    else
        t->n_windows++;
    t->step_seconds[t->n_windows - 1] = step_seconds;
    return t->n_windows == TRIAL_WINDOWS;
}

double trial_step(const struct trial *t)
{
    return trial_median(t->step_seconds);
}

void trial_verify(struct trial *t, double seconds, double most)
{
    double came = t->before - trial_step(t);

    t->is_open = false;
    t->may_return = came <= 0;
    if ((came < most ? came : most) >= (t->before - t->after) / 2)
        t->patience = seconds;
    else if (2 * t->patience < TRIAL_MAX_SECONDS)
        t->patience = t->patience > 1 ? 2 * t->patience : 2;
    else
        t->patience = TRIAL_MAX_SECONDS > seconds ? TRIAL_MAX_SECONDS : seconds;
}

bool trial_has_waited(const struct trial *t, uint64_t now_ms)
{
    return !t->has_changed ||
           (now_ms > t->changed_ms && (double)(now_ms - t->changed_ms) >= 1e3 * t->patience);
}

bool trial_returns(const struct trial *t)
{
    return t->may_return && trial_step(t) >= t->before;
}

void trial_begin(struct trial *t, uint64_t now_ms, bool returns, double before, double after)
{
    t->has_changed = true;
    t->changed_ms = now_ms;
    t->is_open = !returns;
    t->may_return = false;
    t->before = before;
    t->after = after;
    t->n_windows = 0;
}
