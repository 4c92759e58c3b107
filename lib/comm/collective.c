/* collective.c - the collectives: enter together, reduce inside the node, exchange between the
 * nodes, distribute inside the node, leave together. With one node there is no exchange; with one
 * rank per node only the exchange.
 *
 * Inside a node, rank i works on its part of the vector in the memory of all ranks. With several
 * nodes, channel c works on the part that it will exchange with channel c of the other nodes.
 * Between entering and leaving, no two threads of a node touch the same part.
 *
 *   positions  a vector is cut into `world` slices (schedule_part); comm_slice() maps slices to
 *              ranks
 *   halving    channel c exchanges the n_nodes slices of the c-th ranks, which are adjacent because
 *              of the bit-reversed order: node h owns segment bitreverse(h)
 *   direct     segment h of channel c is the slices of the ranks that channel c represents in node
 *              h; an all-reduce uses equal parts instead, because the owners do not matter there */
#include "comm/comm_priv.h"

#include <string.h>

#include "base/fault.h"
#include "comm/reduce.h"
#include "comm/schedule.h"

/* One call of one rank. */
struct work {
    struct comm *c;
    struct comm_rank *r;
    enum topology_kind kind;
    struct comm_part scope; /* the ranks that make the call: all, or a part */
    uint32_t first, n;      /* those of the node of this rank */
    uint32_t n_channels;    /* 1 for small vectors */
    size_t element;      /* bytes */
    uint32_t n_runs;     /* schedules run so far */
    size_t aside_at;     /* direct reduce-scatter: elements of every segment that are complete */
    uint8_t *data;
};

/* ---- parts of a vector ---- */

static struct comm_range join(struct comm_range a, struct comm_range b)
{
    return (struct comm_range){ a.begin, b.end };
}

/* Returns the place of segment `s` of a channel. */
static struct comm_range segment(const struct work *w, uint32_t channel, uint32_t s)
{
    const struct topology *t = &w->c->topo;
    size_t count = w->r->call.count;
    uint32_t first, end;

    if (w->kind == TOPOLOGY_HALVING)
        return schedule_part(w->scope.n_nodes * w->n_channels,
                             schedule_reverse(channel, w->n_channels) * w->scope.n_nodes + s,
                             count);
    if (w->r->call.what == COMM_ALL_REDUCE || w->r->call.what == COMM_BARRIER)
        return schedule_part(w->scope.n_nodes * w->n_channels, s * w->n_channels + channel, count);
    topology_represented(t, s, channel, &first, &end);
    return join(comm_slice(t->world, first, count), comm_slice(t->world, end - 1, count));
}

static struct comm_range own_slice(const struct work *w, uint32_t rank)
{
    return comm_slice(w->scope.n, rank - w->scope.first, w->r->call.count);
}

static uint8_t *at(const struct work *w, uint8_t *base, size_t element)
{
    return base != NULL ? base + element * w->element : NULL;
}

static size_t range_bytes(const struct work *w, struct comm_range x)
{
    return (x.end - x.begin) * w->element;
}

static bool is_channel(const struct work *w)
{
    return w->r->index < w->n_channels;
}

/* ---- inside the node ---- */

static int enter(struct work *w)
{
    return host_enter(w->c, w->r, w->first, w->n);
}

static int meet(struct work *w)
{
    return host_barrier(w->c, w->r, w->first, w->n);
}

/* Returns the leaves of the ranks of this node. */
static const uint32_t *node_leaves(const struct work *w)
{
    return w->c->topo.leaves != NULL ? w->c->topo.leaves + w->first : NULL;
}

/* Reduces a range of all ranks of the node into the memory of this rank, or of all ranks. */
static int reduce_node(struct work *w, struct comm_range x, bool to_all)
{
    uint32_t n_to = 0;

    if (x.begin == x.end || w->n == 1)
        return 0;
    for (uint32_t i = 0; i < w->n; i++) {
        uint8_t *theirs = host_data(w->c, w->r, w->first + i, w->r->call.count * w->element);

        if (theirs == NULL)
            return -1;
        w->r->sources[i] = at(w, theirs, x.begin);
        if (to_all || w->first + i == w->r->rank)
            w->r->targets[n_to++] = at(w, theirs, x.begin);
    }
    (void)fault_hit("comm.write"); /* a test suspends or kills the process here */
    reduce(w->r->targets, n_to, w->r->sources, w->n, node_leaves(w), x.end - x.begin,
           (enum tensor_dtype)w->r->call.dtype, (enum comm_op)w->r->call.op);
    return 0;
}

