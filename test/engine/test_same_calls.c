/* test_same_calls.c - all ranks of a group make the same collective calls, with the same steps, in the same order.
 *
 * A random view has shares or pieces of lanes (micro-batches), locations, hosts that share memory, spare lanes or
 * codes. Each member opens its communicator and its engine and decides from the view alone. Then each rank makes
 * the calls of a step with the code of the product, one rank after the other: the functions below take the place
 * of link_tcp.c and link_shm.c, and record what the rank would send, receive and wait for. At the end the records
 * are played against each other: each message must be the one that its receiver expects, and every rank must reach
 * its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/group_view.h"
#include "base/lane_tree.h"
#include "base/rng.h"
#include "code/map.h"
#include "comm/comm.h"
#include "comm/comm_priv.h"
#include "comm/pieces.h"
#include "comm/schedule.h"
#include "comm/spare_lanes.h"
#include "engine/cpu_reduce.h"
#include "engine/cpu_spare.h"
#include "engine/cpu_types.h"
#include "engine/engine.h"
#include "train/division.h"

enum {
    VIEWS = 1500,
    MEMBERS = 6,
    DEVICES = 3,
    WORLD = MEMBERS * DEVICES,
    LANES = 64,
    OPS = 1 << 12,
    FLOATS = 40064, /* of the longest vector: several parts that are stored aside */
    ARENAS = 12,
};

/* ---- what a rank does ---- */

struct op {
    bool is_meeting;       /* of the ranks [first, first + n) of a host; else an exchange */
    uint32_t first, n;
    uint32_t to, from;     /* SCHEDULE_NONE after the transfer */
    uint64_t send_tag, recv_tag;
    size_t send_bytes, recv_bytes;
    struct comm_call call;
};

static struct record {
    struct op ops[OPS];
    uint32_t n, at;
} *records; /* [WORLD] */

static enum spare_state states[WORLD]; /* of the spare block of each rank in a call with spare lanes */
static uint8_t *scratch;               /* vectors of the other ranks of a host */

static struct op *add_op(const struct comm_rank *r)
{
    struct record *record = &records[r->rank];

    assert_true(record->n < OPS);
    record->ops[record->n] = (struct op){ .to = SCHEDULE_NONE, .from = SCHEDULE_NONE, .call = r->call };
    return &record->ops[record->n++];
}

int tcp_exchange(struct comm *c, struct comm_rank *r, const struct exchange *x)
{
    struct op *o = add_op(r);

    o->to = x->to;
    o->from = x->from;
    o->send_tag = x->send_tag;
    o->recv_tag = x->recv_tag;
    o->send_bytes = x->to != SCHEDULE_NONE ? x->send_bytes : 0;
    o->recv_bytes = x->from != SCHEDULE_NONE ? x->recv_bytes : 0;
    if (x->idle != NULL && states[x->from] != SPARE_OWN && x->idle(c, r) < 0)
        return -1;
    if (x->from == SCHEDULE_NONE)
        return 0;
    if (x->recv_bytes > 0) /* a barrier receives into NULL */
        memset(x->recv, 0, x->recv_bytes);
    return x->learn != NULL ? x->learn(c, r, x->from, (uint8_t)states[x->from]) : 0;
}

void tcp_tune(int fd, bool is_settled)
{
    (void)fd;
    (void)is_settled;
}

int host_barrier(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n)
{
    struct op *o;

    (void)c;
    if (n == 1)
        return 0;
    o = add_op(r);
    o->is_meeting = true;
    o->first = first;
    o->n = n;
    return 0;
}

int host_enter(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n)
{
    return host_barrier(c, r, first, n);
}

int host_check(struct comm *c)
{
    (void)c;
    return 0;
}

void *host_piece(struct comm *c, struct comm_rank *r, uint32_t rank, bool is_second, size_t bytes)
{
    (void)c;
    (void)r;
    (void)rank;
    (void)is_second;
    assert_true(bytes <= FLOATS * sizeof(double));
    return scratch;
}

void *host_data(struct comm *c, struct comm_rank *r, uint32_t rank, size_t bytes)
{
    return host_piece(c, r, rank, false, bytes);
}

