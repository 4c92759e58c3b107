/* residual_formula.h - the smallest numbers of residuals, for CPUs and GPUs; see residual.h. */
#ifndef CODE_RESIDUAL_FORMULA_H
#define CODE_RESIDUAL_FORMULA_H

#include "base/formula.h"

#define CODE_RESIDUAL_LEAST 1e-30f

/* Returns +0 for a number that is too small; NaN is not. */
FORMULA float code_flush(float x)
{
    return (x < 0 ? -x : x) < CODE_RESIDUAL_LEAST ? 0.0f : x;
}

#endif
