/* reduce.h - reductions along any axes, in any layout.
 *
 * They use the loops of broadcast operands (op/elem/loops.h) in the opposite direction: x is the
 * dense tensor, and y is broadcast along the reduced axes. Forward sums into one double per element
 * of y, in memory order of x (along a row in eight SIMD lanes), and rounds once; so the bits depend
 * only on the shapes. Backward is element-wise over x, with y and dy broadcast.
 *
 * An op of this kind consists of three expressions: the summand, the function of the sum, and
 * dx. */
#ifndef OP_REDUCE_REDUCE_H
#define OP_REDUCE_REDUCE_H

#include "op/elem/elem.h"
#include "op/reduce/params.h"

/* In the expressions of ELEM_BWD: x is ELEM_D (dense). Forward: ELEM_A is the number subtracted
 * from x (the maximum, for LogSumExp). Backward: ELEM_A is the gradient of each x before the local
 * derivative, ELEM_B is y. */
#define REDUCE_X ELEM_D
#define REDUCE_SHIFT ELEM_A
#define REDUCE_DY ELEM_A
#define REDUCE_Y ELEM_B

struct reduce_state { /* state of the plan (op_plan.state) */
    struct elem_loops fwd;  /* loops over x; y */
    struct elem_loops bwd;  /* loops over x; y, y */
    size_t sums_at;         /* offset in scratch: [y] floats, then [y] doubles */
};

/* Reads the axes and computes the shape of y, for any type. Rows up to opset 12 (ReduceSum) or 17
 * have the attribute `axes`, later ones input 1 and `noop_with_empty_axes`. */
int reduce_infer(struct op_infer *f, struct err *err);
int reduce_plan(struct op_plan *p, struct err *err);

/* The doubles in scratch; NULL if y is empty. */
static inline double *reduce_sums(const struct op_call *c)
{
    const struct reduce_state *s = c->state;

    return c->scratch != NULL ? (double *)(void *)((char *)c->scratch + s->sums_at) : NULL;
}

/* acc [y] = sum over x of the expression `add`. */
void reduce_sum(const struct op_call *c, elem_bwd_fn *add, const float *shift, double *acc);
/* Computes dx from dy (the gradient of each x before the local derivative) and y. */
void reduce_spread(const struct op_call *c, elem_bwd_fn *bwd, const float *dy, const float *y);

extern const char *const reduce_attrs_input[], *const reduce_attrs_attr[];

/* Defines the rows op_<id_>_<split_> and op_<id_>_1: from opset split_ on the axes are an input. */
#define REDUCE_ROWS(id_, name_, split_, reads_)                                                    \
    const struct op_def op_##id_##_##split_ = {                                                    \
        .name = (name_), .since = (split_), .n_in = { 1, 2 }, .n_out = { 1, 1 },                   \
        .attrs = reduce_attrs_input, .param_bytes = sizeof(struct reduce),                         \
        .infer = id_##_infer, .diff = OP_IN(0), .bwd_reads = (reads_), .layout = OP_LAYOUT_ANY,    \
        .cpu = { id_##_plan, id_##_fwd, id_##_bwd, free },                                         \
    };                                                                                             \
    const struct op_def op_##id_##_1 = {                                                           \
        .name = (name_), .since = 1, .until = (split_) - 1, .n_in = { 1, 1 }, .n_out = { 1, 1 },   \
        .attrs = reduce_attrs_attr, .param_bytes = sizeof(struct reduce), .infer = id_##_infer,    \
        .diff = OP_IN(0), .bwd_reads = (reads_), .layout = OP_LAYOUT_ANY,                          \
        .cpu = { id_##_plan, id_##_fwd, id_##_bwd, free },                                         \
    };

#endif
