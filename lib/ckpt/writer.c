/* writer.c - the calls of a writer's owner; see writer_priv.h. */
#include "ckpt/writer_priv.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/map.h"

enum {
    RETRY_MS = 1000,
    RETRY_MS_MAX = 1000 * 1000 * 1000,
    CLOSE_MS = 10 * 1000,
    FLUSH_LOOK_MS = 50,
    ABANDONED_MS = 100, /* time for the thread to stop after the save was abandoned */
};

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

/* Copies the tensors: the files of dynamic tables have other sizes in each checkpoint. */
static int keep_tensors(struct ckpt_writer *w, const struct ckpt_writer_opts *o, struct err *err)
{
    uint32_t n = o->n_model + o->n_slots;

    w->tensors = calloc((size_t)n + 1, sizeof(*w->tensors));
    if (w->tensors == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint writer: out of memory");
    w->n_model = o->n_model;
    w->n_slots = o->n_slots;
    for (uint32_t i = 0; i < n; i++) {
        w->tensors[i] = i < o->n_model ? o->model[i] : o->slots[i - o->n_model];
        w->tensors[i].name = strdup(w->tensors[i].name);
        if (w->tensors[i].name == NULL)
            return err_set(err, ERR_NOMEM, "checkpoint writer: out of memory");
    }
    return 0;
}

static int allocate(struct ckpt_writer *w, const struct ckpt_writer_opts *opts, struct err *err)
{
    int rc;

    w->directory = strdup(opts->directory);
    w->owns_staging = opts->staging == NULL;
    w->staging =
        w->owns_staging ? malloc(opts->state_bytes > 0 ? opts->state_bytes : 1) : opts->staging;
    if (w->directory == NULL || w->staging == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a copy of %zu bytes of state",
                       opts->state_bytes);
    memset(w->staging, 0, opts->state_bytes); /* allocates the pages now, not during a step */
    rc = check_names(opts->model, opts->n_model, err);
    if (rc == 0)
        rc = check_names(opts->slots, opts->n_slots, err);
    if (rc == 0)
        rc = ckpt_layouts_init(opts->model, opts->n_model, opts->slots, opts->n_slots,
                               opts->state_bytes, NULL, 0, &w->layouts, err);
    return rc == 0 && w->layouts.has_ids ? keep_tensors(w, opts, err) : rc;
}

int ckpt_create_directory(const char *directory, struct err *err)
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
    pthread_mutex_init(&w->owner.calling, NULL);
    w->max_to_keep = opts->max_to_keep;
    w->state_bytes = opts->state_bytes;
    w->retry_ms = opts->retry_ms > 0 ? opts->retry_ms : RETRY_MS;
    if (w->retry_ms > RETRY_MS_MAX)
        w->retry_ms = RETRY_MS_MAX;
    w->close_ms = opts->close_ms > 0 ? opts->close_ms : CLOSE_MS;
    w->owner.on_event = opts->on_event;
    w->owner.may_publish = opts->may_publish;
    w->owner.wait_snapshot = opts->wait_snapshot;
    w->owner.write_rows = opts->write_rows;
    w->owner.arg = opts->arg;
    rc = allocate(w, opts, err);
    if (rc == 0)
        rc = ckpt_thread_start(&w->thread, writer_run, w, err);
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
    e.step = w->pending.meta.step;
    pthread_mutex_unlock(&w->thread.lock);
    err_set(&err, ERR_TIMEOUT, "save step %" PRIu64 ": timed out after %" PRIu64
            " ms, the storage may be hanging", e.step, waited_ms);
    e.text = err.text;
    writer_send_event(w, &e);
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
    is_writing = w->state == WRITER_WRITING && !is_abandoned;
    pthread_cond_broadcast(&w->thread.changed);
    pthread_mutex_unlock(&w->thread.lock);
    wait_ms = is_writing ? w->close_ms : ABANDONED_MS;
    if (!ckpt_thread_wait(&w->thread, wait_ms) && is_writing)
        report_timeout(w, wait_ms);
    pthread_mutex_lock(&w->owner.calling); /* waits for a running callback */
    w->owner.is_closed = true;
    pthread_mutex_unlock(&w->owner.calling);
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
    CHECK(w->state != WRITER_FILLING);
    if (w->state == WRITER_WRITING)
        rc = err_set(err, ERR_EXISTS, "the checkpoint of step %" PRIu64 " is still being written",
                     w->pending.meta.step);
    else
        w->state = WRITER_FILLING;
    if (rc == 0) /* a cancellation concerned the replaced state */
        atomic_store_explicit(&w->watch.is_canceled, false, memory_order_release);
    pthread_mutex_unlock(&w->thread.lock);
    if (rc == 0)
        *staging = w->staging;
    return rc;
}

