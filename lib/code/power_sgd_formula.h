/* power_sgd_formula.h - the constants and the scalar arithmetic of power_sgd, for CPUs and GPUs; see power_sgd.h. */
#ifndef CODE_POWER_SGD_FORMULA_H
#define CODE_POWER_SGD_FORMULA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/formula.h"
#include "code/residual_formula.h"

enum {
    POWER_SGD_PARTS = 32, /* of a sum: element i is added to part i mod 32; then the upper half is added to the lower */
    /* in the key of the random numbers; the ops of a model count their streams from 0 */
    POWER_SGD_STREAM = 0x706f7772,
};

/* Is the row of this length too short for its direction to be more than rounding errors? */
FORMULA bool power_sgd_is_zero(double length)
{
    return length < (double)CODE_RESIDUAL_LEAST;
}

/* What is left of a row of P after Gram-Schmidt is rounding errors if it is so small a part of the row. False for NaN. */
FORMULA bool power_sgd_is_dependent(double before, double after)
{
    return power_sgd_is_zero(after) || after < 1e-4 * before;
}

FORMULA float power_sgd_divide(float x, double by)
{
    return (float)((double)x / by);
}

/* Returns a number in [-1, 1) for a word of rng.h. */
FORMULA float power_sgd_random(uint32_t word)
{
    return 2 * ((float)(word >> 8) * (1.0f / 16777216)) - 1;
}

#endif
