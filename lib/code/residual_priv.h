/* residual_priv.h - the smallest numbers of residuals; see residual.h. */
#ifndef CODE_RESIDUAL_PRIV_H
#define CODE_RESIDUAL_PRIV_H

#include "code/residual.h"

/* Returns +0 for a number that is too small; NaN is not. */
static inline __attribute__((always_inline)) float code_flush(float x)
{
    return (x < 0 ? -x : x) < CODE_RESIDUAL_LEAST ? 0.0f : x;
}

#endif
