/* op_priv.h - what the kernels of several families share.
 *
 * Bits: every loop here and in the families gives the same result on every instruction set. Element
 * by element that is free (no contraction to FMA, see the Makefile); a sum over floats runs over a
 * fixed number of lanes in an order that depends on the shape alone. */
#ifndef OP_OP_PRIV_H
#define OP_OP_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clones.h"
#include "op/op.h"


/* Helpers that must become part of the copy they are called from. */
#define OP_INLINE static inline __attribute__((always_inline))

/* Before a loop whose round i touches only element i of what it writes: output and input may be
 * the same memory, but may not overlap otherwise. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* at -O1 nothing is vectorised, which is fine */
#define OP_EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define OP_EACH _Pragma("GCC ivdep")
#endif

/* Parts of a save or scratch area start at multiples of this many bytes. */
enum { OP_ALIGN = 64 };
static inline size_t op_round(size_t bytes)
{
    return (bytes + OP_ALIGN - 1) / OP_ALIGN * OP_ALIGN;
}

static inline void *op_at(void *area,
                          size_t offset) /* area may be NULL where nothing is asked for */
{
    return offset > 0 ? (char *)area + offset : area;
}

static inline size_t op_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* dst = alpha * src, or dst += alpha * src. dst may be src. */
void op_put(float *dst, const float *src, size_t n, float alpha, bool add);
/* The same to the first n elements of a tensor, float32 or bfloat16; src has the same type. */
void op_put_as(const struct tensor *dst, const void *src, size_t n, float alpha, bool add);
/* x [rows, cols] -> out [cols]: alpha times the sum over the rows, stored or added. Partial sums
 * of 64 rows are floats, their total is double. */
void op_sum_rows(const float *x, size_t rows, size_t cols, float alpha, float *out, bool add);
void op_sum_rows_half(const uint16_t *x, size_t rows, size_t cols, float alpha, float *out,
                      bool add); /* of bfloat16 */
/* x [rows, cols] -> out [rows]: alpha times the sum of each row, stored or added. */
void op_sum_cols(const float *x, size_t rows, size_t cols, float alpha, float *out, bool add);

/* For infer, when the shape of output 0 is set: refuses one whose bytes cannot be counted. */
int op_fits(const struct op_infer *f, struct err *err);

/* The axes of t as they lie in memory, outermost first. */
void op_memory_order(const struct tensor *t, uint32_t *order);
/* Elements from one index to the next along each axis of t, as its layout has it. */
void op_steps(const struct tensor *t, ptrdiff_t *step);

/* ONNX's way to name an axis: negative counts from the end. Settles *axis to 0 .. rank - 1. */
int op_axis(const struct op_infer *f, int64_t *axis, uint32_t rank, struct err *err);
/* Input i: a list (or one number) of int64 or int32 that the model knows at load. *values is the
 * graph's memory or the input's own; *n = 0 when absent. */
int op_const_ints(const struct op_infer *f, uint32_t i, const int64_t **values, size_t *n,
                  struct err *err);

/* A list of axes: input i if there (a constant), else the attribute; `rank` is what they index.
 * Each is settled to 0 .. rank - 1 and occurs once: bit k of *set. *given: whether there is a list
 * at all, and it is not empty. */
int op_axes(const struct op_infer *f, uint32_t i, const char *attr, uint32_t rank, uint32_t *set,
            bool *given, struct err *err);
/* *out NULL: the node does not have it. */
int op_attr_tensor(const struct op_infer *f, const char *name, const struct tensor **out,
                   struct err *err);

/* Is the gradient of input i to be added to what is there? From input 31 on never. */
static inline bool op_adds(const struct op_call *c, uint32_t i)
{
    return i < 31 && (c->din_add & OP_IN(i)) != 0;
}

/* Will the gradient of input i be asked for? */
static inline bool op_wants(const struct op_plan *p, uint32_t i)
{
    return p->training && (p->want_din & OP_IN(i < 31 ? i : 31)) != 0;
}

/* The backward of a call that no gradient reaches: zero wherever din is not to be added to. */
void op_bwd_zero(const struct op_call *c);
/* Stores or adds the gradient of input i [n], summed in double; it need not be there or wanted. */
void op_din_wide(const struct op_call *c, uint32_t i, const double *value, size_t n);

/* A kernel that can only overwrite computes the gradient of input i at op_din_at(): in din[i], or
 * in `spare` when it is to be added or nobody wants it. op_din_done() brings alpha times it home.
 * Both are of the type of din[i]. */
static inline void *op_din_at(const struct op_call *c, uint32_t i, void *spare)
{
    if (i >= c->n_in || c->din[i] == NULL || (c->din_add & OP_IN(i)) != 0)
        return spare;
    return c->din[i]->data;
}

static inline void op_din_done(const struct op_call *c, uint32_t i, const void *at, float alpha)
{
    bool add = (c->din_add & OP_IN(i)) != 0;

    if (i < c->n_in && c->din[i] != NULL && (add || alpha != 1.0f))
        op_put_as(c->din[i], at, (size_t)tensor_elements(c->din[i]), alpha, add);
}

#endif
