/* cluster.c - resolves a cluster, step by step, and creates the finished table. */
#include "conf/cluster.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "conf/cluster_address.h"
#include "conf/cluster_draft.h"
#include "conf/cluster_hosts.h"
#include "conf/cluster_jobs.h"
#include "conf/cluster_print.h"
#include "conf/cluster_read.h"
#include "conf/cluster_self.h"
#include "conf/cluster_size.h"
#include "conf/cluster_slurm.h"

/* --- the source of the text --- */

static int read_file(struct cluster_draft *d, struct err *err)
{
    struct buf text = { 0 };
    int rc = fs_read(d->label, JSON_MAX_BYTES, &text, err);

    if (rc == ERR_NOENT)
        rc = err_wrap(err, ERR_INPUT, "--cluster (expected a file, 'slurm' or 'none')");
    if (rc == 0)
        rc = cluster_read_json(d, text.data != NULL ? text.data : "", text.len, err);
    buf_fini(&text);
    return rc;
}

static int read_variable(struct cluster_draft *d, struct err *err)
{
    const char *text = cluster_env(d, "TF_CONFIG");

    if (text != NULL && text[0] != '\0')
        return cluster_read_json(d, text, strlen(text), err);
    if (text != NULL && !cluster_is_strict(d))
        return cluster_reject(d, NULL, err,
                              "is set to the empty string, which is not JSON; unset it, or set it "
                              "to {} to run alone");
    if (text != NULL)
        cluster_note(d, "TF_CONFIG is set, but empty: this task runs alone");
    d->c->source = "none";
    return 0;
}

static int read_source(struct cluster_draft *d, struct err *err)
{
    const char *file = d->opts->cluster_file, *hosts = d->opts->hosts;
    const char *variable = cluster_env(d, "TF_CONFIG");

    d->label = file != NULL    ? arena_strdup(&d->c->mem, file)
               : hosts != NULL ? d->opts->hosts_from != NULL ? d->opts->hosts_from : "--hosts"
                               : "TF_CONFIG";
    if (d->label == NULL)
        return cluster_nomem(err);
    d->c->source = d->label;
    if (file != NULL && hosts != NULL)
        return cluster_reject(d, NULL, err,
                              "both --cluster and --hosts are given; use one of them");
    if (file == NULL && hosts == NULL)
        return read_variable(d, err);
    if (variable != NULL && variable[0] != '\0')
        cluster_note(d, "TF_CONFIG is set, but %s%.256s is used instead",
                     file != NULL ? "--cluster " : "", d->label);
    if (hosts != NULL)
        return cluster_read_hosts(d, err);
    if (strcmp(file, "slurm") == 0)
        return cluster_read_slurm(d, err);
    return strcmp(file, "none") == 0 ? 0 : read_file(d, err);
}

/* --- the finished table --- */

/* Without a cluster this task is worker 0 of a group of one. */
static int resolve_local(struct cluster_draft *d, struct err *err)
{
    int rc = cluster_check_local(d, err);

    if (rc < 0)
        return rc;
    if (d->opts->required_by != NULL)
        return cluster_reject(d, NULL, err,
                              "%s, but %s; set TF_CONFIG to a JSON "
                              "object with \"cluster\" and \"task\", or use --cluster FILE",
                              d->opts->required_by,
                              strcmp(d->c->source, "none") == 0 ? "TF_CONFIG is unset or empty"
                                                                : "there is no \"cluster\"");
    d->type = CLUSTER_WORKER;
    d->index = 0;
    d->c->is_local = true;
    return cluster_add(d, CLUSTER_WORKER, 0, NULL, 0, NULL, err);
}

static int resolve_listed(struct cluster_draft *d, struct err *err)
{
    int rc;

    cluster_sort(d);
    rc = cluster_find_self(d, err);
    if (rc == 0)
        rc = cluster_check_jobs(d, err);
    if (rc == 0)
        rc = cluster_check_member(d, err);
    if (rc == 0)
        rc = cluster_check_addresses(d, err);
    return rc;
}

/* C-11: TensorFlow only checks whether the job "chief" is named. If the job is empty, no task is
 * the chief. The strict profile treats an empty job as absent. */
static void set_chief(struct cluster_draft *d)
{
    bool is_empty = d->has_job[CLUSTER_CHIEF] && d->count[CLUSTER_CHIEF] == 0;
    bool has_chief = cluster_is_strict(d) ? d->count[CLUSTER_CHIEF] > 0 : d->has_job[CLUSTER_CHIEF];

    d->c->is_chief =
        d->type == CLUSTER_CHIEF || (d->type == CLUSTER_WORKER && d->index == 0 && !has_chief);
    if (is_empty)
        cluster_note(d, cluster_is_strict(d)
                            ? "the job \"chief\" is empty and is treated as absent"
                            : "the job \"chief\" is empty, so by TensorFlow's rule no task is the "
                              "chief; remove it to make worker 0 the chief");
}

