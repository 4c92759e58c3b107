/* test_kit.h - shared by the tests of the emulator. Include after cmocka.h. */
#ifndef CUDA_TEST_KIT_H
#define CUDA_TEST_KIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

static inline cudaStream_t new_stream(void)
{
    cudaStream_t s;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline cudaEvent_t new_event(void)
{
    cudaEvent_t e;

    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static inline void *new_memory(size_t bytes)
{
    void *p;

    OK(cudaMalloc(&p, bytes));
    return p;
}

/* Copies an array from the device to the host; the caller frees it. */
static inline void *fetch(const void *device, size_t bytes)
{
    void *host = malloc(bytes);

    assert_non_null(host);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    return host;
}

static inline float fetch_float(const float *device)
{
    float x;

    OK(cudaMemcpy(&x, device, sizeof(x), cudaMemcpyDeviceToHost));
    return x;
}

static inline float *new_floats(uint32_t n, const float *values)
{
    float *p = new_memory(n * sizeof(*p));

    OK(cudaMemcpy(p, values, n * sizeof(*p), cudaMemcpyHostToDevice));
    return p;
}

/* ---- scenes: tests that need a separate process ---- */

struct scene {
    const char *name;
    void (*body)(int argument);
};

/* Runs a scene and exits, if the program was started for one. */
static inline void scenes_play(const struct scene *scenes, size_t n, int argc, char **argv)
{
    size_t i;

    for (i = 0; argc == 3 && i < n; i++)
        if (strcmp(argv[1], scenes[i].name) == 0) {
            scenes[i].body(atoi(argv[2]));
            exit(0);
        }
}

/* Runs a scene in a process with this environment setting (NULL: none). Returns whether it exited
 * successfully; `text` receives its standard error. */
static inline bool scene_ends_well(const char *name, int argument, const char *setting, char *text,
                                   size_t bytes)
{
    char number[16];
    size_t len = 0;
    ssize_t n;
    int pipes[2], status;
    pid_t child;

    snprintf(number, sizeof(number), "%d", argument);
    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        if (setting != NULL)
            putenv((char *)(uintptr_t)setting);
        execl("/proc/self/exe", "scene", name, number, (char *)NULL);
        _exit(126);
    }
    close(pipes[1]);
    while (len < bytes - 1 && (n = read(pipes[0], text + len, bytes - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline void expect_death(const char *name, int argument, const char *setting,
                                const char *says)
{
    char text[16384];

    if (scene_ends_well(name, argument, setting, text, sizeof(text)))
        fail_msg("scene '%s' %d ended well and said: %s", name, argument, text);
    if (strstr(text, says) == NULL)
        fail_msg("scene '%s' %d: expected '%s' in: %s", name, argument, says, text);
}

static inline void expect_life(const char *name, int argument, const char *setting)
{
    char text[16384];

    if (!scene_ends_well(name, argument, setting, text, sizeof(text)) || text[0] != '\0')
        fail_msg("scene '%s' %d: %s", name, argument, text);
}

#endif
