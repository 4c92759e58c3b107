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

ACT_RECTIFIER_LIST(ACT_ROW, ACT_ROW_WITH)
