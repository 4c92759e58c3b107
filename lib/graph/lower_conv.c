/* lower_conv.c - lowers CausalConvWithState (27) to a Conv with one group per channel: element t of
 * the output reads the elements t - k + 1 to t of the input; elements before the first are those of
 * past_state, or zeros.
 *   present_state   the last k - 1 elements of the concatenation of past_state (or zeros) and input
 * past_state is supported in PLAN_RUN and refused in training, because a step has no state of the
 * previous step. */
#include "graph/plan_lower.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

enum { X, WEIGHT, BIAS, PAST };

struct conv_node {
    struct lowering *l;
    int64_t batch, channels, length, k;
    bool is_gated; /* activation silu */
};

static void read_node(struct conv_node *c)
{
    struct lowering *l = c->l;
    const struct shape *x = &lower_tensor(l, lower_in(l, X))->shape,
                       *w = &lower_tensor(l, lower_in(l, WEIGHT))->shape;
    const char *activation;
    char text[2][192];

    l->rc = op_attr_s(&l->attrs, "activation", "none", &activation, l->err);
    if (l->rc < 0)
        return;
    c->is_gated = strcmp(activation, "silu") == 0 || strcmp(activation, "swish") == 0;
    if (!c->is_gated && strcmp(activation, "none") != 0)
        LOWER_ERROR(l, ERR_INPUT, "activation '%s'; expected none, silu or swish", activation);
    else if (x->rank != 3 || w->rank != 3 || w->dim[0] != x->dim[1] || w->dim[1] != 1 ||
             w->dim[2] < 1)
        LOWER_ERROR(
            l, ERR_INPUT,
            "input %s and weight %s; expected [batch, channels, length] and [channels, 1, k]",
            shape_print(x, text[0], sizeof(text[0])), shape_print(w, text[1], sizeof(text[1])));
    else if (lower_in(l, PAST) != GRAPH_NONE && l->p->purpose != PLAN_RUN)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "it reads past_state, which a training step does not have; export the model "
                    "without a cache (transformers: config.use_cache = False)");
    if (l->rc < 0)
        return;
    c->batch = x->dim[0];
    c->channels = x->dim[1];
    c->length = x->dim[2];
    c->k = w->dim[2];
}

/* The concatenation of past_state, or zeros, and the input. */
static uint32_t with_past(const struct conv_node *c)
{
    const struct shape s = { .rank = 3, .dim = { c->batch, c->channels, c->k - 1 } };
    struct lowering *l = c->l;
    uint32_t past = lower_in(l, PAST);
    void *zeros;

    if (c->k == 1)
        return lower_in(l, X);
    if (past == GRAPH_NONE) {
        past = lower_constant(l, TENSOR_F32, &s, &zeros);
        if (past != GRAPH_NONE)
            memset(zeros, 0, (size_t)shape_elements(&s) * sizeof(float));
    } else if (!shape_equal(&lower_tensor(l, past)->shape, &s)) {
        LOWER_ERROR(l, ERR_INPUT, "past_state: expected [%" PRId64 ", %" PRId64 ", %" PRId64 "]",
                    c->batch, c->channels, c->k - 1);
    }
    return lower_concat(l, past, lower_in(l, X), 2);
}

static void present(const struct conv_node *c, uint32_t wide)
{
    struct lowering *l = c->l;
    struct plan *p = l->p;
    const int64_t first = c->length, end = c->length + c->k - 1, axis = 2;
    struct lower_node n = { .op = "Slice", .n_in = 4 };

    if (l->rc < 0 || !lower_is_needed(l, 1))
        return;
    n.in[0] = wide;
    n.in[1] = plan_add_ints(p, "(start)", &first, 1);
    n.in[2] = plan_add_ints(p, "(end)", &end, 1);
    n.in[3] = plan_add_ints(p, "(axis)", &axis, 1);
    lower_out(l, 1, lower_add(l, &n));
}

void lower_causal_conv(struct lowering *l)
{
    struct conv_node c = { .l = l };
    struct lower_node n = { .op = "Conv" };
    const struct lower_node swish = { .domain = "trainerd", .op = "Swish", .n_in = 1 };
    struct lower_node gate = swish;
    bool has_past;
    int64_t pads[2] = { 0, 0 };
    uint32_t y, wide = GRAPH_NONE;

    read_node(&c);
    if (l->rc < 0)
        return;
    has_past = lower_in(l, PAST) != GRAPH_NONE;
    if (has_past || lower_is_needed(l, 1))
        wide = with_past(&c);
    pads[0] = has_past ? 0 : c.k - 1;
    n.n_in = lower_in(l, BIAS) != GRAPH_NONE ? 3 : 2;
    n.in[0] = has_past ? wide : lower_in(l, X);
    n.in[1] = lower_in(l, WEIGHT);
    n.in[2] = lower_in(l, BIAS);
    n.attrs[n.n_attrs++] = (struct op_attr){ .name = "group", .type = OP_ATTR_INT, .i = c.channels };
    n.attrs[n.n_attrs++] =
        (struct op_attr){ .name = "pads", .type = OP_ATTR_INTS, .n = 2, .ints = lower_ints(l, pads, 2) };
    if (l->rc < 0)
        return;
    y = lower_add(l, &n);
    gate.in[0] = y;
    lower_out(l, 0, c.is_gated ? lower_add(l, &gate) : y);
    present(&c, wide);
}
