/* coded.c - the coded all-reduce: few bytes between nodes, and bits that do not depend on the nodes.
 *
 *   1. a node adds up its ranks, in its memory
 *   2. it sends to every other node that node's segment: in wire form if the node is exactly one group, else
 *      in float32 (it is a part of a group, or its groups are added up already)
 *   3. the owner of a segment adds up what the nodes sent, along the tree over lanes, and encodes the sum
 *   4. it sends the code to all nodes; all decode the same bytes
 *   5. a node copies the result to its ranks
 *
 * The sum of each group is rounded in whichever step it is complete, and the sum of all groups in step 3.
 * A step that sends nothing rounds nevertheless, so the bits are those of any other placement of the lanes.
 * With one node only the roundings remain.
 *
 * Steps 2 to 4 are made in pieces, so that the buffers have a fixed size. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "code/map.h"
#include "comm/coded_tree.h"
#include "comm/comm_priv.h"
#include "comm/schedule.h"

enum {
    PIECE_LEAST = COMM_ASIDE_BYTES / (int)sizeof(float), /* elements of a segment in one exchange */
    LOCAL_PIECE = 4096, /* elements that one node adds up and copies while they are in the cache */
};

struct coded {
    const struct comm_coding *coding; /* of the present call */
    struct coded_source *sources;     /* owned [ranks of the node, or nodes if those are more] */
    uint32_t *node_lanes;             /* owned [n_nodes + 1] */
    size_t piece;                     /* elements; a multiple of CODE_BLOCK */
    size_t piece_bytes;
    uint8_t *send;                    /* owned [piece_bytes]; NULL with one node */
    uint8_t *received;                /* owned [n_nodes][piece_bytes]; NULL with one node */
    struct comm_coded_bytes bytes;
};

/* One call of one rank. */
struct work {
    struct comm *c;
    struct comm_rank *r;
    struct coded *k;
    float *data;
    uint32_t first, n, n_nodes, n_channels; /* n: ranks of the node */
    uint32_t n_runs;                        /* exchanges so far */
};

/* ---- opening ---- */

static int check_leaves(const struct comm *c, struct err *err)
{
    uint32_t lanes = c->lanes[c->topo.world], groups = c->opts.groups, group = lanes / groups;

    if (!schedule_is_power(groups) || lanes % groups != 0 || !schedule_is_power(group))
        return err_set(
            err, ERR_INPUT,
            "%u groups of %u lanes; expected powers of two, and at least as many lanes as groups",
            groups, lanes);
    for (uint32_t r = 0; r < c->topo.world; r++) {
        uint32_t n = c->lanes[r + 1] - c->lanes[r];

        if (!schedule_is_power(n) || c->lanes[r] % n != 0)
            return err_set(err, ERR_INPUT,
                           "rank %u has lanes %u to %u; expected a subtree of %u lanes", r,
                           c->lanes[r], c->lanes[r + 1] - 1, lanes);
    }
    return 0;
}

int coded_make(struct comm *c, struct err *err)
{
    uint32_t world = c->topo.world;
    int rc;

    if (c->opts.groups == 0 || c->opts.view.members[c->self].n_devices == 0)
        return 0;
    c->lanes = calloc((size_t)world + 1, sizeof(*c->lanes));
    if (c->lanes == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t r = 0; r < world; r++)
        c->lanes[r + 1] = c->lanes[r] + (c->opts.shares != NULL ? c->opts.shares[r] : 1);
    rc = check_leaves(c, err);
    if (rc == 0)
        c->group_lanes = c->lanes[world] / c->opts.groups;
    return rc;
}

