/* angle.c - circular and hyperbolic functions; dx = dy times
 *   Sin cos x            Cos -sin x                 Tan 1 + y^2
 *   Asin 1/sqrt(1-x^2)   Acos -1/sqrt(1-x^2)        Atan 1/(1+x^2)
 *   Sinh cosh x          Cosh sinh x                (Tanh: function.c)
 *   Asinh 1/sqrt(x^2+1)  Acosh 1/sqrt(x^2-1)        Atanh 1/(1-x^2) */
#include "op/act/act.h"

ACT_ANGLE_LIST(ACT_ROW_WIDE)
