#include "daemon/complete.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "conf/job.h"
#include "train/train.h"

/* The process that wrote the checkpoint set `complete` from the size of the data. The end that the
 * job file states must agree with it. */
bool complete_is_last_step(const struct conf *c, const struct ckpt_meta *m)
{
    if (!m->complete)
        return false;
    return c->run.steps > 0 ? m->step == c->run.steps
                            : m->epoch == c->run.epochs && m->position == 0;
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

bool complete_already(const struct conf *c,
                      void (*on_progress)(void *arg, uint64_t done, uint64_t all), char *text,
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
                  strcmp(info->meta.job_digest, c->digest) == 0 &&
                  complete_is_last_step(c, &info->meta) && is_exported(c) &&
                  ckpt_verify(info->path, on_progress, NULL, verified, &err) == 0;
    if (is_complete)
        snprintf(text, n, "the job is complete: %s is of its last step%s%s; to train again, remove %s or use "
                          "--restart (trainerd alone, trainerctl local), for a group `trainerctl restart JOB`",
                 info->path, c->export.onnx != NULL ? ", the trained model is " : "",
                 c->export.onnx != NULL ? c->export.onnx : "", c->checkpoint.directory);
    free(info);
    return is_complete;
}

int complete_check_model(const struct train_opts *train, struct err *err)
{
    struct ckpt_info *info = malloc(sizeof(*info));
    char digest[sizeof(info->meta.model_digest)];
    int rc = info != NULL ? ckpt_peek(train->checkpoint.directory, NULL, info, err)
                          : err_set(err, ERR_NOMEM, "complete: out of memory");

    if (rc == 0 && info->meta.model_digest[0] != '\0')
        rc = train_model_digest(train, digest, err);
    if (rc == 0 && info->meta.model_digest[0] != '\0' && strcmp(digest, info->meta.model_digest) != 0)
        rc = err_set(
            err, ERR_INPUT,
            "%s is of the job's last step, but of another model than '%s' is now; expected "
            "model digest %.16s, found %.16s: train the new model with --restart (for a group "
            "`trainerctl "
            "restart JOB`), which keeps these checkpoints, or name another checkpoint.directory",
            info->path, train->model.onnx, digest, info->meta.model_digest);
    free(info);
    return rc;
}
