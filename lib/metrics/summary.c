/* summary.c - points are added to one of two arrays under a lock; the writer thread swaps the
 * arrays, then encodes and writes the filled one, so summary_scalar() never waits for a disk.
 *
 * After a failed write the file is truncated to its last complete record, and the points of the
 * write are counted as dropped; later points are written normally. A disk that hangs blocks only
 * the writer thread: flush and close have deadlines. If close times out, the writer thread frees
 * the struct when its write returns. */
#include "metrics/summary_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "base/thread.h"
#include "proto/summary.pb-c.h"

enum {
    POINTS = 4096,        /* capacity of a batch; further points are dropped */
    BATCH_DELAY_MS = 200, /* delay from the first point of a batch to its write */
    TIMEOUT_MS = 5000,    /* time limit of flush and close */
    NAME_ATTEMPTS = 100,  /* file names that are tried */
};

struct point {
    uint64_t wall_us, step;
    float value;
    char tag[SUMMARY_TAG_MAX + 1];
};

struct batch {
    uint32_t n;
    struct point points[POINTS];
};

struct summary {
    /* Used by the writer thread, and by open and close while that thread does not run. */
    char *path;       /* owned; of the file */
    int fd;           /* owned; -1: not open */
    off_t good_bytes; /* bytes of complete records in the file */
    struct buf bytes; /* encoded records of the current write */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t work, done;
    bool is_first;        /* the directory had no event file before this one */
    struct buf described; /* records of summary_describe() that are not written yet */
    struct batch *filling, *writing; /* owned */
    /* points and descriptions since open: queued; written or dropped by a write */
    uint64_t accepted, finished;
    uint64_t dropped;                /* points not accepted, or lost by a failed write */
    struct err failure;              /* of the last failed write that no flush has reported */
    bool has_failed;                 /* `failure` is valid */
    bool flush_is_waiting;           /* a thread waits in flush */
    bool closing, ended;             /* close was called; the writer thread has ended */
    bool is_detached;                /* close timed out: the writer thread frees the struct */
    pthread_t thread;
};

static void destroy(struct summary *s)
{
    if (s == NULL)
        return;
    if (s->fd >= 0)
        close(s->fd);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    buf_fini(&s->bytes);
    buf_fini(&s->described);
    free(s->filling);
    free(s->writing);
    free(s->path);
    free(s);
}

/* ---- the format ---- */

static void add_event(struct buf *out, const Tensorflow__Event *e)
{
    uint8_t data[SUMMARY_TAG_MAX + 128];
    size_t n = tensorflow__event__get_packed_size(e);

    CHECK(n <= sizeof(data));
    tensorflow__event__pack(e, data);
    summary_add_record(out, data, (uint32_t)n);
}

static void add_point(struct buf *out, const struct point *p)
{
    Tensorflow__Summary__Value value = TENSORFLOW__SUMMARY__VALUE__INIT;
    Tensorflow__Summary__Value *values[] = { &value };
    Tensorflow__Summary summary = TENSORFLOW__SUMMARY__INIT;
    Tensorflow__Event e = TENSORFLOW__EVENT__INIT;

    value.tag = (char *)p->tag;
    value.value_case = TENSORFLOW__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
    value.simple_value = p->value;
    summary.n_value = 1;
    summary.value = values;
    e.wall_time = (double)p->wall_us / 1e6;
    e.step = (int64_t)p->step;
    e.what_case = TENSORFLOW__EVENT__WHAT_SUMMARY;
    e.summary = &summary;
    add_event(out, &e);
}

static void add_start(struct buf *out, uint64_t wall_us, uint64_t purge_step)
{
    Tensorflow__SessionLog start = TENSORFLOW__SESSION_LOG__INIT;
    Tensorflow__Event e = TENSORFLOW__EVENT__INIT;

    e.wall_time = (double)wall_us / 1e6;
    e.what_case = TENSORFLOW__EVENT__WHAT_FILE_VERSION;
    e.file_version = (char *)"brain.Event:2";
    add_event(out, &e);
    if (purge_step == 0)
        return;
    start.status = TENSORFLOW__SESSION_LOG__SESSION_STATUS__START;
    e.step = (int64_t)purge_step;
    e.what_case = TENSORFLOW__EVENT__WHAT_SESSION_LOG;
    e.session_log = &start;
    add_event(out, &e);
}

