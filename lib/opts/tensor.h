/* tensor.h - element types and shapes. Their functions: tensor/tensor.h. */
#ifndef OPTS_TENSOR_H
#define OPTS_TENSOR_H

#include <stdint.h>

enum { TENSOR_MAX_RANK = 8 };

/* Values equal onnx.TensorProto.DataType. */
enum tensor_dtype {
    TENSOR_NONE = 0,
    TENSOR_F32 = 1,
    TENSOR_U8 = 2,
    TENSOR_I8 = 3,
    TENSOR_U16 = 4,
    TENSOR_I16 = 5,
    TENSOR_I32 = 6,
    TENSOR_I64 = 7,
    TENSOR_BOOL = 9,
    TENSOR_F16 = 10,
    TENSOR_F64 = 11,
    TENSOR_U32 = 12,
    TENSOR_U64 = 13,
    TENSOR_BF16 = 16,
    /* narrow.h; one byte each in memory; only in graphs that are evaluated, not trained */
    TENSOR_F8E4M3FN = 17,
    TENSOR_F8E4M3FNUZ = 18,
    TENSOR_F8E5M2 = 19,
    TENSOR_F8E5M2FNUZ = 20,
    TENSOR_U4 = 21,
    TENSOR_I4 = 22,
    TENSOR_F4E2M1 = 23,
    TENSOR_F8E8M0 = 24,
    TENSOR_U2 = 25,
    TENSOR_I2 = 26,
};

struct shape {
    uint32_t rank;               /* 0: a scalar, one element */
    int64_t dim[TENSOR_MAX_RANK]; /* each >= 0 */
};

#endif