void *host_small(struct comm *c, const struct comm_rank *r, uint32_t rank)
{
    (void)c;
    (void)r;
    (void)rank;
    return scratch;
}

void host_leave(struct comm *c)
{
    (void)c;
}

void host_reset_part(struct comm *c, const struct comm_rank *r)
{
    (void)c;
    (void)r;
}

/* ---- the records of all ranks, played against each other ---- */

static struct op *present(uint32_t rank)
{
    struct record *record = &records[rank];

    return record->at < record->n ? &record->ops[record->at] : NULL;
}

static bool meet(uint32_t rank, const struct op *o)
{
    for (uint32_t i = o->first; i < o->first + o->n; i++) {
        const struct op *other = present(i);

        if (other == NULL || !other->is_meeting)
            return false;
        if (other->first != o->first || other->n != o->n || !comm_call_same(&other->call, &o->call))
            fail_msg("rank %u waits at %s, but rank %u at %s", rank, comm_call_text(&o->call).text,
                     i, comm_call_text(&other->call).text);
    }
    for (uint32_t i = o->first; i < o->first + o->n; i++)
        records[i].at++;
    return true;
}

static bool transfer(uint32_t rank, struct op *o)
{
    struct op *other = o->to != SCHEDULE_NONE ? present(o->to) : NULL;

    if (other == NULL || other->is_meeting || other->from != rank)
        return false;
    if (other->recv_tag != o->send_tag || other->recv_bytes != o->send_bytes ||
        !comm_call_same(&other->call, &o->call))
        fail_msg(
            "rank %u sends part 0x%llx of %zu bytes of %s, but rank %u expects 0x%llx of %zu of %s",
            rank, (unsigned long long)o->send_tag, o->send_bytes, comm_call_text(&o->call).text,
            o->to, (unsigned long long)other->recv_tag, other->recv_bytes,
            comm_call_text(&other->call).text);
    other->from = SCHEDULE_NONE;
    o->to = SCHEDULE_NONE;
    return true;
}

/* Each message waits until its receiver expects it: no buffer is necessary. */
static void play(uint32_t world)
{
    bool moves = true;

    while (moves) {
        moves = false;
        for (uint32_t rank = 0; rank < world; rank++) {
            struct op *o = present(rank);

            if (o == NULL)
                continue;
            moves |= o->is_meeting ? meet(rank, o) : transfer(rank, o);
            if (!o->is_meeting && o->to == SCHEDULE_NONE && o->from == SCHEDULE_NONE) {
                records[rank].at++;
                moves = true;
            }
        }
    }
    for (uint32_t rank = 0; rank < world; rank++)
        if (present(rank) != NULL)
            fail_msg("rank %u waits for ever in %s", rank,
                     comm_call_text(&present(rank)->call).text);
}

/* ---- a random group ---- */

static struct rng_key key = { .seed = 31 };
static uint64_t n_drawn;

static uint32_t draw(uint32_t n)
{
    return rng_u32(&key, n_drawn++) % n;
}

struct group {
    struct group_member members[MEMBERS];
    char hosts[MEMBERS][4], locations[MEMBERS][16];
    struct group_piece pieces[PIECES_PER_RANK * WORLD];
    struct group_view view;
    uint32_t world, lanes, groups, coordinator;
    bool shared_memory;
    struct engine_opts opts;
    struct memory memory;
    enum code_kind code; /* groups > 0 */
};

/* One task of the group. */
struct task {
    struct comm *c;
    struct engine engine;
    struct engine_replica replicas[DEVICES], *of[DEVICES];
    struct cpu cpus[DEVICES];
    struct arenas arenas[DEVICES];
    uint32_t shares[WORLD];
};

static struct comm_listener *listener;
static size_t no_floats;
static struct host_page page; /* of every host */
static float *memory;         /* [ARENAS][FLOATS] the gradients of every replica */

static void on_note(void *arg, bool is_warning, const char *text)
{
    (void)arg;
    (void)is_warning;
    (void)text;
}