/* ---- writing ---- */

/* Appends `bytes` to the file, completely or not at all. */
static int write_out(struct summary *s, struct err *err)
{
    int rc;

    if (s->bytes.failed)
        return err_set(err, ERR_NOMEM, "write '%s': out of memory", s->path);
    rc = fs_write_all(s->fd, s->bytes.data, s->bytes.len, s->path, err);
    if (rc == 0)
        s->good_bytes += (off_t)s->bytes.len;
    else
        (void)!ftruncate(s->fd, s->good_bytes); /* else readers stop at the incomplete record */
    return rc;
}

static int write_batch(struct summary *s, const struct buf *described, const struct batch *b,
                       struct err *err)
{
    int rc;

    buf_add(&s->bytes, described->data, described->len);
    s->bytes.failed = s->bytes.failed || described->failed;
    for (uint32_t i = 0; i < b->n; i++)
        add_point(&s->bytes, &b->points[i]);
    rc = write_out(s, err);
    buf_reset(&s->bytes);
    return rc;
}

/* Caller holds the lock. Waits until a batch is due (BATCH_DELAY_MS after its first point, half
 * full, or a flush) or the summary is being closed. */
static void wait_for_points(struct summary *s)
{
    struct timespec deadline;
    int rc = 0;

    while (s->filling->n == 0 && s->described.len == 0 && !s->closing)
        pthread_cond_wait(&s->work, &s->lock);
    deadline = clock_after_ms(BATCH_DELAY_MS);
    while (rc == 0 && s->filling->n < POINTS / 2 && !s->flush_is_waiting && !s->closing)
        rc = pthread_cond_timedwait(&s->work, &s->lock, &deadline);
}

static void *write_points(void *arg)
{
    struct summary *s = arg;
    struct batch *b;
    struct err err;
    bool is_detached;
    int rc;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        wait_for_points(s);
        struct buf described = s->described;
        uint32_t n = s->filling->n + (described.len > 0);

        if (n == 0)
            break; /* closing, and all points are written */
        s->described = (struct buf){ 0 };
        b = s->filling;
        s->filling = s->writing;
        s->writing = b;
        pthread_mutex_unlock(&s->lock);
        rc = write_batch(s, &described, b, &err);
        buf_fini(&described);
        pthread_mutex_lock(&s->lock);
        s->finished += n;
        if (rc < 0) {
            s->dropped += n;
            s->failure = err;
            s->has_failed = true;
        }
        b->n = 0;
        pthread_cond_broadcast(&s->done);
    }
    s->ended = true;
    is_detached = s->is_detached;
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->lock);
    if (is_detached)
        destroy(s);
    return NULL;
}

/* ---- opening ---- */

