/* kit.h - tasks of one cluster on loopback: each with a loop and a thread in this process, or as a
 * process of its own that can be killed. The tasks do not train: a test applies a step, and a pause
 * or an abort is answered at once. */
#ifndef RDZV_KIT_H
#define RDZV_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "harness/wait.h"
#include "loop/loop.h"
#include "rdzv/rdzv.h"

enum { WORLD_MAX = 8, STORAGE_MS = 3, RUNNING = -1 };

/* What the callbacks of a task received; under `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct node {
    struct cluster *cluster;
    uint32_t self;
    pthread_t thread;
    struct loop *loop;
    struct rdzv *rdzv;
    struct rdzv_progress progress;
    struct loop_timer *connecting, *storage;
    uint64_t request; /* number of the open LEASE action; 0: none */
    uint64_t grace_ms;
    bool is_training;
    uint64_t incarnation;
    pid_t pid; /* of a task in a process of its own; 0: in this process */

    enum member_node_state state;
    uint64_t generation;
    uint32_t ranks[WORLD_MAX], n_members, in_view; /* in_view: index of this task */
    char data_addresses[WORLD_MAX][32];
    uint32_t n_servers[8]; /* of the members of the view */
    uint64_t newest_step;
    uint32_t newest_member, n_pauses, n_aborts;
    uint64_t n_reloads; /* calls of Control.Reload */
    uint8_t key[32];
    char why[1024], said[2048], trouble[2048], aborted[2048];
    char *trace; /* lines */
    bool is_resumed; /* ends do_hang() */
    int code; /* RUNNING until END */
    char text[ERR_TEXT_BYTES];
};

struct cluster {
    uint32_t world;
    char addresses[WORLD_MAX][32], names[WORLD_MAX][24];
    int reserved[WORLD_MAX]; /* sockets that reserve the ports of the addresses; 0: none */
    struct rdzv_task tasks[WORLD_MAX];
    struct node nodes[WORLD_MAX];
    struct rdzv_opts opts; /* options that all tasks share */

    /* the simulated shared storage; under `lock` */
    uint64_t lease_token, lease_incarnation;
    uint32_t lease_holder, lease_members[WORLD_MAX], n_lease_members;
};

/* ---- callbacks ---- */

#define SEEN(...)                                                                                  \
    do {                                                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        __VA_ARGS__;                                                                               \
        pthread_mutex_unlock(&lock);                                                               \
    } while (0)

static inline void on_connected(void *arg)
{
    struct node *n = arg;

    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_CONNECTED, .generation = n->generation });
}

static inline void on_train(void *arg, const struct group_view *v, const char *why)
{
    struct node *n = arg;

    assert_false(n->is_training); /* only this thread writes the field */
    assert_int_equal(v->members[v->self].rank, n->self);
    assert_int_equal(v->members[v->self].incarnation != 0, 1);
    pthread_mutex_lock(&lock);
    n->is_training = true;
    n->generation = v->generation;
    n->n_members = v->n_members;
    n->in_view = v->self;
    n->newest_step = v->newest_step;
    n->newest_member = v->newest_member;
    memcpy(n->key, v->key, sizeof(n->key));
    snprintf(n->why, sizeof(n->why), "%s", why);
    for (uint32_t i = 0; i < v->n_members; i++) {
        n->ranks[i] = v->members[i].rank;
        if (i < 8)
            n->n_servers[i] = v->members[i].n_servers;
        snprintf(n->data_addresses[i], sizeof(n->data_addresses[i]), "%s",
                 v->members[i].data_address);
    }
    if (v->newest_step > n->progress.step) /* as if the state was received */
        n->progress.step = v->newest_step;
    n->progress.place++;
    pthread_mutex_unlock(&lock);
    if (n->connecting == NULL)
        n->connecting = loop_timer_new(n->loop, 1, 0, on_connected, n);
    else
        loop_timer_restart(n->connecting, 1);
    rdzv_set_serving(n->rdzv, true);
}

static inline void on_pause(void *arg)
{
    struct node *n = arg;

    SEEN(n->n_pauses++; n->is_training = false);
    /* reported from inside the callback */
    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_PAUSED, .generation = n->generation, .held = n->progress.step });
}

