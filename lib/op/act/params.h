/* params.h - settled attributes that the kernels for CPUs and for GPUs read. */
#ifndef OP_ACT_PARAMS_H
#define OP_ACT_PARAMS_H

#include <stdbool.h>

struct clip {
    float lo, hi; /* of a row with attributes; with inputs both infinite */
};

struct gelu {
    bool is_tanh;
};

struct is_inf {
    bool negative, positive; /* which infinity counts */
};

#endif
