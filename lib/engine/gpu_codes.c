/* gpu_codes.c - see gpu_codes.h. */
#include "engine/gpu_codes.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "code/map.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "engine/codes.h"
#include "engine/gpu_order.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_types.h"

enum { CODES_MOST = CODE_RAW_BYTES / CODE_LEAST_BYTES }; /* in a message */

static uint32_t group_lanes(const struct engine *e)
{
    return e->opts->lanes / e->opts->code->groups;
}

/* ---- a task ---- */

/* Codes in the messages of a replica with so many lanes; 0: the messages are float32. */
static uint32_t codes_in(const struct engine *e, uint32_t lanes)
{
    uint32_t n = lanes / group_lanes(e);

    return n * code_block_bytes(e->codes->kind) < CODE_RAW_BYTES ? n : 0;
}

/* Codes that a replica keeps in any generation, at most. */
static uint32_t most_codes(const struct engine *e)
{
    uint32_t most = 0;

    for (uint32_t n = group_lanes(e); n <= e->opts->max_lanes; n *= 2)
        most = codes_in(e, n) > most ? codes_in(e, n) : most;
    return most;
}

static size_t code_bytes(const struct engine *e) /* of all coded blocks */
{
    return code_map_coded(e->codes) / CODE_BLOCK * code_block_bytes(e->codes->kind);
}

static size_t before_bytes(const struct engine *e)
{
    return (e->codes->n_blocks + 1) * sizeof(*e->codes->before);
}

static size_t leaves_most(const struct engine *e)
{
    return (size_t)e->opts->max_replicas * (CODES_MOST + 1);
}

static size_t message_bytes(const struct engine_replica *r)
{
    return gpu_order_part_floats(r) * sizeof(float);
}

size_t gpu_codes_bytes(const struct engine_replica *r)
{
    const struct engine *e = r->engine;

    if (e->codes == NULL)
        return 0;
    return before_bytes(e) + (e->opts->max_replicas > 1
                                  ? most_codes(e) * code_bytes(e) + message_bytes(r) +
                                        leaves_most(e) * sizeof(*gpu_of(r)->codes.leaves)
                                  : 0);
}

size_t gpu_codes_gradient_bytes(const struct engine_replica *r)
{
    return r->engine->memory.depth * gpu_of(r)->grads.floats * sizeof(float) +
           gpu_order_received_bytes(r) + gpu_codes_bytes(r) + gpu_residual_bytes(r);
}

static int open_exchange(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    struct gpu_codes *k = &g->codes;
    int rc = 0;

    k->kept_bytes = code_bytes(e);
    if (most_codes(e) * k->kept_bytes > 0)
        rc = g->cuda->alloc((void **)&k->kept, most_codes(e) * k->kept_bytes, err);
    if (rc == 0)
        rc = g->cuda->alloc((void **)&k->messages, message_bytes(r), err);
    if (rc == 0)
        rc = g->cuda->alloc((void **)&k->leaves, leaves_most(e) * sizeof(*k->leaves), err);
    if (rc < 0)
        return rc;
    k->host_leaves = calloc(leaves_most(e), sizeof(*k->host_leaves));
    k->n_codes = calloc(e->opts->max_replicas, sizeof(*k->n_codes));
    return k->host_leaves != NULL && k->n_codes != NULL
               ? 0
               : err_set(err, ERR_NOMEM, "codes of gradients: out of memory");
}

/* Nothing writes the gaps between parameters, but the numbers there share a scale with parameters. */
static int clear_gaps(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < r->engine->memory.depth; i++)
        rc = g->cuda->fill(g->grads.tree[i], 0, g->grads.floats * sizeof(float), g->streams.work,
                           err);
    return rc;
}

int gpu_codes_open(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    int rc;

    if (e->codes == NULL)
        return 0;
    rc = clear_gaps(r, err);
    if (rc == 0)
        rc = g->cuda->alloc((void **)&g->codes.before, before_bytes(e), err);
    if (rc == 0) /* all-reduces wait for this stream */
        rc =
            g->cuda->copy(g->codes.before, e->codes->before, before_bytes(e), g->streams.work, err);
    return rc < 0 || e->opts->max_replicas == 1 ? rc : open_exchange(r, err);
}

void gpu_codes_close(struct engine_replica *r)
{
    struct gpu *g = gpu_of(r);
    struct gpu_codes *k = &g->codes;

    g->cuda->free(k->before);
    g->cuda->free(k->kept);
    g->cuda->free(k->messages);
    g->cuda->free(k->leaves);
    free(k->host_leaves);
    free(k->n_codes);
    *k = (struct gpu_codes){ 0 };
}

/* ---- a generation ---- */

static uint32_t lanes_of(const struct gpu_order *o, uint32_t rank)
{
    return o->leaves[rank + 1] - o->leaves[rank];
}

