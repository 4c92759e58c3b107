/* Streams, events and graphs: work runs late, in order, and only as specified. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime.h>

#include "cuda/emulator.h"
#include "cuda/test_kernels.h"
#include "cuda/test_kit.h"

/* ---- streams ---- */

static void stream_work_runs_only_when_forced(void **state)
{
    float host = 1.0f, *x = new_floats(1, &host);
    cudaStream_t s = new_stream();

    (void)state;
    host = 2.0f;
    OK(cudaMemcpyAsync(x, &host, sizeof(host), cudaMemcpyHostToDevice, s));
    assert_true(fetch_float(x) == 1.0f); /* fetch_float() does not synchronise with the stream */
    host = 3.0f;                         /* too early: the copy reads it */
    OK(cudaStreamSynchronize(s));
    assert_true(fetch_float(x) == 3.0f);
    OK(cudaFree(x));
    OK(cudaStreamDestroy(s));
}

static void blocking_stream_completes_before_synchronous_copy(void **state)
{
    const float zero = 0.0f, seven = 7.0f;
    float *x = new_floats(1, &zero);
    cudaStream_t s;

    (void)state;
    OK(cudaStreamCreate(&s));
    OK(cudaMemcpyAsync(x, &seven, sizeof(seven), cudaMemcpyHostToDevice, s));
    assert_true(fetch_float(x) == 7.0f);
    OK(cudaFree(x));
    OK(cudaStreamDestroy(s));
}

/* x is filled on one stream and used on another; returns the sum without and with an event between
 * them. */
static float use_on_another_stream(bool with_event)
{
    enum { N = 100 };
    float ones[N], *x, *y, result;
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e = new_event();
    int i;

    for (i = 0; i < N; i++)
        ones[i] = 1.0f;
    x = new_floats(N, ones);
    y = new_floats(N, ones);
    launch_fill(N, 0.0f, x, a);
    OK(cudaEventRecord(e, a));
    if (with_event)
        OK(cudaStreamWaitEvent(b, e, 0));
    launch_axpy(N, 10.0f, x, y, b);
    OK(cudaStreamSynchronize(b));
    result = fetch_float(y);
    OK(cudaStreamSynchronize(a));
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    OK(cudaFree(y));
    return result;
}

static void missing_dependency_gives_wrong_result(void **state)
{
    (void)state;
    assert_true(use_on_another_stream(true) == 1.0f);
    assert_true(use_on_another_stream(false) == 11.0f);
}

