/* onnx_loss.c - the losses that a model may contain, as ONNX defines them. Classes are axis 1:
 * scores x [n, c, d..], labels [n, d..] int64 or int32, weights of the classes [c] (optional).
 *   NegativeLogLikelihoodLoss   l = -w[label] x[label]
 *   SoftmaxCrossEntropyLoss     the same of log_softmax(x), which is output 1 (optional)
 * reduction none: l [n, d..]; sum; mean: sum l / sum w[label]. A label equal to ignore_index is
 * ignored. The mean over no label is NaN, and its gradient 0. With p = softmax(x), and u and v
 * the gradients of l and of log_softmax(x):
 *   dx = u w (p - [c = label]) + v - p sum_c v
 * The mean is over this call, i.e. over the batch of a lane (micro-batch), not over the global
 * batch.
 *
 * The scores of a position are `space` apart. If space is 1, a position is a contiguous row;
 * else SPAN positions are computed at a time. Sums are double, in an order that depends on
 * shapes alone. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/simd.h"
#include "op/loss/loss_formula.h"
#include "op/loss/params.h"
#include "op/op_priv.h"
#include "op/vmath.h"

enum { SPAN = 256 };

/* ---- infer ---- */

static int read_attrs(const struct op_infer *f, struct onnx_loss *p, struct err *err)
{
    static const char *const names[] = { [LOSS_NONE] = "none", [LOSS_SUM] = "sum", [LOSS_MEAN] = "mean" };
    const char *reduction;
    uint32_t i;
    int rc = op_attr_s(f, "reduction", "mean", &reduction, err);

    if (rc == 0)
        rc = op_attr_i(f, "ignore_index", 0, &p->ignored, err);
    if (rc < 0)
        return rc;
    for (i = 0; i < f->n_attrs; i++)
        p->has_ignored = p->has_ignored || strcmp(f->attrs[i].name, "ignore_index") == 0;
    for (p->reduction = LOSS_NONE; strcmp(names[p->reduction], reduction) != 0; p->reduction++)
        if (p->reduction == LOSS_MEAN)
            return op_error(f, ERR_INPUT, err, "attribute 'reduction' is '%s'; expected none, sum "
                            "or mean", reduction);
    return 0;
}

static int check_labels(const struct op_infer *f, const struct shape *want, struct err *err)
{
    const struct tensor *t = f->in[1];
    char got[192], text[192];

    if (t == NULL)
        return op_error(f, ERR_INPUT, err, "input 1, the labels, is missing");
    if (t->dtype != TENSOR_I64 && t->dtype != TENSOR_I32)
        return op_error(f, ERR_INPUT, err, "input 1, the labels, is %s; expected int64 or int32",
                        tensor_dtype_name(t->dtype));
    if (!shape_equal(&t->shape, want))
        return op_error(f, ERR_INPUT, err, "input 1, the labels, has shape %s; expected %s",
                        shape_print(&t->shape, got, sizeof(got)),
                        shape_print(want, text, sizeof(text)));
    return 0;
}

static int infer(struct op_infer *f, bool softmax, struct err *err)
{
    struct onnx_loss *p = f->param;
    struct shape at = { 0 };
    const struct shape *x;
    char text[192];
    uint32_t k;
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = read_attrs(f, p, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    if (x->rank < 2 || x->dim[1] < 1)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s; expected n, classes and "
                        "optionally more", shape_print(x, text, sizeof(text)));
    p->softmax = softmax;
    p->n = (size_t)x->dim[0];
    p->classes = (size_t)x->dim[1];
    p->space = 1;
    for (k = 0; k < x->rank; k++)
        if (k != 1)
            at.dim[at.rank++] = x->dim[k];
    for (k = 2; k < x->rank; k++)
        p->space *= (size_t)x->dim[k];
    rc = check_labels(f, &at, err);
    if (rc == 0 && f->n_in > 2 && f->in[2] != NULL) {
        rc = op_check_input(f, 2, TENSOR_F32, 1, err);
        if (rc == 0 && f->in[2]->shape.dim[0] != x->dim[1])
            rc = op_error(f, ERR_INPUT, err, "input 2, the weights, has %" PRId64
                          " elements; expected one for each of %" PRId64 " classes",
                          f->in[2]->shape.dim[0], x->dim[1]);
    }
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = p->reduction == LOSS_NONE ? at : (struct shape){ 0 };
    if (f->n_out > 1) {
        f->out[1].dtype = TENSOR_F32;
        f->out[1].shape = *x;
    }
    return rc;
}

static int infer_softmax(struct op_infer *f, struct err *err)
{
    return infer(f, true, err);
}

static int infer_nll(struct op_infer *f, struct err *err)
{
    return infer(f, false, err);
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct onnx_loss *l = p->param;

    (void)err;
    if (l->softmax)
        p->save_bytes = l->n * l->space * sizeof(struct loss_position);
    return 0;
}

/* ---- labels and their weights ---- */

static int64_t label_at(const struct op_call *c, size_t i)
{
    const struct tensor *t = c->in[1];

    return t->dtype == TENSOR_I64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
}

