/* formula.h - the functions of analysis for formulas that serve CPUs and GPUs (base/formula.h).
 *
 * On a CPU they are those of vmath.h, which loops vectorise; on a GPU they are CUDA's own. So the
 * two agree within a few ulp, not bit by bit. */
#ifndef OP_FORMULA_H
#define OP_FORMULA_H

#include <math.h>

#include "base/formula.h"

#if defined(__CUDACC__) || defined(CUDA_EMULATED)
#define OP_MATH(name_) FORMULA float op_##name_##f(float x) { return name_##f(x); }
FORMULA float op_powf(float a, float b) { return powf(a, b); }
#else
#include "op/vmath.h"
#define OP_MATH(name_) FORMULA float op_##name_##f(float x) { return vm_##name_(x); }
FORMULA float op_powf(float a, float b) { return vm_pow(a, b); }
#endif

OP_MATH(exp)
OP_MATH(expm1)
OP_MATH(log)
OP_MATH(log1p)
OP_MATH(tanh)
OP_MATH(erf)

/* 1 / (1 + e^-x), in the form that keeps its precision where the result is near 0. */
FORMULA float op_sigmoidf(float x)
{
    float z = op_expf(-fabsf(x));

    return (x < 0.0f ? z : 1.0f) / (1.0f + z);
}

/* ln(1 + e^x), without overflow. */
FORMULA float op_softplusf(float x)
{
    return (x > 0.0f ? x : 0.0f) + op_log1pf(op_expf(-fabsf(x)));
}

#endif
