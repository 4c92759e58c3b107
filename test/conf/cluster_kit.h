/* cluster_kit.h - tests cluster_resolve() with rows: a row has the input and the outcome in each
 * profile.
 *
 * An outcome is either a description, "worker 1 rank 2 of 4" followed by " chief", " local" or "
 * dynamic" where they apply, or "!" followed by a part of the error text (place, pointer and start
 * of the message). */
#ifndef TEST_CONF_CLUSTER_KIT_H
#define TEST_CONF_CLUSTER_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "conf/cluster.h"

/* A valid pair of workers; each row adds one error. */
#define TWO "\"cluster\":{\"worker\":[\"a:1\",\"b:2\"]}"
#define W(index_) "\"task\":{\"type\":\"worker\",\"index\":" #index_ "}"
#define T(type_, index_) "\"task\":{\"type\":\"" type_ "\",\"index\":" #index_ "}"
/* A cluster of a worker at this address and a second worker; a cluster of that worker only. */
#define AT(address_) "{\"cluster\":{\"worker\":[\"" address_ "\",\"b:2\"]}," W(0) "}"
#define ALONE_AT(address_) "{\"cluster\":{\"worker\":[\"" address_ "\"]}," W(0) "}"
#define CLUSTER(jobs_, task_) "{\"cluster\":{" jobs_ "}," task_ "}"

#define LOCAL "worker 0 rank 0 of 1 chief local"
#define FIRST "worker 0 rank 0 of 2 chief"
#define SECOND "worker 1 rank 1 of 2"

struct cluster_row {
    const char *id;
    const char *text;   /* TF_CONFIG; NULL: unset */
    const char *strict; /* outcome in the strict profile */
    const char *tf;     /* outcome in the tf profile; NULL: the same */
    const char *note;   /* strict: a part of one of the notes; NULL: there are no notes */
    const char *env[8]; /* "NAME=value" */
    const char *task, *ignore, *host, *file, *hosts;
    unsigned port;
    bool require, same;
};

static inline const char *kit_env(void *arg, const char *name)
{
    const struct cluster_row *row = arg;
    size_t n = strlen(name);

    if (strcmp(name, "TF_CONFIG") == 0)
        return row->text;
    for (size_t i = 0; i < sizeof(row->env) / sizeof(row->env[0]); i++) {
        if (row->env[i] != NULL && strncmp(row->env[i], name, n) == 0 && row->env[i][n] == '=')
            return row->env[i] + n + 1;
    }
    return NULL;
}

static inline int kit_resolve(const struct cluster_row *row, enum cluster_profile profile,
                              struct cluster **out, struct err *err)
{
    struct cluster_opts opts = {
        .profile = profile,
        .cluster_file = row->file,
        .hosts = row->hosts,
        .first_port = row->port,
        .task = row->task,
        .ignore_jobs = row->ignore,
        .required_by = row->require ? "--require-cluster is set" : NULL,
        .allow_same_address = row->same,
        .env = kit_env,
        .env_arg = (void *)(uintptr_t)row,
        .hostname = row->host,
    };

    return cluster_resolve(&opts, out, err);
}

static inline void kit_describe(const struct cluster *c, char *out, size_t n)
{
    char rank[16] = "-", name[32];

    if (c->self->rank != CLUSTER_NO_RANK)
        snprintf(rank, sizeof(rank), "%u", (unsigned)c->self->rank);
    snprintf(out, n, "%s rank %s of %u%s%s%s", cluster_task_name(c->self, name, sizeof(name)), rank,
             (unsigned)c->world, c->is_chief ? " chief" : "", c->is_local ? " local" : "",
             c->is_dynamic ? " dynamic" : "");
}

/* Checks the invariants of every cluster. */
static inline void kit_check_table(const struct cluster *c)
{
    uint32_t trainers = 0;

    for (uint32_t i = 0; i < c->n_tasks; i++) {
        const struct cluster_task *t = &c->tasks[i];

        trainers += t->rank != CLUSTER_NO_RANK;
        assert_int_equal(t->rank != CLUSTER_NO_RANK,
                         t->type == CLUSTER_CHIEF || t->type == CLUSTER_WORKER);
        if (t->address != NULL)
            assert_non_null(t->host);
        if (i > 0 && t->type == t[-1].type)
            assert_true(t[-1].index < t->index);
        else if (i > 0)
            assert_true(strcmp(cluster_type_name(t[-1].type), cluster_type_name(t->type)) < 0);
    }
    assert_int_equal(trainers, c->world);
    for (uint32_t r = 0; r < c->world; r++)
        assert_int_equal(c->ranks[r]->rank, r);
    assert_true(c->self >= c->tasks && c->self < c->tasks + c->n_tasks);
    assert_int_equal(strlen(c->hash), 64);
}

static inline void kit_check_note(const struct cluster_row *row, const struct cluster *c)
{
    for (uint32_t i = 0; i < c->n_notes; i++) {
        if (row->note != NULL && strstr(c->notes[i], row->note) != NULL)
            return;
    }
    if (row->note == NULL && c->n_notes == 0)
        return;
    fail_msg("%s: expected the note '%s' among %u, the first is '%s'", row->id,
             row->note != NULL ? row->note : "(none)", (unsigned)c->n_notes,
             c->n_notes > 0 ? c->notes[0] : "(none)");
}

static inline void kit_check(const struct cluster_row *row, enum cluster_profile profile)
{
    const char *expected = profile == CLUSTER_TF && row->tf != NULL ? row->tf : row->strict;
    const char *name = profile == CLUSTER_TF ? "tf" : "strict";
    struct cluster *c = NULL;
    struct err err = { 0 };
    char description[128];
    int rc = kit_resolve(row, profile, &c, &err);

    if (rc < 0) {
        assert_null(c);
        assert_int_equal(rc, err.code);
        assert_int_equal(rc, ERR_INPUT);
        if (expected[0] != '!' || strstr(err.text, expected + 1) == NULL)
            fail_msg("%s (%s): expected '%s', found the refusal '%s'", row->id, name, expected,
                     err.text);
        return;
    }
    kit_check_table(c);
    kit_describe(c, description, sizeof(description));
    if (strcmp(description, expected) != 0)
        fail_msg("%s (%s): expected '%s', found '%s'", row->id, name, expected, description);
    if (profile == CLUSTER_STRICT)
        kit_check_note(row, c);
    cluster_free(c);
}

static inline void kit_check_rows(const struct cluster_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kit_check(&rows[i], CLUSTER_STRICT);
        kit_check(&rows[i], CLUSTER_TF);
    }
}

#endif
