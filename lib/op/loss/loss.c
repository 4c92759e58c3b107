#include "op/half.h"
#include "op/loss/loss.h"

#include <inttypes.h>

#include "base/check.h"
#include "base/err.h"
#include "op/loss/loss_formula.h"
#include "op/op.h"
#include "op/op_priv.h"

static int need_samples(struct op_infer *f, struct err *err)
{
    const struct tensor *const *in = f->in;
    char x[192], t[192], w[192];
    uint32_t i;
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_check_input(f, 2, TENSOR_F32, 1, err);
    if (rc < 0)
        return rc;
    if (in[0]->shape.rank == 0 || in[1]->shape.rank == 0 ||
        in[1]->shape.dim[0] != in[0]->shape.dim[0] || in[2]->shape.dim[0] != in[0]->shape.dim[0])
        return op_error(f, ERR_INPUT, err,
                        "predictions %s, labels %s and weights %s differ in the number of samples",
                        shape_print(&in[0]->shape, x, sizeof(x)),
                        shape_print(&in[1]->shape, t, sizeof(t)),
                        shape_print(&in[2]->shape, w, sizeof(w)));
    for (i = 0; i < f->n_out; i++)
        f->out[i] = (struct tensor){ .dtype = TENSOR_F32 };
    return 0;
}

/* Is x without axis `axis` the shape of the labels? Trailing ones of the labels are ignored. */
static bool fits_without(const struct shape *x, const struct shape *labels, uint32_t axis)
{
    uint32_t k = 0, i;

    for (i = 0; i < x->rank; i++) {
        if (i == axis)
            continue;
        if (k >= labels->rank || labels->dim[k] != x->dim[i])
            return false;
        k++;
    }
    while (k < labels->rank && labels->dim[k] == 1)
        k++;
    return k == labels->rank;
}

static int read_weights(struct op_infer *f, struct loss_classes *s, struct err *err)
{
    uint32_t i;
    size_t k;

    s->all_weights = (double)s->classes;
    for (i = 0; i < f->n_attrs; i++) {
        const struct op_attr *a = &f->attrs[i];

        if (strcmp(a->name, "ignore_index") == 0)
            s->has_ignored = true;
        if (strcmp(a->name, "class_weights") != 0 || a->n == 0)
            continue;
        if (a->n != s->classes)
            return op_error(f, ERR_INPUT, err, "%zu class weights for %zu classes", a->n,
                            s->classes);
        s->weights = a->floats;
        s->all_weights = 0;
        for (k = 0; k < a->n; k++)
            s->all_weights += (double)a->floats[k];
    }
    return op_attr_i(f, "ignore_index", 0, &s->ignored, err);
}

/* Sets *is_last. Where both axes fit, each of them gives a loss, so the shapes prove neither. */
static int find_class_axis(struct op_infer *f, const struct shape *x, const struct shape *labels,
                           bool *is_last, struct err *err)
{
    bool fits_second = x->rank >= 2 && fits_without(x, labels, 1);
    bool fits_last = x->rank >= 2 && fits_without(x, labels, x->rank - 1);
    char text_x[192], text_l[192];
    int64_t stated;
    int rc = op_attr_i(f, "class_axis", 0, &stated, err);

    if (rc < 0)
        return rc;
    CHECK(stated == 0 || stated == 1 || stated == -1);
    shape_print(x, text_x, sizeof(text_x));
    shape_print(labels, text_l, sizeof(text_l));
    if (stated == 0 && fits_second && fits_last && x->rank > 2 && x->dim[1] > 1)
        return op_error(f, ERR_INPUT, err,
                        "logits %s fit labels %s with the classes as axis 1 and with the classes as the last "
                        "axis; state which one it is: \"class_axis\": \"second\" or \"class_axis\": "
                        "\"last\" in /model/loss, or export the model with a dynamic dimension for the "
                        "positions",
                        text_x, text_l);
    if ((stated >= 0 && fits_second) || (stated <= 0 && fits_last)) {
        *is_last = x->rank == 2 || stated < 0 || (stated == 0 && !fits_second);
        return 0;
    }
    return op_error(
        f, ERR_INPUT, err,
        "logits %s do not fit labels %s; expected the shape of the labels with the classes as %s",
        text_x, text_l,
        stated == 0  ? "axis 1 or as the last"
        : stated > 0 ? "axis 1, as \"class_axis\" states"
                     : "the last axis, as \"class_axis\" states");
}

