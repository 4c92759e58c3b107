#include "daemon/advice.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "daemon/advice_priv.h"

enum { WINDOWS_TO_BEGIN = 2 };
static const double ENDS_BELOW = 0.75;
/* From this part of the processor time on, waits for samples are waits for storage. */
static const double STORAGE = 0.1;
/* A task is short of processors if its thread waits this part of a step for one. */
static const double STARVED = 0.1;
/* A cause must explain this part of a value. */
static const double EXPLAINS = 0.5;

/* ---- the values of a task ---- */

static const struct rdzv_window *window_of(const void *group, uint32_t rank)
{
    return ((const struct advice_group *)group)->tasks[rank].window;
}

static uint32_t n_windows(const struct advice_group *g)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n; i++)
        n += g->tasks[i].window != NULL;
    return n;
}

static double data_share(const void *group, uint32_t rank)
{
    return window_of(group, rank)->data;
}

static double copy_ms(const void *group, uint32_t rank)
{
    return window_of(group, rank)->copy_ms;
}

static double idle_share(const void *group, uint32_t rank)
{
    return window_of(group, rank)->idle;
}

/* ---- the values of the group: the worst task; negative: not measured ---- */

static double measure_reduce(const struct advice_group *g)
{
    return n_windows(g) > 1 ? advice_reduce_waits(g).largest : -1;
}

static double measure_data(const struct advice_group *g)
{
    return advice_rank(g, data_share, g).largest;
}

static double measure_copy(const struct advice_group *g)
{
    struct advice_rank r = advice_rank(g, copy_ms, g);

    return r.first < g->n ? r.largest : -1;
}

static double measure_use(const struct advice_group *g)
{
    struct advice_rank r = advice_rank(g, idle_share, g);

    return r.first < g->n ? 1 - r.largest : -1;
}

static double measure_spread(const struct advice_group *g)
{
    double median = advice_median(g, advice_seconds_per_lane, g);

    return n_windows(g) > 1 && median > 0
               ? advice_rank(g, advice_seconds_per_lane, g).largest / median
               : -1;
}

/* ---- the sentences ---- */

/* Names the worst task if it is certain. Returns its rank. */
static uint32_t name_worst(const struct advice_group *g, const struct advice_rank *r,
                           const char *what, struct rdzv_advice *out)
{
    if (r->second == g->n || advice_is_certain(r->largest, r->next))
        advice_add(out->culprit, sizeof(out->culprit), "%s%s", what, g->tasks[r->first].name);
    else
        advice_add(out->culprit, sizeof(out->culprit), ADVICE_NO_SINGLE_TASK);
    return r->first;
}

static void explain_data(const struct advice_group *g, double limit, struct rdzv_advice *out)
{
    struct advice_rank r = advice_rank(g, data_share, g);
    uint32_t worst = name_worst(g, &r, "", out);
    const struct rdzv_window *w = g->tasks[worst].window;
    bool is_storage = w->storage >= STORAGE,
         is_starved = !is_storage && w->delay >= STARVED * w->seconds;

    advice_add(out->text, sizeof(out->text),
               "%s waits %.0f %% of a step for samples, limit %.0f %%", g->tasks[worst].name,
               100 * r.largest, 100 * limit);
    if (n_windows(g) > 1)
        advice_add(out->text, sizeof(out->text), "; the median task waits %.0f %%",
                   100 * advice_median(g, data_share, g));
    if (is_starved) { /* so are the threads that decode */
        out->culprit[0] = '\0';
        advice_explain_busy(g, out);
        return;
    }
    advice_add(out->text, sizeof(out->text), "; its readers wait %s (%.0f %% of the processor time of its host waits for "
               "storage)", is_storage ? "for storage" : "for decoding rather than for storage", 100 * w->storage);
    advice_add(out->remedy, sizeof(out->remedy), "%s",
               is_storage
                   ? "test the storage that the task reads (iostat -x, nfsiostat); data.cache, with data.cache_directory on a "
                     "local disk"
                   : "more decoding threads (data.threads) or processors, smaller samples; data.cache \"memory\" decodes once");
}

