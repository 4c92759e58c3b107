/* plan_lower.h - functions for lowering an op (plan_lower.c): replacing a node of the graph by
 * nodes of other rows.
 *
 * A lowering calls lower_op() and similar functions in sequence. Each adds a node, infers and folds
 * it as the planner does, and returns its output 0. The first error is stored in `rc` and `err`;
 * later calls then do nothing and return GRAPH_NONE, so a lowering must test `rc` only before it
 * reads a shape.
 * Threads: the planning thread. */
#ifndef GRAPH_PLAN_LOWER_H
#define GRAPH_PLAN_LOWER_H

#include "graph/plan_priv.h"

struct lowering {
    struct plan_builder *b;
    struct plan *p;
    const struct graph_node *from;
    struct op_infer attrs; /* attributes of the node, for op_attr_*() and op_error() */
    int rc;
    struct err *err;
};

enum { LOWER_MAX_IN = 8, LOWER_MAX_ATTRS = 10 };

/* Description of a node to be added. domain NULL: ai.onnx; opset 0: that of the model. Memory that
 * attributes point to must live as long as the plan. */
struct lower_node {
    const char *domain, *op;
    uint32_t opset, n_in, n_attrs;
    uint32_t in[LOWER_MAX_IN];
    struct op_attr attrs[LOWER_MAX_ATTRS];
};

/* ---- lower_add.c ---- */
/* Adds the node and returns its output 0. */
uint32_t lower_add(struct lowering *l, const struct lower_node *n);
/* Adds a node of ai.onnx without attributes; b, c: GRAPH_NONE for absent inputs. */
uint32_t lower_op(struct lowering *l, const char *op, uint32_t a, uint32_t b, uint32_t c);
uint32_t lower_transpose(struct lowering *l, uint32_t x, const int64_t *perm, uint32_t rank);
uint32_t lower_reshape(struct lowering *l, uint32_t x, const int64_t *dim, uint32_t rank);
uint32_t lower_cast(struct lowering *l, uint32_t x, enum tensor_dtype to);
uint32_t lower_concat(struct lowering *l, uint32_t a, uint32_t b, int64_t axis);
/* A float32 or bool constant; the plan owns *data, and the caller fills it. */
uint32_t lower_constant(struct lowering *l, enum tensor_dtype dtype, const struct shape *shape,
                        void **data);
uint32_t lower_number(struct lowering *l, float number);
/* A copy of n integers owned by the plan; NULL: rc is set. */
const int64_t *lower_ints(struct lowering *l, const int64_t *values, size_t n);

/* The plan value of input i; GRAPH_NONE: absent. */
uint32_t lower_in(const struct lowering *l, uint32_t i);
const struct tensor *lower_tensor(const struct lowering *l, uint32_t value);
/* Returns whether output i is needed. */
bool lower_is_needed(const struct lowering *l, uint32_t i);
/* Defines output i as `value`. */
void lower_out(struct lowering *l, uint32_t i, uint32_t value);
/* Sets rc to `code` and writes an error message that begins with the op and the name of the
 * node. */
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
/* MaxPool, AveragePool, LpPool for which plan_is_wide_pool() holds */
void lower_wide_pool(struct lowering *l);
/* Max, Min and Clip for which plan_is_clamp() holds */
void lower_clamp(struct lowering *l);
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
