/* mlp.h - two products with a function of numbers between them, by the kernels of the rows that they
 * are: what the kernels for CPUs do, and those for GPUs where the library does not do more at once. */
#ifndef OP_GEMM_MLP_H
#define OP_GEMM_MLP_H

#include "op/act/params.h"
#include "op/gemm/gemm_priv.h"

enum { MLP_X, MLP_W1, MLP_B1, MLP_W2, MLP_B2, MLP_INPUTS };

/* x [m, k], w1 [k, hidden], w2 [hidden, n], as they are multiplied */
struct mlp_param {
    int64_t m, k, hidden, n;
    bool trans1, trans2; /* w1, w2 lie the other way round */
    bool is_relu;        /* between them; else Gelu, the one with tanh */
};

/* A row whose parts have been planned. [m, hidden] numbers: z in front of the function, h behind it (Relu:
 * in the same place). Between forward and backward they are in `save`, else in scratch. */
struct mlp {
    const struct mlp_param *p;
    const struct op_kernels *product, *function; /* of trainerd.MatMul, of Gelu or Relu */
    struct matmul_param up, down;
    struct gelu gelu;
    void *up_state, *down_state;
    struct shape x, hidden, y; /* as matrices */
    enum tensor_dtype hidden_type;
    bool training;
    size_t h_at, scratch_at; /* behind z; where scratch is free for products */
    size_t slope_at;         /* in scratch: the gradient of h, then of z */
};

/* z_bytes: 0: of z; else of what stands there in its place, and the caller does himself what is
 * between x and h, and between y and the gradient of z. Fills p's bytes. mlp_fini() also when it fails. */
int mlp_init(struct mlp *s, struct op_plan *p, const struct op_kernels *product,
             const struct op_kernels *function, size_t z_bytes, struct err *err);
void mlp_fini(struct mlp *s);

/* Where in a call they are. */
void *mlp_z(const struct mlp *s, const struct op_call *c);
void *mlp_h(const struct mlp *s, const struct op_call *c);
void *mlp_slope(const struct mlp *s, const struct op_call *c);
void *mlp_scratch(const struct mlp *s, const struct op_call *c);
/* Does a gradient go further than to w2 and b2? */
bool mlp_goes_up(const struct op_call *c);

int mlp_up(const struct mlp *s, const struct op_call *c, struct err *err);   /* x to h */
int mlp_down(const struct mlp *s, const struct op_call *c, struct err *err); /* h to y */
/* to_h: also the gradient of z */
int mlp_down_bwd(const struct mlp *s, const struct op_call *c, bool to_h, struct err *err);
int mlp_up_bwd(const struct mlp *s, const struct op_call *c, struct err *err); /* from that of z */

int mlp_cpu_plan(struct op_plan *p, struct err *err);
int mlp_cpu_fwd(const struct op_call *c, struct err *err);
int mlp_cpu_bwd(const struct op_call *c, struct err *err);
void mlp_cpu_free(void *state);

#endif
