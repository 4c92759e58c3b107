/* gpu_clock.c - measures how a GPU spends its time, with its own clock.
 *
 * In every step: stretches of the work stream, each between two events (a lane, the reduction with
 * the look at the gradient, the update). What lies between two stretches is time in which the GPU
 * had no work of this program: it waits for the host or for data. When the host has waited for the
 * sums of a step, all events of the step have come, so that reading them is no wait.
 *
 *     | update k-1 |  gap  | lane 0 |gap| lane 1 ... | reduce k |  gap  | update k | ...
 *                                              period k: from reduce k-1 to here
 *
 * In a traced step there is an event after every call and copy, on its stream. The lanes are not
 * captured, and the host waits for the update before it reads the events: such a step is slower
 * than others, its calls are not. All events are opened before the first step. */
#include "engine/gpu_clock.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "engine/gpu_buckets.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"
#include "engine/plans.h"
#include "engine/trace.h"
#include "graph/graph.h"

enum {
    REST = 9, /* stretches of a step apart from its lanes, at most */
    NOWHERE = UINT32_MAX,
};

struct span {
    uint32_t row, what, which; /* of trace.h */
    uint32_t from, to;         /* events */
};

struct events {
    struct cuda_event **at; /* timed */
    uint32_t n, cap;
};

struct gpu_clock {
    /* the end of the period before, if it is known, then begin, end, begin, end, ... */
    struct events busy;
    bool has_before;
    bool traces;         /* a traced step is in progress */
    struct events marks; /* of the traced step */
    struct span *spans;
    uint32_t n_spans, cap_spans;
    uint32_t last[TRACE_ROWS]; /* mark of a row; NOWHERE */
    uint32_t first;            /* mark of the work row */
    struct cuda_event *zero;   /* of a traced step: an event whose time is known on both clocks */
};

/* ---- opening ---- */

