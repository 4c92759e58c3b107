/* writer_thread.c - the thread of a writer: saves, retries, removes old checkpoints, reports. */
#include "ckpt/writer_priv.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fs.h"

enum { RETRY_DOUBLINGS = 5 };

void writer_send_event(struct ckpt_writer *w, const struct ckpt_event *e)
{
    pthread_mutex_lock(&w->owner.calling);
    if (w->owner.on_event != NULL && !w->owner.is_closed)
        w->owner.on_event(w->owner.arg, e);
    pthread_mutex_unlock(&w->owner.calling);
}

static int owner_may_publish(void *arg, struct err *err)
{
    struct ckpt_writer *w = arg;
    int rc = 0;

    pthread_mutex_lock(&w->owner.calling);
    if (w->owner.is_closed)
        rc = err_set(err, ERR_CANCELED, "the save was abandoned");
    else if (w->owner.may_publish != NULL)
        rc = w->owner.may_publish(w->owner.arg, err);
    pthread_mutex_unlock(&w->owner.calling);
    return rc;
}

static struct ckpt_right publish_right(struct ckpt_writer *w)
{
    return (struct ckpt_right){ .may_publish = owner_may_publish, .arg = w, .watch = &w->watch };
}

/* Returns true if this failure was already reported. The text after the last colon identifies the
 * cause; numbers and names precede it. */
static bool is_repeated(struct ckpt_writer *w, int rc, const struct err *err)
{
    const char *colon = strrchr(err->text, ':');
    char cause[WRITER_CAUSE_BYTES];
    bool again;

    snprintf(cause, sizeof(cause), "%s", colon != NULL ? colon + 1 : err->text);
    again = w->reported.code == rc && (rc == ERR_CORRUPT || strcmp(cause, w->reported.cause) == 0);
    w->reported.code = rc;
    strcpy(w->reported.cause, cause);
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
    struct ckpt_event e = { .kind = rc < 0 ? CKPT_FAILED : CKPT_REMOVED,
                            .step = step,
                            .path = path != NULL ? path : "",
                            .text = rc < 0 ? err->text : NULL,
                            .again = rc < 0 && is_repeated(w, rc, err) };

    writer_send_event(w, &e);
    free(path);
}

/* Checks that the checkpoint that was just verified still exists, before older ones are removed. */
static int check_saved(const struct ckpt_writer *w, const struct ckpt_meta *saved, struct err *err)
{
    char *path = path_of(w, saved->step);
    struct ckpt_manifest m;
    int rc =
        path != NULL ? ckpt_manifest_read(path, &m, err) : err_set(err, ERR_NOMEM, "out of memory");

    if (rc == 0 && m.meta.step != saved->step)
        rc = err_set(err, ERR_CORRUPT, "'%s' was replaced by another checkpoint", path);
    free(path);
    return rc;
}

/* Removes the oldest checkpoints until max_to_keep are left. Always keeps the one just saved, even
 * if there are directories with later steps. Failed removals are retried after the next save. */
static void prune(struct ckpt_writer *w, const struct ckpt_meta *saved)
{
    uint32_t keep =
        atomic_load_explicit(&w->max_to_keep, memory_order_relaxed); /* may change any time */
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
    struct ckpt_event e = { .kind = CKPT_WRITTEN,
                            .step = step,
                            .bytes = bytes,
                            .ns = ns,
                            .path = path != NULL ? path : "" };

    writer_send_event(w, &e);
    free(path);
}

static void report_failed(struct ckpt_writer *w, uint64_t step, int kind, const struct err *err,
                          bool final)
{
    struct ckpt_event e = { .kind = kind,
                            .step = step,
                            .path = w->directory,
                            .text = err->text,
                            .final = final,
                            .again = is_repeated(w, err->code, err) && !final };

    writer_send_event(w, &e);
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

    pthread_mutex_lock(&w->owner.calling);
    if (w->owner.is_closed)
        rc = err_set(err, ERR_CANCELED, "the save was abandoned");
    else if (w->owner.wait_snapshot != NULL)
        rc = w->owner.wait_snapshot(w->owner.arg, err);
    pthread_mutex_unlock(&w->owner.calling);
    return rc;
}

/* A ckpt_write_rows_fn: waits until the owner, in ckpt_wait_rows(), has called its write_rows(). */
static int owner_write_rows(void *arg, struct ckpt_row_files *files, struct err *err)
{
    struct ckpt_writer *w = arg;
    struct writer_pending *p = &w->pending;
    int rc;

    pthread_mutex_lock(&w->thread.lock);
    rc = ckpt_check_canceled(&w->watch, err);
    if (rc == 0) {
        p->files = files;
        p->rows = ROWS_READY;
        pthread_cond_broadcast(&w->thread.changed);
    }
    while (rc == 0 && (p->rows == ROWS_READY || p->rows == ROWS_RUNNING)) {
        if (p->rows == ROWS_READY &&
            (w->closing || atomic_load_explicit(&w->watch.is_canceled, memory_order_acquire)))
            rc = err_set(err, ERR_CANCELED, "the save was abandoned");
        else
            pthread_cond_wait(&w->thread.changed, &w->thread.lock);
    }
    if (rc == 0 && p->rows == ROWS_FAILED) {
        rc = p->rows_err.code;
        *err = p->rows_err;
    }
    if (rc == ERR_CANCELED)
        p->rows = ROWS_PENDING; /* the owner calls write_rows() no more */
    p->files = NULL;
    pthread_mutex_unlock(&w->thread.lock);
    return rc;
}

