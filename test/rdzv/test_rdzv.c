/* test_rdzv.c - real tasks of one cluster on loopback, each with a loop and a thread of its own. */
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
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "loop/loop.h"
#include "proto/trainerd.pb-c.h"
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
    char addresses[WORLD_MAX][32], names[WORLD_MAX][16];
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

static void on_move(void *arg, const struct member_move *move, uint64_t in_state_ms)
{
    struct node *n = arg;

    (void)in_state_ms;
    SEEN(n->state = move->to);
}

static void on_waiting(void *arg, const char *text)
{
    struct node *n = arg;

    SEEN(snprintf(n->waiting, sizeof(n->waiting), "%s", text));
}

static void on_view(void *arg, const struct rdzv_view *v)
{
    struct node *n = arg;

    SEEN(n->generation = v->generation; n->n_members = v->n_members; n->view_ms = clock_ms();
         memcpy(n->key, v->key, sizeof(n->key)));
    rdzv_set_serving(n->rdzv, true);
}

static void on_drain(void *arg, bool everywhere)
{
    struct node *n = arg;

    (void)everywhere;
    SEEN(n->n_drains++);
}

static void on_abort(void *arg, const char *text)
{
    struct node *n = arg;

    SEEN(snprintf(n->aborted, sizeof(n->aborted), "%s", text));
}

static void on_end(void *arg, int code, const char *text)
{
    struct node *n = arg;

    assert_int_equal(n->code, RUNNING); /* exactly once */
    SEEN(n->code = code; snprintf(n->text, sizeof(n->text), "%s", text));
    loop_stop(n->loop);
}

static void on_checkpoint(void *arg)
{
    struct node *n = arg;

    if (n->self == 0)
        rdzv_checkpoint_done(n->rdzv, 42, "run/step-00000042", NULL);
    else
        rdzv_checkpoint_done(n->rdzv, 0, "", "this task does not write checkpoints: ask the chief");
}

/* ---- tasks ---- */

/* Ports that were free a moment ago. */
static struct cluster *new_cluster(uint32_t world)
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
                                  .ident = { "1.2", "j0b", "c1u", "worker:a,b", "cpu", "onednn avx2", "" },
                                  .n_devices = 2,
                                  .data_address = "127.0.0.1:9",
                                  .host_key = "host",
                                  .deadline_ms = 20000,
                                  .heartbeat_ms = 100,
                                  .silent_ms = SILENT_MS,
                                  .on_move = on_move,
                                  .on_waiting = on_waiting,
                                  .on_view = on_view,
                                  .on_drain = on_drain,
                                  .on_abort = on_abort,
                                  .on_end = on_end,
                                  .on_checkpoint = on_checkpoint };
    return c;
}

static void *run_node(void *arg)
{
    struct node *n = arg;

    loop_run(n->loop);
    rdzv_close(n->rdzv, n->grace_ms);
    loop_close(n->loop);
    return NULL;
}

static void open_node_with(struct node *n, const struct rdzv_opts *opts)
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

static struct node *open_node(struct cluster *c, uint32_t rank)
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

static void wait_for_views(struct cluster *c)
{
    for (uint32_t i = 0; i < c->world; i++)
        WAIT_FOR(SOON_MS, c->nodes[i].generation == 1);
}

static struct cluster *open_cluster(uint32_t world)
{
    struct cluster *c = new_cluster(world);

    for (uint32_t i = 0; i < world; i++)
        open_node(c, i);
    wait_for_views(c);
    return c;
}

static void post(struct node *n, loop_fn *fn)
{
    loop_post(n->loop, fn, n);
}

static void do_complete(void *arg)
{
    rdzv_complete(((struct node *)arg)->rdzv);
}

static void do_stop(void *arg)
{
    rdzv_stop(((struct node *)arg)->rdzv, false);
}

static void do_stopped_here(void *arg)
{
    rdzv_stopped(((struct node *)arg)->rdzv, true, "");
}

static void do_stopped_with_a_peer(void *arg)
{
    rdzv_stopped(((struct node *)arg)->rdzv, false, "worker 1 was asked to leave");
}

static void do_fail(void *arg)
{
    rdzv_failed(((struct node *)arg)->rdzv, 2, "loss is NaN");
}

static void do_hang(void *arg)
{
    (void)arg;
    usleep((SILENT_MS + 500) * 1000); /* the loop is stuck; gRPC's own threads are not */
}

