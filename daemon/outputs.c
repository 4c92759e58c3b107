#include "daemon/outputs.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs_probe.h"
#include "base/log.h"
#include "conf/job_types.h"
#include "daemon/settle.h"
#include "preflight/limited.h"

enum { PARTS = 4 /* of the deadline of the job */ };

struct try { /* one place; freed by its thread after a time-out */
    int (*probe)(const char *path, struct err *err);
    int rc;
    struct err err;
    char path[];
};

static void run_try(void *arg)
{
    struct try *t = arg;

    t->rc = t->probe(t->path, &t->err);
}

static int try_one(const char *key, const char *path,
                   int (*probe)(const char *path, struct err *err), uint32_t ms, struct err *err)
{
    size_t n = strlen(path) + 1;
    struct try *t = calloc(1, sizeof(*t) + n);
    int rc = 0;

    CHECK(t != NULL);
    memcpy(t->path, path, n);
    t->probe = probe;
    rc = limited_call(run_try, t, ms, err);
    if (rc == ERR_TIMEOUT) {
        log_warn(
            "storage",
            "%s: '%s' does not answer within %u ms; training begins, and writes are tried later",
            key, path, ms);
        return 0;
    }
    if (rc < 0)
        return rc;
    if (t->rc == ERR_INPUT)
        rc = err_set(err, ERR_INPUT, "%s: this task cannot write to '%s': %s", key, path,
                     t->err.text);
    else if (t->rc < 0)
        log_warn("storage", "%s: '%s': %s; training begins, and writes are tried later", key, path,
                 t->err.text);
    free(t);
    return rc;
}

int outputs_check(const struct settled *s, struct err *err)
{
    bool evaluates = settled_is_evaluator(s);
    const struct {
        const char *key, *path; /* path NULL or "": this task does not write it */
        int (*probe)(const char *path, struct err *err);
    } rows[] = {
        { "/checkpoint/directory", evaluates ? NULL : s->conf->checkpoint.directory, fs_probe_folder },
        { "/export/onnx", evaluates ? NULL : s->conf->export.onnx, fs_probe_file },
        { "/export/safetensors", evaluates ? NULL : s->conf->export.safetensors, fs_probe_file },
        { "/summary/directory", evaluates ? s->evaluator.curves : s->conf->summary.directory, fs_probe_folder },
        { "/evaluator/directory", s->evaluator.directory, fs_probe_folder },
    };
    uint32_t ms = (uint32_t)(s->conf->train.deadline_seconds * 1e3 / PARTS);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < COUNT_OF(rows); i++)
        if (rows[i].path != NULL && rows[i].path[0] != '\0')
            rc = try_one(rows[i].key, rows[i].path, rows[i].probe, ms, err);
    return rc;
}
