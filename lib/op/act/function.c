/* function.c - the functions of analysis:
 *   Exp: e^x, dx = dy y                    Log: ln x, dx = dy / x
 *   Sqrt: dx = dy / 2y                     Reciprocal: 1 / x, dx = -dy y^2
 *   Erf: dx = dy 2 / sqrt(pi) e^(-x^2)
 *   Sigmoid: 1 / (1 + e^-x), dx = dy y (1 - y)
 *   Tanh: dx = dy (1 - y)(1 + y)
 * and Floor, Ceil and Round (halves to even), whose gradient is 0. */
#include "op/act/act.h"

ACT_FUNCTION_LIST(ACT_ROW, ACT_ROW_WIDE)
