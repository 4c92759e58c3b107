/* cpu_reduce.c - the all-reduce of the gradients of CPU replicas, as far as possible while the last
 * lane of a step still computes.
 *
 *     replica   ... last lane: backward                | wait | last bucket | update
 *     reducer          bucket 0 | bucket 1 | bucket 2 |
 *
 * The arena of gradients is cut at multiples of the bucket's size. When backward has passed a
 * border, the bucket before it is final: the lanes are added there, and the replica's reducer (a
 * thread) starts its all-reduce. Statistics, loss and control words are known after the lanes; they
 * go with the rest of the gradients in the last bucket, which the replica reduces itself.
 *
 * The order of additions does not change: lanes along their tree, element by element, and a call of
 * comm adds every element along the tree over ranks, whatever lies beside it. So neither the size
 * of a bucket nor the existence of buckets decides a bit. With codes (codes.h) the numbers of a block
 * share a scale, so a bucket has whole blocks.
 *
 * The reducer never spins and is not pinned: on a host with spare cores it takes one of those, else
 * it shares the core with the replica, at the same priority: its work has to be done anyway, and
 * peers wait for it (at nice 15 a step waited 42 ms instead of 0.3). It does not exist in a task
 * without peers, where only the host's memory lies between the replicas, or if one bucket holds all
 * gradients: see reduce_overlaps(). */
#include "engine/cpu_reduce.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "engine/codes.h"
#include "engine/common.h"
#include "engine/cpu_spare.h"
#include "engine/cpu_tables.h"
#include "engine/cpu_types.h"
#include "engine/residual.h"
#include "engine/trace.h"

/* ---- borders of buckets ---- */

/* The last bucket is what a step still waits for: it should be small. A call costs its latency:
 * buckets should not be tiny. Measured with ResNet-50 (91 MiB) and two tasks, median time that the
 * later of the two waits in a step: over TCP on one machine 91 ms in one piece, 0.7 with buckets of
 * 1 MiB, 4.6 with 4 MiB; over 6 Gbit/s 261 ms in one piece, 2.6 with 0.5 MiB, 2.7 with 1, 5.5 with
 * 2, 16 with 4. In one memory 18 ms in one piece, and no step was shorter for buckets: adding is
 * work for a core, and all have some. */
enum {
    BUCKET_BYTES = 1 << 20,
    /* A coded all-reduce cuts a bucket into a part for each node. With more nodes than this the bucket grows with
       their number, so that the messages do not become shorter. */
    BUCKET_NODES = 8,
};

static size_t bucket_floats(const struct engine *e)
{
    size_t bytes = e->opts->bucket_bytes > 0 ? e->opts->bucket_bytes : BUCKET_BYTES, floats;

    if (codes_are_on(e) && e->group.comm != NULL && comm_nodes(e->group.comm) > BUCKET_NODES)
        bytes *= comm_nodes(e->group.comm) / BUCKET_NODES;
    floats = bytes / sizeof(float);
    return e->codes != NULL ? (floats + CODE_BLOCK - 1) / CODE_BLOCK * CODE_BLOCK : floats;
}

uint32_t reduce_buckets(const struct engine *e)
{
    return e->opts->remote_dense || residual_exists(e)
               ? 1
               : (uint32_t)(e->memory.dense / bucket_floats(e)) + 1;
}

/* The last bucket contains the rest of the gradients, and everything after them; of remote parameters only what
 * is after them. */
static struct comm_range bucket(const struct engine_replica *r, uint32_t i)
{
    size_t floats = bucket_floats(r->engine);
    bool last = i + 1 == r->n_buckets;

    if (r->engine->opts->remote_dense)
        return (struct comm_range){ r->engine->memory.trained, cpu_of(r)->reducer.end };
    return (struct comm_range){ i * floats, last ? cpu_of(r)->reducer.end : (i + 1) * floats };
}

bool reduce_overlaps(const struct engine *e)
{
    enum engine_overlap want = e->opts->overlap;

    if (e->group.comm == NULL || want == ENGINE_OVERLAP_NEVER || reduce_buckets(e) == 1 ||
        (e->spares && comm_spares(e->group.comm)))
        return false;
    return want == ENGINE_OVERLAP_ALWAYS || comm_uses_network(e->group.comm);
}

