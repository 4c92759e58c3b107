#include "daemon/advice_window.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "daemon/host_load.h"
#include "opts/advice.h"
#include "train/train.h"

/* The slowest of 100 copies: the times of copies are counted in buckets of powers of 2^(1/4). */
enum { BUCKETS = 96, BUCKETS_OF_TWO = 4 };
static const double FIRST_MS = 1e-3;

struct sums {
    uint64_t begin_ns; /* clock_ns(); 0: no window is open */
    uint64_t delay_ns; /* of the thread that reports the steps, at begin_ns */
    uint64_t steps, ns, data_ns, reduce_ns, copy_ns, spare_ns;
    uint64_t lanes, own_lanes; /* over all steps; of the task, of its first replica */
    double idle;               /* over n_idle devices and steps */
    uint64_t n_idle;
    uint64_t copies[BUCKETS]; /* of samples to the GPU, by their time */
};

struct advice_window {
    const struct advice_limits *limits;
    uint32_t n_devices;
    pthread_mutex_t lock; /* guards the fields below */
    uint64_t generation, number;
    uint32_t self, n_members;
    uint32_t *ranks;                /* owned [n_members] */
    struct comm_wait *before, *now; /* owned [n_members] counters at the begin of the window; at its end */
    struct sums sums;
    struct rdzv_window done;
    bool is_new; /* `done` was not taken yet */
};

struct advice_window *advice_window_new(const struct advice_limits *limits, uint32_t n_devices)
{
    struct advice_window *w = calloc(1, sizeof(*w));

