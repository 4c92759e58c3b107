/* comm.c - opening, closing, and the entry points. */
#include "comm/comm.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "code/map.h"
#include "comm/comm_priv.h"
#include "comm/maps.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "tls/tls.h"

enum {
    DEADLINE_MS_MAX = 1000000000, /* eleven days: sums with the clock do not overflow */
    /* mapped arenas that are unused after this many failed connects are unmapped */
    TRIES_KEPT = 3,
};

/* ---- opening and closing ---- */

static int copy_names(struct comm *c, const struct comm_opts *o)
{
    c->names = calloc(o->view.n_members, sizeof(*c->names));
    for (uint32_t m = 0; c->names != NULL && m < o->view.n_members; m++) {
        c->names[m] = strdup(o->view.members[m].name);
        if (c->names[m] == NULL)
            return ERR_NOMEM;
    }
    return c->names != NULL ? 0 : ERR_NOMEM;
}

static int make_rank(struct comm *c, uint32_t local)
{
    struct comm_rank *r = &c->ranks[local];
    const struct topology *t = &c->topo;
    uint32_t *peers = calloc(t->n_nodes, sizeof(*peers)), ranks, sources;

    if (peers == NULL)
        return ERR_NOMEM;
    r->rank = c->first_rank + local;
    r->node = t->node_of[r->rank];
    r->index = r->rank - t->node_first[r->node];
    r->n_links = topology_peers(t, r->rank, peers);
    r->links = calloc((size_t)r->n_links + 1, sizeof(*r->links));
    for (uint32_t k = 0; r->links != NULL && k < r->n_links; k++)
        r->links[k] = (struct comm_link){ .fd = -1, .peer = peers[k] };
    free(peers);
    ranks = topology_node_ranks(t, r->node);
    sources = ranks > t->n_nodes ? ranks : t->n_nodes;
    r->sources = calloc(sources, sizeof(*r->sources));
    r->targets = calloc(ranks, sizeof(*r->targets));
    r->waits = calloc(t->n_members, sizeof(*r->waits));
    if (r->links == NULL || r->sources == NULL || r->targets == NULL || r->waits == NULL)
        return ERR_NOMEM;
    if (coded_make_rank(c, r) < 0 || pieced_make_rank(c, r) < 0 || spared_make_rank(c, r) < 0)
        return ERR_NOMEM;
    if (r->n_links == 0)
        return 0;
    r->scratch = aligned_alloc(64, COMM_PIECE_BYTES);
    sources = t->n_nodes > c->pieces.n_roots ? t->n_nodes : c->pieces.n_roots;
    sources = sources > c->tiers.n_buffers ? sources : c->tiers.n_buffers;
    sources = sources > spared_buffers(c) ? sources : (uint32_t)spared_buffers(c);
    if (t->kind == TOPOLOGY_DIRECT)
        r->aside = aligned_alloc(64, (size_t)sources * COMM_ASIDE_BYTES);
    return r->scratch != NULL && (r->aside != NULL || t->kind != TOPOLOGY_DIRECT) ? 0 : ERR_NOMEM;
}

static int make_slots(struct comm *c)
{
    const struct topology *t = &c->topo;

    c->shm.memory = calloc(t->n_members, sizeof(*c->shm.memory));
    c->shm.slot_of = calloc(t->world, sizeof(*c->shm.slot_of));
    if (c->shm.memory == NULL || c->shm.slot_of == NULL)
        return ERR_NOMEM;
    for (uint32_t r = 0; r < t->world; r++)
        if (t->host_of[t->member_of[r]] == c->host)
            c->shm.slot_of[r] = c->shm.n_ranks++;
    c->shm.n_slots = 2 * c->shm.n_ranks;
    return 0;
}

/* Makes a life line for every member of another host, or ps, with a shared link, and a star on this
 * host. */
static int make_lives(struct comm *c)
{
    const struct topology *t = &c->topo;
    uint32_t leader = t->leader_of[c->host];
    bool *linked = calloc(t->n_members, sizeof(*linked));

    c->watch.lives = calloc((size_t)t->n_members * 2, sizeof(*c->watch.lives));
    c->watch.polls = calloc((size_t)t->n_members * 2 + 1, sizeof(*c->watch.polls));
    for (uint32_t i = 0; linked != NULL && i < c->n_ranks + c->n_ends; i++) {
        uint32_t n;
        const struct comm_link *links = comm_links(c, i, &n);

        for (uint32_t k = 0; k < n; k++)
            linked[t->member_of[links[k].peer]] = true;
    }
    for (uint32_t m = 0; linked != NULL && c->watch.lives != NULL && m < t->n_members; m++) {
        if (m == c->self)
            continue;
        if (t->host_of[m] != c->host && linked[m])
            life_add(c, -1, m, LIFE_LINE);
        else if (t->host_of[m] == c->host && (m == leader || c->self == leader))
            life_add(c, -1, m, LIFE_STAR);
    }
    free(linked);
    return linked != NULL && c->watch.lives != NULL && c->watch.polls != NULL ? 0 : ERR_NOMEM;
}

