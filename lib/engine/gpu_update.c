/* gpu_update.c - see gpu_update.h. */
#include "engine/gpu_update.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"

/* ---- the gradient ---- */

void gpu_inspect(struct engine_replica *r)
{
    const struct cuda_scan *look = &gpu_of(r)->report.readback->look; /* made with the reduction */

    r->inspection.own = look->checksum;
    r->inspection.bad = look->non_finite != 0;
}

/* The index of the first GPU that differs from most of them; from the first GPU, if there is no
 * majority. n: all are equal. */
static uint32_t odd_one(const uint32_t *sums, uint32_t n)
{
    uint32_t value = sums[0], n_equal = 0, i;

    for (i = 0; i < n && 2 * n_equal <= n; i++) {
        n_equal = 0;
        for (uint32_t k = 0; k < n; k++)
            n_equal += sums[k] == sums[i];
        value = 2 * n_equal > n ? sums[i] : value;
    }
    for (i = 0; i < n && sums[i] == value; i++)
        ;
    return i;
}

/* 0, or the error that names the GPUs of this task that differ: the task knows before its peers do.
 */
static int compare(const struct engine *e, const uint32_t *sums, const char *what, uint64_t step,
                   const char *then, struct err *err)
{
    uint32_t n = e->opts->n_devices, odd = odd_one(sums, n), other;
    char name[32], like[32];

    if (odd == n)
        return 0;
    for (other = sums[0] != sums[odd] ? 0 : 1; sums[other] == sums[odd];)
        other++;
    device_name(&e->opts->devices[odd], name, sizeof(name));
    device_name(&e->opts->devices[other], like, sizeof(like));
    return err_set(err, ERR_DEVICE,
                   "%s: %s and %s differ in the %s of step %" PRIu64
                   ", with checksums %06x and %06x%s: one of "
                   "them computed or stored a wrong value. %s",
                   e->group.view->members[e->group.view->self].name, name, like, what, step,
                   sums[odd], sums[other], n > 2 ? ", which most of its GPUs have" : "", then);
}

int gpu_verify_gradient(struct engine_replica *r, uint64_t step, uint32_t *sum, bool *finite,
                        struct err *err)
{
    const struct engine *e = r->engine;
    uint32_t sums[DEVICE_MAX];

    *finite = true;
    for (uint32_t i = 0; i < e->opts->n_devices; i++) {
        sums[i] = e->replicas[i]->inspection.own;
        *finite = *finite && !e->replicas[i]->inspection.bad;
    }
    *sum = sums[0];
    if (!e->opts->check_gradients)
        return 0;
    return compare(e, sums, "reduced gradient", step,
                   "The step is not applied; the state before it is valid", err);
}

/* ---- the update ---- */

void gpu_gradient_norm(struct engine_replica *r, bool wanted, double *norm)
{
    *norm = wanted ? sqrt(gpu_of(r)->report.readback->look.squares) / r->scale : NAN;
}

int gpu_update(struct engine_replica *r, const struct optim_hyper *h, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    struct optim_state state = { .w = g->state.floats,
                                 .g = g->grads.tree[0],
                                 .average = g->state.average,
                                 .read = g->grads.rows_at > 0 ? g->grads.tree[0] + g->grads.rows_at
                                                              : NULL };
    struct err ignored;
    int rc;

    memcpy(state.slots, g->state.slots, sizeof(state.slots));
    rc = gpu_begin_work(r, err);
    if (rc == 0)
        rc = g->cuda->math->optim_update(g->optim, h, &state, 1.0f / (float)e->opts->lanes,
                                         g->streams.work, err);
    if (rc == 0)
        rc = gpu_residual_apply(r, err);
    if (rc == 0)
        rc = gpu_clock_work_end(r, err);
    if (rc == 0)
        rc = gpu_span_end(r, TRACE_WORK, TRACE_UPDATE, 0, err);
    if (rc < 0) {
        g->state.is_held = false;
        return rc;
    }
    g->state.held = h->step;
    if (r->local + 1 == e->opts->n_devices && fault_hit("health.flip_weight"))
        /* if the GPU fails, the next step reports it */
        (void)gpu_inject(r, GPU_WEIGHT, false, &ignored);
    return 0;
}

void gpu_skip_update(struct engine_replica *r, uint64_t step)
{
    gpu_of(r)->state.held = step;
}

/* ---- the state ---- */

int gpu_checksum(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    int rc = gpu_begin_work(r, err);

    if (rc == 0)
        rc = g->cuda->math->scan(g->state.floats, e->memory.state_bytes / sizeof(float),
                                 g->report.look, g->streams.work, err);
    if (rc == 0)
        rc = g->cuda->copy(&g->report.readback->look, g->report.look, sizeof(*g->report.look),
                           g->streams.work, err);
    if (rc == 0)
        rc = gpu_clock_work_end(r, err);
    if (rc == 0)
        rc = gpu_span_end(r, TRACE_WORK, TRACE_CHECK, 0, err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    if (rc == 0)
        r->state_sum = g->report.readback->look.checksum;
    return rc;
}

int gpu_verify_state(struct engine_replica *r, uint64_t step, uint32_t *sum, struct err *err)
{
    const struct engine *e = r->engine;
    uint32_t sums[DEVICE_MAX];

    for (uint32_t i = 0; i < e->opts->n_devices; i++)
        sums[i] = e->replicas[i]->state_sum;
    *sum = sums[0];
    return compare(e, sums, "weights and optimizer state", step,
                   "The state of this task is invalid", err);
}
