/* gpu_copy.c - see gpu_copy.h.
 *
 *     request for the state         when                              how
 *     a checkpoint                  within the next step, before its  gpu_snapshot: no wait; the
 *                                   commit gate (step.c)              writer's thread waits, by
 *                                                                     gpu_wait_snapshot
 *     the last checkpoint: of the   after the last step; between      the same, and ckpt_flush()
 *       job, of SIGTERM             generations (train_save)          waits for the writer
 *     a peer with an older state    when a generation begins          gpu_sync: waits
 *     the export                    after the last checkpoint         gpu_sync
 *
 * gpu_snapshot has two ways, and the free memory decides which, once. With a snapshot the state is
 * copied within the GPU, on the work stream, between two updates; from there it goes to the host
 * while the next steps compute. Without a snapshot the next update waits until the state has gone
 * to the host; lanes do not.
 *
 * A copy in progress is not affected by what happens to the state: a generation that ends waits for
 * the copy (come_to_rest), a rollback or a peer's state goes to other memory (bind), and a task
 * that must not write any more (save_stop_publishing) discards what arrives. There is one copy at a
 * time, as the writer has one staging area: ckpt_begin() refuses while it is written. */
#include "engine/gpu_copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "engine/common.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_codes.h"
#include "engine/gpu_types.h"
#include "engine/plans.h"

enum {
    /* a step's own copies to the host wait for one piece, not for all */
    PIECE_BYTES = 8 << 20,
    FETCH_MS = 60 * 1000, /* no copy needs that long */
};
/* for later allocations of NCCL and the libraries */
static const size_t LEFT_BYTES = (size_t)1 << 30;

struct gpu_copies {
    struct cuda_stream *stream;
    struct cuda_event *made, *left; /* on the work stream; all of it is in the host's memory */
    float *snapshot;                /* of the GPU; NULL: no room */
    void *staging;                  /* pinned; NULL: not asked for yet */
};

struct cuda_stream *gpu_copies_stream(const struct gpu *g)
{
    return g->copies != NULL ? g->copies->stream : NULL;
}

/* ---- opening ---- */

static void note_memory(const struct engine_replica *r, size_t unused)
{
    const struct engine *e = r->engine;
    const struct gpu *g = gpu_of(r);
    char text[512], device[32], state[32], grads[32], work[32], left[32];
    device_name(&e->opts->devices[r->local], device, sizeof(device));
    text_bytes(state, sizeof(state), e->memory.state_bytes);
    text_bytes(grads, sizeof(grads), gpu_codes_gradient_bytes(r));
    text_bytes(work, sizeof(work), plans_work_bytes(r));
    text_bytes(left, sizeof(left), unused);
    snprintf(text, sizeof(text),
             "%s holds %s of weights and optimizer state, %s of gradients, %s of activations%s%s; "
             "%s are left%s",
             device, state, grads, work,
             g->copies->snapshot != NULL ? ", and for checkpoints a snapshot of the state, another "
                                         : "",
             g->copies->snapshot != NULL ? state : "", left,
             g->copies->snapshot != NULL || !e->opts->snapshots
                 ? ""
                 : ", too little for a snapshot: updates wait while a checkpoint's copy goes to "
                   "the host");
    engine_note(e, false, text);
}

/* Only a task that may write checkpoints needs a snapshot. */
static int open_snapshot(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    size_t unused = 0;
    int rc = g->cuda->free_bytes(&unused, err);

    if (rc == 0 && e->opts->snapshots && unused >= e->memory.state_bytes + LEFT_BYTES) {
        rc = g->cuda->alloc((void **)&g->copies->snapshot, e->memory.state_bytes, err);
        unused -= rc == 0 ? e->memory.state_bytes : 0;
    }
    if (rc == 0)
        note_memory(r, unused);
    return rc;
}

