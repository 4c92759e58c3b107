/* cluster_jobs.c - checks the jobs and indices of a cluster, after this task is known.
 *
 * The dynamic form is what Kubeflow writes with enableDynamicWorker. A worker gets a list of itself
 * and the parameter servers: {"worker": {"3": own address}, "ps": [all addresses]}. A parameter
 * server gets only itself, always at position 0: {"ps": [own address], "worker": {}}. */
#include "conf/cluster_jobs.h"

#include <inttypes.h>

#include "base/err.h"
#include "conf/cluster_draft.h"

static bool is_dynamic_worker(const struct cluster_draft *d)
{
    return d->type == CLUSTER_WORKER && d->count[CLUSTER_WORKER] == 1 &&
           cJSON_IsObject(d->job[CLUSTER_WORKER]) && d->has_job[CLUSTER_PS] &&
           !d->has_job[CLUSTER_CHIEF] && cluster_first(d, CLUSTER_WORKER)->task.index == d->index;
}

static bool is_dynamic_ps(const struct cluster_draft *d)
{
    return d->type == CLUSTER_PS && d->count[CLUSTER_PS] == 1 &&
           cJSON_IsArray(d->job[CLUSTER_PS]) && cJSON_IsObject(d->job[CLUSTER_WORKER]) &&
           d->count[CLUSTER_WORKER] == 0 && !d->has_job[CLUSTER_CHIEF] &&
           !d->has_job[CLUSTER_EVALUATOR];
}

static int check_at_most_one(const struct cluster_draft *d, enum cluster_type type, struct err *err)
{
    if (d->count[type] <= 1)
        return 0;
    return cluster_reject(
        d, d->job[type], err,
        "there are %" PRIu32
        " %s tasks; expected at most 1; remove the others or list them as workers",
        d->count[type], cluster_type_name(type));
}

/* Checks that the indices of a job are 0 to n - 1. */
static int check_dense(const struct cluster_draft *d, enum cluster_type type, const char *remedy,
                       struct err *err)
{
    const struct cluster_entry *e = cluster_first(d, type);

    for (uint32_t i = 0; i < d->count[type]; i++) {
        if (e[i].task.index != i)
            return cluster_reject(d, e[i].at, err,
                                  "the %s indices have a gap: %s %" PRIu32 " is missing; %s",
                                  cluster_type_name(type), cluster_type_name(type), i, remedy);
    }
    return 0;
}

static int check_unique_indices(const struct cluster_draft *d, struct err *err)
{
    for (size_t i = 1; i < d->entries.n; i++) {
        const struct cluster_entry *a = &d->entries.at[i - 1], *b = &d->entries.at[i];

        if (a->task.type == b->task.type && a->task.index == b->task.index)
            return cluster_reject(d, b->at, err,
                                  "%s %" PRIu32 " is listed twice (the other is "
                                  "'%.80s'); keep one of them",
                                  cluster_type_name(b->task.type), b->task.index, a->task.address);
    }
    return 0;
}

int cluster_check_jobs(struct cluster_draft *d, struct err *err)
{
    int rc = check_unique_indices(d, err);

    if (rc == 0)
        rc = check_at_most_one(d, CLUSTER_CHIEF, err);
    if (rc == 0)
        rc = check_at_most_one(d, CLUSTER_EVALUATOR, err);
    if (rc < 0)
        return rc;
    if (is_dynamic_worker(d)) {
        d->c->is_dynamic = true;
        return 0;
    }
    if (is_dynamic_ps(d)) {
        d->c->is_dynamic = true;
        d->entries.at[0].task.index = d->index;
        return 0;
    }
    if (d->has_job[CLUSTER_WORKER] && d->count[CLUSTER_CHIEF] + d->count[CLUSTER_WORKER] == 0)
        return cluster_reject(d, d->job[CLUSTER_WORKER], err,
                              "the job \"worker\" is empty and there is no chief, so no task "
                              "trains; list the addresses of the workers");
    if (d->count[CLUSTER_CHIEF] + d->count[CLUSTER_WORKER] == 0)
        return cluster_reject(d, NULL, err,
                              "the cluster has neither a chief nor a worker, so no task trains; "
                              "add \"worker\": [\"host:port\", ...]");
    if (cluster_is_strict(d)) {
        rc = check_dense(d, CLUSTER_CHIEF, "the chief has index 0", err);
        if (rc < 0)
            return rc;
    }
    return check_dense(
        d, CLUSTER_WORKER,
        "a sparse worker list needs the dynamic form, which contains only this task's own entry, a "
        "ps list and no chief: {\"worker\": {\"3\": \"host:port\"}, \"ps\": [...]}",
        err);
}

static int reject_index(const struct cluster_draft *d, struct err *err)
{
    const struct cluster_entry *e = cluster_first(d, d->type);
    uint32_t n = d->count[d->type];
    const char *name = cluster_type_name(d->type);

    if (e[n - 1].task.index == n - 1)
        return cluster_reject(d, d->self_at, err,
                              "task index %" PRIu32 " (from %s) is out of range: the cluster lists "
                              "%" PRIu32 " %s tasks, with indices from 0 to %" PRIu32,
                              d->index, d->c->index_source, n, name, n - 1);
    return cluster_reject(
        d, d->self_at, err,
        "task index %" PRIu32 " (from %s) is not listed: the cluster lists %" PRIu32
        " %s tasks, with gaps in the indices from %" PRIu32 " to %" PRIu32,
        d->index, d->c->index_source, n, name, e[0].task.index, e[n - 1].task.index);
}

int cluster_check_member(struct cluster_draft *d, struct err *err)
{
    int rc;

    if (cluster_find(d, d->type, d->index) != NULL)
        return 0;
    if (d->count[d->type] > 0)
        return reject_index(d, err);
    if (d->type != CLUSTER_EVALUATOR)
        return cluster_reject(d, d->self_at, err,
                              "this task is %s %" PRIu32 ", but the cluster "
                              "lists no %s; add it to the cluster or correct the task",
                              cluster_type_name(d->type), d->index, cluster_type_name(d->type));
    rc = cluster_add(d, CLUSTER_EVALUATOR, d->index, NULL, 0, NULL, err);
    if (rc == 0)
        cluster_sort(d);
    return rc;
}
