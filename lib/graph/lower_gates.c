/* lower_gates.c - lowers Swish (24) and SwiGLU (28), with s = 1 / (1 + e^-(alpha x)):
 *   Swish   x s             the row trainerd.Swish, which has alpha 1
 *   SwiGLU  a s(a) b        the row trainerd.Gated
 * Another alpha: x s = swish(alpha x) / alpha; alpha 0: x / 2. */
#include "graph/plan_lower.h"

#include <math.h>

#include "base/err.h"

static uint32_t times(struct lowering *l, uint32_t x, float number)
{
    return number == 1 ? x : lower_op(l, "Mul", x, lower_number(l, number), GRAPH_NONE);
}

/* Adds f(alpha x) / alpha; of_zero: the node for alpha 0. */
static void lower_gate(struct lowering *l, const struct lower_node *gate,
                       const struct lower_node *of_zero)
{
    struct lower_node n = *gate;
    float alpha = 1;
    uint32_t y;

    l->rc = op_attr_f(&l->attrs, "alpha", 1, &alpha, l->err);
    if (l->rc == 0 && !isfinite(alpha))
        LOWER_ERROR(l, ERR_INPUT, "alpha is %g; expected a finite number", (double)alpha);
    if (l->rc < 0)
        return;
    if (alpha == 0) {
        n = *of_zero;
        n.in[0] = times(l, n.in[0], 0.5f);
        y = n.n_in > 1 ? lower_add(l, &n) : n.in[0];
    } else {
        n.in[0] = times(l, n.in[0], alpha);
        y = times(l, lower_add(l, &n), 1 / alpha);
    }
    lower_out(l, 0, y);
}

void lower_swish(struct lowering *l)
{
    const struct lower_node n = { .domain = "trainerd", .op = "Swish", .n_in = 1, .in = { lower_in(l, 0) } };

    lower_gate(l, &n, &n);
}

void lower_swiglu(struct lowering *l)
{
    const struct lower_node n = { .domain = "trainerd", .op = "Gated", .n_in = 2,
                                  .in = { lower_in(l, 0), lower_in(l, 1) }, .n_attrs = 1,
                                  .attrs = { { .name = "function", .type = OP_ATTR_STRING, .s = "swish" } } };
    const struct lower_node product = { .op = "Mul", .n_in = 2, .in = { lower_in(l, 0), lower_in(l, 1) } };

    if (!shape_equal(&lower_tensor(l, n.in[0])->shape, &lower_tensor(l, n.in[1])->shape))
        LOWER_ERROR(l, ERR_INPUT, "the inputs have different shapes; expected equal ones");
    else
        lower_gate(l, &n, &product);
}
