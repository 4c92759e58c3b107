/* spared.c - the all-reduce with spare lanes (spare_lanes.h), for ranks that are alone on their hosts.
 *
 *   1. a rank sends to every other rank that rank's segment of its lanes, and of its block if that is apart. The
 *      heads state how the sender contributes its block
 *   2. a helper sends its copy of a block whose rank does not contribute it, or wants it compared
 *   3. the owner of a segment compares copies, and adds up along the tree over lanes
 *   4. it sends the sum to all ranks
 *
 * A helper receives its first message from the rank that it helps. While that has not arrived, and everything
 * was sent, it may compute the copy: no other rank waits for it, only for the late one. */
#include "comm/comm_priv.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "comm/spare_lanes.h"

/* The vectors of a rank, in the order of the arena. */
enum vector { LANES, BLOCK, COPY, VECTORS };

struct entry { /* a source of the sum */
    uint32_t rank, first;
    bool is_block;
};

struct spared { /* of a rank */
    struct spare_lanes *lanes; /* owned [world] */
    struct entry *entries;     /* owned [2 * world] by first lane */
    uint32_t n_entries, n_lanes;
    const void **sources; /* owned [2 * world] */
    uint32_t *leaves;     /* owned [2 * world + 1] */
    /* A call. */
    uint8_t *states; /* owned [world] enum spare_state */
    bool *knows;     /* owned [world] the state is known */
    struct comm_spare *spare;
};

/* One call of one rank. */
struct work {
    struct comm *c;
    struct comm_rank *r;
    struct spared *q;
    uint8_t *data;
    size_t stride, element; /* bytes */
    uint32_t world, n_runs;
};

/* ---- opening ---- */

/* Every member has one rank, alone on its host. */
static bool are_alone(const struct comm_opts *o)
{
    for (uint32_t m = 0; m < o->view.n_members; m++) {
        const struct group_member *p = &o->view.members[m];

        if (p->n_devices != 1)
            return false;
        for (uint32_t k = 0; o->shared_memory && k < m; k++)
            if (strcmp(p->host_key, o->view.members[k].host_key) == 0)
                return false;
    }
    return o->view.n_members > 1;
}

/* All tasks of a group exchange lanes in this way, or none: the decision reads only what the layout digest of the
 * handshake contains. */
int spared_decide(struct comm *c, struct err *err)
{
    const struct comm_opts *o = &c->opts;

    if (!o->spares)
        return 0;
    if (o->groups > 0)
        return err_set(err, ERR_INPUT, "spare lanes are not possible with compression");
    if (!are_alone(o))
        c->no_spares = "several replicas are on one host";
    else if (!spare_lanes_exist(o->view.pieces, o->view.n_pieces, o->shares, o->view.n_members))
        c->no_spares = "each replica computes one lane";
    c->spares = c->no_spares == NULL;
    return 0;
}

static int by_lane(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

static void list_entries(struct spared *q, uint32_t world)
{
    for (uint32_t i = 0; i < world; i++) {
        const struct spare_lanes *l = &q->lanes[i];

        q->entries[q->n_entries++] = (struct entry){ i, l->first, false };
        if (l->n_block > 0)
            q->entries[q->n_entries++] = (struct entry){ i, l->block, true };
        q->n_lanes += l->n + l->n_block;
    }
    qsort(q->entries, q->n_entries, sizeof(*q->entries), by_lane);
}

int spared_make_rank(const struct comm *c, struct comm_rank *r)
{
    const struct comm_opts *o = &c->opts;
    uint32_t world = c->topo.world;
    struct spared *q;

    if (!c->spares)
        return 0;
    q = r->spared = calloc(1, sizeof(*q));
    if (q == NULL)
        return ERR_NOMEM;
    q->lanes = calloc(world, sizeof(*q->lanes));
    q->entries = calloc((size_t)2 * world, sizeof(*q->entries));
    q->sources = calloc((size_t)2 * world, sizeof(*q->sources));
    q->leaves = calloc((size_t)2 * world + 1, sizeof(*q->leaves));
    q->states = calloc(world, sizeof(*q->states));
    q->knows = calloc(world, sizeof(*q->knows));
    if (q->lanes == NULL || q->entries == NULL || q->sources == NULL || q->leaves == NULL ||
        q->states == NULL || q->knows == NULL)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < world; i++)
        q->lanes[i] = spare_lanes_of(o->view.pieces, o->view.n_pieces, o->shares, i);
    list_entries(q, world);
    return 0;
}

