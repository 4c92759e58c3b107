#include "conf/cluster_draft.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"

enum { NOTE_BYTES = 1024 };

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

int cluster_reject(const struct cluster_draft *d, const cJSON *at, struct err *err, const char *fmt,
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
            cluster_note(d, "\"master\" is an old name of \"chief\" and is treated as \"chief\"");
        d->has_master_note = true;
        name = "chief";
    }
    return cluster_type_find(name, out);
}

int cluster_reject_type(const struct cluster_draft *d, const cJSON *at, const char *name,
                        struct err *err)
{
    const char *near = cluster_type_nearest(name);

    return cluster_reject(d, at, err,
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

static int compare_entries(const void *a, const void *b)
{
    const struct cluster_task *x = &((const struct cluster_entry *)a)->task;
    const struct cluster_task *y = &((const struct cluster_entry *)b)->task;

    if (x->type != y->type)
        return strcmp(cluster_type_name(x->type), cluster_type_name(y->type));
    return (x->index > y->index) - (x->index < y->index);
}

void cluster_sort(struct cluster_draft *d)
{
    if (d->entries.n > 0)
        qsort(d->entries.at, d->entries.n, sizeof(*d->entries.at), compare_entries);
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