    CHECK(w != NULL);
    w->limits = limits;
    w->n_devices = n_devices;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

static void free_members(struct advice_window *w)
{
    free(w->ranks);
    free(w->before);
    free(w->now);
}

void advice_window_free(struct advice_window *w)
{
    if (w == NULL)
        return;
    free_members(w);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void advice_window_begin(struct advice_window *w, const struct group_view *view)
{
    pthread_mutex_lock(&w->lock);
    free_members(w);
    w->generation = view->generation;
    w->self = view->self;
    w->n_members = view->n_members;
    w->ranks = calloc(view->n_members, sizeof(*w->ranks));
    w->before = calloc(view->n_members, sizeof(*w->before));
    w->now = calloc(view->n_members, sizeof(*w->now));
    CHECK(w->ranks != NULL && w->before != NULL && w->now != NULL);
    for (uint32_t m = 0; m < view->n_members; m++)
        w->ranks[m] = view->members[m].rank;
    w->sums = (struct sums){ .begin_ns = 0 };
    w->is_new = false;
    pthread_mutex_unlock(&w->lock);
}

static void read_waits(const struct train_step_report *s, struct comm_wait *out)
{
    if (s->comm != NULL)
        comm_read_waits(s->comm, 0, out);
}

/* Opens a window that begins now. */
static void open_window(struct advice_window *w, uint64_t now)
{
    struct comm_wait *was = w->before;

    w->before = w->now;
    w->now = was;
    w->sums = (struct sums){ .begin_ns = now, .delay_ns = host_load_read_delay() };
}

static uint32_t bucket_of(double ms)
{
    double at = ms > FIRST_MS ? BUCKETS_OF_TWO * log2(ms / FIRST_MS) : 0;

    return at < BUCKETS - 1 ? (uint32_t)ceil(at) : BUCKETS - 1;
}

static void add(struct advice_window *w, const struct train_step_report *s)
{
    struct sums *x = &w->sums;

    x->steps += s->steps;
    x->ns += s->ns;
    x->data_ns += s->data_ns;
    x->reduce_ns += s->reduce_ns;
    x->copy_ns += s->copy_ns;
    x->spare_ns += s->spare_given_ns;
    x->lanes += s->steps * s->lanes;
    x->own_lanes += s->steps * s->own_lanes;
    for (uint32_t i = 0; s->device_idle != NULL && i < w->n_devices; i++)
        if (!isnan(s->device_idle[i])) {
            x->idle += s->device_idle[i];
            x->n_idle++;
        }
    for (uint32_t i = 0; i < s->n_feeds; i++)
        x->copies[bucket_of(s->feed_ms[i])]++;
}

/* Returns the upper limit of the bucket of the 99th percentile; -1: no copy. */
static double slowest_of_100(const struct sums *x)
{
    uint64_t n = 0, above = 0;

    for (uint32_t i = 0; i < BUCKETS; i++)
        n += x->copies[i];
    for (uint32_t i = BUCKETS; n > 0 && i-- > 0;) {
        above += x->copies[i];
        if (above * 100 >= n)
            return FIRST_MS * exp2((double)i / BUCKETS_OF_TWO);
    }
    return -1;
}

static double part(uint64_t of, uint64_t all)
{
    return all > 0 ? fmin(1, (double)of / (double)all) : 0;
}

/* Inserts a wait among the longest ones. */
static void insert(struct rdzv_window *out, const struct rdzv_wait *wait)
{
    uint32_t at = out->n_waits;

    while (at > 0 && wait->late + wait->slow > out->waits[at - 1].late + out->waits[at - 1].slow)
        at--;
    if (at == RDZV_WAITS_MAX)
        return;
    out->n_waits += out->n_waits < RDZV_WAITS_MAX;
    for (uint32_t i = out->n_waits - 1; i > at; i--)
        out->waits[i] = out->waits[i - 1];
    out->waits[at] = *wait;
}

static void add_waits(const struct advice_window *w, struct rdzv_window *out)
{
    double per_step = 1e-9 / (double)out->steps;

    for (uint32_t m = 0; m < w->n_members; m++) {
        const struct comm_wait *a = &w->before[m], *b = &w->now[m];
        uint64_t slow_ns = b->slow_ns - a->slow_ns, bytes = b->slow_bytes - a->slow_bytes;
        struct rdzv_wait wait = {
            .rank = w->ranks[m],
            .late = (double)(b->late_ns - a->late_ns) * per_step,
            .slow = (double)slow_ns * per_step,
            .rate = slow_ns > 0 ? 1e9 * (double)bytes / (double)slow_ns : 0,
            .losses = b->retransmissions > a->retransmissions
                          ? (double)(b->retransmissions - a->retransmissions) / (double)out->steps
                          : 0,
        };

        if (m == w->self || wait.late + wait.slow + wait.losses <= 0)
            continue; /* replicas of this task are no other task */
        out->late += wait.late;
        out->slow += wait.slow;
        insert(out, &wait);
    }
}

static void close_window(struct advice_window *w, uint64_t now)
{
    const struct sums *x = &w->sums;
    uint64_t compute = x->data_ns + x->reduce_ns + x->copy_ns + x->spare_ns,
             delay_ns = host_load_read_delay();

    compute = x->ns > compute ? x->ns - compute : 0;
    w->done = (struct rdzv_window){
        .number = ++w->number,
        .generation = w->generation,
        .steps = x->steps,
        .seconds = (double)x->ns / 1e9 / (double)x->steps,
        .data = part(x->data_ns, x->ns),
        .reduce = part(x->reduce_ns, x->ns),
        .checkpoint = part(x->copy_ns, x->ns),
        .lanes = (uint32_t)(x->lanes / x->steps),
        .lane_seconds = x->own_lanes > 0 ? (double)compute / 1e9 / (double)x->own_lanes : 0,
        .idle = x->n_idle > 0 ? fmin(1, x->idle / (double)x->n_idle) : -1,
        .copy_ms = slowest_of_100(x),
        .delay = delay_ns > x->delay_ns ? (double)(delay_ns - x->delay_ns) / 1e9 / (double)x->steps : 0,
    };
    add_waits(w, &w->done);
    w->is_new = true;
    open_window(w, now);
}

void advice_window_step(struct advice_window *w, const struct train_step_report *s)
{
    uint64_t now = clock_ns();

    pthread_mutex_lock(&w->lock);
    if (s->ns > 0 && w->sums.begin_ns == 0) {
        read_waits(s, w->now);
        open_window(w, now);
    } else if (s->ns > 0) {
        add(w, s);
        if (w->sums.steps >= w->limits->window_steps &&
            (double)(now - w->sums.begin_ns) >= 1e9 * w->limits->window_seconds) {
            read_waits(s, w->now);
            close_window(w, now);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

bool advice_window_take(struct advice_window *w, struct rdzv_window *out)
{
    bool is_new;

    pthread_mutex_lock(&w->lock);
    is_new = w->is_new;
    w->is_new = false;
    if (is_new)
        *out = w->done;
    pthread_mutex_unlock(&w->lock);
    return is_new;
}
