/* parts.h - the parts of a task's state: the weights, each slot of the optimizer that is used, the moving average,
 * with local SGD the momentum of the outer optimizer.
 * Parameter servers have the same parts of the rows of remote tables, with the same numbers.
 *
 *     state   params | slot | slot | ... | average | outer momentum
 *
 * Threads: the first replica's, or the thread that opens. */
#ifndef TRAIN_PARTS_H
#define TRAIN_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "optim/optim.h"

struct memory;

enum { PARTS_MAX = OPTIM_MAX_SLOTS + 3 };

struct parts {
    uint32_t n;
    size_t at[PARTS_MAX];         /* floats from the start of the state */
    const char *names[PARTS_MAX]; /* "weights", names of the slots, "average", "outer_momentum" */
    uint32_t average, outer; /* the parts of the average and the outer momentum; 0: none is kept */
};

void parts_layout(struct parts *p, const struct memory *mem);

#endif
