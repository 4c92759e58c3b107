/* angle.c - circular and hyperbolic functions; dx = dy times
 *   Sin cos x            Cos -sin x                 Tan 1 + y^2
 *   Asin 1/sqrt(1-x^2)   Acos -1/sqrt(1-x^2)        Atan 1/(1+x^2)
 *   Sinh cosh x          Cosh sinh x                (Tanh: tanh.c)
 *   Asinh 1/sqrt(x^2+1)  Acosh 1/sqrt(x^2-1)        Atanh 1/(1-x^2)
 * Those of the C library in double, rounded: they are rare, and their arguments may be huge. */
#include "op/act/act.h"

#include <math.h>

#define X ((double)ACT_X)
#define V ((double)ACT_V)

/* dx = dy times slope_ of V */
#define FUNCTION(id_, name_, since_, f_, reads_, bits_, slope_)                                    \
    ACT_UNARY(id_, (float)f_(X), reads_, (float)((double)ACT_D * (slope_)))                        \
    ACT_ROW_WIDE(id_, name_, since_, bits_)

FUNCTION(sin, "Sin", 7, sin, in, OP_IN(0), cos(V))
FUNCTION(cos, "Cos", 7, cos, in, OP_IN(0), -sin(V))
FUNCTION(tan, "Tan", 7, tan, out, OP_OUT(0), 1 + V * V)
FUNCTION(asin, "Asin", 7, asin, in, OP_IN(0), 1 / sqrt((1 - V) * (1 + V)))
FUNCTION(acos, "Acos", 7, acos, in, OP_IN(0), -1 / sqrt((1 - V) * (1 + V)))
FUNCTION(atan, "Atan", 7, atan, in, OP_IN(0), 1 / (1 + V * V))
FUNCTION(sinh, "Sinh", 9, sinh, in, OP_IN(0), cosh(V))
FUNCTION(cosh, "Cosh", 9, cosh, in, OP_IN(0), sinh(V))
FUNCTION(asinh, "Asinh", 9, asinh, in, OP_IN(0), 1 / sqrt(V * V + 1))
FUNCTION(acosh, "Acosh", 9, acosh, in, OP_IN(0), 1 / sqrt((V - 1) * (V + 1)))
FUNCTION(atanh, "Atanh", 9, atanh, in, OP_IN(0), 1 / ((1 - V) * (1 + V)))
