/* The communicator of the plugin (lib/comm/nccl.cu), between processes and between threads, with
 * the emulated NCCL. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "device/cuda.h"
#include "device/device.h"
#include "harness/process.h"
#include "harness/wait.h"

extern const struct cuda_api trainerd_cuda_plugin;
#define CUDA (&trainerd_cuda_plugin)

enum { RANKS_MAX = 4, N = 1000 };

/* Memory shared by the processes of a test. */
static struct shared {
    unsigned char id[CUDA_ID_BYTES];
    int has_id;
    int at[RANKS_MAX]; /* progress of each rank */
    char said[RANKS_MAX][ERR_TEXT_BYTES];
    int code[RANKS_MAX];
} *shared;

struct rank {
    uint32_t rank, world, gpu;
    struct cancel cancel;
    struct cuda_comm *comm;
    struct cuda_stream *stream;
    float *x;
    struct err err;
};

#define MUST(call) CHECK((call) == 0)

static void set_at(const struct rank *r, int at)
{
    __atomic_store_n(&shared->at[r->rank], at, __ATOMIC_RELEASE);
}

static void wait_at(uint32_t rank, int at)
{
    WAIT_UNTIL(__atomic_load_n(&shared->at[rank], __ATOMIC_ACQUIRE) >= at);
}

/* Returns 0, or the error of the connection. */
static int connect_rank(struct rank *r, uint32_t limit_ms)
{
    struct wait wait = WAIT_BEGIN("connected");
    uint64_t begin = clock_ms();
    int rc;

    MUST(CUDA->enter(r->gpu, &r->err));
    MUST(CUDA->stream_open(CUDA_HIGH_PRIORITY, &r->stream, &r->err));
    MUST(CUDA->alloc((void **)&r->x, N * sizeof(float), &r->err));
    if (r->rank == 0) {
        MUST(CUDA->comm_id(shared->id, &r->err));
        __atomic_store_n(&shared->has_id, 1, __ATOMIC_RELEASE);
    }
    WAIT_UNTIL(__atomic_load_n(&shared->has_id, __ATOMIC_ACQUIRE) != 0);
    rc = CUDA->comm_open(shared->id, r->rank, r->world, &r->cancel, &r->comm, &r->err);
    if (rc < 0)
        return rc;
    while ((rc = CUDA->comm_state(r->comm, &r->err)) == 0) {
        if (clock_ms() - begin > limit_ms)
            return err_set(&r->err, ERR_TIMEOUT, "not connected");
        wait_nap(&wait);
    }
    return rc < 0 ? rc : 0;
}

static float number(uint32_t rank, uint32_t i)
{
    return (float)(rank + 1) * 0.1f + (float)i;
}

static void set_x(struct rank *r)
{
    float x[N];

    for (uint32_t i = 0; i < N; i++)
        x[i] = number(r->rank, i);
    MUST(CUDA->copy(r->x, x, sizeof(x), r->stream, &r->err));
    MUST(device_wait(CUDA, r->stream, NULL, NULL, &r->err)); /* the host may use x again */
}

static bool is_sum(struct rank *r, uint32_t from, uint32_t to)
{
    float x[N];

    MUST(CUDA->copy(x, r->x, sizeof(x), r->stream, &r->err));
    MUST(device_wait(CUDA, r->stream, NULL, NULL, &r->err));
    for (uint32_t i = 0; i < N; i++) {
        float want = i >= from && i < to ? 0 : number(r->rank, i);

        for (uint32_t k = 0; i >= from && i < to && k < r->world; k++)
            want = k == 0 ? number(0, i) : want + number(k, i);
        if (x[i] != want)
            return false;
    }
    return true;
}

/* Waits until the sum is done or fails, or until limit_ms have passed. */
static int wait_sum(struct rank *r, uint32_t limit_ms)
{
    uint64_t begin = clock_ms();
    int rc;

    while ((rc = CUDA->done(r->stream, NULL, &r->err)) == 0) {
        rc = CUDA->comm_state(r->comm, &r->err);
        if (rc < 0)
            return rc;
        if (clock_ms() - begin > limit_ms)
            return err_set(&r->err, ERR_TIMEOUT, "the sum does not come");
    }
    return rc < 0 ? rc : 0;
}

static void close_rank(struct rank *r)
{
    CUDA->free(r->x);
    CUDA->stream_close(r->stream);
}

/* ---- scenes: the work of a rank ---- */

