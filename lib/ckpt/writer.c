/* writer.c - one staging copy, one thread, four states:
 *
 *     IDLE      the copy is nobody's        begin: FILLING
 *     FILLING   it is the caller's          hand over: WRITING
 *     WRITING   it is the thread's          saved: IDLE      failed: WAITING
 *     WAITING   it holds a state that could not be saved
 *                                           time to try again, or somebody flushes: WRITING
 *                                           begin: FILLING (a newer state replaces it) */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/map.h"
#include "ckpt/ckpt_priv.h"

enum state { IDLE, FILLING, WRITING, WAITING };

enum { MODEL, OPTIMIZER, N_LAYOUTS };

enum {
    RETRY_MS = 1000,
    RETRY_DOUBLINGS = 5,
    WAIT_MS_MAX = 1000 * 1000 * 1000, /* eleven days is for ever */
};

struct ckpt_writer {
    char *directory;                      /* owned */
    struct ckpt_layout layouts[N_LAYOUTS]; /* owned */
    uint32_t max_to_keep;
    size_t state_bytes;
    uint64_t retry_ms;
    void (*on_event)(void *arg, const struct ckpt_event *e);
    void *arg;
    struct ckpt_permission permission;
    char *staging; /* owned */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    enum state state;
    struct ckpt_meta meta; /* of what is in the staging copy */
    uint64_t handed_ns;
    uint64_t failures;     /* in a row, of this state */
    bool hurry;            /* somebody waits for the result: try again now */
    bool closing;
    struct err last;       /* why we are WAITING */
};

/* ---- the thread ---- */

static void tell(struct ckpt_writer *w, const struct ckpt_event *e)
{
    if (w->on_event != NULL)
        w->on_event(w->arg, e);
}

static char *path_of(const struct ckpt_writer *w, uint64_t step)
{
    char name[CKPT_NAME_BYTES];

    ckpt_folder_name(step, name);
    return fs_join(w->directory, name);
}

static void tell_removed(struct ckpt_writer *w, uint64_t step, int rc, const struct err *err)
{
    char *path = path_of(w, step);
    struct ckpt_event e = { .kind = rc < 0 ? CKPT_FAILED : CKPT_REMOVED, .step = step,
                            .path = path != NULL ? path : "", .text = rc < 0 ? err->text : NULL };

    tell(w, &e);
    free(path);
}

/* Removes the oldest until max_to_keep are left. The one just verified stays in any case, even if
 * folders with later steps lie beside it. What cannot be removed is tried again next time. */
static void prune(struct ckpt_writer *w, uint64_t just_saved)
{
    uint64_t *steps;
    size_t n, left;
    struct err err;
    int rc;

    if (w->max_to_keep == 0)
        return;
    rc = ckpt_folder_list(w->directory, &steps, &n, &err);
    if (rc < 0) {
        err_wrap(&err, rc, "remove old checkpoints");
        tell_removed(w, just_saved, rc, &err);
        return;
    }
    left = n;
    for (size_t i = 0; i < n && left > w->max_to_keep; i++) {
        if (steps[i] == just_saved)
            continue;
        rc = ckpt_remove(w->directory, steps[i], &err);
        if (rc < 0)
            err_wrap(&err, rc, "remove an old checkpoint");
        tell_removed(w, steps[i], rc, &err);
        left--;
    }
    free(steps);
}

static void tell_saved(struct ckpt_writer *w, uint64_t step, uint64_t bytes, uint64_t ns)
{
    char *path = path_of(w, step);
    struct ckpt_event e = { .kind = CKPT_WRITTEN, .step = step, .bytes = bytes, .ns = ns,
                            .path = path != NULL ? path : "" };

    tell(w, &e);
    free(path);
}

static void tell_failed(struct ckpt_writer *w, uint64_t step, const struct err *err, bool final)
{
    struct ckpt_event e = { .kind = CKPT_FAILED, .step = step, .path = w->directory,
                            .text = err->text, .final = final };

    tell(w, &e);
}