static void note_decision(const struct engine *e)
{
    char text[256], size[32];

    text_bytes(size, sizeof(size), bucket_floats(e) * sizeof(float));
    if (e->group.overlap)
        snprintf(text, sizeof(text),
                 "gradients are reduced while backward computes, in %u buckets of %s",
                 reduce_buckets(e), size);
    else if (e->spares && comm_spares(e->group.comm) && reduce_buckets(e) > 1)
        snprintf(
            text, sizeof(text),
            "gradients are reduced after backward: a late task can leave out lanes until then");
    else if (residual_exists(e))
        snprintf(text, sizeof(text),
                 "gradients are reduced after backward: the largest numbers, or the factors, of a parameter are "
                 "known when its gradient is complete");
    else if (reduce_buckets(e) == 1)
        snprintf(text, sizeof(text),
                 "gradients are reduced after backward: they are smaller than a bucket of %s",
                 size);
    else
        snprintf(text, sizeof(text),
                 "gradients are reduced after backward: all replicas are on this host, where an "
                 "overlap would only use the cores that compute backward");
    engine_note(e, false, text);
}

/* ---- the reducer ---- */

static int all_reduce(struct engine_replica *r, struct comm_range x, struct err *err)
{
    const struct engine *e = r->engine;
    const struct comm_coding coding = { .map = e->codes,
                                        .first = x.begin,
                                        .key = codes_key(e, cpu_of(r)->reducer.step),
                                        .codes = codes_kept(r) };
    float *data = r->arenas->grads[0] + x.begin;

    if (residual_is_on(e))
        return residual_reduce(r, x.end, err);
    if (spare_is_on(e))
        return spare_reduce(r, x.end, err);
    if (codes_are_on(e))
        return comm_all_reduce_coded(e->group.comm, r->local, data, x.end - x.begin, &coding, err);
    return comm_all_reduce_pieces(e->group.comm, r->local, data, e->memory.grads_bytes,
                                  x.end - x.begin, TENSOR_F32, err);
}

static int reduce_bucket(struct engine_replica *r, uint32_t i, struct trace_row *trace,
                         struct err *err)
{
    struct comm_range x = bucket(r, i);
    uint64_t before = clock_ns(), now;
    int rc;

    rc = fault_error("train.bucket", err);
    if (rc < 0)
        return rc;
    rc = all_reduce(r, x, err);
    now = clock_ns();
    r->reduce_work_ns += now - before;
    trace_add(trace, TRACE_REDUCTION, i, before, now);
    return rc;
}