static void do_die(void *arg)
{
    struct node *n = arg;

    SEEN(n->grace_ms = 0);
    loop_stop(n->loop);
}

/* Ends what still runs, and joins all threads that were started. */
static void close_cluster(struct cluster *c)
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

/* ---- meeting ---- */

static void two_tasks_meet_within_milliseconds(void **state)
{
    uint64_t best_ms = UINT64_MAX;

    (void)state;
    for (int round = 0; round < 5; round++) {
        struct cluster *c = new_cluster(2);
        uint64_t start_ms = clock_ms(), last_ms;

        open_node(c, 1); /* the coordinator is not there yet: the first attempt fails */
        open_node(c, 0);
        wait_for_views(c);
        last_ms = c->nodes[0].view_ms > c->nodes[1].view_ms ? c->nodes[0].view_ms : c->nodes[1].view_ms;
        best_ms = last_ms - start_ms < best_ms ? last_ms - start_ms : best_ms;
        assert_int_equal(c->nodes[1].n_members, 2);
        assert_memory_equal(c->nodes[0].key, c->nodes[1].key, 32);
        assert_string_equal(c->nodes[0].waiting, ""); /* a fast start is silent */
        close_cluster(c);
    }
    print_message("two tasks met within %u ms\n", (unsigned)best_ms);
    assert_true(best_ms < 250); /* 5 to 40 on a machine with nothing else to do */
}

static void a_coordinator_that_comes_late_is_found_at_once(void **state)
{
    struct cluster *c = new_cluster(2);
    uint64_t start_ms;

    (void)state;
    open_node(c, 1);
    usleep(300000);
    start_ms = clock_ms();
    open_node(c, 0);
    wait_for_views(c);
    assert_true(c->nodes[1].view_ms - start_ms < 400); /* a pause is at most 15 ms * 1.5 here */
    close_cluster(c);
}

static void a_mismatch_is_refused_with_both_sides(void **state)
{
    struct cluster *c = new_cluster(2);
    struct rdzv_opts other = c->opts;

    (void)state;
    open_node(c, 0);
    other.ident.job_digest = "0ther";
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "refused by the coordinator worker 0 (127.0.0.1:"));
    assert_non_null(strstr(c->nodes[1].text, "it has '0ther', the coordinator has 'j0b'"));
    close_cluster(c);
}

static void who_calls_a_task_that_is_not_the_coordinator_is_told_who_is(void **state)
{
    struct cluster *c = new_cluster(3);
    struct rdzv_opts other = c->opts;

    (void)state;
    open_node(c, 1);
    other.coordinator = 1;
    open_node_with(&c->nodes[2], &other);
    WAIT_FOR(SOON_MS, c->nodes[2].code == 2);
    assert_non_null(strstr(c->nodes[2].text, "this is worker 1 (127.0.0.1:"));
    assert_non_null(strstr(c->nodes[2].text, "; the coordinator is worker 0 (127.0.0.1:"));
    close_cluster(c);
}

static void a_second_process_of_a_task_takes_its_place_and_the_first_leaves(void **state)
{
    struct cluster *c = new_cluster(3);
    struct node *second = &c->nodes[2];

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_WAITING);
    /* the same task once more, on another port, where nobody looks */
    second->self = 1;
    strcpy(c->addresses[1], c->addresses[2]);
    open_node_with(second, &c->opts);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "another process joined as this task; this one leaves"));
    WAIT_FOR(SOON_MS, second->state == MEMBER_WAITING);
    close_cluster(c);
}

static void waiting_names_who_is_missing_and_why_until_the_deadline(void **state)
{
    struct cluster *c = new_cluster(2), *alone = new_cluster(2);
    struct node *chief = &c->nodes[0], *worker = &alone->nodes[1];
    char expected[256];

    (void)state;
    c->opts.deadline_ms = alone->opts.deadline_ms = 2500;
    open_node(c, 0);
    open_node(alone, 1);
    WAIT_FOR(3000, chief->waiting[0] != '\0');
    WAIT_FOR(3000, worker->waiting[0] != '\0');
    snprintf(expected, sizeof(expected), "waiting 2 s for 1 of 2 tasks: worker 1 (%s): connect: Connection refused",
             c->addresses[1]);
    assert_string_equal(chief->waiting, expected);
    snprintf(expected, sizeof(expected), "cannot reach the coordinator worker 0 (%s), 2 s: connect: Connection refused",
             alone->addresses[0]);
    assert_string_equal(worker->waiting, expected);
    WAIT_FOR(SOON_MS, chief->code == 138);
    WAIT_FOR(SOON_MS, worker->code == 138);
    assert_non_null(strstr(chief->text, "s of waiting for 1 of 2 tasks: worker 1 (127.0.0.1:"));
    assert_non_null(strstr(worker->text, "s: cannot reach the coordinator worker 0 (127.0.0.1:"));
    close_cluster(c);
    close_cluster(alone);
}

