/* stream.c - streams are queues that run when forced; events are marks in them.
 *
 * To force a mark, the first work of its stream runs, repeatedly, until the mark is done. A stream
 * that waits for a mark of another stream forces that one first: a mark is recorded before a stream
 * waits for it, so there is no cycle. The lock is released while work runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/emulator_priv.h"

static struct CUstream_st *streams; /* owned list; includes destroyed ones that have work */
static struct CUevent_st *events;   /* owned list */
static uint64_t n_changes;          /* number of changes of the list of streams */

/* ---- marks and work ---- */

static struct mark *mark_new(struct CUstream_st *s, unsigned int references)
{
    struct mark *m = emulated_alloc(sizeof(*m));

    m->stream = s;
    m->references = references;
    return m;
}

void mark_release(struct mark *m)
{
    if (m != NULL && --m->references == 0)
        free(m);
}

static void mark_done(struct mark *m)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    m->ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    m->is_done = true;
    m->stream = NULL;
    emulated_changed();
}

struct work *work_new(const char *name, int (*run)(void *), const void *args, size_t bytes)
{
    struct work *w = emulated_alloc(sizeof(*w) + bytes);

    w->kind = WORK_RUN;
    w->name = name;
    w->run = run;
    w->bytes = bytes;
    if (bytes > 0)
        memcpy(w->args, args, bytes);
    return w;
}

void work_free(struct work *w)
{
    if (w->drop != NULL)
        w->drop(w->args);
    mark_release(w->mark);
    free(w);
}

int work_execute(struct work *w, int device)
{
    const char *outer = emulated_running;
    int rc;

    if (emulated_sticky(device) != cudaSuccess)
        return EMULATED_DONE; /* the device has a sticky error: its work never runs */
    if (w->hangs)
        return EMULATED_NOT_YET;
    emulated_lock();
    if (w->meets_fault) {
        emulated_break(device, cudaErrorIllegalAddress);
        emulated_unlock();
        return EMULATED_DONE;
    }
    memory_open(device);
    emulated_unlock();
    emulated_running = w->name;
    rc = w->run(w->args);
    emulated_running = outer;
    emulated_lock();
    memory_close(device);
    emulated_unlock();
    return rc;
}

/* ---- queues ---- */

bool stream_is_known(const struct CUstream_st *s)
{
    const struct CUstream_st *k;

    for (k = streams; k != NULL && k != s; k = k->next)
        ;
    return k != NULL && !k->is_destroyed;
}

static bool event_is_known(const struct CUevent_st *e)
{
    const struct CUevent_st *k;

    for (k = events; k != NULL && k != e; k = k->next)
        ;
    return k != NULL;
}

void stream_push(struct CUstream_st *s, struct work *w)
{
    w->next = NULL;
    *s->last = w;
    s->last = &w->next;
}

struct mark *stream_mark(struct CUstream_st *s)
{
    struct work *w = work_new("record", NULL, NULL, 0);

    w->kind = WORK_RECORD;
    w->mark = mark_new(s, 2);
    stream_push(s, w);
    return w->mark;
}

void stream_wait(struct CUstream_st *s, struct mark *m)
{
    struct work *w = work_new("wait", NULL, NULL, 0);

    w->kind = WORK_WAIT;
    w->mark = m;
    m->references++;
    stream_push(s, w);
}

static void stream_free(struct CUstream_st *s)
{
    struct CUstream_st **at = &streams;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    n_changes++;
    free(s->after);
    free(s);
}

static void pop(struct CUstream_st *s)
{
    struct work *w = s->first;

    s->first = w->next;
    if (s->first == NULL)
        s->last = &s->first;
    work_free(w);
    if (s->first == NULL && s->is_destroyed)
        stream_free(s);
}

/* Makes one step of progress on `s`. False: it waits for another stream or thread. `s` may be
 * freed. */
static bool advance(struct CUstream_st *s)
{
    struct work *w = s->first;
    int rc;

    if (s->is_busy) {
        emulated_wait();
        return true;
    }
    if (w == NULL)
        return true;
    if (w->kind == WORK_WAIT && !w->mark->is_done)
        return advance(w->mark->stream);
    if (w->kind == WORK_RECORD)
        mark_done(w->mark);
    if (w->kind == WORK_RUN) {
        s->is_busy = true;
        emulated_unlock();
        rc = work_execute(w, s->device);
        emulated_lock();
        s->is_busy = false;
        emulated_changed();
        if (rc != EMULATED_DONE)
            return false;
    }
    pop(s);
    return true;
}

static bool can_advance(const struct CUstream_st *s, const struct CUstream_st *except)
{
    return s != except && !s->is_busy && s->first != NULL;
}

