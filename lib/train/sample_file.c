/* sample_file.c - see sample_file.h. The thread takes the whole queue for one write, while the callers fill a
 * second buffer. */
#include "train/sample_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/thread.h"

struct sample_file {
    char *path; /* owned */
    int fd;
    size_t room;
    void (*on_loss)(void *arg, const char *text);
    void *arg;
    pthread_t thread;

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t queued, written;
    struct buf queue, writing; /* `writing` belongs to the thread while it writes */
    bool is_writing;
    uint64_t n_queued, n_written; /* bytes, since the start */
    uint64_t n_lost;              /* lines since the last "lost" line */
    bool is_slow;                 /* no call waits for the file */
    bool is_closing, has_ended, is_abandoned;
    int rc; /* the first failure; nothing is written after it */
    struct err err;
};

static void free_file(struct sample_file *f)
{
    close(f->fd);
    buf_fini(&f->queue);
    buf_fini(&f->writing);
    pthread_cond_destroy(&f->queued);
    pthread_cond_destroy(&f->written);
    pthread_mutex_destroy(&f->lock);
    free(f->path);
    free(f);
}

/* Returns false at the time `until` of clock_after_ms(). */
static bool wait_written(struct sample_file *f, const struct timespec *until)
{
    return pthread_cond_timedwait(&f->written, &f->lock, until) == 0;
}

static uint64_t n_lines(const char *text, size_t n)
{
    uint64_t lines = 0;

    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines;
}

/* ---- the thread ---- */

/* Writes the queue; called and returns with the lock held. */
static void write_queue(struct sample_file *f)
{
    struct buf taken = f->queue;
    struct err err;
    uint64_t begin_ms = clock_ms();
    int rc;

    f->queue = f->writing;
    buf_reset(&f->queue);
    f->writing = taken;
    f->is_writing = true;
    pthread_mutex_unlock(&f->lock);
    rc = fault_hit("samples.write") ? err_sys(&err, EIO, "write '%s'", f->path)
                                    : fs_write_all(f->fd, taken.data, taken.len, f->path, &err);
    pthread_mutex_lock(&f->lock);
    f->is_writing = false;
    f->n_written += f->writing.len;
    f->is_slow = clock_ms() - begin_ms >= SAMPLE_FILE_WAIT_MS;
    if (rc < 0) {
        f->rc = rc;
        f->err = err;
    }
    pthread_cond_broadcast(&f->written);
}

static void *run(void *arg)
{
    struct sample_file *f = arg;
    bool is_abandoned;

    pthread_mutex_lock(&f->lock);
    while (f->rc == 0 && (f->queue.len > 0 || !f->is_closing)) {
        if (f->queue.len > 0)
            write_queue(f);
        else
            pthread_cond_wait(&f->queued, &f->lock);
    }
    f->has_ended = true;
    is_abandoned = f->is_abandoned;
    pthread_cond_broadcast(&f->written);
    pthread_mutex_unlock(&f->lock);
    if (is_abandoned)
        free_file(f);
    return NULL;
}

/* ---- interface ---- */

int sample_file_open(const struct sample_file_opts *opts, struct sample_file **out, struct err *err)
{
    struct sample_file *f = calloc(1, sizeof(*f));
    pthread_condattr_t monotonic;
    int rc;

    if (f == NULL)
        return err_set(err, ERR_NOMEM, "sample log: out of memory");
    f->path = strdup(opts->path);
    f->room = opts->room;
    f->on_loss = opts->on_loss;
    f->arg = opts->arg;
    f->fd = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->queued, &monotonic);
    pthread_cond_init(&f->written, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rc = f->path == NULL ? err_set(err, ERR_NOMEM, "sample log: out of memory")
                         : thread_start(&f->thread, "writes the sample log", run, f, err);
    if (rc < 0) {
        free_file(f);
        return rc;
    }
    f->fd = opts->fd; /* the thread reads it after the first text */
    *out = f;
    return 0;
}

static void report_loss(struct sample_file *f, const char *what)
{
    char text[1200];

    snprintf(text, sizeof(text), "sample log '%.1000s': the storage does not answer; %s", f->path,
             what);
    if (f->on_loss != NULL)
        f->on_loss(f->arg, text);
}

/* Adds the text to the queue, or counts its lines as lost. Returns whether they are the first of a gap. */
static bool add(struct sample_file *f, const char *text, size_t n)
{
    size_t before = f->queue.len;

    if (f->queue.len > 0 && f->queue.len + n > f->room) {
        bool is_first = f->n_lost == 0;

        f->n_lost += n_lines(text, n);
        return is_first;
    }
    if (f->n_lost > 0)
        buf_printf(&f->queue, "lost %llu\n", (unsigned long long)f->n_lost);
    buf_add(&f->queue, text, n);
    if (f->queue.failed && f->rc == 0)
        f->rc = err_set(&f->err, ERR_NOMEM, "sample log '%s': out of memory", f->path);
    f->n_lost = 0;
    f->n_queued += f->queue.len - before;
    pthread_cond_signal(&f->queued);
    return false;
}

int sample_file_append(struct sample_file *f, const char *text, size_t n, struct err *err)
{
    struct timespec until = clock_after_ms(SAMPLE_FILE_WAIT_MS);
    uint64_t target;
    bool is_loss = false;
    int rc;

    pthread_mutex_lock(&f->lock);
    if (f->rc == 0)
        is_loss = add(f, text, n);
    target = f->n_queued;
    while (f->rc == 0 && !f->is_slow && f->n_written < target)
        f->is_slow = !wait_written(f, &until) && f->n_written < target;
    rc = f->rc;
    if (rc < 0 && err != NULL)
        *err = f->err;
    pthread_mutex_unlock(&f->lock);
    if (is_loss)
        report_loss(
            f,
            "lines are lost until it has written those that wait (a line \"lost N\" states how many)");
    return rc < 0 ? err_wrap(err, rc, "sample log") : 0;
}

void sample_file_close(struct sample_file *f)
{
    struct timespec until = clock_after_ms(SAMPLE_FILE_CLOSE_MS);
    uint64_t left;
    char what[96];

    if (f == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    f->is_closing = true;
    if (f->n_lost > 0)
        buf_printf(&f->queue, "lost %llu\n", (unsigned long long)f->n_lost);
    pthread_cond_signal(&f->queued);
    while (!f->has_ended && wait_written(f, &until))
        ;
    if (f->has_ended) {
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
        free_file(f);
        return;
    }
    left = f->queue.len > 0 ? n_lines(f->queue.data, f->queue.len) : 0;
    if (f->is_writing)
        left += n_lines(f->writing.data, f->writing.len);
    snprintf(what, sizeof(what), "%llu lines were not written at the end",
             (unsigned long long)left);
    report_loss(f, what);
    f->is_abandoned = true; /* the thread frees the file after this lock is released */
    pthread_detach(f->thread);
    pthread_mutex_unlock(&f->lock);
}
