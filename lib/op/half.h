/* half.h - bfloat16 and float32 operands of CPU kernels.
 *
 * A bfloat16 is the upper half of a float32: sign, 8 bits of exponent, 7 of fraction. Kernels
 * compute in float32 for either type. A kernel converts single numbers with float_of_bfloat16() and
 * float_to_bfloat16() (rounds to nearest even; NaN stays NaN), or converts chunks of numbers:
 *
 *   const float *x = op_floats(t, at, n, room);     read elements at .. at + n of t; room [n] if
 *                                                   converted
 *   float *y = op_floats_to(out, at, room);         the buffer in which to write them
 *   float *y = op_floats_on(out, at, n, room);      the same, with the current values, to modify
 *                                                   them
 *   op_floats_done(out, at, n, y);                  store the buffer in the tensor
 *
 * These calls cost nothing for a float32 tensor. A chunk of OP_CHUNK elements fits the L1
 * cache. */
#ifndef OP_HALF_H
#define OP_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/float_formula.h"
#include "op/op_priv.h"

enum { OP_CHUNK = 1024 };

static inline bool op_is_half(const struct tensor *t)
{
    return t != NULL && t->dtype == TENSOR_BF16;
}

/* Address of element `at` of t. */
static inline void *op_element(const struct tensor *t, size_t at)
{
    return (char *)t->data + at * tensor_dtype_bytes(t->dtype);
}

/* y = x, converted. y must not overlap x. */
void op_widen(const uint16_t *x, size_t n, float *y);
void op_narrow(const float *x, size_t n, uint16_t *y);
/* to = from, or to += from, for all elements of `to`; either tensor may be bfloat16. */
void op_store_tensor(const struct tensor *from, const struct tensor *to, bool add);

static inline const float *op_floats(const struct tensor *t, size_t at, size_t n, float *room)
{
    if (t->dtype != TENSOR_BF16)
        return (const float *)t->data + at;
    op_widen((const uint16_t *)t->data + at, n, room);
    return room;
}

static inline float *op_floats_to(const struct tensor *t, size_t at, float *room)
{
    return t->dtype != TENSOR_BF16 ? (float *)t->data + at : room;
}

static inline float *op_floats_on(const struct tensor *t, size_t at, size_t n, float *room)
{
    (void)op_floats(t, at, n, room);
    return op_floats_to(t, at, room);
}

static inline void op_floats_done(const struct tensor *t, size_t at, size_t n, const float *y)
{
    if (t->dtype == TENSOR_BF16)
        op_narrow(y, n, (uint16_t *)t->data + at);
}

/* Number of elements that a kernel processes at a time: n, or at most OP_CHUNK if a tensor is
 * bfloat16. */
static inline size_t op_chunk(size_t n, bool is_half)
{
    return is_half && n > OP_CHUNK ? OP_CHUNK : n;
}

#endif
