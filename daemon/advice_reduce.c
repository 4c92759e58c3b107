/* advice_reduce.c - who causes waits for the all-reduce.
 *
 * A late task makes its partners wait, and these make others wait in the next round of the schedule,
 * so every wait is also a reason for waits elsewhere. The lateness that begins at a task is the
 * longest wait for it, less its own waits; what all tasks wait because the messages take time is not
 * deducted. A slow link makes its two ends wait for the rest of a message; these waits are counted
 * separately and are never passed on. A message whose first segment was lost makes its receiver wait as for a
 * late task. Its sender knows: TCP sent segments again. Waits for a task that loses segments on the way to the
 * waiting one are therefore waits for the link.
 *
 * Other processes, or the hypervisor, delay the tasks of a busy host for one step, and those of another
 * host for the next one. The waits for tasks of busy hosts that begin at no task are therefore no cost
 * of the all-reduce, and are not counted: a larger batch or a faster network does not make them shorter. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "daemon/advice_priv.h"

/* A cause must explain this part of the wait. */
static const double EXPLAINS = 0.5;
/* All links of a task are slow rather than one if the slowest one has less than this part of its slow waits. */
static const double ONE_LINK = 0.8;
/* A slow link has at most this part of the rate of the others. */
static const double SLOW_RATE = 0.67;
/* A link with less than this part of the slow waits of the slowest one is not slow. */
static const double COUNTS = 0.1;
/* A link on which TCP sends so many segments again in a step loses them; a busy host causes a few in many steps. */
static const double LOSSES = 1;
/* On a busy host, other processes and the hypervisor take this part of the processor time. */
static const double BUSY = 0.25;
/* A task that waits for a processor waits at least so long: the slice of another process. Seconds. */
static const double SLICE = 0.002;

struct causes {
    const struct advice_group *g;
    double wait;   /* seconds of a step, of the task that waits most */
    double *late;  /* [n] longest wait for the task */
    double *began; /* [n] lateness that begins at the task */
    double *share; /* [n] part of a step that the task waits, as far as it is counted */
    double *slow;  /* [n] slow waits of all links of the task, in both directions */
};

/* A link between two tasks: waits in both directions, the lower rate (0: not known), and segments that were sent
 * again in both directions. */
struct link {
    uint32_t a, b;
    double slow, rate, losses;
};

static const struct rdzv_wait *wait_of(const struct advice_group *g, uint32_t from, uint32_t to)
{
    const struct rdzv_window *w = g->tasks[from].window;

    for (uint32_t k = 0; w != NULL && k < w->n_waits; k++)
        if (w->waits[k].rank == to)
            return &w->waits[k];
    return NULL;
}

/* The time for which `task` waits because its messages from w->rank are lost on the way. */
static double lost(const struct advice_group *g, uint32_t task, const struct rdzv_wait *w)
{
    const struct rdzv_wait *back = w != NULL ? wait_of(g, w->rank, task) : NULL;

    return back != NULL && back->losses >= LOSSES ? w->late : 0;
}

/* ---- late tasks ---- */

static void find_late(struct causes *c)
{
    const struct advice_group *g = c->g;
    double least_slow = -1;

    for (uint32_t i = 0; i < g->n; i++) {
        const struct rdzv_window *w = g->tasks[i].window;

        if (w == NULL)
            continue;
        if (least_slow < 0 || w->slow < least_slow)
            least_slow = w->slow;
        for (uint32_t k = 0; k < w->n_waits; k++)
            if (w->waits[k].rank != i && lost(g, i, &w->waits[k]) == 0 &&
                w->waits[k].late > c->late[w->waits[k].rank])
                c->late[w->waits[k].rank] = w->waits[k].late;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        const struct rdzv_window *w = g->tasks[i].window;
        double began = w != NULL ? c->late[i] - (w->late + w->slow - least_slow) : 0;

        c->began[i] = began > 0 ? began : 0;
    }
}

static bool is_busy(const struct causes *c, uint32_t rank)
{
    const struct rdzv_window *w = c->g->tasks[rank].window;

    return w != NULL && w->others + w->steal >= BUSY;
}

/* Returns the seconds of a step that a task waits for tasks that are late in turns on busy hosts. */
static double waits_in_turns(const struct causes *c, uint32_t rank)
{
    const struct rdzv_window *w = c->g->tasks[rank].window;
    double waits = 0;

    for (uint32_t k = 0; k < w->n_waits; k++)
        if (w->waits[k].rank != rank && is_busy(c, w->waits[k].rank))
            waits += w->waits[k].late;
    for (uint32_t i = 0; i < c->g->n; i++)
        if (i != rank && is_busy(c, i))
            waits -= c->began[i];
    return waits >= SLICE ? waits : 0;
}

