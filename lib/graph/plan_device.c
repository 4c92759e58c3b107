/* plan_device.c - GPU support of a plan: kernels, constants, results. See struct plan_device. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "device/cuda.h"
#include "device/device.h"
#include "graph/plan_priv.h"

enum { ALIGN = 256 };

int plan_kernels(const struct plan *p, const struct op_def *def, const char *node,
                 const struct op_kernels **out, struct err *err)
{
    *out = p->device.cuda == NULL ? &def->cpu : p->device.cuda->op(op_row(def));
    if (*out == NULL)
        return err_set(err, ERR_UNSUPPORTED, "%s '%s' cannot be computed on a GPU by this version: train "
                                             "with --devices cpu", def->name, node);
    return 0;
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- constants ---- */

bool plan_device_add_constant(struct plan *p, uint32_t value)
{
    struct plan_value *v = &p->values.at[value];
    struct plan_device *device = &p->device;

    if (v->constant_at > 0)
        return true;
    if (device->constants_bytes == 0)
        device->constants_bytes = ALIGN; /* the first place holds the number 1 */
    v->constant_at = device->constants_bytes;
    device->constants_bytes += round_up(tensor_bytes(&v->tensor));
    return VEC_PUSH(device->constant_values, value);
}

static int upload(struct plan *p, struct cuda_stream *s, struct err *err)
{
    const struct cuda_api *cuda = p->device.cuda;
    static const float one = 1;
    int rc = cuda->copy(p->device.constants, &one, sizeof(one), s, err);

    for (size_t i = 0; rc == 0 && i < p->device.constant_values.n; i++) {
        const struct plan_value *v = &p->values.at[p->device.constant_values.at[i]];

        if (tensor_bytes(&v->tensor) > 0)
            rc = cuda->copy((char *)p->device.constants + v->constant_at, v->tensor.data,
                            tensor_bytes(&v->tensor), s, err);
    }
    return rc < 0 ? rc : device_wait(cuda, s, NULL, NULL, err);
}

/* ---- results ---- */

/* Enumerates loss and metrics: *value receives number i, GRAPH_NONE if absent. Returns false after
 * the last. */
static bool result_at(const struct plan *p, uint32_t i, uint32_t *value)
{
    if (i < 2)
        *value = i == 0 ? p->loss.value : p->loss.weight;
    else if (i - 2 < 2 * p->n_metrics)
        *value = i % 2 == 0 ? p->metrics[(i - 2) / 2].value : p->metrics[(i - 2) / 2].weight;
    else
        return false;
    return true;
}

/* Offset of a result in the pinned memory; the total size for a value that is not a result. */
static size_t result_offset(const struct plan *p, uint32_t wanted)
{
    size_t at = 0;
    uint32_t value;

    for (uint32_t i = 0; result_at(p, i, &value) && (value != wanted || value == GRAPH_NONE); i++)
        at += value != GRAPH_NONE ? round_up(tensor_bytes(&p->values.at[value].tensor)) : 0;
    return at;
}

int plan_device_copy_results(struct plan *p, const struct op_run *run, struct err *err)
{
    uint32_t value;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && result_at(p, i, &value); i++) {
        const struct tensor *t;

        if (value == GRAPH_NONE)
            continue;
        t = p->values.at[value].fwd;
        rc = p->device.cuda->copy((char *)p->device.results + result_offset(p, value), t->data,
                                  tensor_bytes(t), run->queue, err);
    }
    return rc;
}

const void *plan_device_result(const struct plan *p, uint32_t value)
{
    return (const char *)p->device.results + result_offset(p, value);
}

int plan_device_read(const struct plan *p, const struct op_run *run, const struct tensor *t,
                     struct arena *mem, struct tensor *out, struct err *err)
{
    const struct cuda_api *cuda = p->device.cuda;
    size_t bytes = tensor_bytes(t);
    int rc;

    *out = *t;
    if (cuda == NULL || bytes == 0)
        return 0;
    out->data = arena_alloc(mem, bytes);
    if (out->data == NULL)
        return plan_no_memory(err);
    rc = cuda->copy(out->data, t->data, bytes, run->queue, err);
    return rc < 0 ? rc : device_wait(cuda, run->queue, NULL, run->cancel, err);
}

/* ---- open and close ---- */

int plan_device_open(struct plan *p, struct err *err)
{
    const struct cuda_api *cuda = p->device.cuda;
    struct cuda_stream *s;
    int rc;

    if (p->device.constants_bytes == 0)
        p->device.constants_bytes = ALIGN;
    rc = cuda->alloc(&p->device.constants, p->device.constants_bytes, err);
    if (rc == 0)
        rc = cuda->pin(&p->device.results, result_offset(p, GRAPH_NONE) + ALIGN, err);
    if (rc == 0)
        rc = cuda->stream_open(CUDA_LOW_PRIORITY, &s, err);
    if (rc < 0)
        return rc;
    rc = upload(p, s, err);
    cuda->stream_close(s);
    return rc;
}

void plan_device_close(struct plan *p)
{
    if (p->device.cuda == NULL)
        return;
    p->device.cuda->free(p->device.constants);
    p->device.cuda->unpin(p->device.results);
    VEC_FINI(p->device.constant_values);
}
