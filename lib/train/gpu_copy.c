/* gpu_copy.c - the state's way to the host.
 *
 *     who asks                      when                                  how
 *     a checkpoint                  within the next step, before its      gpu_fetch: nobody waits; the writer's
 *                                   commit gate (look_back)               thread does, by gpu_fetched
 *     the last one: of the job,     behind the last step; between         the same, and ckpt_flush() waits for
 *       of SIGTERM                  generations (train_save)              the writer
 *     a peer that is behind         when a generation begins              gpu_shadow: waits
 *     the export                    behind the last checkpoint            gpu_shadow
 *
 * gpu_fetch has two ways, and memory decides which, once. With a snapshot the state is copied within the GPU, on
 * the work stream, between the update before and the one to come; from there it goes to the host while the next
 * steps compute. Without one the next update waits until the state has gone to the host; lanes do not.
 *
 * A copy under way outlives what happens to the state: a generation that ends waits for it (come_to_rest), a
 * rollback or a peer's state is given to other memory (gpu_give), and who must not write any more
 * (save_leave) throws away what arrives. There is one copy at a time, as the writer has one staging area:
 * ckpt_begin() refuses while it is written. */
#include "train/gpu_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "graph/graph.h"

enum {
    PIECE_BYTES = 8 << 20,          /* what a step brings to the host waits behind one of them, not behind all */
    FETCH_MS = 60 * 1000,           /* no copy takes that long */
};
static const size_t LEFT_BYTES = (size_t)1 << 30; /* for what NCCL and the libraries take later */

struct gpu_copies {
    struct cuda_stream *stream;
    struct cuda_event *made, *left; /* on the work stream; all of it is in the host's memory */
    float *snapshot;                /* of the GPU; NULL: no room */
    void *staging;                  /* pinned; NULL: nobody asked yet */
};

struct cuda_stream *gpu_copies_stream(const struct gpu *g)
{
    return g->copies != NULL ? g->copies->stream : NULL;
}

/* ---- opening ---- */

static void tell_memory(const struct replica *r, size_t unused)
{
    const struct train *t = r->train;
    const struct gpu *g = r->gpu;
    char text[512], device[32], state[32], grads[32], work[32], left[32];
    struct train_event e = { .kind = TRAIN_NOTE, .text = text };
    size_t most = plan_work_bytes(r->plan);

    if (r->eval_plan != NULL && plan_work_bytes(r->eval_plan) > most)
        most = plan_work_bytes(r->eval_plan);
    device_name(&t->opts->devices[r->local], device, sizeof(device));
    text_bytes(state, sizeof(state), t->mem.state_bytes);
    text_bytes(grads, sizeof(grads), t->mem.depth * t->mem.grads * sizeof(float));
    text_bytes(work, sizeof(work), most);
    text_bytes(left, sizeof(left), unused);
    snprintf(text, sizeof(text), "%s holds %s of weights and optimizer state, %s of gradients, %s of activations%s%s; "
                                 "%s are left%s", device, state, grads, work,
             g->copies->snapshot != NULL ? ", and for checkpoints a snapshot of the state, another " : "",
             g->copies->snapshot != NULL ? state : "", left,
             g->copies->snapshot != NULL || t->opts->checkpoint_directory == NULL
                 ? "" : ", too little for a snapshot: updates wait while a checkpoint's copy goes to the host");
    train_tell(t, &e);
}

/* Only a task that may write checkpoints wants one. */
static int open_snapshot(struct replica *r, struct err *err)
{
    const struct train *t = r->train;
    struct gpu *g = r->gpu;
    size_t unused = 0;
    int rc = g->cuda->room(&unused, err);

    if (rc == 0 && t->opts->checkpoint_directory != NULL && unused >= t->mem.state_bytes + LEFT_BYTES) {
        rc = g->cuda->alloc((void **)&g->copies->snapshot, t->mem.state_bytes, err);
        unused -= rc == 0 ? t->mem.state_bytes : 0;
    }
    if (rc == 0)
        tell_memory(r, unused);
    return rc;
}

