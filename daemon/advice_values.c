/* advice_values.c - compares a value of all tasks of a group; see advice_priv.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "daemon/advice_priv.h"

static const double CERTAIN = 0.9;

void advice_add(char *out, size_t n_out, const char *fmt, ...)
{
    size_t used = strlen(out);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(out + used, n_out - used, fmt, ap);
    va_end(ap);
    out[text_utf8_cut(out, strlen(out))] = '\0';
}

bool advice_is_certain(double largest, double next)
{
    return next <= CERTAIN * largest;
}

struct advice_rank advice_rank(const struct advice_group *g,
                               double (*value)(const void *arg, uint32_t rank), const void *arg)
{
    struct advice_rank out = { .first = g->n, .second = g->n };

    for (uint32_t i = 0; i < g->n; i++) {
        double v = g->tasks[i].window != NULL ? value(arg, i) : 0;

        if (v > out.largest) {
            out.second = out.first;
            out.next = out.largest;
            out.first = i;
            out.largest = v;
        } else if (v > out.next) {
            out.second = i;
            out.next = v;
        }
    }
    return out;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double advice_median(const struct advice_group *g, double (*value)(const void *arg, uint32_t rank),
                     const void *arg)
{
    double *values = calloc(g->n + 1u, sizeof(*values)), median;
    uint32_t n = 0;

    CHECK(values != NULL);
    for (uint32_t i = 0; i < g->n; i++)
        if (g->tasks[i].window != NULL)
            values[n++] = value(arg, i);
    qsort(values, n, sizeof(*values), compare);
    median = n > 0 ? values[(n - 1) / 2] : 0;
    free(values);
    return median;
}

/* ---- waits for processors ---- */

static const double EXPLAINS = 0.5; /* a cause must explain this part */
static const double ALONE = 3;      /* one task is named if it waits so many times as long as the next one */

struct others {
    const struct advice_group *g;
    uint32_t except;
};

static double delay_of(const void *arg, uint32_t rank)
{
    const struct others *o = arg;

    return rank != o->except ? o->g->tasks[rank].window->delay : 0;
}

bool advice_is_busy(const struct advice_group *g, double seconds, uint32_t except)
{
    const struct others o = { g, except };
    struct advice_rank r = advice_rank(g, delay_of, &o);

    return r.largest > 0 && r.largest + r.next >= EXPLAINS * seconds;
}

void advice_explain_busy(const struct advice_group *g, struct rdzv_advice *out)
{
    const struct others all = { g, UINT32_MAX };
    struct advice_rank r = advice_rank(g, delay_of, &all);
    const struct rdzv_window *w = g->tasks[r.first].window;
    bool is_alone = r.largest >= ALONE * r.next;
    char longest[32], usual[32];

    text_duration(longest, sizeof(longest), (uint64_t)(1e9 * r.largest));
    text_duration(usual, sizeof(usual), (uint64_t)(1e9 * advice_median(g, delay_of, &all)));
    if (is_alone)
        advice_add(out->culprit, sizeof(out->culprit), "%s%s", g->n > 1 ? "processors of " : "",
                   g->tasks[r.first].name);
    else
        advice_add(out->culprit, sizeof(out->culprit), ADVICE_NO_SINGLE_TASK);
    advice_add(out->text, sizeof(out->text),
               "; that is a wait for processors: %s is ready and waits %s of a step for one, the median task %s; other "
               "processes use %.0f %% of the processor time of its host, the hypervisor takes %.0f %%",
               g->tasks[r.first].name, longest, usual, 100 * w->others, 100 * w->steal);
    advice_add(
        out->remedy, sizeof(out->remedy),
        "end other processes on %s (top), or give the tasks more processors or a larger quota (cpu.max, CPUQuota)",
        is_alone ? "that host" : "these hosts");
}

double advice_seconds_per_lane(const void *group, uint32_t rank)
{
    return ((const struct advice_group *)group)->tasks[rank].window->lane_seconds;
}
