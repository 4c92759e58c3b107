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

double advice_seconds_per_lane(const void *group, uint32_t rank)
{
    return ((const struct advice_group *)group)->tasks[rank].window->lane_seconds;
}