/* Copies a range of this rank to the other ranks of the node, but not to `except`. */
static int distribute(struct work *w, struct comm_range x, uint32_t except)
{
    if (x.begin == x.end)
        return 0;
    for (uint32_t i = w->first; i < w->first + w->n; i++) {
        uint8_t *theirs;

        if (i == w->r->rank || i == except)
            continue;
        theirs = host_data(w->c, w->r, i, w->r->call.count * w->element);
        if (theirs == NULL)
            return -1;
        memcpy(at(w, theirs, x.begin), at(w, w->data, x.begin), range_bytes(w, x));
    }
    return 0;
}

static int fetch(struct work *w, struct comm_range x, uint32_t rank)
{
    uint8_t *theirs;

    if (x.begin == x.end || rank == w->r->rank)
        return 0;
    theirs = host_data(w->c, w->r, rank, w->r->call.count * w->element);
    if (theirs == NULL)
        return -1;
    memcpy(at(w, w->data, x.begin), at(w, theirs, x.begin), range_bytes(w, x));
    return 0;
}

/* ---- between the nodes ---- */

static struct schedule schedule_for(const struct work *w, enum schedule_what what)
{
    return (struct schedule){ .what = what,
                              .direct = w->kind == TOPOLOGY_DIRECT,
                              .n_nodes = w->scope.n_nodes,
                              .self = w->r->node - w->scope.node,
                              .n_segments = w->scope.n_nodes };
}

static uint32_t rank_in(const struct work *w, uint32_t node)
{
    return node == SCHEDULE_NONE ? SCHEDULE_NONE
                                 : w->c->topo.node_first[w->scope.node + node] + w->r->index;
}

/* Returns a tag that is equal at both ends of a transfer, and differs from other recent tags of the
 * same link. */
static uint64_t tag(const struct work *w, struct schedule_range x)
{
    return (uint64_t)w->n_runs << 32 | x.begin;
}

/* Runs a schedule; `place` returns the place of a range of segments. */
static int run(struct work *w, const struct schedule *s,
               struct comm_range (*place)(const struct work *, const struct schedule *,
                                          struct schedule_range))
{
    uint32_t n = schedule_steps(s);

    for (uint32_t i = 0; i < n; i++) {
        struct schedule_step step = schedule_step(s, i);
        struct comm_range send = { 0, 0 }, recv = { 0, 0 };
        struct exchange x = { .to = rank_in(w, step.to),
                              .from = rank_in(w, step.from),
                              .add = step.add };

        if (step.to == SCHEDULE_NONE && step.from == SCHEDULE_NONE)
            continue;
        if (step.to != SCHEDULE_NONE)
            send = place(w, s, step.send);
        if (step.from != SCHEDULE_NONE)
            recv = place(w, s, step.recv);
        x.send_tag = tag(w, step.send);
        x.recv_tag = tag(w, step.recv);
        x.send = at(w, w->data, send.begin);
        x.send_bytes = range_bytes(w, send);
        x.recv = step.keep ? w->r->aside + (size_t)step.from * COMM_ASIDE_BYTES
                           : at(w, w->data, recv.begin);
        x.recv_bytes = range_bytes(w, recv);
        x.left = step.from < s->self; /* lower ranks are the left operand */
        if (tcp_exchange(w->c, w->r, &x) < 0)
            return -1;
    }
    w->n_runs++;
    return 0;
}

static struct comm_range place_segments(const struct work *w, const struct schedule *s,
                                        struct schedule_range x)
{
    (void)s;
    return join(segment(w, w->r->index, x.begin), segment(w, w->r->index, x.end - 1));
}

/* Returns the part of a segment that is stored at a time. */
static struct comm_range place_aside(const struct work *w, const struct schedule *s,
                                     struct schedule_range x)
{
    struct comm_range all = place_segments(w, s, x);
    size_t most = COMM_ASIDE_BYTES / w->element;

    all.begin += w->aside_at < all.end - all.begin ? w->aside_at : all.end - all.begin;
    if (all.end - all.begin > most)
        all.end = all.begin + most;
    return all;
}

/* Adds what all nodes sent of this node's segment, and its own, along the tree. */
static void add_aside(struct work *w, const struct schedule *s)
{
    struct comm_range own = place_aside(w, s, (struct schedule_range){ s->self, s->self + 1 });
    const uint32_t *leaves = w->c->topo.node_leaves;
    void *to = at(w, w->data, own.begin);

    for (uint32_t i = 0; i < s->n_nodes; i++)
        w->r->sources[i] = i == s->self ? to : w->r->aside + (size_t)i * COMM_ASIDE_BYTES;
    reduce(&to, 1, w->r->sources, s->n_nodes, leaves != NULL ? leaves + w->scope.node : NULL,
           own.end - own.begin, (enum tensor_dtype)w->r->call.dtype, (enum comm_op)w->r->call.op);
}