static void explain_copy(const struct advice_group *g, double limit, struct rdzv_advice *out)
{
    struct advice_rank r = advice_rank(g, copy_ms, g);
    uint32_t worst = name_worst(g, &r, "GPUs of ", out);

    advice_add(out->text, sizeof(out->text),
               "the slowest of 100 copies of a lane's samples to a GPU of %s takes %.3g ms, limit %.3g ms; "
               "of the median task %.3g ms",
               g->tasks[worst].name, r.largest, limit, advice_median(g, copy_ms, g));
    advice_add(out->remedy, sizeof(out->remedy),
               "compare width and generation of the PCI link (nvidia-smi -q) with those of the slot; use "
               "features of type uint8, which are scaled on the GPU");
}

static void explain_use(const struct advice_group *g, double limit, struct rdzv_advice *out)
{
    struct advice_rank r = advice_rank(g, idle_share, g);
    uint32_t worst = name_worst(g, &r, "GPUs of ", out);
    const struct rdzv_window *w = g->tasks[worst].window;
    double host = fmax(0, w->idle - w->data - w->reduce);
    const char *gap = host >= fmax(w->data, w->reduce) ? "the host, which launches kernels"
                      : w->data >= w->reduce           ? "samples"
                                                       : "the all-reduce";

    advice_add(out->text, sizeof(out->text),
               "the GPUs of %s have work in %.0f %% of a step, limit %.0f %%; they wait most for %s "
               "(samples %.0f %%, all-reduce %.0f %%, host %.0f %% of a step)",
               g->tasks[worst].name, 100 * (1 - w->idle), 100 * limit, gap, 100 * w->data,
               100 * w->reduce, 100 * host);
    advice_add(out->remedy, sizeof(out->remedy), "%s",
               host >= fmax(w->data, w->reduce)
                   ? "more samples per lane: fewer lanes (train.lanes), or a larger global batch"
               : w->data >= w->reduce
                   ? "as for data_share: data.threads, data.cache, data.cache_directory"
                   : "as for reduce_share: a larger global batch, local SGD, a faster network");
}

static void explain_spread(const struct advice_group *g, double limit, struct rdzv_advice *out)
{
    struct advice_rank r = advice_rank(g, advice_seconds_per_lane, g);
    uint32_t worst = name_worst(g, &r, "", out);
    const struct rdzv_window *w = g->tasks[worst].window;
    double median = advice_median(g, advice_seconds_per_lane, g);
    double compute = w->seconds * fmax(0, 1 - w->data - w->reduce - w->checkpoint);
    bool is_delayed =
        w->delay > 0 && w->delay >= EXPLAINS * compute * (1 - median / w->lane_seconds);
    char slow[32], usual[32];

    text_duration(slow, sizeof(slow), (uint64_t)(w->lane_seconds * 1e9));
    text_duration(usual, sizeof(usual), (uint64_t)(median * 1e9));
    advice_add(out->text, sizeof(out->text),
               "%s computes a lane in %s, the median task in %s: %.3g times as long, limit %.3g",
               g->tasks[worst].name, slow, usual, w->lane_seconds / median, limit);
    if (is_delayed) {
        out->culprit[0] = '\0';
        advice_explain_busy(g, out);
        return;
    }
    advice_add(
        out->text, sizeof(out->text),
        "; other processes use %.0f %% of the processor time of its host, the hypervisor takes %.0f %%",
        100 * w->others, 100 * w->steal);
    advice_add(out->remedy, sizeof(out->remedy),
               "look for other processes (top), and a reduced clock (turbostat, nvidia-smi -q -d "
               "PERFORMANCE) on that host; replace it, or use hosts of one kind");
}

/* ---- the table ---- */

