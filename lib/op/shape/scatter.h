/* scatter.h - how a scatter applies an update: the values of `reduction` in rows.h. */
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
