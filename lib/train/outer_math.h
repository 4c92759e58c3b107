/* outer_math.h - local SGD: the arithmetic of an outer step, element by element. Pure.
 *
 *   sum over the models of a task   along the binary tree over groups, of theta - w for weights, and of
 *                                   w itself for everything else
 *   Nesterov                        v = m v + d;  theta -= a (d + m v)
 *
 * The operands of the sums never are -0, so a task that adds nothing may add 0 without a change of
 * bits. */
#ifndef TRAIN_OUTER_MATH_H
#define TRAIN_OUTER_MATH_H

#include <stddef.h>
#include <stdint.h>

/* Sets to[0..n) to the sum along the tree over the models [n_models, a power of two up to 65536] at the
 * elements [at, at + n). theta: the weights before the period, from which each model is subtracted;
 * NULL: the models themselves are added. */
void outer_sum(float *to, const float *const *models, uint32_t n_models, const float *theta,
               size_t at, size_t n);
/* theta and velocity [n] are updated with d. */
void outer_nesterov(float *theta, float *velocity, const float *d, size_t n, float rate,
                    float momentum);

#endif
