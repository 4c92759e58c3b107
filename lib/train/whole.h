/* whole.h - the whole state: that of a task without remote tables, which is the content of a
 * checkpoint and of an export.
 *
 * With parameter servers a task holds the state without the rows of remote tables. The coordinator
 * builds the whole state for a checkpoint, and distributes it after one was read. Its layout is that
 * of the same model imported without remote tables (memory.h), so files have the same bytes with and
 * without parameter servers. Without remote tables the whole state is the state of the task.
 *
 *     whole   params | slot | slot | ... | average | outer momentum
 *
 * Threads: the first replica's, or the thread that opens. */
#ifndef TRAIN_WHOLE_H
#define TRAIN_WHOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "optim/optim.h"

struct err;
struct graph;
struct memory;

enum { WHOLE_MAX_PARTS = OPTIM_MAX_SLOTS + 3 };

struct whole {
    const struct graph *graph; /* borrowed; its layout is that of the whole state */
    size_t bytes;
    uint32_t n_parts;                  /* weights, slots in use, average, outer momentum */
    size_t parts_at[WHOLE_MAX_PARTS];  /* floats from the start */
    const char *names[WHOLE_MAX_PARTS]; /* "weights", names of the slots, "average", "outer_momentum" */
    size_t params, trained;            /* floats of the weights, and of a slot */
    uint32_t average, outer; /* the parts of the average and the outer momentum; 0: none is kept */
};

/* `graph` was imported without remote tables; the optimizer is that of the memory. */
void whole_layout(struct whole *w, const struct graph *graph, const struct memory *mem);

/* Copies the state of the task, without remote tables, into the whole state, or back. */
void whole_add_state(const struct whole *w, const struct graph *own, const struct memory *mem,
                     const float *state, float *whole);
void whole_take_state(const struct whole *w, const struct graph *own, const struct memory *mem,
                      const float *whole, float *state);

/* Returns the floats from the start of the whole state to row 0 of a part of the remote table; SIZE_MAX: it
 * is no parameter of the graph. */
size_t whole_table_at(const struct whole *w, const char *table, uint32_t part);

#endif
