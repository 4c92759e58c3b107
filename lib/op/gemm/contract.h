/* contract.h - out = sum of x y over axes with strides: the general contraction of two tensors,
 * used if no matrix product of the library fits. Sums are double, in an order that depends only on
 * the axes. */
#ifndef OP_GEMM_CONTRACT_H
#define OP_GEMM_CONTRACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONTRACT_AXES = 16 };

struct contract_axis {
    size_t size;
    ptrdiff_t x, y, out; /* strides in elements; out 0: the axis is summed over */
};

struct contract {
    struct contract_axis kept[CONTRACT_AXES], summed[CONTRACT_AXES];
    uint32_t n_kept, n_summed;
    bool is_empty; /* out has no elements */
    bool is_zero;  /* nothing to sum: out is zero */
};

void contract_add_axis(struct contract *k, size_t size, ptrdiff_t x, ptrdiff_t y, ptrdiff_t out);
/* Call after the last axis was added: merges the axes and sorts them. */
void contract_finish(struct contract *k);
/* Computes out, or accumulates into it (add). y NULL: all ones, whatever its strides. */
void contract_run(const struct contract *k, const float *x, const float *y, float *out, bool add);

#endif
