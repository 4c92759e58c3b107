/* trace.c - what happened when, noted while it happens. */
#include "engine/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "graph/graph.h"
#include "engine/trace_priv.h"
#include "engine/trace_write.h"

/* ---- opening ---- */

/* Spans of a step in a row, at most. A lane: data, forward, backward, sums, calls. A step: itself,
 * reduction, check, update, checkpoint, and after it evaluation. Each piece of the reduction also
 * has sums of its own. A GPU also waits for the sums after the last lane, and looks at what was
 * scaled. */
static uint64_t spans_of_step(const struct trace_opts *o, enum trace_rows which)
{
    uint64_t calls = plan_calls_count(o->plans[0]), pieces = o->pieces;

    switch (which) {
    case TRACE_REPLICA:
        return o->on_gpus ? 2 * (uint64_t)o->lanes + 6 : o->lanes * (4 + calls) + 6 + pieces;
    case TRACE_REDUCER:
        return o->on_gpus ? 0 : pieces;
    case TRACE_WORK:
        return o->on_gpus ? o->lanes * (4 + calls) + 10 + pieces : 0;
    case TRACE_FEED:
        return o->on_gpus ? (uint64_t)o->lanes + 1 : 0;
    case TRACE_REDUCE:
        return o->on_gpus ? pieces : 0;
    case TRACE_ROWS:
        break;
    }
    CHECK(!"a row that does not exist");
    return 0;
}

static int check_size(const struct trace_opts *o, struct err *err)
{
    uint64_t per_step = 0, most;

    for (int i = 0; i < TRACE_ROWS; i++)
        per_step += o->n_replicas * spans_of_step(o, (enum trace_rows)i);
    most = TRACE_MAX_SPANS / per_step;
    if (o->steps <= most)
        return 0;
    return err_set(err, ERR_INPUT,
                   "a trace of %u steps would have %llu spans, more than the %d that one may have: "
                   "trace at most %llu steps of this model on %u replica%s%s",
                   o->steps, (unsigned long long)(per_step * o->steps), TRACE_MAX_SPANS,
                   (unsigned long long)most, o->n_replicas, o->n_replicas == 1 ? "" : "s",
                   most == 0 ? ", or use fewer replicas or lanes" : "");
}

static int open_row(struct trace *t, uint32_t i, struct err *err)
{
    static const char *const names[] = { [TRACE_REPLICA] = "replica",
                                         [TRACE_REDUCER] = "reduction",
                                         [TRACE_WORK] = "work",
                                         [TRACE_FEED] = "feed",
                                         [TRACE_REDUCE] = "sums" };
    const struct trace_opts *o = &t->opts;
    struct trace_row *row = &t->rows[i];
    enum trace_rows which = (enum trace_rows)(i / o->n_replicas);

    row->trace = t;
    row->cap = (size_t)(o->steps * spans_of_step(o, which));
    snprintf(row->name, sizeof(row->name), "%s %u", names[which], i % o->n_replicas);
    row->spans = calloc(row->cap + 1, sizeof(*row->spans));
    if (row->spans == NULL)
        return err_set(err, ERR_NOMEM, "trace: out of memory");
    memset(row->spans, 0, row->cap * sizeof(*row->spans)); /* here now, not in the traced steps */
    if (which != (o->on_gpus ? TRACE_WORK : TRACE_REPLICA))
        return 0;
    row->plan = o->plans[i % o->n_replicas];
    row->calls = plan_calls_count(row->plan);
    while (row->n_forward < row->calls && !plan_call_info(row->plan, row->n_forward).backward)
        row->n_forward++;
    row->end_ns = calloc(row->calls + 1, sizeof(*row->end_ns));
    return row->end_ns != NULL ? 0 : err_set(err, ERR_NOMEM, "trace: out of memory");
}

