/* residual_top_k.c - top_k in a step; see residual.h.
 *
 *     exchange floats   numbers that are not coded, for the all-reduce | slot of a rank | slot of a rank | ...
 *     slot              message of its first group | message of its next group | ... | unused
 *
 * All slots have the size of the largest one, because comm_all_gather() divides a vector equally. They are in the
 * order in which comm_slice() places the ranks. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "code/top_k.h"
#include "comm/comm.h"
#include "engine/lanes.h"
#include "engine/residual.h"
#include "engine/residual_priv.h"
#include "opts/code.h"

enum { LEVELS = 17 /* of a tree over 65536 groups */ };

static uint32_t world_of(const struct engine_replica *r)
{
    return r->engine->group.comm != NULL ? comm_world(r->engine->group.comm) : 1;
}

/* The exchange floats after those that are not coded. */
static float *slots_of(const struct engine_replica *r)
{
    const struct memory *m = &r->engine->memory;
    size_t plain = m->grads - r->engine->residual.floats;

    return r->arenas->exchange + (plain + RESIDUAL_GRAIN) / RESIDUAL_GRAIN * RESIDUAL_GRAIN;
}

/* Finds the message of each group. shares: the lanes of each rank. */
static void place_messages(const struct engine_replica *r, struct residual_work *w,
                           const uint32_t *shares)
{
    uint32_t world = world_of(r), lanes = r->engine->opts->lanes / w->layout->code->groups;
    uint32_t most = 0, group = 0;

    for (uint32_t i = 0; i < world; i++)
        most = shares[i] / lanes > most ? shares[i] / lanes : most;
    w->slot = most * w->layout->message;
    for (uint32_t i = 0; i < world; i++) {
        struct comm_range x = comm_slice(world, i, world * w->slot);

        CHECK(x.end - x.begin == w->slot);
        for (uint32_t g = 0; g < shares[i] / lanes; g++)
            w->messages[group++] = (uint8_t *)(slots_of(r) + x.begin + g * w->layout->message);
    }
    CHECK(group == w->layout->code->groups);
}

static int begin(const struct engine_replica *r, struct residual_work *w, struct err *err)
{
    const uint32_t alone = r->engine->opts->lanes;

    w->messages = calloc(w->layout->code->groups, sizeof(*w->messages));
    w->partial = calloc(LEVELS * TOP_K_BLOCK, sizeof(*w->partial));
    if (w->messages == NULL || w->partial == NULL)
        return err_set(err, ERR_NOMEM, "messages of %u groups: out of memory",
                       w->layout->code->groups);
    place_messages(r, w, r->engine->group.comm != NULL ? r->engine->group.shares : &alone);
    return 0;
}

static void take_group(struct engine_replica *r, struct residual_work *w, uint32_t i)
{
    const struct residual_layout *l = w->layout;

    (void)r;
    for (uint32_t k = 0; k < l->n; k++)
        top_k_encode(l->code->fraction, residual_left(w, i) + l->parts[k].at, l->parts[k].elements,
                     w->messages[w->first_group + i] + l->parts[k].code_at);
}

/* y [n] = the sum of groups [first, first + count) of the block whose code is `code_at` bytes into each message. */
static void sum(const struct residual_work *w, uint32_t first, uint32_t count, uint32_t level,
                size_t code_at, size_t n, float *y)
{
    float *right = w->partial + level * TOP_K_BLOCK;

    if (count == 1) {
        top_k_decode(w->layout->code->fraction, w->messages[first] + code_at, n, y);
        return;
    }
    CHECK(level < LEVELS);
    sum(w, first, count / 2, level + 1, code_at, n, y);
    sum(w, first + count / 2, count / 2, level + 1, code_at, n, right);
    tree_add_f32(y, right, n);
}

static void decode(const struct residual_work *w, float *grads)
{
    const struct code_settings *code = w->layout->code;

    for (uint32_t k = 0; k < w->layout->n; k++) {
        const struct residual_part *p = &w->layout->parts[k];
        size_t code_at = p->code_at, n;

        for (size_t at = 0; at < p->elements; at += n) {
            n = p->elements - at < TOP_K_BLOCK ? p->elements - at : TOP_K_BLOCK;
            sum(w, 0, code->groups, 0, code_at, n, grads + p->offset + at);
            code_at += top_k_bytes(code->fraction, n);
        }
    }
}

static int reduce(struct engine_replica *r, struct residual_work *w, size_t end, struct err *err)
{
    struct comm *comm = r->engine->group.comm;
    float *grads = r->arenas->grads[0], *exchange = r->arenas->exchange;
    int rc = 0;

    if (comm != NULL) {
        rc = residual_exchange(r, residual_pack(w->layout, grads, end, exchange), err);
        if (rc == 0)
            rc = comm_all_gather(comm, r->local, slots_of(r), world_of(r) * w->slot, TENSOR_F32,
                                 err);
        if (rc < 0)
            return rc;
        residual_unpack(w->layout, exchange, end, grads);
    }
    decode(w, grads);
    return 0;
}

/* Each rank sends its slot to all other nodes. */
static double sent(const struct residual_work *w, uint32_t ranks_of_node, uint32_t n)
{
    return (double)(n - 1) * ranks_of_node * (double)w->slot;
}

const struct residual_code residual_top_k = { begin, take_group, reduce, sent };
