/* loops.h - several tensors walked in step: one that is dense, others that repeat along some axes.
 *
 * Made once from shapes and layouts: axes in the order of the dense tensor's memory, neighbours
 * merged, so that equal shapes, a scalar, a bias vector or a channel vector end as one or two
 * loops. The innermost two axes are a tile: `rows` rows of `n` elements; there the dense tensor
 * has steps 1 and n, an operand has a step per element and per row, 0 where it repeats. */
#ifndef OP_ELEM_LOOPS_H
#define OP_ELEM_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

enum { ELEM_OPERANDS = 3, ELEM_AXES = 2 * TENSOR_MAX_RANK };

struct elem_tile {
    size_t rows, n;
    struct {
        ptrdiff_t row, step; /* in elements */
    } at[ELEM_OPERANDS];
};

struct elem_axis {
    size_t size;
    ptrdiff_t step[ELEM_OPERANDS]; /* in elements; 0: repeats */
};

struct elem_loops {
    uint32_t n_outer;
    struct elem_axis outer[ELEM_AXES]; /* around the tile, outermost first */
    struct elem_tile tile;
    bool dense[ELEM_OPERANDS];      /* it has the dense tensor's elements in the same order */
    size_t elements[ELEM_OPERANDS]; /* of the operand */
    size_t total;                   /* of the dense tensor */
};

/* An operand, and on which axis of the dense tensor each of its axes lies. NULL: aligned at the
 * right, as broadcasting has it. An axis of size 1 repeats. */
struct elem_operand {
    const struct tensor *t;
    const uint8_t *axis;
};

void elem_loops_make(struct elem_loops *s, const struct tensor *dense,
                     const struct elem_operand *operands, uint32_t n);
/* From axes made by the caller, which are changed: at most ELEM_AXES, outermost first; the dense
 * tensor's steps follow from their sizes. `elements` of each of n operands. */
void elem_loops_from(struct elem_loops *s, struct elem_axis *axes, uint32_t n_axes,
                     const size_t *elements, uint32_t n);

struct elem_walk {
    const struct elem_loops *s;
    size_t index[ELEM_AXES];     /* of the outer axes */
    ptrdiff_t at[ELEM_OPERANDS]; /* first element of the operands in this tile */
    size_t y;                    /* and of the dense tensor */
};

/* On to the next tile; the first needs no call. false: that was the last. An empty dense tensor has
 * one tile of no rows. */
bool elem_walk_next(struct elem_walk *w);

#endif