static void sums_and_closes(struct rank *r)
{
    MUST(connect_rank(r, 10000));
    set_x(r);
    MUST(CUDA->comm_all_reduce(r->comm, r->x, N, r->stream, &r->err));
    MUST(CUDA->comm_all_reduce(r->comm, r->x, 0, r->stream, &r->err));
    MUST(wait_sum(r, 10000));
    CHECK(is_sum(r, 0, N));
    set_x(r);
    MUST(CUDA->comm_all_reduce(r->comm, r->x + 10, 20, r->stream, &r->err));
    MUST(CUDA->comm_all_reduce(r->comm, r->x + 30, 5, r->stream, &r->err));
    MUST(wait_sum(r, 10000));
    CHECK(is_sum(r, 10, 35));
    MUST(CUDA->comm_close(r->comm, &r->err));
    close_rank(r);
}

static void captures_and_launches(struct rank *r)
{
    struct cuda_graph *g;

    MUST(connect_rank(r, 10000));
    for (int first = 1; first >= 0; first--) { /* a capture of the first sum, too */
        MUST(CUDA->capture_begin(r->stream, &r->err));
        MUST(CUDA->comm_all_reduce(r->comm, r->x, 100, r->stream, &r->err));
        MUST(CUDA->comm_all_reduce(r->comm, r->x + 100, N - 100, r->stream, &r->err));
        MUST(CUDA->capture_end(r->stream, &g, &r->err));
        for (int i = 0; i < 3; i++) {
            set_x(r);
            MUST(CUDA->launch(g, r->stream, &r->err));
            MUST(wait_sum(r, 10000));
            CHECK(is_sum(r, 0, N));
        }
        CUDA->graph_close(g);
    }
    MUST(CUDA->comm_close(r->comm, &r->err));
    close_rank(r);
}

/* The last rank is killed after all are connected; the others report it, and their sum, and a shorter one after it, end
 * only by the abort. */
static void loses_last_rank(struct rank *r)
{
    MUST(connect_rank(r, 10000));
    if (r->rank == r->world - 1) {
        for (uint32_t i = 0; i + 1 < r->world; i++)
            wait_at(i, 1);
        kill(getpid(), SIGKILL);
    }
    set_x(r);
    MUST(CUDA->comm_all_reduce(r->comm, r->x, N, r->stream, &r->err));
    MUST(CUDA->comm_all_reduce(r->comm, r->x, N / 2, r->stream, &r->err));
    set_at(r, 1);
    shared->code[r->rank] = wait_sum(r, 10000);
    snprintf(shared->said[r->rank], ERR_TEXT_BYTES, "%s", r->err.text);
    CHECK(CUDA->done(r->stream, NULL, &r->err) == 0); /* it waits, and would for ever */
    MUST(CUDA->comm_abort(r->comm, &r->err));
    MUST(device_wait(CUDA, r->stream, NULL, NULL, &r->err));
    close_rank(r);
}

/* The same with a captured sum, whose graph is closed while it executes. */
static void loses_last_rank_in_graph(struct rank *r)
{
    struct cuda_graph *g;

    MUST(connect_rank(r, 10000));
    if (r->rank == r->world - 1) {
        for (uint32_t i = 0; i + 1 < r->world; i++)
            wait_at(i, 1);
        kill(getpid(), SIGKILL);
    }
    set_x(r);
    MUST(CUDA->capture_begin(r->stream, &r->err));
    MUST(CUDA->comm_all_reduce(r->comm, r->x, N, r->stream, &r->err));
    MUST(CUDA->capture_end(r->stream, &g, &r->err));
    MUST(CUDA->launch(g, r->stream, &r->err));
    set_at(r, 1);
    CHECK(wait_sum(r, 10000) == ERR_PEER);
    CUDA->graph_close(g);
    MUST(CUDA->comm_abort(r->comm, &r->err));
    MUST(device_wait(CUDA, r->stream, NULL, NULL, &r->err));
    close_rank(r);
}

/* An open graph keeps the communicator alive. */
static void keeps_graph_open(struct rank *r)
{
    struct cuda_graph *g;

    MUST(connect_rank(r, 10000));
    MUST(CUDA->capture_begin(r->stream, &r->err));
    MUST(CUDA->comm_all_reduce(r->comm, r->x, N, r->stream, &r->err));
    MUST(CUDA->capture_end(r->stream, &g, &r->err));
    shared->code[r->rank] = CUDA->comm_abort(r->comm, &r->err);
    fflush(NULL);
    _exit(0);
}

/* At least one of two ranks waits in vain. */
static void aborts_sum(struct rank *r)
{
    MUST(connect_rank(r, 10000));
    MUST(CUDA->comm_all_reduce(r->comm, r->x, N, r->stream, &r->err));
    shared->code[r->rank] = wait_sum(r, 300);
    snprintf(shared->said[r->rank], ERR_TEXT_BYTES, "%s", r->err.text);
    set_at(r, 1);
    wait_at(1 - r->rank, 1);
    MUST(CUDA->comm_abort(r->comm, &r->err));
    MUST(device_wait(CUDA, r->stream, NULL, NULL, &r->err));
    close_rank(r);
}

