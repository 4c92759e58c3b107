#include "base/clock.h"

#include <stdatomic.h>

static _Atomic uint64_t frozen_ns = UINT64_MAX; /* UINT64_MAX: not frozen */

static uint64_t read_ns(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_ns(void)
{
    uint64_t ns = atomic_load_explicit(&frozen_ns, memory_order_relaxed);

    return ns != UINT64_MAX ? ns : read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_ms(void)
{
    return clock_ns() / 1000000u;
}

uint64_t clock_wall_us(void)
{
    return read_ns(CLOCK_REALTIME) / 1000u;
}

struct timespec clock_after_ms(uint64_t ms)
{
    enum { MS_MAX = 1000 * 1000 * 1000 };
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    if (ms > MS_MAX)
        ms = MS_MAX;
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

void clock_fake(uint64_t ns)
{
    atomic_store_explicit(&frozen_ns, ns, memory_order_relaxed);
}
