/* pad.h - the parameters of Pad, for its kernels. */
#ifndef OP_SHAPE_PAD_H
#define OP_SHAPE_PAD_H

#include <stdint.h>

#include "tensor/tensor.h"

enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };

struct pad { /* parameters of the op (op_def.param) */
    enum pad_mode mode;
    int64_t before[TENSOR_MAX_RANK], behind[TENSOR_MAX_RANK];
    float value; /* of the attribute `value` */
};

#endif