static void an_address_in_use_is_an_error_that_says_so(void **state)
{
    struct cluster *c = new_cluster(2);
    struct rdzv_opts o = c->opts;
    struct rdzv *r = NULL;
    struct loop *l;
    struct err err;

    (void)state;
    open_node(c, 0);
    assert_int_equal(loop_open(&l, NULL), 0);
    o.loop = l;
    o.progress = &c->nodes[1].progress;
    o.listen = c->addresses[0];
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_IO);
    assert_non_null(strstr(err.text, ": address already in use, perhaps by another run of this task; `ss -ltnp"));
    o.listen = "192.0.2.1:7777";
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "listen on 192.0.2.1:7777: not an address of this host"));
    o.listen = "here";
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_INPUT);
    assert_string_equal(err.text, "listen on 'here': expected HOST:PORT");
    o.listen = c->addresses[1];
    o.token = "two\nlines";
    assert_int_equal(rdzv_open(&o, &r, &err), ERR_INPUT);
    assert_null(r);
    loop_close(l);
    close_cluster(c);
}

/* ---- losing ---- */

static void a_dead_task_is_everybodys_news_within_milliseconds(void **state)
{
    struct cluster *c = open_cluster(4);
    uint64_t start_ms = clock_ms();

    (void)state;
    post(&c->nodes[2], do_die);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 2)
            WAIT_FOR(SOON_MS, c->nodes[i].code != RUNNING);
    assert_true(clock_ms() - start_ms < SILENT_MS); /* by the closed stream, not by silence */
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        assert_int_equal(c->nodes[i].code, 138);
        assert_non_null(strstr(c->nodes[i].text, "worker 2 (127.0.0.1:"));
        assert_non_null(strstr(c->nodes[i].text, ") is lost: its connection closed; last heard "));
        assert_string_equal(c->nodes[i].aborted, c->nodes[i].text);
    }
    close_cluster(c);
}

static void a_task_with_a_stuck_loop_is_silent_and_named(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    usleep(150000); /* a heartbeat, so that the phase is known */
    post(&c->nodes[1], do_hang);
    for (uint32_t i = 0; i < 3; i++)
        WAIT_FOR(SOON_MS, c->nodes[i].code == 138);
    for (uint32_t i = 0; i < 3; i++) { /* itself too, when it wakes up */
        assert_non_null(strstr(c->nodes[i].text, "worker 1 (127.0.0.1:"));
        assert_non_null(strstr(c->nodes[i].text, ") is lost: silent for 0."));
        assert_non_null(strstr(c->nodes[i].text, " in phase train, step 7 since "));
    }
    close_cluster(c);
}

static void a_dead_coordinator_ends_the_others(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[0], do_die);
    for (uint32_t i = 1; i < 3; i++) {
        WAIT_FOR(SOON_MS, c->nodes[i].code == 138);
        assert_non_null(strstr(c->nodes[i].text, "lost the coordinator worker 0 (127.0.0.1:"));
    }
    close_cluster(c);
}

static void an_error_on_one_task_is_told_to_all(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_fail);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_string_equal(c->nodes[1].text, "loss is NaN");
    for (uint32_t i = 0; i < 3; i += 2) {
        WAIT_FOR(SOON_MS, c->nodes[i].code == 138);
        assert_non_null(strstr(c->nodes[i].text, ") failed in step 8: loss is NaN"));
    }
    close_cluster(c);
}

/* ---- leaving ---- */

static void nobody_leaves_complete_before_the_coordinator_does(void **state)
{
    struct cluster *c = open_cluster(3);

    (void)state;
    post(&c->nodes[1], do_complete);
    post(&c->nodes[2], do_complete);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_LEAVING && c->nodes[2].state == MEMBER_LEAVING);
    usleep((SILENT_MS + 200) * 1000); /* a checkpoint takes its time: those parked are not silent */
    assert_int_equal(c->nodes[1].code, RUNNING);
    post(&c->nodes[0], do_complete);
    for (uint32_t i = 0; i < 3; i++) {
        WAIT_FOR(SOON_MS, c->nodes[i].code != RUNNING);
        assert_int_equal(c->nodes[i].code, 0);
        assert_string_equal(c->nodes[i].text, "the job is complete");
        assert_string_equal(c->nodes[i].aborted, "");
    }
    close_cluster(c);
}

