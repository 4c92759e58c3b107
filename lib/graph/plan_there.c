/* plan_there.c - GPU support of a plan: kernels, constants, results. See struct plan_there. */
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
    *out = p->there.cuda == NULL ? &def->cpu : p->there.cuda->op(op_row(def));
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

bool plan_there_constant(struct plan *p, uint32_t value)
{
    struct plan_value *v = &p->values.at[value];
    struct plan_there *there = &p->there;

    if (v->constant_at > 0)
        return true;
    if (there->constants_bytes == 0)
        there->constants_bytes = ALIGN; /* the first place holds the number 1 */
    v->constant_at = there->constants_bytes;
    there->constants_bytes += round_up(tensor_bytes(&v->tensor));
    return VEC_PUSH(there->constant_values, value);
}

static int upload(struct plan *p, struct cuda_stream *s, struct err *err)
{
    const struct cuda_api *cuda = p->there.cuda;
    static const float one = 1;
    int rc = cuda->copy(p->there.constants, &one, sizeof(one), s, err);

    for (size_t i = 0; rc == 0 && i < p->there.constant_values.n; i++) {
        const struct plan_value *v = &p->values.at[p->there.constant_values.at[i]];

        if (tensor_bytes(&v->tensor) > 0)
            rc = cuda->copy((char *)p->there.constants + v->constant_at, v->tensor.data,
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
        *value = i == 0 ? p->loss_value : p->loss_weight;
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

int plan_there_results(struct plan *p, const struct op_run *run, struct err *err)
{
    uint32_t value;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && result_at(p, i, &value); i++) {
        const struct tensor *t;

        if (value == GRAPH_NONE)
            continue;
        t = p->values.at[value].fwd;
        rc = p->there.cuda->copy((char *)p->there.results + result_offset(p, value), t->data,
                                 tensor_bytes(t), run->queue, err);
    }
    return rc;
}

const void *plan_there_result(const struct plan *p, uint32_t value)
{
    return (const char *)p->there.results + result_offset(p, value);
}

int plan_there_look(const struct plan *p, const struct op_run *run, const struct tensor *t,
                    struct arena *mem, struct tensor *out, struct err *err)
{
    const struct cuda_api *cuda = p->there.cuda;
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

int plan_there_open(struct plan *p, struct err *err)
{
    const struct cuda_api *cuda = p->there.cuda;
    struct cuda_stream *s;
    int rc;

    if (p->there.constants_bytes == 0)
        p->there.constants_bytes = ALIGN;
    rc = cuda->alloc(&p->there.constants, p->there.constants_bytes, err);
    if (rc == 0)
        rc = cuda->pin(&p->there.results, result_offset(p, GRAPH_NONE) + ALIGN, err);
    if (rc == 0)
        rc = cuda->stream_open(CUDA_SOME_TIME, &s, err);
    if (rc < 0)
        return rc;
    rc = upload(p, s, err);
    cuda->stream_close(s);
    return rc;
}

void plan_there_close(struct plan *p)
{
    if (p->there.cuda == NULL)
        return;
    p->there.cuda->free(p->there.constants);
    p->there.cuda->unpin(p->there.results);
    VEC_FINI(p->there.constant_values);
}
