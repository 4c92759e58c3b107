/* racked.c - the all-reduce between nodes in racks; racks.h has the steps. A vector is reduced in chunks whose parts fit
 * into the buffers.
 *
 * Every node makes the same rounds: in round t a rack works for the rack that is t racks further, and in each step of a
 * round a node sends to one node and receives from one. Both ends of a transfer make it in the same step,
 * so no cycle of nodes waits. In the last round a rack works for itself. */
#include "comm/comm_priv.h"

#include "base/fault.h"
#include "comm/racks.h"
#include "comm/reduce.h"
#include "comm/schedule.h"

/* One chunk of one rank. */
struct work {
    struct comm *c;
    struct comm_rank *r;
    const struct racks *racks;
    uint32_t rack, index; /* of this node; its number in the rack */
    uint32_t n;           /* nodes of this rack */
    uint8_t *data;        /* of the chunk */
    size_t count, element; /* elements; bytes of one */
    uint32_t n_rounds;     /* so far, of all chunks: makes tags different */
};

/* ---- parts and buffers ---- */

static uint32_t after(uint32_t i, uint32_t by, uint32_t n)
{
    return (i + by) % n;
}

static uint32_t before(uint32_t i, uint32_t by, uint32_t n)
{
    return (i + n - by) % n;
}

/* The part of a block that node `index` of a rack has. */
static struct comm_range part(const struct work *w, uint32_t block, uint32_t rack, uint32_t index)
{
    return racks_part(w->racks, block, racks_nodes(w->racks, rack), index, w->count);
}

static struct comm_range own_part(const struct work *w, uint32_t block)
{
    return part(w, block, w->rack, w->index);
}

static struct comm_range overlap(struct comm_range a, struct comm_range b)
{
    struct comm_range x = { a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end };

    return x.begin < x.end ? x : (struct comm_range){ 0, 0 };
}

static uint8_t *at(const struct work *w, size_t element)
{
    return w->data + element * w->element;
}

/* The buffer of a root of another rack, and that of a node of this rack. */
static uint8_t *root_buffer(const struct work *w, uint32_t root)
{
    return w->r->aside + (size_t)root * COMM_ASIDE_BYTES;
}

static uint8_t *node_buffer(const struct work *w, uint32_t index)
{
    return root_buffer(w, w->racks->n_roots + index);
}

/* Returns where the sum of a root of this rack is, for the own part of a block: in the vector if this node belongs to
 * the root, else in the buffer of its first node. */
static uint8_t *own_root(const struct work *w, uint32_t root, uint32_t block)
{
    uint32_t node = w->racks->first[w->rack] + w->index;
    const uint32_t *first = &w->racks->root_first[root];

    return node >= first[0] && node < first[1]
               ? at(w, own_part(w, block).begin)
               : node_buffer(w, first[0] - w->racks->first[w->rack]);
}

/* ---- transfers ---- */

/* A node of a rack at one end of a transfer, the elements, and where they are; no elements: no transfer. */
struct end {
    uint32_t rack, index;
    struct comm_range x;
    uint8_t *data;
};

static uint32_t rank_of(const struct work *w, const struct end *e)
{
    return e->x.begin == e->x.end
               ? SCHEDULE_NONE
               : w->c->topo.node_first[w->racks->first[e->rack] + e->index] + w->r->index;
}

static int transfer(struct work *w, uint32_t label, const struct end *send, const struct end *recv)
{
    struct exchange x = { .to = rank_of(w, send),
                          .from = rank_of(w, recv),
                          .send_tag = (uint64_t)w->n_rounds << 32 | label,
                          .recv_tag = (uint64_t)w->n_rounds << 32 | label,
                          .send = send->data,
                          .send_bytes = (send->x.end - send->x.begin) * w->element,
                          .recv = recv->data,
                          .recv_bytes = (recv->x.end - recv->x.begin) * w->element };

    return x.to == SCHEDULE_NONE && x.from == SCHEDULE_NONE ? 0 : tcp_exchange(w->c, w->r, &x);
}

/* The nodes of the rack exchange their parts of a block, and add up each root. */
static int scatter_in_rack(struct work *w, uint32_t block)
{
    struct comm_range own = own_part(w, block);

    for (uint32_t k = 1; k < w->n; k++) {
        struct end to = { w->rack, after(w->index, k, w->n), { 0, 0 }, NULL };
        struct end from = { w->rack, before(w->index, k, w->n), own, NULL };

        to.x = part(w, block, w->rack, to.index);
        to.data = at(w, to.x.begin);
        from.data = node_buffer(w, from.index);
        if (transfer(w, block, &to, &from) < 0)
            return -1;
    }
    for (uint32_t q = w->racks->roots[w->rack]; q < w->racks->roots[w->rack + 1]; q++) {
        uint32_t first = w->racks->root_first[q], n = w->racks->root_first[q + 1] - first;
        void *to = own_root(w, q, block);

        for (uint32_t i = 0; i < n; i++) {
            uint32_t index = first + i - w->racks->first[w->rack];

            w->r->sources[i] = index == w->index ? at(w, own.begin) : node_buffer(w, index);
        }
        reduce(&to, 1, w->r->sources, n, w->c->topo.node_leaves + first, own.end - own.begin,
               (enum tensor_dtype)w->r->call.dtype, (enum comm_op)w->r->call.op);
    }
    w->n_rounds++;
    return 0;
}

/* Sends the own roots for the block of rack `to` there, and receives those of rack `from` for the block of this
 * rack. */
