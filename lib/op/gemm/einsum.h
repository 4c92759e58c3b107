/* einsum.h - the parameters of Einsum: a chain of contractions of two tensors (of one, if there is
 * only one), in which each label is one axis with a stride in every tensor. */
#ifndef OP_GEMM_EINSUM_H
#define OP_GEMM_EINSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/gemm/contract.h"
#include "op/op.h"

enum {
    EINSUM_IN = 2,
    EINSUM_OUT = EINSUM_IN, /* index of the strides of the output */
    EINSUM_LETTERS = 52,
    /* labels of the ellipsis follow the letters */
    EINSUM_LABELS = EINSUM_LETTERS + TENSOR_MAX_RANK,
    EINSUM_TERMS = 8,
    EINSUM_NONE = UINT8_MAX,
};

/* One tensor of the equation. Strides in elements; 0: the label is absent or broadcast. */
struct einsum_term {
    ptrdiff_t step[EINSUM_LABELS];
    bool diagonal; /* a label is repeated: only its diagonal is read */
};

/* ---- one contraction, of a node or of a step; its kernels are those of an op with this parameter
 * ---- */

struct einsum_pair {
    uint32_t n; /* number of labels whose size is not 1 */
    size_t size[CONTRACT_AXES];
    ptrdiff_t step[EINSUM_IN + 1][CONTRACT_AXES];
    bool diagonal[EINSUM_IN];
};

int einsum_cpu_plan(struct op_plan *p, struct err *err); /* of the whole chain */
int einsum_cpu_bwd(const struct op_call *c, struct err *err);

/* ---- the chain ---- */

struct einsum_step { /* computes tensor n_in + k, where k is its index; the last step computes the
                        output */
    uint8_t left, right; /* indices: inputs of the node, then results; EINSUM_NONE: absent */
    int64_t floats;      /* elements of its result */
    struct einsum_pair pair;
};

struct einsum { /* parameters of the op (op_def.param) */
    uint32_t n_in, n_steps;
    struct einsum_step *step; /* in the graph's memory */
};

/* Chooses the order of contractions: each time the two tensors with the cheapest product, the first
 * pair if several are equal. size [EINSUM_LABELS]: -1: label is absent; in [f->n_in]. */
int einsum_order(struct op_infer *f, const char *equation, const int64_t *size,
                 const struct einsum_term *in, const struct einsum_term *out, struct err *err);
/* pair: the kernels of a contraction, with struct einsum_pair as the parameter. Backward requires
 * dout. */
int einsum_chain_plan(struct op_plan *p, const struct op_kernels *pair, struct err *err);
int einsum_chain_fwd(const struct op_call *c, struct err *err);
int einsum_chain_bwd(const struct op_call *c, struct err *err);
void einsum_chain_free(void *state);

#endif
