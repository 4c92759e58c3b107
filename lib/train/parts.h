/* parts.h - the parts of a task's state: the weights, each slot of the optimizer that is used, the moving average,
 * with staleness the older versions of delayed parameters, with local SGD the momentum of the outer optimizer.
 * Parameter servers have the same parts of the rows of remote tables, with the same numbers.
 *
 *     state   params | slot | slot | ... | average | delayed 1 | ... | outer momentum
 *
 * Threads: the first replica's, or the thread that opens. */
#ifndef TRAIN_PARTS_H
#define TRAIN_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "optim/optim.h"
#include "opts/ps.h"

struct memory;

enum { PARTS_MAX = OPTIM_MAX_SLOTS + 3 + PS_STALENESS_MAX };

struct parts {
    uint32_t n;
    /* Floats from the start of the state to where a parameter with the offset 0 would be. Of the delayed parts
     * only those parameters are there that the graph delays. */
    size_t at[PARTS_MAX];
    /* "weights", names of the slots, "average", "delayed.AGE", "outer_momentum" */
    const char *names[PARTS_MAX];
    uint32_t average, outer; /* the parts of the average and the outer momentum; 0: none is kept */
    uint32_t delayed, n_delayed; /* the first part with delayed parameters, and how many there are */
    size_t floats; /* of all parts */
};

/* staleness: older versions that are kept of each delayed parameter, here or on parameter servers. If these keep
 * all trained parameters, a task has the first part alone, and the average; checkpoints have all parts. */
void parts_layout(struct parts *p, const struct memory *mem, uint32_t staleness);

static inline bool parts_is_delayed(const struct parts *p, uint32_t part)
{
    return part >= p->delayed && part < p->delayed + p->n_delayed;
}

#endif