/* The last rank never connects. */
static void waits_for_last_rank(struct rank *r)
{
    if (r->rank == r->world - 1) {
        wait_at(0, 1);
        return;
    }
    shared->code[r->rank] = connect_rank(r, 300);
    set_at(r, 1);
    for (uint32_t i = 0; i + 1 < r->world; i++)
        wait_at(i, 1);
    MUST(CUDA->comm_abort(r->comm, &r->err));
    close_rank(r);
}

/* One of two ranks waits in vain. */
static void connects_in_vain(struct rank *r)
{
    shared->code[r->rank] = connect_rank(r, 300);
    set_at(r, 1);
    wait_at(1 - r->rank, 1);
    MUST(CUDA->comm_abort(r->comm, &r->err));
    close_rank(r);
}

static void connects(struct rank *r)
{
    shared->code[r->rank] = connect_rank(r, 5000);
    snprintf(shared->said[r->rank], ERR_TEXT_BYTES, "%s", r->err.text);
    MUST(CUDA->comm_abort(r->comm, &r->err));
    close_rank(r);
}

/* Only one rank closes, which is cancelled; the other one aborts without notice. */
static void closes_alone(struct rank *r)
{
    MUST(connect_rank(r, 10000));
    set_at(r, 1);
    wait_at(1 - r->rank, 1);
    if (r->rank == 1) {
        wait_at(0, 2);
        MUST(CUDA->comm_abort(r->comm, &r->err));
        close_rank(r);
        return;
    }
    cancel_set(&r->cancel, true);
    MUST(CUDA->comm_close(r->comm, &r->err));
    close_rank(r);
    set_at(r, 2);
}

static void cannot_be_aborted(struct rank *r)
{
    MUST(connect_rank(r, 10000));
    shared->code[r->rank] = CUDA->comm_abort(r->comm, &r->err);
    snprintf(shared->said[r->rank], ERR_TEXT_BYTES, "%s", r->err.text);
    fflush(NULL);
    _exit(0); /* the communicator and its stream cannot be stopped */
}

/* ---- running scenes ---- */

static void begin_scene(void)
{
    memset(shared, 0, sizeof(*shared));
}

static pid_t start_process(void (*run_scene)(struct rank *r), uint32_t rank, uint32_t world,
                           const char *setting)
{
    pid_t pid = process_fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct rank r = { .rank = rank, .world = world };

        char host[16]; /* all on one GPU, each with its own host id */

        snprintf(host, sizeof(host), "host%u", rank);
        setenv("NCCL_HOSTID", host, 1);
        alarm(WAIT_GUARD_S);
        if (setting != NULL)
            putenv((char *)(uintptr_t)setting);
        run_scene(&r);
        exit(0);
    }
    return pid;
}

