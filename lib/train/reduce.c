/* reduce.c - the sum of the gradients over all replicas, as far as possible while the last lane of
 * a step is still computing.
 *
 *     replica   ... last lane: backward                | wait | last bucket | update
 *     reducer          bucket 0 | bucket 1 | bucket 2 |
 *
 * The arena of gradients is cut at multiples of the bucket's size. When backward has passed such a
 * border, the bucket before it is final: the lanes are added there, and the replica's reducer (a
 * thread) starts its all-reduce. Statistics, loss and control words are known behind the lanes;
 * they go with what is left of the gradients in the last bucket, which the replica reduces itself.
 *
 * What is added to what does not change: lanes along their tree, element by element, and a call of
 * comm adds every element along the tree over ranks, whatever lies beside it. So neither the size
 * of a bucket nor that there are any decides a bit.
 *
 * The reducer never spins and is not pinned: on a host with cores to spare it takes one of those,
 * else it has its turns with the replica, at the same priority: what it does has to be done anyway,
 * and peers wait for it (at nice 15 a step waited 42 ms instead of 0.3). Nothing of this exists in
 * a task that reduces with nobody, where the host's memory is all that lies between the replicas,
 * or if one bucket holds all: see reduce_decide(). */
#include "train/train_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/text.h"
#include "base/thread.h"

/* ---- what is cut where ---- */

/* The last bucket is what a step still waits for: it should be small. A call costs its latency:
 * buckets should not be tiny. Measured with ResNet-50 (91 MiB) and two tasks, median time that the
 * later of the two waits in a step: over TCP on one machine 91 ms in one piece, 0.7 with buckets of
 * 1 MiB, 4.6 with 4 MiB; over 6 Gbit/s 261 ms in one piece, 2.6 with 0.5 MiB, 2.7 with 1, 5.5 with
 * 2, 16 with 4. In one memory 18 ms in one piece, and no step was shorter for buckets: adding is
 * work for a core, and all have some. */
enum { BUCKET_BYTES = 1 << 20 };

static size_t bucket_floats(const struct train *t)
{
    const struct train_opts *o = t->opts;

    return (o->bucket_bytes > 0 ? o->bucket_bytes : BUCKET_BYTES) / sizeof(float);
}

uint32_t reduce_buckets(const struct train *t)
{
    return (uint32_t)(t->mem.dense / bucket_floats(t)) + 1;
}

/* The last one takes what is left, and everything behind the gradients. */
static struct comm_range bucket(const struct replica *r, uint32_t i)
{
    size_t floats = bucket_floats(r->train);
    bool last = i + 1 == r->reducer.n_buckets;

    return (struct comm_range){ i * floats, last ? r->reducer.end : (i + 1) * floats };
}

bool reduce_decide(const struct train *t)
{
    enum train_overlap want = t->opts->overlap;

    if (t->comm == NULL || train_on_gpus(t) || want == TRAIN_OVERLAP_NEVER || reduce_buckets(t) == 1)
        return false;
    return want == TRAIN_OVERLAP_ALWAYS || comm_uses_network(t->comm);
}

static void tell_decision(const struct train *t)
{
    struct train_event e = { .kind = TRAIN_NOTE };
    char text[256], size[32];

    text_bytes(size, sizeof(size), bucket_floats(t) * sizeof(float));
    e.text = text;
    if (train_on_gpus(t))
        snprintf(text, sizeof(text), "gradients are summed up by NCCL while backward computes");
    else if (t->mem.agreement->overlap)
        snprintf(text, sizeof(text),
                 "gradients are reduced while backward computes, in %u buckets of %s: the network "
                 "works meanwhile",
                 reduce_buckets(t), size);
    else if (reduce_buckets(t) == 1)
        snprintf(text, sizeof(text),
                 "gradients are reduced behind backward: they are less than a bucket of %s", size);
    else
        snprintf(text, sizeof(text),
                 "gradients are reduced behind backward: all replicas share this host's memory, "
                 "where the sum is work for busy cores at any time");
    train_tell(t, &e);
}

/* ---- the reducer ---- */

