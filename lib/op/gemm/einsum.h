/* einsum.h - what Einsum settles: a chain of sums of products of two tensors (of one, if there is
 * but one), in which each label is one axis with a step in every tensor. */
#ifndef OP_GEMM_EINSUM_H
#define OP_GEMM_EINSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/gemm/contract.h"
#include "op/op.h"

enum {
    EINSUM_IN = 2,
    EINSUM_OUT = EINSUM_IN, /* where the steps of the output are */
    EINSUM_LETTERS = 52,
    EINSUM_LABELS = EINSUM_LETTERS + TENSOR_MAX_RANK, /* those of the ellipsis behind the letters */
    EINSUM_TERMS = 8,
    EINSUM_NONE = UINT8_MAX,
};

/* One tensor of the equation. Steps in elements; 0: it does not have the label, or repeats. */
struct einsum_term {
    ptrdiff_t step[EINSUM_LABELS];
    bool diagonal; /* a label comes twice: only its diagonal is read */
};

/* ---- one product, of a node or of a step; the kernels are those of an op with this param ---- */

struct einsum_pair {
    uint32_t n; /* labels of more than one element, or of none */
    size_t size[CONTRACT_AXES];
    ptrdiff_t step[EINSUM_IN + 1][CONTRACT_AXES];
    bool diagonal[EINSUM_IN];
};

int einsum_cpu_plan(struct op_plan *p, struct err *err); /* of the whole chain */
int einsum_cpu_bwd(const struct op_call *c, struct err *err);

/* ---- the chain ---- */

struct einsum_step { /* makes tensor n_in + k, k its place; the last one makes the output */
    uint8_t left, right; /* inputs of the node, then results; EINSUM_NONE */
    int64_t floats;      /* of its result */
    struct einsum_pair pair;
};

struct einsum { /* op_def.param */
    uint32_t n_in, n_steps;
    struct einsum_step *step; /* of the graph's memory */
};

/* Chooses the order: always the two tensors whose product is the cheapest, the first such pair.
 * size [EINSUM_LABELS], -1: not there; in [f->n_in]. */
int einsum_order(struct op_infer *f, const char *equation, const int64_t *size,
                 const struct einsum_term *in, const struct einsum_term *out, struct err *err);
/* pair: the kernels of a product, with struct einsum_pair for a param. Backward: a gradient arrives. */
int einsum_chain_plan(struct op_plan *p, const struct op_kernels *pair, struct err *err);
int einsum_chain_fwd(const struct op_call *c, struct err *err);
int einsum_chain_bwd(const struct op_call *c, struct err *err);
void einsum_chain_free(void *state);

#endif
