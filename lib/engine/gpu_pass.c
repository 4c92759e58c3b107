/* gpu_pass.c - see gpu_pass.h. */
#include "engine/gpu_pass.h"

#include "base/err.h"
#include "engine/gpu_feed.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"
#include "graph/graph.h"

int gpu_check_trouble(struct engine_replica *r, const struct plan *plan, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = g->cuda->copy(&g->report.readback->trouble, g->report.trouble,
                           sizeof(*g->report.trouble), g->streams.work, err);

    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    return rc == 0 && g->report.readback->trouble.found != 0
               ? plan_refuse(plan, &g->report.readback->trouble, err)
               : rc;
}

int gpu_run(struct engine_replica *r, struct plan *plan, const struct op_run *run, bool backward,
            struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_slot *s = &g->feed.slot[(g->feed.next + 1) % GPU_SLOTS];
    struct op_run there;
    int rc = gpu_send_run(r, s, run, err);

    there = *s->run;
    there.cancel = run->cancel;
    if (rc == 0)
        rc = plan_forward(plan, &there, err);
    if (rc == 0 && backward)
        rc = plan_backward(plan, &there, g->grads.tree[0], NULL, NULL, err);
    return rc < 0 ? rc : gpu_check_trouble(r, plan, err);
}

int gpu_fetch_gradients(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = g->cuda->copy(r->arenas->grads[0], g->grads.tree[0],
                           r->engine->memory.params * sizeof(float), g->streams.work, err);

    return rc < 0 ? rc : gpu_wait(r, NULL, err);
}