/* settings [world], or NULL; `dies`: rank that is killed. */
static void run_scene(void (*scene)(struct rank *r), uint32_t world, const char *const *settings,
                      uint32_t dies)
{
    pid_t pids[RANKS_MAX];

    begin_scene();
    for (uint32_t i = 0; i < world; i++)
        pids[i] = start_process(scene, i, world, settings != NULL ? settings[i] : NULL);
    for (uint32_t i = 0; i < world; i++) {
        int status;

        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        if (i == dies)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void processes_all_reduce_in_rank_order(void **state)
{
    (void)state;
    run_scene(sums_and_closes, 2, NULL, UINT32_MAX);
    run_scene(sums_and_closes, 3, NULL, UINT32_MAX);
}

static void captured_all_reduce_runs_at_every_launch(void **state)
{
    (void)state;
    run_scene(captures_and_launches, 2, NULL, UINT32_MAX);
}

static void two_ranks_on_one_gpu_are_rejected(void **state)
{
    static const char *const settings[] = { "NCCL_HOSTID=a", "NCCL_HOSTID=b", "NCCL_HOSTID=b" };

    (void)state;
    run_scene(connects, 3, settings, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_PEER); /* has its own GPU, and loses the others */
    assert_int_equal(shared->code[1], ERR_INPUT);
    assert_int_equal(shared->code[2], ERR_INPUT);
    assert_non_null(
        strstr(shared->said[1], "Duplicate GPU detected : rank 1 and rank 2 both on CUDA device"));
}

static void network_error_is_reported_and_hanging_sum_ends_at_abort(void **state)
{
    static const char *const error[] = { NULL, "EMULATED_NCCL_FAULT=error:1" };
    static const char *const hang[] = { NULL, "EMULATED_NCCL_FAULT=sum:1" };

    (void)state;
    run_scene(aborts_sum, 2, error, UINT32_MAX);
    assert_int_equal(shared->code[1], ERR_PEER);
    assert_non_null(strstr(shared->said[1], "NCCL: unhandled system error"));
    assert_int_equal(shared->code[0], ERR_TIMEOUT);
    run_scene(aborts_sum, 2, hang, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_TIMEOUT);
    assert_int_equal(shared->code[1], ERR_TIMEOUT);
}

static void *one_thread(void *arg)
{
    sums_and_closes(arg);
    return NULL;
}

static void two_gpus(struct rank *r)
{
    struct rank ranks[2] = { { .rank = 0, .world = 2, .gpu = 0 }, { .rank = 1, .world = 2, .gpu = 1 } };
    pthread_t threads[2];

    (void)r;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, one_thread, &ranks[i]) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void gpus_of_one_process_all_reduce_in_separate_threads(void **state)
{
    (void)state;
    run_scene(two_gpus, 1, NULL, UINT32_MAX);
}

static void dead_peer_is_reported_and_abort_ends_pending_work(void **state)
{
    (void)state;
    run_scene(loses_last_rank, 3, NULL, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shared->code[i], ERR_PEER);
        assert_non_null(strstr(shared->said[i], "NCCL: remote process exited"));
    }
}

static void graph_waiting_for_dead_peer_ends_at_abort(void **state)
{
    (void)state;
    run_scene(loses_last_rank_in_graph, 3, NULL, 2);
}

static void open_graph_keeps_communicator_alive(void **state)
{
    (void)state;
    run_scene(keeps_graph_open, 1, NULL, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_DEVICE);
}

static void missing_rank_is_not_reported_and_abort_succeeds(void **state)
{
    (void)state;
    run_scene(waits_for_last_rank, 3, NULL, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_TIMEOUT);
    assert_int_equal(shared->code[1], ERR_TIMEOUT);
}

static void hanging_init_can_be_aborted(void **state)
{
    static const char *const settings[] = { NULL, "EMULATED_NCCL_FAULT=init" };

    (void)state;
    run_scene(connects_in_vain, 2, settings, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_TIMEOUT);
    assert_int_equal(shared->code[1], ERR_TIMEOUT);
}

static void different_versions_do_not_connect(void **state)
{
    static const char *const settings[] = { NULL, "EMULATED_NCCL_VERSION=22703" };

    (void)state;
    run_scene(connects, 2, settings, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_INPUT);
    assert_int_equal(shared->code[1], ERR_INPUT);
    assert_non_null(strstr(shared->said[0], "NCCL: invalid usage"));
    assert_non_null(strstr(shared->said[0], "Mismatched NCCL version"));
}

static void close_does_not_wait_for_aborted_ranks(void **state)
{
    (void)state;
    run_scene(closes_alone, 2, NULL, UINT32_MAX);
}

static void hanging_abort_is_reported(void **state)
{
    static const char *const settings[] = { "EMULATED_NCCL_FAULT=abort", "EMULATED_NCCL_FAULT=abort" };

    (void)state;
    run_scene(cannot_be_aborted, 2, settings, UINT32_MAX);
    assert_int_equal(shared->code[0], ERR_DEVICE);
    assert_non_null(strstr(shared->said[0], "NCCL did not release its communicator"));
}

static void plugin_versions_include_nccl(void **state)
{
    struct cuda_versions v;

    (void)state;
    CUDA->versions(&v);
    assert_int_equal(v.nccl, 22809);
    assert_int_equal(v.runtime, 13000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_all_reduce_in_rank_order),
        cmocka_unit_test(captured_all_reduce_runs_at_every_launch),
        cmocka_unit_test(gpus_of_one_process_all_reduce_in_separate_threads),
        cmocka_unit_test(dead_peer_is_reported_and_abort_ends_pending_work),
        cmocka_unit_test(graph_waiting_for_dead_peer_ends_at_abort),
        cmocka_unit_test(open_graph_keeps_communicator_alive),
        cmocka_unit_test(missing_rank_is_not_reported_and_abort_succeeds),
        cmocka_unit_test(hanging_init_can_be_aborted),
        cmocka_unit_test(different_versions_do_not_connect),
        cmocka_unit_test(two_ranks_on_one_gpu_are_rejected),
        cmocka_unit_test(network_error_is_reported_and_hanging_sum_ends_at_abort),
        cmocka_unit_test(close_does_not_wait_for_aborted_ranks),
        cmocka_unit_test(hanging_abort_is_reported),
        cmocka_unit_test(plugin_versions_include_nccl),
    };

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
