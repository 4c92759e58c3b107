/* along.h - for ops that work along one axis: the tensor is [outer, k, inner]. */
#ifndef OP_REDUCE_ALONG_H
#define OP_REDUCE_ALONG_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct op_infer;

struct along {
    size_t outer, k, inner;
    uint32_t axis;
};

/* Checks that input 0 is present and has this axis, and computes *a. Errors: ERR_INPUT. */
int along_infer(const struct op_infer *f, int64_t axis, struct along *a, struct err *err);

#endif
