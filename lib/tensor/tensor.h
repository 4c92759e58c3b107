/* tensor.h - a description of numbers in memory: type, shape, layout and address. A tensor does not
 * own its memory. Threads: a value type; the owner of the memory decides which thread may write. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/tensor.h"

struct err;

/* The memory order of the elements of shape [n, c, d1, ...]. */
enum tensor_layout {
    TENSOR_PLAIN,         /* row-major in the order of the shape */
    TENSOR_CHANNELS_LAST, /* rank >= 3: n, d1, ..., c; the shape is still written [n, c, d1, ...] */
};

struct tensor {
    enum tensor_dtype dtype;
    enum tensor_layout layout;
    struct shape shape;
    void *data; /* borrowed; NULL: only type and shape are known */
};

size_t tensor_dtype_bytes(enum tensor_dtype t); /* 0: no such type */
/* NumPy's name: "float32", "int64", ...; never NULL */
const char *tensor_dtype_name(enum tensor_dtype t);
bool tensor_dtype_parse(const char *name, enum tensor_dtype *out);

/* Product of the dimensions; -1 if it does not fit in int64. */
int64_t shape_elements(const struct shape *s);
bool shape_equal(const struct shape *a, const struct shape *b);
struct shape shape_of(uint32_t rank, ...); /* int64_t dimensions: shape_of(2, (int64_t)3, n) */
/* "[2, 3, 4]"; returns out. */
const char *shape_print(const struct shape *s, char *out, size_t n);
/* Computes the NumPy broadcast of a and b. Returns false if the shapes are incompatible. */
bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out);

int64_t tensor_elements(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t); /* number of elements * element size; SIZE_MAX on
                                                overflow */

#endif