static inline void on_abort(void *arg, const char *text)
{
    struct node *n = arg;

    SEEN(n->n_aborts++; snprintf(n->aborted, sizeof(n->aborted), "%s", text);
         n->is_training = false);
    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_ABORTED, .generation = n->generation, .held = n->progress.step });
}

static inline void on_save(void *arg)
{
    struct node *n = arg;

    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_SAVED, .ok = true, .text = "" });
}

/* Answers a LEASE action after some milliseconds. */
static inline void on_storage(void *arg)
{
    struct node *n = arg;
    struct cluster *c = n->cluster;
    uint32_t members[WORLD_MAX];
    struct member_lease l = {
        .answered = n->request, .is_known = true, .members = members, .text = ""
    };

    pthread_mutex_lock(&lock);
    l.token = c->lease_token;
    l.holder = c->lease_token > 0 ? c->lease_holder : MEMBER_NO_RANK;
    l.incarnation = c->lease_incarnation;
    l.is_mine = l.holder == n->self && l.incarnation == n->incarnation;
    l.n_members = c->n_lease_members;
    memcpy(members, c->lease_members, sizeof(members));
    pthread_mutex_unlock(&lock);
    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &l });
}

static inline void on_lease(void *arg, uint64_t token, uint64_t request,
                            const struct group_view *record)
{
    struct node *n = arg;
    struct cluster *c = n->cluster;

    pthread_mutex_lock(&lock);
    if (record != NULL && token == c->lease_token) {
        c->lease_token++;
        c->lease_holder = n->self;
        c->lease_incarnation = n->incarnation;
        c->n_lease_members = record->n_members;
        for (uint32_t i = 0; i < record->n_members; i++)
            c->lease_members[i] = record->members[i].rank;
    }
    pthread_mutex_unlock(&lock);
    n->request = request;
    if (n->storage == NULL)
        n->storage = loop_timer_new(n->loop, STORAGE_MS, 0, on_storage, n);
    else
        loop_timer_restart(n->storage, STORAGE_MS);
}

static inline void on_say(void *arg, const char *text, bool is_trouble)
{
    struct node *n = arg;

    SEEN(if (is_trouble) snprintf(n->trouble, sizeof(n->trouble), "%s", text);
         else snprintf(n->said, sizeof(n->said), "%s", text));
}

static inline void on_state(void *arg)
{
    struct node *n = arg;
    enum member_node_state s = member_node_state(rdzv_node(n->rdzv));

    if (s != n->state)
        SEEN(n->state = s);
}

static inline void on_end(void *arg, int code, const char *text)
{
    struct node *n = arg;

    assert_int_equal(n->code, RUNNING); /* END comes exactly once */
    SEEN(n->code = code; snprintf(n->text, sizeof(n->text), "%s", text));
    loop_stop(n->loop);
}

static inline void on_action(void *arg, const struct rdzv_action *a)
{
    const struct member_action *m = a->action;
    struct node *n = arg;

    switch (m->kind) {
    case MEMBER_TRAIN:
        on_train(n, a->view, m->text);
        return;
    case MEMBER_PAUSE:
        on_pause(n);
        return;
    case MEMBER_ABORT:
        on_abort(n, m->text);
        return;
    case MEMBER_SAVE:
        on_save(n);
        return;
    case MEMBER_LEASE:
        on_lease(n, m->token, m->request, m->token == UINT64_MAX ? NULL : m->view);
        return;
    case MEMBER_LOG:
        on_say(n, m->text, m->is_trouble);
        return;
    case MEMBER_END:
        on_end(n, m->code, m->text);
        return;
    default:
        return;
    }
}

static inline void on_checkpoint(void *arg)
{
    struct node *n = arg;

    if (n->self == 0)
        rdzv_checkpoint_done(n->rdzv, 42, "run/step-00000042", NULL);
    else
        rdzv_checkpoint_done(n->rdzv, 0, "", "this task does not write checkpoints: ask the chief");
}

