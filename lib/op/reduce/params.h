/* params.h - the parameters of the reductions, set by infer and read by the CPU and GPU kernels. */
#ifndef OP_REDUCE_PARAMS_H
#define OP_REDUCE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/reduce/along.h"
#include "tensor/tensor.h"

struct reduce { /* parameters of the op (op_def.param) */
    uint32_t set;  /* bit k: axis k is reduced */
    uint8_t axis[TENSOR_MAX_RANK]; /* the axis of x, for each axis of y */
    bool nothing;  /* no axis is reduced: y = x */
    size_t n;      /* elements of x per element of y */
};

struct arg {
    struct along a;
    int64_t last;
};

struct cum_sum {
    struct along a;
    int64_t exclusive, reverse;
};

struct top_k {
    struct along a;
    size_t n; /* number of elements to select */
    int64_t largest;
};

#endif
