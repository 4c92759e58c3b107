/* judge_tasks.c - a task whose numbers differ from the median, or whose texts differ from the
 * majority. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "preflight/judge_priv.h"

/* ---- texts that all tasks must share ---- */

#define AT(field_) offsetof(struct preflight_facts, field_)
static const struct {
    const char *what, *label;
    size_t at;
    const char *remedy;
} equal[] = {
    { "cluster text", "cluster text", AT(cluster),
      "give every task the same \"cluster\"; only the task differs" },
    { "job file", "job digest", AT(job), "copy the same job file to every host" },
    { "version", "trainerd version", AT(version), "install the same version on every host" },
    { "devices", "devices", AT(devices), "give every task the same --devices, and hosts of the same kind" },
    { "kernels", "kernel libraries", AT(kernels),
      "use hosts with the same instruction set, driver and libraries (trainerd --check prints them)" },
};

static const char *text_of(const struct preflight_table *t, uint32_t task, size_t at)
{
    return (const char *)&t->rows[task].facts + at;
}

/* Does the task state this text? A ps states no devices. */
static bool states(const struct preflight_table *t, uint32_t task, size_t at)
{
    return t->rows[task].present && text_of(t, task, at)[0] != '\0';
}

/* Returns how many tasks state the same text as the task. */
static uint32_t n_equal(const struct preflight_table *t, uint32_t task, size_t at)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->world; i++)
        n += states(t, i, at) && strcmp(text_of(t, i, at), text_of(t, task, at)) == 0;
    return n;
}

static void judge_equal(struct judged *j, size_t topic)
{
    const struct preflight_table *t = j->t;
    size_t at = equal[topic].at;
    uint32_t common = PREFLIGHT_NO_TASK, most = 0, present = 0;

    for (uint32_t i = 0; i < t->world; i++) {
        uint32_t n = states(t, i, at) ? n_equal(t, i, at) : 0;

        present += states(t, i, at);
        if (n > most) {
            most = n;
            common = i;
        }
    }
    if (most == present)
        return;
    for (uint32_t i = 0; i < t->world; i++)
        if (states(t, i, at) && strcmp(text_of(t, i, at), text_of(t, common, at)) != 0)
            judge_add(j, PREFLIGHT_FAULT, equal[topic].what, i,
                      2 * most > present ? PREFLIGHT_NO_TASK : common, equal[topic].remedy,
                      "%s: %s has '%.200s', %s has '%.200s'", equal[topic].label, t->tasks[i].name,
                      text_of(t, i, at), t->tasks[common].name, text_of(t, common, at));
}

/* ---- faults that a task reports about itself ---- */

static const struct {
    const char *what;
    size_t at;
    const char *remedy;
} own[] = {
    { "own address", AT(listen_fault), "name an address of that host for the task in the cluster text, or give --bind any" },
    { "storage", AT(storage_fault), "mount checkpoint.directory on that host, writable for this user, with free space" },
    { "model or data", AT(open_fault), "repair what the message names; trainerd --check repeats the test" },
};

static void judge_own(struct judged *j)
{
    for (uint32_t i = 0; i < j->t->world; i++)
        for (size_t k = 0; j->t->rows[i].present && k < COUNT_OF(own); k++)
            if (text_of(j->t, i, own[k].at)[0] != '\0')
                judge_add(j, PREFLIGHT_FAULT, own[k].what, i, PREFLIGHT_NO_TASK, own[k].remedy,
                          "%s: %s: %s", own[k].what, j->t->tasks[i].name,
                          text_of(j->t, i, own[k].at));
}

/* ---- numbers ---- */

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Returns the lower median of those values that are not `none`, `none` if there is no value. Sorts
 * the values. */
static int64_t median(int64_t *values, uint32_t n, int64_t none)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++)
        if (values[i] != none)
            values[kept++] = values[i];
    if (kept == 0)
        return none;
    qsort(values, kept, sizeof(*values), compare);
    return values[(kept - 1) / 2];
}

static bool is_slow(int64_t us, int64_t than_us)
{
    return us > JUDGE_RTT_FACTOR * than_us && us > JUDGE_RTT_US;
}