static bool is_ignored(const struct onnx_loss *p, int64_t label)
{
    return p->has_ignored && label == p->ignored;
}

/* The weight of position i; 0 if its label is ignored. */
static double weight_at(const struct op_call *c, size_t i)
{
    const struct onnx_loss *p = c->param;
    int64_t label = label_at(c, i);

    if (is_ignored(p, label))
        return 0;
    return c->n_in > 2 && c->in[2] != NULL ? (double)((const float *)c->in[2]->data)[label] : 1;
}

static double all_weights(const struct op_call *c)
{
    const struct onnx_loss *p = c->param;
    double sum = 0;
    size_t i;

    for (i = 0; i < p->n * p->space; i++)
        sum += weight_at(c, i);
    return sum;
}

static int refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    const struct onnx_loss *p = c->param;

    return err_set(err, ERR_INPUT, "%s: label %zu of this batch is %" PRId64
                   "; the scores have %zu classes, so labels are 0 to %zu",
                   p->softmax ? "SoftmaxCrossEntropyLoss" : "NegativeLogLikelihoodLoss", at, value,
                   p->classes, p->classes - 1);
}

static int check_range(const struct op_call *c, struct err *err)
{
    const struct onnx_loss *p = c->param;
    size_t i;

    for (i = 0; i < p->n * p->space; i++) {
        int64_t label = label_at(c, i);

        if (loss_kind_of(label, p->classes, p->has_ignored, p->ignored) == LOSS_WRONG)
            return refuse(c, i, label, err);
    }
    return 0;
}

/* ---- softmax of one row, and of m adjacent columns ---- */

CLONES static void row_measure(const float *x, size_t n, struct loss_position *out)
{
    float max = op_row_max(x, n), e[SPAN];
    double sum = 0;
    size_t at, i, m;

    for (at = 0; at < n; at += m) {
        m = n - at < SPAN ? n - at : SPAN;
        OP_EACH
        for (i = 0; i < m; i++)
            e[i] = vm_exp(x[at + i] - max);
        sum += op_row_sum(e, m);
    }
    out->max = max;
    out->log_sum = (float)log(sum);
}

CLONES static void columns_measure(const float *x, size_t classes, size_t space, size_t m,
                                   struct loss_position *out)
{
    float max[SPAN];
    double sum[SPAN] = { 0 };
    size_t c, i;

    memcpy(max, x, m * sizeof(*max));
    for (c = 1; c < classes; c++)
        for (i = 0; i < m; i++)
            max[i] = x[c * space + i] > max[i] ? x[c * space + i] : max[i];
    for (c = 0; c < classes; c++)
        for (i = 0; i < m; i++)
            sum[i] += (double)vm_exp(x[c * space + i] - max[i]);
    for (i = 0; i < m; i++) {
        out[i].max = max[i];
        out[i].log_sum = (float)log(sum[i]);
    }
}

/* y = log_softmax(x) of m adjacent positions; the scores of a position are `space` apart. */
CLONES static void put_log(const float *x, float *y, size_t classes, size_t space, size_t m,
                           const struct loss_position *at)
{
    size_t c, i;

    if (space == 1) {
        for (c = 0; c < classes; c++)
            y[c] = x[c] - at->max - at->log_sum;
        return;
    }
    for (c = 0; c < classes; c++)
        for (i = 0; i < m; i++)
            y[c * space + i] = x[c * space + i] - at[i].max - at[i].log_sum;
}

static size_t span_of(const struct onnx_loss *p, size_t at)
{
    return p->space - at < SPAN ? p->space - at : SPAN;
}

static void softmax_fwd(const struct op_call *c)
{
    const struct onnx_loss *p = c->param;
    float *y = c->n_out > 1 && c->out[1] != NULL ? c->out[1]->data : NULL;
    struct loss_position *save = c->save;
    const float *x = c->in[0]->data;
    size_t i, at;

    for (i = 0; i < p->n; i++)
        for (at = 0; at < p->space; at += SPAN) {
            size_t m = span_of(p, at), from = i * p->classes * p->space + at;

            if (p->space == 1)
                row_measure(x + from, p->classes, &save[i]);
            else
                columns_measure(x + from, p->classes, p->space, m, save + i * p->space + at);
            if (y != NULL)
                put_log(x + from, y + from, p->classes, p->space, m, save + i * p->space + at);
        }
}

static int fwd(const struct op_call *c, struct err *err)
{
    const struct onnx_loss *p = c->param;
    const struct loss_position *save = c->save;
    const float *x = c->in[0]->data;
    float *y = c->out[0] != NULL ? c->out[0]->data : NULL;
    double sum = 0, weights = 0;
    size_t i;
    int rc = check_range(c, err);

    if (rc < 0)
        return rc;
    if (p->softmax)
        softmax_fwd(c);
    for (i = 0; i < p->n * p->space && y != NULL; i++) {
        double w = weight_at(c, i), l = 0;

        if (!is_ignored(p, label_at(c, i))) {
            size_t at =
                (i / p->space * p->classes + (size_t)label_at(c, i)) * p->space + i % p->space;

            l = p->softmax ? loss_of_score(x[at], save[i].max, (double)save[i].log_sum)
                           : -(double)x[at];
            l *= w;
        }
        if (p->reduction == LOSS_NONE)
            y[i] = (float)l;
        sum += l;
        weights += w;
    }
    if (y != NULL && p->reduction != LOSS_NONE)
        *y = (float)(p->reduction == LOSS_MEAN ? sum / weights : sum);
    return 0;
}