int gpu_copies_open(struct replica *r, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc;

    if (r->local != 0)
        return 0;
    g->copies = calloc(1, sizeof(*g->copies));
    if (g->copies == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = g->cuda->stream_open(CUDA_SOME_TIME, &g->copies->stream, err);
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

int gpu_staging(struct train *t, void **out, struct err *err)
{
    struct gpu *g = t->replicas[0].gpu;
    int rc = device_enter(&t->opts->devices[0], err);

    if (rc == 0 && g->copies->staging == NULL)
        rc = g->cuda->pin(&g->copies->staging, t->mem.state_bytes, err);
    if (rc < 0)
        return err_wrap(err, rc, "memory for a checkpoint's copy");
    *out = g->copies->staging;
    return 0;
}

void gpu_leave_staging(struct train *t)
{
    struct gpu *g = t->replicas[0].gpu;

    if (g != NULL && g->copies != NULL)
        g->copies->staging = NULL;
}

/* ---- copying ---- */

static int fetched(struct train *t, int rc, struct err *err)
{
    return rc < 0 ? err_wrap(err, rc, "fetch the state after step %" PRIu64 " from the GPU", train_held(t)) : 0;
}

/* *ahead: the host's own state is older than the GPU's. ERR_DEVICE: that is not there either. */
static int look_ahead(const struct train *t, bool *ahead, struct err *err)
{
    const struct gpu *g = t->replicas[0].gpu;
    uint64_t held = train_held(t);

    *ahead = g != NULL && t->shadow_step != held;
    if (*ahead && (g->is_lost || !g->has_state || g->held != held))
        return err_set(err, ERR_DEVICE, "the state after step %" PRIu64 " is not to be had: the GPU that held it "
                                        "failed", held);
    return 0;
}

int gpu_shadow(struct train *t, struct err *err)
{
    struct gpu *g = t->replicas[0].gpu;
    bool ahead;
    int rc = look_ahead(t, &ahead, err);

    if (rc < 0 || !ahead)
        return rc;
    rc = device_enter(&t->opts->devices[0], err);
    if (rc == 0)
        rc = g->cuda->copy(t->mem.state, g->state, t->mem.state_bytes, g->work, err);
    if (rc == 0) /* no cancel: it is wanted most when a generation has ended early */
        rc = device_wait(g->cuda, g->work, NULL, NULL, err);
    if (rc == 0)
        t->shadow_step = train_held(t);
    return fetched(t, rc, err);
}

static int take_snapshot(struct train *t, struct err *err)
{
    struct replica *r = &t->replicas[0];
    struct gpu *g = r->gpu;
    int rc = g->cuda->wait(g->work, g->copies->left, err); /* the one before: a save that was given up */

    if (rc == 0)
        rc = gpu_busy(r, err);
    if (rc == 0)
        rc = gpu_mark_begin(r, TRACE_WORK, err);
    if (rc == 0)
        rc = g->cuda->copy(g->copies->snapshot, g->state, t->mem.state_bytes, g->work, err);
    if (rc == 0)
        rc = gpu_rest(r, err);
    return rc < 0 ? rc : gpu_mark(r, TRACE_WORK, TRACE_CHECKPOINT, 0, err);
}

int gpu_fetch(struct train *t, void *to, struct err *err)
{
    struct gpu *g = t->replicas[0].gpu;
    struct gpu_copies *c = g != NULL ? g->copies : NULL;
    size_t all = t->mem.state_bytes, bytes;
    const char *from;
    bool ahead;
    int rc = look_ahead(t, &ahead, err);

    if (rc == 0 && !ahead)
        memcpy(to, t->mem.state, all);
    if (rc < 0 || !ahead)
        return rc;
    from = (const char *)(c->snapshot != NULL ? c->snapshot : g->state);
    rc = device_enter(&t->opts->devices[0], err);
    if (rc == 0 && c->snapshot != NULL)
        rc = take_snapshot(t, err);
    if (rc == 0)
        rc = g->cuda->record(c->made, g->work, err);
    if (rc == 0)
        rc = g->cuda->wait(c->stream, c->made, err);
    for (size_t at = 0; rc == 0 && at < all; at += bytes) {
        bytes = all - at < PIECE_BYTES ? all - at : PIECE_BYTES;
        rc = g->cuda->copy((char *)to + at, from + at, bytes, c->stream, err);
    }
    if (rc == 0)
        rc = g->cuda->record(c->left, c->stream, err);
    if (rc == 0 && c->snapshot == NULL)
        rc = g->cuda->wait(g->work, c->left, err);
    return fetched(t, rc, err);
}

static int look_at_clock(void *arg, struct err *err)
{
    const uint64_t *begin_ns = arg;

    if ((clock_ns() - *begin_ns) / 1000000 < FETCH_MS)
        return 0;
    return err_set(err, ERR_DEVICE, "a copy of the state did not arrive within %d s", FETCH_MS / 1000);
}

int gpu_fetched(struct train *t, struct err *err)
{
    struct gpu *g = t->replicas[0].gpu;
    uint64_t begin_ns = clock_ns();
    int rc = device_enter(&t->opts->devices[0], err);

    return rc < 0 ? rc : device_watch(g->cuda, NULL, g->copies->left, look_at_clock, &begin_ns, err);
}
