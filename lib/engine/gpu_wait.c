/* gpu_wait.c - see gpu_wait.h. */
#include "engine/gpu_wait.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "comm/ras.h"
#include "engine/common.h"
#include "engine/gpu_types.h"

int gpu_poll(struct engine_replica *r, struct err *err)
{
    const struct gpu *g = gpu_of(r);
    int rc = engine_check_canceled(r->engine, err);

    if (rc == 0 && g->comm != NULL && (rc = g->cuda->comm_state(g->comm, err)) < 0)
        return err_wrap(err, rc, "the all-reduce of the GPUs");
    return rc < 0 ? rc : 0;
}

static int look_around(void *arg, struct err *err)
{
    return gpu_poll(arg, err);
}

int gpu_wait(struct engine_replica *r, struct cuda_event *e, struct err *err)
{
    return device_watch(gpu_of(r)->cuda, e == NULL ? gpu_of(r)->streams.work : NULL, e, look_around,
                        r, err);
}

int gpu_wait_stream(struct engine_replica *r, struct cuda_stream *s, struct err *err)
{
    return device_watch(gpu_of(r)->cuda, s, NULL, look_around, r, err);
}

int gpu_check_peers(const struct engine_replica *r, uint64_t since_ns, struct err *err)
{
    uint64_t ms = (clock_ns() - since_ns) / 1000000, deadline = r->engine->group.deadline_ms;
    char words[COMM_RAS_BYTES];

    /* A quarter longer than the deadline, as with CPUs: a peer that fails at the deadline states
     * the cause. */
    if (deadline == 0 || ms <= deadline + deadline / 4)
        return 0;
    comm_ras_query(words, sizeof(words));
    return err_set(err, ERR_TIMEOUT, "the other GPUs did not respond within %.1f s; %s",
                   (double)ms / 1e3, words);
}

void gpu_note_wait(const struct engine_replica *r, uint64_t since_ns, const char *what)
{
    enum { LONG_MS = 1000 };
    uint64_t ms = (clock_ns() - since_ns) / 1000000;
    char words[COMM_RAS_BYTES], text[COMM_RAS_BYTES + 160];

    if (ms < LONG_MS || r->local != 0)
        return;
    comm_ras_query(words, sizeof(words));
    snprintf(text, sizeof(text),
             "waited %.1f s for %s; %s (NCCL_DEBUG=INFO in the environment logs more)",
             (double)ms / 1e3, what, words);
    engine_note(r->engine, true, text);
}

int gpu_inject(struct engine_replica *r, enum gpu_number which, bool nan, struct err *err)
{
    struct gpu *g = gpu_of(r);
    float *there = which == GPU_GRADIENT ? g->grads.tree[0] : g->state.floats,
          *here = &g->report.readback->number;
    int rc = g->cuda->copy(here, there, sizeof(*here), g->streams.work, err);

    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    if (nan)
        *here = NAN;
    else
        *(uint8_t *)here ^= 1; /* of a fraction, which only a checksum detects */
    if (rc == 0)
        rc = g->cuda->copy(there, here, sizeof(*here), g->streams.work, err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    return rc;
}