/* ---- backward ---- */

/* The gradient of the loss of position i, times its weight. */
static float outer_at(const struct op_call *c, size_t i, double scale)
{
    const float *dy = c->dout[0] != NULL ? c->dout[0]->data : NULL;
    const struct onnx_loss *p = c->param;
    double w = weight_at(c, i);

    if (dy == NULL || w == 0)
        return 0;
    return (float)((double)dy[p->reduction == LOSS_NONE ? i : 0] * scale * w);
}

/* dx (+)= p (outer - sum v) + v for the scores of one position; v may be NULL. */
CLONES static void row_bwd(const float *x, const float *v, float *dx, size_t classes,
                           const struct loss_position *at, float outer, bool add)
{
    float factor = v != NULL ? (float)((double)outer - op_row_sum(v, classes)) : outer;
    float max = at->max, log_sum = at->log_sum;
    size_t c;

    OP_EACH
    for (c = 0; c < classes; c++) {
        float d = vm_exp(x[c] - max - log_sum) * factor;

        dx[c] = add ? dx[c] + d : d;
    }
    for (c = 0; c < classes && v != NULL; c++)
        dx[c] += v[c];
}

/* Does what row_bwd() does, for m adjacent positions. */
CLONES static void columns_bwd(const float *x, const float *v, float *dx, size_t classes,
                               size_t space, size_t m, const struct loss_position *at,
                               const float *outer, bool add)
{
    double sum[SPAN] = { 0 };
    float factor[SPAN];
    size_t c, i;

    for (c = 0; c < classes && v != NULL; c++)
        for (i = 0; i < m; i++)
            sum[i] += (double)v[c * space + i];
    for (i = 0; i < m; i++)
        factor[i] = (float)((double)outer[i] - sum[i]);
    for (c = 0; c < classes; c++, x += space, dx += space) {
        for (i = 0; i < m; i++) {
            float d = vm_exp(x[i] - at[i].max - at[i].log_sum) * factor[i];

            dx[i] = add ? dx[i] + d : d;
        }
        for (i = 0; i < m && v != NULL; i++)
            dx[i] += v[c * space + i];
    }
}

static int bwd(const struct op_call *c, struct err *err)
{
    const struct onnx_loss *p = c->param;
    const float *v = c->n_out > 1 && c->dout[1] != NULL ? c->dout[1]->data : NULL;
    const struct loss_position *save = c->save;
    double weights, scale;
    float *dx, outer[SPAN];
    size_t n, i, at, k;

    (void)err; /* nothing can fail */
    if ((c->dout[0] == NULL && v == NULL) || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    weights = p->reduction == LOSS_MEAN ? all_weights(c) : 1;
    scale = weights != 0 ? 1 / weights : 0;
    dx = c->din[0]->data;
    if (!p->softmax)
        op_bwd_zero(c);
    for (n = 0; n < p->n; n++)
        for (at = 0; at < p->space; at += SPAN) {
            size_t m = span_of(p, at), first = n * p->space + at;
            size_t from = n * p->classes * p->space + at;

            for (i = 0; i < m; i++)
                outer[i] = outer_at(c, first + i, scale);
            if (p->softmax && p->space == 1)
                row_bwd((const float *)c->in[0]->data + from, v != NULL ? v + from : NULL,
                        dx + from, p->classes, save + first, outer[0], op_adds(c, 0));
            else if (p->softmax)
                columns_bwd((const float *)c->in[0]->data + from, v != NULL ? v + from : NULL,
                            dx + from, p->classes, p->space, m, save + first, outer, op_adds(c, 0));
            for (i = 0; i < m; i++) {
                k = is_ignored(p, label_at(c, first + i)) ? 0 : (size_t)label_at(c, first + i);
                dx[from + k * p->space + i] -= outer[i];
            }
        }
    return 0;
}

static const char *const attrs[] = { "ignore_index", "reduction", NULL };

#define FIELDS                                                                                     \
    .since = 12, .n_in = { 2, 3 }, .attrs = attrs, .param_bytes = sizeof(struct onnx_loss),        \
    .diff = OP_IN(0), .layout = OP_LAYOUT_PLAIN, .refuse = refuse, .cpu = { plan, fwd, bwd, NULL }

const struct op_def op_softmax_cross_entropy_loss = {
    FIELDS, .name = "SoftmaxCrossEntropyLoss", .n_out = { 1, 2 }, .infer = infer_softmax,
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(2),
};
const struct op_def op_negative_log_likelihood_loss = {
    FIELDS, .name = "NegativeLogLikelihoodLoss", .n_out = { 1, 1 }, .infer = infer_nll,
    .bwd_reads = OP_IN(1) | OP_IN(2),
};