void spared_free_rank(struct comm_rank *r)
{
    struct spared *q = r->spared;

    if (q == NULL)
        return;
    free(q->lanes);
    free(q->entries);
    free(q->sources);
    free(q->leaves);
    free(q->states);
    free(q->knows);
    free(q);
    r->spared = NULL;
}

size_t spared_buffers(const struct comm *c)
{
    return c->spares ? (size_t)VECTORS * c->topo.world : 0;
}

bool comm_spares(const struct comm *c)
{
    return c->spares;
}

const char *comm_why_no_spares(const struct comm *c)
{
    return c->no_spares;
}

/* ---- offers ---- */

/* How comm_rank.offered states that the block of call `number` is offered. Never 0, which states that none is. */
static uint64_t offer_of(uint32_t number)
{
    return UINT64_C(1) << 32 | number;
}

int spared_receive_offer(struct comm *c, uint32_t member, uint64_t number)
{
    struct comm_rank *r = &c->ranks[0];

    if (!c->spares || c->topo.member_of[spare_helper(r->rank, c->topo.world)] != member)
        return comm_fail(c, ERR_PEER, member, "%s offered lanes to a member that it does not help",
                         c->names[member]);
    atomic_store_explicit(&r->offered, offer_of((uint32_t)number), memory_order_release);
    return 0;
}

bool comm_is_offered(const struct comm *c, uint32_t local)
{
    const struct comm_rank *r = &c->ranks[local];

    return c->spares &&
           atomic_load_explicit(&r->offered, memory_order_acquire) == offer_of(r->call.number + 1);
}

/* Nothing depends on the arrival of an offer: one that finds no room is dropped. */
static void send_offer(struct comm *c, struct comm_rank *r)
{
    uint32_t member = c->topo.member_of[spare_helped(r->rank, c->topo.world)];
    struct life_message m = { .what = LIFE_OFFER, .member = c->self, .bytes = r->call.number };
    uint8_t bytes[MESSAGE_LIFE_BYTES + MESSAGE_CODE_BYTES];

    message_life_write(&m, bytes);
    for (uint32_t i = 0; i < c->watch.n_lives; i++) {
        struct comm_life *l = &c->watch.lives[i];
        size_t n = MESSAGE_LIFE_BYTES;
        ssize_t sent;

        if (l->member != member || l->fd < 0)
            continue;
        if (l->has_code) {
            message_life_code(bytes, c->self, l->key, bytes + n);
            n += MESSAGE_CODE_BYTES;
        }
        sent = send(l->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0 && (size_t)sent < n) /* the next message would be read as the rest of this one */
            (void)comm_fail(c, ERR_PEER, member, "the life line to %s has no room for a message",
                            c->names[member]);
    }
}

bool comm_is_late(struct comm *c, uint32_t local)
{
    struct comm_rank *r = &c->ranks[local];
    uint32_t helped = spare_helped(r->rank, c->topo.world);
    struct pollfd p = { .fd = -1, .events = POLLIN };

    for (uint32_t i = 0; i < r->n_links; i++)
        if (r->links[i].peer == helped)
            p.fd = r->links[i].fd;
    comm_waits(c, true); /* again: this rank still waits */
    return !comm_has_failed(c) && clock_ns() < r->deadline_ns && poll(&p, 1, 0) == 0;
}

/* Called once, when the first message is late and all was sent. */
static int help(struct comm *c, struct comm_rank *r)
{
    struct comm_spare *s = r->spared->spare;

    if (!s->help(s->arg) || comm_has_failed(c))
        return comm_has_failed(c) ? -1 : 0;
    s->has_offered = true;
    (void)fault_hit("comm.offer"); /* a test kills the process here */
    send_offer(c, r);
    (void)fault_hit("comm.offered"); /* likewise */
    return comm_has_failed(c) ? -1 : 0;
}

/* ---- states ---- */

static int learn(struct comm *c, struct comm_rank *r, uint32_t rank, uint8_t state)
{
    struct spared *q = r->spared;
    bool is_helped = spare_helped(r->rank, c->topo.world) == rank;

    if (q->knows[rank] && q->states[rank] == state)
        return 0;
    if (q->knows[rank] || (state != SPARE_OWN && q->lanes[rank].n_block == 0) ||
        (state != SPARE_OWN && is_helped && !q->spare->has_offered))
        return comm_fail(c, ERR_PEER, c->topo.member_of[rank],
                         "%s sent state %u of its spare block, which is not possible in %s",
                         comm_rank_text(c, rank).text, state, comm_call_text(&r->call).text);
    q->knows[rank] = true;
    q->states[rank] = state;
    return 0;
}