/* A kind. The excess of a value is value - base, or base - value if is_low. */
static const struct row {
    const char *name;
    double base;
    bool is_low;
    double (*measure)(const struct advice_group *g);
    void (*explain)(const struct advice_group *g, double limit, struct rdzv_advice *out);
} rows[ADVICE_KINDS] = {
    [ADVICE_REDUCE_SHARE] = { "reduce_share", 0, false, measure_reduce, advice_explain_reduce },
    [ADVICE_DATA_SHARE] = { "data_share", 0, false, measure_data, explain_data },
    [ADVICE_H2D_MS] = { "h2d_ms", 0, false, measure_copy, explain_copy },
    [ADVICE_DEVICE_USE] = { "device_use", 1, true, measure_use, explain_use },
    [ADVICE_LANE_SPREAD] = { "lane_spread", 1, false, measure_spread, explain_spread },
};

const char *advice_kind_name(enum advice_kind kind)
{
    return rows[kind].name;
}

static double excess(const struct row *row, double value)
{
    return row->is_low ? row->base - value : value - row->base;
}

/* Applies the hysteresis to one kind. */
static void update(struct advice_state *s, enum advice_kind kind, double value, double limit)
{
    double is = excess(&rows[kind], value), may_be = excess(&rows[kind], limit);

    if (limit <= 0 || value < 0) {
        s->kinds[kind].is_active = false;
        s->kinds[kind].n_beyond = 0;
    } else if (s->kinds[kind].is_active) {
        s->kinds[kind].is_active = is >= ENDS_BELOW * may_be;
        s->kinds[kind].n_beyond = 0;
    } else {
        s->kinds[kind].n_beyond = is > may_be ? s->kinds[kind].n_beyond + 1 : 0;
        s->kinds[kind].is_active = s->kinds[kind].n_beyond >= WINDOWS_TO_BEGIN;
    }
}

/* ---- issues ---- */

/* Returns the entry of a culprit, or the one with the oldest issue. */
static uint32_t entry_of(const struct advice_issues *i, const char *culprit)
{
    uint32_t oldest = 0;

    for (uint32_t k = 0; k < ADVICE_ISSUES; k++) {
        if (i->at[k].time_us != 0 && strcmp(i->at[k].culprit, culprit) == 0)
            return k;
        if (i->at[k].time_us < i->at[oldest].time_us)
            oldest = k;
    }
    return oldest;
}

bool advice_record(struct advice_issues *i, const struct rdzv_advice *x)
{
    uint32_t k = entry_of(i, x->culprit);

    if (i->at[k].time_us == x->time_us && strcmp(i->at[k].culprit, x->culprit) == 0)
        return false;
    i->at[k].time_us = x->time_us;
    memcpy(i->at[k].culprit, x->culprit, sizeof(i->at[k].culprit));
    return true;
}

/* Sets the time of issue: that of the last issue with this culprit, or now. */
static void set_time(struct advice_issues *i, double repeat_seconds, uint64_t now_us,
                     struct rdzv_advice *x)
{
    uint32_t k = entry_of(i, x->culprit);
    uint64_t last_us = strcmp(i->at[k].culprit, x->culprit) == 0 ? i->at[k].time_us : 0;

    x->time_us =
        last_us == 0 || now_us < last_us || (double)(now_us - last_us) >= 1e6 * repeat_seconds
            ? now_us
            : last_us;
    (void)advice_record(i, x);
}

uint32_t advice_judge(struct advice_state *s, const struct advice_limits *limits,
                      const struct advice_group *g, uint64_t now_us, struct rdzv_advice *out)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < ADVICE_KINDS; k++) {
        double value = rows[k].measure(g), limit = limits->at[k];

        update(s, (enum advice_kind)k, value, limit);
        if (!s->kinds[k].is_active)
            continue;
        out[n] = (struct rdzv_advice){ .value = value, .limit = limit };
        advice_add(out[n].kind, sizeof(out[n].kind), "%s", rows[k].name);
        rows[k].explain(g, limit, &out[n]);
        set_time(&s->kinds[k].issues, limits->repeat_seconds, now_us, &out[n]);
        n++;
    }
    return n;
}

void advice_was_issued(struct advice_state *s, const struct rdzv_advice *x)
{
    for (uint32_t k = 0; k < ADVICE_KINDS; k++)
        if (strcmp(rows[k].name, x->kind) == 0)
            (void)advice_record(&s->kinds[k].issues, x);
}