int ckpt_set_sizes(struct ckpt_writer *w, const struct ckpt_sizes *sizes, uint32_t n,
                   struct err *err)
{
    struct ckpt_sizes *kept = calloc((size_t)n + 1, sizeof(*kept));
    struct ckpt_layouts layouts;
    int rc;

    if (kept == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint writer: out of memory");
    CHECK(w->tensors != NULL); /* and the state is WRITER_FILLING, so the thread uses nothing of it */
    rc = ckpt_layouts_init(w->tensors, w->n_model, w->tensors + w->n_model, w->n_slots,
                           w->state_bytes, sizes, n, &layouts, err);
    if (rc < 0) {
        free(kept);
        return rc;
    }
    memcpy(kept, sizes, n * sizeof(*kept));
    ckpt_layouts_fini(&w->layouts);
    free(w->sizes);
    w->layouts = layouts;
    w->sizes = kept;
    w->n_sizes = n;
    return 0;
}

bool ckpt_is_busy(struct ckpt_writer *w)
{
    bool busy;

    pthread_mutex_lock(&w->thread.lock);
    busy = w->state == WRITER_WRITING;
    pthread_mutex_unlock(&w->thread.lock);
    return busy;
}

void ckpt_hand_over(struct ckpt_writer *w, const struct ckpt_meta *meta)
{
    pthread_mutex_lock(&w->thread.lock);
    CHECK(w->state == WRITER_FILLING);
    w->pending.meta = *meta;
    w->pending.handed_over_ns = clock_ns();
    /* the thread may start later, so the time of the stall begins here */
    atomic_store_explicit(&w->watch.progress_ns, w->pending.handed_over_ns, memory_order_relaxed);
    w->pending.failures = 0;
    w->pending.retry_now = false;
    w->pending.is_discarded = false;
    w->pending.rows = ROWS_PENDING;
    w->state = WRITER_WRITING;
    pthread_cond_broadcast(&w->thread.changed);
    pthread_mutex_unlock(&w->thread.lock);
}

int ckpt_write(struct ckpt_writer *w, const struct ckpt_meta *meta, const void *state,
               struct err *err)
{
    void *staging;
    int rc = ckpt_begin(w, &staging, err);

