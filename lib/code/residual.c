/* residual.c - see residual.h. */
#include "code/residual.h"

#include "base/clones.h"
#include "code/residual_formula.h"

CLONES void code_residual_add(const float *restrict gradient, const float *restrict residual,
                              size_t n, float *restrict x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = code_flush(gradient[i] + residual[i]);
}
