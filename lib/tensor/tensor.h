/* tensor.h - a description of numbers in memory: type, shape, layout and address. A tensor does not
 * own its memory. Threads: a value type; the owner of the memory decides which thread may write. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

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

/* The memory order of the elements of shape [n, c, d1, ...]. */
enum tensor_layout {
    TENSOR_PLAIN,         /* row-major in the order of the shape */
    TENSOR_CHANNELS_LAST, /* rank >= 3: n, d1, ..., c; the shape is still written [n, c, d1, ...] */
};

struct shape {
    uint32_t rank;               /* 0: a scalar, one element */
    int64_t dim[TENSOR_MAX_RANK]; /* each >= 0 */
};

struct tensor {
    enum tensor_dtype dtype;
    enum tensor_layout layout;
    struct shape shape;
    void *data; /* borrowed; NULL: only type and shape are known */
};

size_t tensor_dtype_bytes(enum tensor_dtype t);     /* 0: no such type */
/* NumPy's name: "float32", "int64", ...; never NULL */
const char *tensor_dtype_name(enum tensor_dtype t);
bool tensor_dtype_parse(const char *name, enum tensor_dtype *out);

/* Product of the dimensions; -1 if it does not fit in int64. */
int64_t shape_elements(const struct shape *s);
bool shape_equal(const struct shape *a, const struct shape *b);
struct shape shape_of(uint32_t rank, ...);  /* int64_t dimensions: shape_of(2, (int64_t)3, n) */
/* "[2, 3, 4]"; returns out. */
const char *shape_print(const struct shape *s, char *out, size_t n);
/* Computes the NumPy broadcast of a and b. Returns false if the shapes are incompatible. */
bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out);

int64_t tensor_elements(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t); /* number of elements * element size; SIZE_MAX on
                                                overflow */

#endif