/* With the lock held, in WRITING; holds it again when it returns. */
static void save(struct ckpt_writer *w)
{
    struct ckpt_meta meta = w->meta;
    uint64_t bytes = 0, ns;
    bool existed;
    struct err err;
    int rc;

    pthread_mutex_unlock(&w->lock);
    rc = ckpt_save(w->directory, w->layouts, N_LAYOUTS, &meta, w->staging,
                   w->permission, &bytes, &existed, &err);
    ns = clock_ns() - w->handed_ns;
    if (rc == 0) {
        tell_saved(w, meta.step, bytes, ns);
        prune(w, meta.step);
    } else {
        tell_failed(w, meta.step, &err, false);
    }
    pthread_mutex_lock(&w->lock);
    w->state = rc == 0 ? IDLE : WAITING;
    w->failures = rc == 0 ? 0 : w->failures + 1;
    if (rc < 0)
        w->last = err;
    pthread_cond_broadcast(&w->changed);
}

static void after_ms(uint64_t ms, struct timespec *out)
{
    clock_gettime(CLOCK_MONOTONIC, out);
    if (ms > WAIT_MS_MAX)
        ms = WAIT_MS_MAX;
    out->tv_sec += (time_t)(ms / 1000);
    out->tv_nsec += (long)(ms % 1000) * 1000000;
    if (out->tv_nsec >= 1000000000) {
        out->tv_nsec -= 1000000000;
        out->tv_sec++;
    }
}

static uint64_t retry_delay_ms(const struct ckpt_writer *w)
{
    uint64_t doublings = w->failures > 0 ? w->failures - 1 : 0;

    return w->retry_ms << (doublings < RETRY_DOUBLINGS ? doublings : RETRY_DOUBLINGS);
}

/* With the lock held, in WAITING: until it is time, or there is something better to do. */
static void wait_to_retry(struct ckpt_writer *w)
{
    struct timespec until;
    int rc = 0;

    after_ms(retry_delay_ms(w), &until);
    while (rc == 0 && w->state == WAITING && !w->hurry && !w->closing)
        rc = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    if (w->state == WAITING && !w->closing) {
        w->hurry = false;
        w->state = WRITING;
    }
}

static void *run(void *arg)
{
    struct ckpt_writer *w = arg;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (w->state == WRITING)
            save(w);
        else if (w->closing)
            break;
        else if (w->state == WAITING)
            wait_to_retry(w);
        else
            pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    if (w->state == WAITING) /* it will not be tried again */
        tell_failed(w, w->meta.step, &w->last, true);
    return NULL;
}

/* ---- opening and closing ---- */

static int check_names(const struct ckpt_tensor *tensors, uint32_t n, struct err *err)
{
    struct map names = { 0 };
    enum map_put put = MAP_NEW;
    uint32_t i;

    for (i = 0; put == MAP_NEW && i < n; i++)
        put = map_put(&names, tensors[i].name, i);
    map_fini(&names);
    if (put == MAP_EXISTED)
        return err_set(err, ERR_INPUT, "two tensors have the name '%s'", tensors[i - 1].name);
    return put == MAP_NOMEM ? err_set(err, ERR_NOMEM, "out of memory") : 0;
}

static int start(struct ckpt_writer *w, struct err *err)
{
    sigset_t all, before;
    int errnum;

    sigfillset(&all); /* signals are the business of the loop */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errnum = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (errnum != 0)
        return err_sys(err, errnum, "start the checkpoint thread");
    w->started = true;
    return 0;
}

