/* device_cuda.cu - GPUs, GPU memory, streams, events and graphs: implements device/cuda.h with the
 * CUDA runtime. */
#include <stdio.h>
#include <string.h>

#include "device/device_cuda.cuh"

/* ---- GPUs ---- */

void cuda_versions(struct cuda_versions *out)
{
    int driver = 0, runtime = 0;

    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = 0;
    out->driver = driver;
    out->runtime = runtime;
}

static void describe(const struct cudaDeviceProp *p, struct cuda_gpu *out)
{
    const unsigned char *u = (const unsigned char *)p->uuid.bytes;

    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, p->name);
    snprintf(out->uuid, sizeof(out->uuid),
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    out->major = (uint32_t)p->major;
    out->minor = (uint32_t)p->minor;
    out->processors = (uint32_t)p->multiProcessorCount;
    out->memory_bytes = p->totalGlobalMem;
}

int cuda_gpus(struct cuda_gpu *out, uint32_t max, uint32_t *n, struct err *err)
{
    struct cuda_versions v;
    int count = 0, rc;
    cudaError_t e;

    *n = 0;
    cuda_versions(&v);
    if (v.driver == 0) /* no driver, so no GPU */
        return 0;
    e = cudaGetDeviceCount(&count);
    if (e == cudaErrorNoDevice)
        return 0;
    if (e == cudaErrorInsufficientDriver)
        return err_set(err, ERR_DEVICE,
                       "the NVIDIA driver is for CUDA %d.%d, this plugin needs one for CUDA %d.%d or "
                       "later: install a newer driver, or a trainerd built with an older CUDA toolkit",
                       v.driver / 1000, v.driver % 1000 / 10, v.runtime / 1000, v.runtime % 1000 / 10);
    rc = cuda_check(e, err, "count the GPUs");
    for (uint32_t i = 0; rc == 0 && i < (uint32_t)count && i < max; i++) {
        struct cudaDeviceProp p;

        rc = cuda_check(cudaGetDeviceProperties(&p, (int)i), err, "read the properties of a GPU");
        if (rc == 0)
            describe(&p, &out[(*n)++]);
    }
    return rc;
}

int cuda_enter(uint32_t gpu, struct err *err)
{
    return cuda_check(cudaSetDevice((int)gpu), err, "select a GPU");
}

/* ---- memory ---- */

int cuda_alloc(void **out, size_t bytes, struct err *err)
{
    void *p = NULL;
    int rc = cuda_check(cudaMalloc(&p, bytes > 0 ? bytes : 1), err, "allocate GPU memory");

    if (rc == ERR_NOMEM) {
        size_t unused = 0, all = 0;

        (void)cudaGetLastError(); /* clear the error: it is reported here */
        if (cudaMemGetInfo(&unused, &all) == cudaSuccess)
            return err_set(err, rc, "allocate %.1f MiB of GPU memory: %.1f of %.1f MiB are free",
                           (double)bytes / (1 << 20), (double)unused / (1 << 20),
                           (double)all / (1 << 20));
    }
    if (rc == 0)
        *out = p;
    return rc;
}

void cuda_free(void *p)
{
    (void)cudaFree(p); /* a failed GPU has nothing to free */
}

int cuda_free_bytes(size_t *unused, struct err *err)
{
    size_t all;

    return cuda_check(cudaMemGetInfo(unused, &all), err, "query the free GPU memory");
}

int cuda_pin(void **out, size_t bytes, struct err *err)
{
    void *p = NULL;
    int rc = cuda_check(cudaHostAlloc(&p, bytes > 0 ? bytes : 1, cudaHostAllocPortable), err,
                        "allocate pinned host memory");

    if (rc == 0) {
        memset(p, 0, bytes);
        *out = p;
    }
    return rc;
}

void cuda_unpin(void *p)
{
    if (p != NULL)
        (void)cudaFreeHost(p);
}

/* ---- streams and events ---- */

static struct cuda_event *wrap_event(cudaEvent_t e)
{
    return (struct cuda_event *)(void *)e;
}

static cudaEvent_t native_event(struct cuda_event *e)
{
    return (cudaEvent_t)(void *)e;
}

