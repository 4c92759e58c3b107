/* cancel.h - a flag by which one thread asks others to stop what they do. A zeroed struct is not asked.
 * Threads: any. Also included by CUDA C++, which has no _Atomic. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>

struct cancel {
    int asked; /* atomic */
};

static inline void cancel_set(struct cancel *c, bool asked)
{
    __atomic_store_n(&c->asked, asked, __ATOMIC_RELEASE);
}

/* NULL is never asked. */
static inline bool cancel_asked(const struct cancel *c)
{
    return c != NULL && __atomic_load_n(&c->asked, __ATOMIC_ACQUIRE) != 0;
}

#endif