static double share_of(const void *arg, uint32_t rank)
{
    return ((const struct causes *)arg)->share[rank];
}

/* The caller frees it with free_causes(). *worst: by waits, as parts of a step. */
static struct causes find_causes(const struct advice_group *g, struct advice_rank *worst)
{
    struct causes c = { .g = g,
                        .late = calloc(g->n + 1u, sizeof(double)),
                        .began = calloc(g->n + 1u, sizeof(double)),
                        .share = calloc(g->n + 1u, sizeof(double)),
                        .slow = calloc(g->n + 1u, sizeof(double)) };

    CHECK(c.late != NULL && c.began != NULL && c.share != NULL && c.slow != NULL);
    find_late(&c);
    for (uint32_t i = 0; i < g->n; i++) {
        const struct rdzv_window *w = g->tasks[i].window;

        if (w != NULL && w->seconds > 0)
            c.share[i] = w->reduce - waits_in_turns(&c, i) / w->seconds;
    }
    *worst = advice_rank(g, share_of, &c);
    return c;
}

static void free_causes(struct causes *c)
{
    free(c->late);
    free(c->began);
    free(c->share);
    free(c->slow);
}

struct advice_rank advice_reduce_waits(const struct advice_group *g)
{
    struct advice_rank worst;
    struct causes c = find_causes(g, &worst);

    free_causes(&c);
    return worst;
}

static double began_at(const void *arg, uint32_t rank)
{
    return ((const struct causes *)arg)->began[rank];
}

static double lanes_of(const void *group, uint32_t rank)
{
    return ((const struct advice_group *)group)->tasks[rank].window->lanes;
}

static void explain_late(const struct causes *c, const struct advice_rank *r,
                         struct rdzv_advice *out)
{
    const struct advice_group *g = c->g;
    const struct rdzv_window *w = g->tasks[r->first].window;
    double lane = advice_median(g, advice_seconds_per_lane, g),
           lanes = advice_median(g, lanes_of, g);
    bool has_more = w->lanes > lanes && w->lane_seconds < 1.1 * lane;
    bool is_delayed = w->delay >= EXPLAINS * r->largest;
    bool copies = w->checkpoint * w->seconds >= EXPLAINS * r->largest;
    char late[32], own[32], usual[32];

    if (is_delayed && !has_more && !copies) {
        advice_explain_busy(g, out);
        return;
    }
    if (r->second < g->n && !advice_is_certain(r->largest, r->next)) {
        advice_add(out->culprit, sizeof(out->culprit), ADVICE_NO_SINGLE_TASK);
        advice_add(out->text, sizeof(out->text), "; %s and %s are late by about the same time",
                   g->tasks[r->first].name, g->tasks[r->second].name);
        advice_add(out->remedy, sizeof(out->remedy),
                   "compare these hosts with the others (top, turbostat)");
        return;
    }
    text_duration(late, sizeof(late), (uint64_t)(r->largest * 1e9));
    text_duration(own, sizeof(own), (uint64_t)(w->lane_seconds * 1e9));
    text_duration(usual, sizeof(usual), (uint64_t)(lane * 1e9));
    advice_add(out->culprit, sizeof(out->culprit), "%s", g->tasks[r->first].name);
    advice_add(out->text, sizeof(out->text),
               "; %s is late by %s: it computes %u lanes in %s each, the median task %.0f in %s; other "
               "processes use %.0f %% of the processor time of its host, the hypervisor takes %.0f %%",
               g->tasks[r->first].name, late, w->lanes, own, lanes, usual, 100 * w->others,
               100 * w->steal);
    if (copies)
        advice_add(out->text, sizeof(out->text),
                   "; it copies its state for checkpoints in %.0f %% of the time",
                   100 * w->checkpoint);
    advice_add(out->remedy, sizeof(out->remedy), "%s",
               copies     ? "fewer checkpoints (checkpoint.every_steps, checkpoint.every_seconds)"
               : has_more ? "a number of lanes (train.lanes) that the tasks share equally"
                        : "look for other processes (top) and a reduced clock (turbostat) on that host; "
                          "replace it, or train without it");
}

/* ---- slow links ---- */

static struct link link_of(const struct advice_group *g, uint32_t a, uint32_t b)
{
    const struct rdzv_wait *x = wait_of(g, a, b), *y = wait_of(g, b, a);
    double p = x != NULL ? x->rate : 0, q = y != NULL ? y->rate : 0;