/* Node 0 numbers its reloads, which the test answers; the other nodes cannot reload. */
static inline uint64_t on_reload(void *arg)
{
    struct node *n = arg;
    uint64_t number;

    SEEN(number = n->self == 0 ? ++n->n_reloads : 0);
    return number;
}

/* Answers with numbers of the request; a port of 13 does not answer. */
static inline int on_netcheck(void *arg, const struct rdzv_netcheck *q,
                              struct rdzv_netcheck_result *out, struct err *err)
{
    (void)arg;
    if (q->peer == MEMBER_NO_RANK) {
        out->port = 7000;
        memset(out->ticket, 9, sizeof(out->ticket));
        return 0;
    }
    if (q->port == 13)
        return err_set(err, ERR_PEER, "port 13 refuses the connection");
    out->rtt_us = q->ms + q->peer + q->ticket[15];
    out->rate = q->bytes;
    return 0;
}

static inline void on_trace(void *arg, const char *text)
{
    struct node *n = arg;
    size_t len;

    pthread_mutex_lock(&lock);
    len = n->trace != NULL ? strlen(n->trace) : 0;
    n->trace = realloc(n->trace, len + strlen(text) + 2);
    assert_non_null(n->trace);
    sprintf(n->trace + len, "%s\n", text);
    pthread_mutex_unlock(&lock);
    if (getenv("RDZV_TRACE") != NULL)
        fprintf(stderr, "%llu %s: %s\n", (unsigned long long)clock_ms(), n->cluster->names[n->self],
                text);
}

/* ---- tasks ---- */

static inline void init_cluster(struct cluster *c, uint32_t world)
{
    c->world = world;
    for (uint32_t i = 0; i < world; i++) {
        snprintf(c->names[i], sizeof(c->names[i]), "worker %u", i);
        c->tasks[i] = (struct rdzv_task){ "worker", i, c->addresses[i], c->names[i] };
        c->nodes[i] = (struct node){ .cluster = c, .self = i, .code = RUNNING, .grace_ms = 1000 };
        c->nodes[i].progress = (struct rdzv_progress){ .phase = "train",
                                                       .doing = "reduce",
                                                       .doing_since_ms = clock_ms(),
                                                       .samples_per_second = 125,
                                                       .step_seconds = 0.5,
                                                       .share_data = 0.125,
                                                       .share_compute = 0.5,
                                                       .share_reduce = 0.25,
                                                       .share_checkpoint = 0.125,
                                                       .last_trouble = "a disk is slow" };
    }
    c->opts = (struct rdzv_opts){ .version = "1.2",
                                  .job_name = "digits",
                                  .tasks = c->tasks,
                                  .world = world,
                                  .ident = { "1.2", "j0b", "c1u", "worker:a,b", "cpu",
                                             "onednn avx2", "" },
                                  .n_devices = 2,
                                  .host_key = "host",
                                  .min_world = 1,
                                  .rejoin_ms = 0,
                                  .deadline_ms = 20000,
                                  .grace_ms = 1000,
                                  .on_action = on_action,
                                  .on_state = on_state,
                                  .on_checkpoint = on_checkpoint,
                                  .on_reload = on_reload,
                                  .netcheck = on_netcheck,
                                  .on_trace = on_trace };
}

/* Reserves the ports of the cluster, also while a node is dead: a socket that does not listen stays
 * bound to each port. Only sockets with SO_REUSEADDR, i.e. servers, can then bind it. */