    if (rc < 0)
        return rc;
    memcpy(staging, state, w->state_bytes);
    ckpt_hand_over(w, meta);
    return 0;
}

void ckpt_set_max_to_keep(struct ckpt_writer *w, uint32_t max_to_keep)
{
    atomic_store_explicit(&w->max_to_keep, max_to_keep, memory_order_relaxed);
}

/* Returns the time since the storage last completed an operation of the current save; 0: no save.
 * Caller holds the lock. */
static uint64_t stalled_ms(const struct ckpt_writer *w)
{
    uint64_t now = clock_ns(),
             moved = atomic_load_explicit(&w->watch.progress_ns, memory_order_relaxed);

    return w->state == WRITER_WRITING && now > moved ? (now - moved) / 1000000 : 0;
}

/* Returns true while ckpt_flush() must wait. Caller holds the lock. */
static bool must_wait(const struct ckpt_writer *w, const struct ckpt_flush_limits *p,
                      uint64_t begin_ns)
{
    if (w->state != WRITER_WRITING && w->state != WRITER_WAITING)
        return false;
    return (clock_ns() - begin_ns) / 1000000 < p->wait_ms &&
           (p->tries == 0 || w->pending.failures < p->tries) &&
           (p->stall_ms == 0 || stalled_ms(w) < p->stall_ms);
}

void ckpt_failure(struct ckpt_writer *w, struct ckpt_failure *out)
{
    pthread_mutex_lock(&w->thread.lock);
    *out = (struct ckpt_failure){ .failures = w->failed_saves, .stalled_ms = stalled_ms(w) };
    if (w->failed_saves > 0) {
        out->code = w->pending.last.code;
        snprintf(out->text, sizeof(out->text), "%.*s", (int)sizeof(out->text) - 1,
                 w->pending.last.text);
    } else if (out->stalled_ms > 0) {
        snprintf(out->text, sizeof(out->text),
                 "the storage in '%.300s' has not responded for %" PRIu64 " ms", w->directory,
                 out->stalled_ms);
    }
    pthread_mutex_unlock(&w->thread.lock);
}

int ckpt_flush(struct ckpt_writer *w, const struct ckpt_flush_limits *p, struct err *err)
{
    uint64_t begin_ns = clock_ns();
    int rc = 0;

    pthread_mutex_lock(&w->thread.lock);
    if (w->state == WRITER_WAITING) {
        w->pending.retry_now = true;
        pthread_cond_broadcast(&w->thread.changed);
    }
    while (must_wait(w, p, begin_ns)) {
        struct timespec soon = clock_after_ms(FLUSH_LOOK_MS);

        (void)pthread_cond_timedwait(&w->thread.changed, &w->thread.lock, &soon); /* then checked */
    }
    if (w->pending.is_discarded ||
        ((w->state == WRITER_WRITING || w->state == WRITER_WAITING) && w->pending.failures > 0)) {
        rc = w->pending.last.code;
        if (err != NULL)
            *err = w->pending.last;
    } else if (w->state == WRITER_WRITING) {
        rc = err_set(err, ERR_TIMEOUT,
                     "the checkpoint of step %" PRIu64 " was not on disk after %" PRIu64 " ms",
                     w->pending.meta.step, (clock_ns() - begin_ns) / 1000000);
    }
    pthread_mutex_unlock(&w->thread.lock);
    return rc;
}

/* Calls write_rows(). Caller holds the lock, which is released during the call. */
static int run_write_rows(struct ckpt_writer *w, struct err *err)
{
    struct writer_pending *p = &w->pending;
    struct err why = { .text = "" };
    int rc;

    p->rows = ROWS_RUNNING;
    pthread_mutex_unlock(&w->thread.lock);
    rc = w->owner.write_rows(w->owner.arg, p->files, &why);
    pthread_mutex_lock(&w->thread.lock);
    p->rows = rc == 0 ? ROWS_DONE : ROWS_FAILED;
    p->rows_err = why;
    if (rc < 0 && err != NULL)
        *err = why;
    pthread_cond_broadcast(&w->thread.changed);
    return rc;
}

int ckpt_wait_rows(struct ckpt_writer *w, uint64_t stall_ms, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&w->thread.lock);
    while (rc == 0 && w->state == WRITER_WRITING && w->pending.rows < ROWS_RUNNING) {
        struct timespec soon = clock_after_ms(FLUSH_LOOK_MS);

        if (w->pending.rows == ROWS_READY) {
            rc = run_write_rows(w, err);
        } else if (stall_ms > 0 && stalled_ms(w) >= stall_ms) {
            /* the thread examines this before it lets the owner write rows */
            atomic_store_explicit(&w->watch.is_canceled, true, memory_order_release);
            rc = err_set(err, ERR_TIMEOUT,
                         "the storage in '%.300s' has not responded for %" PRIu64 " ms",
                         w->directory, stalled_ms(w));
        } else {
            (void)pthread_cond_timedwait(&w->thread.changed, &w->thread.lock, &soon); /* then checked */
        }
    }
    if (rc == 0 && w->state != WRITER_WRITING && w->pending.is_discarded) {
        rc = w->pending.last.code;
        if (err != NULL)
            *err = w->pending.last;
    }
    pthread_mutex_unlock(&w->thread.lock);
    return rc;
}

void ckpt_abandon(struct ckpt_writer *w)
{
    pthread_mutex_lock(&w->thread.lock);
    if (w->state == WRITER_FILLING)
        w->state = WRITER_IDLE;
    if (w->state == WRITER_WRITING || w->state == WRITER_WAITING) {
        atomic_store_explicit(&w->watch.is_canceled, true, memory_order_release);
        w->pending.retry_now = true; /* the immediate retry discards a waiting state */
        pthread_cond_broadcast(&w->thread.changed);
    }
    pthread_mutex_unlock(&w->thread.lock);
}
