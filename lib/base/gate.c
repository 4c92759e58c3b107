/* gate.c - the last of n to arrive moves `round` on, and that is what the others wait for.
 * Breaking sets the lowest bit of the same word, so a round is either completed or broken. */
#include "base/gate.h"

#include <linux/futex.h>
#include <limits.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"

enum { BROKEN = 1, ROUND = 2, SPINS = 2000 };

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void gate_init(struct gate *g, uint32_t n, bool spin)
{
    CHECK(n > 0);
    *g = (struct gate){ .n = n, .spin = spin };
}

/* Sequentially consistent on both sides: either we see the sleeper and wake it, or it comes late
 * enough for the kernel to see the new round and not let it sleep. */
static void wake_sleepers(struct gate *g)
{
    if (__atomic_load_n(&g->sleeping, __ATOMIC_SEQ_CST) > 0)
        syscall(SYS_futex, &g->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void sleep_while(struct gate *g, uint32_t round)
{
    if (__atomic_load_n(&g->round, __ATOMIC_ACQUIRE) != round)
        return;
    __atomic_fetch_add(&g->sleeping, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&g->round, __ATOMIC_ACQUIRE) == round)
        syscall(SYS_futex, &g->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    __atomic_fetch_sub(&g->sleeping, 1, __ATOMIC_RELAXED);
}

bool gate_wait(struct gate *g)
{
    uint32_t round = __atomic_load_n(&g->round, __ATOMIC_ACQUIRE), now;

    if (round & BROKEN)
        return false;
    if (__atomic_add_fetch(&g->arrived, 1, __ATOMIC_ACQ_REL) == g->n) {
        uint32_t expected = round;
        bool whole;

        /* Nobody can arrive for the next round before it begins, one line below. */
        __atomic_store_n(&g->arrived, 0, __ATOMIC_RELAXED);
        whole = __atomic_compare_exchange_n(&g->round, &expected, round + ROUND, false,
                                            __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
        wake_sleepers(g);
        return whole; /* else it was broken a moment ago */
    }
    for (int i = 0; g->spin && i < SPINS; i++) {
        if (__atomic_load_n(&g->round, __ATOMIC_ACQUIRE) != round)
            break;
        relax();
    }
    sleep_while(g, round);
    now = __atomic_load_n(&g->round, __ATOMIC_ACQUIRE);
    return (now & ~(uint32_t)BROKEN) != round;
}

void gate_break(struct gate *g)
{
    __atomic_fetch_or(&g->round, BROKEN, __ATOMIC_SEQ_CST);
    wake_sleepers(g);
}
