/* parts.h - ops that put pieces of their inputs into pieces of their outputs: Transpose, Concat,
 * Split, Slice, Pad, DepthToSpace. Forward runs each copy (copy.h), backward runs it back, into a
 * gradient that starts as zero unless every piece of it comes from exactly one copy. Any type.
 *
 * An op's plan fills the parts; parts_fwd and parts_bwd are its kernels, `free` frees the state. */
#ifndef OP_SHAPE_PARTS_H
#define OP_SHAPE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "op/op.h"
#include "op/shape/copy.h"

struct part {
    uint32_t in, out;
    struct copy there, back;
};

struct parts { /* op_plan.state */
    bool fills;       /* outputs have elements that no part writes; see fill_in */
    uint32_t fill_in; /* the input, a scalar, that they get; absent: 0 */
    bool gaps;        /* inputs have elements that no part reads, or that several do */
    uint32_t n;
    struct part at[];
};

/* Zeroed, as p->state; NULL: out of memory, said. */
struct parts *parts_new(struct op_plan *p, uint32_t n, struct err *err);
/* A box of `size` along each axis: from x at x_start with x_step (each NULL: 0, 1) to y at y_start
 * (NULL: 0). Tensors of one rank, each in its layout. */
void part_box(struct part *part, const struct tensor *x, const struct tensor *y,
              const int64_t *size, const int64_t *x_start, const int64_t *x_step,
              const int64_t *y_start);
/* After the axes of part->there are made by hand: the rest. */
void part_settle(struct part *part);

int parts_fwd(const struct op_call *c, struct err *err);
int parts_bwd(const struct op_call *c, struct err *err);

#endif
