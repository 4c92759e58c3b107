/* graph.c - capture: the work enqueued on streams becomes the nodes of a graph, which is launched
 * as a whole.
 *
 * A capturing stream records the nodes that precede its next one (`after`). An event recorded in it
 * copies them; a stream that waits for the event joins the capture, or adds these nodes to its own.
 * The number of a node is larger than those that it depends on. A launch runs the nodes in a random
 * topological order, which reveals missing dependencies. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/emulator_priv.h"

struct node {
    struct work *work; /* owned; each launch runs a copy of it */
    int device;
    uint32_t *after; /* owned */
    uint32_t n_after;
};

struct CUgraph_st {
    unsigned int references;
    struct node *nodes; /* owned */
    uint32_t n, capacity;
};

struct CUgraphExec_st {
    struct CUgraph_st *graph; /* one reference */
    struct mark *last;        /* of its last launch, which the next one follows. NULL: never
                                 launched */
};

struct capture {
    struct capture *next;
    uint64_t id; /* starts at 1 */
    enum cudaStreamCaptureMode mode;
    pthread_t owner;
    struct CUstream_st *origin;
    struct CUstream_st **members; /* owned; all streams that joined, including the origin */
    uint32_t n_members;
    struct CUgraph_st *graph; /* one reference */
    bool is_invalid;
};

static struct capture *captures; /* active captures; owned list */

/* ---- lists of node numbers ---- */

/* Adds to `list` the numbers of `more` that it does not contain. */
static void add_numbers(uint32_t **list, uint32_t *n, const uint32_t *more, uint32_t n_more)
{
    uint32_t *grown = emulated_alloc(((size_t)*n + n_more + 1) * sizeof(**list));
    uint32_t i, k;

    for (i = 0; i < *n; i++)
        grown[i] = (*list)[i];
    free(*list);
    *list = grown;
    for (i = 0; i < n_more; i++) {
        for (k = 0; k < *n && grown[k] != more[i]; k++)
            ;
        if (k == *n)
            grown[(*n)++] = more[i];
    }
}

static void set_numbers(uint32_t **list, uint32_t *n, const uint32_t *from, uint32_t n_from)
{
    *n = 0;
    add_numbers(list, n, from, n_from);
}

/* ---- graphs ---- */

static void graph_release(struct CUgraph_st *g)
{
    uint32_t i;

    if (--g->references > 0)
        return;
    for (i = 0; i < g->n; i++) {
        work_free(g->nodes[i].work);
        free(g->nodes[i].after);
    }
    free(g->nodes);
    free(g);
}

/* ---- capture ---- */