/* Fills in `out` for sources that begin at these lanes. All are aligned powers of two, so each merge adds two
 * equal subtrees. */
static void link_leaves(const struct engine *e, const uint32_t *lanes, uint32_t n,
                        struct cuda_code_leaf *out)
{
    uint8_t merges[COMM_MAX_RANKS];

    reduce_merges(lanes, n, merges);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t width = lanes[i + 1] - lanes[i];

        out[i].merges = merges[i];
        out[i].place = lanes[i] / group_lanes(e);
        for (uint8_t m = 1; m <= merges[i]; m++)
            if (width << m == group_lanes(e))
                out[i].rounds_at = m;
    }
}

static void fill_leaves(struct engine_replica *r)
{
    const struct engine *e = r->engine;
    const struct gpu_order *o = &gpu_of(r)->order;
    struct gpu_codes *k = &gpu_of(r)->codes;
    uint32_t lanes[COMM_MAX_RANKS + 1], n = 0;
    struct cuda_code_leaf *raw;

    for (uint32_t rank = 0; rank < o->world; rank++) {
        uint32_t parts = rank == r->rank || k->n_codes[rank] == 0 ? 1 : k->n_codes[rank];

        for (uint32_t i = 0; i < parts; i++, n++) {
            lanes[n] = o->leaves[rank] + i * (lanes_of(o, rank) / parts);
            k->host_leaves[n] = (struct cuda_code_leaf){ .rank = rank,
                                                         .n_codes = k->n_codes[rank],
                                                         .code = (uint8_t)i };
        }
    }
    lanes[n] = o->leaves[o->world];
    link_leaves(e, lanes, n, k->host_leaves);
    k->n_coded = n;
    raw = k->host_leaves + n;
    for (uint32_t rank = 0; rank < o->world; rank++)
        raw[rank] = (struct cuda_code_leaf){ .rank = rank, .n_codes = k->n_codes[rank] };
    link_leaves(e, o->leaves, o->world, raw);
}

int gpu_codes_begin(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    struct gpu_codes *k = &g->codes;

    if (k->messages == NULL)
        return 0;
    for (uint32_t i = 0; i < g->order.world; i++) {
        CHECK(schedule_is_power(lanes_of(&g->order, i))); /* comm_open() refuses others */
        k->n_codes[i] = (uint8_t)codes_in(e, lanes_of(&g->order, i));
        if (k->n_codes[i] > 1 && g->order.world > COMM_MAX_RANKS / CODES_MOST)
            k->n_codes[i] = 0; /* the tree would have too many leaves */
    }
    fill_leaves(r);
    return g->cuda->copy(k->leaves, k->host_leaves,
                         (k->n_coded + g->order.world) * sizeof(*k->leaves), g->streams.reduce,
                         err);
}

/* ---- a step ---- */

static struct cuda_code code_of(const struct engine_replica *r)
{
    const struct engine *e = r->engine;

    return (struct cuda_code){ .kind = e->codes->kind,
                               .before = gpu_of(r)->codes.before,
                               .n_blocks = e->codes->n_blocks,
                               .seed = e->opts->seed,
                               .step = gpu_of(r)->codes.step };
}

int gpu_codes_round_group(struct engine_replica *r, uint32_t lane, uint32_t merges, float *sum,
                          size_t begin, size_t end, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    struct cuda_code c;
    uint32_t group;
    uint8_t *codes = NULL;

    if (!codes_are_on(e))
        return 0;
    group = group_lanes(e);
    if (r->n_lanes < group || (lane + 1) % group != 0 || merges != (uint32_t)__builtin_ctz(group))
        return 0;
    if (g->comm != NULL && g->codes.n_codes[r->rank] > 0)
        codes = g->codes.kept + lane / group * g->codes.kept_bytes;
    c = code_of(r);
    return g->cuda->math->code_round(
        &c, &(struct cuda_code_part){ .x = sum + begin, .begin = begin, .n = end - begin },
        (r->first_lane + lane) / group, codes, g->streams.work, err);
}

int gpu_codes_round_all(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    struct cuda_code c;

    if (!codes_are_on(e))
        return 0;
    c = code_of(r);
    return g->cuda->math->code_round(
        &c, &(struct cuda_code_part){ .x = g->grads.tree[0], .n = e->memory.grads },
        e->opts->code->groups, NULL, g->streams.work, err);
}

/* Floats [begin, begin + n) of arena 0, of which each rank owns a slice. */
struct work {
    struct engine_replica *r;
    struct gpu *g;
    struct cuda_code code;
    size_t begin;
};

static struct cuda_code_part slice(const struct work *w, uint32_t rank)
{
    size_t begin = w->begin + w->g->order.borders[rank];