static void event_covers_only_earlier_work(void **state)
{
    const float one = 1.0f;
    float *x = new_floats(1, &one), *y = new_floats(1, &one);
    cudaStream_t s = new_stream();
    cudaEvent_t e = new_event();

    (void)state;
    OK(cudaEventQuery(e)); /* never recorded */
    launch_axpy(1, 1.0f, x, y, s);
    OK(cudaEventRecord(e, s));
    launch_axpy(1, 1.0f, x, y, s);
    OK(cudaEventSynchronize(e));
    assert_true(fetch_float(y) == 2.0f);
    OK(cudaEventQuery(e));
    OK(cudaStreamSynchronize(s));
    assert_true(fetch_float(y) == 3.0f);
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

static void query_returns_not_ready_and_executes_one_item(void **state)
{
    const float one = 1.0f;
    float *x = new_floats(1, &one), *y = new_floats(1, &one);
    cudaStream_t s = new_stream();
    int polls = 0;

    (void)state;
    launch_axpy(1, 1.0f, x, y, s);
    launch_axpy(1, 1.0f, x, y, s);
    assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    assert_true(fetch_float(y) == 2.0f);
    while (cudaStreamQuery(s) == cudaErrorNotReady)
        polls++;
    assert_int_equal(polls, 1);
    assert_true(fetch_float(y) == 3.0f);
    (void)cudaGetLastError(); /* not ready */
    OK(cudaStreamDestroy(s));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

static void add_one(void *data)
{
    ++*(int *)data;
}

static void work_of_destroyed_stream_still_runs(void **state)
{
    cudaStream_t s = new_stream();
    int n = 0;

    (void)state;
    OK(cudaLaunchHostFunc(s, add_one, &n));
    OK(cudaStreamDestroy(s));
    assert_int_equal(n, 0);
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
    OK(cudaDeviceSynchronize());
    assert_int_equal(n, 1);
    (void)cudaGetLastError();
}

static void elapsed_time_requires_timed_events(void **state)
{
    cudaStream_t s = new_stream();
    cudaEvent_t a, b, c = new_event();
    float ms = -1.0f;

    (void)state;
    OK(cudaEventCreate(&a));
    OK(cudaEventCreate(&b));
    OK(cudaEventRecord(a, s));
    OK(cudaEventRecord(b, s));
    OK(cudaEventRecord(c, s));
    assert_int_equal(cudaEventElapsedTime(&ms, a, b), cudaErrorNotReady);
    OK(cudaStreamSynchronize(s));
    OK(cudaEventElapsedTime(&ms, a, b));
    assert_true(ms >= 0.0f && ms < 1000.0f);
    assert_int_equal(cudaEventElapsedTime(&ms, a, c), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
    OK(cudaEventDestroy(a));
    OK(cudaEventDestroy(b));
    OK(cudaEventDestroy(c));
    OK(cudaStreamDestroy(s));
}

/* Each thread uses its own device and stream, concurrently. */
static void *train_alone(void *arg)
{
    enum { N = 3000, ROUNDS = 20 };
    int device = *(const int *)arg, i;
    int *sum, zero = 0, got;
    float *x, *ok = NULL;
    cudaStream_t s;

    if (cudaSetDevice(device) != cudaSuccess ||
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc((void **)&x, N * sizeof(*x)) != cudaSuccess ||
        cudaMalloc((void **)&sum, sizeof(*sum)) != cudaSuccess)
        return NULL;
    for (i = 0; i < ROUNDS; i++) {
        (void)cudaMemcpyAsync(sum, &zero, sizeof(zero), cudaMemcpyHostToDevice, s);
        launch_fill(N, (float)(device + 1), x, s);
        launch_sum(N, x, sum, s);
        (void)cudaMemcpyAsync(&got, sum, sizeof(got), cudaMemcpyDeviceToHost, s);
        if (cudaStreamSynchronize(s) != cudaSuccess || got != (device + 1) * (N * (N - 1) / 2))
            return NULL;
        ok = arg;
    }
    if (cudaFree(x) != cudaSuccess || cudaFree(sum) != cudaSuccess ||
        cudaStreamDestroy(s) != cudaSuccess)
        return NULL;
    return ok;
}

static void two_threads_use_two_devices_concurrently(void **state)
{
    int devices[2] = { 0, 1 }, i;
    pthread_t threads[2];
    void *result;

    (void)state;
    for (i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, train_alone, &devices[i]), 0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
    }
}

struct meeting {
    int *here, want;
};

static int run_meeting(void *args)
{
    struct meeting *m = args;

    if (m->want == 0) { /* first call of this one */
        m->want = 2;
        ++*m->here;
    }
    return *m->here >= m->want ? EMULATED_DONE : EMULATED_NOT_YET;
}

static void operation_waiting_for_another_stream_does_not_block_it(void **state)
{
    int here = 0;
    const struct meeting m = { &here, 0 };
    cudaStream_t a = new_stream(), b;

    (void)state;
    OK(cudaSetDevice(1));
    b = new_stream();
    OK(cudaSetDevice(0));
    OK(emulated_enqueue(a, "meeting", run_meeting, &m, sizeof(m)));
    assert_int_equal(cudaStreamQuery(a), cudaErrorNotReady);
    OK(emulated_enqueue(b, "meeting", run_meeting, &m, sizeof(m)));
    OK(cudaStreamSynchronize(a)); /* runs b's work, too, although it is not forced */
    OK(cudaStreamSynchronize(b));
    assert_int_equal(here, 2);
    (void)cudaGetLastError();
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
}

/* x is used on `a`, overwritten on `b`, which should wait for that, and used again. */
static void overwrite_too_early(int with_event)
{
    const float one = 1.0f;
    float *x = new_floats(1, &one), *y = new_floats(1, &one);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t used = new_event(), written = new_event();

    launch_axpy(1, 1.0f, x, y, a);
    launch_axpy(1, 1.0f, x, y, a);
    OK(cudaEventRecord(used, a));
    if (with_event)
        OK(cudaStreamWaitEvent(b, used, 0));
    OK(cudaMemsetAsync(x, 0, sizeof(*x), b));
    OK(cudaEventRecord(written, b));
    OK(cudaStreamWaitEvent(a, written, 0));
    launch_axpy(1, 1.0f, x, y, a);
    OK(cudaStreamSynchronize(a));
    fprintf(stderr, "%g", (double)fetch_float(y));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

static void buffer_overwritten_too_early_is_revealed_by_some_seed(void **state)
{
    char setting[32], text[256];
    int seed, n_wrong = 0;

    (void)state;
    for (seed = 1; seed <= 8; seed++) {
        snprintf(setting, sizeof(setting), "EMULATED_SEED=%d", seed);
        assert_true(scene_ends_well("overwrite_too_early", 1, setting, text, sizeof(text)));
        assert_string_equal(text, "3");
        assert_true(scene_ends_well("overwrite_too_early", 0, setting, text, sizeof(text)));
        n_wrong += strcmp(text, "3") != 0;
        if (seed == 1)
            assert_int_equal(n_wrong, 0); /* as late as possible: correct by luck */
    }
    assert_true(n_wrong > 0);
}

/* ---- graphs ---- */

/* y = 3 on `a` and x = 0, 1, 2... on `b` between fork and join, then y += 2 x. */
static void capture_fork(cudaStream_t a, cudaStream_t b, float *x, float *y, bool with_join,
                         cudaError_t expected, cudaGraph_t *graph)
{
    enum { N = 50 };
    cudaEvent_t fork = new_event(), join = new_event();
    enum cudaStreamCaptureStatus status;

    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(y, 0, N * sizeof(*y), a));
    OK(cudaEventRecord(fork, a));
    OK(cudaStreamWaitEvent(b, fork, 0));
    OK(cudaStreamIsCapturing(b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    launch_fill(N, 1.0f, x, b);
    OK(cudaEventRecord(join, b));
    if (with_join)
        OK(cudaStreamWaitEvent(a, join, 0));
    launch_axpy(N, 2.0f, x, y, a);
    assert_int_equal(cudaStreamEndCapture(a, graph), expected);
    OK(cudaStreamIsCapturing(b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    (void)cudaGetLastError();
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
}

static void captured_fork_and_join_runs_at_every_launch(void **state)
{
    enum { N = 50, LAUNCHES = 5 };
    cudaStream_t a = new_stream(), b = new_stream();
    float *x = new_memory(N * sizeof(*x)), *y = new_memory(N * sizeof(*y)), *got;
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    size_t nodes;
    int i, k;

    (void)state;
    capture_fork(a, b, x, y, true, cudaSuccess, &graph);
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 3);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceSynchronize());
    assert_true(isnan(fetch_float(x))); /* captured work has not run */
    for (k = 0; k < LAUNCHES; k++) {
        OK(cudaGraphLaunch(exec, a));
        launch_axpy(N, 1.0f, x, y, a);
        got = fetch(y, N * sizeof(*y));
        for (i = 0; i < N; i++)
            assert_true(got[i] == 3.0f * (float)i);
        free(got);
    }
    OK(cudaGraphLaunch(exec, a));
    OK(cudaGraphExecDestroy(exec)); /* launched before: still runs */
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

static void capture_with_unjoined_fork_is_rejected(void **state)
{
    cudaStream_t a = new_stream(), b = new_stream();
    float *x = new_memory(1000), *y = new_memory(1000);
    cudaGraph_t graph;

    (void)state;
    capture_fork(a, b, x, y, false, cudaErrorStreamCaptureUnjoined, &graph);
    assert_null(graph);
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

static cudaError_t call_synchronize(cudaStream_t s)
{
    return cudaStreamSynchronize(s);
}
static cudaError_t call_query(cudaStream_t s)
{
    return cudaStreamQuery(s);
}
static cudaError_t call_device_synchronize(cudaStream_t s)
{
    (void)s;
    return cudaDeviceSynchronize();
}
static cudaError_t call_malloc(cudaStream_t s)
{
    void *p;

    (void)s;
    return cudaMalloc(&p, 16);
}

static void waiting_or_allocating_call_invalidates_capture(void **state)
{
    static cudaError_t (*const calls[])(cudaStream_t) = { call_synchronize, call_query,
                                                          call_device_synchronize, call_malloc };
    cudaStream_t s = new_stream();
    float *x = new_memory(400);
    cudaGraph_t graph;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        assert_int_equal(calls[i](s), cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaMemsetAsync(x, 0, 4, s), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        (void)cudaGetLastError();
        OK(cudaMemsetAsync(x, 0, 4, s)); /* the stream still works */
        OK(cudaStreamSynchronize(s));
    }
    OK(cudaFree(x));
    OK(cudaStreamDestroy(s));
}

static void capture_mixed_with_outside_work_is_rejected(void **state)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t outside = new_event(), inside = new_event();
    cudaGraph_t graph;

    (void)state;
    OK(cudaEventRecord(outside, b));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(inside, a));
    assert_int_equal(cudaStreamWaitEvent(a, outside, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaEventSynchronize(inside), cudaErrorCapturedEvent);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorIllegalState);
    (void)cudaGetLastError();
    OK(cudaEventDestroy(outside));
    OK(cudaEventDestroy(inside));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
}

static const struct scene scenes[] = {
    { "overwrite_too_early", overwrite_too_early },
};

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_work_runs_only_when_forced),
        cmocka_unit_test(blocking_stream_completes_before_synchronous_copy),
        cmocka_unit_test(missing_dependency_gives_wrong_result),
        cmocka_unit_test(event_covers_only_earlier_work),
        cmocka_unit_test(query_returns_not_ready_and_executes_one_item),
        cmocka_unit_test(work_of_destroyed_stream_still_runs),
        cmocka_unit_test(elapsed_time_requires_timed_events),
        cmocka_unit_test(two_threads_use_two_devices_concurrently),
        cmocka_unit_test(operation_waiting_for_another_stream_does_not_block_it),
        cmocka_unit_test(buffer_overwritten_too_early_is_revealed_by_some_seed),
        cmocka_unit_test(captured_fork_and_join_runs_at_every_launch),
        cmocka_unit_test(capture_with_unjoined_fork_is_rejected),
        cmocka_unit_test(waiting_or_allocating_call_invalidates_capture),
        cmocka_unit_test(capture_mixed_with_outside_work_is_rejected),
    };

    scenes_play(scenes, sizeof(scenes) / sizeof(scenes[0]), argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