int coded_make_rank(struct comm *c, struct comm_rank *r)
{
    const struct topology *t = &c->topo;
    uint32_t ranks = topology_node_ranks(t, r->node),
             sources = ranks > t->n_nodes ? ranks : t->n_nodes;
    struct coded *k;

    if (c->group_lanes == 0)
        return 0;
    k = r->coded = calloc(1, sizeof(*k));
    if (k == NULL)
        return ERR_NOMEM;
    k->sources = calloc(sources, sizeof(*k->sources));
    k->node_lanes = calloc((size_t)t->n_nodes + 1, sizeof(*k->node_lanes));
    if (k->sources == NULL || k->node_lanes == NULL)
        return ERR_NOMEM;
    for (uint32_t i = 0; i <= t->n_nodes; i++)
        k->node_lanes[i] = c->lanes[t->node_first[i]];
    if (r->n_links == 0)
        return 0;
    k->piece = COMM_CODED_FLOATS / t->n_nodes / CODE_BLOCK * CODE_BLOCK;
    if (k->piece < PIECE_LEAST)
        k->piece = PIECE_LEAST;
    k->piece_bytes = k->piece * sizeof(float); /* no wire form is longer */
    k->send = aligned_alloc(64, k->piece_bytes);
    k->received = aligned_alloc(64, t->n_nodes * k->piece_bytes);
    return k->send != NULL && k->received != NULL ? 0 : ERR_NOMEM;
}

void coded_free_rank(struct comm_rank *r)
{
    if (r->coded == NULL)
        return;
    free(r->coded->sources);
    free(r->coded->node_lanes);
    free(r->coded->send);
    free(r->coded->received);
    free(r->coded);
    r->coded = NULL;
}

void coded_set(struct comm_rank *r, const struct comm_coding *coding)
{
    r->coded->coding = coding;
}

struct comm_coded_bytes coded_bytes(const struct comm_rank *r)
{
    return r->coded != NULL ? r->coded->bytes : (struct comm_coded_bytes){ 0 };
}

/* ---- parts of the vector, and their roundings ---- */

static struct code_key key_of(const struct work *w, uint32_t place)
{
    struct code_key key = w->k->coding->key;

    key.place = place;
    return key;
}

static struct comm_range map_range(const struct work *w, struct comm_range x)
{
    size_t first = w->k->coding->first;

    return (struct comm_range){ first + x.begin, first + x.end };
}

static size_t wire_bytes(const struct work *w, struct comm_range x)
{
    struct comm_range m = map_range(w, x);

    return code_map_bytes(w->k->coding->map, m.begin, m.end);
}

static void encode(const struct work *w, struct comm_range x, uint32_t place, uint8_t *out)
{
    struct comm_range m = map_range(w, x);
    struct code_key key = key_of(w, place);

    code_map_write(w->k->coding->map, &key, w->data + x.begin, m.begin, m.end, out);
}

static void decode(const struct work *w, struct comm_range x, const uint8_t *in)
{
    struct comm_range m = map_range(w, x);

    code_map_read(w->k->coding->map, in, m.begin, m.end, w->data + x.begin);
}

/* Adds up w->k->sources into the data of this rank. */
static void sum(const struct work *w, struct comm_range x, uint32_t n, const uint32_t *lanes,
                bool rounds)
{
    struct comm_range m = map_range(w, x);
    struct coded_tree t = { .map = w->k->coding->map,
                            .key = w->k->coding->key,
                            .from = w->k->sources,
                            .n = n,
                            .lanes = lanes,
                            .group_lanes = rounds ? w->c->group_lanes : 0 };

    coded_tree_sum(&t, m.begin, m.end, w->data + x.begin);
}

static struct comm_range segment(const struct work *w, uint32_t node)
{
    return schedule_cut(w->n_nodes * w->n_channels, node * w->n_channels + w->r->index,
                        w->r->call.count, CODE_BLOCK);
}

/* The piece of a segment that begins `at` elements after its start. */
static struct comm_range piece_of(struct comm_range x, size_t at, size_t most)
{
    x.begin += at < x.end - x.begin ? at : x.end - x.begin;
    if (x.end - x.begin > most)
        x.end = x.begin + most;
    return x;
}

static bool is_group(const struct work *w, uint32_t node)
{
    return w->k->node_lanes[node + 1] - w->k->node_lanes[node] == w->c->group_lanes;
}