/* Whether a rank sends a vector. The states of all ranks are known, or its own is, and the vector is not
 * COPY. */
static bool sends(const struct work *w, uint32_t rank, enum vector v)
{
    const struct spared *q = w->q;

    if (v == LANES)
        return true;
    if (v == COPY)
        return q->states[spare_helped(rank, w->world)] != SPARE_OWN;
    return q->lanes[rank].n_block > 0 && (q->states[rank] == SPARE_APART ||
                                          (q->states[rank] == SPARE_OWN && !q->lanes[rank].joins));
}

/* ---- parts of the vector ---- */

static struct comm_range segment(const struct work *w, uint32_t rank)
{
    return schedule_part(w->world, rank, w->r->call.count);
}

/* The part of a segment that is stored at a time, `at` elements after its begin. */
static struct comm_range part_of(const struct work *w, uint32_t rank, size_t at)
{
    return schedule_some(segment(w, rank), at, COMM_ASIDE_BYTES / w->element);
}

static size_t bytes_of(const struct work *w, struct comm_range x)
{
    return (x.end - x.begin) * w->element;
}

static uint8_t *own(const struct work *w, enum vector v, size_t element)
{
    return w->data + v * w->stride + element * w->element;
}

static uint8_t *aside(const struct work *w, uint32_t rank, enum vector v)
{
    return w->r->aside + ((size_t)rank * VECTORS + v) * COMM_ASIDE_BYTES;
}

/* ---- the exchange ---- */

static int exchange(struct work *w, const struct schedule_step *step, enum vector v, size_t at,
                    bool may_help)
{
    struct comm_range send = part_of(w, step->to, at), recv = part_of(w, w->r->rank, at);
    uint64_t tag = (uint64_t)w->n_runs << 32 | v;
    struct exchange x = { .to = SCHEDULE_NONE,
                          .from = SCHEDULE_NONE,
                          .send_tag = tag,
                          .recv_tag = tag,
                          .learn = learn };

    if (sends(w, w->r->rank, v)) {
        x.to = step->to;
        x.send = own(w, v, send.begin);
        x.send_bytes = bytes_of(w, send);
    }
    if (sends(w, step->from, v)) {
        x.from = step->from;
        x.recv = aside(w, step->from, v);
        x.recv_bytes = bytes_of(w, recv);
    }
    if (may_help && w->q->spare->help != NULL) {
        x.idle = help;
        x.idle_ns = w->q->spare->patience_ns;
    }
    return x.to == SCHEDULE_NONE && x.from == SCHEDULE_NONE ? 0 : tcp_exchange(w->c, w->r, &x);
}

static struct schedule schedule_for(const struct work *w, enum schedule_what what)
{
    return (struct schedule){ .what = what,
                              .direct = true,
                              .n_nodes = w->world,
                              .self = w->r->rank,
                              .n_segments = w->world };
}

/* A test of the comparison: makes a copy wrong that is compared, but none that is contributed. */
static void flip_copy(const struct work *w)
{
    uint8_t state = w->q->states[spare_helped(w->r->rank, w->world)];

    if (state == SPARE_APART && fault_hit("health.flip_spare"))
        *own(w, COPY, 0) ^= 1;
}

static int scatter(struct work *w, size_t at)
{
    struct schedule s = schedule_for(w, SCHEDULE_REDUCE_SCATTER);

    for (uint32_t k = 0; k < schedule_steps(&s); k++) {
        struct schedule_step step = schedule_step(&s, k);

        if (exchange(w, &step, LANES, at, k == 0 && at == 0) < 0 ||
            exchange(w, &step, BLOCK, at, false) < 0)
            return -1;
    }
    if (at == 0)
        flip_copy(w);
    for (uint32_t k = 0; k < schedule_steps(&s); k++) {
        struct schedule_step step = schedule_step(&s, k);

        if (exchange(w, &step, COPY, at, false) < 0)
            return -1;
    }
    w->n_runs++;
    return 0;
}

/* Returns the own part of a vector that a rank has sent. */
static const uint8_t *received(const struct work *w, uint32_t rank, enum vector v,
                               struct comm_range x)
{
    return rank == w->r->rank ? own(w, v, x.begin) : aside(w, rank, v);
}

