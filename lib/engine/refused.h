/* refused.h - where an index that a plan has refused comes from: which input of the model, which file and record.
 *
 * An op that reads rows at indices knows the position of an index in its own operand and its value. The sample of a
 * lane (micro-batch) follows from the position, and the input is the one of integers that has the value in this sample.
 * Threads: that of the replica. */
#ifndef ENGINE_REFUSED_H
#define ENGINE_REFUSED_H

#include <stdint.h>

struct data_batch;
struct data_set;
struct engine_replica;
struct err;
struct op_invalid;
struct plan;

/* Appends the input, the file and the record to *err, if they are known, and returns rc. `b`: the batch of the call. */
int refused_place(const struct engine_replica *r, struct plan *plan, const struct data_set *set,
                  const struct data_batch *b, const struct op_invalid *found, int rc,
                  struct err *err);
/* Names the place in lane found->lane of a step as refused_place() does; reads the samples of the lane again. */
int refused_place_lane(struct engine_replica *r, uint64_t step, const struct op_invalid *found,
                       int rc, struct err *err);

#endif
