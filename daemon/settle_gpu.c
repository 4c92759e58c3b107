/* settle_gpu.c - what GPUs a task has, and the versions that all tasks must have in common. */
#include "daemon/settle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "device/cuda.h"
#include "op/op.h"

/* Numbers of libraries as they count themselves: they are to be equal, not to be read. */
static void describe_kernels(struct settled *s, const struct cuda_versions *v)
{
    snprintf(s->kernels, sizeof(s->kernels),
             "cuda %d.%d, driver for %d.%d, cublaslt %d, cudnn %d, sm_%u%u", v->runtime / 1000,
             v->runtime % 1000 / 10, v->driver / 1000, v->driver % 1000 / 10, v->cublaslt, v->cudnn,
             s->gpus[0].major, s->gpus[0].minor);
    snprintf(s->nccl, sizeof(s->nccl), "%d.%d.%d", v->nccl / 10000, v->nccl / 100 % 100,
             v->nccl % 100);
}

/* GPUs of one task share its sums as those of several do. */
static int check_alike(const struct settled *s, struct err *err)
{
    const struct cuda_gpu *a = &s->gpus[0];

    for (uint32_t i = 1; i < s->n_devices; i++) {
        const struct cuda_gpu *b = &s->gpus[i];

        if (b->major != a->major || b->minor != a->minor)
            return err_set(err, ERR_INPUT,
                           "--devices: cuda:%u, %s, has compute capability %u.%u, cuda:%u, %s, has %u.%u: name GPUs "
                           "of one kind", s->devices[i].index, b->name, b->major, b->minor, s->devices[0].index,
                           a->name, a->major, a->minor);
    }
    return 0;
}

int settle_gpus(struct settled *s, struct err *err)
{
    const struct cuda_api *cuda = device_cuda(&s->devices[0]);
    struct cuda_gpu *all;
    struct cuda_versions v;
    uint32_t n;
    int rc;

    if (cuda == NULL) {
        snprintf(s->kernels, sizeof(s->kernels), "%s", op_kernel_id());
        return 0;
    }
    all = calloc(DEVICE_MAX, sizeof(*all));
    s->gpus = calloc(s->n_devices, sizeof(*s->gpus));
    if (all == NULL || s->gpus == NULL) {
        free(all);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    rc = cuda->gpus(all, DEVICE_MAX, &n, err);
    for (uint32_t i = 0; rc == 0 && i < s->n_devices; i++)
        if (s->devices[i].index < n)
            s->gpus[i] = all[s->devices[i].index];
        else
            rc = err_set(err, ERR_DEVICE, "cuda:%u has gone", s->devices[i].index);
    free(all);
    if (rc == 0)
        rc = check_alike(s, err);
    if (rc < 0)
        return rc;
    cuda->versions(&v);
    describe_kernels(s, &v);
    return 0;
}

int settle_gpu_models(struct settled *s, struct err *err)
{
    size_t used = strlen(s->kernels);

    if (s->gpus == NULL || !s->conf->communication.deterministic)
        return 0;
    for (uint32_t i = 1; i < s->n_devices; i++)
        if (strcmp(s->gpus[i].name, s->gpus[0].name) != 0)
            return err_set(err, ERR_INPUT,
                           "/communication/deterministic: found true, but cuda:%u is %s and cuda:%u %s, for which "
                           "libraries may choose different algorithms: name GPUs of one model in --devices, or "
                           "write false",
                           s->devices[0].index, s->gpus[0].name, s->devices[i].index,
                           s->gpus[i].name);
    snprintf(s->kernels + used, sizeof(s->kernels) - used, ", %s", s->gpus[0].name);
    return 0;
}

void settled_print_devices(const struct settled *s, struct buf *out)
{
    buf_str(out, "[");
    for (uint32_t i = 0; i < s->n_devices; i++) {
        char name[32];

        device_name(&s->devices[i], name, sizeof(name));
        buf_printf(out, "%s{\"name\": \"%s\", ", i > 0 ? ", " : "", name);
        if (s->gpus == NULL) {
            buf_printf(out, "\"core\": %d}", s->devices[i].core);
            continue;
        }
        buf_str(out, "\"gpu\": ");
        buf_json(out, s->gpus[i].name);
        buf_str(out, ", \"uuid\": ");
        buf_json(out, s->gpus[i].uuid);
        buf_printf(out, ", \"compute_capability\": \"%u.%u\", \"memory_bytes\": %llu}",
                   s->gpus[i].major, s->gpus[i].minor, (unsigned long long)s->gpus[i].memory_bytes);
    }
    buf_str(out, "],\n  \"kernels\": ");
    buf_json(out, s->kernels);
    buf_printf(out, ",\n  \"code\": \"%s\",\n  \"protocol\": \"%s\"", versions_code, s->protocol);
    if (s->gpus != NULL) {
        buf_str(out, ",\n  \"nccl\": ");
        buf_json(out, s->nccl);
    }
}