static uint32_t groups_of(const struct work *w)
{
    return w->c->lanes[w->c->topo.world] / w->c->group_lanes;
}

/* ---- inside the node ---- */

/* Adds up a range of all ranks of the node into the memory of this rank. rounds: the node has several
 * groups, and the sum of each is rounded. */
static int sum_node(struct work *w, struct comm_range x, bool rounds)
{
    const uint32_t *lanes = w->c->lanes + w->first;

    for (uint32_t i = 0; i < w->n; i++) {
        float *theirs = host_data(w->c, w->r, w->first + i, w->r->call.count * sizeof(*theirs));
        bool group = rounds && lanes[i + 1] - lanes[i] == w->c->group_lanes;

        if (theirs == NULL)
            return -1;
        w->k->sources[i] =
            (struct coded_source){ theirs + x.begin, group ? CODED_GROUP : CODED_SUM };
    }
    sum(w, x, w->n, lanes, rounds);
    return 0;
}

/* Copies a range of this rank to the other ranks of the node. */
static int distribute(struct work *w, struct comm_range x)
{
    for (uint32_t i = w->first; i < w->first + w->n; i++) {
        float *theirs;

        if (i == w->r->rank)
            continue;
        theirs = host_data(w->c, w->r, i, w->r->call.count * sizeof(*theirs));
        if (theirs == NULL)
            return -1;
        memcpy(theirs + x.begin, w->data + x.begin, (x.end - x.begin) * sizeof(*theirs));
    }
    return 0;
}

/* All ranks are in one node: each adds up its part for all. */
static int reduce_local(struct work *w)
{
    struct comm_range part =
        schedule_cut(w->n, w->r->rank - w->first, w->r->call.count, CODE_BLOCK);
    struct code_key key = key_of(w, groups_of(w));
    struct comm_range x, m;

    (void)fault_hit("comm.write"); /* a test suspends or kills the process here */
    for (size_t at = 0; at < part.end - part.begin; at += LOCAL_PIECE) {
        x = piece_of(part, at, LOCAL_PIECE);
        m = map_range(w, x);
        if (sum_node(w, x, true) < 0)
            return -1;
        code_map_round(w->k->coding->map, &key, w->data + x.begin, m.begin, m.end);
        if (distribute(w, x) < 0)
            return -1;
    }
    return 0;
}

/* ---- between the nodes ---- */

static uint32_t rank_in(const struct work *w, uint32_t node)
{
    return w->c->topo.node_first[node] + w->r->index;
}

static uint8_t *received(const struct work *w, uint32_t node)
{
    return w->k->received + node * w->k->piece_bytes;
}

/* Sends bytes for `x` to one node, and receives `recv_bytes` from another one. */
static int exchange(struct work *w, const struct schedule_step *step, const void *send,
                    size_t send_bytes, size_t recv_bytes, struct comm_range x)
{
    struct exchange e = { .to = rank_in(w, step->to),
                          .from = rank_in(w, step->from),
                          .send_tag = w->n_runs,
                          .recv_tag = w->n_runs,
                          .send = send,
                          .send_bytes = send_bytes,
                          .recv = received(w, step->from),
                          .recv_bytes = recv_bytes };

    w->n_runs++;
    w->k->bytes.sent += send_bytes;
    w->k->bytes.plain += (x.end - x.begin) * sizeof(float);
    return tcp_exchange(w->c, w->r, &e);
}

static struct schedule schedule_for(const struct work *w, enum schedule_what what)
{
    return (struct schedule){ .what = what,
                              .direct = true,
                              .n_nodes = w->n_nodes,
                              .self = w->r->node,
                              .n_segments = w->n_nodes };
}

