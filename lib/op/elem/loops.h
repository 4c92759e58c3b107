/* loops.h - loops over several tensors in step: one dense tensor, and operands that may repeat
 * along axes.
 *
 * The loops are made once from shapes and layouts: axes in the order of the dense tensor's
 * memory, with neighbours merged, so that equal shapes, a scalar, a bias vector or a channel
 * vector become one or two loops. The two innermost axes are a tile of `rows` rows of `n`
 * elements. In a tile, the dense tensor has steps 1 and n, and an operand has one step per
 * element and one per row, 0 if it repeats. */
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
    struct elem_axis outer[ELEM_AXES]; /* the axes outside the tile, outermost first */
    struct elem_tile tile;
    /* the operand has the elements of the dense tensor in the same order */
    bool dense[ELEM_OPERANDS];
    size_t elements[ELEM_OPERANDS]; /* of the operand */
    size_t total;                   /* of the dense tensor */
};

/* An operand, and the axis of the dense tensor for each of its axes. NULL: the last axes are
 * aligned, as in NumPy's broadcasting. An axis of size 1 repeats. */
struct elem_operand {
    const struct tensor *t;
    const uint8_t *axis;
};

void elem_loops_make(struct elem_loops *s, const struct tensor *dense,
                     const struct elem_operand *operands, uint32_t n);
/* Makes the loops from the caller's axes, which are modified: at most ELEM_AXES, outermost first;
 * the steps of the dense tensor follow from their sizes. `elements`: of each of the n operands. */
void elem_loops_from(struct elem_loops *s, struct elem_axis *axes, uint32_t n_axes,
                     const size_t *elements, uint32_t n);

struct elem_walk {
    const struct elem_loops *s;
    size_t index[ELEM_AXES];     /* of the outer axes */
    ptrdiff_t at[ELEM_OPERANDS]; /* first element of the operands in this tile */
    size_t y;                    /* first element of the dense tensor in this tile */
};

/* Advances to the next tile; the first tile needs no call. Returns false after the last tile. An
 * empty dense tensor has one tile without rows. */
bool elem_walk_next(struct elem_walk *w);

#endif
