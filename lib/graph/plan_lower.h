/* plan_lower.h - what the lowering of an op (plan_lower.c) works with: a node of the graph becomes nodes of
 * other rows.
 *
 * A lowering calls lower_op() and its kin one after the other. Each adds a node, infers and folds it as
 * the planner does, and returns its output 0; the first error is kept in `rc` and `err`, after which all of
 * them do nothing and return GRAPH_NONE. A lowering so needs to look at `rc` only before it reads a shape.
 * Called by the thread that plans. */
#ifndef GRAPH_PLAN_LOWER_H
#define GRAPH_PLAN_LOWER_H

#include "graph/plan_priv.h"

struct lowering {
    struct plan_builder *b;
    struct plan *p;
    const struct graph_node *from;
    struct op_infer attrs; /* for op_attr_*() and op_error(): the node's attributes */
    int rc;
    struct err *err;
};

enum { LOWER_MAX_IN = 8, LOWER_MAX_ATTRS = 10 };

/* A node to be added. domain NULL: ai.onnx, and opset 0: of the model. What attributes point to must live as long as the plan. */
struct lower_node {
    const char *domain, *op;
    uint32_t opset, n_in, n_attrs;
    uint32_t in[LOWER_MAX_IN];
    struct op_attr attrs[LOWER_MAX_ATTRS];
};

/* Output 0 of the new node. */
uint32_t lower_add(struct lowering *l, const struct lower_node *n);
/* A node of ai.onnx without attributes; b, c: GRAPH_NONE for inputs that it does not have. */
uint32_t lower_op(struct lowering *l, const char *op, uint32_t a, uint32_t b, uint32_t c);
uint32_t lower_transpose(struct lowering *l, uint32_t x, const int64_t *perm, uint32_t rank);
uint32_t lower_reshape(struct lowering *l, uint32_t x, const int64_t *dim, uint32_t rank);
uint32_t lower_cast(struct lowering *l, uint32_t x, enum tensor_dtype to);
uint32_t lower_concat(struct lowering *l, uint32_t a, uint32_t b, int64_t axis);
/* A float32 or bool constant; *data is the plan's, and the caller fills it. */
uint32_t lower_constant(struct lowering *l, enum tensor_dtype dtype, const struct shape *shape, void **data);
uint32_t lower_number(struct lowering *l, float number);
/* A copy of n integers that lives as long as the plan; NULL: rc is set. */
const int64_t *lower_ints(struct lowering *l, const int64_t *values, size_t n);

/* The plan's value of input i; GRAPH_NONE: absent. */
uint32_t lower_in(const struct lowering *l, uint32_t i);
const struct tensor *lower_tensor(const struct lowering *l, uint32_t value);
/* Does something need output i? */
bool lower_wants(const struct lowering *l, uint32_t i);
/* The value is output i from here on. */
void lower_out(struct lowering *l, uint32_t i, uint32_t value);
/* rc = ERR_INPUT or `code`, with the op and the name of the node in front of the message. */
#define LOWER_ERROR(l_, code_, ...) ((l_)->rc = op_error(&(l_)->attrs, (code_), (l_)->err, __VA_ARGS__))

/* ---- the ops ---- */
void lower_attention(struct lowering *l);
void lower_rotary(struct lowering *l);
void lower_rms_norm(struct lowering *l);
void lower_swish(struct lowering *l);
void lower_swiglu(struct lowering *l);
void lower_causal_conv(struct lowering *l);
void lower_dft(struct lowering *l);
void lower_affine_grid(struct lowering *l);
void lower_center_crop_pad(struct lowering *l);
void lower_col2im(struct lowering *l);
void lower_compress(struct lowering *l);
void lower_deform_conv(struct lowering *l);
void lower_hardmax(struct lowering *l);
void lower_lp_normalization(struct lowering *l);
void lower_max_unpool(struct lowering *l);
void lower_mean_variance(struct lowering *l);
void lower_reverse_sequence(struct lowering *l);
void lower_stft(struct lowering *l);
void lower_wide_pool(struct lowering *l); /* MaxPool, AveragePool, LpPool for which plan_is_wide_pool() holds */
void lower_window(struct lowering *l); /* HannWindow, HammingWindow, BlackmanWindow */
void lower_scatter(struct lowering *l);
void lower_quantize(struct lowering *l);
void lower_dequantize(struct lowering *l);
void lower_dynamic_quantize(struct lowering *l);
void lower_matmul_integer(struct lowering *l);
void lower_conv_integer(struct lowering *l);
void lower_qlinear_matmul(struct lowering *l);
void lower_qlinear_conv(struct lowering *l);

#endif
