#include "daemon/advisor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/group_view.h"
#include "base/log.h"
#include "daemon/advice.h"
#include "daemon/advice_window.h"
#include "daemon/host_load.h"
#include "daemon/settle.h"
#include "member/node.h"
#include "metrics/metrics.h"
#include "rdzv/rdzv.h"

struct advisor {
    const struct settled *s;
    struct advice_window *window;
    struct rdzv_window own; /* the last window of this task; number 0: none yet */
    struct host_load load;  /* when `own` was taken */
    bool has_load;

    /* The tasks of the cluster by rank; one task without a cluster. */
    uint32_t n;
    char (*names)[64];           /* owned [n] */
    struct advice_task *tasks;   /* owned [n] */
    struct rdzv_window *windows; /* owned [n] */
    uint64_t *judged;            /* owned [n] number of the window that was judged last */

    struct advice_state state;
    bool has_judged; /* since the last call of advisor_judged() */
    struct rdzv_advice list[RDZV_ADVICE_MAX]; /* present */
    uint32_t n_list;
    struct advice_issues logged[ADVICE_KINDS]; /* what was logged */
    struct metric *metrics[ADVICE_KINDS];
};

struct advisor *advisor_new(const struct settled *s, struct metrics *m)
{
    struct advisor *a = calloc(1, sizeof(*a));
    const struct cluster *c = s->cluster;

    CHECK(a != NULL);
    a->s = s;
    a->window = advice_window_new(&s->conf->advice, s->n_devices);
    a->n = c->is_local ? 1 : c->group;
    a->names = calloc(a->n + 1u, sizeof(*a->names));
    a->tasks = calloc(a->n + 1u, sizeof(*a->tasks));
    a->windows = calloc(a->n + 1u, sizeof(*a->windows));
    a->judged = calloc(a->n + 1u, sizeof(*a->judged));
    CHECK(a->names != NULL && a->tasks != NULL && a->windows != NULL && a->judged != NULL);
    for (uint32_t i = 0; i < a->n; i++) {
        if (c->is_local)
            snprintf(a->names[i], sizeof(a->names[i]), "local");
        else
            cluster_task_name(c->ranks[i], a->names[i], sizeof(a->names[i]));
        a->tasks[i].name = a->names[i];
    }
    for (uint32_t k = 0; k < ADVICE_KINDS; k++) {
        struct buf labels = { 0 };

        metrics_label(&labels, "kind", advice_kind_name((enum advice_kind)k));
        CHECK(!labels.failed);
        a->metrics[k] =
            metrics_gauge(m, "trainerd_advice", labels.data,
                          "1: the group is beyond this limit of health.advice, 0: it is not.");
        metric_set(a->metrics[k], 0);
        buf_fini(&labels);
    }
    return a;
}

void advisor_free(struct advisor *a)
{
    if (a == NULL)
        return;
    advice_window_free(a->window);
    free(a->names);
    free(a->tasks);
    free(a->windows);
    free(a->judged);
    free(a);
}

void advisor_begin(struct advisor *a, const struct group_view *view)
{
    advice_window_begin(a->window, view);
}

void advisor_step(struct advisor *a, const struct train_step_report *s)
{
    advice_window_step(a->window, s);
}

/* Takes a window of this task that is complete. */
static void take_own(struct advisor *a)
{
    struct host_load load;

    if (!advice_window_take(a->window, &a->own))
        return;
    if (!host_load_read(&load))
        return;
    if (a->has_load) {
        struct host_load_parts p = host_load_between(&a->load, &load);

        a->own.others = p.others;
        a->own.steal = p.steal;
        a->own.storage = p.storage;
    }
    a->load = load;
    a->has_load = true;
}

/* Sets the window of a task for the judgement; NULL if its last one was judged, or is of another
 * generation. Returns false in that case. */