static void describe(struct comm *c)
{
    size_t n = strlen(topology_describe(&c->topo, c->text, sizeof(c->text)));

    char groups[96];

    if (c->tiers.n_groups > 0)
        snprintf(c->text + n, sizeof(c->text) - n, "; %s",
                 tiers_describe(&c->tiers, groups, sizeof(groups)));
}

static int make(struct comm *c, struct err *err)
{
    const struct comm_opts *o = &c->opts;
    int rc = spared_decide(c, err);

    if (rc == 0)
        rc =
            topology_init(&c->topo, o->view.members, o->view.n_members, o->shares, o->shared_memory,
                          o->view.n_pieces > 0         ? TOPOLOGY_HOSTS
                          : o->groups > 0 || c->spares ? TOPOLOGY_LINKED
                                                       : TOPOLOGY_FASTEST,
                          err);
    if (rc == 0)
        rc = pieced_make(c, err);
    if (rc == 0 && o->groups == 0)
        rc = tiers_init(&c->tiers, &c->topo, o->view.members, err);
    if (rc < 0)
        return rc;
    rc = coded_make(c, err);
    if (rc < 0)
        return rc;
    c->host = c->topo.host_of[c->self];
    c->first_rank = c->topo.first_rank[c->self];
    c->n_ranks = o->view.members[c->self].n_devices;
    describe(c);
    /* one more than needed, because a ps has no ranks */
    c->ranks = aligned_alloc(64, (c->n_ranks + (size_t)1) * sizeof(*c->ranks));
    rc = c->ranks != NULL ? copy_names(c, o) : ERR_NOMEM;
    if (c->ranks != NULL)
        memset(c->ranks, 0, (c->n_ranks + (size_t)1) * sizeof(*c->ranks));
    for (uint32_t i = 0; i < c->n_ranks && rc == 0; i++)
        rc = make_rank(c, i);
    if (rc == 0)
        rc = channels_make(c);
    if (rc == 0)
        rc = make_slots(c);
    if (rc == 0)
        rc = make_lives(c);
    if (rc < 0)
        return err_set(err, ERR_NOMEM, "out of memory");
    c->watch.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return c->watch.wake_fd >= 0 ? 0 : err_sys(err, errno, "make an eventfd");
}

static void destroy(struct comm *c)
{
    host_close(c);
    channels_free(c);
    for (uint32_t i = 0; c->ranks != NULL && i < c->n_ranks; i++) {
        for (uint32_t k = 0; c->ranks[i].links != NULL && k < c->ranks[i].n_links; k++)
            if (c->ranks[i].links[k].fd >= 0) {
                tls_stream_free(c->ranks[i].links[k].tls);
                close(c->ranks[i].links[k].fd);
            }
        coded_free_rank(&c->ranks[i]);
        pieced_free_rank(&c->ranks[i]);
        spared_free_rank(&c->ranks[i]);
        free(c->ranks[i].links);
        free(c->ranks[i].aside);
        free(c->ranks[i].sources);
        free(c->ranks[i].targets);
        free(c->ranks[i].scratch);
        free(c->ranks[i].waits);
    }
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        life_close(&c->watch.lives[i]);
    if (c->shm.tether_fd >= 0) /* the memory of the others is unmapped */
        close(c->shm.tether_fd);
    if (c->watch.wake_fd >= 0)
        close(c->watch.wake_fd);
    for (uint32_t m = 0; c->names != NULL && m < c->topo.n_members; m++)
        free(c->names[m]);
    free(c->names);
    free(c->lanes);
    free(c->ranks);
    free(c->watch.lives);
    free(c->watch.polls);
    piece_tree_fini(&c->pieces);
    tiers_fini(&c->tiers);
    topology_fini(&c->topo);
    pthread_mutex_destroy(&c->failure.lock);
    free(c);
}