/* A task with a log of samples does not compute lanes of another one, for which it would need a plan. */
static void on_lane(void *arg, uint32_t local, const struct data_batch *b)
{
    (void)arg;
    (void)local;
    (void)b;
}

static void draw_members(struct group *g)
{
    bool alone = draw(2) == 0, apart = draw(2) == 0, located = draw(2) == 0;

    g->view = (struct group_view){ .generation = 1, .n_members = 2 + draw(MEMBERS - 1) };
    g->shared_memory = draw(4) > 0;
    for (uint32_t m = 0; m < g->view.n_members; m++) {
        uint32_t host = apart ? m : draw(3);

        snprintf(g->hosts[m], sizeof(g->hosts[m]), "h%u", host);
        if (located)
            snprintf(g->locations[m], sizeof(g->locations[m]), "r%u/h%u", host / 2, host);
        g->members[m] = (struct group_member){ .name = "worker",
                                               .host_key = g->hosts[m],
                                               .data_address = "127.0.0.1:1",
                                               .location = g->locations[m],
                                               .n_devices = alone ? 1 : 1 + draw(DEVICES) };
        g->world += g->members[m].n_devices;
    }
    g->view.members = g->members;
}

/* The lanes of some ranks move to others, or all keep their shares. */
static void draw_pieces(struct group *g, uint32_t most)
{
    double seconds[WORLD];

    for (uint32_t r = 0; r < g->world; r++)
        seconds[r] = 1 + (double)draw(6);
    if (draw(3) > 0)
        g->view.n_pieces = pieces_plan(seconds, g->world, g->lanes, most, g->pieces);
    g->view.pieces = g->view.n_pieces > 0 ? g->pieces : NULL;
}

static void draw_group(struct group *g, uint32_t i)
{
    static const enum train_spare spares[] = { SPARE_OFF, SPARE_AUTO, SPARE_ALWAYS };
    static const enum engine_overlap overlaps[] = { ENGINE_OVERLAP_AUTO, ENGINE_OVERLAP_NEVER,
                                                    ENGINE_OVERLAP_ALWAYS };
    size_t floats;

    memset(g, 0, sizeof(*g));
    key.step = i;
    n_drawn = 0;
    draw_members(g);
    g->lanes = g->world + draw(LANES - g->world + 1);
    if (draw(4) == 0) {
        for (g->lanes = 1; g->lanes < g->world || draw(2) == 0;)
            g->lanes *= 2;
        g->groups = 1u << draw(3);
        g->groups = g->groups < g->lanes ? g->groups : g->lanes;
        g->code = (enum code_kind)(1 + draw(CODE_KINDS - 1));
    } else {
        draw_pieces(g, 32);
    }
    g->coordinator = draw(g->view.n_members);
    floats = draw(5) == 0 ? FLOATS - 64 : 16 + draw(2000);
    g->opts = (struct engine_opts){ .lanes = g->lanes,
                                    .bucket_bytes = draw(2) == 0 ? 1024 : 0,
                                    .overlap = overlaps[draw(3)],
                                    .spare = g->groups > 0 ? SPARE_OFF : spares[draw(3)],
                                    .on_note = on_note,
                                    .on_lane = on_lane };
    g->memory = (struct memory){ .dense = floats - 10,
                                 .trained = floats - 10,
                                 .grads = floats,
                                 .grads_bytes = FLOATS * sizeof(float),
                                 .depth = ARENAS };
}

/* ---- the decisions and calls of a task ---- */

static void open_replica(struct task *t, struct group *g, uint32_t local)
{
    struct engine_replica *r = &t->replicas[local];
    const struct group_view *v = t->engine.group.view;

    *r = (struct engine_replica){
        .engine = &t->engine, .local = local, .arenas = &t->arenas[local], .device = &t->cpus[local]
    };
    for (uint32_t i = 0; i < ARENAS; i++) {
        t->arenas[local].grads[i] = memory + i * FLOATS;
        t->arenas[local].rows[i].first = &no_floats; /* there are no tables */
    }
    division_place(v, t->shares, comm_first_rank(t->c) + local, r);
    division_place_spare(v, t->shares, g->world, r);
}

