/* function.c - the functions of analysis:
 *   Exp: e^x, dx = dy y                    Log: ln x, dx = dy / x
 *   Sqrt: dx = dy / 2y                     Reciprocal: 1 / x, dx = -dy y^2
 *   Erf: dx = dy 2 / sqrt(pi) e^(-x^2) */
#include "op/act/act.h"

#include <math.h>

#include "op/vmath.h"

#define TWO_OVER_ROOT_PI 0x1.20dd76p+0f

ACT_UNARY(exp, vm_exp(ACT_X), out, ACT_D *ACT_V)
ACT_UNARY(log, vm_log(ACT_X), in, ACT_D / ACT_V)
ACT_UNARY(sqrt, sqrtf(ACT_X), out, ACT_D * 0.5f / ACT_V)
ACT_UNARY(reciprocal, 1.0f / ACT_X, out, -ACT_D * (ACT_V * ACT_V))
ACT_UNARY(erf, vm_erf(ACT_X), in, ACT_D * (TWO_OVER_ROOT_PI * vm_exp(-(ACT_V * ACT_V))))

ACT_ROW_WIDE(exp, "Exp", 6, OP_OUT(0))
ACT_ROW_WIDE(log, "Log", 6, OP_IN(0))
ACT_ROW_WIDE(sqrt, "Sqrt", 6, OP_OUT(0))
ACT_ROW_WIDE(reciprocal, "Reciprocal", 6, OP_OUT(0))
ACT_ROW_WIDE(erf, "Erf", 9, OP_IN(0))
