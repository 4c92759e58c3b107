/* kit.h - tasks of one cluster on loopback in one process, each with a loop and a thread of its
 * own. */
#ifndef RDZV_KIT_H
#define RDZV_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "loop/loop.h"
#include "rdzv/rdzv.h"

enum { WORLD_MAX = 8, SILENT_MS = 600, SOON_MS = 5000, RUNNING = -1 };

/* What the callbacks of a task saw; under `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct node {
    struct cluster *cluster;
    uint32_t self;
    pthread_t thread;
    struct loop *loop;
    struct rdzv *rdzv;
    struct rdzv_progress progress;
    uint64_t grace_ms;

    enum member_state state;
    uint64_t view_ms, generation;
    uint32_t n_members, n_drains;
    uint8_t key[32];
    char waiting[2048], aborted[ERR_TEXT_BYTES];
    int code; /* RUNNING until on_end */
    char text[ERR_TEXT_BYTES];
};

struct cluster {
    uint32_t world;
    char addresses[WORLD_MAX][32], names[WORLD_MAX][24];
    struct rdzv_task tasks[WORLD_MAX];
    struct node nodes[WORLD_MAX];
    struct rdzv_opts opts; /* what all have in common */
};

/* ---- callbacks ---- */

#define SEEN(...)                                                                                  \
    do {                                                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        __VA_ARGS__;                                                                               \
        pthread_cond_broadcast(&changed);                                                          \
        pthread_mutex_unlock(&lock);                                                               \
    } while (0)

static inline void on_move(void *arg, const struct member_move *move,
                                            uint64_t in_state_ms)
{
    struct node *n = arg;

    (void)in_state_ms;
    SEEN(n->state = move->to);
}

static inline void on_refused(void *arg, const char *text)
{
    (void)arg;
    (void)text;
}

static inline void on_waiting(void *arg, const char *text)
{
    struct node *n = arg;

    SEEN(snprintf(n->waiting, sizeof(n->waiting), "%s", text));
}

static inline void on_view(void *arg, const struct rdzv_view *v)
{
    struct node *n = arg;

    SEEN(n->generation = v->generation; n->n_members = v->n_members; n->view_ms = clock_ms();
         memcpy(n->key, v->key, sizeof(n->key)));
    rdzv_set_serving(n->rdzv, true);
}

static inline void on_drain(void *arg, bool everywhere)
{
    struct node *n = arg;

    (void)everywhere;
    SEEN(n->n_drains++);
}

static inline void on_abort(void *arg, const char *text)
{
    struct node *n = arg;

    SEEN(snprintf(n->aborted, sizeof(n->aborted), "%s", text));
}

static inline void on_end(void *arg, int code, const char *text)
{
    struct node *n = arg;

    assert_int_equal(n->code, RUNNING); /* exactly once */
    SEEN(n->code = code; snprintf(n->text, sizeof(n->text), "%s", text));
    loop_stop(n->loop);
}

static inline void on_checkpoint(void *arg)
{
    struct node *n = arg;

    if (n->self == 0)
        rdzv_checkpoint_done(n->rdzv, 42, "run/step-00000042", NULL);
    else
        rdzv_checkpoint_done(n->rdzv, 0, "", "this task does not write checkpoints: ask the chief");
}

/* ---- tasks ---- */

/* Ports that were free a moment ago. */
static inline struct cluster *new_cluster(uint32_t world)
{
    struct cluster *c = calloc(1, sizeof(*c));
    int fds[WORLD_MAX];

    assert_non_null(c);
    c->world = world;
    for (uint32_t i = 0; i < world; i++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof(a);

        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(bind(fds[i], (struct sockaddr *)&a, n), 0);
        assert_int_equal(getsockname(fds[i], (struct sockaddr *)&a, &n), 0);
        snprintf(c->addresses[i], sizeof(c->addresses[i]), "127.0.0.1:%u", ntohs(a.sin_port));
        snprintf(c->names[i], sizeof(c->names[i]), "worker %u", i);
        c->tasks[i] = (struct rdzv_task){ "worker", i, c->addresses[i], c->names[i] };
        c->nodes[i] = (struct node){ .cluster = c, .self = i, .code = RUNNING, .grace_ms = 1000 };
        c->nodes[i].progress = (struct rdzv_progress){ .phase = "train", .step = 7 };
    }
    for (uint32_t i = 0; i < world; i++)
        close(fds[i]);
    c->opts = (struct rdzv_opts){ .version = "1.2",
                                  .job_name = "digits",
                                  .tasks = c->tasks,
                                  .world = world,
                                  .ident = { "1.2", "j0b", "c1u", "worker:a,b", "cpu",
                                             "onednn avx2", "" },
                                  .n_devices = 2,
                                  .data_address = "127.0.0.1:9",
                                  .host_key = "host",
                                  .deadline_ms = 20000,
                                  .heartbeat_ms = 100,
                                  .silent_ms = SILENT_MS,
                                  .on_move = on_move,
                                  .on_refused = on_refused, .on_waiting = on_waiting,
                                  .on_view = on_view,
                                  .on_drain = on_drain,
                                  .on_abort = on_abort,
                                  .on_end = on_end,
                                  .on_checkpoint = on_checkpoint };
    return c;
}

