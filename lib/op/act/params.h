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

enum gate { GATE_SIGMOID, GATE_SWISH, GATE_GELU, GATE_GELU_TANH };

struct gated {
    enum gate gate;
};

struct is_inf {
    bool negative, positive; /* which infinity counts */
};

#endif
