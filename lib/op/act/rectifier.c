/* rectifier.c - Relu and its relatives; p and q are their attributes:
 *   Relu             x <= 0 ? 0 : x
 *   LeakyRelu        x <= 0 ? p x : x                        p alpha 0.01
 *   ThresholdedRelu  x > p ? x : 0                           p alpha 1
 *   Elu              x <= 0 ? p (e^x - 1) : x                p alpha 1
 *   Selu             q (x <= 0 ? p (e^x - 1) : x)            p alpha, q gamma
 *   Celu             x < 0 ? p (e^(x/p) - 1) : x             p alpha 1
 *   HardSigmoid      p x + q within 0 .. 1                   p alpha 0.2, q beta 0.5
 *   HardSwish        x (x / 6 + 0.5 within 0 .. 1)
 *   Shrink           x < -p ? x + q : x > p ? x - q : 0      p lambd 0.5, q bias 0 */
#include "op/act/act.h"

static const char *const alpha[] = { "alpha", NULL };
static const char *const alpha_beta[] = { "alpha", "beta", NULL };
static const char *const lambd_bias[] = { "lambd", "bias", NULL };
static const char *const alpha_gamma[] = { "alpha", "gamma", NULL };

ACT_ROW(relu, "Relu", 6, out)
ACT_ROW_WITH(leaky_relu, "LeakyRelu", 6, in, alpha, 0.01f)
ACT_ROW_WITH(thresholded_relu, "ThresholdedRelu", 10, in, alpha, 1.0f)
ACT_ROW_WITH(elu, "Elu", 6, in, alpha, 1.0f)
ACT_ROW_WITH(selu, "Selu", 6, in, alpha_gamma, 1.67326319217681884765625f,
             1.05070102214813232421875f)
ACT_ROW_WITH(celu, "Celu", 12, in, alpha, 1.0f)
ACT_ROW_WITH(hard_sigmoid, "HardSigmoid", 6, out, alpha_beta, 0.2f, 0.5f)
ACT_ROW(hard_swish, "HardSwish", 14, in)
ACT_ROW_WITH(shrink, "Shrink", 9, in, lambd_bias, 0.5f, 0.0f)
