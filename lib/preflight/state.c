/* state.c - waits on the state of a running preflight. */
#include "base/clock.h"
#include "preflight/preflight_priv.h"

void preflight_wait(struct preflight *p)
{
    struct timespec until = clock_after_ms(CONN_SLICE_MS / 2);

    (void)pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until);
}

bool preflight_is_stopped(struct preflight *p)
{
    if (p->o->is_stopped != NULL && p->o->is_stopped(p->o->arg))
        atomic_store(&p->stop, true);
    return atomic_load(&p->stop);
}
