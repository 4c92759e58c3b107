/* softmax_cross_entropy.c - SoftmaxCrossEntropy (domain trainerd): PyTorch's CrossEntropyLoss
 * before its mean. With l the label, v the class weights (default 1), e the label smoothing
 * (default 0), C classes, V the sum of v and L_i = log sum_j e^x_ij:
 *   y = loss_scale sum_i w_i [(1 - e) v_l (L_i - x_il) + e/C (V L_i - sum_j v_j x_ij)]
 *   dx_ij = dy loss_scale w_i [((1 - e) v_l + e/C V) p_ij - (1 - e) v_l [j = l] - e/C v_j]
 * The loss of an ignored label is 0.
 *
 * For each row, forward keeps the maximum and the reciprocal of the sum. Backward computes the
 * exponentials again, which costs less than the memory traffic of storing them. Sums are double,
 * in an order that depends on the shape alone. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/half.h"
#include "op/simd.h"
#include "op/loss/loss_formula.h"
#include "op/loss/params.h"
#include "op/op.h"
#include "op/op_priv.h"
#include "op/vmath.h"

enum { SPAN = 512 }; /* exponentials computed at a time; they stay in the L1 cache */

static const char *const cross_entropy_attrs[] = { "ignore_index", "class_weights",
                                                   "label_smoothing", "class_axis", NULL };

static int cross_entropy_infer(struct op_infer *f, struct err *err)
{
    struct cross_entropy *s = f->param;
    int rc = loss_infer_classes(f, err);

    return rc < 0 ? rc : op_attr_f(f, "label_smoothing", 0, &s->smoothing, err);
}

static int cross_entropy_plan(struct op_plan *p, struct err *err)
{
    const struct cross_entropy *s = p->param;

    (void)err;
    if (p->training)
        p->save_bytes = s->rows.n * s->rows.positions * sizeof(struct loss_row);
    p->scratch_bytes = 2 * loss_row_bytes(&s->rows, p->in[0]); /* a row, and its gradient */
    return 0;
}

CLONES static float row_max(const float *x, size_t n)
{
    return op_row_max(x, n);
}

/* sum_j e^(x_j - max) */
CLONES static double row_sum(const float *x, size_t n, float max)
{
    float e[SPAN];
    double sum = 0;
    size_t at, i, m;

    for (at = 0; at < n; at += m) {
        m = n - at < SPAN ? n - at : SPAN;
        OP_EACH
        for (i = 0; i < m; i++)
            e[i] = vm_exp(x[at + i] - max);
        sum += op_row_sum(e, m);
    }
    return sum;
}

CLONES static void row_gradient(const float *x, size_t n, float max, float factor, float *dx,
                                bool add)
{
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] += vm_exp(x[i] - max) * factor;
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] = vm_exp(x[i] - max) * factor;
    }
}

/* sum_j v_j x_j */
static double weighed(const struct loss_classes *s, const float *x)
{
    double sum = 0;
    size_t j;

    for (j = 0; j < s->classes; j++)
        sum += (s->weights != NULL ? (double)s->weights[j] : 1.0) * (double)x[j];
    return sum;
}

/* The loss of a row whose label is not ignored. share: its part of the sample's weight, times the
 * class weight; plain_share: without it. */
static double row_loss(const struct cross_entropy *s, const float *x, int64_t label, double share,
                       double plain_share, struct loss_row *row)
{
    double sum, log_sum;

    row->max = row_max(x, s->rows.classes);
    sum = row_sum(x, s->rows.classes, row->max);
    row->scale = (float)(1.0 / sum);
    log_sum = log(sum);
    return loss_smoothed(share * loss_of_score(x[label], row->max, log_sum), (double)s->smoothing,
                         plain_share, s->rows.classes, s->rows.all_weights, log_sum, row->max,
                         s->smoothing != 0 ? weighed(&s->rows, x) : 0);
}

static int cross_entropy_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return loss_refuse(c, "SoftmaxCrossEntropy", at, value, err);
}

static int cross_entropy_fwd(const struct op_call *c, struct err *err)
{
    const struct cross_entropy *s = c->param;
    const float *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    struct loss_row *rows = c->save;
    double total = 0, weights = 0;
    size_t i, p;
    int rc = loss_check_labels(&s->rows, c, "SoftmaxCrossEntropy", err);

    if (rc < 0)
        return rc;
    for (i = 0; i < s->rows.n; i++)
        for (p = 0; p < s->rows.positions; p++, label++) {
            double share = loss_share(&s->rows, *label, weight[i]);
            struct loss_row row = { 0, 0 };

            if (weight[i] != 0 && !(s->rows.has_ignored && *label == s->rows.ignored))
                total += row_loss(s, loss_row(&s->rows, c->in[0], i, p, c->scratch), *label, share,
                                  (double)weight[i] / (double)s->rows.positions, &row);
            weights += share;
            if (rows != NULL)
                *rows++ = row;
        }
    loss_store(c, total, weights, (double)c->run->loss_scale);
    return 0;
}

/* The gradient of one row, contiguous. */
static void row_bwd(const struct cross_entropy *s, const float *x, struct loss_row row,
                    int64_t label, float coef, float *dx, bool add)
{
    size_t classes = s->rows.classes, j;
    float v = s->rows.weights != NULL ? s->rows.weights[label] : 1.0f;
    struct loss_slope by =
        loss_slope_of(coef, v, s->smoothing, classes, (float)s->rows.all_weights, row.scale);

    row_gradient(x, classes, row.max, by.factor, dx, add);
    dx[label] -= by.hard;
    for (j = 0; by.soft != 0 && j < classes; j++)
        dx[j] -= by.soft * (s->rows.weights != NULL ? s->rows.weights[j] : 1.0f);
}

static int cross_entropy_bwd(const struct op_call *c, struct err *err)
{
    const struct cross_entropy *s = c->param;
    const struct loss_classes *r = &s->rows;
    const struct tensor *x = c->in[0], *dx = c->din[0];
    const float *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    const struct loss_row *row = c->save;
    bool add = (c->din_add & OP_IN(0)) != 0;
    bool in_place = r->is_last && !op_is_half(x);
    float outer, *spare = op_at(c->scratch, loss_row_bytes(r, x));
    size_t i, p;

    (void)err;
    if (c->dout[0] == NULL || dx == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    outer = *(const float *)c->dout[0]->data * c->run->loss_scale / (float)r->positions;
    for (i = 0; i < r->n; i++)
        for (p = 0; p < r->positions; p++, label++, row++) {
            float *to = in_place ? (float *)dx->data + (i * r->positions + p) * r->classes : spare;
            bool counts = weight[i] != 0 && !(r->has_ignored && *label == r->ignored);

            if (counts)
                row_bwd(s, loss_row(r, x, i, p, c->scratch), *row, *label, outer * weight[i], to,
                        add && in_place);
            else if (!add || !in_place)
                memset(to, 0, r->classes * sizeof(*to));
            if (!in_place)
                loss_store_row(r, spare, dx, i, p, add);
        }
    return 0;
}

const struct op_def op_softmax_cross_entropy = {
    .domain = "trainerd",
    .name = "SoftmaxCrossEntropy",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 2 },
    .attrs = cross_entropy_attrs,
    .param_bytes = sizeof(struct cross_entropy),
    .infer = cross_entropy_infer,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_MIX,
    .half_of = OP_IN(0),
    .refuse = cross_entropy_refuse,
    .cpu = { cross_entropy_plan, cross_entropy_fwd, cross_entropy_bwd, NULL },
};
