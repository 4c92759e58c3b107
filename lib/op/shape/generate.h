/* generate.h - the parameters of the ops of generate.c and of_shape.c, for their kernels. */
#ifndef OP_SHAPE_GENERATE_H
#define OP_SHAPE_GENERATE_H

#include <stddef.h>
#include <stdint.h>

struct filler { /* ConstantOfShape */
    size_t size;
    uint8_t value[8];
};

struct eye { /* EyeLike */
    int64_t k;
};

struct one_hot {
    size_t outer, depth, inner;
    bool counts_back; /* index -1 is the last position (from opset 11 on); else no position */
};

struct span { /* Shape */
    int64_t start, n;
};

#endif
