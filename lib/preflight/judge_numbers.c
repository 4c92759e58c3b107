/* judge_numbers.c - numbers of a table, and the list of findings; what the other files of the judge
 * share. */
#include "preflight/judge_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"

void judge_add(struct judged *j, enum preflight_severity severity, const char *what, uint32_t task,
               uint32_t other, const char *remedy, const char *fmt, ...)
{
    struct preflight_finding f = { .severity = severity, .what = what, .task = task, .other = other };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(f.text, sizeof(f.text), fmt, ap);
    va_end(ap);
    snprintf(f.remedy, sizeof(f.remedy), "%s", remedy);
    if (!VEC_PUSH(j->found, f))
        j->failed = true;
}

const struct preflight_entry *judge_entry(const struct preflight_table *t, uint32_t from,
                                          uint32_t to)
{
    return t->rows[from].present ? &t->rows[from].entries[to] : NULL;
}

int judge_clocks(const struct preflight_table *t, int64_t *us, struct err *err)
{
    uint32_t *queue = calloc(t->world + 1u, sizeof(*queue)), n = 0;

    if (queue == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->world; i++) {
        us[i] = INT64_MIN;
        if (n == 0 && t->rows[i].present) {
            us[i] = 0;
            queue[n++] = i;
        }
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t to = 0; to < t->world; to++) {
            const struct preflight_entry *there = judge_entry(t, queue[k], to);
            const struct preflight_entry *back = judge_entry(t, to, queue[k]);

            if (us[to] != INT64_MIN)
                continue;
            if (there != NULL && there->rtt_us > 0)
                us[to] = us[queue[k]] + there->skew_us;
            else if (back != NULL && back->rtt_us > 0)
                us[to] = us[queue[k]] - back->skew_us;
            else
                continue;
            queue[n++] = to;
        }
    free(queue);
    return 0;
}

static uint32_t pair_rtt(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    const struct preflight_entry *x = judge_entry(t, a, b), *y = judge_entry(t, b, a);
    uint32_t p = x != NULL ? x->rtt_us : 0, q = y != NULL ? y->rtt_us : 0;

    return p > q ? p : q;
}

static uint64_t pair_rate(const struct preflight_table *t, uint32_t a, uint32_t b)
{
    const struct preflight_entry *x = judge_entry(t, a, b), *y = judge_entry(t, b, a);
    uint64_t p = x != NULL ? x->rate : 0, q = y != NULL ? y->rate : 0;

    return p == 0 || (q > 0 && q < p) ? q : p;
}

uint32_t judge_best_rtt(const struct preflight_table *t, uint32_t task)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < t->world; i++) {
        uint32_t us = i != task ? pair_rtt(t, task, i) : 0;

        if (us > 0 && (best == 0 || us < best))
            best = us;
    }
    return best;
}

uint64_t judge_best_rate(const struct preflight_table *t, uint32_t task)
{
    uint64_t best = 0;

    for (uint32_t i = 0; i < t->world; i++) {
        uint64_t rate = i != task ? pair_rate(t, task, i) : 0;

        if (rate > best)
            best = rate;
    }
    return best;
}

uint64_t judge_slowest(const struct preflight_table *t)
{
    uint64_t slowest = 0;

    for (uint32_t i = 0; i < t->world; i++)
        for (uint32_t k = 0; k < t->world; k++) {
            const struct preflight_entry *e = judge_entry(t, i, k);

            if (e != NULL && i != k && e->rate > 0 && (slowest == 0 || e->rate < slowest))
                slowest = e->rate;
        }
    return slowest;
}