int comm_open(const struct comm_opts *opts, struct comm **out, struct err *err)
{
    uint64_t ms = opts->deadline_ms < DEADLINE_MS_MAX ? opts->deadline_ms : DEADLINE_MS_MAX;
    struct comm *c;
    int rc;

    CHECK(opts->shares == NULL || opts->view.n_pieces == 0);
    CHECK(opts->view.self < opts->view.n_members &&
          (opts->listener != NULL || opts->view.n_members == 1));
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(err, ERR_NOMEM, "open a communicator: out of memory");
    c->opts = *opts;
    c->self = opts->view.self;
    c->generation = opts->view.generation;
    c->deadline_ns = ms * 1000000;
    c->owner.on_broken = opts->on_broken;
    c->owner.on_wait = opts->on_wait;
    c->owner.arg = opts->arg;
    c->watch.wake_fd = c->shm.page_fd = c->shm.tether_fd = c->shm.passed_fd = -1;
    c->failure.is_connecting = true;
    pthread_mutex_init(&c->failure.lock, NULL);
    rc = make(c, err);
    if (rc < 0) {
        destroy(c);
        return err_wrap(err, rc, "open generation %" PRIu64, opts->view.generation);
    }
    *out = c;
    return 0;
}

int comm_connect(struct comm *c, struct err *err)
{
    uint64_t deadline_ns = clock_ns() + c->deadline_ns;
    uint32_t culprit = c->self;
    struct err why = { 0 };
    bool is_ours;
    int rc;

    CHECK(c->failure.is_connecting);
    rc = host_open(c, &why);
    if (rc == 0)
        rc = handshake(c, deadline_ns, &culprit, &why);
    if (rc == 0)
        rc = channels_open(c, &why);
    if (rc == 0)
        rc = comm_watch(c, &why);
    is_ours = rc < 0 && !comm_has_failed(c);
    if (is_ours) /* the connected peers must not wait */
        (void)comm_fail(c, rc, culprit, "%s could not join: %.180s", c->names[c->self], why.text);
    (void)fault_hit("comm.begin"); /* a test kills the peer here */
    if (!comm_begin(c) && !is_ours)
        rc = comm_failure(c, &why);
    c->opts.view.members = NULL; /* owned by the caller again */
    c->opts.view.pieces = NULL;
    c->opts.shares = NULL;
    c->opts.arena = NULL;
    if (rc == 0)
        return 0;
    comm_unwatch(c, false);
    comm_close_tethers(c);        /* there is no connection that a call could use */
    if (c->opts.listener != NULL) /* arenas in use are kept: they may be needed at once */
        maps_prune(listener_maps(c->opts.listener), TRIES_KEPT);
    err_set(err, rc, "%s", why.text);
    return err_wrap(err, rc, "connect generation %" PRIu64, c->generation);
}

bool comm_connect_loss(struct comm *c, struct comm_loss *out)
{
    pthread_mutex_lock(&c->failure.lock);
    *out = c->failure.loss;
    pthread_mutex_unlock(&c->failure.lock);
    return out->n_dead_paths > 0;
}

bool comm_close_quiet(struct comm *c, uint32_t wait_ms)
{
    struct pollfd tether = { .fd = -1 };
    bool torn = false;

    if (c == NULL)
        return true;
    host_leave(c);
    comm_unwatch(c, true);
    /* A process that writes into this arena is in a call that this process has entered, too, and a
       call succeeds only after all ranks have left it. */
    for (uint32_t i = 0; i < c->n_ranks; i++)
        torn |= c->ranks[i].torn;
    tether.fd = c->shm.tether_fd;
    c->shm.tether_fd = -1;
    destroy(c);
    if (tether.fd < 0)
        return true;
    if (torn) /* no event, except that the other end is closed in all processes */
        while (poll(&tether, 1, (int)wait_ms) < 0 && errno == EINTR)
            ;
    close(tether.fd);
    return !torn || (tether.revents & POLLHUP) != 0;
}

void comm_close(struct comm *c)
{
    /* the caller does not use the arena again, or calls comm_close_quiet() */
    (void)comm_close_quiet(c, 0);
}

uint32_t comm_world(const struct comm *c)
{
    return c->topo.world;
}

uint32_t comm_first_rank(const struct comm *c)
{
    return c->first_rank;
}

const char *comm_describe(const struct comm *c)
{
    return c->text;
}

bool comm_uses_network(const struct comm *c)
{
    return c->topo.kind != TOPOLOGY_ONE_NODE;
}

uint32_t comm_nodes(const struct comm *c)
{
    return c->topo.n_nodes;
}

void comm_set_spin(struct comm *c, uint32_t local, bool may)
{
    CHECK(local < c->n_ranks);
    c->ranks[local].yields = !may;
}

void comm_set_patience(struct comm *c, uint32_t local, uint64_t factor)
{
    uint64_t most = DEADLINE_MS_MAX * UINT64_C(1000000) / (c->deadline_ns > 0 ? c->deadline_ns : 1);

    CHECK(local < c->n_ranks && factor > 0);
    c->ranks[local].patience = factor < most ? factor : most;
}

