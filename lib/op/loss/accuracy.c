/* accuracy.c - Accuracy (ours): y = sum_i w_i [label_i is among the k greatest x_ij], unscaled; k =
 * 1 is the argmax. Of equal logits the lowest index wins. A row with a NaN is never right. No
 * gradient. */
#include "base/err.h"
#include "op/loss/params.h"
#include "op/op.h"
#include "op/op_priv.h"

static const char *const accuracy_attrs[] = { "ignore_index", "class_weights", "class_axis", "k",
                                              NULL };

static int accuracy_infer(struct op_infer *f, struct err *err)
{
    struct accuracy *s = f->param;
    int rc = loss_infer_classes(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "k", 1, &s->k, err);
    if (rc == 0 && s->k < 1)
        rc = op_error(f, ERR_INPUT, err, "k is %lld; expected at least 1", (long long)s->k);
    if (rc == 0 && s->k > 1 && (uint64_t)s->k >= s->rows.classes)
        rc = op_error(
            f, ERR_INPUT, err,
            "k is %lld, but there are %zu classes, so every sample would be right; expected a smaller k (/model/top_k)",
            (long long)s->k, (size_t)s->rows.classes);
    return rc;
}

static int accuracy_plan(struct op_plan *p, struct err *err)
{
    const struct accuracy *s = p->param;

    (void)err;
    p->scratch_bytes = loss_row_bytes(&s->rows, p->in[0]);
    return 0;
}

/* Counts the values that rank before `best`: with is_before, those that are not less; else those
 * that are greater. */
CLONES static uint64_t count_rivals(const float *x, size_t n, float best, bool is_before)
{
    uint64_t found = 0;
    size_t i;

    if (is_before)
        for (i = 0; i < n; i++)
            found += x[i] >= best;
    else
        for (i = 0; i < n; i++)
            found += x[i] > best;
    return found;
}

CLONES static uint32_t has_nan(const float *x, size_t n)
{
    uint32_t found = 0;
    size_t i;

    for (i = 0; i < n; i++)
        found |= x[i] != x[i];
    return found;
}

static bool is_right(const struct accuracy *s, const float *x, size_t l)
{
    size_t classes = s->rows.classes;

    return !has_nan(x, classes) &&
           count_rivals(x, l, x[l], true) + count_rivals(x + l, classes - l, x[l], false) <
               (uint64_t)s->k;
}

static int accuracy_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return loss_refuse(c, "Accuracy", at, value, err);
}

static int accuracy_fwd(const struct op_call *c, struct err *err)
{
    const struct accuracy *s = c->param;
    const float *weight = c->in[2]->data;
    const int64_t *label = c->in[1]->data;
    double total = 0, weights = 0;
    size_t i, p;
    int rc = loss_check_labels(&s->rows, c, "Accuracy", err);

    if (rc < 0)
        return rc;
    for (i = 0; i < s->rows.n; i++)
        for (p = 0; p < s->rows.positions; p++, label++) {
            double share = loss_share(&s->rows, *label, weight[i]);

            if (share != 0 &&
                is_right(s, loss_row(&s->rows, c->in[0], i, p, c->scratch), (size_t)*label))
                total += share;
            weights += share;
        }
    loss_store(c, total, weights, 1);
    return 0;
}

const struct op_def op_accuracy = {
    .domain = "trainerd",
    .name = "Accuracy",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 2 },
    .attrs = accuracy_attrs,
    .param_bytes = sizeof(struct accuracy),
    .infer = accuracy_infer,
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_MIX,
    .half_of = OP_IN(0),
    .refuse = accuracy_refuse,
    .cpu = { .plan = accuracy_plan, .fwd = accuracy_fwd },
};