static void *reducer_main(void *arg)
{
    struct engine_replica *r = arg;
    struct reducer *d = &cpu_of(r)->reducer;

    device_unpin();
    place_own(&r->helper_place);
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct err err;
        int rc = 0;

        place_wait(&r->helper_place, PLACE_WAITS_LOCAL);
        while (!d->stop && d->done == d->ready)
            pthread_cond_wait(&d->changed, &d->lock);
        if (d->stop)
            break;
        place_bucket(&r->helper_place, d->step, d->done);
        pthread_mutex_unlock(&d->lock);
        if (d->rc == 0) /* only this thread writes it while buckets are ready */
            rc = reduce_bucket(r, d->done, d->trace, &err);
        pthread_mutex_lock(&d->lock);
        if (rc < 0) {
            d->rc = rc;
            d->err = err;
        }
        if (++d->done == d->ready)
            pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int reduce_open(struct engine_replica *r, struct err *err)
{
    struct reducer *d = &cpu_of(r)->reducer;
    int rc;

    if (r->local == 0 && r->engine->group.comm != NULL)
        note_decision(r->engine);
    if (r->local == 0)
        codes_note(r->engine);
    spare_bind(r);
    r->n_buckets = 1;
    if (!r->engine->group.overlap)
        return 0;
    r->n_buckets = reduce_buckets(r->engine);
    d->ready = d->done = 0;
    d->stop = false;
    d->rc = 0;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    rc = thread_start(&d->thread, "reduces gradients", reducer_main, r, err);
    if (rc < 0) {
        pthread_cond_destroy(&d->changed);
        pthread_mutex_destroy(&d->lock);
        return rc;
    }
    d->started = true;
    return 0;
}

void reduce_close(struct engine_replica *r)
{
    struct reducer *d = &cpu_of(r)->reducer;

    if (!d->started)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    d->started = false;
}

/* ---- a step ---- */

void reduce_begin(struct engine_replica *r, uint64_t step)
{
    struct reducer *d = &cpu_of(r)->reducer;

    r->reduce_work_ns = 0;
    d->added = 0;
    if (codes_are_on(r->engine) && r->engine->group.comm != NULL)
        d->coded = comm_coded_bytes(r->engine->group.comm, r->local);
    if (!d->started) {
        d->step = step;
        return;
    }
    pthread_mutex_lock(&d->lock);
    CHECK(d->done == d->ready);
    d->ready = d->done = 0;
    d->step = step;
    d->trace = trace_sibling(r->trace, TRACE_REDUCER);
    pthread_mutex_unlock(&d->lock);
    comm_set_spin(r->engine->group.comm, r->local, false);
}

static void add_ready(struct reducer *d, uint32_t n)
{
    pthread_mutex_lock(&d->lock);
    d->ready = n;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void reduce_add_lanes(struct engine_replica *r, uint32_t lane, uint32_t top, size_t end)
{
    size_t begin = cpu_of(r)->reducer.added;
    uint64_t before = trace_clock(r->trace);
    uint32_t merges = spare_merges(r, lane), in_group = 0;
    bool rounds = codes_ends_group(r, lane, &in_group);

    for (uint32_t m = 0; m <= merges; m++, top--) {
        if (rounds && m == in_group && residual_is_on(r->engine))
            residual_take_group(r, lane, r->arenas->grads[top - 1]);
        else if (rounds && m == in_group)
            codes_round_group(r, cpu_of(r)->reducer.step, lane, r->arenas->grads[top - 1], begin,
                              end);
        if (m < merges)
            tables_add(r, top - 2, top - 1, begin, end);
    }
    if (merges > 0)
        trace_add_until_now(r->trace, TRACE_SUMS, lane, before);
}

void reduce_ready(void *arg, size_t offset, size_t n)
{
    struct engine_replica *r = arg;
    struct reducer *d = &cpu_of(r)->reducer;
    size_t floats = bucket_floats(r->engine);
    size_t whole = (offset + n) / floats; /* buckets that are final */
    uint32_t last;

    if (whole > r->n_buckets - 1) /* the last bucket waits for the statistics and control words */
        whole = r->n_buckets - 1;
    if (whole * floats <= d->added)
        return;
    last = r->n_lanes - 1;
    reduce_add_lanes(r, last, lane_base(r, last) + lane_merges(r, last) + 1, whole * floats);
    d->added = whole * floats;
    add_ready(d, (uint32_t)whole);
}

int reduce_rest(struct engine_replica *r, struct err *err)
{
    struct reducer *d = &cpu_of(r)->reducer;
    int rc = 0;

    if (d->started) {
        place_wait(&r->place, PLACE_WAITS_LOCAL);
        pthread_mutex_lock(&d->lock);
        while (d->done < d->ready)
            pthread_cond_wait(&d->changed, &d->lock);
        rc = d->rc;
        if (rc < 0 && err != NULL)
            *err = d->err;
        pthread_mutex_unlock(&d->lock);
        place_wait(&r->place, PLACE_WORKS);
        comm_set_spin(r->engine->group.comm, r->local, true);
    }
    if (rc == 0)
        rc = tables_compact(r, &d->end, err);
    if (rc == 0)
        rc = reduce_bucket(r, r->n_buckets - 1, NULL, err);
    if (rc == 0)
        tables_expand(r, d->end);
    if (residual_is_on(r->engine))
        residual_count(r, &r->coded_bytes, &r->coded_plain_bytes);
    if (codes_are_on(r->engine)) {
        struct comm_coded_bytes now = comm_coded_bytes(r->engine->group.comm, r->local);

        r->coded_bytes = now.sent - d->coded.sent;
        r->coded_plain_bytes = now.plain - d->coded.plain;
    }
    return rc;
}
