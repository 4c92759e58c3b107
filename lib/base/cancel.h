/* cancel.h - a flag with which one thread requests that other threads stop their current operation.
 *
 * In a zeroed struct the flag is clear. Threads: any. CUDA C++, which has no _Atomic, includes this
 * header too. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>

struct cancel {
    int requested; /* atomic; nonzero: cancellation was requested */
};

static inline void cancel_set(struct cancel *c, bool requested)
{
    __atomic_store_n(&c->requested, requested, __ATOMIC_RELEASE);
}

/* Returns true if cancellation was requested; false for NULL. */
static inline bool cancel_requested(const struct cancel *c)
{
    return c != NULL && __atomic_load_n(&c->requested, __ATOMIC_ACQUIRE) != 0;
}

#endif
