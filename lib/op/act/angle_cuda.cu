/* angle_cuda.cu - see angle.c. In double, as there: they are rare, and their arguments may be huge. */
#include "op/act/act_cuda.cuh"

#define X ((double)x)
#define V ((double)v)

#define FUNCTION(id_, f_, reads_, slope_) ACT_CUDA_WIDE(id_, (float)f_(X), reads_, (float)((double)d * (slope_)))

FUNCTION(sin, sin, in, cos(V))
FUNCTION(cos, cos, in, -sin(V))
FUNCTION(tan, tan, out, 1 + V * V)
FUNCTION(asin, asin, in, 1 / sqrt((1 - V) * (1 + V)))
FUNCTION(acos, acos, in, -1 / sqrt((1 - V) * (1 + V)))
FUNCTION(atan, atan, in, 1 / (1 + V * V))
FUNCTION(sinh, sinh, in, cosh(V))
FUNCTION(cosh, cosh, in, sinh(V))
FUNCTION(asinh, asinh, in, 1 / sqrt(V * V + 1))
FUNCTION(acosh, acosh, in, 1 / sqrt((V - 1) * (V + 1)))
FUNCTION(atanh, atanh, in, 1 / ((1 - V) * (1 + V)))
