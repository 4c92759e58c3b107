/* params.h - settled attributes that the kernels for CPUs and for GPUs read. */
#ifndef OP_REDUCE_PARAMS_H
#define OP_REDUCE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/reduce/along.h"
#include "tensor/tensor.h"

struct reduce { /* op_def.param */
    uint32_t set;  /* bit k: axis k goes */
    uint8_t axis[TENSOR_MAX_RANK]; /* of x, for each axis of y */
    bool nothing;  /* no axis goes: y = x */
    size_t n;      /* elements of x for each of y */
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
    size_t n; /* how many are wanted */
    int64_t largest;
};

#endif
