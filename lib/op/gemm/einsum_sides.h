/* einsum_sides.h - shared by the kernels of a contraction: see einsum_sides.c. */
#ifndef OP_GEMM_EINSUM_SIDES_H
#define OP_GEMM_EINSUM_SIDES_H

#include "op/gemm/einsum.h"
#include "op/shape/copy.h"

enum einsum_role { EINSUM_BATCH, EINSUM_ROW, EINSUM_COLUMN, EINSUM_INNER, EINSUM_ROLES };
enum { EINSUM_LEFT, EINSUM_RIGHT, EINSUM_RESULT, EINSUM_SIDES };

struct einsum_roles {
    uint32_t at[EINSUM_ROLES][CONTRACT_AXES], n[EINSUM_ROLES];
    int64_t size[EINSUM_ROLES];
};

struct einsum_side {
    uint32_t tensor; /* index in einsum.step */
    bool direct;     /* used in place */
    bool trans;      /* its matrices are [k, m] or [n, k] */
    bool sums;       /* packing sums over a letter */
    ptrdiff_t step[CONTRACT_AXES]; /* strides when packed; 0: label is absent */
    size_t bytes;    /* size in scratch; 0 if direct */
    struct copy pack, unpack; /* copies between its place and scratch */
    struct contract sum;      /* replaces `pack` if `sums` */
};

/* Assigns the roles. Left and right are the inputs, or exchanged if the output can then be written
 * in place. */
struct einsum_roles einsum_sides(const struct einsum_pair *p,
                                 struct einsum_side side[EINSUM_SIDES]);
/* Returns true if the contraction is computed as a matrix product; else contract.h computes it. */
bool einsum_is_product(const struct einsum_pair *p, uint32_t n_in, const struct einsum_roles *r);

#endif