static bool set_window(struct advisor *a, const struct rdzv *z, uint32_t rank, bool is_self,
                       uint64_t generation)
{
    struct rdzv_window *w = &a->windows[rank];
    bool has = is_self;

    if (is_self)
        *w = a->own;
    else
        has = rdzv_member_window(z, rank, w);
    has = has && w->number != 0 && w->generation == generation && w->number != a->judged[rank];
    a->tasks[rank].window = has ? w : NULL;
    return has;
}

/* Collects a new window of every training task of the group. Returns true if they are to be judged:
 * all are there, or this task has measured two more since the last judgement. */
static bool collect(struct advisor *a, const struct rdzv *z)
{
    const struct group_view *v;
    uint32_t self = a->s->cluster->is_local ? 0 : a->s->cluster->self->rank;
    bool all = true;

    for (uint32_t i = 0; i < a->n; i++)
        a->tasks[i].window = NULL;
    if (z == NULL)
        return set_window(a, z, self, true, a->own.generation);
    v = member_node_view(rdzv_node(z));
    for (uint32_t m = 0; m < v->n_members; m++) {
        uint32_t rank = v->members[m].rank;

        if (v->members[m].n_servers == 0)
            all = set_window(a, z, rank, rank == self, v->generation) && all;
    }
    return a->tasks[self].window != NULL && (all || a->own.number >= a->judged[self] + 2);
}

static void judge(struct advisor *a)
{
    const struct advice_group g = { a->tasks, a->n };

    a->has_judged = true;
    a->n_list = advice_judge(&a->state, &a->s->conf->advice, &g, clock_wall_us(), a->list);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->tasks[i].window != NULL)
            a->judged[i] = a->tasks[i].window->number;
}

/* Only the log of the task that judged has the sentence: a group has as many logs as tasks. */
static void log_one(const struct rdzv_advice *x, bool judges)
{
    struct log_field fields[] = { LOG_STR("kind", x->kind), LOG_F64("value", x->value),
                                  LOG_F64("limit", x->limit), LOG_STR("culprit", x->culprit),
                                  LOG_STR("remedy", x->remedy) };

    log_record(judges ? LOG_WARN : LOG_DEBUG, "advice", fields, COUNT_OF(fields), "%s: %s; %s",
               x->kind, x->text, x->remedy);
}

/* Logs each issue once, and sets the metrics. `judges`: this task leads, or is alone. */
static void publish(struct advisor *a, bool judges)
{
    for (uint32_t k = 0; k < ADVICE_KINDS; k++) {
        const char *kind = advice_kind_name((enum advice_kind)k);
        const struct rdzv_advice *x = NULL;

        for (uint32_t i = 0; i < a->n_list; i++)
            if (strcmp(a->list[i].kind, kind) == 0)
                x = &a->list[i];
        metric_set(a->metrics[k], x != NULL);
        if (x == NULL || !advice_record(&a->logged[k], x))
            continue;
        log_one(x, judges);
        advice_was_issued(&a->state, x); /* this task may lead later */
    }
}

void advisor_tick(struct advisor *a, const struct rdzv *z)
{
    const struct rdzv_advice *list;
    bool judges = z == NULL || member_node_state(rdzv_node(z)) == MEMBER_LEADING;

    take_own(a);
    if (judges) {
        if (collect(a, z))
            judge(a);
    } else {
        a->n_list = rdzv_leader_advice(z, &list);
        memcpy(a->list, list, a->n_list * sizeof(*list));
    }
    publish(a, judges);
}

bool advisor_judged(struct advisor *a, struct advice_group *out)
{
    bool has_judged = a->has_judged;

    *out = (struct advice_group){ a->tasks, a->n };
    a->has_judged = false;
    return has_judged;
}

void advisor_progress(const struct advisor *a, struct rdzv_progress *p)
{
    p->window = a->own.number != 0 ? &a->own : NULL;
    p->advice = a->list;
    p->n_advice = a->n_list;
}