static cudaError_t invalidate(struct capture *c, cudaError_t rc)
{
    if (c->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    c->is_invalid = true;
    return rc;
}

cudaError_t capture_forbids(struct CUstream_st *s)
{
    struct capture *c;

    if (s != NULL && s->capture != NULL)
        return invalidate(s->capture, cudaErrorStreamCaptureUnsupported);
    for (c = captures; c != NULL; c = c->next)
        if (c->mode == cudaStreamCaptureModeGlobal ||
            (c->mode == cudaStreamCaptureModeThreadLocal &&
             pthread_equal(c->owner, pthread_self())))
            return invalidate(c, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t capture_add(struct CUstream_st *s, struct work *w)
{
    struct CUgraph_st *g = s->capture->graph;
    struct node *node;
    uint32_t number = g->n;

    if (s->capture->is_invalid) {
        work_free(w);
        return cudaErrorStreamCaptureInvalidated;
    }
    if (g->n == g->capacity) {
        g->capacity = g->capacity == 0 ? 64 : g->capacity * 2;
        g->nodes = realloc(g->nodes, g->capacity * sizeof(g->nodes[0]));
        if (g->nodes == NULL)
            emulated_die("out of memory");
    }
    node = &g->nodes[g->n++];
    *node = (struct node){ .work = w, .device = s->device };
    set_numbers(&node->after, &node->n_after, s->after, s->n_after);
    set_numbers(&s->after, &s->n_after, &number, 1);
    return cudaSuccess;
}

void capture_keep(struct CUstream_st *s, void (*drop)(void *args))
{
    if (s->capture != NULL && !s->capture->is_invalid && s->capture->graph->n > 0)
        s->capture->graph->nodes[s->capture->graph->n - 1].work->drop = drop;
}

cudaError_t capture_record(struct CUstream_st *s, struct CUevent_st *e)
{
    if (s->capture->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    mark_release(e->mark);
    e->mark = NULL;
    e->capture_id = s->capture->id;
    set_numbers(&e->after, &e->n_after, s->after, s->n_after);
    return cudaSuccess;
}

static struct capture *capture_of(const struct CUevent_st *e)
{
    struct capture *c;

    for (c = captures; c != NULL && c->id != e->capture_id; c = c->next)
        ;
    return c;
}

static void join_capture(struct capture *c, struct CUstream_st *s)
{
    c->members = realloc(c->members, (c->n_members + 1) * sizeof(c->members[0]));
    if (c->members == NULL)
        emulated_die("out of memory");
    c->members[c->n_members++] = s;
    s->capture = c;
    s->n_after = 0;
}

/* The stream or the event belongs to a capture. */
cudaError_t capture_wait(struct CUstream_st *s, struct CUevent_st *e)
{
    struct capture *c = capture_of(e);

    if (s->capture == NULL && c == NULL)
        return cudaErrorCapturedEvent; /* of a capture that has ended */
    if (s->capture != NULL && s->capture->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (s->capture != NULL && c == NULL)
        return e->mark == NULL && e->capture_id == 0
                   ? cudaSuccess /* never recorded */
                   : invalidate(s->capture, cudaErrorStreamCaptureIsolation);
    if (c->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (s->capture != NULL && s->capture != c) {
        (void)invalidate(c, cudaErrorStreamCaptureMerge); /* invalidates both */
        return invalidate(s->capture, cudaErrorStreamCaptureMerge);
    }
    if (s->capture == NULL)
        join_capture(c, s);
    add_numbers(&s->after, &s->n_after, e->after, e->n_after);
    return cudaSuccess;
}

/* Detaches the capture from its streams and from the list; the caller owns its graph. */
static struct CUgraph_st *capture_end(struct capture *c)
{
    struct capture **at = &captures;
    struct CUgraph_st *g = c->graph;
    uint32_t i;

    for (i = 0; i < c->n_members; i++) {
        c->members[i]->capture = NULL;
        c->members[i]->n_after = 0;
    }
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    free(c->members);
    free(c);
    return g;
}

void capture_abandon(struct CUstream_st *s)
{
    struct capture *c = s->capture;
    uint32_t i;

    (void)invalidate(c, cudaSuccess);
    if (c->origin == s) {
        graph_release(capture_end(c));
        return;
    }
    for (i = 0; c->members[i] != s; i++)
        ;
    c->members[i] = c->members[--c->n_members];
}

/* Returns whether all nodes precede the last work of the origin. */
static bool is_joined(const struct capture *c)
{
    const struct CUgraph_st *g = c->graph;
    bool *reached = emulated_alloc((size_t)g->n + 1);
    uint32_t i, k;
    bool all = true;

    for (i = 0; i < c->origin->n_after; i++)
        reached[c->origin->after[i]] = true;
    for (i = g->n; i-- > 0;) {
        all = all && reached[i];
        for (k = 0; k < g->nodes[i].n_after; k++)
            reached[g->nodes[i].after[k]] = true;
    }
    free(reached);
    return all;
}

static cudaError_t unlock_and_return(cudaError_t rc)
{
    emulated_unlock();
    return emulated_fail(rc);
}

/* Takes the lock and returns cudaSuccess, or returns an error without the lock. */
static cudaError_t enter_stream(cudaStream_t s)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    return stream_is_known(s) ? cudaSuccess : unlock_and_return(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    static uint64_t n_captures; /* under the lock */
    cudaError_t rc = enter_stream(s);
    struct capture *c;

    if (rc != cudaSuccess)
        return rc;
    if ((unsigned)mode > cudaStreamCaptureModeRelaxed)
        return unlock_and_return(cudaErrorInvalidValue);
    if (s->capture != NULL)
        return unlock_and_return(cudaErrorIllegalState);
    c = emulated_alloc(sizeof(*c));
    *c = (struct capture){ .next = captures, .id = ++n_captures, .mode = mode,
                           .owner = pthread_self(), .origin = s };
    c->graph = emulated_alloc(sizeof(*c->graph));
    c->graph->references = 1;
    captures = c;
    join_capture(c, s);
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    cudaError_t rc = enter_stream(s);
    struct capture *c;
    struct CUgraph_st *g;

    *graph = NULL;
    if (rc != cudaSuccess)
        return rc;
    c = s->capture;
    if (c == NULL)
        return unlock_and_return(cudaErrorIllegalState);
    if (c->origin != s)
        return unlock_and_return(invalidate(c, cudaErrorStreamCaptureUnmatched));
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->owner, pthread_self()))
        return unlock_and_return(invalidate(c, cudaErrorStreamCaptureWrongThread));
    if (c->is_invalid)
        rc = cudaErrorStreamCaptureInvalidated;
    else if (!is_joined(c))
        rc = cudaErrorStreamCaptureUnjoined;
    g = capture_end(c);
    if (rc == cudaSuccess)
        *graph = g;
    else
        graph_release(g);
    return unlock_and_return(rc);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    cudaError_t rc = enter_stream(s);

    if (rc != cudaSuccess)
        return rc;
    *status = s->capture == NULL       ? cudaStreamCaptureStatusNone
              : s->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return unlock_and_return(cudaSuccess);
}

/* ---- launch ---- */

/* Arguments of the work that a launch enqueues. */
struct launch {
    struct CUgraph_st *graph; /* one reference */
    struct work **copies;     /* owned; NULL entry: done */
};

static void launch_drop(void *args)
{
    struct launch *l = args;
    uint32_t i;

    for (i = 0; i < l->graph->n; i++)
        if (l->copies[i] != NULL)
            work_free(l->copies[i]);
    free(l->copies);
    graph_release(l->graph);
}

static bool is_ready(const struct launch *l, uint32_t i)
{
    const struct node *node = &l->graph->nodes[i];
    uint32_t k;

    if (l->copies[i] == NULL)
        return false;
    for (k = 0; k < node->n_after; k++)
        if (l->copies[node->after[k]] != NULL)
            return false;
    return true;
}

/* Runs one node that is ready, searching from a random position. False: none is ready, or all are
 * done. */
static bool run_one(struct launch *l)
{
    uint32_t n = l->graph->n, from, i;

    emulated_lock();
    from = (uint32_t)(emulated_random() % n);
    emulated_unlock();
    for (i = 0; i < n; i++) {
        uint32_t at = (from + i) % n;
        struct work *w = l->copies[at];

        if (!is_ready(l, at) || work_execute(w, l->graph->nodes[at].device) != EMULATED_DONE)
            continue;
        l->copies[at] = NULL;
        emulated_lock();
        work_free(w);
        emulated_unlock();
        return true;
    }
    return false;
}

static int run_launch(void *args)
{
    struct launch *l = args;
    uint32_t i;

    while (l->graph->n > 0 && run_one(l))
        ;
    for (i = 0; i < l->graph->n; i++)
        if (l->copies[i] != NULL)
            return EMULATED_NOT_YET;
    return EMULATED_DONE;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    if (graph == NULL || nodes != NULL) /* node handles are not emulated */
        return emulated_fail(cudaErrorInvalidValue);
    *n = graph->n;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    if (graph == NULL ||
        (flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority) != 0)
        return emulated_fail(cudaErrorInvalidValue);
    *exec = emulated_alloc(sizeof(**exec));
    (*exec)->graph = graph;
    emulated_lock();
    graph->references++;
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    cudaError_t rc = enter_stream(s);
    struct launch l;
    struct work *w;
    uint32_t i;

    if (rc != cudaSuccess)
        return rc;
    if (exec == NULL)
        return unlock_and_return(cudaErrorInvalidValue);
    if (s->capture != NULL) /* a graph within a graph */
        return unlock_and_return(invalidate(s->capture, cudaErrorNotSupported));
    l.graph = exec->graph;
    l.graph->references++;
    l.copies = emulated_alloc(((size_t)l.graph->n + 1) * sizeof(l.copies[0]));
    for (i = 0; i < l.graph->n; i++) {
        const struct work *node = l.graph->nodes[i].work;

        l.copies[i] = work_new(node->name, node->run, node->args, node->bytes);
        l.copies[i]->meets_fault = node->meets_fault;
        l.copies[i]->hangs = node->hangs;
    }
    w = work_new("a graph", run_launch, &l, sizeof(l));
    w->drop = launch_drop;
    if (exec->last != NULL && !exec->last->is_done)
        stream_wait(s, exec->last);
    stream_push(s, w);
    mark_release(exec->last);
    exec->last = stream_mark(s);
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    emulated_lock(); /* even if the device has a sticky error */
    graph_release(exec->graph);
    mark_release(exec->last);
    free(exec);
    return unlock_and_return(emulated_sticky(emulated_device()));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    emulated_lock();
    graph_release(graph);
    return unlock_and_return(emulated_sticky(emulated_device()));
}
