/* softmax.h - shared by Softmax and LogSoftmax: the tensor is [outer, k, inner] with the sums along
 * k. From opset 13 on, k is one axis (default -1); before, k is all axes from `axis` on (default
 * 1), and inner is 1. */
#ifndef OP_ACT_SOFTMAX_H
#define OP_ACT_SOFTMAX_H

#include <stddef.h>

struct err;
struct op_infer;

struct softmax { /* op_def.param */
    size_t outer, k, inner;
};

int softmax_infer_13(struct op_infer *f, struct err *err);
int softmax_infer_1(struct op_infer *f, struct err *err);

#endif
