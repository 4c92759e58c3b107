/* act.h - element-wise ops of one operand: activations.
 *
 * A new activation is a formula in act_formula.h (its value and its gradient) and a row in
 * act_list.h. */
#ifndef OP_ACT_ACT_H
#define OP_ACT_ACT_H

#include <stddef.h>

#include "op/act/act_formula.h"
#include "op/act/act_list.h"
#include "op/op.h"
#include "op/op_priv.h"

typedef void act_y_fn(size_t n, const float *x, float *y, const float *param);
typedef void act_dx_fn(size_t n, const float *d, const float *v, float *g, const float *param,
                       bool add);

/* Applies y to input 0; bfloat16 is converted in chunks. */
void act_fwd(const struct op_call *c, act_y_fn *y);
/* Applies dx to the gradient of output 0. v: the tensor that backward reads. */
void act_bwd(const struct op_call *c, const struct tensor *v, act_dx_fn *dx);
/* float32 input 0 -> output 0; copies the float attributes that the row names to the param. */
int act_infer(struct op_infer *f, const float *defaults, struct err *err);

/* Bits of op_def.bwd_reads: the tensor that backward reads. */
#define ACT_BITS_in OP_IN(0)
#define ACT_BITS_out OP_OUT(0)
#define ACT_BITS_none 0

/* The kernels id_##_fwd and id_##_bwd of a formula. has_: are there attributes? reads_: in, out or
 * none. Output may share memory with input, dx with dy. */
#define ACT_KERNELS(id_, has_, reads_)                                                             \
    CLONES static void id_##_y(size_t n, const float *x, float *y, const float *param)             \
    {                                                                                              \
        const float p = (has_) ? param[0] : 0.0f, q = (has_) ? param[1] : 0.0f;                    \
        size_t i;                                                                                  \
                                                                                                   \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = act_##id_##_y(x[i], p, q);                                                      \
    }                                                                                              \
    CLONES static void id_##_dx(size_t n, const float *d, const float *v, float *g,                \
                                const float *param, bool add)                                      \
    {                                                                                              \
        const float p = (has_) ? param[0] : 0.0f, q = (has_) ? param[1] : 0.0f;                    \
        size_t i;                                                                                  \
                                                                                                   \
        if (add) {                                                                                 \
            OP_EACH                                                                                \
            for (i = 0; i < n; i++)                                                                \
                g[i] += act_##id_##_dx(d[i], v[i], p, q);                                          \
            return;                                                                                \
        }                                                                                          \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            g[i] = act_##id_##_dx(d[i], v[i], p, q);                                               \
    }                                                                                              \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        act_fwd(c, id_##_y);                                                                       \
        return 0;                                                                                  \
    }                                                                                              \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        act_bwd(c, ACT_READS_##reads_(c), id_##_dx);                                               \
        return 0;                                                                                  \
    }

#define ACT_FIELDS_WIDE(id_, name_, since_, reads_)                                                \
    .name = (name_), .since = (since_), .n_in = { 1, 1 }, .n_out = { 1, 1 }, .diff = OP_IN(0),     \
    .bwd_reads = ACT_BITS_##reads_, .in_place = true, .layout = OP_LAYOUT_ANY,                     \
    .cpu = { .fwd = id_##_fwd, .bwd = id_##_bwd }
#define ACT_FIELDS(id_, name_, since_, reads_)                                                     \
    ACT_FIELDS_WIDE(id_, name_, since_, reads_), .half = OP_HALF_SAME,                             \
    .half_of = OP_IN(0) | OP_OUT(0)

/* The row op_<id_> and its kernels. */
#define ACT_ROW(id_, name_, since_, reads_)                                                        \
    ACT_KERNELS(id_, false, reads_)                                                                \
    const struct op_def op_##id_ = { ACT_FIELDS(id_, name_, since_, reads_),                       \
                                     .infer = infer_same_shape };

/* The row of a function whose results need the precision of float32, whatever feeds it. */
#define ACT_ROW_WIDE(id_, name_, since_, reads_)                                                   \
    ACT_KERNELS(id_, false, reads_)                                                                \
    const struct op_def op_##id_ = { ACT_FIELDS_WIDE(id_, name_, since_, reads_),                  \
                                     .infer = infer_same_shape };

/* The row of a function with one or two float attributes: names_ ends in NULL; their defaults follow. */
#define ACT_ROW_WITH(id_, name_, since_, reads_, names_, ...)                                      \
    ACT_KERNELS(id_, true, reads_)                                                                 \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        static const float defaults[] = { __VA_ARGS__ };                                           \
                                                                                                   \
        return act_infer(f, defaults, err);                                                        \
    }                                                                                              \
    const struct op_def op_##id_ = { ACT_FIELDS(id_, name_, since_, reads_), .attrs = (names_),    \
                                     .param_bytes = 2 * sizeof(float), .infer = id_##_infer };

#endif
