/* writer.c - a thread with one staging area and four states:
 *
 *     state     user of the staging area    transitions
 *     IDLE      none                        ckpt_begin(): FILLING
 *     FILLING   the caller                  ckpt_hand_over(): WRITING
 *     WRITING   the thread                  saved: IDLE      failed: WAITING
 *                                           right to publish lost, or abandoned: IDLE
 *     WAITING   none; the state in it       retry time reached, or a flush: WRITING
 *               could not be saved          ckpt_begin(): FILLING (a newer state replaces it)
 *
 * The storage may hang in WRITING indefinitely; the owner of the writer never waits without a
 * limit. */
#include <stdatomic.h>
#include <errno.h>
#include <inttypes.h>
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
#include "ckpt/thread.h"

enum state { IDLE, FILLING, WRITING, WAITING };

enum { MODEL, OPTIMIZER, N_LAYOUTS };

enum {
    RETRY_MS = 1000,
    RETRY_DOUBLINGS = 5,
    RETRY_MS_MAX = 1000 * 1000 * 1000,
    CLOSE_MS = 10 * 1000,
    FLUSH_LOOK_MS = 50,
    ABANDONED_MS = 100, /* time for the thread to stop after the save was abandoned */
    CAUSE_BYTES = 128,
};

struct ckpt_writer {
    char *directory;                       /* owned */
    struct ckpt_layout layouts[N_LAYOUTS]; /* owned */
    _Atomic uint32_t max_to_keep;
    size_t state_bytes;
    uint64_t retry_ms, close_ms;
    void (*on_event)(void *arg, const struct ckpt_event *e);
    int (*may_publish)(void *arg, struct err *err);
    int (*arrive)(void *arg, struct err *err);
    void *arg;
    char *staging;
    bool owns_staging;

    pthread_mutex_t calling; /* held during on_event(), may_publish() and arrive() */
    bool is_closed;          /* guarded by `calling`: the callbacks are not called any more */

    /* used by the thread only */
    bool is_prepared;                 /* the directory exists, and leftovers are removed */
    int reported_code;                /* last error reported since a successful save; 0: none */
    char reported_cause[CAUSE_BYTES]; /* its cause */

    struct ckpt_watch watch;   /* of the current save */
    struct ckpt_thread thread; /* its lock guards the fields below */
    enum state state;
    struct ckpt_meta meta;   /* of the state in the staging area */
    uint64_t handed_over_ns; /* clock_ns() of ckpt_hand_over() */
    uint64_t failures;       /* consecutive failures of this state */
    uint32_t failed_saves;   /* failures since a state was saved or discarded */
    bool retry_now;          /* a retry is due now: a flush waits, or the save is abandoned */
    bool closing;
    bool is_discarded; /* the last state that was handed over was discarded */
    struct err last;   /* the error of WAITING, or the reason for the discard */
};

/* ---- the thread ---- */

static void send_event(struct ckpt_writer *w, const struct ckpt_event *e)
{
    pthread_mutex_lock(&w->calling);
    if (w->on_event != NULL && !w->is_closed)
        w->on_event(w->arg, e);
    pthread_mutex_unlock(&w->calling);
}

static int owner_may_publish(void *arg, struct err *err)
{
    struct ckpt_writer *w = arg;
    int rc = 0;

    pthread_mutex_lock(&w->calling);
    if (w->is_closed)
        rc = err_set(err, ERR_CANCELED, "the save was abandoned");
    else if (w->may_publish != NULL)
        rc = w->may_publish(w->arg, err);
    pthread_mutex_unlock(&w->calling);
    return rc;
}

static struct ckpt_right publish_right(struct ckpt_writer *w)
{
    return (struct ckpt_right){ .may_publish = owner_may_publish, .arg = w,
                                .watch = &w->watch };
}

/* Returns true if this failure was already reported. The text after the last colon identifies the
 * cause; numbers and names precede it. */
static bool is_repeated(struct ckpt_writer *w, int rc, const struct err *err)
{
    const char *colon = strrchr(err->text, ':');
    char cause[CAUSE_BYTES];
    bool again;

    snprintf(cause, sizeof(cause), "%s", colon != NULL ? colon + 1 : err->text);
    again = w->reported_code == rc && (rc == ERR_CORRUPT || strcmp(cause, w->reported_cause) == 0);
    w->reported_code = rc;
    strcpy(w->reported_cause, cause);
    return again;
}