/* Sends to each node its piece, and receives the own piece of all nodes. */
static int scatter(struct work *w, size_t at)
{
    struct schedule s = schedule_for(w, SCHEDULE_REDUCE_SCATTER);
    struct comm_range own = piece_of(segment(w, w->r->node), at, w->k->piece);
    bool encodes = is_group(w, w->r->node);

    for (uint32_t i = 0; i < schedule_steps(&s); i++) {
        struct schedule_step step = schedule_step(&s, i);
        struct comm_range x = piece_of(segment(w, step.to), at, w->k->piece);
        const void *send = w->data + x.begin;
        size_t bytes = (x.end - x.begin) * sizeof(float);

        if (encodes) {
            encode(w, x, w->k->node_lanes[w->r->node] / w->c->group_lanes, w->k->send);
            send = w->k->send;
            bytes = wire_bytes(w, x);
        }
        if (exchange(w, &step, send, bytes,
                     is_group(w, step.from) ? wire_bytes(w, own)
                                            : (own.end - own.begin) * sizeof(float),
                     x) < 0)
            return -1;
    }
    return 0;
}

/* Adds up the own piece of all nodes. */
static void sum_nodes(struct work *w, size_t at)
{
    struct comm_range own = piece_of(segment(w, w->r->node), at, w->k->piece);

    for (uint32_t i = 0; i < w->n_nodes; i++) {
        bool is_own = i == w->r->node;
        enum coded_form form = !is_group(w, i) ? CODED_SUM : is_own ? CODED_GROUP : CODED_WIRE;

        w->k->sources[i] =
            (struct coded_source){ is_own ? (void *)(w->data + own.begin) : received(w, i), form };
    }
    sum(w, own, w->n_nodes, w->k->node_lanes, true);
}

/* Sends the code of the own piece to all nodes, and decodes it and theirs. */
static int gather(struct work *w, size_t at)
{
    struct schedule s = schedule_for(w, SCHEDULE_ALL_GATHER);
    struct comm_range own = piece_of(segment(w, w->r->node), at, w->k->piece);
    size_t bytes = wire_bytes(w, own);

    encode(w, own, groups_of(w), w->k->send);
    decode(w, own, w->k->send);
    for (uint32_t i = 0; i < schedule_steps(&s); i++) {
        struct schedule_step step = schedule_step(&s, i);
        struct comm_range x = piece_of(segment(w, step.from), at, w->k->piece);

        if (exchange(w, &step, w->k->send, bytes, wire_bytes(w, x), own) < 0)
            return -1;
        decode(w, x, received(w, step.from));
    }
    return 0;
}

static int reduce_nodes(struct work *w)
{
    uint32_t lanes = w->k->node_lanes[w->r->node + 1] - w->k->node_lanes[w->r->node];
    size_t longest = 0;

    for (uint32_t i = 0; i < w->n_nodes; i++) {
        struct comm_range x = segment(w, i);

        longest = x.end - x.begin > longest ? x.end - x.begin : longest;
        if (w->n > 1 && sum_node(w, x, lanes > w->c->group_lanes) < 0)
            return -1;
    }
    for (size_t at = 0; at < longest; at += w->k->piece) {
        if (scatter(w, at) < 0)
            return -1;
        sum_nodes(w, at);
        if (gather(w, at) < 0)
            return -1;
    }
    for (uint32_t i = 0; i < w->n_nodes; i++)
        if (distribute(w, segment(w, i)) < 0)
            return -1;
    return 0;
}

int coded_all_reduce(struct comm *c, struct comm_rank *r, float *data)
{
    struct work w = { .c = c,
                      .r = r,
                      .k = r->coded,
                      .data = data,
                      .first = c->topo.node_first[r->node],
                      .n = topology_node_ranks(&c->topo, r->node),
                      .n_nodes = c->topo.n_nodes,
                      .n_channels = c->topo.n_channels };
    int rc = host_enter(c, r, w.first, w.n);

    if (rc == 0 && w.n_nodes == 1)
        rc = reduce_local(&w);
    else if (rc == 0 && r->index < w.n_channels)
        rc = reduce_nodes(&w);
    return rc < 0 ? -1 : host_barrier(c, r, w.first, w.n);
}