static int create_file(struct summary *s, const char *directory, uint64_t wall_us, struct err *err)
{
    char host[256] = "localhost", name[400], suffix[8] = "";

    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0' || strchr(host, '/') != NULL)
        snprintf(host, sizeof(host), "localhost");
    /* In containers, several processes may have the same pid; then the name gets a suffix. */
    for (int i = 1; i <= NAME_ATTEMPTS; i++) {
        snprintf(name, sizeof(name), "events.out.tfevents.%010llu.%s.%ld%s",
                 (unsigned long long)(wall_us / 1000000), host, (long)getpid(), suffix);
        free(s->path);
        s->path = fs_join(directory, name);
        if (s->path == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
        s->fd = open(s->path, O_CREAT | O_EXCL | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
        if (s->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
        snprintf(suffix, sizeof(suffix), ".%d", i);
    }
    return err_sys(err, errno, "create '%s'", s->path);
}

static int start_thread(struct summary *s, struct err *err)
{
    return thread_start(&s->thread, "writes curves", write_points, s, err);
}

static struct summary *new_summary(void)
{
    struct summary *s = calloc(1, sizeof(*s));
    pthread_condattr_t attr;

    if (s == NULL)
        return NULL;
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attr);
    pthread_cond_init(&s->done, &attr);
    pthread_condattr_destroy(&attr);
    s->filling = calloc(1, sizeof(*s->filling));
    s->writing = calloc(1, sizeof(*s->writing));
    if (s->filling == NULL || s->writing == NULL) {
        destroy(s);
        return NULL;
    }
    return s;
}

/* *is_first: no process has written curves to the directory. */
static int find_events(const char *directory, bool *is_first, struct err *err)
{
    DIR *d = opendir(directory);
    struct dirent *entry;

    *is_first = true;
    if (d == NULL)
        return err_sys(err, errno, "open directory '%s'", directory);
    while ((entry = readdir(d)) != NULL)
        if (text_starts(entry->d_name, "events.out.tfevents."))
            *is_first = false;
    closedir(d);
    return 0;
}

int summary_open(const char *directory, uint64_t purge_step, struct summary **out, struct err *err)
{
    struct summary *s = new_summary();
    uint64_t wall_us = clock_wall_us();
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "curves in '%s': out of memory", directory);
    rc = fs_mkdirs(directory, err);
    if (rc == 0)
        rc = find_events(directory, &s->is_first, err);
    if (rc == 0)
        rc = create_file(s, directory, wall_us, err);
    if (rc < 0)
        goto fail;
    add_start(&s->bytes, wall_us, purge_step);
    rc = write_out(s, err);
    buf_reset(&s->bytes);
    if (rc == 0)
        rc = start_thread(s, err);
    if (rc < 0)
        goto fail;
    *out = s;
    return 0;

fail:
    if (s->fd >= 0)
        (void)unlink(s->path); /* a remaining empty file is harmless */
    destroy(s);
    return err_wrap(err, rc, "curves in '%s'", directory);
}

/* ---- calls of the user ---- */

void summary_scalar(struct summary *s, uint64_t step, const char *tag, float value)
{
    uint64_t wall_us = clock_wall_us();
    size_t n = strnlen(tag, SUMMARY_TAG_MAX + 1);
    bool is_tag = n > 0 && n <= SUMMARY_TAG_MAX && text_is_utf8(tag, n);
    struct point *p;

    pthread_mutex_lock(&s->lock);
    if (!is_tag || s->filling->n == POINTS) {
        s->dropped++;
    } else {
        p = &s->filling->points[s->filling->n++];
        p->wall_us = wall_us;
        p->step = step;
        p->value = value;
        memcpy(p->tag, tag, n + 1);
        s->accepted++;
        if (s->filling->n == 1 || s->filling->n == POINTS / 2)
            pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
}

void summary_describe(struct summary *s, const struct summary_run *run)
{
    pthread_mutex_lock(&s->lock);
    if (s->is_first) {
        s->is_first = false;
        summary_run_encode(run, clock_wall_us(), &s->described);
        s->accepted++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
}

uint64_t summary_dropped(const struct summary *s)
{
    struct summary *t = (struct summary *)s; /* the lock is logically not part of the value */
    uint64_t n;

    pthread_mutex_lock(&t->lock);
    n = t->dropped;
    pthread_mutex_unlock(&t->lock);
    return n;
}

int summary_flush(struct summary *s, struct err *err)
{
    struct timespec deadline = clock_after_ms(TIMEOUT_MS);
    uint64_t target;
    int rc = 0, waited = 0;

    pthread_mutex_lock(&s->lock);
    target = s->accepted;
    s->flush_is_waiting = true;
    pthread_cond_signal(&s->work);
    while (waited == 0 && s->finished < target)
        waited = pthread_cond_timedwait(&s->done, &s->lock, &deadline);
    s->flush_is_waiting = false;
    if (s->finished < target)
        rc = err_set(err, ERR_TIMEOUT,
                     "write '%s': %llu points are not written after %d ms; "
                     "the disk does not respond",
                     s->path, (unsigned long long)(target - s->finished), (int)TIMEOUT_MS);
    else if (s->has_failed)
        rc = err_set(err, s->failure.code, "%s", s->failure.text);
    if (rc != ERR_TIMEOUT)
        s->has_failed = false; /* reported to this caller */
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void summary_close(struct summary *s)
{
    struct timespec deadline = clock_after_ms(TIMEOUT_MS);
    int waited = 0;
    bool ended;

    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->work);
    while (waited == 0 && !s->ended)
        waited = pthread_cond_timedwait(&s->done, &s->lock, &deadline);
    ended = s->ended;
    s->is_detached = !ended;
    if (!ended)
        pthread_detach(s->thread); /* before the unlock, after which the thread may free `s` */
    pthread_mutex_unlock(&s->lock);
    if (ended) {
        pthread_join(s->thread, NULL);
        destroy(s);
    }
}
