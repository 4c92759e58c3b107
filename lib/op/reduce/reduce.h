/* reduce.h - reductions along any axes, in any layout.
 *
 * The same loops as for a broadcast operand (op/elem/loops.h), the other way round: x is the dense
 * tensor, y repeats along the axes that go. Forward adds up into one double per element of y, in
 * the order of x's memory (along a row in eight lanes), and rounds once; so the bits depend on the
 * shapes alone. Backward is element-wise over x, with y and dy repeating.
 *
 * A sum-like op is three expressions: what is summed, what is made of the sum, and dx. */
#ifndef OP_REDUCE_REDUCE_H
#define OP_REDUCE_REDUCE_H

#include "op/elem/elem.h"
#include "op/reduce/params.h"

/* In the expressions of ELEM_BWD: x is ELEM_D (dense). Forward: ELEM_A is what is taken off x (the
 * maximum, for LogSumExp). Backward: ELEM_A is dy as it goes to each, ELEM_B is y. */
#define REDUCE_X ELEM_D
#define REDUCE_SHIFT ELEM_A
#define REDUCE_DY ELEM_A
#define REDUCE_Y ELEM_B

struct reduce_state { /* op_plan.state */
    struct elem_loops fwd;  /* x; y */
    struct elem_loops bwd;  /* x; y, y */
    size_t sums_at;         /* in the scratch: [y] floats, then [y] doubles */
};

/* Settles axes and the shape of y. Any type. Rows up to opset 12 (ReduceSum) or 17 have the
 * attribute `axes`, later ones input 1; `noop_with_empty_axes` then. */
int reduce_infer(struct op_infer *f, struct err *err);
int reduce_plan(struct op_plan *p, struct err *err);

/* The doubles of the scratch; NULL if y is empty. */
static inline double *reduce_sums(const struct op_call *c)
{
    const struct reduce_state *s = c->state;

    return c->scratch != NULL ? (double *)(void *)((char *)c->scratch + s->sums_at) : NULL;
}

/* acc [y] = what `add` sums over x. */
void reduce_sum(const struct op_call *c, elem_bwd_fn *add, const float *shift, double *acc);
/* dx from dy (as it goes to each x) and y. */
void reduce_spread(const struct op_call *c, elem_bwd_fn *bwd, const float *dy, const float *y);


extern const char *const reduce_attrs_input[], *const reduce_attrs_attr[];

/* The rows op_<id_>_<split_> and op_<id_>_1: from opset split_ on the axes are an input. */
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