static char *path_of(const struct ckpt_writer *w, uint64_t step)
{
    char name[CKPT_NAME_BYTES];

    ckpt_folder_name(step, name);
    return fs_join(w->directory, name);
}

static void report_removed(struct ckpt_writer *w, uint64_t step, int rc, const struct err *err)
{
    char *path = path_of(w, step);
    struct ckpt_event e = { .kind = rc < 0 ? CKPT_FAILED : CKPT_REMOVED, .step = step,
                            .path = path != NULL ? path : "", .text = rc < 0 ? err->text : NULL,
                            .again = rc < 0 && is_repeated(w, rc, err) };

    send_event(w, &e);
    free(path);
}

/* Checks that the checkpoint that was just verified still exists, before older ones are removed. */
static int check_saved(const struct ckpt_writer *w, const struct ckpt_meta *saved, struct err *err)
{
    char *path = path_of(w, saved->step);
    struct ckpt_manifest m;
    int rc = path != NULL ? ckpt_manifest_read(path, &m, err)
                          : err_set(err, ERR_NOMEM, "out of memory");

    if (rc == 0 && m.meta.step != saved->step)
        rc = err_set(err, ERR_CORRUPT, "'%s' was replaced by another checkpoint", path);
    free(path);
    return rc;
}

/* Removes the oldest checkpoints until max_to_keep are left. Always keeps the one just saved, even
 * if there are directories with later steps. Failed removals are retried after the next save. */
static void prune(struct ckpt_writer *w, const struct ckpt_meta *saved)
{
    uint32_t keep = atomic_load_explicit(&w->max_to_keep, memory_order_relaxed); /* may change any time */
    struct ckpt_right right = publish_right(w);
    uint64_t *steps;
    size_t n, left;
    struct err err;
    int rc;

    if (keep == 0)
        return;
    rc = ckpt_folder_list(w->directory, &steps, &n, &err);
    if (rc < 0) {
        err_wrap(&err, rc, "remove old checkpoints");
        report_removed(w, saved->step, rc, &err);
        return;
    }
    left = n;
    for (size_t i = 0; i < n && left > keep; i++) {
        if (steps[i] == saved->step)
            continue;
        if (ckpt_check_right(&right, &err) < 0)
            break; /* the new writer removes them */
        rc = check_saved(w, saved, &err);
        if (rc == 0)
            rc = ckpt_remove(w->directory, steps[i], &err);
        if (rc < 0)
            err_wrap(&err, rc, "remove an old checkpoint");
        report_removed(w, steps[i], rc, &err);
        left--;
    }
    free(steps);
}

static void report_saved(struct ckpt_writer *w, uint64_t step, uint64_t bytes, uint64_t ns)
{
    char *path = path_of(w, step);
    struct ckpt_event e = { .kind = CKPT_WRITTEN, .step = step, .bytes = bytes, .ns = ns,
                            .path = path != NULL ? path : "" };

    send_event(w, &e);
    free(path);
}

static void report_failed(struct ckpt_writer *w, uint64_t step, int kind, const struct err *err,
                        bool final)
{
    struct ckpt_event e = { .kind = kind, .step = step, .path = w->directory, .text = err->text,
                            .final = final, .again = is_repeated(w, err->code, err) && !final };

    send_event(w, &e);
}

/* Creates and cleans the directory, once, if this writer has the right. A failure to clean is
 * harmless, and is retried with the next save. */
static int prepare_directory(struct ckpt_writer *w, struct err *err)
{
    struct ckpt_right right = publish_right(w);
    int rc = 0;

    if (!w->is_prepared)
        rc = ckpt_check_right(&right, err);
    if (rc == 0 && !w->is_prepared) {
        rc = fs_mkdirs(w->directory, err);
        w->is_prepared = rc == 0 && ckpt_folder_clean(w->directory, NULL) == 0;
    }
    return rc;
}

static int wait_for_copy(struct ckpt_writer *w, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&w->calling);
    if (w->is_closed)
        rc = err_set(err, ERR_CANCELED, "the save was abandoned");
    else if (w->arrive != NULL)
        rc = w->arrive(w->arg, err);
    pthread_mutex_unlock(&w->calling);
    return rc;
}

static int save_one(struct ckpt_writer *w, const struct ckpt_meta *meta, bool *is_lost,
                    struct err *err)
{
    struct ckpt_right right = publish_right(w);
    uint64_t bytes = 0;
    bool existed = false;
    int rc = wait_for_copy(w, err);

