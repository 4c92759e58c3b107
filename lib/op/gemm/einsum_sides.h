/* einsum_sides.h - what the kernels of a product share: see einsum_sides.c. */
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
    uint32_t tensor; /* of einsum.step */
    bool direct;     /* used where it lies */
    bool trans;      /* its matrices are [k, m] or [n, k] */
    bool sums;       /* packing sums over a letter */
    ptrdiff_t step[CONTRACT_AXES]; /* packed; 0: not there */
    size_t bytes;    /* of it in scratch; 0 if direct */
    struct copy pack, unpack; /* between where it lies and scratch */
    struct contract sum;      /* in place of pack */
};

/* Left and right are the inputs, or the other way round where the output then lies as it should. */
struct einsum_roles einsum_sides(const struct einsum_pair *p, struct einsum_side side[EINSUM_SIDES]);
/* Else it is for contract.h. */
bool einsum_is_product(const struct einsum_pair *p, uint32_t n_in, const struct einsum_roles *r);

#endif
