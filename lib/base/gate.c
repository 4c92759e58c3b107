/* gate.c - the last of n threads to arrive advances `round`; the other threads wait for the change.
 * gate_break() sets the lowest bit of the same word, so a round is either completed or broken. */
#include "base/gate.h"

#include <stdatomic.h>
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

/* Sequentially consistent on both sides: either this thread sees the sleeper and wakes it, or the
 * sleeper enters the kernel after the round changed, and the futex call returns at once. */
static void wake_sleepers(struct gate *g)
{
    if (atomic_load(&g->sleeping) > 0)
        syscall(SYS_futex, &g->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void sleep_while(struct gate *g, uint32_t round)
{
    if (atomic_load_explicit(&g->round, memory_order_acquire) != round)
        return;
    atomic_fetch_add(&g->sleeping, 1);
    while (atomic_load_explicit(&g->round, memory_order_acquire) == round)
        syscall(SYS_futex, &g->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&g->sleeping, 1, memory_order_relaxed);
}

bool gate_wait(struct gate *g)
{
    uint32_t round = atomic_load_explicit(&g->round, memory_order_acquire), now;

    if (round & BROKEN)
        return false;
    if (atomic_fetch_add_explicit(&g->arrived, 1, memory_order_acq_rel) + 1 == g->n) {
        uint32_t expected = round;
        bool whole;

        /* No thread can arrive for the next round before the exchange below begins it. */
        atomic_store_explicit(&g->arrived, 0, memory_order_relaxed);
        whole = atomic_compare_exchange_strong_explicit(&g->round, &expected, round + ROUND,
                                                        memory_order_seq_cst, memory_order_acquire);
        wake_sleepers(g);
        return whole; /* false: gate_break() was called first */
    }
    for (int i = 0; g->spin && i < SPINS; i++) {
        if (atomic_load_explicit(&g->round, memory_order_acquire) != round)
            break;
        relax();
    }
    sleep_while(g, round);
    now = atomic_load_explicit(&g->round, memory_order_acquire);
    return (now & ~(uint32_t)BROKEN) != round;
}

void gate_break(struct gate *g)
{
    atomic_fetch_or(&g->round, BROKEN);
    wake_sleepers(g);
}