static int reduce_bucket(struct replica *r, uint32_t i, struct trace_row *trace, struct err *err)
{
    struct comm_range x = bucket(r, i);
    uint64_t before = clock_ns(), now;
    int rc;

    rc = fault_error("train.bucket", err);
    if (rc < 0)
        return rc;
    rc = comm_all_reduce(r->train->comm, r->local, r->grads[0] + x.begin, x.end - x.begin,
                         TENSOR_F32, COMM_SUM, err);
    now = clock_ns();
    r->reducer.work_ns += now - before;
    trace_add(trace, TRACE_REDUCTION, i, before, now);
    return rc;
}

static void *reducer_main(void *arg)
{
    struct replica *r = arg;
    struct reducer *d = &r->reducer;

    device_roam();
    place_own(&d->place);
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct err err;
        int rc = 0;

        place_wait(&d->place, PLACE_WAITS_LOCAL);
        while (!d->stop && d->done == d->given)
            pthread_cond_wait(&d->changed, &d->lock);
        if (d->stop)
            break;
        place_bucket(&d->place, d->step, d->done);
        pthread_mutex_unlock(&d->lock);
        if (d->rc == 0) /* only we write it, while buckets are given */
            rc = reduce_bucket(r, d->done, d->trace, &err);
        pthread_mutex_lock(&d->lock);
        if (rc < 0) {
            d->rc = rc;
            d->err = err;
        }
        if (++d->done == d->given)
            pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int reduce_open(struct replica *r, struct err *err)
{
    struct reducer *d = &r->reducer;
    int rc;

    if (r->local == 0 && r->train->comm != NULL)
        tell_decision(r->train);
    d->n_buckets = 1;
    if (!r->train->mem.agreement->overlap)
        return 0;
    d->n_buckets = reduce_buckets(r->train);
    d->given = d->done = 0;
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

void reduce_close(struct replica *r)
{
    struct reducer *d = &r->reducer;

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

void reduce_begin(struct replica *r, uint64_t step)
{
    struct reducer *d = &r->reducer;

    d->work_ns = 0;
    d->added = 0;
    if (!d->started)
        return;
    pthread_mutex_lock(&d->lock);
    CHECK(d->done == d->given);
    d->given = d->done = 0;
    d->step = step;
    d->trace = trace_beside(r->trace, TRACE_REDUCER);
    pthread_mutex_unlock(&d->lock);
    comm_may_spin(r->train->comm, r->local, false);
}

static void give(struct reducer *d, uint32_t n)
{
    pthread_mutex_lock(&d->lock);
    d->given = n;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void reduce_add_lanes(struct replica *r, uint32_t lane, uint32_t top, size_t end)
{
    size_t begin = r->reducer.added;
    uint64_t before = trace_clock(r->trace);
    uint32_t merges = lane_merges(r, lane);

    for (uint32_t m = merges; m > 0; m--, top--)
        tables_add(r, top - 2, top - 1, begin, end);
    if (merges > 0)
        trace_until_now(r->trace, TRACE_SUMS, lane, before);
}

void reduce_ready(void *arg, size_t offset, size_t n)
{
    struct replica *r = arg;
    struct reducer *d = &r->reducer;
    size_t floats = bucket_floats(r->train);
    size_t whole = (offset + n) / floats; /* buckets that are final */
    uint32_t last;

    if (whole > d->n_buckets - 1) /* the last one waits for what lies behind the gradients */
        whole = d->n_buckets - 1;
    if (whole * floats <= d->added)
        return;
    last = r->n_lanes - 1;
    reduce_add_lanes(r, last, lane_merges(r, last) + 1, whole * floats);
    d->added = whole * floats;
    give(d, (uint32_t)whole);
}

int reduce_rest(struct replica *r, struct err *err)
{
    struct reducer *d = &r->reducer;
    int rc = 0;

    if (d->started) {
        place_wait(&r->place, PLACE_WAITS_LOCAL);
        pthread_mutex_lock(&d->lock);
        while (d->done < d->given)
            pthread_cond_wait(&d->changed, &d->lock);
        rc = d->rc;
        if (rc < 0 && err != NULL)
            *err = d->err;
        pthread_mutex_unlock(&d->lock);
        place_wait(&r->place, PLACE_WORKS);
        comm_may_spin(r->train->comm, r->local, true);
    }
    if (rc == 0)
        rc = tables_close_up(r, &d->end, err);
    if (rc == 0)
        rc = reduce_bucket(r, d->n_buckets - 1, NULL, err);
    if (rc == 0)
        tables_open_up(r, d->end);
    return rc;
}
