/* coded.c - the coded all-reduce: few bytes between nodes, and bits that do not depend on the nodes.
 *
 *   1. a node sends to every other node that node's segment, summed over its ranks: the code of each of its
 *      groups, or float32 if the codes are not fewer bytes, if the node is a part of a group, or if one of its
 *      several ranks has several groups, which are added up already
 *   2. the owner of a segment adds up what the nodes sent, along the tree over lanes, and encodes the sum
 *   3. it sends the code to all nodes; all decode the same bytes
 *   4. a node copies the result to its ranks
 *
 * The sum of each group is rounded in whichever step it is complete, and the sum of all groups in step 2.
 * A step that sends nothing rounds nevertheless, so the bits are those of any other placement of the lanes.
 * With one node only the roundings remain.
 *
 * The message of a node with several groups: the wire form of its first group, in which blocks that are not coded
 * have the sum of the node; then the coded blocks of each other group.
 *
 * Steps 1 to 3 are made in pieces, so that the buffers have a fixed size. */
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
    struct coded_source *sources;     /* owned [2 * most]: of coded blocks, or of all; then of the other blocks */
    uint32_t *part_lanes;             /* owned [most + 1]: lanes of the sources of coded blocks */
    uint32_t *node_lanes;             /* owned [n_nodes + 1] */
    uint32_t *node_groups;            /* owned [n_nodes]: groups of the node; 0: it is a part of a group, or one
                                         of its several ranks has several groups */
    uint32_t most;                    /* sources: ranks of the node, or parts of nodes and groups */
    size_t piece;                     /* elements; a multiple of CODE_BLOCK */
    size_t piece_bytes;
    float *sum;                       /* owned [piece]: the sum of a group of the node; NULL with one node */
    uint8_t *send;                    /* owned [piece_bytes]; likewise */
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

/* Returns the number of groups of a node with one rank, or whose ranks have at most one group each; else 0. A
 * rank with several groups keeps their codes in memory that other processes do not map. */
static uint32_t groups_of_node(const struct comm *c, uint32_t node)
{
    uint32_t first = c->topo.node_first[node], end = c->topo.node_first[node + 1];

    for (uint32_t r = first; r < end && end > first + 1; r++)
        if (c->lanes[r + 1] - c->lanes[r] > c->group_lanes)
            return 0;
    return (c->lanes[end] - c->lanes[first]) / c->group_lanes;
}

static int make_buffers(struct coded *k, uint32_t n_nodes)
{
    k->piece = COMM_CODED_FLOATS / n_nodes / CODE_BLOCK * CODE_BLOCK;
    if (k->piece < PIECE_LEAST)
        k->piece = PIECE_LEAST;
    k->piece_bytes = k->piece * sizeof(float); /* no message is longer */
    k->sum = aligned_alloc(64, k->piece_bytes);
    k->send = aligned_alloc(64, k->piece_bytes);
    k->received = aligned_alloc(64, n_nodes * k->piece_bytes);
    return k->sum != NULL && k->send != NULL && k->received != NULL ? 0 : ERR_NOMEM;
}

int coded_make_rank(struct comm *c, struct comm_rank *r)
{
    const struct topology *t = &c->topo;
    struct coded *k;

    if (c->group_lanes == 0)
        return 0;
    k = r->coded = calloc(1, sizeof(*k));
    if (k == NULL)
        return ERR_NOMEM;
    k->most = topology_node_ranks(t, r->node);
    if (k->most < t->n_nodes + c->opts.groups)
        k->most = t->n_nodes + c->opts.groups;
    k->sources = calloc(2 * (size_t)k->most, sizeof(*k->sources));
    k->part_lanes = calloc((size_t)k->most + 1, sizeof(*k->part_lanes));
    k->node_lanes = calloc((size_t)t->n_nodes + 1, sizeof(*k->node_lanes));
    k->node_groups = calloc(t->n_nodes, sizeof(*k->node_groups));
    if (k->sources == NULL || k->part_lanes == NULL || k->node_lanes == NULL ||
        k->node_groups == NULL)
        return ERR_NOMEM;
    for (uint32_t i = 0; i <= t->n_nodes; i++)
        k->node_lanes[i] = c->lanes[t->node_first[i]];
    for (uint32_t i = 0; i < t->n_nodes; i++)
        k->node_groups[i] = groups_of_node(c, i);
    return r->n_links > 0 ? make_buffers(k, t->n_nodes) : 0;
}

void coded_free_rank(struct comm_rank *r)
{
    if (r->coded == NULL)
        return;
    free(r->coded->sources);
    free(r->coded->part_lanes);
    free(r->coded->node_lanes);
    free(r->coded->node_groups);
    free(r->coded->sum);
    free(r->coded->send);
    free(r->coded->received);
    free(r->coded);
    r->coded = NULL;
}

void coded_set(struct comm_rank *r, const struct comm_coding *coding)
{
    r->coded->coding = coding;
}

