/* balance.c - see balance.h. */
#include "daemon/balance.h"

#include <string.h>

static double median_of_three(double a, double b, double c)
{
    double low = a < b ? a : b, high = a < b ? b : a;

    return c < low ? low : c > high ? high : c;
}

static bool is_present(const struct balance_division *d, const struct balance_window *w)
{
    return d->n == w->n_pieces && memcmp(d->pieces, w->pieces, d->n * sizeof(*d->pieces)) == 0;
}

static void begin_generation(struct balance *b, const struct balance_window *w)
{
    b->generation = w->generation;
    b->steps = 0;
    b->n_windows = 0;
    if (is_present(&b->present, w))
        return;
    b->is_open = b->may_return = false; /* other tasks, or another leader divided the lanes */
}

/* Keeps the last BALANCE_WINDOWS windows. Returns true if there are so many. */
static bool keep(struct balance *b, const struct balance_window *w)
{
    if (b->n_windows == BALANCE_WINDOWS) {
        memmove(b->seconds[0], b->seconds[1], (BALANCE_WINDOWS - 1) * sizeof(b->seconds[0]));
        memmove(b->step_seconds, b->step_seconds + 1,
                (BALANCE_WINDOWS - 1) * sizeof(*b->step_seconds));
        b->n_windows--;
    }
    memcpy(b->seconds[b->n_windows], w->seconds, w->world * sizeof(*w->seconds));
    b->step_seconds[b->n_windows++] = w->step_seconds;
    return b->n_windows == BALANCE_WINDOWS;
}

static double median_step(const struct balance *b)
{
    return median_of_three(b->step_seconds[0], b->step_seconds[1], b->step_seconds[2]);
}

/* Seconds that a division saves in one of the windows. */
static double saving(const struct balance *b, uint32_t window, const struct balance_window *w,
                     const struct balance_division *to)
{
    const double *seconds = b->seconds[window];

    return pieces_seconds(w->pieces, w->n_pieces, w->shares, seconds, w->world, w->lanes) -
           pieces_seconds(to->pieces, to->n, w->shares, seconds, w->world, w->lanes);
}

/* Compares the last move with its prediction. If tasks have changed their speeds meanwhile, a shorter step
 * is no merit of the move: what counts is also what it saves at the present speeds. */
static void verify(struct balance *b, const struct balance_limits *limits,
                   const struct balance_window *w)
{
    double came = b->before - median_step(b),
           saved = -saving(b, BALANCE_WINDOWS - 1, w, &b->former);

    b->is_open = false;
    b->may_return = came <= 0;
    came = saved < came ? saved : came;
    if (came >= (b->before - b->after) / 2)
        b->patience = limits->seconds;
    else if (2 * b->patience < BALANCE_MAX_SECONDS)
        b->patience = b->patience > 1 ? 2 * b->patience : 2;
    else
        b->patience = BALANCE_MAX_SECONDS > limits->seconds ? BALANCE_MAX_SECONDS : limits->seconds;
}

static bool has_waited(const struct balance *b, uint64_t now_ms)
{
    return !b->has_moved ||
           (now_ms > b->moved_ms && (double)(now_ms - b->moved_ms) >= 1e3 * b->patience);
}

/* Plans a division. Returns true if it saves enough in every window. */
static bool plan(const struct balance *b, const struct balance_limits *limits,
                 const struct balance_window *w, struct balance_move *out)
{
    double seconds[PIECES_MAX_RANKS], saved[BALANCE_WINDOWS], usual;

    for (uint32_t r = 0; r < w->world; r++)
        seconds[r] = median_of_three(b->seconds[0][r], b->seconds[1][r], b->seconds[2][r]);
    out->to.n = pieces_plan(seconds, w->world, w->lanes, w->most, out->to.pieces);
    for (uint32_t i = 0; i < BALANCE_WINDOWS; i++) {
        saved[i] = saving(b, i, w, &out->to);
        if (saved[i] < limits->gain * b->step_seconds[i])
            return false;
    }
    usual = median_of_three(saved[0], saved[1], saved[2]);
    out->returns = false;
    out->before = median_step(b);
    out->after = out->before - usual > 0 ? out->before - usual : 0;
    return true;
}

static void begin_move(struct balance *b, const struct balance_window *w, uint64_t now_ms,
                       const struct balance_move *m)
{
    b->has_moved = true;
    b->moved_ms = now_ms;
    b->is_open = !m->returns;
    b->may_return = false;
    b->before = m->before;
    b->after = m->after;
    b->former.n = w->n_pieces;
    memcpy(b->former.pieces, w->pieces, w->n_pieces * sizeof(*w->pieces));
    b->present = m->to;
    b->n_windows = 0;
}

bool balance_judge(struct balance *b, const struct balance_limits *limits,
                   const struct balance_window *w, uint64_t now_ms, struct balance_move *out)
{
    bool is_early;

    if (w->world > PIECES_MAX_RANKS || w->n_pieces > GROUP_MAX_PIECES)
        return false;
    if (w->generation != b->generation)
        begin_generation(b, w);
    is_early = b->steps < BALANCE_WARM_UP;
    b->steps += w->steps;
    if (b->patience < limits->seconds)
        b->patience = limits->seconds;
    if (is_early || !keep(b, w))
        return false;
    if (b->is_open)
        verify(b, limits, w);
    if (!has_waited(b, now_ms))
        return false;
    if (b->may_return && median_step(b) >= b->before)
        *out = (struct balance_move){
            .returns = true, .before = b->before, .after = median_step(b), .to = b->former
        };
    else if (!plan(b, limits, w, out))
        return false;
    begin_move(b, w, now_ms, out);
    return true;
}