static void complete_is_not_safe_if_the_coordinator_dies_first(void **state)
{
    struct cluster *c = open_cluster(2);

    (void)state;
    post(&c->nodes[1], do_complete);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_LEAVING);
    post(&c->nodes[0], do_die);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 138);
    assert_non_null(strstr(c->nodes[1].text, "complete here, but the coordinator worker 0 ("));
    close_cluster(c);
}

static void a_drain_ends_with_143_where_it_was_asked_for(void **state)
{
    struct cluster *c = open_cluster(2);

    (void)state;
    post(&c->nodes[1], do_stop);
    WAIT_FOR(SOON_MS, c->nodes[1].n_drains == 1);
    assert_int_equal(c->nodes[0].n_drains, 0); /* the data plane tells the others */
    post(&c->nodes[1], do_stopped_here);
    post(&c->nodes[0], do_stopped_with_a_peer);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 143);
    WAIT_FOR(SOON_MS, c->nodes[0].code == 138);
    assert_string_equal(c->nodes[0].text, "stopped with the group: worker 1 was asked to leave");
    close_cluster(c);
}

static void a_stop_before_the_group_is_complete_saves_nothing(void **state)
{
    struct cluster *c = new_cluster(3);

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_WAITING);
    post(&c->nodes[1], do_stop);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 143);
    post(&c->nodes[0], do_stop);
    WAIT_FOR(SOON_MS, c->nodes[0].code == 143);
    close_cluster(c);
}

/* ---- control ---- */

static Trainerd__V1__StatusReply *status(const char *address, const char *token)
{
    Trainerd__V1__StatusReply *s;
    struct err err = { 0 };
    void *packed;
    size_t n;

    if (rdzv_call(address, token, "Status", SOON_MS, &packed, &n, &err) < 0)
        fail_msg("%s", err.text);
    s = trainerd__v1__status_reply__unpack(NULL, n, packed);
    free(packed);
    assert_non_null(s);
    return s;
}

static void status_says_who_is_in_and_how_it_goes(void **state)
{
    struct cluster *c = open_cluster(2);
    Trainerd__V1__StatusReply *s;

    (void)state;
    usleep(150000); /* a heartbeat */
    s = status(c->addresses[0], NULL);
    assert_string_equal(s->state, "active");
    assert_string_equal(s->job, "digits");
    assert_string_equal(s->self->address, c->addresses[0]);
    assert_int_equal(s->generation, 1);
    assert_int_equal(s->n_tasks, 2);
    assert_string_equal(s->tasks[1]->state, "active");
    assert_string_equal(s->tasks[1]->phase, "train");
    assert_int_equal(s->tasks[1]->step, 7);
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    s = status(c->addresses[1], "");
    assert_int_equal(s->n_tasks, 0);
    assert_int_equal(s->self->index, 1);
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    close_cluster(c);
}

static void checkpoint_and_drain_are_answered_or_refused(void **state)
{
    struct cluster *c = open_cluster(2);
    Trainerd__V1__CheckpointReply *reply;
    struct err err = { 0 };
    void *packed = NULL;
    size_t n;

    (void)state;
    assert_int_equal(rdzv_call(c->addresses[0], NULL, "Checkpoint", SOON_MS, &packed, &n, &err), 0);
    reply = trainerd__v1__checkpoint_reply__unpack(NULL, n, packed);
    free(packed);
    assert_int_equal(reply->step, 42);
    assert_string_equal(reply->path, "run/step-00000042");
    trainerd__v1__checkpoint_reply__free_unpacked(reply, NULL);
    assert_int_equal(rdzv_call(c->addresses[1], NULL, "Checkpoint", SOON_MS, &packed, &n, &err), ERR_REFUSED);
    assert_non_null(strstr(err.text, ": this task does not write checkpoints: ask the chief"));
    assert_int_equal(rdzv_call(c->addresses[1], NULL, "Drain", SOON_MS, &packed, &n, &err), 0);
    free(packed);
    WAIT_FOR(SOON_MS, c->nodes[1].n_drains == 1);
    post(&c->nodes[1], do_stopped_here);
    WAIT_FOR(SOON_MS, c->nodes[1].state == MEMBER_LEAVING);
    assert_int_equal(rdzv_call(c->addresses[1], NULL, "Drain", SOON_MS, &packed, &n, &err), ERR_REFUSED);
    assert_int_equal(rdzv_call("127.0.0.1:1", NULL, "Status", SOON_MS, &packed, &n, &err), ERR_PEER);
    assert_string_equal(err.text, "Status of 127.0.0.1:1: connect: Connection refused");
    close_cluster(c);
}

