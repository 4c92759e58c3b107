#include "daemon/complete.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "conf/job.h"

/* The flag was set by a process that knew the data; what the job itself says about its end must agree. */
static bool is_last_step(const struct conf *c, const struct ckpt_meta *m)
{
    if (!m->complete)
        return false;
    return c->train.steps > 0 ? m->step == c->train.steps : m->epoch == c->train.epochs && m->position == 0;
}

static bool is_written(const char *path)
{
    struct stat st;

    return path == NULL || (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0);
}

static bool is_exported(const struct conf *c)
{
    return is_written(c->export.onnx) && is_written(c->export.safetensors);
}

bool complete_already(const struct conf *c, void (*on_progress)(void *arg, uint64_t done, uint64_t all), char *text,
                      size_t n)
{
    struct ckpt_info *info, *verified;
    struct err err;
    bool is_complete;

    if (c->checkpoint.directory == NULL)
        return false;
    info = malloc(2 * sizeof(*info));
    verified = info != NULL ? info + 1 : NULL;
    is_complete = info != NULL && ckpt_peek(c->checkpoint.directory, NULL, info, &err) == 0 &&
                  strcmp(info->meta.job_digest, c->digest) == 0 && is_last_step(c, &info->meta) &&
                  is_exported(c) && ckpt_verify(info->path, on_progress, NULL, verified, &err) == 0;
    if (is_complete)
        snprintf(text, n, "the job is complete: %s is of its last step%s%s; to train again, remove %s or use "
                          "--restart (trainerd alone, trainerctl local), for a group `trainerctl restart JOB`",
                 info->path, c->export.onnx != NULL ? ", the trained model is " : "",
                 c->export.onnx != NULL ? c->export.onnx : "", c->checkpoint.directory);
    free(info);
    return is_complete;
}