/* Makes progress on another stream: the first that can, from the `nth` on. False: none can. */
static bool advance_other(const struct CUstream_st *except, uint64_t nth)
{
    uint64_t before = n_changes, n = 0, i;
    struct CUstream_st *s;

    for (s = streams; s != NULL; s = s->next)
        n += can_advance(s, except);
    for (i = 0; i < n; i++) {
        uint64_t skip = (nth + i) % n;

        for (s = streams; s != NULL; s = s->next)
            if (can_advance(s, except) && skip-- == 0)
                break;
        if (s != NULL && (advance(s) || n_changes != before))
            return true;
    }
    return false;
}

cudaError_t stream_force(struct mark *m)
{
    const bool is_hasty = emulated_settings()->seed != EMULATED_SEED_LAZY;
    int device;

    if (m->is_done)
        return cudaSuccess;
    device = m->stream->device;
    memory_open(device); /* once for all work, not for each */
    while (!m->is_done) {
        if (is_hasty && emulated_random() % 4 == 0 &&
            advance_other(m->stream, emulated_random())) /* may have completed m */
            continue;
        if (!advance(m->stream) && !m->is_done && !advance_other(m->stream, 0))
            emulated_wait();
    }
    memory_close(device);
    return emulated_sticky(device);
}

void stream_force_device(int device, bool blocking_only)
{
    struct CUstream_st *s;
    struct mark **marks;
    size_t n = 0, i;

    for (s = streams; s != NULL; s = s->next)
        n++;
    marks = emulated_alloc((n + 1) * sizeof(*marks));
    for (n = 0, s = streams; s != NULL; s = s->next)
        if (s->device == device && s->first != NULL && (s->is_blocking || !blocking_only))
            marks[n++] = stream_mark(s);
    for (i = 0; i < n; i++) {
        (void)stream_force(marks[i]); /* the caller reads the error of the device */
        mark_release(marks[i]);
    }
    free(marks);
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    cudaError_t rc = emulated_enter();
    struct CUstream_st *s;

    (void)priority; /* work runs when it is forced, so priorities have no effect */
    if (rc != cudaSuccess)
        return rc;
    if ((flags & ~(unsigned)cudaStreamNonBlocking) != 0)
        return emulated_fail(cudaErrorInvalidValue);
    s = emulated_alloc(sizeof(*s));
    s->device = emulated_device();
    s->is_blocking = (flags & cudaStreamNonBlocking) == 0;
    s->last = &s->first;
    emulated_lock();
    s->next = streams;
    streams = s;
    n_changes++;
    emulated_unlock();
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

/* Takes the lock if the stream exists; else returns an error without the lock. */
static cudaError_t enter_stream(cudaStream_t s)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    if (stream_is_known(s))
        return cudaSuccess;
    emulated_unlock();
    if (s == NULL)
        emulated_die("the default stream is not emulated: name one");
    return emulated_fail(cudaErrorInvalidResourceHandle);
}

static cudaError_t unlock_and_return(cudaError_t rc)
{
    emulated_unlock();
    return emulated_fail(rc);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t rc = cudaSuccess;

    /* Also with a sticky error or without a driver: our resources are freed. */
    emulated_lock();
    if (!stream_is_known(s))
        return unlock_and_return(cudaErrorInvalidResourceHandle);
    if (s->capture != NULL)
        capture_abandon(s);
    rc = emulated_sticky(s->device);
    s->is_destroyed = true;
    if (s->first == NULL)
        stream_free(s);
    return unlock_and_return(rc);
}

cudaError_t cudaStreamGetDevice(cudaStream_t s, int *device)
{
    cudaError_t rc = enter_stream(s);

    if (rc != cudaSuccess)
        return rc;
    *device = s->device;
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t rc = enter_stream(s);
    struct mark *m;

    if (rc != cudaSuccess)
        return rc;
    rc = capture_forbids(s);
    if (rc == cudaSuccess && s->first != NULL) {
        m = stream_mark(s);
        rc = stream_force(m);
        mark_release(m);
    }
    return unlock_and_return(rc);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    cudaError_t rc = enter_stream(s);
    int device;

    if (rc != cudaSuccess)
        return rc;
    rc = capture_forbids(s);
    if (rc == cudaSuccess && s->first != NULL) {
        device = s->device;
        (void)advance(s); /* one step; the next query reports whether more remains */
        rc = emulated_sticky(device);
        rc = rc != cudaSuccess ? rc : cudaErrorNotReady;
    }
    return unlock_and_return(rc);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    rc = capture_forbids(NULL);
    if (rc == cudaSuccess) {
        stream_force_device(emulated_device(), false);
        rc = emulated_sticky(emulated_device());
    }
    return unlock_and_return(rc);
}

cudaError_t stream_submit(struct CUstream_st *s, struct work *w)
{
    if (s->capture != NULL)
        return capture_add(s, w);
    stream_push(s, w);
    return cudaSuccess;
}