static inline struct cluster *new_cluster(uint32_t world)
{
    struct cluster *c = calloc(1, sizeof(*c));
    int on = 1;

    assert_non_null(c);
    for (uint32_t i = 0; i < world; i++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof(a);

        c->reserved[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(c->reserved[i], (struct sockaddr *)&a, n), 0);
        assert_int_equal(setsockopt(c->reserved[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
        assert_int_equal(getsockname(c->reserved[i], (struct sockaddr *)&a, &n), 0);
        snprintf(c->addresses[i], sizeof(c->addresses[i]), "127.0.0.1:%u", ntohs(a.sin_port));
    }
    init_cluster(c, world);
    return c;
}

static inline void *run_node(void *arg)
{
    struct node *n = arg;

    loop_run(n->loop);
    rdzv_close(n->rdzv, n->grace_ms);
    loop_timer_free(n->connecting);
    loop_timer_free(n->storage);
    n->connecting = n->storage = NULL;
    loop_close(n->loop);
    return NULL;
}

static inline void open_rdzv(struct node *n, const struct rdzv_opts *opts)
{
    static _Thread_local char data_address[32];
    struct rdzv_opts o = *opts;
    struct err err = { 0 };

    o.self = n->self;
    o.listen = n->cluster->addresses[n->self];
    o.progress = &n->progress;
    o.arg = n;
    snprintf(data_address, sizeof(data_address), "127.0.0.1:%u", 40000 + n->self);
    o.data_address = data_address;
    if (o.incarnation == 0)
        assert_int_equal(rng_os(&o.incarnation, sizeof(o.incarnation)), 0);
    n->incarnation = o.incarnation;
    n->progress.phase_since_ms = clock_ms();
    assert_int_equal(loop_open(&n->loop, NULL), 0);
    o.loop = n->loop;
    if (rdzv_open(&o, &n->rdzv, &err) < 0)
        fail_msg("%s", err.text);
    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_OPENED });
}

static inline void open_node_with(struct node *n, const struct rdzv_opts *opts)
{
    open_rdzv(n, opts);
    assert_int_equal(pthread_create(&n->thread, NULL, run_node, n), 0);
}

static inline struct node *open_node(struct cluster *c, uint32_t rank)
{
    open_node_with(&c->nodes[rank], &c->opts);
    return &c->nodes[rank];
}

/* Waits until `cond_` holds; the thread that evaluates it owns `lock`. */
#define WAIT_FOR(cond_)                                                                            \
    do {                                                                                           \
        struct wait wait_ = WAIT_BEGIN(#cond_);                                                    \
                                                                                                   \
        for (bool holds_ = false; !holds_;) {                                                      \
            pthread_mutex_lock(&lock);                                                             \
            holds_ = (cond_);                                                                      \
            pthread_mutex_unlock(&lock);                                                           \
            if (!holds_)                                                                           \
                wait_poll(&wait_);                                                                 \
        }                                                                                          \
    } while (0)

/* Returns true if each of these ranks ("012") that runs in this process is in a view of exactly
 * these ranks. */
static inline bool is_group(struct cluster *c, const char *ranks)
{
    uint64_t generation = 0;

    for (const char *at = ranks; *at != '\0'; at++) {
        struct node *n = &c->nodes[*at - '0'];

        if (n->loop == NULL)
            continue;
        if (!n->is_training || n->n_members != strlen(ranks) ||
            (generation != 0 && n->generation != generation))
            return false;
        for (uint32_t i = 0; i < n->n_members; i++)
            if (n->ranks[i] != (uint32_t)(ranks[i] - '0'))
                return false;
        generation = n->generation;
    }
    return true;
}

/* Resets the counters and the trace. */
static inline void start_counting(struct cluster *c)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < c->world; i++) {
        struct node *n = &c->nodes[i];

        n->n_pauses = n->n_aborts = 0;
        n->aborted[0] = '\0';
        if (n->trace != NULL)
            n->trace[0] = '\0';
    }
    pthread_mutex_unlock(&lock);
}

static inline struct cluster *open_cluster(uint32_t world)
{
    struct cluster *c = new_cluster(world);
    char all[WORLD_MAX + 1];

    for (uint32_t i = 0; i < world; i++)
        open_node(c, i);
    snprintf(all, sizeof(all), "%.*s", (int)world, "01234567");
    WAIT_FOR(is_group(c, all)); /* one view, or several as the tasks arrive */
    start_counting(c);
    return c;
}

static inline void post(struct node *n, loop_fn *fn)
{
    loop_post(n->loop, fn, n);
}

static inline void do_complete(void *arg)
{
    struct node *n = arg;

    SEEN(n->is_training = false);
    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_COMPLETE, .generation = n->generation, .held = n->progress.step });
}

static inline void do_stop(void *arg)
{
    rdzv_report(((struct node *)arg)->rdzv, &(struct member_event){ .kind = MEMBER_EV_STOP });
}

