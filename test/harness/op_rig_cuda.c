/* op_rig_cuda.c - runs a rig's calls on the GPU: copies all buffers to it and back. */
#include "harness/op_rig_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/err.h"
#include "device/cuda.h"
#include "device/device.h"

static struct {
    const struct cuda_api *api;
    struct cuda_stream *stream;
} gpu;

static void must(int rc, const struct err *err)
{
    if (rc < 0)
        fail_msg("%s", err->text);
}

bool rig_on_gpu(void)
{
    return getenv("TRAINERD_TEST_CUDA") != NULL;
}

const struct cuda_api *rig_gpu(void)
{
    struct device devices[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n;

    if (gpu.api != NULL || !rig_on_gpu())
        return gpu.api;
    must(device_parse("cuda:0", 0, devices, &n, &err), &err);
    must(device_enter(&devices[0], &err), &err);
    must(device_cuda(&devices[0])->stream_open(CUDA_HIGH_PRIORITY, &gpu.stream, &err), &err);
    gpu.api = device_cuda(&devices[0]);
    return gpu.api;
}

static void for_blocks(struct rig *r, void (*each)(struct rig *r, struct block *b))
{
    for (uint32_t i = 0; i < GRADCHECK_MAX; i++) {
        each(r, &r->in_mem[i]);
        each(r, &r->out_mem[i]);
        each(r, &r->din_mem[i]);
        each(r, &r->dout_mem[i]);
    }
    each(r, &r->save);
    each(r, &r->scratch);
}

static size_t whole(const struct block *b)
{
    return b->bytes + 2 * RIG_GUARD;
}

/* Start of the data on the GPU, with the alignment that kernels may require; another address in
 * every call, because a kernel must not remember addresses. */
static char *start(const struct rig *r, const struct block *b)
{
    return (char *)b->device + 256 + r->calls_on_gpu % 2 * 256;
}

static void copy_to_gpu(struct rig *r, struct block *b)
{
    struct err err = { 0 };

    if (b->raw == NULL)
        return;
    if (b->device == NULL)
        must(r->cuda->alloc(&b->device, whole(b) + 512, &err), &err);
    must(r->cuda->copy(start(r, b) - RIG_GUARD, b->raw, whole(b), gpu.stream, &err), &err);
}

static void copy_from_gpu(struct rig *r, struct block *b)
{
    struct err err = { 0 };

    if (b->raw != NULL)
        must(r->cuda->copy(b->raw, start(r, b) - RIG_GUARD, whole(b), gpu.stream, &err), &err);
}

static void free_block(struct rig *r, struct block *b)
{
    r->cuda->free(b->device);
    b->device = NULL;
}

/* Translates a host address at the beginning of a block to the GPU's address. */
static const unsigned char *looked_for;
static void *found_on_gpu;

static void find_in(struct rig *r, struct block *b)
{
    if (b->raw != NULL && b->raw + RIG_GUARD == looked_for)
        found_on_gpu = start(r, b);
}

static void *gpu_address(struct rig *r, const void *host)
{
    looked_for = host;
    found_on_gpu = NULL;
    if (host != NULL)
        for_blocks(r, find_in);
    return found_on_gpu;
}

struct tensors {
    struct tensor t[GRADCHECK_MAX];
    const struct tensor *at[GRADCHECK_MAX];
};

static const struct tensor *const *all_on_gpu(struct rig *r, const struct tensor *const *at,
                                              uint32_t n, struct tensors *out)
{
    for (uint32_t i = 0; at != NULL && i < n; i++) {
        out->at[i] = NULL;
        if (at[i] == NULL)
            continue;
        out->t[i] = *at[i];
        out->t[i].data = gpu_address(r, at[i]->data);
        out->at[i] = &out->t[i];
    }
    return at != NULL ? out->at : NULL;
}

/* Every second call is captured into a graph and launched: a kernel must support both. */
static int launch_on_gpu(struct rig *r, int (*kernel)(const struct op_call *c, struct err *err),
                         const struct op_call *c, struct cuda_graph **graph, struct err *err)
{
    struct err captured = { 0 };
    int rc;

    *graph = NULL;
    if (r->calls_on_gpu % 2 == 0)
        return kernel(c, err);
    must(r->cuda->capture_begin(gpu.stream, &captured), &captured);
    rc = kernel(c, err);
    must(r->cuda->capture_end(gpu.stream, graph, &captured), &captured);
    if (rc == 0)
        must(r->cuda->launch(*graph, gpu.stream, &captured), &captured);
    return rc;
}

int rig_call_gpu(struct rig *r, int (*kernel)(const struct op_call *c, struct err *err),
                 struct err *err)
{
    struct tensors in, out, din, dout;
    struct op_call c = r->call;
    struct op_run run = r->run;
    struct op_invalid trouble;
    struct cuda_graph *graph;
    int rc, done;

    for_blocks(r, copy_to_gpu);
    if (r->run_on_gpu == NULL) {
        must(r->cuda->alloc((void **)&r->run_on_gpu, sizeof(run), err), err);
        must(r->cuda->alloc((void **)&r->trouble_on_gpu, sizeof(trouble), err), err);
    }
    must(r->cuda->fill(r->trouble_on_gpu, 0, sizeof(trouble), gpu.stream, err), err);
    run.queue = gpu.stream;
    run.device = r->run_on_gpu;
    run.invalid = r->trouble_on_gpu;
    must(r->cuda->copy(r->run_on_gpu, &run, sizeof(run), gpu.stream, err), err);
    c.in = all_on_gpu(r, c.in, c.n_in, &in);
    c.out = all_on_gpu(r, c.out, c.n_out, &out);
    c.din = all_on_gpu(r, c.din, c.n_in, &din);
    c.dout = all_on_gpu(r, c.dout, c.n_out, &dout);
    c.save = gpu_address(r, c.save);
    c.scratch = gpu_address(r, c.scratch);
    c.run = &run;
    rc = launch_on_gpu(r, kernel, &c, &graph, err);
    for_blocks(r, copy_from_gpu);
    must(r->cuda->copy(&trouble, r->trouble_on_gpu, sizeof(trouble), gpu.stream, err), err);
    while ((done = r->cuda->done(gpu.stream, NULL, err)) == 0)
        ; /* no sleep: the emulator executes a part of the work in each poll */
    must(done, err);
    if (graph != NULL)
        r->cuda->graph_close(graph);
    r->calls_on_gpu++;
    r->refused_on_gpu = rc == 0 && trouble.found != 0;
    if (r->refused_on_gpu) {
        assert_true(trouble.lane == r->run.lane && trouble.call == r->call.number &&
                    trouble.lock == 0);
        rc = r->def->refuse(&r->call, (size_t)trouble.at, trouble.value, err);
    }
    return rc;
}

void rig_free_gpu(struct rig *r)
{
    if (r->cuda == NULL)
        return;
    for_blocks(r, free_block);
    r->cuda->free(r->run_on_gpu);
    r->cuda->free(r->trouble_on_gpu);
}