/* ---- parts ---- */

/* Finds the nodes of a part. A part and a node are subtrees of one tree: one contains the other. */
static struct comm_part part_of(const struct comm *c, uint32_t first, uint32_t n)
{
    const struct topology *t = &c->topo;
    uint32_t node = t->node_of[first], last = t->node_of[first + n - 1];

    CHECK(node == last || (t->node_first[node] == first && t->node_first[last + 1] == first + n));
    return (struct comm_part){ .first = first, .n = n, .node = node, .n_nodes = last - node + 1 };
}

int comm_divide(struct comm *c, uint32_t local, uint32_t first, uint32_t n, struct err *err)
{
    struct comm_rank *r = &c->ranks[local];
    int rc;

    CHECK(c->pieces.n_pieces == 0);
    CHECK(local < c->n_ranks && !r->in_part && n > 0 && first <= r->rank && r->rank < first + n &&
          first + n <= c->topo.world);
    r->part = part_of(c, first, n);
    /* No rank is in a call of an earlier part after the first barrier, and none in one of its new
       part before the second. */
    rc = comm_barrier(c, local, err);
    if (rc < 0)
        return rc;
    r->other.number = r->other.arrivals = 0;
    host_reset_part(c, r);
    return comm_barrier(c, local, err);
}

void comm_set_part(struct comm *c, uint32_t local, bool in_part)
{
    struct comm_rank *r = &c->ranks[local];
    uint32_t number = r->call.number, arrivals = r->arrivals;

    CHECK(local < c->n_ranks && r->part.n > 0);
    if (r->in_part == in_part)
        return;
    r->in_part = in_part;
    r->call.number = r->other.number;
    r->arrivals = r->other.arrivals;
    r->other.number = number;
    r->other.arrivals = arrivals;
}

/* ---- calls ---- */

/* Returns the offset in the arena, or the address in a host with one process. */
static uint64_t offset_of(const struct comm *c, const void *data, size_t bytes)
{
    const struct comm_memory *m = &c->shm.memory[c->self];
    uintptr_t offset = (uintptr_t)data - (uintptr_t)m->base;

    if (bytes == 0)
        return 0;
    /* the buffer is in the arena */
    CHECK(data != NULL && offset <= m->bytes && bytes <= m->bytes - offset);
    return offset;
}

static int call(struct comm *c, uint32_t local, struct comm_call what, void *data, struct err *err)
{
    struct comm_rank *r = &c->ranks[local];
    size_t element = comm_call_element(&what);
    int rc = -1;

    CHECK(local < c->n_ranks && what.count <= PTRDIFF_MAX / element);
    CHECK(!r->in_part || what.what == COMM_ALL_REDUCE);
    if (r->in_part && r->part.n == 1 && !comm_has_failed(c))
        return 0; /* the vector of this rank is the result */
    atomic_store(&r->inside, true);
    if (!comm_has_failed(c)) {
        CHECK(c->failure.is_connected);
        what.number = r->call.number + 1;
        what.offset = offset_of(c, data, what.count * element);
        r->call = what;
        r->limit_ns = c->deadline_ns * (r->patience > 0 ? r->patience : 1);
        r->deadline_ns = clock_ns() + r->limit_ns;
        rc = what.what == COMM_ALL_REDUCE_CODED    ? coded_all_reduce(c, r, data)
             : what.what == COMM_ALL_REDUCE_PIECES ? pieced_all_reduce(c, r, data)
             : what.what == COMM_ALL_REDUCE_SPARED ? spared_all_reduce(c, r, data)
                                                   : collective(c, r, data);
        r->torn = rc < 0;
    }
    atomic_store(&r->inside, false);
    if (comm_has_failed(c))
        comm_wake(c); /* the watcher may wait for the end of the call, to close the tethers */
    return rc < 0 ? comm_failure(c, err) : 0;
}

int comm_all_reduce(struct comm *c, uint32_t local, void *data, size_t count,
                    enum tensor_dtype dtype, enum comm_op op, struct err *err)
{
    CHECK(reduce_can(dtype, op));
    return call(
        c, local,
        (struct comm_call){
            .what = COMM_ALL_REDUCE, .count = count, .dtype = (uint8_t)dtype, .op = (uint8_t)op },
        data, err);
}

int comm_all_reduce_pieces(struct comm *c, uint32_t local, void *data, size_t stride, size_t count,
                           enum tensor_dtype dtype, struct err *err)
{
    size_t bytes = count * tensor_dtype_bytes(dtype);

