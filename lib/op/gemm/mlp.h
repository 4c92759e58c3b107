/* mlp.h - Mlp by the kernels of its parts, two products with an element-wise function between them:
 * used by the CPU kernels, and by the GPU kernels if the library cannot fuse the parts. */
#ifndef OP_GEMM_MLP_H
#define OP_GEMM_MLP_H

#include "op/act/params.h"
#include "op/gemm/gemm_priv.h"

enum { MLP_X, MLP_W1, MLP_B1, MLP_W2, MLP_B2, MLP_INPUTS };

/* x [m, k], w1 [k, hidden], w2 [hidden, n], as they are multiplied */
struct mlp_param {
    int64_t m, k, hidden, n;
    bool trans1, trans2; /* w1, w2 are stored transposed */
    bool is_relu;        /* Relu; else the tanh Gelu */
};

/* A planned node. z and h are [m, hidden]: z before the function, h after it (Relu: in the same
 * memory). In training both are in `save`, else in scratch. */
struct mlp {
    const struct mlp_param *p;
    const struct op_kernels *product, *function; /* kernels of trainerd.MatMul, of Gelu or Relu */
    struct matmul_param up, down;
    struct gelu gelu;
    void *up_state, *down_state;
    struct shape x, hidden, y; /* matrix shapes */
    enum tensor_dtype hidden_type;
    bool training;
    size_t h_at, scratch_at; /* offset of h after z; offset of the scratch of the products */
    size_t slope_at;         /* offset in scratch: the gradient of h, then of z */
};

/* Plans the parts and sets p's bytes. z_bytes 0: z is stored; else the size of the data that the
 * caller stores instead of z, and the caller computes the steps between x and h, and between y and
 * the gradient of z. Call mlp_fini() also after a failure. */
int mlp_init(struct mlp *s, struct op_plan *p, const struct op_kernels *product,
             const struct op_kernels *function, size_t z_bytes, struct err *err);
void mlp_fini(struct mlp *s);

/* Addresses within a call. */
void *mlp_z(const struct mlp *s, const struct op_call *c);
void *mlp_h(const struct mlp *s, const struct op_call *c);
void *mlp_slope(const struct mlp *s, const struct op_call *c);
void *mlp_scratch(const struct mlp *s, const struct op_call *c);
/* Returns true if a gradient other than those of w2 and b2 is requested. */
bool mlp_wants_hidden(const struct op_call *c);

int mlp_up(const struct mlp *s, const struct op_call *c, struct err *err);   /* computes h from x */
int mlp_down(const struct mlp *s, const struct op_call *c, struct err *err); /* computes y from h */
/* to_h: also computes the gradient of z */
int mlp_down_bwd(const struct mlp *s, const struct op_call *c, bool to_h, struct err *err);
/* continues from the gradient of z */
int mlp_up_bwd(const struct mlp *s, const struct op_call *c, struct err *err);

int mlp_cpu_plan(struct op_plan *p, struct err *err);
int mlp_cpu_fwd(const struct op_call *c, struct err *err);
int mlp_cpu_bwd(const struct op_call *c, struct err *err);
void mlp_cpu_free(void *state);

#endif