static void open_task(struct task *t, struct group *g, struct group_view *view, uint32_t self)
{
    static const struct lane_tree plain;
    struct comm_opts o = { .view = g->view,
                           .groups = g->groups,
                           .listener = listener,
                           .shared_memory = g->shared_memory,
                           .deadline_ms = 60000 };
    struct err err;

    memset(t, 0, sizeof(*t));
    *view = g->view;
    view->self = o.view.self = self;
    t->engine = (struct engine){ .opts = &g->opts, .memory = g->memory, .replicas = t->of };
    spare_open(&t->engine, reduce_buckets(&t->engine) > 1);
    comm_share_view(&plain, g->lanes, &g->view, t->shares);
    o.spares = t->engine.spares;
    o.shares = g->view.n_pieces == 0 ? t->shares : NULL;
    if (comm_open(&o, &t->c, &err) < 0)
        fail_msg("%s", err.text);
    t->c->failure.is_connecting = false;
    t->c->failure.is_connected = true;
    t->c->shm.page = &page;
    t->c->shm.memory[self].bytes = SIZE_MAX;
    t->engine.group = (struct engine_group){ .comm = t->c, .view = view, .shares = t->shares, .lanes = g->lanes };
    for (uint32_t i = 0; i < g->members[self].n_devices; i++) {
        t->of[i] = &t->replicas[i];
        open_replica(t, g, i);
    }
}

static void close_task(struct task *t)
{
    t->c->shm.page = NULL;
    comm_close(t->c);
}

/* The gradients of a step, by the code of the engine. */
static void reduce_gradients(struct task *t, struct group *g, uint32_t local)
{
    struct engine_replica *r = t->of[local];
    struct err err;

    if (reduce_open(r, &err) < 0)
        fail_msg("%s", err.text);
    reduce_begin(r, 1);
    if (t->engine.group.overlap) {
        reduce_ready(r, 0, g->memory.dense / 2);
        reduce_ready(r, 0, g->memory.dense);
    }
    if (reduce_rest(r, &err) < 0)
        fail_msg("%s", err.text);
    reduce_close(r);
}

static void reduce_coded(struct task *t, struct group *g, uint32_t local)
{
    const uint8_t *codes[64];
    struct comm_coding coding = { .codes = codes };
    struct code_map map;
    struct err err;

    if (code_map_open(&map, g->code, g->memory.grads, &err) < 0)
        fail_msg("%s", err.text);
    code_map_index(&map);
    coding.map = &map;
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        codes[i] = scratch;
    if (comm_all_reduce_coded(t->c, local, memory, g->memory.grads, &coding, &err) < 0)
        fail_msg("%s", err.text);
    code_map_close(&map);
}

static bool offer(void *arg)
{
    (void)arg;
    return true;
}

/* An exchange in which some ranks are late. */
static void reduce_spared(struct task *t, struct group *g, uint32_t local)
{
    uint32_t rank = comm_first_rank(t->c) + local;
    struct comm_spare spare = { .state = states[rank], .help = offer };
    struct err err;

    if (comm_all_reduce_spared(t->c, local, memory, FLOATS * sizeof(float), g->memory.grads,
                               TENSOR_F32, &spare, &err) < 0)
        fail_msg("%s", err.text);
}

static void other_calls(struct task *t, struct group *g, uint32_t local)
{
    struct err err;
    int rc =
        comm_all_reduce_pieces(t->c, local, memory, FLOATS * sizeof(float), 9, TENSOR_F64, &err);

    if (rc == 0)
        rc = comm_all_reduce(t->c, local, memory, 700, TENSOR_I64, COMM_MAX, &err);
    if (rc == 0)
        rc = comm_broadcast(t->c, local, memory, g->memory.grads, g->world - 1, &err);
    if (rc == 0 && comm_has_slices(t->c))
        rc = comm_all_gather(t->c, local, memory, g->memory.grads, TENSOR_F32, &err);
    if (rc == 0 && comm_has_slices(t->c))
        rc = comm_reduce_scatter(t->c, local, memory, g->memory.grads, TENSOR_F32, COMM_SUM, &err);
    if (rc == 0)
        rc = comm_barrier(t->c, local, &err);
    if (rc < 0)
        fail_msg("%s", err.text);
}