int cuda_stream_open(enum cuda_priority priority, struct cuda_stream **out, struct err *err)
{
    int least = 0, greatest = 0, rc;
    cudaStream_t s;

    rc = cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), err, "open a stream");
    if (rc == 0)
        rc = cuda_check(
            cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking,
                                         priority == CUDA_HIGH_PRIORITY ? greatest : least),
            err, "open a stream");
    if (rc == 0)
        *out = (struct cuda_stream *)(void *)s;
    return rc;
}

void cuda_stream_close(struct cuda_stream *s)
{
    if (s != NULL)
        (void)cudaStreamDestroy(cuda_stream_of(s));
}

int cuda_event_open(bool timed, struct cuda_event **out, struct err *err)
{
    cudaEvent_t e;
    int rc =
        cuda_check(cudaEventCreateWithFlags(&e, timed ? cudaEventDefault : cudaEventDisableTiming),
                   err, "create an event");

    if (rc == 0)
        *out = wrap_event(e);
    return rc;
}

void cuda_event_close(struct cuda_event *e)
{
    if (e != NULL)
        (void)cudaEventDestroy(native_event(e));
}

int cuda_record(struct cuda_event *e, struct cuda_stream *s, struct err *err)
{
    return cuda_check(cudaEventRecord(native_event(e), cuda_stream_of(s)), err, "record an event");
}

int cuda_wait(struct cuda_stream *s, struct cuda_event *e, struct err *err)
{
    return cuda_check(cudaStreamWaitEvent(cuda_stream_of(s), native_event(e), 0), err,
                      "wait for an event");
}

int cuda_done(struct cuda_stream *s, struct cuda_event *e, struct err *err)
{
    cudaError_t status = cudaSuccess;

    if (s != NULL)
        status = cudaStreamQuery(cuda_stream_of(s));
    if (status == cudaSuccess && e != NULL)
        status = cudaEventQuery(native_event(e));
    if (status == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* clear the result, which the next launch would report */
        return 0;
    }
    return status == cudaSuccess ? 1 : cuda_check(status, err, "GPU work");
}

double cuda_elapsed_ms(struct cuda_event *from, struct cuda_event *to)
{
    float ms = 0;

    if (cudaEventElapsedTime(&ms, native_event(from), native_event(to)) == cudaSuccess)
        return (double)ms;
    (void)cudaGetLastError(); /* clear the result, which the next launch would report */
    return 0;
}

int cuda_copy(void *to, const void *from, size_t bytes, struct cuda_stream *s, struct err *err)
{
    if (bytes == 0)
        return 0;
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream_of(s)), err,
                      "copy to or from a GPU");
}

int cuda_fill(void *to, int byte, size_t bytes, struct cuda_stream *s, struct err *err)
{
    if (bytes == 0)
        return 0;
    return cuda_check(cudaMemsetAsync(to, byte, bytes, cuda_stream_of(s)), err,
                      "fill memory of a GPU");
}

/* ---- graphs ---- */

int cuda_capture_begin(struct cuda_stream *s, struct err *err)
{
    return cuda_check(cudaStreamBeginCapture(cuda_stream_of(s), cudaStreamCaptureModeThreadLocal),
                      err, "capture work");
}

int cuda_capture_end(struct cuda_stream *s, struct cuda_graph **out, struct err *err)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t g = NULL;
    int rc = cuda_check(cudaStreamEndCapture(cuda_stream_of(s), &graph), err, "capture work");

    /* keep the priority of the stream on which each node was captured, instead of that of the
     * launching stream */
    if (rc == 0)
        rc = cuda_check(cudaGraphInstantiate(&g, graph, cudaGraphInstantiateFlagUseNodePriority),
                        err, "instantiate a graph");
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    if (rc == 0)
        *out = (struct cuda_graph *)(void *)g;
    return rc;
}

int cuda_launch(struct cuda_graph *g, struct cuda_stream *s, struct err *err)
{
    return cuda_check(cudaGraphLaunch((cudaGraphExec_t)(void *)g, cuda_stream_of(s)), err,
                      "launch a graph");
}

void cuda_graph_close(struct cuda_graph *g)
{
    if (g != NULL)
        (void)cudaGraphExecDestroy((cudaGraphExec_t)(void *)g);
}
