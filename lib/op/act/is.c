/* is.c - IsNaN (opset 9), IsInf (10): float32 to bool; detect_negative and detect_positive select
 * the infinities.   No gradient. */
#include <math.h>

#include "base/err.h"
#include "op/act/params.h"
#include "op/op_priv.h"

static int is_nan_infer(struct op_infer *f, struct err *err)
{
    int rc = infer_same_shape(f, err);

    f->out[0].dtype = TENSOR_BOOL;
    return rc;
}

static int is_inf_infer(struct op_infer *f, struct err *err)
{
    struct is_inf *p = f->param;
    int64_t negative, positive;
    int rc = op_attr_i(f, "detect_negative", 1, &negative, err);

    if (rc == 0)
        rc = op_attr_i(f, "detect_positive", 1, &positive, err);
    if (rc < 0)
        return rc;
    p->negative = negative != 0;
    p->positive = positive != 0;
    return is_nan_infer(f, err);
}

static int is_nan_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->in[0]), i;
    const float *x = c->in[0]->data;
    uint8_t *y = c->out[0]->data;

    (void)err; /* nothing can fail */
    for (i = 0; i < n; i++)
        y[i] = isnan(x[i]) != 0;
    return 0;
}

static int is_inf_fwd(const struct op_call *c, struct err *err)
{
    const struct is_inf *p = c->param;
    size_t n = (size_t)tensor_elements(c->in[0]), i;
    const float *x = c->in[0]->data;
    uint8_t *y = c->out[0]->data;

    (void)err; /* nothing can fail */
    for (i = 0; i < n; i++)
        y[i] = (p->positive && x[i] == INFINITY) || (p->negative && x[i] == -INFINITY);
    return 0;
}

#define FIELDS .n_in = { 1, 1 }, .n_out = { 1, 1 }, .layout = OP_LAYOUT_ANY

static const char *const attrs[] = { "detect_negative", "detect_positive", NULL };

const struct op_def op_is_nan = { FIELDS, .name = "IsNaN", .since = 9, .infer = is_nan_infer,
                                  .cpu = { .fwd = is_nan_fwd } };
const struct op_def op_is_inf = { FIELDS, .name = "IsInf", .since = 10, .attrs = attrs,
                                  .param_bytes = sizeof(struct is_inf), .infer = is_inf_infer,
                                  .cpu = { .fwd = is_inf_fwd } };
