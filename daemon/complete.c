#include "daemon/complete.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/thread.h"
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
    (void)fault_hit("ckpt.check"); /* a test hangs the storage here */
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

bool complete_find(const struct conf *c, char *text, size_t n)
{
    struct ckpt_info *info = malloc(sizeof(*info));
    struct err err;
    int rc = info == NULL                 ? err_set(&err, ERR_NOMEM, "out of memory")
             : fault_hit("complete.find") ? err_set(&err, ERR_NOENT, "no checkpoint")
                                          : ckpt_peek(c->checkpoint.directory, NULL, info, &err);
    bool is_found = rc == 0 && strcmp(info->meta.job_digest, c->digest) == 0 &&
                    complete_is_last_step(c, &info->meta);

    if (rc == 0)
        snprintf(text, n, "the newest is %s%s", info->path,
                 strcmp(info->meta.job_digest, c->digest) != 0 ? ", of another job" : "");
    else
        snprintf(text, n, "%s", err.text);
    free(info);
    return is_found;
}

/* ---- a check on a thread of its own ---- */

struct complete_check {
    pthread_mutex_t lock; /* guards the next two */
    uint32_t refs;        /* the owner and the thread */
    enum complete_state state;
    enum complete_depth depth;
    char text[8400]; /* set before `state` */
    struct arena memory;
    struct conf job; /* only the fields that complete_already() reads; in `memory` */
};

static void unref(struct complete_check *k)
{
    uint32_t refs;

    pthread_mutex_lock(&k->lock);
    refs = --k->refs;
    pthread_mutex_unlock(&k->lock);
    if (refs > 0)
        return;
    pthread_mutex_destroy(&k->lock);
    arena_fini(&k->memory);
    free(k);
}

static void *check(void *arg)
{
    struct complete_check *k = arg;
    bool is_complete;

    is_complete = k->depth == COMPLETE_FIND
                      ? complete_find(&k->job, k->text, sizeof(k->text))
                      : complete_already(&k->job, NULL, k->text, sizeof(k->text));
    pthread_mutex_lock(&k->lock);
    k->state = is_complete ? COMPLETE_YES : COMPLETE_NO;
    pthread_mutex_unlock(&k->lock);
    unref(k);
    return NULL;
}

/* Returns false if there is no memory. */
static bool copy_text(struct complete_check *k, const char *from, const char **to)
{
    *to = from != NULL ? arena_strdup(&k->memory, from) : NULL;
    return from == NULL || *to != NULL;
}

static bool copy_job(struct complete_check *k, const struct conf *c)
{
    k->job.run.steps = c->run.steps;
    k->job.run.epochs = c->run.epochs;
    memcpy(k->job.digest, c->digest, sizeof(k->job.digest));
    return copy_text(k, c->checkpoint.directory, &k->job.checkpoint.directory) &&
           copy_text(k, c->export.onnx, &k->job.export.onnx) &&
           copy_text(k, c->export.safetensors, &k->job.export.safetensors);
}

int complete_check_start(const struct conf *c, enum complete_depth depth,
                         struct complete_check **out, struct err *err)
{
    struct complete_check *k = calloc(1, sizeof(*k));
    pthread_t thread;
    int rc;

    if (k == NULL)
        return err_set(err, ERR_NOMEM, "complete: out of memory");
    pthread_mutex_init(&k->lock, NULL);
    k->refs = 2;
    k->depth = depth;
    rc = copy_job(k, c) ? thread_start(&thread, "checks whether the job is complete", check, k, err)
                        : err_set(err, ERR_NOMEM, "complete: out of memory");
    if (rc < 0) {
        k->refs = 1;
        unref(k);
        return rc;
    }
    pthread_detach(thread);
    *out = k;
    return 0;
}

enum complete_state complete_check_state(struct complete_check *k, char *text, size_t n)
{
    enum complete_state state;

    pthread_mutex_lock(&k->lock);
    state = k->state;
    pthread_mutex_unlock(&k->lock);
    if (state != COMPLETE_UNKNOWN)
        snprintf(text, n, "%s", k->text);
    return state;
}

void complete_check_free(struct complete_check *k)
{
    if (k != NULL)
        unref(k);
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
