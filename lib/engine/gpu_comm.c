/* gpu_comm.c - see gpu_comm.h. */
#include "engine/gpu_comm.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "engine/common.h"
#include "engine/gpu_codes.h"
#include "engine/gpu_order.h"
#include "engine/gpu_types.h"
#include "engine/gpu_wait.h"

static const char *name_of_rank(const struct engine *e, uint32_t rank)
{
    uint32_t i = 0;

    for (; i + 1 < e->group.view->n_members && rank >= e->group.view->members[i].n_devices; i++)
        rank -= e->group.view->members[i].n_devices;
    return e->group.view->members[i].name;
}

/* Replaces NCCL's error about two tasks that use one GPU by the names of the tasks and the remedy.
 */
static int explain(const struct engine_replica *r, int rc, struct err *err)
{
    const struct engine *e = r->engine;
    const char *twice = rc < 0 ? strstr(err->text, "Duplicate GPU detected") : NULL;
    unsigned a, b;
    char name[32];

    if (twice == NULL || sscanf(twice, "Duplicate GPU detected : rank %u and rank %u", &a, &b) != 2)
        return rc;
    device_name(&e->opts->devices[r->local], name, sizeof(name));
    return err_set(
        err, rc,
        "%s and %s of this host use one GPU, %s of this task; expected a separate GPU for each "
        "(--devices cuda:0 and --devices cuda:1); for a test, different values of NCCL_HOSTID in "
        "the environment make them separate hosts",
        name_of_rank(e, a < b ? a : b), name_of_rank(e, a < b ? b : a), name);
}

int gpu_connect(struct engine_replica *r, struct err *err)
{
    struct engine *e = r->engine;
    struct gpu *g = gpu_of(r);
    uint32_t world = 0;
    unsigned char *id = (unsigned char *)r->arenas->grads[0]; /* where peers can see it */
    struct timespec nap = { .tv_nsec = 1000000 };
    uint64_t begin_ns = clock_ns();
    int rc = 0;

    for (uint32_t i = 0; i < e->group.view->n_members; i++)
        world += e->group.view->members[i].n_devices;
    if (world == 1)
        return 0;
    rc = gpu_order_begin(r, world, err);
    if (rc == 0)
        rc = gpu_codes_begin(r, err);
    if (rc < 0)
        return rc;
    place_enter(&r->place, PHASE_NCCL);
    memset(id, 0, CUDA_ID_BYTES);
    if (r->rank == 0)
        rc = g->cuda->comm_id(id, err);
    if (rc == 0)
        rc = comm_broadcast(e->group.comm, r->local, id, CUDA_ID_BYTES, 0, err);
    if (rc == 0)
        rc = g->cuda->comm_open(id, r->rank, world, e->opts->cancel, &g->comm, err);
    memset(id, 0, CUDA_ID_BYTES); /* it is the secret of this generation's sums */
    while (rc == 0 && (rc = g->cuda->comm_state(g->comm, err)) == 0) {
        place_wait(&r->place, PLACE_WAITS_PEERS);
        rc = engine_check_canceled(e, err);
        if (rc < 0)
            gpu_note_wait(r, begin_ns, "the other GPUs");
        if (rc == 0)
            rc = gpu_check_peers(r, begin_ns, err);
        nanosleep(&nap, NULL);
    }
    rc = explain(r, rc, err);
    return rc < 0 ? err_wrap(err, rc, "connect the GPUs (NCCL)") : 0;
}

int gpu_disconnect(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct cuda_comm *comm = g->comm;

    g->comm = NULL;
    if (comm == NULL)
        return 0;
    /* In a generation that ended early a sum may be under way that a peer will never join. */
    return cancel_requested(r->engine->opts->cancel) ? g->cuda->comm_abort(comm, err)
                                                     : g->cuda->comm_close(comm, err);
}