static int save_one(struct ckpt_writer *w, const struct ckpt_meta *meta, bool *is_lost,
                    struct err *err)
{
    const struct ckpt_source source = { .state = w->staging,
                                        .sizes = w->sizes,
                                        .n_sizes = w->n_sizes,
                                        .write_rows = w->owner.write_rows != NULL ? owner_write_rows
                                                                                  : NULL,
                                        .arg = w };
    struct ckpt_right right = publish_right(w);
    uint64_t bytes = 0;
    bool existed = false;
    int rc = wait_for_copy(w, err);

    if (rc == 0)
        rc = prepare_directory(w, err);
    *is_lost = rc == ERR_CANCELED;
    if (rc < 0 && rc != ERR_REFUSED) /* ckpt_save() still succeeds if the same checkpoint exists */
        return err_wrap(err, rc, "save step %" PRIu64, meta->step);
    rc = ckpt_save(w->directory, &w->layouts, &right, meta, &source, &bytes, &existed, err);
    *is_lost = right.is_lost;
    if (rc < 0) {
        w->is_prepared = false; /* the directory may have been removed */
        return rc;
    }
    w->reported.code = 0;
    report_saved(w, meta->step, bytes, clock_ns() - w->pending.handed_over_ns);
    prune(w, meta);
    return 0;
}

/* Saves the state, in WRITER_WRITING. Caller holds the lock, which is released during the save and at the fault point. */
static void save(struct ckpt_writer *w)
{
    struct ckpt_meta meta = w->pending.meta;
    bool is_lost, is_over;
    struct err err;
    int rc;

    atomic_store_explicit(&w->watch.progress_ns, clock_ns(), memory_order_relaxed);
    pthread_mutex_unlock(&w->thread.lock);
    rc = save_one(w, &meta, &is_lost, &err);
    if (rc < 0)
        report_failed(w, meta.step, is_lost ? CKPT_DISCARDED : CKPT_FAILED, &err, false);
    pthread_mutex_lock(&w->thread.lock);
    atomic_store_explicit(&w->watch.is_canceled, false, memory_order_release);
    is_over = is_lost || w->owner.write_rows != NULL; /* the rows may change from here on */
    w->pending.is_discarded = rc < 0 && is_over;
    w->state = rc == 0 || is_over ? WRITER_IDLE : WRITER_WAITING;
    w->pending.failures = w->state == WRITER_IDLE ? 0 : w->pending.failures + 1;
    w->failed_saves = rc == 0 || is_lost ? 0 : w->failed_saves + 1;
    if (rc < 0)
        w->pending.last = err;
    pthread_cond_broadcast(&w->thread.changed);
    pthread_mutex_unlock(&w->thread.lock);
    (void)fault_hit("ckpt.saved"); /* from here on the writer takes the next state */
    pthread_mutex_lock(&w->thread.lock);
}

static uint64_t retry_delay_ms(const struct ckpt_writer *w)
{
    uint64_t doublings = w->pending.failures > 0 ? w->pending.failures - 1 : 0;

    return w->retry_ms << (doublings < RETRY_DOUBLINGS ? doublings : RETRY_DOUBLINGS);
}

/* Waits, in WRITER_WAITING, until the retry is due or the state changes. Caller holds the lock. */
static void wait_to_retry(struct ckpt_writer *w)
{
    struct timespec until = clock_after_ms(retry_delay_ms(w));
    int rc = 0;

    while (rc == 0 && w->state == WRITER_WAITING && !w->pending.retry_now && !w->closing)
        rc = pthread_cond_timedwait(&w->thread.changed, &w->thread.lock, &until);
    if (w->state == WRITER_WAITING && !w->closing) {
        w->pending.retry_now = false;
        w->state = WRITER_WRITING;
    }
}

void writer_free(struct ckpt_writer *w)
{
    ckpt_layouts_fini(&w->layouts);
    for (uint32_t i = 0; w->tensors != NULL && i < w->n_model + w->n_slots; i++)
        free((char *)(uintptr_t)w->tensors[i].name);
    free(w->tensors);
    free(w->sizes);
    if (w->owns_staging)
        free(w->staging);
    free(w->directory);
    pthread_mutex_destroy(&w->owner.calling);
    ckpt_thread_fini(&w->thread);
    free(w);
}

void *writer_run(void *arg)
{
    struct ckpt_writer *w = arg;

    (void)prepare_directory(w, NULL); /* the first save reports a failure */
    pthread_mutex_lock(&w->thread.lock);
    for (;;) {
        if (w->state == WRITER_WRITING)
            save(w);
        else if (w->closing)
            break;
        else if (w->state == WRITER_WAITING)
            wait_to_retry(w);
        else
            pthread_cond_wait(&w->thread.changed, &w->thread.lock);
    }
    pthread_mutex_unlock(&w->thread.lock);
    if (w->state == WRITER_WAITING) /* not retried any more */
        report_failed(w, w->pending.meta.step, CKPT_FAILED, &w->pending.last, true);
    if (ckpt_thread_end(&w->thread))
        writer_free(w);
    return NULL;
}
