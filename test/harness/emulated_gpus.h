/* emulated_gpus.h - provides eight emulated GPUs (test/cuda) to a program that can also run without
 * GPUs. With TRAINERD_TEST_CUDA=1 the program uses the GPUs of the plugin on the library path
 * instead. */
#ifndef HARNESS_EMULATED_GPUS_H
#define HARNESS_EMULATED_GPUS_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "device/device.h"

/* Call it first in main(): it restarts the program, because the loader reads the library path only
 * at start. */
static inline void emulated_gpus(char **argv)
{
    const char *build = getenv("BUILD");
    char path[256];

    if (getenv("EMULATED_GPUS") != NULL || getenv("TRAINERD_TEST_CUDA") != NULL)
        return;
    snprintf(path, sizeof(path), "%s/emulated", build != NULL ? build : "build");
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("EMULATED_GPUS", "8", 1);
    execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    exit(1);
}

/* Returns the first n GPUs in `out`; false: there are fewer. */
static inline bool gpus_there(uint32_t n, struct device out[DEVICE_MAX])
{
    uint32_t found = 0;
    struct err err;

    if (device_parse("cuda", 0, out, &found, &err) < 0)
        fprintf(stderr, "%s\n", err.text);
    return found >= n;
}

#endif
