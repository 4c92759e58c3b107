#include "op/loss/loss.h"

#include <inttypes.h>

#include "base/err.h"
#include "op/op.h"

int loss_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *const *in = f->in;
    char x[192], l[192], w[192];
    int rc = op_need(f, 0, TENSOR_F32, 2, err);

    if (rc == 0)
        rc = op_need(f, 1, TENSOR_I64, 1, err);
    if (rc == 0)
        rc = op_need(f, 2, TENSOR_F32, 1, err);
    if (rc < 0)
        return rc;
    if (in[1]->shape.dim[0] != in[0]->shape.dim[0] || in[2]->shape.dim[0] != in[0]->shape.dim[0])
        return op_error(f, ERR_INPUT, err,
                        "logits %s, labels %s and weights %s differ in the number of samples",
                        shape_print(&in[0]->shape, x, sizeof(x)),
                        shape_print(&in[1]->shape, l, sizeof(l)),
                        shape_print(&in[2]->shape, w, sizeof(w)));
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = (struct shape){ 0 };
    return 0;
}

int loss_check_labels(const struct op_call *c, const char *op, struct err *err)
{
    int64_t n = c->in[0]->shape.dim[0], classes = c->in[0]->shape.dim[1], i;
    const int64_t *label = c->in[1]->data;

    for (i = 0; i < n; i++)
        if (label[i] < 0 || label[i] >= classes)
            return err_set(err, ERR_INPUT,
                           "%s: sample %" PRId64 " of this batch of %" PRId64 " has label %" PRId64
                           "; the logits have %" PRId64 " classes, so labels are 0 to %" PRId64,
                           op, i, n, label[i], classes, classes - 1);
    return 0;
}
