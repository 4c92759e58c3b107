/* pieced.c - the all-reduce of ranks that have pieces of lanes: each contributes the sum of one or two.
 *
 *   1. the ranks of a node add up the pieces of each of its roots (piece_tree.h), in the memory of the
 *      rank that has the first of them
 *   2. a node sends to every other node that node's segment of each of its roots
 *   3. the owner of a segment adds up all roots along the tree over lanes
 *   4. it sends the sum to all nodes, and a node copies it to its ranks
 *
 * With one node, each rank adds up its slice of all pieces for all ranks. As in the other collectives
 * (collective.c), channel c of a node works on its own part of the vector. */
#include "comm/comm_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "comm/reduce.h"
#include "comm/schedule.h"

/* Buffers of a rank. */
struct pieced {
    const void **sources; /* owned [pieces] */
    uint8_t **roots;      /* owned [roots of the node] where the sum of each begins */
};

/* One call of one rank. */
struct work {
    struct comm *c;
    struct comm_rank *r;
    const struct piece_tree *t;
    uint8_t *data;
    size_t element;      /* bytes */
    uint32_t first, n;   /* ranks of the node */
    uint32_t n_channels; /* 1 for small vectors */
    uint32_t n_runs;     /* schedules run so far */
};

/* ---- opening ---- */

int pieced_make(struct comm *c, struct err *err)
{
    const struct group_view *v = &c->opts.view;

    if (v->n_pieces == 0)
        return 0;
    if (c->opts.groups > 0 || c->topo.n_servers > 0)
        return err_set(err, ERR_INPUT,
                       "the ranks have pieces of lanes; expected equal shares in a group with %s",
                       c->opts.groups > 0 ? "compression" : "parameter servers");
    return piece_tree_init(&c->pieces, v->pieces, v->n_pieces, c->topo.node_of, c->topo.world,
                           c->topo.n_nodes, err);
}

int pieced_make_rank(const struct comm *c, struct comm_rank *r)
{
    if (c->pieces.n_pieces == 0)
        return 0;
    r->pieced = calloc(1, sizeof(*r->pieced));
    if (r->pieced == NULL)
        return ERR_NOMEM;
    r->pieced->sources = calloc(c->pieces.n_pieces, sizeof(*r->pieced->sources));
    r->pieced->roots =
        calloc(piece_tree_n_roots(&c->pieces, r->node) + (size_t)1, sizeof(*r->pieced->roots));
    return r->pieced->sources != NULL && r->pieced->roots != NULL ? 0 : ERR_NOMEM;
}

void pieced_free_rank(struct comm_rank *r)
{
    if (r->pieced == NULL)
        return;
    free(r->pieced->sources);
    free(r->pieced->roots);
    free(r->pieced);
    r->pieced = NULL;
}

/* ---- parts of the vector ---- */

static size_t count(const struct work *w)
{
    return w->r->call.count;
}

static struct comm_range segment(const struct work *w, uint32_t node)
{
    return schedule_part(w->c->topo.n_nodes * w->n_channels, node * w->n_channels + w->r->index,
                         count(w));
}

/* The part of a segment that is stored at a time, `at` elements after its begin. */
static struct comm_range part_of(const struct work *w, uint32_t node, size_t at)
{
    return schedule_some(segment(w, node), at, COMM_ASIDE_BYTES / w->element);
}

static size_t bytes_of(const struct work *w, struct comm_range x)
{
    return (x.end - x.begin) * w->element;
}

/* ---- inside the node ---- */

/* Returns the vector of a piece of a rank of this host. */
static uint8_t *piece_data(struct work *w, uint32_t piece)
{
    return host_piece(w->c, w->r, w->t->pieces[piece].rank, w->t->is_second[piece],
                      count(w) * w->element);
}

