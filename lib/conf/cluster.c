/* cluster.c - the way from a text to a cluster, step by step, and the finished table. */
#include "conf/cluster_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/text.h"

enum { NOTE_BYTES = 1024 };

static const char *const type_names[CLUSTER_TYPES] = {
    [CLUSTER_CHIEF] = "chief",
    [CLUSTER_WORKER] = "worker",
    [CLUSTER_PS] = "ps",
    [CLUSTER_EVALUATOR] = "evaluator",
};

const char *cluster_type_name(enum cluster_type t)
{
    CHECK(t < CLUSTER_TYPES);
    return type_names[t];
}

const char *cluster_task_name(const struct cluster_task *t, char *out, size_t n)
{
    snprintf(out, n, "%s %" PRIu32, cluster_type_name(t->type), t->index);
    return out;
}

/* --- for the steps (cluster_priv.h) --- */

void cluster_note(struct cluster_draft *d, const char *fmt, ...)
{
    char text[NOTE_BYTES];
    va_list ap;
    char *note;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    note = arena_strdup(&d->c->mem, text);
    if (note == NULL || !VEC_PUSH(d->notes, note))
        d->failed = true;
}

int cluster_refuse(const struct cluster_draft *d, const cJSON *at, struct err *err, const char *fmt,
                   ...)
{
    char text[NOTE_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (at != NULL)
        return json_error(d->doc, at, err, "%s", text);
    return err_set(err, ERR_INPUT, "%s: %s", d->label, text);
}

int cluster_nomem(struct err *err)
{
    return err_set(err, ERR_NOMEM, "cluster: out of memory");
}

const char *cluster_env(const struct cluster_draft *d, const char *name)
{
    return d->opts->env(d->opts->env_arg, name);
}

bool cluster_type_parse(struct cluster_draft *d, const char *name, enum cluster_type *out)
{
    if (strcmp(name, "master") == 0) {
        if (!d->has_master_note)
            cluster_note(d, "\"master\" is an old word for \"chief\" and is read as such");
        d->has_master_note = true;
        name = "chief";
    }
    for (int t = 0; t < CLUSTER_TYPES; t++) {
        if (strcmp(name, type_names[t]) == 0) {
            *out = (enum cluster_type)t;
            return true;
        }
    }
    return false;
}

int cluster_refuse_type(const struct cluster_draft *d, const cJSON *at, const char *name,
                        struct err *err)
{
    const char *near = text_nearest(name, type_names, CLUSTER_TYPES);

    return cluster_refuse(d, at, err,
                          "task type must be chief, worker, ps or evaluator, found "
                          "\"%.64s\"%s%s%s",
                          name, near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                          near != NULL ? "\"?" : "");
}

int cluster_add(struct cluster_draft *d, enum cluster_type type, uint32_t index,
                const char *address, size_t n, const cJSON *at, struct err *err)
{
    struct cluster_entry e = {
        .task = { .type = type, .index = index, .rank = CLUSTER_NO_RANK },
        .at = at,
    };

    if (address != NULL) {
        e.task.address = arena_strndup(&d->c->mem, address, n);
        if (e.task.address == NULL)
            return cluster_nomem(err);
    }
    if (!VEC_PUSH(d->entries, e))
        return cluster_nomem(err);
    d->count[type]++;
    return 0;
}

static int by_name_and_index(const void *a, const void *b)
{
    const struct cluster_task *x = &((const struct cluster_entry *)a)->task;
    const struct cluster_task *y = &((const struct cluster_entry *)b)->task;

    if (x->type != y->type)
        return strcmp(type_names[x->type], type_names[y->type]);
    return (x->index > y->index) - (x->index < y->index);
}

void cluster_sort(struct cluster_draft *d)
{
    if (d->entries.n > 0)
        qsort(d->entries.at, d->entries.n, sizeof(*d->entries.at), by_name_and_index);
}

const struct cluster_entry *cluster_first(const struct cluster_draft *d, enum cluster_type type)
{
    for (size_t i = 0; i < d->entries.n; i++) {
        if (d->entries.at[i].task.type == type)
            return &d->entries.at[i];
    }
    return NULL;
}

const struct cluster_entry *cluster_find(const struct cluster_draft *d, enum cluster_type type,
                                         uint32_t index)
{
    for (size_t i = 0; i < d->entries.n; i++) {
        if (d->entries.at[i].task.type == type && d->entries.at[i].task.index == index)
            return &d->entries.at[i];
    }
    return NULL;
}

/* --- where the text comes from --- */

static int read_file(struct cluster_draft *d, struct err *err)
{
    struct buf text = { 0 };
    int rc = fs_read(d->label, JSON_MAX_BYTES, &text, err);

    if (rc == ERR_NOENT)
        rc = err_wrap(err, ERR_INPUT, "--cluster (expected a file, or 'slurm')");
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
        return cluster_refuse(d, NULL, err,
                              "is set to the empty string, which is no JSON; unset "
                              "it, or set it to {} to run alone");
    if (text != NULL)
        cluster_note(d, "TF_CONFIG is set, but empty: this task runs alone");
    d->c->source = "none";
    return 0;
}

static int read_source(struct cluster_draft *d, struct err *err)
{
    const char *file = d->opts->cluster_file;
    const char *variable = cluster_env(d, "TF_CONFIG");

    d->label = file != NULL ? arena_strdup(&d->c->mem, file) : "TF_CONFIG";
    if (d->label == NULL)
        return cluster_nomem(err);
    d->c->source = d->label;
    if (file == NULL)
        return read_variable(d, err);
    if (variable != NULL && variable[0] != '\0')
        cluster_note(d, "TF_CONFIG is set, but --cluster %.256s stands for it", file);
    return strcmp(file, "slurm") == 0 ? cluster_read_slurm(d, err) : read_file(d, err);
}

/* --- the finished table --- */

/* A process on its own is worker 0 of nobody. */
static int make_local(struct cluster_draft *d, struct err *err)
{
    int rc = cluster_check_local(d, err);

    if (rc < 0)
        return rc;
    if (d->opts->require_cluster)
        return cluster_refuse(d, NULL, err,
                              "--require-cluster, but %s; set TF_CONFIG to a JSON "
                              "object with \"cluster\" and \"task\", or use --cluster FILE",
                              strcmp(d->c->source, "none") == 0 ? "it is unset or empty"
                                                                : "it names no cluster");
    d->type = CLUSTER_WORKER;
    d->index = 0;
    d->c->is_local = true;
    return cluster_add(d, CLUSTER_WORKER, 0, NULL, 0, NULL, err);
}

static int make_listed(struct cluster_draft *d, struct err *err)
{
    int rc;

    cluster_sort(d);
    rc = cluster_find_self(d, err);
    if (rc == 0)
        rc = cluster_check_shape(d, err);
    if (rc == 0)
        rc = cluster_check_member(d, err);
    if (rc == 0)
        rc = cluster_check_addresses(d, err);
    return rc;
}

/* C-11: TensorFlow asks whether the job is named; with nobody in it, nobody is chief. strict
 * takes an empty job as absent. */
static void set_chief(struct cluster_draft *d)
{
    bool is_empty = d->has_job[CLUSTER_CHIEF] && d->count[CLUSTER_CHIEF] == 0;
    bool has_chief = cluster_is_strict(d) ? d->count[CLUSTER_CHIEF] > 0 : d->has_job[CLUSTER_CHIEF];

    d->c->is_chief =
        d->type == CLUSTER_CHIEF || (d->type == CLUSTER_WORKER && d->index == 0 && !has_chief);
    if (is_empty)
        cluster_note(d, cluster_is_strict(d)
                            ? "the job \"chief\" lists nobody and is taken as absent"
                            : "the job \"chief\" lists nobody, so that by TensorFlow's rule "
                              "nobody is chief; leave it out to make worker 0 the chief");
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
    c->ranks = arena_array(&c->mem, c->world + 1, sizeof(struct cluster_task *));
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
    if (d->count[CLUSTER_PS] > 0 && c->self->rank != CLUSTER_NO_RANK)
        cluster_note(d,
                     "the %" PRIu32 " ps tasks take no part: gradients are reduced among the "
                     "training tasks",
                     d->count[CLUSTER_PS]);
    return cluster_make_canonical(c, err);
}

static int take_notes(struct cluster_draft *d, struct err *err)
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
    struct cluster_draft d = { .opts = opts };
    int rc;

    CHECK(opts->env != NULL);
    d.c = fault_hit("mem") ? NULL : calloc(1, sizeof(*d.c));
    if (d.c == NULL)
        return cluster_nomem(err);
    rc = read_source(&d, err);
    if (rc == 0)
        rc = d.has_cluster ? make_listed(&d, err) : make_local(&d, err);
    if (rc == 0)
        rc = make_table(&d, err);
    if (rc == 0)
        rc = take_notes(&d, err);
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

void cluster_free(struct cluster *c)
{
    if (c == NULL)
        return;
    arena_fini(&c->mem);
    free(c);
}