    return (struct link){ .a = a < b ? a : b,
                          .b = a < b ? b : a,
                          .slow = (x != NULL ? x->slow : 0) + (y != NULL ? y->slow : 0) +
                                  lost(g, a, x) + lost(g, b, y),
                          .losses = (x != NULL ? x->losses : 0) + (y != NULL ? y->losses : 0),
                          .rate = p == 0 || (q > 0 && q < p) ? q : p };
}

/* Calls fn once for each link with waits. */
static void each_link(const struct advice_group *g, void (*fn)(void *arg, const struct link *l),
                      void *arg)
{
    for (uint32_t i = 0; i < g->n; i++) {
        const struct rdzv_window *w = g->tasks[i].window;

        for (uint32_t k = 0; w != NULL && k < w->n_waits; k++) {
            uint32_t other = w->waits[k].rank;
            struct link l = link_of(g, i, other);

            if (other != i && (i < other || wait_of(g, other, i) == NULL))
                fn(arg, &l);
        }
    }
}

struct links {
    struct causes *c;
    struct link first, second; /* with the longest slow waits */
};

static void add_link(void *arg, const struct link *l)
{
    struct links *x = arg;

    x->c->slow[l->a] += l->slow;
    x->c->slow[l->b] += l->slow;
    if (l->slow > x->first.slow) {
        x->second = x->first;
        x->first = *l;
    } else if (l->slow > x->second.slow) {
        x->second = *l;
    }
}

/* The rates of the links that are suspected, and of the others. */
struct rates {
    const struct link *link; /* the suspect; NULL: all links of `task` */
    uint32_t task;
    double counts;    /* a link with less slow waits is not suspected */
    double suspected; /* the highest rate of a suspected link; 0: none */
    double losses;    /* the most losses of a suspected link */
    double *others;   /* [n_others] */
    uint32_t n_others;
};