static void judge_latency(struct judged *j, int64_t *scratch)
{
    static const char remedy[] =
        "test the path of that host: cable, switch, route, wireless or virtual network (mtr, ethtool)";
    const struct preflight_table *t = j->t;
    int64_t middle;

    for (uint32_t i = 0; i < t->world; i++)
        scratch[i] = judge_best_rtt(t, i);
    middle = median(scratch, t->world, 0);
    for (uint32_t i = 0; i < t->world; i++) {
        int64_t best = judge_best_rtt(t, i);

        if (is_slow(best, middle))
            judge_add(
                j, PREFLIGHT_FAULT, "latency", i, PREFLIGHT_NO_TASK, remedy,
                "latency: the shortest round trip of %s takes %.3g ms, that of the median task %.3g ms",
                t->tasks[i].name, (double)best / 1e3, (double)middle / 1e3);
        for (uint32_t k = i + 1; k < t->world; k++) {
            const struct preflight_entry *a = judge_entry(t, i, k), *b = judge_entry(t, k, i);
            int64_t us = a != NULL && a->rtt_us > 0 ? a->rtt_us : b != NULL ? b->rtt_us : 0;

            if (!is_slow(best, middle) && !is_slow(judge_best_rtt(t, k), middle) &&
                is_slow(us, middle))
                judge_add(
                    j, PREFLIGHT_FAULT, "latency", i, k, remedy,
                    "latency: a round trip between %s and %s takes %.3g ms, the median is %.3g ms",
                    t->tasks[i].name, t->tasks[k].name, (double)us / 1e3, (double)middle / 1e3);
        }
    }
}

static void judge_rate(struct judged *j, int64_t *scratch)
{
    static const char remedy[] = "compare the speed of the interfaces (ethtool DEV), and look for errors (ip -s link), other "
                                 "traffic and limits (tc qdisc)";
    const struct preflight_table *t = j->t;
    int64_t middle;
    char low[32], usual[32];

    for (uint32_t i = 0; i < t->world; i++)
        scratch[i] = (int64_t)judge_best_rate(t, i);
    middle = median(scratch, t->world, 0);
    text_bytes(usual, sizeof(usual), (uint64_t)middle);
    for (uint32_t i = 0; i < t->world; i++) {
        int64_t best = (int64_t)judge_best_rate(t, i);
        bool is_low = best > 0 && best < middle / JUDGE_RATE_FACTOR;

        text_bytes(low, sizeof(low), (uint64_t)best);
        if (is_low)
            judge_add(j, PREFLIGHT_FAULT, "bandwidth", i, PREFLIGHT_NO_TASK, remedy,
                      "bandwidth: the best path of %s carries %s/s, that of the median task %s/s",
                      t->tasks[i].name, low, usual);
        for (uint32_t k = 0; k < t->world; k++) {
            const struct preflight_entry *e = judge_entry(t, i, k);
            int64_t other = (int64_t)judge_best_rate(t, k);

            if (is_low || (other > 0 && other < middle / JUDGE_RATE_FACTOR) || e == NULL ||
                k == i || e->rate == 0 || (int64_t)e->rate >= middle / JUDGE_PAIR_FACTOR)
                continue;
            text_bytes(low, sizeof(low), e->rate);
            judge_add(j, PREFLIGHT_FAULT, "bandwidth", i, k, remedy,
                      "bandwidth: the path from %s to %s carries %s/s, the median is %s/s",
                      t->tasks[i].name, t->tasks[k].name, low, usual);
        }
    }
}

static void judge_clock(struct judged *j, int64_t *scratch)
{
    static const char remedy[] =
        "synchronize the clock (chronyc tracking, timedatectl); certificates and logs depend on it";
    const struct preflight_table *t = j->t;
    int64_t *clocks = calloc(t->world + 1u, sizeof(*clocks)), middle;

    if (clocks == NULL || judge_clocks(t, clocks, NULL) < 0) {
        free(clocks);
        j->failed = true;
        return;
    }
    for (uint32_t i = 0; i < t->world; i++)
        scratch[i] = clocks[i];
    middle = median(scratch, t->world, INT64_MIN);
    for (uint32_t i = 0; i < t->world; i++) {
        int64_t off = clocks[i] != INT64_MIN ? clocks[i] - middle : 0;

        if (off > JUDGE_SKEW_US || off < -JUDGE_SKEW_US)
            judge_add(j, PREFLIGHT_FAULT, "clock", i, t->world == 2 ? 1 - i : PREFLIGHT_NO_TASK,
                      remedy, "clock: the clock of %s is %.3f s %s that of %s", t->tasks[i].name,
                      (double)llabs(off) / 1e6, off > 0 ? "ahead of" : "behind",
                      t->world == 2 ? "the other task" : "the median task");
    }
    free(clocks);
}

void judge_tasks(struct judged *j)
{
    int64_t *scratch = calloc(j->t->world + 1u, sizeof(*scratch));

    if (scratch == NULL) {
        j->failed = true;
        return;
    }
    judge_own(j);
    for (size_t i = 0; i < COUNT_OF(equal); i++)
        judge_equal(j, i);
    judge_latency(j, scratch);
    judge_rate(j, scratch);
    judge_clock(j, scratch);
    free(scratch);
}
