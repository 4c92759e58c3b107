/* residual.h - what the codes with residuals (error feedback) share.
 *
 * Such a code sends only a part of a gradient. The rest, the residual, is added to the gradient of the next step:
 *
 *     sum       x = gradient + residual
 *     sent      d = decode(encode(x))
 *     residual  x - d
 *
 * One residual belongs to one group of lanes (micro-batches), wherever these are computed.
 *
 * A residual that receives no gradient shrinks towards subnormal numbers, which are slow, and whose inverse is
 * infinite. So numbers with |x| < 1e-30 (CODE_RESIDUAL_LEAST) become +0, in sums and in residuals. Infinities and NaN remain.
 *
 * Sources: S. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018; T. Vogels et al., "PowerSGD", NeurIPS 2019.
 *
 * Threads: any; pure functions. */
#ifndef CODE_RESIDUAL_H
#define CODE_RESIDUAL_H

#include <stddef.h>

/* Writes the sum x [n] of a gradient and a residual [n]. */
void code_residual_add(const float *gradient, const float *residual, size_t n, float *x);

#endif
