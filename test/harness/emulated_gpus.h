/* emulated_gpus.h - two emulated GPUs (test/cuda) for a program that can do without any; with
 * TRAINERD_TEST_CUDA=1 those of the plugin on the library path. */
#ifndef HARNESS_EMULATED_GPUS_H
#define HARNESS_EMULATED_GPUS_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "device/device.h"

/* First of all in main(): the loader reads its path when a program starts, so this one starts again. */
static inline void emulated_gpus(char **argv)
{
    const char *build = getenv("BUILD");
    char path[256];

    if (getenv("EMULATED_GPUS") != NULL || getenv("TRAINERD_TEST_CUDA") != NULL)
        return;
    snprintf(path, sizeof(path), "%s/emulated", build != NULL ? build : "build");
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("EMULATED_GPUS", "2", 1);
    execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    exit(1);
}

/* The first n, if there are so many. */
static inline bool gpus_there(uint32_t n, struct device out[DEVICE_MAX])
{
    uint32_t found = 0;
    struct err err;

    if (device_parse("cuda", 0, out, &found, &err) < 0)
        fprintf(stderr, "%s\n", err.text);
    return found >= n;
}

#endif