static int run_direct_scatter(struct work *w)
{
    struct schedule s = schedule_for(w, SCHEDULE_REDUCE_SCATTER);
    size_t longest = 0, step = COMM_ASIDE_BYTES / w->element;

    for (uint32_t i = 0; i < s.n_nodes; i++) {
        struct comm_range x = segment(w, w->r->index, i);

        longest = x.end - x.begin > longest ? x.end - x.begin : longest;
    }
    for (w->aside_at = 0; w->aside_at < longest; w->aside_at += step) {
        if (run(w, &s, place_aside) < 0)
            return -1;
        add_aside(w, &s);
    }
    return 0;
}

static int run_segments(struct work *w, enum schedule_what what)
{
    struct schedule s = schedule_for(w, what);

    if (s.direct && what == SCHEDULE_REDUCE_SCATTER)
        return run_direct_scatter(w);
    return run(w, &s, place_segments);
}

/* Calls f for all segments of this channel. */
static int for_channel(struct work *w, int (*f)(struct work *, struct comm_range))
{
    uint32_t n = w->scope.n_nodes;
    int rc = 0;

    if (w->kind != TOPOLOGY_DIRECT)
        return f(w, join(segment(w, w->r->index, 0), segment(w, w->r->index, n - 1)));
    for (uint32_t s = 0; s < n && rc == 0; s++)
        rc = f(w, segment(w, w->r->index, s));
    return rc;
}

static int gather_in(struct work *w, struct comm_range x)
{
    return reduce_node(w, x, false);
}

static int distribute_range(struct work *w, struct comm_range x)
{
    return distribute(w, x, w->r->rank);
}

/* ---- the collectives ---- */

static bool is_small(const struct work *w)
{
    return w->r->call.count * w->element <= COMM_SMALL_BYTES;
}

/* For one node, a small vector, and fewer cores than ranks: every rank copies its vector to a place
 * that all ranks can read, and reduces all of them. The next call uses other places, so no second
 * barrier is needed; that halves the time if a barrier costs a turn of the scheduler. With a core
 * for each rank, the in-place reduction is faster from 1 KiB on, and equal below. */
static int all_reduce_small(struct work *w)
{
    struct comm_rank *r = w->r;
    size_t bytes = r->call.count * w->element;
    void *own = w->data;

    if (bytes > 0)
        memcpy(host_small(w->c, r, r->rank), w->data, bytes);
    if (enter(w) < 0)
        return -1;
    for (uint32_t i = 0; i < w->n; i++)
        r->sources[i] = host_small(w->c, r, w->first + i);
    reduce(&own, 1, r->sources, w->n, node_leaves(w), r->call.count,
           (enum tensor_dtype)r->call.dtype, (enum comm_op)r->call.op);
    return 0;
}

/* An all-reduce of all ranks in several levels; the channels have equal parts of the vector. */
static int all_reduce_tiers(struct work *w)
{
    struct comm_range x = schedule_part(w->n_channels, w->r->index, w->r->call.count);

    if (gather_in(w, x) < 0 || tiered_all_reduce(w->c, w->r, w->data, x) < 0)
        return -1;
    return distribute_range(w, x);
}

static int all_reduce_nodes(struct work *w)
{
    bool double_up = w->n_channels == 1 && w->kind == TOPOLOGY_HALVING && is_small(w);

    if (w->c->tiers.n_groups > 0 && !w->r->in_part && !is_small(w))
        return all_reduce_tiers(w);
    if (for_channel(w, gather_in) < 0)
        return -1;
    if (double_up && run_segments(w, SCHEDULE_DOUBLING) < 0)
        return -1;
    if (!double_up &&
        (run_segments(w, SCHEDULE_REDUCE_SCATTER) < 0 || run_segments(w, SCHEDULE_ALL_GATHER) < 0))
        return -1;
    return for_channel(w, distribute_range);
}

static int all_reduce(struct work *w)
{
    if (w->kind == TOPOLOGY_ONE_NODE && is_small(w) && !w->c->shm.page->spin)
        return all_reduce_small(w);
    if (w->kind != TOPOLOGY_ONE_NODE && is_small(w))
        w->n_channels = 1;
    if (enter(w) < 0)
        return -1;
    if (w->kind == TOPOLOGY_ONE_NODE) {
        if (reduce_node(w, own_slice(w, w->r->rank), true) < 0)
            return -1;
    } else if (is_channel(w) && all_reduce_nodes(w) < 0) {
        return -1;
    }
    return meet(w);
}

