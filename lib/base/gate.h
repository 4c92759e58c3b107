/* gate.h - a barrier for the threads of one process that can be broken from outside.
 *
 * Waiters spin for a while if `spin` was asked for (a core for each of them), then sleep on a
 * futex. Lives in the caller's memory, which must stay until every waiter has returned; no
 * allocation. Threads: `n` waiters, anybody may break. */
#ifndef BASE_GATE_H
#define BASE_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct gate {
    uint32_t n;        /* threads that meet */
    bool spin;         /* spin before sleeping */
    _Atomic uint32_t arrived;
    _Atomic uint32_t round;    /* the futex word: 2 * rounds completed, + 1 once broken */
    _Atomic uint32_t sleeping; /* threads in the kernel, or on their way */
};

void gate_init(struct gate *g, uint32_t n, bool spin);
/* Returns when all n threads are here: true. false: the gate is broken. The threads of one round
 * all get the same answer. What a thread wrote before it came is seen by all behind the gate. */
bool gate_wait(struct gate *g);
void gate_break(struct gate *g);

#endif