    if (c->pieces.n_pieces == 0)
        return comm_all_reduce(c, local, data, count, dtype, COMM_SUM, err);
    CHECK(reduce_can(dtype, COMM_SUM) && local < c->n_ranks);
    CHECK(stride % COMM_STRIDE_UNIT == 0 && stride / COMM_STRIDE_UNIT <= UINT32_MAX);
    if (piece_tree_has_two(&c->pieces, c->first_rank + local)) /* the second vector is in the arena, too */
        (void)offset_of(c, (uint8_t *)data + stride, bytes);
    return call(c, local,
                (struct comm_call){ .what = COMM_ALL_REDUCE_PIECES,
                                    .count = count,
                                    .dtype = (uint8_t)dtype,
                                    .op = COMM_SUM,
                                    .stride = (uint32_t)(stride / COMM_STRIDE_UNIT) },
                data, err);
}

int comm_all_reduce_spared(struct comm *c, uint32_t local, void *data, size_t stride, size_t count,
                           enum tensor_dtype dtype, struct comm_spare *spare, struct err *err)
{
    CHECK(c->spares && local < c->n_ranks && count > 0 && reduce_can(dtype, COMM_SUM));
    CHECK(stride % COMM_STRIDE_UNIT == 0 && stride / COMM_STRIDE_UNIT <= UINT32_MAX);
    (void)offset_of(c, (uint8_t *)data + 2 * stride, count * tensor_dtype_bytes(dtype)); /* in the arena, too */
    spared_set(&c->ranks[local], spare);
    return call(c, local,
                (struct comm_call){ .what = COMM_ALL_REDUCE_SPARED,
                                    .count = count,
                                    .dtype = (uint8_t)dtype,
                                    .op = COMM_SUM,
                                    .spare = (uint8_t)spare->state,
                                    .stride = (uint32_t)(stride / COMM_STRIDE_UNIT) },
                data, err);
}

int comm_all_reduce_coded(struct comm *c, uint32_t local, float *data, size_t count,
                          const struct comm_coding *coding, struct err *err)
{
    CHECK(c->group_lanes > 0 && local < c->n_ranks && coding->first % CODE_BLOCK == 0);
    CHECK(coding->codes != NULL || comm_kept_codes(c, local, coding->map->kind) == 0);
    coded_set(&c->ranks[local], coding);
    return call(c, local,
                (struct comm_call){ .what = COMM_ALL_REDUCE_CODED,
                                    .count = count,
                                    .dtype = TENSOR_F32,
                                    .op = (uint8_t)coding->map->kind },
                data, err);
}

uint32_t comm_kept_codes(const struct comm *c, uint32_t local, enum code_kind kind)
{
    CHECK(local < c->n_ranks);
    return coded_kept(c, &c->ranks[local], kind);
}

struct comm_coded_bytes comm_coded_bytes(const struct comm *c, uint32_t local)
{
    CHECK(local < c->n_ranks);
    return coded_bytes(&c->ranks[local]);
}

bool comm_has_slices(const struct comm *c)
{
    return c->topo.kind != TOPOLOGY_DIRECT || !schedule_is_power(c->topo.world);
}

int comm_reduce_scatter(struct comm *c, uint32_t local, void *data, size_t count,
                        enum tensor_dtype dtype, enum comm_op op, struct err *err)
{
    CHECK(reduce_can(dtype, op) && comm_has_slices(c));
    return call(c, local,
                (struct comm_call){ .what = COMM_REDUCE_SCATTER,
                                    .count = count,
                                    .dtype = (uint8_t)dtype,
                                    .op = (uint8_t)op },
                data, err);
}

int comm_all_gather(struct comm *c, uint32_t local, void *data, size_t count,
                    enum tensor_dtype dtype, struct err *err)
{
    CHECK(reduce_can(dtype, COMM_SUM) && comm_has_slices(c));
    return call(
        c, local,
        (struct comm_call){ .what = COMM_ALL_GATHER, .count = count, .dtype = (uint8_t)dtype },
        data, err);
}

int comm_broadcast(struct comm *c, uint32_t local, void *data, size_t bytes, uint32_t root,
                   struct err *err)
{
    CHECK(root < c->topo.world);
    return call(c, local,
                (struct comm_call){
                    .what = COMM_BROADCAST, .count = bytes, .dtype = TENSOR_U8, .root = root },
                data, err);
}

int comm_barrier(struct comm *c, uint32_t local, struct err *err)
{
    return call(c, local, (struct comm_call){ .what = COMM_BARRIER, .dtype = TENSOR_U8 }, NULL,
                err);
}
