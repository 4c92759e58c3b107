/* gpu_kit.h - the first GPU, and copies to and from its memory, for the tests of codes on GPUs. */
#ifndef TEST_CODE_GPU_KIT_H
#define TEST_CODE_GPU_KIT_H

#include <stddef.h>

#include "base/check.h"
#include "base/err.h"
#include "device/cuda.h"
#include "harness/emulated_gpus.h"

#define MUST(call) CHECK((call) == 0)

static const struct cuda_api *cuda;
static struct cuda_stream *stream;
static struct err err;

static inline void open_gpu(void)
{
    struct device gpus[DEVICE_MAX];

    CHECK(gpus_there(1, gpus));
    cuda = device_cuda(&gpus[0]);
    MUST(device_enter(&gpus[0], &err));
    MUST(cuda->stream_open(CUDA_HIGH_PRIORITY, &stream, &err));
}

/* Returns memory of the GPU with a copy; the caller frees it. */
static inline void *to_gpu(const void *from, size_t bytes)
{
    void *p;

    MUST(cuda->alloc(&p, bytes + 16, &err));
    MUST(cuda->copy(p, from, bytes, stream, &err));
    return p;
}

static inline void from_gpu(void *to, const void *from, size_t bytes)
{
    MUST(cuda->copy(to, from, bytes, stream, &err));
    MUST(device_wait(cuda, stream, NULL, NULL, &err));
}

#endif
