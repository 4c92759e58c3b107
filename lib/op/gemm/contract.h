/* contract.h - out = sum of x y over axes with steps: the general form of a product of tensors, for
 * what no matrix product of the library fits. Sums are double, in an order that depends on the axes
 * alone. */
#ifndef OP_GEMM_CONTRACT_H
#define OP_GEMM_CONTRACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONTRACT_AXES = 16 };

struct contract_axis {
    size_t size;
    ptrdiff_t x, y, out; /* steps in elements; out 0: summed over */
};

struct contract {
    struct contract_axis kept[CONTRACT_AXES], summed[CONTRACT_AXES];
    uint32_t n_kept, n_summed;
    bool is_empty; /* out has no elements */
    bool is_zero;  /* nothing to sum: zeros */
};

void contract_add_axis(struct contract *k, size_t size, ptrdiff_t x, ptrdiff_t y, ptrdiff_t out);
/* After the last axis: merges them and puts them in order. */
void contract_settle(struct contract *k);
/* y NULL: all 1, whatever its steps. add: onto what is in out. */
void contract_run(const struct contract *k, const float *x, const float *y, float *out, bool add);

#endif
