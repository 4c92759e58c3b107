/* gated.c - trainerd.Gated: y = f(a) b, of two tensors of one shape; f is the attribute `function`:
 *   sigmoid    1 / (1 + e^-a)             (GLU)
 *   swish      a / (1 + e^-a)             (SwiGLU)
 *   gelu       a P(a)                     (GEGLU), see gelu.c
 *   gelu_tanh  its approximation by tanh
 *   da = dy b f'(a), db = dy f(a)
 * Backward reads a and b; forward keeps nothing. */
#include "base/check.h"
#include "base/err.h"
#include "op/act/act_formula.h"
#include "op/act/params.h"
#include "op/half.h"
#include "op/op_priv.h"

/* Computes f of n elements, and its slope unless `slope` is NULL. */
typedef void gate_fn(size_t n, const float *x, float *y, float *slope);

#define GATE(id_)                                                                                  \
    CLONES static void id_##_gate(size_t n, const float *x, float *y, float *slope)                \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        if (slope == NULL) {                                                                       \
            OP_EACH                                                                                \
            for (i = 0; i < n; i++)                                                                \
                y[i] = act_##id_##_y(x[i], 0, 0);                                                  \
            return;                                                                                \
        }                                                                                          \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++) {                                                                  \
            float s = act_##id_##_slope(x[i]);                                                     \
                                                                                                   \
            y[i] = act_##id_##_y(x[i], 0, 0);                                                      \
            slope[i] = s;                                                                          \
        }                                                                                          \
    }

GATE(sigmoid)
GATE(swish)
GATE(gelu_exact)
GATE(gelu_tanh)

static const struct {
    const char *name;
    gate_fn *gate;
} gates[] = {
    [GATE_SIGMOID] = { "sigmoid", sigmoid_gate },
    [GATE_SWISH] = { "swish", swish_gate },
    [GATE_GELU] = { "gelu", gelu_exact_gate },
    [GATE_GELU_TANH] = { "gelu_tanh", gelu_tanh_gate },
};

static gate_fn *gate_of(const struct op_call *c)
{
    return gates[((const struct gated *)c->param)->gate].gate;
}

static size_t chunk(size_t n)
{
    return n < OP_CHUNK ? n : OP_CHUNK;
}

CLONES static void multiply(size_t n, const float *x, const float *y, float *z)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        z[i] = x[i] * y[i];
}

static int gated_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->in[0]), at, m;
    float room[3][OP_CHUNK], *y;

    (void)err; /* nothing can fail */
    for (at = 0; at < n; at += m) {
        m = chunk(n - at);
        gate_of(c)(m, op_floats(c->in[0], at, m, room[0]), room[2], NULL);
        y = op_floats_to(c->out[0], at, room[0]);
        multiply(m, room[2], op_floats(c->in[1], at, m, room[1]), y);
        op_floats_done(c->out[0], at, m, y);
    }
    return 0;
}

/* Stores or adds the gradient of input i. */
static void put(const struct op_call *c, uint32_t i, size_t at, size_t n, const float *gradient,
                float *room)
{
    const struct tensor *g = c->din[i];
    float *to;

    if (g == NULL)
        return;
    to = op_floats_on(g, at, op_adds(c, i) ? n : 0, room);
    op_store(to, gradient, n, 1.0f, op_adds(c, i));
    op_floats_done(g, at, n, to);
}

static int gated_bwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->in[0]), at, m;
    float room[3][OP_CHUNK], gate[OP_CHUNK], slope[OP_CHUNK];

    (void)err; /* nothing can fail */
    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (at = 0; at < n; at += m) {
        const float *d;

        m = chunk(n - at);
        gate_of(c)(m, op_floats(c->in[0], at, m, room[0]), gate, slope);
        d = op_floats(c->dout[0], at, m, room[1]);
        multiply(m, slope, op_floats(c->in[1], at, m, room[0]), slope);
        multiply(m, slope, d, slope); /* before any store: a gradient may share memory with d */
        multiply(m, gate, d, gate);
        put(c, 0, at, m, slope, room[2]);
        put(c, 1, at, m, gate, room[2]);
    }
    return 0;
}

static int gated_infer(struct op_infer *f, struct err *err)
{
    struct gated *g = f->param;
    const char *function;
    char text[2][192];
    size_t i = 0;
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_check_input(f, 1, TENSOR_F32, -1, err);
    if (rc == 0)
        rc = op_attr_s(f, "function", "", &function, err);
    if (rc < 0)
        return rc;
    while (i < COUNT_OF(gates) && strcmp(gates[i].name, function) != 0)
        i++;
    if (i == COUNT_OF(gates))
        return op_error(f, ERR_INPUT, err,
                        "function '%s'; expected sigmoid, swish, gelu or gelu_tanh", function);
    g->gate = (enum gate)i;
    if (!shape_equal(&f->in[0]->shape, &f->in[1]->shape))
        return op_error(f, ERR_INPUT, err, "input 1 has shape %s; expected %s, as input 0",
                        shape_print(&f->in[1]->shape, text[0], sizeof(text[0])),
                        shape_print(&f->in[0]->shape, text[1], sizeof(text[1])));
    return 0;
}

static const char *const attrs[] = { "function", NULL };

const struct op_def op_gated = {
    .domain = "trainerd",
    .name = "Gated",
    .since = 1,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct gated),
    .infer = gated_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { .fwd = gated_fwd, .bwd = gated_bwd },
};
