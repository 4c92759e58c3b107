/* gate.h - a barrier for the threads of one process that any thread can break.
 *
 * With `spin`, which requires a core per thread, waiters spin before they sleep on a futex. The
 * caller owns the struct, which must stay valid until every waiter has returned. No allocation.
 * Threads: n threads call gate_wait(); any thread may call gate_break(). */
#ifndef BASE_GATE_H
#define BASE_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct gate {
    uint32_t n;        /* threads per round */
    bool spin;         /* spin before sleeping */
    _Atomic uint32_t arrived;
    _Atomic uint32_t round;    /* the futex word: 2 * completed rounds, + 1 after gate_break() */
    _Atomic uint32_t sleeping; /* threads that are in the futex call or about to enter it */
};

void gate_init(struct gate *g, uint32_t n, bool spin);
/* Waits until all n threads have called it, then returns true; returns false if the gate is broken.
 * All threads of a round get the same result. Memory written by a thread before its call is visible
 * to all threads after theirs. */
bool gate_wait(struct gate *g);
/* Makes all current and later waiters return false. */
void gate_break(struct gate *g);

#endif
