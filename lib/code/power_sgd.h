/* power_sgd.h - the code power_sgd: a matrix as a product of two narrow ones.
 *
 * M [rows, cols] is the sum over all groups g of the gradients with their residuals, M_g; r is the rank. Factors are
 * kept transposed: P as r rows of `rows` numbers, Q as r rows of `cols` numbers.
 *
 *     Q    from the step before (warm start), each row normalised; a zero row is replaced by a random one
 *     P    = sum of M_g Q          along the tree over groups, then all-reduced in float32: linear, no rounding
 *     P    orthonormal: Gram-Schmidt, from the first row on; a row that depends on those before it becomes 0
 *     Q'   = sum of M_g^T P        likewise
 *     M    is replaced by P Q'^T
 *     M_g  - P (M_g^T P)^T         is the residual of group g
 *
 * A step sends r (rows + cols) numbers instead of rows * cols. Infinities and NaN in M make the whole product NaN, so
 * that a check of the gradient finds them.
 *
 * Sums over a row are made in 32 interleaved parts, which are added in pairs, in float32 or, for lengths and
 * Gram-Schmidt, in double. So the bits are the same with every instruction set, and on GPUs (power_sgd_cuda.cuh).
 * Random numbers are a function of (seed, matrix, row, element).
 *
 * Source: T. Vogels, S. P. Karimireddy, M. Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
 * Optimization", NeurIPS 2019, algorithms 1 and 2.
 *
 * Threads: any; pure functions. No argument overlaps another one. */
#ifndef CODE_POWER_SGD_H
#define CODE_POWER_SGD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct power_sgd {
    size_t rows, cols; /* of M */
    uint32_t rank;     /* rows of the factors */
    uint64_t seed;     /* of the job */
    uint32_t number;   /* of the matrix in the job */
};

/* Has the code fewer numbers than the matrix? */
bool power_sgd_is_shorter(size_t rows, size_t cols, uint32_t rank);

/* Replaces q [rank, cols], the last Q' or zeros, by the Q of the next step. */
void power_sgd_begin(const struct power_sgd *s, float *q);
/* p [rank, rows] = (m Q)^T. */
void power_sgd_left(const struct power_sgd *s, const float *m, const float *q, float *p);
void power_sgd_orthogonalize(const struct power_sgd *s, float *p);
/* q [rank, cols] = (m^T P)^T. */
void power_sgd_right(const struct power_sgd *s, const float *m, const float *p, float *q);
/* y [rows, cols] = P Q^T. */
void power_sgd_decode(const struct power_sgd *s, const float *p, const float *q, float *y);
/* m -= P Q^T; numbers below CODE_RESIDUAL_LEAST become 0. */
void power_sgd_subtract(const struct power_sgd *s, const float *p, const float *q, float *m);

#endif
