/* state.c - waits on the state of a running preflight. */
#include <time.h>

#include "preflight/preflight_priv.h"

void preflight_wait(struct preflight *p)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += CONN_SLICE_MS * 1000000l / 2;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until);
}

bool preflight_is_stopped(struct preflight *p)
{
    if (p->o->is_stopped != NULL && p->o->is_stopped(p->o->arg))
        atomic_store(&p->stop, true);
    return atomic_load(&p->stop);
}
