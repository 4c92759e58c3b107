/* half.h - bfloat16 beside float32, for the kernels that take either.
 *
 * A bfloat16 is the upper half of a float32: sign, 8 bits of exponent, 7 of fraction. Kernels compute
 * in float32 whatever their operands are: they load with op_half_load(), store with op_half_store() (to the
 * nearest, ties to even; NaN stays NaN), or let whole stretches be converted:
 *
 *   const float *x = op_floats(t, at, n, room);     elements at .. at + n of t; room [n] if needed
 *   float *y = op_floats_to(out, at, room);         where to write them
 *   float *y = op_floats_on(out, at, n, room);      the same to change what is there
 *   op_floats_done(out, at, n, y);                  and that they are written
 *
 * which costs nothing for a float32 tensor. A stretch of OP_STRETCH stays in the nearest cache. */
#ifndef OP_HALF_H
#define OP_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "op/op_priv.h"

enum { OP_STRETCH = 1024 };

OP_INLINE float op_half_load(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

OP_INLINE uint16_t op_half_store(float x)
{
    uint32_t u, rounded;

    memcpy(&u, &x, sizeof(u));
    rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}

static inline bool op_is_half(const struct tensor *t)
{
    return t != NULL && t->dtype == TENSOR_BF16;
}

/* Element `at` of t's data. */
static inline void *op_element(const struct tensor *t, size_t at)
{
    return (char *)t->data + at * tensor_dtype_bytes(t->dtype);
}

/* y = x, converted. Not in place. */
void op_widen(const uint16_t *x, size_t n, float *y);
void op_narrow(const float *x, size_t n, uint16_t *y);
/* to = from, or to += from, over all of `to`; either may be bfloat16. */
void op_put_tensor(const struct tensor *from, const struct tensor *to, bool add);

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

/* How many elements a kernel takes at a time, of n: all, unless one of the tensors is bfloat16. */
static inline size_t op_stretch(size_t n, bool is_half)
{
    return is_half && n > OP_STRETCH ? OP_STRETCH : n;
}

#endif