static int compare(struct work *w, uint32_t rank, const uint8_t *block, const uint8_t *copy,
                   struct comm_range x)
{
    const struct spare_lanes *l = &w->q->lanes[rank];
    uint32_t helper = spare_helper(rank, w->world);

    if (memcmp(block, copy, bytes_of(w, x)) == 0)
        return 0;
    w->q->spare->n_wrong = l->n_block;
    return comm_fail(w->c, ERR_PEER, COMM_NO_MEMBER,
                     "%s and %s computed different gradients of lanes %u to %u: a processor or memory "
                     "of one of them is faulty. The step is not applied",
                     w->c->names[w->c->topo.member_of[rank]],
                     w->c->names[w->c->topo.member_of[helper]], l->block, l->block + l->n_block - 1);
}

/* Compares and adds up the own part. */
static int add(struct work *w, size_t at)
{
    struct comm_range x = part_of(w, w->r->rank, at);
    struct spared *q = w->q;
    void *to = own(w, LANES, x.begin);
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->n_entries; i++) {
        const struct entry *e = &q->entries[i];
        const uint8_t *block = received(w, e->rank, BLOCK, x);
        const uint8_t *copy = received(w, spare_helper(e->rank, w->world), COPY, x);
        uint8_t state = q->states[e->rank];

        if (e->is_block && state == SPARE_OWN && q->lanes[e->rank].joins)
            continue; /* contained in the other entry of the rank */
        if (e->is_block && state == SPARE_APART && compare(w, e->rank, block, copy, x) < 0)
            return -1;
        q->leaves[n] = e->first;
        q->sources[n++] = !e->is_block           ? received(w, e->rank, LANES, x)
                          : state == SPARE_GIVEN ? copy
                                                 : block;
    }
    q->leaves[n] = q->n_lanes;
    if (x.begin < x.end)
        reduce(&to, 1, q->sources, n, q->leaves, x.end - x.begin,
               (enum tensor_dtype)w->r->call.dtype, COMM_SUM);
    return 0;
}

static int gather(struct work *w)
{
    struct schedule s = schedule_for(w, SCHEDULE_ALL_GATHER);
    struct comm_range send = segment(w, w->r->rank);

    for (uint32_t k = 0; k < schedule_steps(&s); k++) {
        struct schedule_step step = schedule_step(&s, k);
        struct comm_range recv = segment(w, step.from);
        struct exchange x = { .to = step.to,
                              .from = step.from,
                              .send_tag = (uint64_t)w->n_runs << 32,
                              .recv_tag = (uint64_t)w->n_runs << 32,
                              .send = own(w, LANES, send.begin),
                              .send_bytes = bytes_of(w, send),
                              .recv = own(w, LANES, recv.begin),
                              .recv_bytes = bytes_of(w, recv),
                              .learn = learn };

        if (tcp_exchange(w->c, w->r, &x) < 0)
            return -1;
    }
    return 0;
}

void spared_set(struct comm_rank *r, struct comm_spare *spare)
{
    spare->has_offered = spare->is_used = spare->is_compared = false;
    spare->n_wrong = 0;
    r->spared->spare = spare;
}

int spared_all_reduce(struct comm *c, struct comm_rank *r, void *data)
{
    struct spared *q = r->spared;
    struct work w = { .c = c,
                      .r = r,
                      .q = q,
                      .data = data,
                      .stride = (size_t)r->call.stride * COMM_STRIDE_UNIT,
                      .element = comm_call_element(&r->call),
                      .world = c->topo.world };
    size_t step = COMM_ASIDE_BYTES / w.element, longest = 0;
    uint32_t helped = spare_helped(r->rank, w.world);

    memset(q->states, SPARE_OWN, w.world);
    memset(q->knows, 0, w.world * sizeof(*q->knows));
    q->states[r->rank] = r->call.spare;
    q->knows[r->rank] = true;
    for (uint32_t i = 0; i < w.world; i++) {
        struct comm_range x = segment(&w, i);

        longest = x.end - x.begin > longest ? x.end - x.begin : longest;
    }
    for (size_t at = 0; at < longest; at += step)
        if (scatter(&w, at) < 0 || add(&w, at) < 0)
            return -1;
    if (gather(&w) < 0)
        return -1;
    q->spare->is_used = q->states[helped] == SPARE_GIVEN;
    q->spare->is_compared = q->states[helped] == SPARE_APART;
    return 0;
}