static inline void *run_node(void *arg)
{
    struct node *n = arg;

    loop_run(n->loop);
    rdzv_close(n->rdzv, n->grace_ms);
    loop_close(n->loop);
    return NULL;
}

static inline void open_node_with(struct node *n, const struct rdzv_opts *opts)
{
    struct rdzv_opts o = *opts;
    struct err err = { 0 };

    o.self = n->self;
    o.listen = n->cluster->addresses[n->self];
    o.progress = &n->progress;
    o.arg = n;
    n->progress.phase_since_ms = clock_ms();
    assert_int_equal(loop_open(&n->loop, NULL), 0);
    o.loop = n->loop;
    if (rdzv_open(&o, &n->rdzv, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(pthread_create(&n->thread, NULL, run_node, n), 0);
}

static inline struct node *open_node(struct cluster *c, uint32_t rank)
{
    open_node_with(&c->nodes[rank], &c->opts);
    return &c->nodes[rank];
}

/* Waits until `cond_` about what was seen holds; fails after `ms_`. */
#define WAIT_FOR(ms_, cond_)                                                                       \
    do {                                                                                           \
        uint64_t until_ms_ = clock_ms() + (ms_);                                                   \
        bool holds_ = false;                                                                       \
                                                                                                   \
        while (!holds_ && clock_ms() < until_ms_) {                                                \
            pthread_mutex_lock(&lock);                                                             \
            holds_ = (cond_);                                                                      \
            if (!holds_) {                                                                         \
                struct timespec t_;                                                                \
                clock_gettime(CLOCK_REALTIME, &t_);                                                \
                t_.tv_nsec += 20000000;                                                            \
                t_.tv_sec += t_.tv_nsec / 1000000000;                                              \
                t_.tv_nsec %= 1000000000;                                                          \
                pthread_cond_timedwait(&changed, &lock, &t_);                                      \
            }                                                                                      \
            pthread_mutex_unlock(&lock);                                                           \
        }                                                                                          \
        if (!holds_)                                                                               \
            fail_msg("not within %d ms: %s", (int)(ms_), #cond_);                                  \
    } while (0)

static inline void wait_for_views(struct cluster *c)
{
    for (uint32_t i = 0; i < c->world; i++)
        WAIT_FOR(SOON_MS, c->nodes[i].generation == 1);
}

static inline struct cluster *open_cluster(uint32_t world)
{
    struct cluster *c = new_cluster(world);

    for (uint32_t i = 0; i < world; i++)
        open_node(c, i);
    wait_for_views(c);
    return c;
}

static inline void post(struct node *n, loop_fn *fn)
{
    loop_post(n->loop, fn, n);
}

static inline void do_complete(void *arg)
{
    rdzv_complete(((struct node *)arg)->rdzv);
}

static inline void do_stop(void *arg)
{
    rdzv_stop(((struct node *)arg)->rdzv, false);
}

static inline void do_stopped_here(void *arg)
{
    rdzv_stopped(((struct node *)arg)->rdzv, true, "");
}

static inline void do_stopped_with_a_peer(void *arg)
{
    rdzv_stopped(((struct node *)arg)->rdzv, false, "worker 1 was asked to leave");
}

static inline void do_fail(void *arg)
{
    rdzv_failed(((struct node *)arg)->rdzv, 2, "loss is NaN");
}

static inline void do_hang(void *arg)
{
    (void)arg;
    usleep((SILENT_MS + 500) * 1000); /* the loop is stuck; gRPC's own threads are not */
}

static inline void do_die(void *arg)
{
    struct node *n = arg;

    SEEN(n->grace_ms = 0);
    loop_stop(n->loop);
}

/* Ends what still runs, and joins all threads that were started. */
static inline void close_cluster(struct cluster *c)
{
    for (uint32_t i = 0; i < c->world; i++) {
        struct node *n = &c->nodes[i];

        if (n->loop == NULL)
            continue;
        pthread_mutex_lock(&lock);
        if (n->code == RUNNING && n->grace_ms > 0)
            post(n, do_die);
        pthread_mutex_unlock(&lock);
        pthread_join(n->thread, NULL);
    }
    free(c);
}

#endif
