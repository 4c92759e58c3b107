/* act.h - element-wise ops of one operand: activations.
 *
 * A new activation is one expression forward, one backward, and a row: a file like relu.c, or two
 * lines in a file of its kin. */
#ifndef OP_ACT_ACT_H
#define OP_ACT_ACT_H

#include <stddef.h>

#include "op/op.h"
#include "op/op_priv.h"

#define ACT_X (x[i]) /* an element of the input */
#define ACT_D (d[i]) /* the gradient of the output there */
#define ACT_V (v[i]) /* what backward reads there: the output or the input */
#define ACT_P (p[0]) /* the op's first float attribute, and its second */
#define ACT_Q (p[1])

/* name_fwd: y = fwd_(ACT_X). name_bwd: dx = bwd_(ACT_D, ACT_V), where reads_ is `out` or `in` as in
 * bwd_reads of the row. Output may share memory with input, dx with dy. */
#define ACT_UNARY(name_, fwd_, reads_, bwd_)                                                       \
    CLONES static void name_##_y(size_t n, const float *x, float *y, const float *p)            \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        (void)p;                                                                                   \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = (fwd_);                                                                         \
    }                                                                                              \
    CLONES static void name_##_dx(size_t n, const float *d, const float *v, float *g,           \
                                     const float *p)                                               \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        (void)v, (void)p;                                                                          \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            g[i] = (bwd_);                                                                         \
    }                                                                                              \
    CLONES static void name_##_add_dx(size_t n, const float *d, const float *v, float *g,       \
                                         const float *p)                                           \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        (void)v, (void)p;                                                                          \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            g[i] += (bwd_);                                                                        \
    }                                                                                              \
    static int name_##_fwd(const struct op_call *c, struct err *err)                               \
    {                                                                                              \
        (void)err;                                                                                 \
        act_fwd(c, name_##_y);                                                                     \
        return 0;                                                                                  \
    }                                                                                              \
    static int name_##_bwd(const struct op_call *c, struct err *err)                               \
    {                                                                                              \
        (void)err;                                                                                 \
        act_bwd(c, c->reads_[0], op_adds(c, 0) ? name_##_add_dx : name_##_dx);                     \
        return 0;                                                                                  \
    }

typedef void act_y_fn(size_t n, const float *x, float *y, const float *p);
typedef void act_dx_fn(size_t n, const float *d, const float *v, float *g, const float *p);

/* The loop over all of in 0, or, if that is bfloat16, over converted stretches. */
void act_fwd(const struct op_call *c, act_y_fn *y);
/* v: what backward reads */
void act_bwd(const struct op_call *c, const struct tensor *v, act_dx_fn *dx);
/* float32 in 0 -> out 0; the attributes that the row names, floats, into the param. */
int act_infer(struct op_infer *f, const float *defaults, struct err *err);

#define ACT_FIELDS_WIDE(id_, name_, since_, reads_)                                                \
    .name = (name_), .since = (since_), .n_in = { 1, 1 }, .n_out = { 1, 1 }, .diff = OP_IN(0),     \
    .bwd_reads = (reads_), .in_place = true, .layout = OP_LAYOUT_ANY,                              \
    .cpu = { .fwd = id_##_fwd, .bwd = id_##_bwd }
#define ACT_FIELDS(id_, name_, since_, reads_)                                                     \
    ACT_FIELDS_WIDE(id_, name_, since_, reads_), .half = OP_HALF_SAME,                             \
    .half_of = OP_IN(0) | OP_OUT(0)

/* The row op_<id_> of what ACT_UNARY(id_, ...) made. */
#define ACT_ROW(id_, name_, since_, reads_)                                                        \
    const struct op_def op_##id_ = { ACT_FIELDS(id_, name_, since_, reads_),                       \
                                     .infer = infer_same_shape };

/* Of a function whose results want the precision of float32, whatever feeds it. */
#define ACT_ROW_WIDE(id_, name_, since_, reads_)                                                   \
    const struct op_def op_##id_ = { ACT_FIELDS_WIDE(id_, name_, since_, reads_),                  \
                                     .infer = infer_same_shape };

/* The same with float attributes: a list of names that ends in NULL, and as many defaults. */
#define ACT_ROW_WITH(id_, name_, since_, reads_, names_, ...)                                      \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        static const float defaults[] = { __VA_ARGS__ };                                           \
                                                                                                   \
        return act_infer(f, defaults, err);                                                        \
    }                                                                                              \
    const struct op_def op_##id_ = { ACT_FIELDS(id_, name_, since_, reads_), .attrs = (names_),    \
                                     .param_bytes = 2 * sizeof(float), .infer = id_##_infer };

#endif