    if (rc == 0)
        rc = prepare_directory(w, err);
    *is_lost = rc == ERR_CANCELED;
    if (rc < 0 && rc != ERR_REFUSED) /* ckpt_save() still succeeds if the same checkpoint exists */
        return err_wrap(err, rc, "save step %" PRIu64, meta->step);
    rc = ckpt_save(w->directory, w->layouts, N_LAYOUTS, &right, meta, w->staging, &bytes, &existed,
                   err);
    *is_lost = right.is_lost;
    if (rc < 0) {
        w->is_prepared = false; /* the directory may have been removed */
        return rc;
    }
    w->reported_code = 0;
    report_saved(w, meta->step, bytes, clock_ns() - w->handed_over_ns);
    prune(w, meta);
    return 0;
}

/* Saves the state, in WRITING. Caller holds the lock, which is released during the save. */
static void save(struct ckpt_writer *w)
{
    struct ckpt_meta meta = w->meta;
    bool is_lost;
    struct err err;
    int rc;

    atomic_store_explicit(&w->watch.progress_ns, clock_ns(), memory_order_relaxed);
    pthread_mutex_unlock(&w->thread.lock);
    rc = save_one(w, &meta, &is_lost, &err);
    if (rc < 0)
        report_failed(w, meta.step, is_lost ? CKPT_DISCARDED : CKPT_FAILED, &err, false);
    pthread_mutex_lock(&w->thread.lock);
    atomic_store_explicit(&w->watch.is_canceled, false, memory_order_release);
    w->is_discarded = rc < 0 && is_lost;
    w->state = rc == 0 || is_lost ? IDLE : WAITING;
    w->failures = w->state == IDLE ? 0 : w->failures + 1;
    w->failed_saves = w->state == IDLE ? 0 : w->failed_saves + 1;
    if (rc < 0)
        w->last = err;
    pthread_cond_broadcast(&w->thread.changed);
}

static uint64_t retry_delay_ms(const struct ckpt_writer *w)
{
    uint64_t doublings = w->failures > 0 ? w->failures - 1 : 0;

    return w->retry_ms << (doublings < RETRY_DOUBLINGS ? doublings : RETRY_DOUBLINGS);
}

/* Waits, in WAITING, until the retry is due or the state changes. Caller holds the lock. */
static void wait_to_retry(struct ckpt_writer *w)
{
    struct timespec until = ckpt_after_ms(retry_delay_ms(w));
    int rc = 0;

    while (rc == 0 && w->state == WAITING && !w->retry_now && !w->closing)
        rc = pthread_cond_timedwait(&w->thread.changed, &w->thread.lock, &until);
    if (w->state == WAITING && !w->closing) {
        w->retry_now = false;
        w->state = WRITING;
    }
}

static void writer_free(struct ckpt_writer *w)
{
    for (uint32_t i = 0; i < N_LAYOUTS; i++)
        ckpt_layout_fini(&w->layouts[i]);
    if (w->owns_staging)
        free(w->staging);
    free(w->directory);
    pthread_mutex_destroy(&w->calling);
    ckpt_thread_fini(&w->thread);
    free(w);
}