static inline void do_step(void *arg)
{
    struct node *n = arg;

    n->progress.step++;
    n->progress.place++;
}

static inline void fail_here(struct node *n, enum member_failure kind, const char *text)
{
    SEEN(n->is_training = false);
    rdzv_report(n->rdzv, &(struct member_event){ .kind = MEMBER_EV_FAILED, .generation = n->generation, .held = n->progress.step, .failure = kind, .text = text });
}

static inline void do_fail_input(void *arg)
{
    fail_here(arg, MEMBER_FAIL_INPUT, "the loss is NaN");
}

static inline void do_fail_local(void *arg)
{
    fail_here(arg, MEMBER_FAIL_LOCAL, "the device fell off");
}

/* Blocks the loop until the test ends it. The threads of gRPC continue. */
static inline void do_hang(void *arg)
{
    const struct node *n = arg;

    WAIT_UNTIL(__atomic_load_n(&n->is_resumed, __ATOMIC_ACQUIRE));
}

/* Closes all sockets without last messages. */
static inline void do_die(void *arg)
{
    struct node *n = arg;

    SEEN(n->grace_ms = 0);
    loop_stop(n->loop);
}

/* Ends the task, if it has not ended. It can be opened again. */
static inline void join_node(struct node *n)
{
    pthread_join(n->thread, NULL);
    n->loop = NULL;
}

/* Starts the next process of the same task. */
static inline void reopen_node(struct cluster *c, uint32_t rank)
{
    struct node *n = &c->nodes[rank];
    char *trace = n->trace;

    *n = (struct node){ .cluster = c, .self = rank, .code = RUNNING, .grace_ms = 1000,
                        .trace = trace };
    n->progress = (struct rdzv_progress){ .phase = "train", .doing = "reduce",
                                          .doing_since_ms = clock_ms() };
    open_node(c, rank);
}

static inline void kill_node(struct cluster *c, uint32_t rank)
{
    post(&c->nodes[rank], do_die);
    join_node(&c->nodes[rank]);
}

/* Ends all tasks that run, and joins all threads. */
static inline void close_cluster(struct cluster *c)
{
    for (uint32_t i = 0; i < c->world; i++) {
        struct node *n = &c->nodes[i];

        if (n->pid > 0) {
            kill(n->pid, SIGKILL);
            waitpid(n->pid, NULL, 0);
        }
        if (n->loop != NULL) {
            pthread_mutex_lock(&lock);
            if (n->code == RUNNING)
                post(n, do_die);
            pthread_mutex_unlock(&lock);
            pthread_join(n->thread, NULL);
        }
        if (c->reserved[i] > 0)
            close(c->reserved[i]);
        free(n->trace);
    }
    free(c);
}

/* ---- as processes ---- */

/* main() of a program that uses spawn_node() calls this first: `PROGRAM task RANK ADDRESS...` runs
 * a task until it ends or is killed. */
static inline void run_as_task(int argc, char **argv)
{
    struct cluster *c;
    struct node *n;

    if (argc < 4 || strcmp(argv[1], "task") != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c = calloc(1, sizeof(*c));
    for (int i = 3; i < argc; i++)
        snprintf(c->addresses[i - 3], sizeof(c->addresses[0]), "%s", argv[i]);
    init_cluster(c, (uint32_t)argc - 3);
    n = &c->nodes[atoi(argv[2])];
    open_rdzv(n, &c->opts);
    run_node(n);
    exit(n->code);
}

static inline void spawn_node(struct cluster *c, uint32_t rank)
{
    extern char **environ;
    char number[12], *argv[WORLD_MAX + 4] = { "/proc/self/exe", "task", number };

    snprintf(number, sizeof(number), "%u", rank);
    for (uint32_t i = 0; i < c->world; i++)
        argv[3 + i] = c->addresses[i];
    assert_int_equal(posix_spawn(&c->nodes[rank].pid, argv[0], NULL, NULL, argv, environ), 0);
}

static inline void reap_node(struct cluster *c, uint32_t rank)
{
    waitpid(c->nodes[rank].pid, NULL, 0);
    c->nodes[rank].pid = 0;
}

#endif