static void stop_ends_all_that_wait_for_a_group(void **state)
{
    struct cluster *c = new_cluster(3);
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, c->nodes[0].state == MEMBER_WAITING && c->nodes[1].state == MEMBER_WAITING);
    assert_int_equal(rdzv_call(c->addresses[1], NULL, "Stop", SOON_MS, &packed, &n, &err), ERR_REFUSED);
    assert_non_null(strstr(err.text, "send Stop to its coordinator, worker 0 ("));
    assert_int_equal(rdzv_call(c->addresses[0], NULL, "Stop", SOON_MS, &packed, &n, &err), 0);
    free(packed);
    WAIT_FOR(SOON_MS, c->nodes[0].code == 143);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 143);
    close_cluster(c);
}

static void a_token_is_demanded_from_everybody(void **state)
{
    struct cluster *c = new_cluster(2);
    struct rdzv_opts other;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    c->opts.token = "secret";
    other = c->opts;
    other.token = "Secret";
    open_node(c, 0);
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "the caller does not know it"));
    assert_int_equal(rdzv_call(c->addresses[0], NULL, "Status", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_int_equal(rdzv_call(c->addresses[0], "secret ", "Status", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_int_equal(rdzv_call(c->addresses[0], "a\nb", "Status", SOON_MS, &packed, &n, &err), ERR_INPUT);
    trainerd__v1__status_reply__free_unpacked(status(c->addresses[0], "secret"), NULL);
    close_cluster(c);
}

/* client.py: Python's gRPC with our .proto files. */
static void an_independent_client_agrees(void **state)
{
    const char *directory_end = strrchr(__FILE__, '/');
    struct cluster *c = new_cluster(2);
    char command[512];

    (void)state;
    c->opts.token = "secret";
    open_node(c, 0);
    open_node(c, 1);
    wait_for_views(c);
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(command, sizeof(command), "python3 '%.*s/client.py' %s secret >&2",
                 (int)(directory_end - __FILE__), __FILE__, c->addresses[i]);
        assert_int_equal(system(command), 0);
    }
    close_cluster(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tasks_meet_within_milliseconds),
        cmocka_unit_test(a_coordinator_that_comes_late_is_found_at_once),
        cmocka_unit_test(a_mismatch_is_refused_with_both_sides),
        cmocka_unit_test(who_calls_a_task_that_is_not_the_coordinator_is_told_who_is),
        cmocka_unit_test(a_second_process_of_a_task_takes_its_place_and_the_first_leaves),
        cmocka_unit_test(waiting_names_who_is_missing_and_why_until_the_deadline),
        cmocka_unit_test(an_address_in_use_is_an_error_that_says_so),
        cmocka_unit_test(a_dead_task_is_everybodys_news_within_milliseconds),
        cmocka_unit_test(a_task_with_a_stuck_loop_is_silent_and_named),
        cmocka_unit_test(a_dead_coordinator_ends_the_others),
        cmocka_unit_test(an_error_on_one_task_is_told_to_all),
        cmocka_unit_test(nobody_leaves_complete_before_the_coordinator_does),
        cmocka_unit_test(complete_is_not_safe_if_the_coordinator_dies_first),
        cmocka_unit_test(a_drain_ends_with_143_where_it_was_asked_for),
        cmocka_unit_test(a_stop_before_the_group_is_complete_saves_nothing),
        cmocka_unit_test(status_says_who_is_in_and_how_it_goes),
        cmocka_unit_test(checkpoint_and_drain_are_answered_or_refused),
        cmocka_unit_test(stop_ends_all_that_wait_for_a_group),
        cmocka_unit_test(a_token_is_demanded_from_everybody),
        cmocka_unit_test(an_independent_client_agrees),
    };

    return cmocka_run_group_tests_name("rdzv/rdzv", tests, NULL, NULL);
}
