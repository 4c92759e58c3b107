/* placement.c - see placement.h. */
#include "daemon/placement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* A link with less than this part of the longest slow waits is fast, whatever its rate in so short a time. */
static const double COUNTS = 0.05;

/* ---- racks ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sets *slow and *fast to the rates at the largest gap. Returns false if none is large enough. A gap below INFINITY counts only if
 * there is no other one. */
static bool find_gap(double *rates, uint32_t n, double *slow, double *fast)
{
    double widest = PLACEMENT_GAP;
    bool found = false;

    qsort(rates, n, sizeof(*rates), ascending);
    for (uint32_t i = 1; i < n; i++) {
        bool ends = isinf(rates[i]);

        if (isinf(rates[i - 1]) || (ends && found) || (!ends && rates[i] < widest * rates[i - 1]))
            continue;
        widest = ends ? widest : rates[i] / rates[i - 1];
        *slow = rates[i - 1];
        *fast = rates[i];
        found = true;
    }
    return found;
}

/* Gives all tasks of rack `from` the number `to`. */
static void join(uint32_t *racks, uint32_t n, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < n; i++)
        racks[i] = racks[i] == from ? to : racks[i];
}

/* Numbers the racks from 0 in the order of tasks; returns their number. */
static uint32_t number(uint32_t *racks, uint32_t n)
{
    uint32_t found[PLACEMENT_MAX_TASKS], count = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;

        while (k < count && found[k] != racks[i])
            k++;
        if (k == count)
            found[count++] = racks[i];
        racks[i] = k;
    }
    return count;
}

static uint32_t one_rack(uint32_t *racks, uint32_t n)
{
    memset(racks, 0, n * sizeof(*racks));
    return 1;
}

uint32_t placement_find_racks(const double *rates, uint32_t n, uint32_t *racks, double *slow,
                              double *fast)
{
    double *list = calloc((size_t)n * n + 1, sizeof(*list));
    uint32_t count = 0, n_racks;
    bool found;

    CHECK(list != NULL && n <= PLACEMENT_MAX_TASKS);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (rates[i * n + k] > 0)
                list[count++] = rates[i * n + k];
    found = find_gap(list, count, slow, fast);
    free(list);
    if (!found)
        return one_rack(racks, n);
    for (uint32_t i = 0; i < n; i++)
        racks[i] = i;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (rates[i * n + k] >= *fast)
                join(racks, n, racks[k], racks[i]);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (rates[i * n + k] > 0 && rates[i * n + k] <= *slow && racks[i] == racks[k])
                return one_rack(racks, n); /* a single slow cable, or noise */
    n_racks = number(racks, n);
    return n_racks == n ? one_rack(racks, n) : n_racks;
}

/* ---- the saving ---- */

static const struct placement_link *link_of(const struct placement_window *w, uint32_t i,
                                            uint32_t k)
{
    return &w->links[i * w->n + k];
}

/* Keeps the rates of the links of this window. */
static void keep_rates(struct placement *p, const struct placement_window *w)
{
    double longest = 0;

    for (uint32_t i = 0; i < w->n * w->n; i++)
        longest = w->links[i].slow > longest ? w->links[i].slow : longest;
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t k = i + 1; k < w->n; k++) {
            const struct placement_link *x = link_of(w, i, k), *y = link_of(w, k, i);
            double slow = x->slow > y->slow ? x->slow : y->slow, rate = INFINITY;

            if (!x->is_used && !y->is_used)
                continue;
            if (slow > COUNTS * longest && x->rate > 0)
                rate = x->rate;
            if (slow > COUNTS * longest && y->rate > 0 && y->rate < rate)
                rate = y->rate;
            p->rates[w->ids[i]][w->ids[k]] = p->rates[w->ids[k]][w->ids[i]] = rate;
        }
}

/* Seconds of a step that are due to a slow link. While a message is in the queue of the link, its receiver counts it as late. So late
 * waits count too, but no more than slow ones: a task can also be late. */
static double wait_of(const struct placement_link *l)
{
    return l->slow + (l->late < l->slow ? l->late : l->slow);
}

/* Returns the longest time that a task waits for slow links to other racks, and the slowest of these links. */
static double cross_wait(const struct placement *p, const struct placement_window *w,
                         struct placement_move *m)
{
    double longest = 0;