cudaError_t emulated_enqueue(cudaStream_t s, const char *name, int (*run)(void *args),
                             const void *args, size_t bytes)
{
    cudaError_t rc = enter_stream(s);

    if (rc != cudaSuccess)
        return rc;
    if (bytes > EMULATED_ARGS_MAX)
        emulated_die("%s: %zu bytes of arguments, at most %d", name, bytes, EMULATED_ARGS_MAX);
    return unlock_and_return(stream_submit(s, work_new(name, run, args, bytes)));
}

struct host_call {
    cudaHostFn_t function;
    void *data;
};

static int run_host_call(void *args)
{
    const struct host_call *c = args;

    c->function(c->data);
    return EMULATED_DONE;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *data)
{
    const struct host_call call = { function, data };

    return emulated_enqueue(s, "a host function", run_host_call, &call, sizeof(call));
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaError_t rc = emulated_enter();
    struct CUevent_st *e;

    if (rc != cudaSuccess)
        return rc;
    if ((flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        return emulated_fail(cudaErrorInvalidValue);
    e = emulated_alloc(sizeof(*e));
    e->device = emulated_device();
    e->flags = flags;
    emulated_lock();
    e->next = events;
    events = e;
    emulated_unlock();
    *event = e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

/* Takes the lock if the event exists; else returns an error without the lock. */
static cudaError_t enter_event(cudaEvent_t e)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    if (event_is_known(e))
        return cudaSuccess;
    emulated_unlock();
    return emulated_fail(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    struct CUevent_st **at = &events;

    emulated_lock(); /* also with a sticky error */
    if (!event_is_known(e))
        return unlock_and_return(cudaErrorInvalidResourceHandle);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    mark_release(e->mark);
    free(e->after);
    free(e);
    return unlock_and_return(emulated_sticky(emulated_device()));
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    cudaError_t rc = enter_event(e);

    if (rc != cudaSuccess)
        return rc;
    if (s == NULL)
        emulated_die("cudaEventRecord: the default stream is not emulated: name one");
    if (!stream_is_known(s) || s->device != e->device)
        return unlock_and_return(cudaErrorInvalidResourceHandle);
    if (s->capture != NULL)
        return unlock_and_return(capture_record(s, e));
    mark_release(e->mark);
    e->mark = stream_mark(s);
    e->capture_id = 0;
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    cudaError_t rc = enter_event(e);

    if (rc != cudaSuccess)
        return rc;
    if (flags != 0)
        return unlock_and_return(cudaErrorInvalidValue);
    if (s == NULL)
        emulated_die("cudaStreamWaitEvent: the default stream is not emulated: name one");
    if (!stream_is_known(s))
        return unlock_and_return(cudaErrorInvalidResourceHandle);
    if (s->capture != NULL || e->capture_id != 0)
        return unlock_and_return(capture_wait(s, e));
    if (e->mark != NULL && !e->mark->is_done)
        stream_wait(s, e->mark);
    return unlock_and_return(cudaSuccess);
}

static cudaError_t check_event(const struct CUevent_st *e)
{
    cudaError_t rc = capture_forbids(NULL);

    if (rc != cudaSuccess)
        return rc;
    return e->capture_id != 0 ? cudaErrorCapturedEvent : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cudaError_t rc = enter_event(e);
    int device;

    if (rc != cudaSuccess)
        return rc;
    rc = check_event(e);
    if (rc == cudaSuccess && e->mark != NULL && !e->mark->is_done) {
        device = e->mark->stream->device;
        (void)advance(e->mark->stream); /* one step, as in cudaStreamQuery */
        rc = emulated_sticky(device);
        rc = rc != cudaSuccess ? rc : cudaErrorNotReady;
    }
    return unlock_and_return(rc);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cudaError_t rc = enter_event(e);
    struct mark *m;

    if (rc != cudaSuccess)
        return rc;
    rc = check_event(e);
    m = e->mark;
    if (rc == cudaSuccess && m != NULL) {
        m->references++; /* the event may be recorded again meanwhile */
        rc = stream_force(m);
        mark_release(m);
    }
    return unlock_and_return(rc);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t rc = enter_event(start);

    if (rc != cudaSuccess)
        return rc;
    if (!event_is_known(end) || start->mark == NULL || end->mark == NULL ||
        ((start->flags | end->flags) & cudaEventDisableTiming) != 0)
        return unlock_and_return(cudaErrorInvalidResourceHandle);
    if (!start->mark->is_done || !end->mark->is_done)
        return unlock_and_return(cudaErrorNotReady);
    *ms = (float)((double)((int64_t)end->mark->ns - (int64_t)start->mark->ns) * 1e-6);
    return unlock_and_return(cudaSuccess);
}