/* Adds up the pieces [first, end), a subtree, into the vectors `to`. */
static int add_pieces(struct work *w, uint32_t first, uint32_t end, struct comm_range x,
                      void *const *to, uint32_t n_to)
{
    const void **sources = w->r->pieced->sources;

    for (uint32_t i = first; i < end; i++) {
        uint8_t *data = piece_data(w, i);

        if (data == NULL)
            return -1;
        sources[i - first] = data + x.begin * w->element;
    }
    reduce(to, n_to, sources, end - first, w->t->leaves + first, x.end - x.begin,
           (enum tensor_dtype)w->r->call.dtype, COMM_SUM);
    return 0;
}

/* All ranks are in one node: each adds up its slice for all. */
static int reduce_local(struct work *w)
{
    struct comm_range x = comm_slice(w->c->topo.world, w->r->rank, count(w));

    if (x.begin == x.end)
        return 0;
    for (uint32_t i = 0; i < w->n; i++) {
        uint8_t *theirs = host_data(w->c, w->r, w->first + i, count(w) * w->element);

        if (theirs == NULL)
            return -1;
        w->r->targets[i] = theirs + x.begin * w->element;
    }
    (void)fault_hit("comm.write"); /* a test suspends or kills the process here */
    return add_pieces(w, 0, w->t->n_pieces, x, w->r->targets, w->n);
}

/* Adds up the segments of this channel of every root of the node. */
static int reduce_roots(struct work *w)
{
    for (uint32_t i = 0; i < piece_tree_n_roots(w->t, w->r->node); i++) {
        const struct piece_root *root = &w->t->roots[piece_tree_root(w->t, w->r->node, i)];

        w->r->pieced->roots[i] = piece_data(w, root->first);
        if (w->r->pieced->roots[i] == NULL)
            return -1;
        for (uint32_t s = 0; root->end - root->first > 1 && s < w->c->topo.n_nodes; s++) {
            struct comm_range x = segment(w, s);
            void *to = w->r->pieced->roots[i] + x.begin * w->element;

            if (x.begin < x.end && add_pieces(w, root->first, root->end, x, &to, 1) < 0)
                return -1;
        }
    }
    return 0;
}

/* Copies the segments of this channel to the other ranks of the node. */
static int distribute(struct work *w)
{
    for (uint32_t i = w->first; i < w->first + w->n; i++) {
        uint8_t *theirs;

        if (i == w->r->rank)
            continue;
        theirs = host_data(w->c, w->r, i, count(w) * w->element);
        if (theirs == NULL)
            return -1;
        for (uint32_t s = 0; s < w->c->topo.n_nodes; s++) {
            struct comm_range x = segment(w, s);

            memcpy(theirs + x.begin * w->element, w->data + x.begin * w->element, bytes_of(w, x));
        }
    }
    return 0;
}

/* ---- between the nodes ---- */

static struct schedule schedule_for(const struct work *w, enum schedule_what what)
{
    return (struct schedule){ .what = what,
                              .direct = true,
                              .n_nodes = w->c->topo.n_nodes,
                              .self = w->r->node,
                              .n_segments = w->c->topo.n_nodes };
}

static uint32_t rank_in(const struct work *w, uint32_t node)
{
    return w->c->topo.node_first[node] + w->r->index;
}

static uint8_t *aside(const struct work *w, uint32_t root)
{
    return w->r->aside + (size_t)root * COMM_ASIDE_BYTES;
}

/* Sends root i of this node to one node, and receives root i of another one, where there are so many. */
static int exchange_root(struct work *w, const struct schedule_step *step, uint32_t i, size_t at)
{
    struct comm_range send = part_of(w, step->to, at), recv = part_of(w, w->r->node, at);
    struct exchange x = { .to = SCHEDULE_NONE,
                          .from = SCHEDULE_NONE,
                          .send_tag = (uint64_t)w->n_runs << 32 | i,
                          .recv_tag = (uint64_t)w->n_runs << 32 | i };

    if (i < piece_tree_n_roots(w->t, w->r->node)) {
        x.to = rank_in(w, step->to);
        x.send = w->r->pieced->roots[i] + send.begin * w->element;
        x.send_bytes = bytes_of(w, send);
    }
    if (i < piece_tree_n_roots(w->t, step->from)) {
        x.from = rank_in(w, step->from);
        x.recv = aside(w, piece_tree_root(w->t, step->from, i));
        x.recv_bytes = bytes_of(w, recv);
    }
    return tcp_exchange(w->c, w->r, &x);
}

