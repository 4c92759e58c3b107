/* elem.h - element-wise ops of several operands with NumPy broadcasting, in any layout.
 *
 * At plan time, loops.h converts shapes and layouts to loops once. Their innermost part, a tile,
 * is computed by the loops below, which are generated for each op.
 *
 * The gradient of a broadcast operand is a sum: one double per element of the operand, to which
 * terms are added in the order of the output's memory (along a row in eight SIMD lanes), and
 * which is rounded once. The bits therefore depend only on the shapes.
 *
 * To add an op, write a file like add.c: its expressions, in ELEM_A, ELEM_B (the operands) and
 * ELEM_D (the gradient of the output), and its row. An expression of more than one operator goes
 * to elem_formula.h, which GPUs use too. Layout: OP_LAYOUT_ANY; plain and channels-last operands
 * may be mixed. in_place: tensors may share memory only if their shapes and layouts are equal.
 *
 * These kernels also serve fold.c (any number of operands) and reduce/ (a reduction is the
 * gradient of a broadcast). */
#ifndef OP_ELEM_ELEM_H
#define OP_ELEM_ELEM_H

#include <stddef.h>
#include <stdint.h>

#include "op/elem/elem_formula.h"
#include "op/elem/loops.h"
#include "op/simd.h"
#include "op/op.h"
#include "op/op_priv.h"

enum elem_into {
    ELEM_SET, /* g[i] = e: the operand has the output's shape and layout */
    ELEM_ADD, /* g[i] += e: likewise */
    ELEM_SUM, /* sum[i * step] += e: in double, with the steps of the operand */
};

typedef void elem_fwd_fn(const struct elem_tile *t, const void *const *in, void *y);
typedef void elem_bwd_fn(const struct elem_tile *t, enum elem_into into, const float *d,
                         const void *const *in, float *g, double *sum);

struct elem_kernels {
    elem_fwd_fn *f32, *i32, *i64, *boolean; /* NULL: this type is not supported */
    elem_fwd_fn *u64; /* if the sign bit matters; smaller integers are widened (plan_types.c) */
    enum tensor_dtype out;                  /* type of the result; 0: that of the operands */
    elem_bwd_fn *bwd[ELEM_OPERANDS];        /* float32 only */
    /* bwd reads the operands; used if they may be bfloat16 */
    bool bwd_reads;
};

/* Validates two inputs of one type for which a kernel exists, and sets the output. */
int elem_infer(struct op_infer *f, const struct elem_kernels *k, struct err *err);
/* For infer: inputs first .. last must be present; sets the shape of output 0 to their
 * broadcast. */
int elem_infer_shape(struct op_infer *f, uint32_t first, uint32_t last, struct err *err);
elem_fwd_fn *elem_fwd_of(const struct elem_kernels *k, enum tensor_dtype t);

/* The state is one struct elem_loops over all inputs. If a float32 kernel exists, each tensor may
 * also be bfloat16; the kernel then runs on converted chunks. */
int elem_plan(struct op_plan *p, struct err *err);
int elem_fwd(const struct op_call *c, const struct elem_kernels *k);
int elem_bwd(const struct op_call *c, const struct elem_kernels *k);

/* Runs one kernel over all tiles. `in` [n]: the operands of the loops. */
void elem_run(const struct elem_loops *s, elem_fwd_fn *fwd, const struct tensor *const *in,
              uint32_t n, const struct tensor *y);
/* Stores the gradient of operand k in g, or adds it. sum: one double per element of the operand,
 * used unless it is dense. d has the order of the dense tensor. */
void elem_run_bwd(const struct elem_loops *s, elem_bwd_fn *bwd, uint32_t k, const float *d,
                  const struct tensor *const *in, uint32_t n, float *g, double *sum, bool add);

/* ---- generators ---- */

#define ELEM_A (a[(ptrdiff_t)i * sa])
#define ELEM_B (b[(ptrdiff_t)i * sb])
#define ELEM_D (d[i])

/* Writes steps 0 and 1 as constants, so that the compiler vectorises these loops. */
#define ELEM_STEPS(row_, sa_, sb_, ...)                                                            \
    do {                                                                                           \
        if ((sa_) == 1 && (sb_) == 1)                                                              \
            row_(__VA_ARGS__, 1, 1);                                                               \
        else if ((sa_) == 1 && (sb_) == 0)                                                         \
            row_(__VA_ARGS__, 1, 0);                                                               \
        else if ((sa_) == 0 && (sb_) == 1)                                                         \
            row_(__VA_ARGS__, 0, 1);                                                               \
        else                                                                                       \
            row_(__VA_ARGS__, sa_, sb_);                                                           \
    } while (0)

/* elem_fwd_fn name_: y = expr_, operands of type_, result of out_type_. For integers that may
 * overflow, use an unsigned type_, which wraps. */
