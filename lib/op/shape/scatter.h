/* scatter.h - what a scatter does with an update: rows.h's `reduction`. */
#ifndef OP_SHAPE_SCATTER_H
#define OP_SHAPE_SCATTER_H

#include "op/shape/rows.h"

enum scatter_reduction {
    SCATTER_NONE,
    SCATTER_ADD,
    SCATTER_MUL,
    SCATTER_MAX,
    SCATTER_MIN,
    SCATTER_REDUCTIONS
};

#endif