static void draw_states(const struct group *g, const struct task *t)
{
    for (uint32_t r = 0; r < g->world; r++)
        states[r] = spare_lanes_of(g->view.pieces, g->view.n_pieces,
                                   g->view.n_pieces == 0 ? t->shares : NULL, r)
                                .n_block > 0
                        ? (enum spare_state)draw(3)
                        : SPARE_OWN;
}

enum { ONE_LANE = 1, SPARES = 2, CODES = 4, TIERS = 8, PIECES = 16, OVERLAPS = 32, ALL = 63 };

/* What the view has shown: the test must contain each of these. */
static unsigned features_of(const struct group *g, const struct task *t)
{
    const struct engine *e = &t->engine;
    unsigned found = (spare_is_on(e) ? SPARES : 0u) | (g->groups > 0 ? CODES : 0u) |
                     (t->c->tiers.n_groups > 0 ? TIERS : 0u) |
                     (g->view.n_pieces > 0 ? PIECES : 0u) | (e->group.overlap ? OVERLAPS : 0u);

    /* the rank of this task has no part in the spare lanes of the others */
    if (spare_is_on(e) && t->replicas[0].n_block == 0 && t->replicas[0].n_helped == 0)
        found |= ONE_LANE;
    return found;
}

static unsigned play_group(struct group *g)
{
    static struct task tasks[MEMBERS];
    struct group_view views[MEMBERS];
    const struct task *lead = &tasks[g->coordinator];
    unsigned found = 0;

    for (uint32_t m = 0; m < g->view.n_members; m++)
        open_task(&tasks[m], g, &views[m], m);
    for (uint32_t r = 0; r < g->world; r++)
        records[r].n = records[r].at = 0;
    for (uint32_t m = 0; m < g->view.n_members; m++) {
        struct task *t = &tasks[m];

        assert_int_equal(reduce_overlaps(&t->engine), reduce_overlaps(&lead->engine));
        assert_int_equal(reduce_buckets(&t->engine), reduce_buckets(&lead->engine));
        assert_string_equal(comm_describe(t->c), comm_describe(lead->c));
        memset(states, 0, sizeof(states));
        t->engine.group.overlap = g->groups == 0 && reduce_overlaps(&lead->engine);
        assert_int_equal(spare_is_on(&t->engine), comm_spares(lead->c) && !t->engine.group.overlap);
        for (uint32_t i = 0; i < g->members[m].n_devices; i++) {
            if (g->groups > 0)
                reduce_coded(t, g, i);
            else
                reduce_gradients(t, g, i);
            other_calls(t, g, i);
        }
        found |= features_of(g, t);
    }
    draw_states(g, lead);
    for (uint32_t m = 0; m < g->view.n_members && comm_spares(lead->c); m++)
        reduce_spared(&tasks[m], g, 0);
    play(g->world);
    for (uint32_t m = 0; m < g->view.n_members; m++)
        close_task(&tasks[m]);
    return found;
}

static void ranks_of_a_random_view_make_calls_that_match(void **state)
{
    struct group g;
    unsigned found = 0;
    struct err err;

    (void)state;
    records = calloc(WORLD, sizeof(*records));
    scratch = calloc(FLOATS, sizeof(double));
    memory = aligned_alloc(64, (size_t)ARENAS * FLOATS * sizeof(float));
    assert_true(records != NULL && scratch != NULL && memory != NULL);
    memset(memory, 0, (size_t)ARENAS * FLOATS * sizeof(float));
    if (comm_listener_open("127.0.0.1", 0, 0, NULL, &listener, &err) < 0)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < VIEWS; i++) {
        draw_group(&g, i);
        found |= play_group(&g);
    }
    assert_int_equal(found, ALL);
    comm_listener_close(listener);
    free(memory);
    free(scratch);
    free(records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_random_view_make_calls_that_match),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