/* Number of codes in a message of a node: one for each of its groups; 0: the message is float32. */
static uint32_t codes_in(const struct coded *k, uint32_t node, enum code_kind kind)
{
    uint32_t n = k->node_groups[node];

    return n * code_block_bytes(kind) < CODE_RAW_BYTES ? n : 0;
}

uint32_t coded_kept(const struct comm *c, const struct comm_rank *r, enum code_kind kind)
{
    bool has_several =
        c->lanes != NULL && c->lanes[r->rank + 1] - c->lanes[r->rank] > c->group_lanes;

    return has_several && c->topo.n_nodes > 1 ? codes_in(r->coded, r->node, kind) : 0;
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

/* Bytes of the code of a sum. */
static size_t wire_bytes(const struct work *w, struct comm_range x)
{
    struct comm_range m = map_range(w, x);

    return code_map_bytes(w->k->coding->map, m.begin, m.end);
}

/* Writes the code of the data of this rank. */
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

static size_t float_bytes(struct comm_range x)
{
    return (x.end - x.begin) * sizeof(float);
}

static uint32_t codes_of(const struct work *w, uint32_t node)
{
    return codes_in(w->k, node, w->k->coding->map->kind);
}

static size_t message_bytes(const struct work *w, uint32_t node, struct comm_range x)
{
    struct comm_range m = map_range(w, x);
    uint32_t n = codes_of(w, node);

    if (n == 0)
        return float_bytes(x);
    return wire_bytes(w, x) + (n - 1) * code_map_coded_bytes(w->k->coding->map, m.begin, m.end);
}

static struct coded_tree tree_of(const struct work *w, struct coded_sources coded,
                                 struct coded_sources raw, bool rounds)
{
    return (struct coded_tree){ .map = w->k->coding->map,
                                .key = w->k->coding->key,
                                .coded = coded,
                                .raw = raw,
                                .group_lanes = rounds ? w->c->group_lanes : 0 };
}

static struct comm_range segment(const struct work *w, uint32_t node)
{
    return schedule_cut(w->n_nodes * w->n_channels, node * w->n_channels + w->r->index,
                        w->r->call.count, CODE_BLOCK);
}

static uint32_t groups_of(const struct work *w)
{
    return w->c->lanes[w->c->topo.world] / w->c->group_lanes;
}

/* ---- inside the node ---- */

/* Sets *out to the ranks of the node as sources of `x`. rounds: a rank that is a group is to be rounded. */
static int find_ranks(struct work *w, struct comm_range x, bool rounds, struct coded_sources *out)
{
    const uint32_t *lanes = w->c->lanes + w->first;

    for (uint32_t i = 0; i < w->n; i++) {
        float *theirs = host_data(w->c, w->r, w->first + i, w->r->call.count * sizeof(*theirs));
        bool group = rounds && lanes[i + 1] - lanes[i] == w->c->group_lanes;

        if (theirs == NULL)
            return -1;
        w->k->sources[i] = (struct coded_source){ theirs + x.begin, group ? CODED_GROUP : CODED_SUM };
    }
    *out = (struct coded_sources){ w->k->sources, w->n, lanes };
    return 0;
}

/* Adds up a range of all ranks of the node into the memory of this rank. rounds: the node has several
 * groups, and the sum of each is rounded. */
static int sum_node(struct work *w, struct comm_range x, bool rounds)
{
    struct comm_range m = map_range(w, x);
    struct coded_sources ranks;
    struct coded_tree t;

    if (find_ranks(w, x, rounds, &ranks) < 0)
        return -1;
    t = tree_of(w, ranks, ranks, rounds);
    coded_tree_sum(&t, m.begin, m.end, w->data + x.begin);
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
        x = schedule_some(part, at, LOCAL_PIECE);
        m = map_range(w, x);
        if (sum_node(w, x, true) < 0)
            return -1;
        code_map_round(w->k->coding->map, &key, w->data + x.begin, m.begin, m.end, NULL);
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
    w->k->bytes.plain += float_bytes(x);
    return tcp_exchange(w->c, w->r, &e);
}

/* Writes the message of this node for a piece, with the codes that its rank has kept. */
static void copy_codes(const struct work *w, struct comm_range x, uint8_t *out)
{
    const struct comm_coding *coding = w->k->coding;
    struct comm_range m = map_range(w, x);
    size_t at = code_map_coded_before(coding->map, m.begin);
    size_t bytes = code_map_coded_bytes(coding->map, m.begin, m.end);

    code_map_join(coding->map, coding->codes[0] + at, w->data + x.begin, m.begin, m.end, out);
    out += wire_bytes(w, x);
    for (uint32_t g = 1; g < codes_of(w, w->r->node); g++, out += bytes)
        memcpy(out, coding->codes[g] + at, bytes);
}

/* The same, with codes of the sums of its ranks. */
static int encode_groups(struct work *w, struct comm_range x, uint8_t *out)
{
    const struct code_map *map = w->k->coding->map;
    struct comm_range m = map_range(w, x);
    uint32_t group = w->k->node_lanes[w->r->node] / w->c->group_lanes, first = 0;
    struct coded_sources ranks;

    if (coded_kept(w->c, w->r, map->kind) > 0) {
        copy_codes(w, x, out);
        return 0;
    }
    if (find_ranks(w, x, false, &ranks) < 0)
        return -1;
    for (uint32_t g = 0; g < codes_of(w, w->r->node); g++, group++) {
        struct code_key key = key_of(w, group);
        struct coded_sources own = { ranks.from + first, 0, ranks.lanes + first };
        struct coded_tree t;

        while (first < w->n && ranks.lanes[first] / w->c->group_lanes == group)
            first++, own.n++;
        t = tree_of(w, own, g == 0 ? ranks : own, false);
        coded_tree_sum(&t, m.begin, m.end, w->k->sum);
        if (g == 0)
            code_map_write(map, &key, w->k->sum, m.begin, m.end, out);
        else
            code_map_write_coded(map, &key, w->k->sum, m.begin, m.end, out);
        out += g == 0 ? code_map_bytes(map, m.begin, m.end)
                      : code_map_coded_bytes(map, m.begin, m.end);
    }
    return 0;
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
    struct comm_range own = schedule_some(segment(w, w->r->node), at, w->k->piece);
    bool encodes = codes_of(w, w->r->node) > 0;

    for (uint32_t i = 0; i < schedule_steps(&s); i++) {
        struct schedule_step step = schedule_step(&s, i);
        struct comm_range x = schedule_some(segment(w, step.to), at, w->k->piece);

        if (encodes && encode_groups(w, x, w->k->send) < 0)
            return -1;
        if (exchange(w, &step, encodes ? (const void *)w->k->send : w->data + x.begin,
                     message_bytes(w, w->r->node, x), message_bytes(w, step.from, own), x) < 0)
            return -1;
    }
    return encodes ? encode_groups(w, own, received(w, w->r->node)) : 0;
}

/* Adds up the own piece of all nodes. */
static void sum_nodes(struct work *w, size_t at)
{
    struct comm_range own = schedule_some(segment(w, w->r->node), at, w->k->piece),
                      m = map_range(w, own);
    struct coded_source *part = w->k->sources, *node = w->k->sources + w->k->most;
    size_t first_bytes = wire_bytes(w, own),
           more_bytes = code_map_coded_bytes(w->k->coding->map, m.begin, m.end);
    uint32_t *lanes = w->k->part_lanes;
    uint32_t n = 0;
    struct coded_tree t;

    for (uint32_t i = 0; i < w->n_nodes; i++) {
        uint32_t codes = codes_of(w, i);
        uint8_t *from = received(w, i);

        node[i] = (struct coded_source){ codes == 0 && i == w->r->node ? (void *)(w->data + own.begin) : from,
                                         codes > 0 ? CODED_WIRE : CODED_SUM };
        lanes[n] = w->k->node_lanes[i];
        part[n++] = node[i];
        for (uint32_t g = 1; g < codes; g++) {
            lanes[n] = lanes[n - 1] + w->c->group_lanes;
            part[n++] = (struct coded_source){ from + first_bytes + (g - 1) * more_bytes, CODED_MORE };
        }
    }
    lanes[n] = w->k->node_lanes[w->n_nodes];
    t = tree_of(w, (struct coded_sources){ part, n, lanes },
                (struct coded_sources){ node, w->n_nodes, w->k->node_lanes }, true);
    coded_tree_sum(&t, m.begin, m.end, w->data + own.begin);
}

/* Sends the code of the own piece to all nodes, and decodes it and theirs. */
static int gather(struct work *w, size_t at)
{
    struct schedule s = schedule_for(w, SCHEDULE_ALL_GATHER);
    struct comm_range own = schedule_some(segment(w, w->r->node), at, w->k->piece);
    size_t bytes = wire_bytes(w, own);

    encode(w, own, groups_of(w), w->k->send);
    decode(w, own, w->k->send);
    for (uint32_t i = 0; i < schedule_steps(&s); i++) {
        struct schedule_step step = schedule_step(&s, i);
        struct comm_range x = schedule_some(segment(w, step.from), at, w->k->piece);

        if (exchange(w, &step, w->k->send, bytes, wire_bytes(w, x), own) < 0)
            return -1;
        decode(w, x, received(w, step.from));
    }
    return 0;
}

static int reduce_nodes(struct work *w)
{
    uint32_t lanes = w->k->node_lanes[w->r->node + 1] - w->k->node_lanes[w->r->node];
    bool adds = w->n > 1 && codes_of(w, w->r->node) == 0;
    size_t longest = 0;

    for (uint32_t i = 0; i < w->n_nodes; i++) {
        struct comm_range x = segment(w, i);

        longest = x.end - x.begin > longest ? x.end - x.begin : longest;
        if (adds && sum_node(w, x, lanes > w->c->group_lanes) < 0)
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
