/* gelu.c - Gelu (opset 20): y = x P(x), P the distribution function of the normal distribution.
 *   approximate=none:  P(x) = (1 + erf(x / sqrt 2)) / 2,
 *                      dx = dy (P + x e^(-x^2/2) / sqrt(2 pi))
 *   approximate=tanh:  P(x) = (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3),
 *                      dx = dy (P + x (1 - tanh^2 u) u' / 2) */
#include "op/act/act.h"

#include "base/err.h"
#include "op/act/params.h"

ACT_KERNELS(gelu_exact, false, in)
ACT_KERNELS(gelu_tanh, false, in)

static int gelu_infer(struct op_infer *f, struct err *err)
{
    struct gelu *g = f->param;
    const char *approximate = NULL;
    int rc = op_attr_s(f, "approximate", "none", &approximate, err);

    if (rc < 0)
        return rc;
    g->is_tanh = strcmp(approximate, "tanh") == 0;
    if (!g->is_tanh && strcmp(approximate, "none") != 0)
        return op_error(f, ERR_INPUT, err, "approximate is '%s'; expected none or tanh",
                        approximate);
    return infer_same_shape(f, err);
}

static int gelu_fwd(const struct op_call *c, struct err *err)
{
    const struct gelu *g = c->param;

    return g->is_tanh ? gelu_tanh_fwd(c, err) : gelu_exact_fwd(c, err);
}

static int gelu_bwd(const struct op_call *c, struct err *err)
{
    const struct gelu *g = c->param;

    return g->is_tanh ? gelu_tanh_bwd(c, err) : gelu_exact_bwd(c, err);
}

static const char *const attrs[] = { "approximate", NULL };

const struct op_def op_gelu = { ACT_FIELDS(gelu, "Gelu", 20, in), .attrs = attrs,
                                .param_bytes = sizeof(struct gelu), .infer = gelu_infer };