int trace_open(const struct trace_opts *opts, struct trace **out, struct err *err)
{
    pthread_condattr_t monotonic;
    struct trace *t;
    int rc = check_size(opts, err);

    if (rc < 0)
        return rc;
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return err_set(err, ERR_NOMEM, "trace: out of memory");
    t->opts = *opts;
    t->fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->rows = calloc(TRACE_ROWS * (size_t)opts->n_replicas, sizeof(*t->rows));
    if (t->rows == NULL)
        rc = err_set(err, ERR_NOMEM, "trace: out of memory");
    for (uint32_t i = 0; rc == 0 && i < TRACE_ROWS * opts->n_replicas; i++)
        rc = open_row(t, i, err);
    t->opts.plans = NULL; /* the caller's array; rows have what they need */
    if (rc == 0)
        rc = trace_open_file(opts->path, &t->fd, err);
    if (rc < 0) {
        trace_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void trace_close(struct trace *t)
{
    if (t == NULL)
        return;
    trace_end(t, 0);
    if (t->has_thread)
        pthread_join(t->thread, NULL);
    for (uint32_t i = 0; t->rows != NULL && i < TRACE_ROWS * t->opts.n_replicas; i++) {
        free(t->rows[i].spans);
        free(t->rows[i].end_ns);
    }
    free(t->rows);
    if (t->fd >= 0)
        close(t->fd);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- its thread ---- */

static void *writer(void *arg)
{
    struct trace *t = arg;

    pthread_mutex_lock(&t->lock);
    while (t->rows_left > 0 && !t->ended)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    trace_write(t);
    pthread_mutex_lock(&t->lock);
    t->written = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int trace_start(struct trace *t, uint64_t first, uint32_t pid, const char *name, struct err *err)
{
    int rc;

    CHECK(first > 0 && t->first == 0);
    t->first = first;
    t->pid = pid;
    t->rows_left = t->opts.n_replicas;
    snprintf(t->name, sizeof(t->name), "%s", name);
    rc = thread_start(&t->thread, "writes the trace", writer, t, err);
    if (rc < 0)
        return rc;
    t->has_thread = true;
    return 0;
}

void trace_end(struct trace *t, uint64_t wait_ms)
{
    struct timespec until;

    if (t == NULL || !t->has_thread)
        return;
    until = clock_after_ms(wait_ms);
    pthread_mutex_lock(&t->lock);
    t->ended = true;
    pthread_cond_broadcast(&t->changed);
    while (!t->written && wait_ms > 0 &&
           pthread_cond_timedwait(&t->changed, &t->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&t->lock);
}

/* ---- noting ---- */

static int note_end(void *arg, uint32_t call, struct err *err)
{
    struct trace_row *row = arg;

    (void)err;
    row->end_ns[call] = clock_ns();
    return 0;
}

struct trace_row *trace_begin(struct trace *t, uint32_t replica, uint64_t step)
{
    struct trace_row *row;

    if (t == NULL || step < t->first || step - t->first >= t->opts.steps)
        return NULL;
    row = &t->rows[replica];
    row->step = (uint32_t)(step - t->first);
    if (row->plan != NULL)
        plan_watch(row->plan, note_end, row);
    return row;
}

struct trace_row *trace_sibling(struct trace_row *row, enum trace_rows which)
{
    struct trace_row *other;

    if (row == NULL)
        return NULL;
    other = row + which * row->trace->opts.n_replicas;
    other->step = row->step;
    return other;
}

bool trace_end_step(struct trace_row *row, uint64_t begin_ns)
{
    struct trace *t;

    if (row == NULL)
        return true;
    t = row->trace;
    trace_add_until_now(row, TRACE_STEP, 0, begin_ns);
    if (row->step + 1 < t->opts.steps)
        return false;
    if (row->plan != NULL)
        plan_watch(row->plan, NULL, NULL);
    pthread_mutex_lock(&t->lock);
    if (--t->rows_left == 0)
        pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return true;
}

void trace_add(struct trace_row *row, enum trace_kind what, uint32_t which, uint64_t begin_ns,
               uint64_t end_ns)
{
    if (row == NULL)
        return;
    CHECK(row->n < row->cap);
    row->spans[row->n++] = (struct trace_span){ .begin_ns = begin_ns,
                                                .end_ns = end_ns,
                                                .step = row->step,
                                                .which = which,
                                                .what = (uint32_t)what };
}

void trace_add_until_now(struct trace_row *row, enum trace_kind what, uint32_t which,
                         uint64_t begin_ns)
{
    if (row != NULL)
        trace_add(row, what, which, begin_ns, clock_ns());
}

void trace_calls(struct trace_row *row, bool backward, uint32_t lane, uint64_t begin_ns)
{
    uint32_t from, end;
    size_t between, n_before;
    uint64_t at = begin_ns, now = trace_clock(row);

    if (row == NULL)
        return;
    from = backward ? row->n_forward : 0;
    end = backward ? row->calls : row->n_forward;
    n_before = row->n;
    between = row->n;
    while (between > 0 && row->spans[between - 1].begin_ns >= begin_ns)
        between--; /* lane sums made since it began */
    trace_add(row, backward ? TRACE_BACKWARD : TRACE_FORWARD, lane, begin_ns, now);
    for (uint32_t i = from; i < end; i++) {
        for (; between < n_before && row->spans[between].begin_ns < row->end_ns[i]; between++)
            at = row->spans[between].end_ns;
        trace_add(row, TRACE_CALL, i, at, row->end_ns[i]);
        at = row->end_ns[i];
    }
}
