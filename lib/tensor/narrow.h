/* narrow.h - the element types of 8, 4 and 2 bits of quantised networks.
 *
 * In memory each element is one byte: the code of a float, or the number itself (int4 and int2
 * sign-extended). In files, elements of 4 or 2 bits are packed into bytes, the first in the lowest
 * bits; unused bits of the last byte are 0. Threads: pure functions. */
#ifndef TENSOR_NARROW_H
#define TENSOR_NARROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

bool tensor_is_narrow(enum tensor_dtype t);       /* one of the ten types of this header */
bool tensor_is_narrow_float(enum tensor_dtype t); /* float8*, float4e2m1 */
/* Bits per element in a file: 2 or 4, else 8 times its bytes; 0: no such type. */
uint32_t tensor_file_bits(enum tensor_dtype t);
/* Size of the tensor in a file, in bytes; SIZE_MAX on overflow. */
size_t tensor_file_bytes(const struct tensor *t);

/* Convert n elements of a type of 2 or 4 bits. Input and output must not overlap. */
void tensor_unpack(enum tensor_dtype t, const uint8_t *packed, size_t n, void *out);
void tensor_pack(enum tensor_dtype t, const void *x, size_t n, uint8_t *packed);

/* Wraps an integer to the range of the type in two's complement: drops the high bits. t is
 * TENSOR_U4, TENSOR_I4, TENSOR_U2 or TENSOR_I2. */
uint8_t tensor_wrap(enum tensor_dtype t, int64_t v);

enum narrow_round { NARROW_UP, NARROW_DOWN, NARROW_NEAREST }; /* rounding of float8e8m0 */

/* Returns the number of a code, exactly. Bits of the code above the width of the type are
 * ignored. */
double tensor_narrow_number(enum tensor_dtype t, uint8_t code);
/* Returns the code nearest to v, ties to even. A v out of range becomes the largest number
 * (saturate), else infinity, or NaN if the type has no infinity. float8e8m0 rounds as `round` says
 * (ties up); its code of a negative number is NaN. float4e2m1 always saturates, and represents NaN
 * as -0. */
uint8_t tensor_narrow_code(enum tensor_dtype t, double v, bool saturate, enum narrow_round round);

#endif