    m->slow = INFINITY;
    for (uint32_t i = 0; i < w->n; i++) {
        double sum = 0;

        for (uint32_t k = 0; k < w->n; k++) {
            double rate = p->rates[w->ids[i]][w->ids[k]];

            if (m->racks[i] == m->racks[k])
                continue;
            sum += wait_of(link_of(w, i, k));
            if (rate > 0 && rate < m->slow) {
                m->slow = rate;
                m->a = w->ids[i];
                m->b = w->ids[k];
            }
        }
        longest = sum > longest ? sum : longest;
    }
    return longest;
}

static bool was_refused(const struct placement *p, const struct placement_move *m, uint32_t n)
{
    return p->has_refused && p->n_refused == n &&
           memcmp(p->refused, m->racks, n * sizeof(*m->racks)) == 0;
}

/* Plans a placement. Returns true if it saves enough of a step. */
static bool plan(const struct placement *p, const struct placement_limits *limits,
                 const struct placement_window *w, struct placement_move *m)
{
    double rates[PLACEMENT_MAX_TASKS * PLACEMENT_MAX_TASKS], slow, fast = 0, saved;

    memset(m, 0, sizeof(*m));
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t k = 0; k < w->n; k++)
            rates[i * w->n + k] = p->rates[w->ids[i]][w->ids[k]];
    m->n_racks = placement_find_racks(rates, w->n, m->racks, &slow, &fast);
    if (m->n_racks == 1 || was_refused(p, m, w->n) ||
        !w->predict(w->arg, m->racks, &m->sent_before, &m->sent_after) ||
        m->sent_after >= m->sent_before)
        return false;
    saved = cross_wait(p, w, m) * (1 - m->sent_after / m->sent_before);
    m->fast = isinf(fast) ? 0 : fast;
    m->before = w->step_seconds;
    m->after = m->before > saved ? m->before - saved : 0;
    return saved >= limits->gain * w->step_seconds;
}

/* ---- the decision ---- */

/* Counts the windows that agree. */
static void agree(struct placement *p, const struct placement_window *w, bool saves,
                  const struct placement_move *m)
{
    bool is_same = p->last.n_racks == m->n_racks &&
                   memcmp(p->last.racks, m->racks, w->n * sizeof(*m->racks)) == 0;

    p->n_agree = !saves ? 0 : is_same ? p->n_agree + 1 : 1;
    p->last = *m;
}

static bool move(struct placement *p, const struct placement_window *w, uint64_t now_ms,
                 const struct placement_move *m)
{
    if (m->returns) {
        p->has_refused = true; /* p->last are the racks of the placement that returns */
        p->n_refused = w->n;
        memcpy(p->refused, p->last.racks, w->n * sizeof(*p->refused));
    }
    p->n_agree = 0;
    trial_begin(&p->trial, now_ms, m->returns, m->before, m->after);
    return true;
}

bool placement_judge(struct placement *p, const struct placement_limits *limits,
                     const struct placement_window *w, uint64_t now_ms, struct placement_move *out)
{
    struct trial *t = &p->trial;
    struct placement_move m;
    bool is_full;
    double saved;

    if (w->n > PLACEMENT_MAX_TASKS || w->n < 3)
        return false;
    if (trial_enter(t, w->generation)) {
        p->n_agree = 0;
        if (!w->is_placed)
            trial_drop(t); /* other tasks, or the former locations returned */
    }
    if (!trial_counts(t, w->steps, limits->seconds))
        return false;
    keep_rates(p, w);
    is_full = trial_keep(t, w->step_seconds);
    if (is_full && t->is_open)
        trial_verify(t, limits->seconds, INFINITY);
    if (is_full && trial_has_waited(t, now_ms) && trial_returns(t)) {
        *out = (struct placement_move){ .returns = true, .before = t->before, .after = trial_step(t) };
        return move(p, w, now_ms, out);
    }
    if (w->is_placed && (t->is_open || t->may_return))
        return false; /* p->last are the racks on trial */
    agree(p, w, plan(p, limits, w, &m), &m);
    if (p->n_agree < TRIAL_WINDOWS || !is_full || !trial_has_waited(t, now_ms))
        return false;
    saved = m.before - m.after;
    m.before = trial_step(t);
    m.after = m.before > saved ? m.before - saved : 0;
    *out = m;
    return move(p, w, now_ms, out);
}
