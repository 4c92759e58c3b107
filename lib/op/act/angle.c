/* angle.c - circular and hyperbolic functions; dx = dy times
 *   Sin cos x            Cos -sin x                 Tan 1 + y^2
 *   Asin 1/sqrt(1-x^2)   Acos -1/sqrt(1-x^2)        Atan 1/(1+x^2)
 *   Sinh cosh x          Cosh sinh x                (Tanh: function.c)
 *   Asinh 1/sqrt(x^2+1)  Acosh 1/sqrt(x^2-1)        Atanh 1/(1-x^2) */
#include "op/act/act.h"

ACT_ROW_WIDE(sin, "Sin", 7, in)
ACT_ROW_WIDE(cos, "Cos", 7, in)
ACT_ROW_WIDE(tan, "Tan", 7, out)
ACT_ROW_WIDE(asin, "Asin", 7, in)
ACT_ROW_WIDE(acos, "Acos", 7, in)
ACT_ROW_WIDE(atan, "Atan", 7, in)
ACT_ROW_WIDE(sinh, "Sinh", 9, in)
ACT_ROW_WIDE(cosh, "Cosh", 9, in)
ACT_ROW_WIDE(asinh, "Asinh", 9, in)
ACT_ROW_WIDE(acosh, "Acosh", 9, in)
ACT_ROW_WIDE(atanh, "Atanh", 9, in)