int loss_infer_classes(struct op_infer *f, struct err *err)
{
    struct loss_classes *s = f->param;
    const struct shape *x, *labels;
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_check_input(f, 1, TENSOR_I64, -1, err);
    if (rc == 0)
        rc = need_samples(f, err);
    x = &f->in[0]->shape;
    labels = &f->in[1]->shape;
    if (rc == 0)
        rc = find_class_axis(f, x, labels, &s->is_last, err);
    if (rc < 0)
        return rc;
    s->n = (size_t)x->dim[0];
    s->classes = (size_t)x->dim[s->is_last ? x->rank - 1 : 1];
    s->positions = s->n > 0 && s->classes > 0 ? (size_t)shape_elements(x) / s->n / s->classes : 0;
    return read_weights(f, s, err);
}

int loss_refuse(const struct op_call *c, const char *op, size_t at, int64_t value, struct err *err)
{
    const struct loss_classes *s = c->param;
    int64_t classes = (int64_t)s->classes;

    return err_set(err, ERR_INPUT,
                   "%s: sample %zu of this batch of %zu has label %" PRId64
                   "; the logits have %" PRId64 " classes, so labels are 0 to %" PRId64,
                   op, at / s->positions, s->n, value, classes, classes - 1);
}

int loss_check_labels(const struct loss_classes *s, const struct op_call *c, const char *op,
                      struct err *err)
{
    const int64_t *label = c->in[1]->data;
    size_t i;

    for (i = 0; i < s->n * s->positions; i++)
        if (loss_kind_of(label[i], s->classes, s->has_ignored, s->ignored) == LOSS_WRONG)
            return loss_refuse(c, op, i, label[i], err);
    return 0;
}

size_t loss_row_bytes(const struct loss_classes *s, const struct tensor *x)
{
    return s->is_last && !op_is_half(x) ? 0 : op_round(s->classes * sizeof(float));
}

/* Returns the first element of a row, and in *step the distance between its elements. */
static size_t row_at(const struct loss_classes *s, size_t i, size_t p, size_t *step)
{
    *step = s->is_last ? 1 : s->positions;
    return s->is_last ? (i * s->positions + p) * s->classes : i * s->classes * s->positions + p;
}

const float *loss_row(const struct loss_classes *s, const struct tensor *x, size_t i, size_t p,
                      float *scratch)
{
    size_t step, at = row_at(s, i, p, &step), k;
    const uint16_t *half = x->data;
    const float *wide = x->data;

    if (step == 1)
        return op_floats(x, at, s->classes, scratch);
    for (k = 0; k < s->classes; k++)
        scratch[k] = op_is_half(x) ? float_of_bfloat16(half[at + k * step]) : wide[at + k * step];
    return scratch;
}

void loss_store_row(const struct loss_classes *s, const float *from, const struct tensor *dx,
                    size_t i, size_t p, bool add)
{
    size_t step, at = row_at(s, i, p, &step), k;
    uint16_t *half = dx->data;
    float *wide = dx->data;

    if (op_is_half(dx) && step == 1 && !add)
        op_narrow(from, s->classes, half + at);
    else if (op_is_half(dx))
        for (k = 0; k < s->classes; k++)
            half[at + k * step] =
                float_to_bfloat16(from[k] + (add ? float_of_bfloat16(half[at + k * step]) : 0.0f));
    else
        for (k = 0; k < s->classes; k++)
            wide[at + k * step] = add ? wide[at + k * step] + from[k] : from[k];
}

double loss_share(const struct loss_classes *s, int64_t label, float weight)
{
    double share = (double)weight / (double)s->positions;

    if (s->has_ignored && label == s->ignored)
        return 0;
    return s->weights != NULL ? share * (double)s->weights[label] : share;
}

int loss_infer_elements(struct op_infer *f, struct err *err)
{
    struct loss_elements *s = f->param;
    char x[192], t[192];
    int rc = op_check_input(f, 1, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = need_samples(f, err);
    if (rc < 0)
        return rc;
    if (tensor_elements(f->in[0]) != tensor_elements(f->in[1]))
        return op_error(f, ERR_INPUT, err,
                        "predictions %s and labels %s differ in the number of elements",
                        shape_print(&f->in[0]->shape, x, sizeof(x)),
                        shape_print(&f->in[1]->shape, t, sizeof(t)));
    s->n = (size_t)f->in[0]->shape.dim[0];
    s->elements = s->n > 0 ? (size_t)tensor_elements(f->in[0]) / s->n : 0;
    return 0;
}

void loss_store(const struct op_call *c, double sum, double weight, double scale)
{
    if (c->out[0] != NULL)
        *(float *)c->out[0]->data = (float)(scale * sum);
    if (c->n_out > 1 && c->out[1] != NULL)
        *(float *)c->out[1]->data = (float)(scale * weight);
}
