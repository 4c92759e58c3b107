#include "op/shape/view.h"

#include <string.h>

#include "op/op.h"
#include "op/op_priv.h"

int view_fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    if (c->out[0]->data != c->in[0]->data)
        memcpy(c->out[0]->data, c->in[0]->data, tensor_bytes(c->in[0]));
    return 0;
}

int view_bwd(const struct op_call *c, struct err *err)
{
    bool add = (c->din_add & OP_IN(0)) != 0;

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL)
        op_bwd_zero(c);
    else if (add || c->din[0]->data != c->dout[0]->data)
        op_store_as(c->din[0], c->dout[0]->data, (size_t)tensor_elements(c->din[0]), 1.0f, add);
    return 0;
}
