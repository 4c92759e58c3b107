/* The emulator itself: what CUDA defines is computed, and what it leaves undefined is found. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/emulator.h"
#include "cuda/test_kernels.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

static cudaStream_t new_stream(void)
{
    cudaStream_t s;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static cudaEvent_t __attribute__((unused)) new_event(void)
{
    cudaEvent_t e;

    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static void *new_memory(size_t bytes)
{
    void *p;

    OK(cudaMalloc(&p, bytes));
    return p;
}

/* The device's array, brought to the host; the caller frees. */
static void *fetch(const void *device, size_t bytes)
{
    void *host = malloc(bytes);

    assert_non_null(host);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    return host;
}

static float fetch_float(const float *device)
{
    float x;

    OK(cudaMemcpy(&x, device, sizeof(x), cudaMemcpyDeviceToHost));
    return x;
}

static float *new_floats(uint32_t n, const float *values)
{
    float *p = new_memory(n * sizeof(*p));

    OK(cudaMemcpy(p, values, n * sizeof(*p), cudaMemcpyHostToDevice));
    return p;
}

/* ---- a process that dies ---- */

/* Runs `body` in a child and compares how it ended and what it said. */
static void __attribute__((unused)) expect_death(void (*body)(void), const char *variable, const char *value,
                         const char *says)
{
    char text[8192];
    size_t len = 0;
    ssize_t n;
    int pipes[2], status;
    pid_t child;

    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        if (variable != NULL)
            setenv(variable, value, 1);
        body();
        _exit(0);
    }
    close(pipes[1]);
    while ((n = read(pipes[0], text + len, sizeof(text) - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        fail_msg("it lived, and said: %s", text);
    if (strstr(text, says) == NULL)
        fail_msg("expected '%s' in: %s", says, text);
}

/* Runs `body` in a child, with an environment of its own; it must end well. */
static void __attribute__((unused)) expect_life(int (*body)(void), const char *variable, const char *value)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        setenv(variable, value, 1);
        _exit(body());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- kernels ---- */

static void a_kernel_computes_every_element_and_no_more(void **state)
{
    enum { N = 1000 };
    float x[N], y[N], *dx, *dy, *got;
    cudaStream_t s = new_stream();
    int i;

    (void)state;
    for (i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = 1.0f;
    }
    dx = new_floats(N, x);
    dy = new_floats(N, y);
    launch_axpy(N, 2.0f, dx, dy, s);
    launch_axpy(N, -1.0f, dx, dy, s);
    OK(cudaGetLastError());
    got = fetch(dy, sizeof(y));
    for (i = 0; i < N; i++)
        assert_true(got[i] == (float)i + 1.0f);
    free(got);
    OK(cudaFree(dx));
    OK(cudaFree(dy));
    OK(cudaStreamDestroy(s));
}

static void a_sum_goes_through_shuffles_shared_memory_and_atomics(void **state)
{
    static const uint32_t sizes[] = { 1, 31, 33, 256, 1000, 100000 };
    cudaStream_t s = new_stream();
    size_t k;

    (void)state;
    for (k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        uint32_t n = sizes[k], i;
        float *x = malloc(n * sizeof(*x)), zero = 0.0f, *dx, *dsum;
        double expected = 0.0;

        assert_non_null(x);
        for (i = 0; i < n; i++) {
            x[i] = (float)(i % 7) - 2.0f; /* sums of small integers are exact */
            expected += (double)x[i];
        }
        dx = new_floats(n, x);
        dsum = new_floats(1, &zero);
        launch_sum(n, dx, dsum, s);
        OK(cudaStreamSynchronize(s));
        assert_true((double)fetch_float(dsum) == expected);
        free(x);
        OK(cudaFree(dx));
        OK(cudaFree(dsum));
    }
    OK(cudaStreamDestroy(s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_computes_every_element_and_no_more),
        cmocka_unit_test(a_sum_goes_through_shuffles_shared_memory_and_atomics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