    return (struct cuda_code_part){ .x = w->g->grads.tree[0] + begin,
                                    .begin = begin,
                                    .n = gpu_order_floats(&w->g->order, rank) };
}

/* Bytes of a message about the slice of a rank. */
static size_t bytes_of(const struct work *w, uint32_t rank, uint32_t n_codes)
{
    const struct code_map *map = w->r->engine->codes;
    struct cuda_code_part p = slice(w, rank);
    size_t coded, raw;

    if (n_codes == 0)
        return p.n * sizeof(float);
    coded = code_map_coded_bytes(map, p.begin, p.begin + p.n);
    raw = p.n - coded / code_block_bytes(map->kind) * CODE_BLOCK;
    return n_codes * coded + raw * sizeof(float);
}

static uint8_t *message_to(const struct work *w, uint32_t rank)
{
    return w->g->codes.messages + w->g->order.borders[rank] * sizeof(float);
}

static int exchange(struct work *w, struct err *err)
{
    struct gpu_order *o = &w->g->order;

    for (uint32_t k = 0; k < o->world; k++)
        w->g->codes.sent += k != w->r->rank ? o->with[k].from_bytes : 0;
    return w->g->cuda->comm_exchange(w->g->comm, o->with, w->g->streams.reduce, err);
}

/* Sends to each rank the message about its slice. stride: between the messages that this rank receives. */
static int scatter(struct work *w, size_t stride, struct err *err)
{
    struct gpu_order *o = &w->g->order;
    struct gpu_codes *c = &w->g->codes;
    uint32_t self = w->r->rank, n_codes = c->n_codes[self];
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < o->world; k++) {
        struct cuda_code_part p = slice(w, k);

        if (k == self)
            continue;
        o->with[k] = (struct cuda_exchange){
            .from = n_codes > 0 ? message_to(w, k) : (const void *)p.x,
            .from_bytes = bytes_of(w, k, n_codes),
            .to = (uint8_t *)o->received + stride * (k < self ? k : k - 1),
            .to_bytes = bytes_of(w, self, c->n_codes[k]),
        };
        if (n_codes > 0)
            rc = w->g->cuda->math->code_join(&w->code, &p, c->kept, c->kept_bytes, n_codes,
                                             message_to(w, k), w->g->streams.reduce, err);
        c->plain += p.n * sizeof(float);
    }
    return rc < 0 ? rc : exchange(w, err);
}

/* Sends the code of the own slice to all ranks, and decodes theirs. */
static int gather(struct work *w, struct err *err)
{
    struct gpu_order *o = &w->g->order;
    uint32_t self = w->r->rank;
    int rc;

    for (uint32_t k = 0; k < o->world; k++)
        o->with[k] = (struct cuda_exchange){ .from = message_to(w, self),
                                             .from_bytes = bytes_of(w, self, 1),
                                             .to = o->received + o->borders[k],
                                             .to_bytes = bytes_of(w, k, 1) };
    w->g->codes.plain += (o->world - 1) * gpu_order_floats(o, self) * sizeof(float);
    rc = exchange(w, err);
    for (uint32_t k = 0; rc == 0 && k < o->world; k++) {
        struct cuda_code_part p = slice(w, k);

        if (k != self)
            rc =
                w->g->cuda->math->code_read(&w->code, &p, o->with[k].to, w->g->streams.reduce, err);
    }
    return rc;
}

static int reduce_part(struct work *w, size_t n, struct err *err)
{
    struct gpu *g = w->g;
    struct cuda_code_tree tree = { .received = (const uint8_t *)g->order.received,
                                   .leaves = g->codes.leaves,
                                   .n_coded = g->codes.n_coded,
                                   .n_raw = g->order.world,
                                   .self = w->r->rank,
                                   .place = w->r->engine->opts->code->groups };
    struct cuda_code_part own;
    int rc;

    gpu_order_cut(&g->order, n);
    own = slice(w, w->r->rank);
    tree.stride = (own.n + CODE_BLOCK - 1) / CODE_BLOCK * CODE_RAW_BYTES;
    rc = scatter(w, tree.stride, err);
    if (rc == 0)
        rc = g->cuda->math->code_sum(&w->code, &own, &tree, message_to(w, w->r->rank),
                                     g->streams.reduce, err);
    return rc < 0 ? rc : gather(w, err);
}

int gpu_codes_all_reduce(struct engine_replica *r, size_t begin, size_t end, struct err *err)
{
    struct work w = { .r = r, .g = gpu_of(r), .code = code_of(r) };
    size_t most = gpu_order_part_floats(r);
    int rc = 0;

    for (w.begin = begin; rc == 0 && w.begin < end; w.begin += most)
        rc = reduce_part(&w, end - w.begin < most ? end - w.begin : most, err);
    return rc;
}
