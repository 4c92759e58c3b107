/* einsum.h - what Einsum settles: each label is one axis with a step in every tensor. */
#ifndef OP_GEMM_EINSUM_H
#define OP_GEMM_EINSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/gemm/contract.h"
#include "op/op.h"

enum { EINSUM_IN = 2, EINSUM_OUT = EINSUM_IN /* where the steps of the output are */ };

struct einsum {
    uint32_t n; /* labels of more than one element, or of none */
    size_t size[CONTRACT_AXES];
    ptrdiff_t step[EINSUM_IN + 1][CONTRACT_AXES]; /* 0: the tensor does not have it, or repeats */
    bool diagonal[EINSUM_IN]; /* a label comes twice in it: only its diagonal is read */
};

int einsum_cpu_plan(struct op_plan *p, struct err *err);
int einsum_cpu_fwd(const struct op_call *c, struct err *err);
int einsum_cpu_bwd(const struct op_call *c, struct err *err);
void einsum_cpu_free(void *state);

#endif