static int reduce_scatter(struct work *w)
{
    const struct topology *t = &w->c->topo;
    uint32_t first, end, rank = w->r->rank;

    if (enter(w) < 0)
        return -1;
    if (w->kind == TOPOLOGY_ONE_NODE)
        return reduce_node(w, own_slice(w, rank), false) < 0 ? -1 : meet(w);
    if (is_channel(w) &&
        (for_channel(w, gather_in) < 0 || run_segments(w, SCHEDULE_REDUCE_SCATTER) < 0))
        return -1;
    if (meet(w) < 0)
        return -1;
    if (w->n == w->n_channels) /* every rank has reduced its own slice */
        return 0;
    for (uint32_t ch = 0; ch < w->n_channels; ch++) {
        topology_represented(t, w->r->node, ch, &first, &end);
        if (rank >= first && rank < end && fetch(w, own_slice(w, rank), w->first + ch) < 0)
            return -1;
    }
    return meet(w);
}

static int all_gather(struct work *w)
{
    const struct topology *t = &w->c->topo;
    uint32_t first, end;

    if (enter(w) < 0)
        return -1;
    if (w->kind == TOPOLOGY_ONE_NODE)
        return distribute(w, own_slice(w, w->r->rank), w->r->rank) < 0 ? -1 : meet(w);
    if (is_channel(w)) {
        topology_represented(t, w->r->node, w->r->index, &first, &end);
        for (uint32_t i = first; i < end; i++)
            if (fetch(w, own_slice(w, i), i) < 0)
                return -1;
        if (run_segments(w, SCHEDULE_ALL_GATHER) < 0 || for_channel(w, distribute_range) < 0)
            return -1;
    }
    return meet(w);
}

/* A channel of a broadcast carries one part of the bytes; if direct, node h forwards piece h of
 * it. */
static struct comm_range place_pieces(const struct work *w, const struct schedule *s,
                                      struct schedule_range x)
{
    struct comm_range part = schedule_part(w->n_channels, w->r->index, w->r->call.count), piece;

    if (!s->direct)
        return part;
    piece = schedule_part(s->n_segments, x.begin, part.end - part.begin);
    return (struct comm_range){ part.begin + piece.begin, part.begin + piece.end };
}

static int broadcast(struct work *w)
{
    const struct topology *t = &w->c->topo;
    struct schedule s = schedule_for(w, SCHEDULE_BROADCAST);
    struct schedule gather = schedule_for(w, SCHEDULE_ALL_GATHER);
    uint32_t root = w->r->call.root;
    struct comm_range part = schedule_part(w->n_channels, w->r->index, w->r->call.count);
    struct comm_range whole = { 0, w->r->call.count };

    if (enter(w) < 0)
        return -1;
    if (w->kind == TOPOLOGY_ONE_NODE)
        return fetch(w, whole, root) < 0 ? -1 : meet(w);
    s.root = t->node_of[root];
    if (!s.direct)
        s.n_segments = 1;
    if (is_channel(w)) {
        if (w->r->node == s.root && fetch(w, part, root) < 0)
            return -1;
        if (run(w, &s, place_pieces) < 0 || (s.direct && run(w, &gather, place_pieces) < 0) ||
            distribute(w, part, root) < 0)
            return -1;
    }
    return meet(w);
}

static int barrier(struct work *w)
{
    w->n_channels = 1;
    if (enter(w) < 0)
        return -1;
    if (w->kind == TOPOLOGY_ONE_NODE)
        return 0;
    if (is_channel(w) &&
        run_segments(w, w->kind == TOPOLOGY_DIRECT ? SCHEDULE_ALL_GATHER : SCHEDULE_DOUBLING) < 0)
        return -1;
    return meet(w);
}

/* Returns the ranks that make the present call of r. */
static struct comm_part scope_of(const struct comm *c, const struct comm_rank *r)
{
    if (r->in_part)
        return r->part;
    return (struct comm_part){ .n = c->topo.world, .n_nodes = c->topo.n_nodes };
}

int collective(struct comm *c, struct comm_rank *r, void *data)
{
    static int (*const of[])(struct work *) = {
        [COMM_ALL_REDUCE] = all_reduce, [COMM_REDUCE_SCATTER] = reduce_scatter,
        [COMM_ALL_GATHER] = all_gather, [COMM_BROADCAST] = broadcast,
        [COMM_BARRIER] = barrier,
    };
    struct work w = { .c = c,
                      .r = r,
                      .kind = c->topo.kind,
                      .scope = scope_of(c, r),
                      .first = c->topo.node_first[r->node],
                      .n = topology_node_ranks(&c->topo, r->node),
                      .n_channels = c->topo.n_channels,
                      .element = comm_call_element(&r->call),
                      .data = data };

    if (w.scope.n_nodes == 1 && r->in_part) {
        w.kind = TOPOLOGY_ONE_NODE;
        w.first = w.scope.first;
        w.n = w.scope.n;
    }
    return of[r->call.what](&w);
}
