/* params.h - validated attributes, for the kernels of CPUs and GPUs. */
#ifndef OP_ACT_PARAMS_H
#define OP_ACT_PARAMS_H

#include <stdbool.h>

struct clip {
    float lo, hi; /* attributes; both infinite if the limits are inputs */
};

struct gelu {
    bool is_tanh;
};

enum gate { GATE_SIGMOID, GATE_SWISH, GATE_GELU, GATE_GELU_TANH };

struct gated {
    enum gate gate;
};

struct is_inf {
    bool negative, positive; /* the infinities that IsInf detects */
};

#endif
