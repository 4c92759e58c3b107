/* transfer.c - the state, from a task that holds it to those that are behind.
 *
 *     sender     state -> chunk -> its gradient arena ... broadcast
 *     receivers  broadcast -> their gradient arena -> memory beside the state -> checked
 *     everybody else takes part in the broadcasts
 *
 * Gradient arenas are idle when a generation begins, and lie where peers can reach; the state does
 * not. Each chunk has a checksum over all of it, made of the sender's own memory and verified in the
 * receiver's own: nobody else can write to either. Only when all chunks were there, what was
 * received takes the place of the state: until then a receiver holds what it held, so that a death
 * in the middle loses nothing. While a receiver checks a chunk, the sender copies the next. */
#include "train/gpu.h"
#include "train/train_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/text.h"

enum { CHUNK_BYTES = 4 << 20 };

struct chunk {
    uint64_t offset, bytes; /* of the state */
    uint32_t crc;           /* of this head with crc 0, then of the bytes */
    uint32_t zero;
    struct facts facts;
    uint8_t state[];
};

struct transfer {
    struct replica *r;
    struct chunk *chunk; /* the replica's gradient arena */
    size_t room;         /* bytes of state in a chunk */
    uint64_t step;
    uint32_t source;     /* member */
    bool sends, receives;
    struct device_mem aside; /* what was received; NULL but in the receiver's first replica */
    struct facts facts;
};

static uint32_t checksum(const struct chunk *head, const void *state)
{
    struct chunk h = *head;

    h.crc = 0;
    return crc32c(crc32c(0, &h, sizeof(h)), state, h.bytes);
}

static int pack(struct transfer *x, size_t offset, size_t bytes, struct err *err)
{
    const char *state = (const char *)x->r->train->mem.state + offset;
    struct chunk head;
    int rc = train_fault("train.state_send", err);

    memset(&head, 0, sizeof(head)); /* what lies between its members too */
    head.offset = offset;
    head.bytes = bytes;
    memcpy(&head.facts, &x->facts, sizeof(head.facts));
    head.crc = checksum(&head, state);
    memcpy(x->chunk, &head, sizeof(head));
    memcpy(x->chunk->state, state, bytes);
    return rc;
}

static int unpack(struct transfer *x, size_t offset, size_t bytes, struct err *err)
{
    char *state = (char *)x->aside.base + offset;
    struct chunk head;
    bool bad = train_fault("train.state_recv", NULL) < 0;

    memcpy(&head, x->chunk, sizeof(head));
    memcpy(state, x->chunk->state, bytes);
    if (bad || head.offset != offset || head.bytes != bytes || head.facts.step != x->step ||
        head.crc != checksum(&head, state))
        return err_set(err, ERR_PEER,
                       "bytes %zu to %zu of the state after step %llu did not arrive from %s as it "
                       "sent them (checksum)",
                       offset, offset + bytes, (unsigned long long)x->step,
                       x->r->train->members[x->source].name);
    memcpy(&x->facts, &head.facts, sizeof(head.facts));
    return 0;
}

static void tell_progress(const struct transfer *x, uint64_t done)
{
    struct train_event e = { .kind = TRAIN_PROGRESS, .step = x->step, .done = done,
                             .all = x->r->train->mem.state_bytes };

    train_tell(x->r->train, &e);
}

static int chunks(struct transfer *x, uint32_t root, struct err *err)
{
    struct replica *r = x->r;
    size_t all = r->train->mem.state_bytes, bytes;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < all; at += bytes) {
        bytes = all - at < x->room ? all - at : x->room;
        progress_chunk(r, (uint32_t)(at / x->room));
        if (x->sends)
            rc = pack(x, at, bytes, err);
        if (rc == 0)
            rc = comm_broadcast(r->train->comm, r->local, x->chunk, sizeof(*x->chunk) + bytes, root,
                                err);
        if (rc == 0 && x->receives)
            rc = unpack(x, at, bytes, err);
        if (rc == 0 && (x->sends || x->receives))
            tell_progress(x, at + bytes);
    }
    return rc;
}

static void tell_received(const struct transfer *x, uint64_t begin_ns)
{
    struct train *t = x->r->train;
    char text[256], size[32];
    struct train_event e = { .kind = TRAIN_NOTE, .text = text };

    text_bytes(size, sizeof(size), t->mem.state_bytes);
    snprintf(text, sizeof(text), "received the state after step %llu from %s: %s in %.0f ms",
             (unsigned long long)x->step, t->members[x->source].name, size,
             (double)(clock_ns() - begin_ns) / 1e6);
    train_tell(t, &e);
}

/* What was received is what is held. A step that was interrupted here and finished there is reported
 * here too; not one that was only read from a checkpoint there, which has no loss. */
static void take(struct transfer *x)
{
    struct train *t = x->r->train;
    bool interrupted = t->held_step + 1 == x->step && t->facts.step < x->step && !isnan(x->facts.loss);

    memory_take(t, &x->aside);
    t->facts = x->facts;
    t->schedule.plateau = x->facts.plateau;
    __atomic_store_n(&t->held_step, x->step, __ATOMIC_RELEASE);
    t->shadow_step = x->step;
    if (interrupted)
        step_tell(x->r, &x->facts, 0);
}

int transfer_state(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    const struct train_group *g = &t->group;
    struct transfer x = { .r = r,
                          .chunk = (struct chunk *)r->grads[0],
                          .room = t->mem.grads_bytes - sizeof(struct chunk),
                          .step = step,
                          .source = g->newest_step > 0 ? g->newest_member : g->coordinator,
                          .aside = { .fd = -1 } };
    uint64_t begin = clock_ns();
    uint32_t root = 0;
    int rc = 0;

    progress_enter(r, PHASE_TRANSFER);
    root = generation_first_rank(t, x.source);
    if (x.room > CHUNK_BYTES)
        x.room = CHUNK_BYTES;
    x.sends = r->local == 0 && g->self == x.source;
    x.receives = r->local == 0 && t->held_step < step;
    if (x.sends || x.receives)
        train_phase(t, "transfer", step);
    if (x.sends) {
        x.facts = t->facts;
        x.facts.plateau = t->schedule.plateau;
    }
    if (x.sends)
        rc = gpu_shadow(t, err);
    if (x.receives)
        rc = memory_aside(t, &x.aside, err);
    if (rc == 0)
        rc = chunks(&x, root, err);
    if (rc == 0 && x.receives) {
        take(&x);
        tell_received(&x, begin);
    }
    device_mem_close(&x.aside);
    if (rc == 0) /* gradients find it as if nothing had been there */
        memset(x.chunk, 0, sizeof(*x.chunk) + x.room);
    else if (r->local == 0)
        t->renew_region = true; /* likewise */
    return rc < 0 ? err_wrap(err, rc, "state after step %llu", (unsigned long long)step) : 0;
}
