/* lower_clamp.c - lowers the bounds of PyTorch to the row that has their gradient.
 *
 * At an exact bound the derivative of clamp(), clamp_min(), clamp_max(), hardtanh() and relu6() with
 * numbers is 0, as that of Clip. With tensors as bounds, clamp() computes maximum() and minimum(),
 * where each of two equal operands gets half of the gradient, as in Max and Min. The exporter writes
 * either pair of rows for either call, and its optimizer merges Max and Min to Clip; the FX node
 * states the call. torch.export() writes a clamp() with numbers as one with tensors, which it makes
 * by scalar_tensor(). */
#include "graph/plan_lower.h"

#include "base/check.h"
#include "graph/fx.h"

enum { CLIP_OF_INPUTS = 11 /* first opset in which the bounds are inputs */ };

enum bounds { BOUNDS_NONE, BOUNDS_NUMBERS, BOUNDS_TENSORS };

/* A number that export() converted to a tensor: "%scalar_tensor_default_1". */
static bool is_number(struct fx_span arg)
{
    return fx_is(arg, "None") ||
           (arg.n > 1 && (fx_has_stem((struct fx_span){ arg.at + 1, arg.n - 1 }, "scalar_tensor_default") ||
                          fx_has_stem((struct fx_span){ arg.at + 1, arg.n - 1 }, "scalar_tensor")));
}

/* The bounds of a call; BOUNDS_NONE: another call. */
static enum bounds bounds_of(const struct fx *fx)
{
    static const char *const calls[] = { "clamp",     "clamp_",     "clamp_min", "clamp_min_",
                                         "clamp_max", "clamp_max_", "hardtanh",  "hardtanh_",
                                         "relu6",     "relu6_" };
    size_t i = 0;
    uint32_t k;

    while (i < COUNT_OF(calls) && !fx_is(fx->op, calls[i]))
        i++;
    if (i == COUNT_OF(calls))
        return BOUNDS_NONE;
    for (k = 1; k < fx->n_args && fx_is(fx->overload, "Tensor"); k++)
        if (!is_number(fx->args[k]))
            return BOUNDS_TENSORS;
    return BOUNDS_NUMBERS;
}

bool plan_is_clamp(const struct plan_builder *b, const struct graph_node *from)
{
    const struct tensor *x, *bound;
    struct fx fx;

    if (from->call == NULL || from->n_in < 1 || from->in[0] == GRAPH_NONE)
        return false;
    x = &b->p->values.at[b->map[from->in[0]]].tensor;
    if (x->dtype != TENSOR_F32)
        return false;
    if (op_is_onnx(from->def, "Clip") && b->p->g->opset >= CLIP_OF_INPUTS) {
        fx_parse(from->call, &fx);
        return bounds_of(&fx) == BOUNDS_TENSORS;
    }
    if ((!op_is_onnx(from->def, "Max") && !op_is_onnx(from->def, "Min")) || from->n_in != 2 ||
        from->in[1] == GRAPH_NONE)
        return false;
    bound = &b->p->values.at[b->map[from->in[1]]].tensor;
    if (bound->dtype != TENSOR_F32 || tensor_elements(bound) != 1 ||
        bound->shape.rank > x->shape.rank)
        return false;
    fx_parse(from->call, &fx);
    return bounds_of(&fx) == BOUNDS_NUMBERS;
}

void lower_clamp(struct lowering *l)
{
    uint32_t x = lower_in(l, 0), at = op_is_onnx(l->from->def, "Max") ? 1 : 2, k;
    struct lower_node n = { .op = "Clip", .n_in = at + 1, .in = { x, GRAPH_NONE, GRAPH_NONE } };

    if (op_is_onnx(l->from->def, "Clip")) {
        for (k = 1; k < l->from->n_in; k++)
            if (lower_in(l, k) != GRAPH_NONE)
                x = lower_op(l, k == 1 ? "Max" : "Min", x, lower_in(l, k), GRAPH_NONE);
        lower_out(l, 0, x);
        return;
    }
    n.opset = l->p->g->opset < CLIP_OF_INPUTS ? CLIP_OF_INPUTS : 0;
    n.in[at] = lower_in(l, 1);
    lower_out(l, 0, lower_add(l, &n));
}
