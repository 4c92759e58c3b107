/* balancer.c - see balancer.h. */
#include "daemon/balancer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "daemon/advice_priv.h"
#include "daemon/balance.h"
#include "daemon/settle.h"
#include "rdzv/rdzv.h"
#include "train/division.h"

struct balancer {
    const struct settled *s;
    struct balance state;
    double seconds[PIECES_MAX_RANKS];
    uint32_t shares[PIECES_MAX_RANKS];
    struct balance_move move;
};

struct balancer *balancer_new(const struct settled *s)
{
    struct balancer *b = calloc(1, sizeof(*b));

    CHECK(b != NULL);
    b->s = s;
    return b;
}

void balancer_free(struct balancer *b)
{
    free(b);
}

/* Sets *out to a window of all training tasks. Returns false if one has none, or has another number of
 * replicas: the limits of the lanes of a replica depend on that number. */
static bool join_windows(struct balancer *b, const struct advice_group *windows,
                         const struct group_view *v, struct balance_window *out)
{
    const struct settled *s = b->s;

    *out = (struct balance_window){ .generation = v->generation,
                                    .steps = UINT64_MAX,
                                    .seconds = b->seconds,
                                    .lanes = s->lanes.n,
                                    .most = division_max_piece(&s->train),
                                    .pieces = v->pieces,
                                    .n_pieces = v->n_pieces };
    for (uint32_t m = 0; m < v->n_members; m++) {
        const struct rdzv_window *w = windows->tasks[v->members[m].rank].window;

        if (w == NULL || w->lane_seconds <= 0 || v->members[m].n_devices != s->n_devices ||
            v->members[m].n_devices > PIECES_MAX_RANKS - out->world)
            return false;
        out->steps = w->steps < out->steps ? w->steps : out->steps;
        out->step_seconds = w->seconds > out->step_seconds ? w->seconds : out->step_seconds;
        for (uint32_t i = 0; i < v->members[m].n_devices; i++)
            b->seconds[out->world++] = w->lane_seconds;
    }
    if (out->world < 2)
        return false;
    comm_share_view(&s->lanes.tree, s->lanes.n, v, b->shares);
    out->shares = b->shares;
    return true;
}

/* Lanes of each member in a division; the caller frees the array. */
static uint32_t *lanes_of(const struct balancer *b, const struct balance_window *w,
                          const struct group_piece *pieces, uint32_t n)
{
    uint32_t *of_rank = calloc(w->world, sizeof(*of_rank)), d = b->s->n_devices;

    CHECK(of_rank != NULL);
    if (n == 0)
        memcpy(of_rank, w->shares, w->world * sizeof(*of_rank));
    for (uint32_t i = 0; i < n; i++)
        of_rank[pieces[i].rank] += pieces[i].n;
    for (uint32_t r = 0; r < w->world; r++) { /* d ranks are a member */
        uint32_t own = of_rank[r];

        of_rank[r] = 0;
        of_rank[r / d] += own;
    }
    return of_rank;
}

/* "16 .. 20", or "16" */
static void print_range(const uint32_t *lanes, uint32_t n, uint32_t except, struct buf *out)
{
    uint32_t least = UINT32_MAX, most = 0;

    for (uint32_t m = 0; m < n; m++) {
        if (m == except)
            continue;
        least = lanes[m] < least ? lanes[m] : least;
        most = lanes[m] > most ? lanes[m] : most;
    }
    buf_printf(out, "%u", least);
    if (most > least)
        buf_printf(out, " .. %u", most);
}

static void describe_lanes(const struct balancer *b, const struct balance_window *w, uint32_t slow,
                           struct buf *out)
{
    uint32_t *before = lanes_of(b, w, w->pieces, w->n_pieces),
             *after = lanes_of(b, w, b->move.to.pieces, b->move.to.n);
    uint32_t members = w->world / b->s->n_devices;

    buf_printf(out, "its lanes change from %u to %u, those of each other task from ", before[slow],
               after[slow]);
    print_range(before, members, slow, out);
    buf_str(out, " to ");
    print_range(after, members, slow, out);
    free(before);
    free(after);
}

static uint32_t slowest(const struct balancer *b, const struct balance_window *w)
{
    uint32_t slow = 0;

    for (uint32_t r = 1; r < w->world; r++)
        slow = b->seconds[r] > b->seconds[slow] ? r : slow;
    return slow / b->s->n_devices;
}

/* Which task is slow, its lanes before and after, and the predicted gain. */
static void describe(const struct balancer *b, const struct advice_group *windows,
                     const struct group_view *v, const struct balance_window *w, struct buf *out)
{
    const struct balance_move *m = &b->move;
    uint32_t slow = slowest(b, w), rank = v->members[slow].rank;
    char own[32], usual[32], before[32], after[32];

    text_duration(own, sizeof(own), (uint64_t)(1e9 * b->seconds[slow * b->s->n_devices]));
    text_duration(usual, sizeof(usual),
                  (uint64_t)(1e9 * advice_median(windows, advice_seconds_per_lane, windows)));
    text_duration(before, sizeof(before), (uint64_t)(1e9 * m->before));
    text_duration(after, sizeof(after), (uint64_t)(1e9 * m->after));
    buf_printf(out, "lanes move: %s computes a lane in %s, the median task in %s; ",
               windows->tasks[rank].name, own, usual);
    describe_lanes(b, w, slow, out);
    if (m->returns)
        buf_printf(out,
                   "; that is the former division, since a step took %s with it and takes %s now",
                   before, after);
    else
        buf_printf(out, "; a step takes %s and is predicted to take %s (%.0f %% less)", before,
                   after, 100 * (m->before - m->after) / m->before);
}

void balancer_judge(struct balancer *b, const struct advice_group *windows,
                    const struct group_view *v, struct rdzv *z)
{
    const struct balance_limits limits = { .gain = b->s->conf->elastic.balance_gain,
                                           .seconds = b->s->conf->elastic.balance_seconds };
    struct balance_window w;
    struct buf text = { 0 };

    if (!b->s->balances || !join_windows(b, windows, v, &w) ||
        !balance_judge(&b->state, &limits, &w, clock_ms(), &b->move))
        return;
    describe(b, windows, v, &w, &text);
    CHECK(!text.failed);
    rdzv_divide(z, b->move.to.pieces, b->move.to.n, text.data);
    buf_fini(&text);
}