static int scatter(struct work *w, size_t at)
{
    struct schedule s = schedule_for(w, SCHEDULE_REDUCE_SCATTER);

    for (uint32_t k = 0; k < schedule_steps(&s); k++) {
        struct schedule_step step = schedule_step(&s, k);
        uint32_t own = piece_tree_n_roots(w->t, w->r->node);
        uint32_t theirs = piece_tree_n_roots(w->t, step.from);

        for (uint32_t i = 0; i < own || i < theirs; i++)
            if (exchange_root(w, &step, i, at) < 0)
                return -1;
    }
    w->n_runs++;
    return 0;
}

/* Adds up the own part of all roots. */
static void add_roots(struct work *w, size_t at)
{
    struct comm_range x = part_of(w, w->r->node, at);
    void *to = w->data + x.begin * w->element;
    uint32_t own = 0;

    for (uint32_t i = 0; i < w->t->n_roots; i++)
        w->r->pieced->sources[i] = w->t->roots[i].node != w->r->node
                                       ? aside(w, i)
                                       : w->r->pieced->roots[own++] + x.begin * w->element;
    reduce(&to, 1, w->r->pieced->sources, w->t->n_roots, w->t->root_leaves, x.end - x.begin,
           (enum tensor_dtype)w->r->call.dtype, COMM_SUM);
}

static int gather(struct work *w)
{
    struct schedule s = schedule_for(w, SCHEDULE_ALL_GATHER);
    struct comm_range own = segment(w, w->r->node);

    for (uint32_t k = 0; k < schedule_steps(&s); k++) {
        struct schedule_step step = schedule_step(&s, k);
        struct comm_range recv = segment(w, step.from);
        struct exchange x = { .to = rank_in(w, step.to),
                              .from = rank_in(w, step.from),
                              .send_tag = (uint64_t)w->n_runs << 32,
                              .recv_tag = (uint64_t)w->n_runs << 32,
                              .send = w->data + own.begin * w->element,
                              .send_bytes = bytes_of(w, own),
                              .recv = w->data + recv.begin * w->element,
                              .recv_bytes = bytes_of(w, recv) };

        if (tcp_exchange(w->c, w->r, &x) < 0)
            return -1;
    }
    w->n_runs++;
    return 0;
}

static int reduce_nodes(struct work *w)
{
    size_t longest = 0, step = COMM_ASIDE_BYTES / w->element;

    for (uint32_t s = 0; s < w->c->topo.n_nodes; s++) {
        struct comm_range x = segment(w, s);

        longest = x.end - x.begin > longest ? x.end - x.begin : longest;
    }
    (void)fault_hit("comm.write");
    if (reduce_roots(w) < 0)
        return -1;
    for (size_t at = 0; at < longest; at += step) {
        if (scatter(w, at) < 0)
            return -1;
        add_roots(w, at);
    }
    return gather(w) < 0 ? -1 : distribute(w);
}

int pieced_all_reduce(struct comm *c, struct comm_rank *r, void *data)
{
    struct work w = { .c = c,
                      .r = r,
                      .t = &c->pieces,
                      .data = data,
                      .element = comm_call_element(&r->call),
                      .first = c->topo.node_first[r->node],
                      .n = topology_node_ranks(&c->topo, r->node),
                      .n_channels = c->topo.n_channels };
    int rc = host_enter(c, r, w.first, w.n);

    if (w.element * r->call.count <= COMM_SMALL_BYTES)
        w.n_channels = 1;
    if (rc == 0 && c->topo.n_nodes == 1)
        rc = reduce_local(&w);
    else if (rc == 0 && r->index < w.n_channels)
        rc = reduce_nodes(&w);
    return rc < 0 ? -1 : host_barrier(c, r, w.first, w.n);
}