int gpu_copies_open(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc;

    if (r->local != 0)
        return 0;
    g->copies = calloc(1, sizeof(*g->copies));
    if (g->copies == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = g->cuda->stream_open(CUDA_LOW_PRIORITY, &g->copies->stream, err);
    if (rc == 0)
        rc = g->cuda->event_open(false, &g->copies->made, err);
    if (rc == 0)
        rc = g->cuda->event_open(false, &g->copies->left, err);
    return rc < 0 ? rc : open_snapshot(r, err);
}

void gpu_copies_close(struct gpu *g)
{
    struct gpu_copies *c = g->copies;

    if (c == NULL)
        return;
    g->cuda->event_close(c->made);
    g->cuda->event_close(c->left);
    g->cuda->stream_close(c->stream);
    g->cuda->free(c->snapshot);
    g->cuda->unpin(c->staging);
    free(c);
}

int gpu_staging(struct engine *e, void **out, struct err *err)
{
    struct gpu *g = gpu_of(e->replicas[0]);
    int rc = device_enter(&e->opts->devices[0], err);

    if (rc == 0 && g->copies->staging == NULL)
        rc = g->cuda->pin(&g->copies->staging, e->memory.state_bytes, err);
    if (rc < 0)
        return err_wrap(err, rc, "memory for a checkpoint's copy");
    *out = g->copies->staging;
    return 0;
}

void gpu_abandon_staging(struct engine *e)
{
    struct gpu *g = gpu_of(e->replicas[0]);

    if (g != NULL && g->copies != NULL)
        g->copies->staging = NULL;
}

/* ---- copying ---- */

static int wrap(uint64_t held, int rc, struct err *err)
{
    return rc < 0 ? err_wrap(err, rc, "fetch the state after step %" PRIu64 " from the GPU", held)
                  : 0;
}

/* *ahead: the host's state is older than the GPU's. ERR_DEVICE: the GPU does not hold it either. */
static int is_ahead(const struct engine *e, uint64_t held, bool *ahead, struct err *err)
{
    const struct gpu *g = gpu_of(e->replicas[0]);
    *ahead = e->memory.step != held;
    if (*ahead && (g->is_lost || !g->state.is_held || g->state.held != held))
        return err_set(err, ERR_DEVICE,
                       "the state after step %" PRIu64 " is not to be had: the GPU that held it "
                       "failed",
                       held);
    return 0;
}

int gpu_sync(struct engine *e, uint64_t held, struct err *err)
{
    struct gpu *g = gpu_of(e->replicas[0]);
    bool ahead;
    int rc = is_ahead(e, held, &ahead, err);

    if (rc < 0 || !ahead)
        return rc;
    rc = device_enter(&e->opts->devices[0], err);
    if (rc == 0)
        rc = g->cuda->copy(e->memory.state, g->state.floats, e->memory.state_bytes, g->streams.work,
                           err);
    if (rc == 0) /* no cancel: it is wanted most when a generation has ended early */
        rc = device_wait(g->cuda, g->streams.work, NULL, NULL, err);
    if (rc == 0)
        e->memory.step = held;
    return wrap(held, rc, err);
}

static int copy_within(struct engine *e, struct err *err)
{
    struct engine_replica *r = e->replicas[0];
    struct gpu *g = gpu_of(r);
    /* the copy before this one: of a save that was abandoned */
    int rc = g->cuda->wait(g->streams.work, g->copies->left, err);

    if (rc == 0)
        rc = gpu_clock_work_begin(r, err);
    if (rc == 0)
        rc = gpu_span_begin(r, TRACE_WORK, err);
    if (rc == 0)
        rc = g->cuda->copy(g->copies->snapshot, g->state.floats, e->memory.state_bytes,
                           g->streams.work, err);
    if (rc == 0)
        rc = gpu_clock_work_end(r, err);
    return rc < 0 ? rc : gpu_span_end(r, TRACE_WORK, TRACE_CHECKPOINT, 0, err);
}

int gpu_snapshot(struct engine *e, uint64_t held, void *to, struct err *err)
{
    struct gpu *g = gpu_of(e->replicas[0]);
    struct gpu_copies *c = g->copies;
    size_t all = e->memory.state_bytes, bytes;
    const char *from;
    bool ahead;
    int rc = is_ahead(e, held, &ahead, err);

    if (rc == 0 && !ahead)
        memcpy(to, e->memory.state, all);
    if (rc < 0 || !ahead)
        return rc;
    from = (const char *)(c->snapshot != NULL ? c->snapshot : g->state.floats);
    rc = device_enter(&e->opts->devices[0], err);
    if (rc == 0 && c->snapshot != NULL)
        rc = copy_within(e, err);
    if (rc == 0)
        rc = g->cuda->record(c->made, g->streams.work, err);
    if (rc == 0)
        rc = g->cuda->wait(c->stream, c->made, err);
    for (size_t at = 0; rc == 0 && at < all; at += bytes) {
        bytes = all - at < PIECE_BYTES ? all - at : PIECE_BYTES;
        rc = g->cuda->copy((char *)to + at, from + at, bytes, c->stream, err);
    }
    if (rc == 0)
        rc = g->cuda->record(c->left, c->stream, err);
    if (rc == 0 && c->snapshot == NULL)
        rc = g->cuda->wait(g->streams.work, c->left, err);
    return wrap(held, rc, err);
}

static int look_at_clock(void *arg, struct err *err)
{
    const uint64_t *begin_ns = arg;

    if ((clock_ns() - *begin_ns) / 1000000 < FETCH_MS)
        return 0;
    return err_set(err, ERR_DEVICE, "a copy of the state did not arrive within %d s",
                   FETCH_MS / 1000);
}

int gpu_wait_snapshot(struct engine *e, struct err *err)
{
    struct gpu *g = gpu_of(e->replicas[0]);
    uint64_t begin_ns = clock_ns();
    int rc = device_enter(&e->opts->devices[0], err);

    return rc < 0 ? rc
                  : device_watch(g->cuda, NULL, g->copies->left, look_at_clock, &begin_ns, err);
}