static void add_rate(void *arg, const struct link *l)
{
    struct rates *r = arg;
    bool is_suspect = r->link != NULL ? l->a == r->link->a && l->b == r->link->b
                                      : l->a == r->task || l->b == r->task;

    if (is_suspect && l->slow >= r->counts && l->losses > r->losses)
        r->losses = l->losses;
    if (l->rate <= 0)
        return;
    if (!is_suspect)
        r->others[r->n_others++] = l->rate;
    else if (l->slow >= r->counts && l->rate > r->suspected)
        r->suspected = l->rate;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Writes the rate of the suspected links, and the median of the others (0: not known). Returns true
 * if the suspected ones are slower. */
static bool compare_rates(const struct causes *c, struct rates *r, double *rate, double *median)
{
    r->others = calloc((size_t)c->g->n * RDZV_WAITS_MAX + 1, sizeof(double));
    CHECK(r->others != NULL);
    each_link(c->g, add_rate, r);
    qsort(r->others, r->n_others, sizeof(double), compare);
    *rate = r->suspected;
    *median = r->n_others > 0 ? r->others[(r->n_others - 1) / 2] : 0;
    free(r->others);
    return *median == 0 || *rate <= SLOW_RATE * *median;
}

static double slow_of(const void *arg, uint32_t rank)
{
    return ((const struct causes *)arg)->slow[rank];
}

/* The suspected links are slower than the others, or lose packets. */
static void describe_links(const struct causes *c, const struct links *x, const struct rates *r,
                           double rate, double median, struct rdzv_advice *out)
{
    const struct advice_task *tasks = c->g->tasks;
    const char *what;

    if (r->link != NULL) {
        advice_add(out->culprit, sizeof(out->culprit), "link between %s and %s",
                   tasks[x->first.a].name, tasks[x->first.b].name);
        advice_add(out->text, sizeof(out->text), "; the link between %s and %s",
                   tasks[x->first.a].name, tasks[x->first.b].name);
        what = "carries";
    } else {
        advice_add(out->culprit, sizeof(out->culprit), "network of %s", tasks[r->task].name);
        advice_add(out->text, sizeof(out->text), "; the links of %s", tasks[r->task].name);
        what = "carry at most";
    }
    if (r->losses >= LOSSES)
        advice_add(out->text, sizeof(out->text), " %s packets (%.3g are sent again in a step)%s",
                   r->link != NULL ? "loses" : "lose", r->losses, rate > 0 ? " and" : "");
    if (rate > 0)
        advice_add(out->text, sizeof(out->text), " %s %.3g MB/s", what, rate / 1e6);
    if (rate > 0 && median > 0)
        advice_add(out->text, sizeof(out->text), ", the median of the others %.3g MB/s",
                   median / 1e6);
    advice_add(out->remedy, sizeof(out->remedy),
               "test cable, switch port and speed of the interface (ethtool, ip -s link, trainerctl netcheck); "
               "a larger global batch or local SGD sends less");
}

/* Returns false if no link explains the wait. only_losses: only links that lose packets count. */
static bool explain_slow(struct causes *c, bool only_losses, struct rdzv_advice *out)
{
    struct links x = { .c = c };
    const struct advice_group *g = c->g;
    struct rates r = { .link = &x.first };
    struct advice_rank worst;
    double rate, median;
    bool is_slower, is_certain;

    memset(c->slow, 0, g->n * sizeof(*c->slow));
    each_link(g, add_link, &x);
    worst = advice_rank(g, slow_of, c);
    if (worst.first == g->n || worst.largest < EXPLAINS * c->wait)
        return false;
    r.counts = COUNTS * x.first.slow;
    is_certain = advice_is_certain(x.first.slow, x.second.slow);
    if (x.first.slow < ONE_LINK * worst.largest) {
        r.link = NULL;
        r.task = worst.first;
        is_certain = advice_is_certain(worst.largest, worst.next);
    }
    is_slower = compare_rates(c, &r, &rate, &median) || r.losses >= LOSSES;
    if (only_losses && (!is_certain || r.losses < LOSSES))
        return false;
    if (is_slower && is_certain) {
        describe_links(c, &x, &r, rate, median, out);
        return true;
    }
    advice_add(out->culprit, sizeof(out->culprit), ADVICE_NO_SINGLE_TASK);
    advice_add(out->text, sizeof(out->text),
               "; the messages take this time on several links, the slowest at %.3g MB/s",
               rate / 1e6);
    advice_add(out->remedy, sizeof(out->remedy),
               "a faster network; a larger global batch or local SGD sends less");
    return true;
}

/* ---- the sentence ---- */

/* Returns the longest waits of a task that are counted by task, in seconds of a step. */
static double counted(const struct advice_group *g)
{
    double longest = 0;

    for (uint32_t i = 0; i < g->n; i++) {
        const struct rdzv_window *w = g->tasks[i].window;

        if (w != NULL && w->late + w->slow > longest)
            longest = w->late + w->slow;
    }
    return longest;
}

void advice_explain_reduce(const struct advice_group *g, double limit, struct rdzv_advice *out)
{
    struct advice_rank waits, late;
    struct causes c = find_causes(g, &waits);
    const struct rdzv_window *w = g->tasks[waits.first].window;
    char wait[32], step[32];

    c.wait = waits.largest * w->seconds;
    text_duration(wait, sizeof(wait), (uint64_t)(c.wait * 1e9));
    text_duration(step, sizeof(step), (uint64_t)(w->seconds * 1e9));
    advice_add(out->text, sizeof(out->text),
               "%s waits %.0f %% of a step (%s of %s) for the all-reduce, limit %.0f %%",
               g->tasks[waits.first].name, 100 * waits.largest, wait, step, 100 * limit);
    late = advice_rank(g, began_at, &c);
    if (late.first < g->n && late.largest >= EXPLAINS * c.wait) {
        explain_late(&c, &late, out);
    } else if (explain_slow(&c, true, out)) {
        /* the sentence is complete: no busy host makes TCP lose packets */
    } else if (advice_is_busy(g, c.wait, waits.first)) {
        advice_explain_busy(g, out);
    } else if (explain_slow(&c, false, out)) {
        /* the sentence is complete */
    } else if (counted(g) < COUNTS * c.wait) {
        advice_add(out->culprit, sizeof(out->culprit), ADVICE_NO_SINGLE_TASK);
        advice_add(out->text, sizeof(out->text),
                   "; waits in NCCL and for parameter servers are not counted by task");
        advice_add(
            out->remedy, sizeof(out->remedy),
            "compare the compute time of the tasks (trainerctl top), and the links (trainerctl netcheck)");
    } else {
        advice_add(out->culprit, sizeof(out->culprit), "no task");
        advice_add(
            out->text, sizeof(out->text),
            "; no task and no link causes most of it: the work between two all-reduces is small");
        advice_add(out->remedy, sizeof(out->remedy),
                   "a larger global batch, local SGD (train.phases), or fewer tasks");
    }
    free_causes(&c);
}
