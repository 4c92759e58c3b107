/* tiered.c - the all-reduce in tiers (tiers.h) over the links of a communicator. A vector is reduced in chunks whose parts
 * fit into the buffers. */
#include "comm/comm_priv.h"

#include "base/fault.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "comm/tiers.h"

/* One chunk of one rank. */
struct work {
    struct comm *c;
    struct comm_rank *r;
    uint8_t *data;  /* of the chunk */
    size_t element; /* bytes */
};

static uint8_t *at(const struct work *w, uint32_t buffer, size_t offset, struct comm_range x)
{
    return buffer == TIERS_VECTOR
               ? w->data + x.begin * w->element
               : w->r->aside + (size_t)buffer * COMM_ASIDE_BYTES + offset * w->element;
}

static uint32_t rank_of(const struct work *w, const struct tiers_end *e)
{
    return e->x.begin == e->x.end ? SCHEDULE_NONE : w->c->topo.node_first[e->node] + w->r->index;
}

static int transfer(void *arg, const struct tiers_end *send, const struct tiers_end *recv,
                    uint64_t tag)
{
    struct work *w = arg;
    struct exchange x = { .to = rank_of(w, send),
                          .from = rank_of(w, recv),
                          .send_tag = tag,
                          .recv_tag = tag,
                          .send = at(w, send->buffer, send->offset, send->x),
                          .send_bytes = (send->x.end - send->x.begin) * w->element,
                          .recv = at(w, recv->buffer, recv->offset, recv->x),
                          .recv_bytes = (recv->x.end - recv->x.begin) * w->element };

    return x.to == SCHEDULE_NONE && x.from == SCHEDULE_NONE ? 0 : tcp_exchange(w->c, w->r, &x);
}

static void source(void *arg, uint32_t i, uint32_t buffer, struct comm_range x)
{
    struct work *w = arg;

    w->r->sources[i] = at(w, buffer, 0, x);
}

static void add(void *arg, uint32_t buffer, uint32_t n, const uint32_t *leaves, struct comm_range x)
{
    struct work *w = arg;
    void *to = at(w, buffer, 0, x);

    reduce(&to, 1, w->r->sources, n, leaves, x.end - x.begin, (enum tensor_dtype)w->r->call.dtype,
           (enum comm_op)w->r->call.op);
}

int tiered_all_reduce(struct comm *c, struct comm_rank *r, uint8_t *data, struct comm_range x)
{
    static const struct tiers_verbs verbs = { transfer, source, add };
    struct work w = { .c = c, .r = r, .element = comm_call_element(&r->call) };
    size_t chunk = tiers_chunk(&c->tiers, COMM_ASIDE_BYTES / w.element);

    (void)fault_hit("comm.write"); /* a test suspends or kills the process here */
    for (size_t begin = x.begin; begin < x.end; begin += chunk) {
        size_t count = x.end - begin < chunk ? x.end - begin : chunk;

        w.data = data + begin * w.element;
        if (tiers_all_reduce(&c->tiers, r->node, count, &verbs, &w) < 0)
            return -1;
    }
    return 0;
}