static void *run(void *arg)
{
    struct ckpt_writer *w = arg;

    (void)prepare_directory(w, NULL); /* the first save reports a failure */
    pthread_mutex_lock(&w->thread.lock);
    for (;;) {
        if (w->state == WRITING)
            save(w);
        else if (w->closing)
            break;
        else if (w->state == WAITING)
            wait_to_retry(w);
        else
            pthread_cond_wait(&w->thread.changed, &w->thread.lock);
    }
    pthread_mutex_unlock(&w->thread.lock);
    if (w->state == WAITING) /* not retried any more */
        report_failed(w, w->meta.step, CKPT_FAILED, &w->last, true);
    if (ckpt_thread_end(&w->thread))
        writer_free(w);
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

static int allocate(struct ckpt_writer *w, const struct ckpt_writer_opts *opts, struct err *err)
{
    int rc;

    w->directory = strdup(opts->directory);
    w->owns_staging = opts->staging == NULL;
    w->staging = w->owns_staging ? malloc(opts->state_bytes > 0 ? opts->state_bytes : 1) : opts->staging;
    if (w->directory == NULL || w->staging == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a copy of %zu bytes of state",
                       opts->state_bytes);
    memset(w->staging, 0, opts->state_bytes); /* allocates the pages now, not during a step */
    rc = check_names(opts->model, opts->n_model, err);
    if (rc == 0)
        rc = check_names(opts->slots, opts->n_slots, err);
    if (rc == 0)
        rc = ckpt_layout_init(CKPT_MODEL_FILE, opts->model, opts->n_model, opts->state_bytes,
                              &w->layouts[MODEL], err);
    if (rc == 0)
        rc = ckpt_layout_init(CKPT_OPTIMIZER_FILE, opts->slots, opts->n_slots, opts->state_bytes,
                              &w->layouts[OPTIMIZER], err);
    return rc;
}

int ckpt_directory(const char *directory, struct err *err)
{
    int rc = fs_mkdirs(directory, err);

    return rc < 0 ? err_wrap(err, rc, "checkpoints in '%s'", directory) : 0;
}

int ckpt_writer_open(const struct ckpt_writer_opts *opts, struct ckpt_writer **out, struct err *err)
{
    struct ckpt_writer *w = calloc(1, sizeof(*w));
    int rc;

    if (w == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint writer: out of memory");
    ckpt_thread_init(&w->thread);
    pthread_mutex_init(&w->calling, NULL);
    w->max_to_keep = opts->max_to_keep;
    w->state_bytes = opts->state_bytes;
    w->retry_ms = opts->retry_ms > 0 ? opts->retry_ms : RETRY_MS;
    if (w->retry_ms > RETRY_MS_MAX)
        w->retry_ms = RETRY_MS_MAX;
    w->close_ms = opts->close_ms > 0 ? opts->close_ms : CLOSE_MS;
    w->on_event = opts->on_event;
    w->may_publish = opts->may_publish;
    w->arrive = opts->arrive;
    w->arg = opts->arg;
    rc = allocate(w, opts, err);
    if (rc == 0)
        rc = ckpt_thread_start(&w->thread, run, w, err);
    if (rc < 0) {
        writer_free(w);
        return err_wrap(err, rc, "checkpoints in '%s'", opts->directory);
    }
    *out = w;
    return 0;
}

static void report_timeout(struct ckpt_writer *w, uint64_t waited_ms)
{
    struct ckpt_event e = { .kind = CKPT_FAILED, .path = w->directory, .final = true };
    struct err err;

    pthread_mutex_lock(&w->thread.lock);
    e.step = w->meta.step;
    pthread_mutex_unlock(&w->thread.lock);
    err_set(&err, ERR_TIMEOUT, "save step %" PRIu64 ": timed out after %" PRIu64
            " ms, the storage may be hanging", e.step, waited_ms);
    e.text = err.text;
    send_event(w, &e);
}

bool ckpt_writer_close(struct ckpt_writer *w)
{
    uint64_t wait_ms;
    bool is_abandoned, is_writing, is_gone;

    if (w == NULL)
        return true;
    pthread_mutex_lock(&w->thread.lock);
    w->closing = true;
    is_abandoned = atomic_load_explicit(&w->watch.is_canceled, memory_order_acquire);
    is_writing = w->state == WRITING && !is_abandoned;
    pthread_cond_broadcast(&w->thread.changed);
    pthread_mutex_unlock(&w->thread.lock);
    wait_ms = is_writing ? w->close_ms : ABANDONED_MS;
    if (!ckpt_thread_wait(&w->thread, wait_ms) && is_writing)
        report_timeout(w, wait_ms);
    pthread_mutex_lock(&w->calling); /* waits for a running callback */
    w->is_closed = true;
    pthread_mutex_unlock(&w->calling);
    atomic_store_explicit(&w->watch.is_canceled, true, memory_order_release);
    is_gone = ckpt_thread_leave(&w->thread, 0);
    if (is_gone)
        writer_free(w);
    return is_gone;
}

/* ---- handing over ---- */

int ckpt_begin(struct ckpt_writer *w, void **staging, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&w->thread.lock);
    CHECK(w->state != FILLING);
    if (w->state == WRITING)
        rc = err_set(err, ERR_EXISTS, "the checkpoint of step %" PRIu64 " is still being written",
                     w->meta.step);
    else
        w->state = FILLING;
    if (rc == 0) /* a cancellation concerned the replaced state */
        atomic_store_explicit(&w->watch.is_canceled, false, memory_order_release);
    pthread_mutex_unlock(&w->thread.lock);
    if (rc == 0)
        *staging = w->staging;
    return rc;
}

bool ckpt_is_busy(struct ckpt_writer *w)
{
    bool busy;

    pthread_mutex_lock(&w->thread.lock);
    busy = w->state == WRITING;
    pthread_mutex_unlock(&w->thread.lock);
    return busy;
}

void ckpt_hand_over(struct ckpt_writer *w, const struct ckpt_meta *meta)
{
    pthread_mutex_lock(&w->thread.lock);
    CHECK(w->state == FILLING);
    w->meta = *meta;
    w->handed_over_ns = clock_ns();
    /* the thread may start later, so the time of the stall begins here */
    atomic_store_explicit(&w->watch.progress_ns, w->handed_over_ns, memory_order_relaxed);
    w->failures = 0;
    w->retry_now = false;
    w->is_discarded = false;
    w->state = WRITING;
    pthread_cond_broadcast(&w->thread.changed);
    pthread_mutex_unlock(&w->thread.lock);
}

int ckpt_write(struct ckpt_writer *w, const struct ckpt_meta *meta, const void *state, struct err *err)
{
    void *staging;
    int rc = ckpt_begin(w, &staging, err);

    if (rc < 0)
        return rc;
    memcpy(staging, state, w->state_bytes);
    ckpt_hand_over(w, meta);
    return 0;
}

void ckpt_set_keep(struct ckpt_writer *w, uint32_t max_to_keep)
{
    atomic_store_explicit(&w->max_to_keep, max_to_keep, memory_order_relaxed);
}

/* Returns the time since the storage last completed an operation of the current save; 0: no save.
 * Caller holds the lock. */
static uint64_t stalled_ms(const struct ckpt_writer *w)
{
    uint64_t now = clock_ns(), moved = atomic_load_explicit(&w->watch.progress_ns, memory_order_relaxed);

    return w->state == WRITING && now > moved ? (now - moved) / 1000000 : 0;
}

/* Returns true while ckpt_flush() must wait. Caller holds the lock. */
static bool must_wait(const struct ckpt_writer *w, const struct ckpt_patience *p, uint64_t begin_ns)
{
    if (w->state != WRITING && w->state != WAITING)
        return false;
    return (clock_ns() - begin_ns) / 1000000 < p->wait_ms && (p->tries == 0 || w->failures < p->tries) &&
           (p->stall_ms == 0 || stalled_ms(w) < p->stall_ms);
}

void ckpt_trouble(struct ckpt_writer *w, struct ckpt_trouble *out)
{
    pthread_mutex_lock(&w->thread.lock);
    *out = (struct ckpt_trouble){ .failures = w->failed_saves, .stalled_ms = stalled_ms(w) };
    if (w->failed_saves > 0) {
        out->code = w->last.code;
        snprintf(out->text, sizeof(out->text), "%.*s", (int)sizeof(out->text) - 1, w->last.text);
    } else if (out->stalled_ms > 0) {
        snprintf(out->text, sizeof(out->text),
                 "the storage in '%.300s' has not responded for %" PRIu64 " ms", w->directory,
                 out->stalled_ms);
    }
    pthread_mutex_unlock(&w->thread.lock);
}

int ckpt_flush(struct ckpt_writer *w, const struct ckpt_patience *p, struct err *err)
{
    uint64_t begin_ns = clock_ns();
    int rc = 0;

    pthread_mutex_lock(&w->thread.lock);
    if (w->state == WAITING) {
        w->retry_now = true;
        pthread_cond_broadcast(&w->thread.changed);
    }
    while (must_wait(w, p, begin_ns)) {
        struct timespec soon = ckpt_after_ms(FLUSH_LOOK_MS);

        (void)pthread_cond_timedwait(&w->thread.changed, &w->thread.lock, &soon); /* then checked */
    }
    if (w->is_discarded || ((w->state == WRITING || w->state == WAITING) && w->failures > 0)) {
        rc = w->last.code;
        if (err != NULL)
            *err = w->last;
    } else if (w->state == WRITING) {
        rc = err_set(err, ERR_TIMEOUT,
                     "the checkpoint of step %" PRIu64 " was not on disk after %" PRIu64 " ms",
                     w->meta.step, (clock_ns() - begin_ns) / 1000000);
    }
    pthread_mutex_unlock(&w->thread.lock);
    return rc;
}

void ckpt_abandon(struct ckpt_writer *w)
{
    pthread_mutex_lock(&w->thread.lock);
    if (w->state == FILLING)
        w->state = IDLE;
    if (w->state == WRITING || w->state == WAITING) {
        atomic_store_explicit(&w->watch.is_canceled, true, memory_order_release);
        w->retry_now = true; /* the immediate retry discards a waiting state */
        pthread_cond_broadcast(&w->thread.changed);
    }
    pthread_mutex_unlock(&w->thread.lock);
}
