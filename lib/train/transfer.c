/* transfer.c - see transfer.h.
 *
 *     sender     state -> chunk -> its gradient arena ... broadcast
 *     receivers  broadcast -> their gradient arena -> memory beside the state -> checked
 *     all other tasks take part in the broadcasts
 *
 * Gradient arenas are idle when a generation begins, and peers can reach them; the state is
 * private. The head of each chunk (transfer_chunk.h) has a checksum over all of it, computed from
 * the sender's own memory and verified in the receiver's own: no other process can write to either.
 * While a receiver checks a chunk, the sender copies the next. */
#include "train/transfer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/text.h"
#include "comm/comm.h"
#include "train/step_report.h"
#include "train/task.h"
#include "train/transfer_chunk.h"

enum { CHUNK_BYTES = 4 << 20 };

struct transfer {
    struct replica *r;
    uint8_t *chunk; /* the replica's gradient arena: the head of a chunk, then bytes of the state */
    size_t room;    /* bytes of state in a chunk */
    uint64_t step;
    uint32_t source; /* member */
    bool sends, receives;
    struct device_mem aside; /* what was received; NULL but in the receiver's first replica */
    struct facts facts;
};

static int pack(struct transfer *x, size_t offset, size_t bytes, struct err *err)
{
    const char *state = (const char *)x->r->train->engine->memory.state + offset;
    uint8_t head[TRANSFER_HEAD_BYTES];
    int rc = fault_error("train.state_send", err);

    transfer_chunk_write(offset, &x->facts, state, bytes, head);
    memcpy(x->chunk, head, sizeof(head));
    memcpy(x->chunk + sizeof(head), state, bytes);
    return rc;
}

/* Copies the chunk out of the arena, which peers can write to, and validates the copy. */
static int unpack(struct transfer *x, size_t offset, size_t bytes, struct err *err)
{
    char *state = (char *)x->aside.base + offset;
    uint8_t head[TRANSFER_HEAD_BYTES];
    int rc;

    memcpy(head, x->chunk, sizeof(head));
    memcpy(state, x->chunk + sizeof(head), bytes);
    if (fault_error("train.state_recv", NULL) < 0)
        state[bytes - 1] ^= 1; /* a bit changes on the way */
    rc = transfer_chunk_read(head, offset, state, bytes, x->step, &x->facts, err);
    if (rc < 0)
        return err_wrap(err, rc, "bytes %zu to %zu of the state after step %llu, from %s", offset,
                        offset + bytes, (unsigned long long)x->step,
                        x->r->train->generation.opts.view.members[x->source].name);
    return 0;
}

static void report_progress(const struct transfer *x, uint64_t done)
{
    struct train_event e = { .kind = TRAIN_PROGRESS,
                             .step = x->step,
                             .done = done,
                             .all = x->r->train->engine->memory.state_bytes };

    events_send(&x->r->train->events, &e);
}

static int chunks(struct transfer *x, uint32_t root, struct err *err)
{
    struct replica *r = x->r;
    size_t all = r->train->engine->memory.state_bytes, bytes;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < all; at += bytes) {
        bytes = all - at < x->room ? all - at : x->room;
        place_chunk(&r->device->place, (uint32_t)(at / x->room));
        if (x->sends)
            rc = pack(x, at, bytes, err);
        if (rc == 0)
            rc = comm_broadcast(r->train->generation.comm, r->local, x->chunk,
                                TRANSFER_HEAD_BYTES + bytes, root, err);
        if (rc == 0 && x->receives)
            rc = unpack(x, at, bytes, err);
        if (rc == 0 && (x->sends || x->receives))
            report_progress(x, at + bytes);
    }
    return rc;
}

static void report_received(const struct transfer *x, uint64_t begin_ns)
{
    struct train *t = x->r->train;
    char text[256], size[32];

    text_bytes(size, sizeof(size), t->engine->memory.state_bytes);
    snprintf(text, sizeof(text), "received the state after step %llu from %s: %s in %.0f ms",
             (unsigned long long)x->step, t->generation.opts.view.members[x->source].name, size,
             (double)(clock_ns() - begin_ns) / 1e6);
    events_note(&t->events, text);
}

/* What was received is what is held. A step that was interrupted here and finished there is
 * reported here too; not one that was only read from a checkpoint there, which has no loss. */
static void adopt(struct transfer *x)
{
    struct train *t = x->r->train;
    bool interrupted = state_held(&t->state) >= phases_period(&t->phases, x->step).before &&
                       t->state.facts.step < x->step && !isnan(x->facts.loss);

    engine_memory_use_spare(&t->engine->memory, &x->aside, x->step);
    state_replace(&t->state, &x->facts);
    if (interrupted)
        step_report(x->r, &x->facts, 0);
}

int transfer_state(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    const struct group_view *v = &t->generation.opts.view;
    struct transfer x = { .r = r,
                          .chunk = engine_scratch(r->device),
                          .room = t->engine->memory.grads_bytes - TRANSFER_HEAD_BYTES,
                          .step = step,
                          .source = v->newest_step > 0 ? v->newest_member : v->coordinator,
                          .aside = { .fd = -1 } };
    uint64_t begin = clock_ns();
    uint32_t root = 0;
    int rc = 0;

    place_enter(&r->device->place, PHASE_TRANSFER);
    root = generation_first_rank(&t->generation, x.source);
    if (x.room > CHUNK_BYTES)
        x.room = CHUNK_BYTES;
    x.sends = r->local == 0 && v->self == x.source;
    x.receives = r->local == 0 && state_held(&t->state) < step;
    if (x.sends || x.receives)
        events_phase(&t->events, "transfer", step);
    if (x.sends) {
        x.facts = t->state.facts;
        x.facts.plateau = t->state.schedule.plateau;
    }
    if (x.sends)
        rc = t->engine->ops->sync(t->engine, state_held(&t->state), err);
    if (x.receives)
        rc = engine_memory_open_spare(&t->engine->memory, &x.aside, err);
    if (rc == 0)
        rc = chunks(&x, root, err);
    if (rc == 0 && x.receives) {
        adopt(&x);
        report_received(&x, begin);
    }
    device_mem_close(&x.aside);
    if (rc == 0) /* gradients find it as if nothing had been there */
        memset(x.chunk, 0, TRANSFER_HEAD_BYTES + x.room);
    else if (r->local == 0)
        t->generation.has_exposed_region = true; /* likewise */
    return rc < 0 ? err_wrap(err, rc, "state after step %llu", (unsigned long long)step) : 0;
}