static int open_events(const struct gpu *g, struct events *e, uint64_t n, struct err *err)
{
    int rc = 0;

    e->at = calloc(n + 1, sizeof(struct cuda_event *));
    if (e->at == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    while (rc == 0 && e->cap < n) {
        rc = g->cuda->event_open(true, &e->at[e->cap], err);
        e->cap += rc == 0;
    }
    return rc;
}

static void close_events(const struct gpu *g, struct events *e)
{
    for (uint32_t i = 0; i < e->cap; i++)
        g->cuda->event_close(e->at[i]);
    free(e->at);
}

int gpu_clock_open(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    uint64_t lanes = e->opts->max_lanes, calls = plan_calls_count(r->plans->train);
    uint64_t marks = lanes * (calls + 8) + 3 * (uint64_t)gpu_pieces(e) + 16;
    struct gpu_clock *c = calloc(1, sizeof(*c));
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    g->clock = c;
    rc = open_events(g, &c->busy, 1 + 2 * (lanes + REST), err);
    if (rc < 0 || !e->opts->traces)
        return rc;
    rc = open_events(g, &c->marks, marks, err);
    if (rc == 0)
        rc = g->cuda->event_open(true, &c->zero, err);
    c->cap_spans = (uint32_t)marks;
    c->spans = calloc(marks, sizeof(*c->spans));
    gpu_clock_step_begin(r);
    return rc == 0 && c->spans == NULL ? err_set(err, ERR_NOMEM, "out of memory") : rc;
}

void gpu_clock_close(struct gpu *g)
{
    struct gpu_clock *c = g->clock;

    if (c == NULL)
        return;
    close_events(g, &c->busy);
    close_events(g, &c->marks);
    g->cuda->event_close(c->zero);
    free(c->spans);
    free(c);
}

/* ---- every step ---- */

void gpu_clock_reset(struct engine_replica *r)
{
    struct gpu_clock *c = gpu_of(r)->clock;

    c->busy.n = 0;
    c->has_before = c->traces = false;
}

static int note(struct engine_replica *r, struct err *err)
{
    struct events *e = &gpu_of(r)->clock->busy;

    CHECK(e->n < e->cap);
    return gpu_of(r)->cuda->record(e->at[e->n++], gpu_of(r)->streams.work, err);
}

int gpu_clock_work_begin(struct engine_replica *r, struct err *err)
{
    return note(r, err);
}

int gpu_clock_work_end(struct engine_replica *r, struct err *err)
{
    return note(r, err);
}

void gpu_clock_read(struct engine_replica *r)
{
    const struct cuda_api *cuda = gpu_of(r)->cuda;
    struct gpu_clock *c = gpu_of(r)->clock;
    struct events *e = &c->busy;
    double idle = 0, all;
    struct cuda_event *end;

    CHECK(e->n > 0);
    all = cuda->elapsed_ms(e->at[0], e->at[e->n - 1]);
    for (uint32_t i = 0; i + 1 < e->n; i += 2)
        idle += cuda->elapsed_ms(e->at[i], e->at[i + 1]);
    r->engine->device_idle[r->local] = c->has_before && all > 0 ? fmin(idle / all, 1) : (double)NAN;
    end = e->at[e->n - 1]; /* the next period begins where this one ends */
    e->at[e->n - 1] = e->at[0];
    e->at[0] = end;
    e->n = 1;
    c->has_before = true;
}

/* ---- a traced step ---- */

void gpu_clock_step_begin(struct engine_replica *r)
{
    struct gpu_clock *c = gpu_of(r)->clock;

    c->traces = r->trace != NULL;
    c->marks.n = c->n_spans = 0;
    c->first = NOWHERE;
    for (uint32_t i = 0; i < TRACE_ROWS; i++)
        c->last[i] = NOWHERE;
}

static struct cuda_stream *stream_of(const struct gpu *g, enum trace_rows row)
{
    return row == TRACE_WORK   ? g->streams.work
           : row == TRACE_FEED ? g->streams.feed
                               : g->streams.reduce;
}

int gpu_span_begin(struct engine_replica *r, enum trace_rows row, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_clock *c = g->clock;

    if (!c->traces)
        return 0;
    CHECK(c->marks.n < c->marks.cap);
    if (row == TRACE_WORK && c->first == NOWHERE)
        c->first = c->marks.n;
    c->last[row] = c->marks.n;
    return g->cuda->record(c->marks.at[c->marks.n++], stream_of(g, row), err);
}

int gpu_begin_work(struct engine_replica *r, struct err *err)
{
    int rc = gpu_clock_work_begin(r, err);

    return rc < 0 ? rc : gpu_span_begin(r, TRACE_WORK, err);
}

static void add_span(struct gpu_clock *c, enum trace_rows row, enum trace_kind what, uint32_t which,
                     uint32_t from)
{
    CHECK(c->n_spans < c->cap_spans && from != NOWHERE);
    c->spans[c->n_spans++] = (struct span){ row, what, which, from, c->last[row] };
}

int gpu_span_end(struct engine_replica *r, enum trace_rows row, enum trace_kind what,
                 uint32_t which, struct err *err)
{
    uint32_t from;
    int rc;

    if (!gpu_of(r)->clock->traces)
        return 0;
    from = gpu_of(r)->clock->last[row];
    rc = gpu_span_begin(r, row, err);
    if (rc == 0)
        add_span(gpu_of(r)->clock, row, what, which, from);
    return rc;
}

uint32_t gpu_span_position(const struct engine_replica *r)
{
    return gpu_of(r)->clock->traces ? gpu_of(r)->clock->last[TRACE_WORK] : NOWHERE;
}

void gpu_span_enclose(struct engine_replica *r, enum trace_kind what, uint32_t which, uint32_t from)
{
    if (gpu_of(r)->clock->traces)
        add_span(gpu_of(r)->clock, TRACE_WORK, what, which, from);
}

int gpu_span_call(void *arg, uint32_t call, struct err *err)
{
    return gpu_span_end(arg, TRACE_WORK, TRACE_CALL, call, err);
}

/* Waits until all streams are at rest. *now: the time of c->zero on the host's clock. */
static int match_clocks(struct engine_replica *r, uint64_t *now, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct cuda_stream *streams[] = { g->streams.reduce, g->streams.feed, g->streams.work };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < COUNT_OF(streams); i++)
        rc = gpu_wait_stream(r, streams[i], err);
    if (rc == 0)
        rc = g->cuda->record(g->clock->zero, g->streams.work, err);
    while (rc == 0) { /* until the event has occurred */
        rc = gpu_poll(r, err);
        if (rc == 0)
            rc = g->cuda->done(NULL, g->clock->zero, err);
    }
    *now = clock_ns();
    return rc < 0 ? rc : 0;
}

int gpu_clock_step_end(struct engine_replica *r, struct err *err)
{
    struct gpu_clock *c = gpu_of(r)->clock;
    uint64_t now;
    int rc;

    if (r->trace == NULL)
        return 0;
    if (c->first != NOWHERE)
        add_span(c, TRACE_WORK, TRACE_STEP, 0, c->first);
    c->traces = false; /* work between steps belongs to no step */
    rc = match_clocks(r, &now, err);
    for (uint32_t i = 0; rc == 0 && i < c->n_spans; i++) {
        const struct span *s = &c->spans[i];
        double from = gpu_of(r)->cuda->elapsed_ms(c->marks.at[s->from], c->zero);
        double to = gpu_of(r)->cuda->elapsed_ms(c->marks.at[s->to], c->zero);

        trace_add(trace_sibling(r->trace, (enum trace_rows)s->row), (enum trace_kind)s->what,
                  s->which, now - (uint64_t)(from * 1e6), now - (uint64_t)(to * 1e6));
    }
    return rc;
}
