/* fiber.h - stacks between which a host thread switches.
 *
 * Threads: a fiber runs only in the thread that created it. */
#ifndef CUDA_FIBER_H
#define CUDA_FIBER_H

struct fiber; /* see fiber.c */

/* Returns a fiber for the stack of the caller, from which and to which it switches. NULL: out of
 * memory. */
struct fiber *fiber_here(void);

/* Creates a stack; `body` starts at the first switch and never returns. NULL: out of memory. */
struct fiber *fiber_new(void (*body)(void));

/* Suspends `from`, the running fiber, and resumes `to`; returns when a fiber switches back to
 * `from`. */
void fiber_switch(struct fiber *from, struct fiber *to);

void fiber_free(struct fiber *f); /* must not be running; NULL is allowed */

#endif