static int prepare(struct ckpt_writer *w, const struct ckpt_writer_opts *opts, struct err *err)
{
    int rc;

    w->directory = strdup(opts->directory);
    w->staging = malloc(opts->state_bytes > 0 ? opts->state_bytes : 1);
    if (w->directory == NULL || w->staging == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a copy of %zu bytes of state",
                       opts->state_bytes);
    memset(w->staging, 0, opts->state_bytes); /* its pages come now, not while a step waits */
    rc = check_names(opts->model, opts->n_model, err);
    if (rc == 0)
        rc = check_names(opts->slots, opts->n_slots, err);
    if (rc == 0)
        rc = ckpt_layout_init(CKPT_MODEL_FILE, opts->model, opts->n_model, opts->state_bytes,
                              &w->layouts[MODEL], err);
    if (rc == 0)
        rc = ckpt_layout_init(CKPT_OPTIMIZER_FILE, opts->slots, opts->n_slots, opts->state_bytes,
                              &w->layouts[OPTIMIZER], err);
    if (rc == 0)
        rc = fs_mkdirs(w->directory, err);
    if (rc == 0)
        rc = ckpt_folder_clean(w->directory, err);
    return rc;
}

int ckpt_writer_open(const struct ckpt_writer_opts *opts, struct ckpt_writer **out, struct err *err)
{
    struct ckpt_writer *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;
    int rc;

    if (w == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint writer: out of memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    w->max_to_keep = opts->max_to_keep;
    w->state_bytes = opts->state_bytes;
    w->retry_ms = opts->retry_ms > 0 ? opts->retry_ms : RETRY_MS;
    if (w->retry_ms > WAIT_MS_MAX)
        w->retry_ms = WAIT_MS_MAX;
    w->on_event = opts->on_event;
    w->arg = opts->arg;
    w->permission = (struct ckpt_permission){ opts->may_publish, opts->arg };
    rc = prepare(w, opts, err);
    if (rc == 0)
        rc = start(w, err);
    if (rc < 0) {
        ckpt_writer_close(w);
        return err_wrap(err, rc, "checkpoints in '%s'", opts->directory);
    }
    *out = w;
    return 0;
}

void ckpt_writer_close(struct ckpt_writer *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->started)
        pthread_join(w->thread, NULL);
    for (uint32_t i = 0; i < N_LAYOUTS; i++)
        ckpt_layout_fini(&w->layouts[i]);
    free(w->staging);
    free(w->directory);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- handing over ---- */

int ckpt_begin(struct ckpt_writer *w, bool wait, void **staging, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&w->lock);
    CHECK(w->state != FILLING);
    while (wait && w->state == WRITING)
        pthread_cond_wait(&w->changed, &w->lock);
    if (w->state == WRITING)
        rc = err_set(err, ERR_EXISTS, "the checkpoint of step %" PRIu64 " is still being written",
                     w->meta.step);
    else
        w->state = FILLING;
    pthread_mutex_unlock(&w->lock);
    if (rc == 0)
        *staging = w->staging;
    return rc;
}

void ckpt_hand_over(struct ckpt_writer *w, const struct ckpt_meta *meta)
{
    pthread_mutex_lock(&w->lock);
    CHECK(w->state == FILLING);
    w->meta = *meta;
    w->handed_ns = clock_ns();
    w->failures = 0;
    w->hurry = false;
    w->state = WRITING;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

int ckpt_write(struct ckpt_writer *w, const struct ckpt_meta *meta, const void *state, bool wait,
               struct err *err)
{
    void *staging;
    int rc = ckpt_begin(w, wait, &staging, err);

    if (rc < 0)
        return rc;
    memcpy(staging, state, w->state_bytes);
    ckpt_hand_over(w, meta);
    return 0;
}

int ckpt_flush(struct ckpt_writer *w, uint64_t wait_ms, struct err *err)
{
    struct timespec until;
    int rc = 0, waited = 0;

    after_ms(wait_ms, &until);
    pthread_mutex_lock(&w->lock);
    if (w->state == WAITING) {
        w->hurry = true;
        pthread_cond_broadcast(&w->changed);
    }
    while (waited == 0 && (w->state == WRITING || w->state == WAITING))
        waited = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    if ((w->state == WRITING || w->state == WAITING) && w->failures > 0) {
        rc = w->last.code;
        if (err != NULL)
            *err = w->last;
    } else if (w->state == WRITING) {
        rc = err_set(err, ERR_TIMEOUT,
                     "the checkpoint of step %" PRIu64 " was not on disk after %" PRIu64 " ms",
                     w->meta.step, wait_ms);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}
