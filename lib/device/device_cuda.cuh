/* device_cuda.cuh - helpers shared by the .cu files of all folders: error handling, tables in GPU
 * memory. */
#ifndef DEVICE_DEVICE_CUDA_CUH
#define DEVICE_DEVICE_CUDA_CUH

#include <cuda_runtime.h>

extern "C" {
#include "base/err.h"
#include "device/cuda.h"
}
#include "device/launch.cuh"

static inline cudaStream_t cuda_stream_of(struct cuda_stream *s)
{
    return (cudaStream_t)(void *)s;
}

/* Returns 0, or sets the error "<what>: <CUDA's message> (<its name>)". Errors: ERR_NOMEM,
 * ERR_DEVICE. */
static inline int cuda_check(cudaError_t e, struct err *err, const char *what)
{
    if (e == cudaSuccess)
        return 0;
    return err_set(err, e == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_DEVICE, "%s: %s (%s)",
                   what, cudaGetErrorString(e), cudaGetErrorName(e));
}

/* Called after kernel launches; reports a failed launch. Errors: ERR_DEVICE. */
static inline int cuda_launched(struct err *err)
{
    return cuda_check(cudaGetLastError(), err, "launch a kernel");
}

/* ---- device_cuda.cu: its part of the plugin's table (contracts: device/cuda.h) ---- */
void cuda_versions(struct cuda_versions *out);
int cuda_gpus(struct cuda_gpu *out, uint32_t max, uint32_t *n, struct err *err);
int cuda_enter(uint32_t gpu, struct err *err);
int cuda_alloc(void **out, size_t bytes, struct err *err);
void cuda_free(void *p);
int cuda_free_bytes(size_t *unused, struct err *err);
int cuda_pin(void **out, size_t bytes, struct err *err);
void cuda_unpin(void *p);
int cuda_stream_open(enum cuda_priority priority, struct cuda_stream **out, struct err *err);
void cuda_stream_close(struct cuda_stream *s);
int cuda_event_open(bool timed, struct cuda_event **out, struct err *err);
void cuda_event_close(struct cuda_event *e);
int cuda_record(struct cuda_event *e, struct cuda_stream *s, struct err *err);
int cuda_wait(struct cuda_stream *s, struct cuda_event *e, struct err *err);
int cuda_done(struct cuda_stream *s, struct cuda_event *e, struct err *err);
double cuda_elapsed_ms(struct cuda_event *from, struct cuda_event *to);
int cuda_copy(void *to, const void *from, size_t bytes, struct cuda_stream *s, struct err *err);
int cuda_fill(void *to, int byte, size_t bytes, struct cuda_stream *s, struct err *err);
int cuda_capture_begin(struct cuda_stream *s, struct err *err);
int cuda_capture_end(struct cuda_stream *s, struct cuda_graph **out, struct err *err);
int cuda_launch(struct cuda_graph *g, struct cuda_stream *s, struct err *err);
void cuda_graph_close(struct cuda_graph *g);

/* Allocates GPU memory and copies `from` to it, for tables that are created once. All streams may
 * use it. The caller frees it with cuda_free(). Errors: ERR_NOMEM, ERR_DEVICE. */
template <typename T>
static inline int cuda_upload(T **out, const void *from, size_t bytes, struct err *err)
{
    void *p = NULL;
    int rc = cuda_alloc(&p, bytes, err);

    if (rc < 0)
        return rc;
    if (bytes > 0) { /* cudaMemcpy may return before the GPU has the data */
        rc = cuda_check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), err,
                        "copy a table to the GPU");
        if (rc == 0)
            rc = cuda_check(cudaDeviceSynchronize(), err, "copy a table to the GPU");
    }
    if (rc < 0)
        cuda_free(p);
    else
        *out = (T *)p;
    return rc;
}

#endif