static void set_ranks(struct cluster *c)
{
    static const enum cluster_type order[] = { CLUSTER_CHIEF, CLUSTER_WORKER };
    uint32_t rank = 0;

    for (size_t k = 0; k < COUNT_OF(order); k++) {
        for (uint32_t i = 0; i < c->n_tasks; i++) {
            if (c->tasks[i].type != order[k])
                continue;
            c->tasks[i].rank = rank;
            c->ranks[rank++] = &c->tasks[i];
        }
    }
}

static int make_table(struct cluster_draft *d, struct err *err)
{
    struct cluster *c = d->c;

    c->n_tasks = (uint32_t)d->entries.n;
    c->world = d->count[CLUSTER_CHIEF] + d->count[CLUSTER_WORKER];
    c->tasks = arena_array(&c->mem, c->n_tasks, sizeof(*c->tasks));
    c->group = c->world;
    c->n_ps = d->count[CLUSTER_PS];
    c->ranks = arena_array(&c->mem, c->world + c->n_ps + 1, sizeof(struct cluster_task *));
    if (c->tasks == NULL || c->ranks == NULL)
        return cluster_nomem(err);
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        c->tasks[i] = d->entries.at[i].task;
        if (c->tasks[i].type == d->type && c->tasks[i].index == d->index)
            c->self = &c->tasks[i];
    }
    CHECK(c->self != NULL);
    set_ranks(c);
    set_chief(d);
    if (c->n_ps > 0 && c->self->rank != CLUSTER_NO_RANK) {
        cluster_note(d,
                     "the %" PRIu32
                     " ps tasks are not used: gradients are reduced among the training tasks",
                     c->n_ps);
        if (d->notes.n > 0 && !d->failed)
            c->ps_note = d->notes.at[d->notes.n - 1];
    }
    return cluster_make_canonical(c, err);
}

static int copy_notes(struct cluster_draft *d, struct err *err)
{
    struct cluster *c = d->c;

    c->notes = arena_array(&c->mem, d->notes.n + 1, sizeof(const char *));
    if (c->notes == NULL || d->failed)
        return cluster_nomem(err);
    for (size_t i = 0; i < d->notes.n; i++)
        c->notes[i] = d->notes.at[i];
    c->n_notes = (uint32_t)d->notes.n;
    return 0;
}

int cluster_resolve(const struct cluster_opts *opts, struct cluster **out, struct err *err)
{
    struct cluster_draft d = { .opts = opts, .rank_variable = opts->rank_variable };
    int rc;

    CHECK(opts->env != NULL);
    d.c = fault_hit("mem") ? NULL : calloc(1, sizeof(*d.c));
    if (d.c == NULL)
        return cluster_nomem(err);
    rc = read_source(&d, err);
    if (rc == 0 && !d.has_cluster && opts->cluster_file == NULL)
        rc = cluster_form_from_launcher(&d, err);
    if (rc == 0)
        rc = d.has_cluster ? resolve_listed(&d, err) : resolve_local(&d, err);
    if (rc == 0)
        rc = make_table(&d, err);
    if (rc == 0)
        rc = copy_notes(&d, err);
    json_free(d.doc);
    VEC_FINI(d.entries);
    VEC_FINI(d.notes);
    if (rc < 0) {
        cluster_free(d.c);
        return rc;
    }
    *out = d.c;
    return 0;
}

int cluster_use_ps(struct cluster *c, struct err *err)
{
    uint32_t kept = 0;

    CHECK(c->group == c->world);
    if (c->is_dynamic)
        return err_set(err, ERR_INPUT,
                       "%s: parameter servers need the list of all workers and ps tasks, but this text lists only "
                       "the ps tasks and this task (enableDynamicWorker of Kubeflow); give every task the whole "
                       "cluster", c->source);
    if (c->n_ps == 0)
        return err_set(err, ERR_INPUT,
                       "%s: the job has /parameter_server, but the cluster lists no ps task; add \"ps\": "
                       "[\"HOST:PORT\"] to the cluster of every task, or remove the section from the job", c->source);
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        if (c->tasks[i].type != CLUSTER_PS)
            continue;
        c->tasks[i].rank = c->group;
        c->ranks[c->group++] = &c->tasks[i];
    }
    for (uint32_t i = 0; i < c->n_notes; i++)
        if (c->notes[i] != c->ps_note)
            c->notes[kept++] = c->notes[i];
    c->n_notes = kept;
    c->ps_note = NULL;
    return 0;
}

void cluster_free(struct cluster *c)
{
    if (c == NULL)
        return;
    arena_fini(&c->mem);
    free(c);
}
