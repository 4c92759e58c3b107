/* narrow.h - the element types of 8, 4 and 2 bits in which quantised networks are stored.
 *
 * In memory each element has a byte: the code of a float, or the number itself (int4 and int2 with their
 * sign). In files several elements of 4 or 2 bits share a byte, the first in its lowest bits, and the bits
 * that the last byte does not need are 0. Threads: pure functions. */
#ifndef TENSOR_NARROW_H
#define TENSOR_NARROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

bool tensor_is_narrow(enum tensor_dtype t);       /* one of the ten types */
bool tensor_is_narrow_float(enum tensor_dtype t); /* float8*, float4e2m1 */
/* Bits of an element in a file: 2 or 4, else 8 times its bytes; 0: no such type. */
uint32_t tensor_file_bits(enum tensor_dtype t);
/* Bytes of the tensor in a file; SIZE_MAX on overflow. */
size_t tensor_file_bytes(const struct tensor *t);

/* n elements of a type of 2 or 4 bits. The memory does not overlap. */
void tensor_unpack(enum tensor_dtype t, const uint8_t *packed, size_t n, void *out);
void tensor_pack(enum tensor_dtype t, const void *x, size_t n, uint8_t *packed);

/* An integer reduced to the range of the type as two's complement does: higher bits are lost. t is
 * TENSOR_U4, TENSOR_I4, TENSOR_U2 or TENSOR_I2. */
uint8_t tensor_wrap(enum tensor_dtype t, int64_t v);

enum narrow_round { NARROW_UP, NARROW_DOWN, NARROW_NEAREST }; /* of float8e8m0 */

/* The number of a code, exact; a code that is larger than the type has bits is taken without them. */
double tensor_narrow_number(enum tensor_dtype t, uint8_t code);
/* The nearest code, of two the even one. What is out of range becomes the end of it (saturate), or infinity
 * or else NaN. float8e8m0 rounds as `round` says (ties upwards) and has NaN for negative numbers; float4e2m1
 * always saturates and has -0 for NaN. */
uint8_t tensor_narrow_code(enum tensor_dtype t, double v, bool saturate, enum narrow_round round);

#endif
