/* balance.c - see balance.h. */
#include "daemon/balance.h"

#include <string.h>

static bool is_present(const struct balance_division *d, const struct balance_window *w)
{
    return d->n == w->n_pieces && memcmp(d->pieces, w->pieces, d->n * sizeof(*d->pieces)) == 0;
}

/* Keeps the last windows. Returns true if there are TRIAL_WINDOWS. */
static bool keep(struct balance *b, const struct balance_window *w)
{
    if (b->trial.n_windows == TRIAL_WINDOWS)
        memmove(b->seconds[0], b->seconds[1], (TRIAL_WINDOWS - 1) * sizeof(b->seconds[0]));
    trial_keep(&b->trial, w->step_seconds);
    memcpy(b->seconds[b->trial.n_windows - 1], w->seconds, w->world * sizeof(*w->seconds));
    return b->trial.n_windows == TRIAL_WINDOWS;
}

/* Seconds that a division saves in one of the windows. */
static double saving(const struct balance *b, uint32_t window, const struct balance_window *w,
                     const struct balance_division *to)
{
    const double *seconds = b->seconds[window];

    return pieces_seconds(w->pieces, w->n_pieces, w->shares, seconds, w->world, w->lanes) -
           pieces_seconds(to->pieces, to->n, w->shares, seconds, w->world, w->lanes);
}

/* Seconds of a step after the move, as predicted. Spare lanes make a step shorter than the lanes of its slowest task, so the
 * difference of two divisions can be more than a step has: a step takes at least as long as the lanes of its slowest task. */
static double predicted(const struct balance *b, const struct balance_window *w,
                        const struct balance_move *m, double saved)
{
    double least[TRIAL_WINDOWS], lanes, after = m->before - saved;

    for (uint32_t i = 0; i < TRIAL_WINDOWS; i++)
        least[i] =
            pieces_seconds(m->to.pieces, m->to.n, w->shares, b->seconds[i], w->world, w->lanes);
    lanes = trial_median(least);
    after = after > lanes ? after : lanes;
    return after < m->before ? after : m->before;
}

/* Plans a division. Returns true if it saves enough in every window. */
static bool plan(const struct balance *b, const struct balance_limits *limits,
                 const struct balance_window *w, struct balance_move *out)
{
    double seconds[PIECES_MAX_RANKS], saved[TRIAL_WINDOWS];

    for (uint32_t r = 0; r < w->world; r++)
        seconds[r] = trial_median((double[]){ b->seconds[0][r], b->seconds[1][r], b->seconds[2][r] });
    out->to.n = pieces_plan(seconds, w->world, w->lanes, w->most, out->to.pieces);
    for (uint32_t i = 0; i < TRIAL_WINDOWS; i++) {
        saved[i] = saving(b, i, w, &out->to);
        if (saved[i] < limits->gain * b->trial.step_seconds[i])
            return false;
    }
    out->returns = false;
    out->before = trial_step(&b->trial);
    out->after = predicted(b, w, out, trial_median(saved));
    return true;
}

bool balance_judge(struct balance *b, const struct balance_limits *limits,
                   const struct balance_window *w, uint64_t now_ms, struct balance_move *out)
{
    struct trial *t = &b->trial;

    if (w->world > PIECES_MAX_RANKS || w->n_pieces > GROUP_MAX_PIECES)
        return false;
    if (trial_enter(t, w->generation) && !is_present(&b->present, w))
        trial_drop(t); /* other tasks, or another leader divided the lanes */
    if (!trial_counts(t, w->steps, limits->seconds) || !keep(b, w))
        return false;
    /* If tasks have changed their speeds, a shorter step is no merit of the move. */
    if (t->is_open)
        trial_verify(t, limits->seconds, -saving(b, TRIAL_WINDOWS - 1, w, &b->former));
    if (!trial_has_waited(t, now_ms))
        return false;
    if (trial_returns(t))
        *out = (struct balance_move){
            .returns = true, .before = t->before, .after = trial_step(t), .to = b->former
        };
    else if (!plan(b, limits, w, out))
        return false;
    trial_begin(t, now_ms, out->returns, out->before, out->after);
    b->former.n = w->n_pieces;
    memcpy(b->former.pieces, w->pieces, w->n_pieces * sizeof(*w->pieces));
    b->present = out->to;
    return true;
}
