/* elements.c - element-wise losses and metrics (domain trainerd): with E elements in a sample,
 *   y = loss_scale sum_i w_i / E sum_e l(x_ie, t_ie)
 *   dx_ie = dy loss_scale w_i / E l'(x_ie, t_ie)
 *
 *   BinaryCrossEntropy  l = (1 - t) x + q (log(1 + e^-|x|) + max(-x, 0)),
 *                       q = 1 + (pos_weight - 1) t;  l' = q sigmoid(x) - pos_weight t;
 *                       x are logits, t in 0 .. 1
 *   MeanSquaredError    l = (x - t)^2
 *   MeanAbsoluteError   l = |x - t|; l' = sign(x - t)
 *   Huber               l = d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), d = x - t
 *   BinaryAccuracy      l = [(x > 0) = (t > 0.5)]; unscaled, no gradient
 * The formulas are those of PyTorch; loss_formula.h has them, and a new row there is all that this
 * file and elements_cuda.cu need. Sums are double, in an order that
 * depends on the shape alone. */
#include <string.h>

#include "base/err.h"
#include "op/simd.h"
#include "op/loss/loss_formula.h"
#include "op/loss/params.h"
#include "op/op.h"
#include "op/op_priv.h"

enum { SPAN = 512 };

typedef void formula_fn(const float *x, const float *t, size_t n, float p, float *out);

#define LOOP(name_)                                                                                \
    CLONES static void name_(const float *x, const float *t, size_t n, float p, float *out)        \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            out[i] = loss_##name_(x[i], t[i], p);                                                  \
    }

static void sum_up(const struct op_call *c, formula_fn *formula, double scale)
{
    const struct elements *s = c->param;
    const float *x = c->in[0]->data, *t = c->in[1]->data, *weight = c->in[2]->data;
    double total = 0, weights = 0;
    size_t i, at, m, n = s->shape.elements;
    float e[SPAN];

    for (i = 0; i < s->shape.n; i++, x += n, t += n) {
        double sum = 0;

        if (weight[i] == 0)
            continue;
        for (at = 0; at < n; at += m) {
            m = n - at < SPAN ? n - at : SPAN;
            formula(x + at, t + at, m, s->p, e);
            sum += op_row_sum(e, m);
        }
        total += (double)weight[i] * (sum / (double)n);
        weights += (double)weight[i];
    }
    loss_store(c, total, weights, scale);
}

static void scatter_slopes(const struct op_call *c, formula_fn *slope)
{
    const struct elements *s = c->param;
    const float *x = c->in[0]->data, *t = c->in[1]->data, *weight = c->in[2]->data;
    size_t i, at, m, n = s->shape.elements;
    bool add = op_adds(c, 0);
    float outer, e[SPAN], *dx;

    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return;
    }
    outer = *(const float *)c->dout[0]->data * c->run->loss_scale;
    dx = c->din[0]->data;
    for (i = 0; i < s->shape.n; i++, x += n, t += n, dx += n) {
        float coef = (float)((double)(outer * weight[i]) / (double)n);

        for (at = 0; at < n && weight[i] != 0; at += m) {
            m = n - at < SPAN ? n - at : SPAN;
            slope(x + at, t + at, m, s->p, e);
            op_store(dx + at, e, m, coef, add);
        }
        if (weight[i] == 0 && !add)
            memset(dx, 0, n * sizeof(*dx));
    }
}

/* `name`: the attribute of the formula, which must be above 0; NULL: it has none. */
static int infer_with(struct op_infer *f, const char *name, struct err *err)
{
    struct elements *s = f->param;
    int rc = loss_infer_elements(f, err);

    if (rc == 0 && name != NULL)
        rc = op_attr_f(f, name, 1.0f, &s->p, err);
    if (rc == 0 && name != NULL && !(s->p > 0.0f))
        rc = op_error(f, ERR_INPUT, err, "%s is %g; expected a number above 0", name, (double)s->p);
    return rc;
}

#define LOSS(symbol_, name_, attr_, value_, slope_)                                                \
    LOOP(symbol_)                                                                                  \
    LOOP(symbol_##_slope)                                                                          \
    static const char *const symbol_##_attrs[] = { attr_, NULL };                                  \
    static int symbol_##_infer(struct op_infer *f, struct err *err)                                \
    {                                                                                              \
        return infer_with(f, attr_, err);                                                          \
    }                                                                                              \
    static int symbol_##_fwd(const struct op_call *c, struct err *err)                             \
    {                                                                                              \
        (void)err;                                                                                 \
        sum_up(c, symbol_, (double)c->run->loss_scale);                                            \
        return 0;                                                                                  \
    }                                                                                              \
    static int symbol_##_bwd(const struct op_call *c, struct err *err)                             \
    {                                                                                              \
        (void)err;                                                                                 \
        scatter_slopes(c, symbol_##_slope);                                                        \
        return 0;                                                                                  \
    }                                                                                              \
    const struct op_def op_##symbol_ = {                                                           \
        .domain = "trainerd",                                                                      \
        .name = name_,                                                                             \
        .since = 1,                                                                                \
        .n_in = { 3, 3 },                                                                          \
        .n_out = { 1, 2 },                                                                         \
        .attrs = symbol_##_attrs,                                                                  \
        .param_bytes = sizeof(struct elements),                                                    \
        .infer = symbol_##_infer,                                                                  \
        .diff = OP_IN(0),                                                                          \
        .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(2),                                               \
        .layout = OP_LAYOUT_PLAIN,                                                                 \
        .cpu = { .fwd = symbol_##_fwd, .bwd = symbol_##_bwd },                                     \
    };

#define METRIC(symbol_, name_, value_)                                                             \
    LOOP(symbol_)                                                                                  \
    static int symbol_##_fwd(const struct op_call *c, struct err *err)                             \
    {                                                                                              \
        (void)err;                                                                                 \
        sum_up(c, symbol_, 1);                                                                     \
        return 0;                                                                                  \
    }                                                                                              \
    const struct op_def op_##symbol_ = {                                                           \
        .domain = "trainerd",                                                                      \
        .name = name_,                                                                             \
        .since = 1,                                                                                \
        .n_in = { 3, 3 },                                                                          \
        .n_out = { 1, 2 },                                                                         \
        .param_bytes = sizeof(struct elements),                                                    \
        .infer = loss_infer_elements,                                                              \
        .layout = OP_LAYOUT_PLAIN,                                                                 \
        .cpu = { .fwd = symbol_##_fwd },                                                           \
    };

LOSS_ELEMENTS(LOSS, METRIC)
