/* top_k.h - the code top_k: the largest numbers of each block, as they are.
 *
 * A vector is cut into blocks of 4096 numbers; the last block may be shorter. Of a block of n numbers
 *
 *     k = ceil(fraction * n), in double precision, at least 1
 *
 * are sent: those with the largest absolute value, of equal ones those with the lower index. The code of a block:
 *
 *     bytes                       content
 *     4 k                         the numbers as float32, in the order of their indices
 *     ceil(12 k / 8)              the indices in the block, ascending, 12 bits each; the lower bits first, so that
 *                                 two indices a, b are the bytes a & 255, a >> 8 | (b & 15) << 4, b >> 4
 *     to the next multiple of 4   zeros
 *
 * At k = 41 (fraction 0.01) these are 228 bytes for 4096 numbers. A block with an infinity or NaN is sent as k NaN
 * with the indices 0 to k - 1, so that a check of the gradient for such numbers finds it.
 *
 * Bytes may come from the network: any bytes decode to some numbers. An index that the block does not have makes its
 * first number NaN. Little-endian.
 *
 * The kernels of GPUs are in top_k_cuda.cuh, with the same bytes.
 *
 * Threads: any; pure functions. */
#ifndef CODE_TOP_K_H
#define CODE_TOP_K_H

#include <stddef.h>
#include <stdint.h>

enum { TOP_K_BLOCK = 4096 };

/* Numbers that are sent of a block of n <= TOP_K_BLOCK numbers. 0 < fraction <= 1; n > 0. */
uint32_t top_k_sent(double fraction, size_t n);
/* Bytes of the code of a vector of n numbers; a multiple of 4. */
size_t top_k_bytes(double fraction, size_t n);
/* Writes the code of x [n] to out [top_k_bytes()], any alignment, and sets the numbers of x to 0 that were sent: x
 * is then the residual. If x has an infinity or NaN, it has one afterwards. */
void top_k_encode(double fraction, float *x, size_t n, uint8_t *out);
/* Writes y [n]. To decode a part of a vector, begin at a block. */
void top_k_decode(double fraction, const uint8_t *in, size_t n, float *y);

#endif
