/* fiber.h - stacks that a thread of the host switches between.
 *
 * Threads: a fiber runs in the thread that made it, and nowhere else. */
#ifndef CUDA_FIBER_H
#define CUDA_FIBER_H

struct fiber; /* see fiber.c */

/* The stack that the caller is on: to be switched from, and back to. NULL: out of memory. */
struct fiber *fiber_here(void);

/* A stack of its own; `body` starts at the first switch and never returns. NULL: out of memory. */
struct fiber *fiber_new(void (*body)(void));

/* Leaves `from`, which is running; returns when something switches to it again. */
void fiber_switch(struct fiber *from, struct fiber *to);

void fiber_free(struct fiber *f); /* not running; NULL is allowed */

#endif