static int scatter_between(struct work *w, uint32_t to, uint32_t from)
{
    const struct racks *k = w->racks;
    struct comm_range have = own_part(w, to), want = own_part(w, w->rack);
    uint32_t n_own = k->roots[w->rack + 1] - k->roots[w->rack];
    uint32_t n_theirs = k->roots[from + 1] - k->roots[from];

    for (uint32_t step = 0; step < k->most; step++) {
        struct end send = { to, after(w->index, step, k->most), { 0, 0 }, NULL };
        struct end recv = { from, before(w->index, step, k->most), { 0, 0 }, NULL };

        if (send.index < racks_nodes(k, to))
            send.x = overlap(have, part(w, to, to, send.index));
        if (recv.index < racks_nodes(k, from))
            recv.x = overlap(want, part(w, w->rack, from, recv.index));
        for (uint32_t q = 0; q < n_own || q < n_theirs; q++) {
            struct end s = send, r = recv;

            if (q < n_own)
                s.data =
                    own_root(w, k->roots[w->rack] + q, to) + (s.x.begin - have.begin) * w->element;
            else
                s.x = (struct comm_range){ 0, 0 };
            if (q < n_theirs)
                r.data = root_buffer(w, k->roots[from] + q) + (r.x.begin - want.begin) * w->element;
            else
                r.x = (struct comm_range){ 0, 0 };
            if (transfer(w, q, &s, &r) < 0)
                return -1;
        }
    }
    w->n_rounds++;
    return 0;
}

/* Adds up the roots of all racks, for the own part of the block of this rack. */
static void add_roots(struct work *w)
{
    struct comm_range own = own_part(w, w->rack);
    void *to = at(w, own.begin);

    for (uint32_t q = 0; q < w->racks->n_roots; q++) {
        bool is_own = q >= w->racks->roots[w->rack] && q < w->racks->roots[w->rack + 1];

        w->r->sources[q] = is_own ? own_root(w, q, w->rack) : root_buffer(w, q);
    }
    reduce(&to, 1, w->r->sources, w->racks->n_roots, w->racks->root_leaves, own.end - own.begin,
           (enum tensor_dtype)w->r->call.dtype, (enum comm_op)w->r->call.op);
}

/* Sends the sum of the own part of this rack's block to rack `to`, and receives sums of the block of rack `from`. */
static int gather_between(struct work *w, uint32_t to, uint32_t from)
{
    const struct racks *k = w->racks;
    struct comm_range have = own_part(w, w->rack), want = own_part(w, from);

    for (uint32_t step = 0; step < k->most; step++) {
        struct end send = { to, after(w->index, step, k->most), { 0, 0 }, NULL };
        struct end recv = { from, before(w->index, step, k->most), { 0, 0 }, NULL };

        if (send.index < racks_nodes(k, to))
            send.x = overlap(have, part(w, w->rack, to, send.index));
        if (recv.index < racks_nodes(k, from))
            recv.x = overlap(want, part(w, from, from, recv.index));
        send.data = at(w, send.x.begin);
        recv.data = at(w, recv.x.begin);
        if (transfer(w, step, &send, &recv) < 0)
            return -1;
    }
    w->n_rounds++;
    return 0;
}

static int gather_in_rack(struct work *w)
{
    for (uint32_t k = 1; k < w->n; k++)
        for (uint32_t block = 0; block < w->racks->n_racks; block++) {
            struct end to = { w->rack, after(w->index, k, w->n), own_part(w, block), NULL };
            struct end from = { w->rack, before(w->index, k, w->n), { 0, 0 }, NULL };

            from.x = part(w, block, w->rack, from.index);
            to.data = at(w, to.x.begin);
            from.data = at(w, from.x.begin);
            if (transfer(w, block, &to, &from) < 0)
                return -1;
        }
    w->n_rounds++;
    return 0;
}

static int reduce_chunk(struct work *w)
{
    uint32_t racks = w->racks->n_racks;

    for (uint32_t t = 1; t < racks; t++) {
        uint32_t to = after(w->rack, t, racks), from = before(w->rack, t, racks);

        if (scatter_in_rack(w, to) < 0 || scatter_between(w, to, from) < 0)
            return -1;
    }
    if (scatter_in_rack(w, w->rack) < 0)
        return -1;
    add_roots(w);
    for (uint32_t t = 1; t < racks; t++)
        if (gather_between(w, after(w->rack, t, racks), before(w->rack, t, racks)) < 0)
            return -1;
    return gather_in_rack(w);
}

size_t racked_buffers(const struct comm *c)
{
    return c->racks.n_racks > 0 ? c->racks.n_roots + c->racks.most : 0;
}

int racked_all_reduce(struct comm *c, struct comm_rank *r, uint8_t *data, struct comm_range x)
{
    size_t element = comm_call_element(&r->call);
    size_t chunk = racks_chunk(&c->racks, COMM_ASIDE_BYTES / element);
    struct work w = { .c = c, .r = r, .racks = &c->racks, .element = element };

    w.rack = racks_of(&c->racks, r->node);
    w.n = racks_nodes(&c->racks, w.rack);
    w.index = r->node - c->racks.first[w.rack];
    (void)fault_hit("comm.write"); /* a test suspends or kills the process here */
    for (size_t begin = x.begin; begin < x.end; begin += chunk) {
        w.data = data + begin * element;
        w.count = x.end - begin < chunk ? x.end - begin : chunk;
        if (reduce_chunk(&w) < 0)
            return -1;
    }
    return 0;
}