#define ELEM_FWD_TO(name_, type_, out_type_, expr_)                                                \
    INLINED void name_##_row(size_t n, const type_ *a, const type_ *b, out_type_ *y,             \
                               ptrdiff_t sa, ptrdiff_t sb)                                         \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        (void)a, (void)b, (void)sa, (void)sb;                                                      \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = (out_type_)(expr_);                                                             \
    }                                                                                              \
    CLONES static void name_(const struct elem_tile *t, const void *const *in, void *vy)        \
    {                                                                                              \
        const ptrdiff_t sa = t->at[0].step, sb = t->at[1].step;                                    \
        const type_ *a = in[0], *b = in[1];                                                        \
        out_type_ *y = vy;                                                                         \
        size_t r;                                                                                  \
                                                                                                   \
        for (r = 0; r < t->rows; r++, a += t->at[0].row, b += t->at[1].row, y += t->n)             \
            ELEM_STEPS(name_##_row, sa, sb, t->n, a, b, y);                                        \
    }
#define ELEM_FWD(name_, type_, expr_) ELEM_FWD_TO(name_, type_, type_, expr_)

/* elem_bwd_fn name_: the gradient of operand k_ (0: a, 1: b) is expr_. */
#define ELEM_BWD(name_, k_, expr_)                                                                 \
    INLINED void name_##_row(enum elem_into into, size_t n, const float *d, const float *a,      \
                               const float *b, float *g, double *sum, ptrdiff_t sa, ptrdiff_t sb)  \
    {                                                                                              \
        const ptrdiff_t sg = (k_) == 0 ? sa : sb;                                                  \
        size_t i = 0;                                                                              \
                                                                                                   \
        (void)a, (void)b, (void)sa, (void)sb, (void)d;                                             \
        if (into == ELEM_SET) {                                                                    \
            OP_EACH                                                                                \
            for (i = 0; i < n; i++)                                                                \
                g[i] = (expr_);                                                                    \
        } else if (into == ELEM_ADD) {                                                             \
            OP_EACH                                                                                \
            for (i = 0; i < n; i++)                                                                \
                g[i] += (expr_);                                                                   \
        } else if (sg == 0) {                                                                      \
            op_simd lanes = { 0 };                                                                \
                                                                                                   \
            while (i + OP_SIMD_LANES <= n) {                                                            \
                op_simd e = { 0 };                                                                \
                size_t k;                                                                          \
                                                                                                   \
                for (k = 0; k < OP_SIMD_LANES; k++, i++)                                                \
                    e[k] = (double)(expr_);                                                        \
                lanes += e;                                                                        \
            }                                                                                      \
            *sum += op_simd_total(&lanes);                                                        \
            for (; i < n; i++)                                                                     \
                *sum += (double)(expr_);                                                           \
        } else {                                                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < n; i++)                                                                \
                sum[(ptrdiff_t)i * sg] += (double)(expr_);                                         \
        }                                                                                          \
    }                                                                                              \
    CLONES static void name_(const struct elem_tile *t, enum elem_into into, const float *d,    \
                                const void *const *in, float *g, double *sum)                      \
    {                                                                                              \
        const ptrdiff_t sa = t->at[0].step, sb = t->at[1].step, rg = t->at[k_].row;                \
        const float *a = in[0], *b = in[1];                                                        \
        size_t r;                                                                                  \
                                                                                                   \
        for (r = 0; r < t->rows; r++, a += t->at[0].row, b += t->at[1].row, d += t->n) {           \
            if (into == ELEM_SUM) {                                                                \
                ELEM_STEPS(name_##_row, sa, sb, ELEM_SUM, t->n, d, a, b, NULL, sum);               \
                sum += rg;                                                                         \
            } else if (into == ELEM_SET) {                                                         \
                ELEM_STEPS(name_##_row, sa, sb, ELEM_SET, t->n, d, a, b, g, NULL);                 \
                g += t->n;                                                                         \
            } else {                                                                               \
                ELEM_STEPS(name_##_row, sa, sb, ELEM_ADD, t->n, d, a, b, g, NULL);                 \
                g += t->n;                                                                         \
            }                                                                                      \
        }                                                                                          \
    }

/* The functions of a row. The op's file defines `static const struct elem_kernels kernels`. */
#define ELEM_ROW(op_)                                                                              \
    static int op_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        return elem_infer(f, &kernels, err);                                                       \
    }                                                                                              \
    static int op_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return elem_fwd(c, &kernels);                                                              \
    }                                                                                              \
    static int op_##_bwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return elem_bwd(c, &kernels);                                                              \
    }

/* The row op_<id_> of two operands without a gradient. Its file defines `static const struct
 * elem_kernels <id_>_kernels` and includes stdlib.h. in_place_: as op_def.in_place. */
#define ELEM_ROW_OF_TWO(id_, name_, since_, in_place_)                                             \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        return elem_infer(f, &id_##_kernels, err);                                                 \
    }                                                                                              \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return elem_fwd(c, &id_##_kernels);                                                        \
    }                                                                                              \
    const struct op_def op_##id_ = {                                                               \
        .name = (name_),                                                                           \
        .since = (since_),                                                                         \
        .n_in = { 2, 2 },                                                                          \
        .n_out = { 1, 1 },                                                                         \
        .infer = id_##_infer,                                                                      \
        .in_place = (in_place_),                                                                   \
        .layout = OP_LAYOUT_ANY,                                                                   \
        .cpu = { elem_plan, id_##_fwd, NULL, free },                                               \
    };

#endif
