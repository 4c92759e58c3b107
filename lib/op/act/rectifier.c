/* rectifier.c - the relatives of Relu, p and q their attributes. Each passes dy times its slope; where the
 * slope jumps, it is that of PyTorch: of LeakyRelu and Elu at 0 the left one, of the others the smaller one
 * (Selu and Celu: that of the exponential):
 *   LeakyRelu        x <= 0 ? p x : x                        p alpha 0.01
 *   ThresholdedRelu  x > p ? x : 0                           p alpha 1
 *   Elu              x <= 0 ? p (e^x - 1) : x                p alpha 1
 *   Selu             q (x <= 0 ? p (e^x - 1) : x)            p alpha, q gamma
 *   Celu             x < 0 ? p (e^(x/p) - 1) : x             p alpha 1
 *   HardSigmoid      p x + q within 0 .. 1                   p alpha 0.2, q beta 0.5
 *   HardSwish        x (x / 6 + 0.5 within 0 .. 1)
 *   Shrink           x < -p ? x + q : x > p ? x - q : 0      p lambd 0.5, q bias 0 */
#include "op/act/act.h"
#include "op/vmath.h"

static const char *const alpha[] = { "alpha", NULL };
static const char *const alpha_beta[] = { "alpha", "beta", NULL };
static const char *const lambd_bias[] = { "lambd", "bias", NULL };
static const char *const alpha_gamma[] = { "alpha", "gamma", NULL };

#define WITHIN_0_1(x_) ((x_) < 0.0f ? 0.0f : (x_) > 1.0f ? 1.0f : (x_))

ACT_UNARY(leaky_relu, ACT_X < 0.0f ? ACT_P * ACT_X : ACT_X, in,
          ACT_V <= 0.0f ? ACT_P * ACT_D : ACT_D)
ACT_UNARY(thresholded_relu, ACT_X <= ACT_P ? 0.0f : ACT_X, in, ACT_V <= ACT_P ? 0.0f : ACT_D)
ACT_UNARY(elu, ACT_X < 0.0f ? ACT_P * vm_expm1(ACT_X) : ACT_X, in,
          ACT_V <= 0.0f ? ACT_D * (ACT_P * vm_exp(ACT_V)) : ACT_D)
ACT_UNARY(selu, ACT_Q *(ACT_X <= 0.0f ? ACT_P * vm_expm1(ACT_X) : ACT_X), in,
          ACT_D *(ACT_Q * (ACT_V <= 0.0f ? ACT_P * vm_exp(ACT_V) : 1.0f)))
ACT_UNARY(celu, ACT_X < 0.0f ? ACT_P * vm_expm1(ACT_X / ACT_P) : ACT_X, in,
          ACT_V < 0.0f ? ACT_D * vm_exp(ACT_V / ACT_P) : ACT_D)
ACT_UNARY(hard_sigmoid, WITHIN_0_1(ACT_P *ACT_X + ACT_Q), out,
          ACT_V <= 0.0f || ACT_V >= 1.0f ? 0.0f : ACT_P * ACT_D)
ACT_UNARY(hard_swish, ACT_X *WITHIN_0_1(ACT_X *(1.0f / 6.0f) + 0.5f), in,
          ACT_V <= -3.0f  ? 0.0f
          : ACT_V >= 3.0f ? ACT_D
                          : ACT_D * (ACT_V * (1.0f / 3.0f) + 0.5f))
ACT_UNARY(shrink, ACT_X < -ACT_P ? ACT_X + ACT_Q : ACT_X > ACT_P ? ACT_X - ACT_Q : ACT_X * 0.0f, in,
          ACT_V < -ACT_P || ACT_V > ACT_P ? ACT_D : 0.0f)

ACT_ROW_WITH(leaky_relu, "LeakyRelu", 6, OP_IN(0), alpha, 0.01f)
ACT_ROW_WITH(thresholded_relu, "ThresholdedRelu", 10, OP_IN(0), alpha, 1.0f)
ACT_ROW_WITH(elu, "Elu", 6, OP_IN(0), alpha, 1.0f)
ACT_ROW_WITH(selu, "Selu", 6, OP_IN(0), alpha_gamma, 1.67326319217681884765625f,
             1.05070102214813232421875f)
ACT_ROW_WITH(celu, "Celu", 12, OP_IN(0), alpha, 1.0f)
ACT_ROW_WITH(hard_sigmoid, "HardSigmoid", 6, OP_OUT(0), alpha_beta, 0.2f, 0.5f)
ACT_ROW(hard_swish, "HardSwish", 14, OP_IN(0))
ACT_ROW_WITH(shrink, "Shrink", 9, OP_IN(0), lambd_bias, 0.5f, 0.0f)
