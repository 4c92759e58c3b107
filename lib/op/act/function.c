/* function.c - the functions of analysis:
 *   Exp: e^x, dx = dy y                    Log: ln x, dx = dy / x
 *   Sqrt: dx = dy / 2y                     Reciprocal: 1 / x, dx = -dy y^2
 *   Erf: dx = dy 2 / sqrt(pi) e^(-x^2)
 *   Sigmoid: 1 / (1 + e^-x), dx = dy y (1 - y)
 *   Tanh: dx = dy (1 - y)(1 + y)
 * and Floor, Ceil and Round (halves to even), whose gradient is 0. */
#include "op/act/act.h"

ACT_ROW_WIDE(exp, "Exp", 6, out)
ACT_ROW_WIDE(log, "Log", 6, in)
ACT_ROW_WIDE(sqrt, "Sqrt", 6, out)
ACT_ROW_WIDE(reciprocal, "Reciprocal", 6, out)
ACT_ROW_WIDE(erf, "Erf", 9, in)
ACT_ROW(sigmoid, "Sigmoid", 6, out)
ACT_ROW(tanh, "Tanh", 6, out)
ACT_ROW(floor, "Floor", 6, none)
ACT_ROW(ceil, "Ceil", 6, none)
ACT_ROW(round_11, "Round", 11, none)
