/* gemm_priv.h - the parameters of Gemm and MatMul, set by infer and read by their kernels. */
#ifndef OP_GEMM_GEMM_PRIV_H
#define OP_GEMM_GEMM_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include "op/op.h"

/* y [m, n] = alpha op(a) op(b) + beta c */
struct gemm_param {
    int64_t m, n, k;
    float alpha, beta;
    bool trans_a, trans_b;
    int64_t c_row, c_col; /* strides of c [m, n]: element (i, j) is at i * c_row + j * c_col; 0:
                             broadcast */
};

enum { MATMUL_BATCH_RANK = TENSOR_MAX_RANK - 2 };

/* y [batch.., m, n] = a [batch.., m, k] b [batch.., k, n] (+ bias [n]), batch axes broadcast. A
 * transposed operand is stored as [batch.., k, m] or [batch.., n, k]. */
struct matmul_param {
    int64_t m, n, k;
    bool trans_a, trans_b, bias;
    struct shape batch_a, batch_b, batch; /* of a and b; after broadcasting */
};

int gemm_cpu_plan(struct op_plan *p, struct err *err);
int gemm_cpu_fwd(const struct op_call *c, struct err *err);
int gemm_cpu_bwd(const struct op_call *c, struct err *err);
void gemm_cpu_free(void *state);

int matmul_cpu_plan(struct op_plan *p, struct err *err);
int matmul_cpu_fwd(const struct op_call *c, struct err *err);
int matmul_cpu_bwd(const struct op_call *c, struct err *err);
void matmul_cpu_free(void *state);

#endif
