/* parts.h - ops that copy parts of their inputs to parts of their outputs: Transpose, Concat,
 * Split, Slice, Pad, DepthToSpace. Forward runs each copy (copy.h); backward runs its reverse, into
 * a gradient that is zeroed first unless every element of it is written by exactly one copy. Any
 * type.
 *
 * The plan of an op fills in the parts; parts_fwd and parts_bwd are its kernels, and `free` frees
 * the state. */
#ifndef OP_SHAPE_PARTS_H
#define OP_SHAPE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "op/op.h"
#include "op/shape/copy.h"

struct part {
    uint32_t in, out;
    struct copy fwd, bwd;
};

struct parts { /* state of the plan (op_plan.state) */
    bool fills;       /* outputs have elements that no part writes; see fill_in */
    uint32_t fill_in; /* index of the scalar input that is stored in them; absent: 0 */
    bool gaps;        /* inputs have elements that no part reads, or several parts read */
    uint32_t n;
    struct part at[];
};

/* Allocates zeroed parts as p->state. Returns NULL and sets ERR_NOMEM on failure. */
struct parts *parts_new(struct op_plan *p, uint32_t n, struct err *err);
/* Adds a box of `size` along each axis: from x at x_start with strides x_step (NULL: 0, 1) to y at
 * y_start (NULL: 0). The tensors have equal rank; each has its own layout. */
void part_box(struct part *part, const struct tensor *x, const struct tensor *y,
              const int64_t *size, const int64_t *x_start, const int64_t *x_step,
              const int64_t *y_start);
/* Call after the axes of part->fwd were added directly: computes the other fields. */
void part_finish(struct part *part);

int parts_fwd(const struct op_call *c, struct err *err);
int parts_bwd(const struct op_call *c, struct err *err);

#endif
