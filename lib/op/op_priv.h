/* op_priv.h - helpers shared by the CPU kernels of several families.
 *
 * Reproducibility: see op.h. A sum of floats uses a fixed number of lanes, in an order that depends
 * only on the shape. */
#ifndef OP_OP_PRIV_H
#define OP_OP_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clones.h"
#include "op/op.h"

/* Precedes a loop whose iteration i reads and writes only element i of its output. The output and
 * an input may be the same memory, but must not overlap otherwise. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* -O1 does not vectorise; ignore the warning */
#define OP_EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define OP_EACH _Pragma("GCC ivdep")
#endif

/* Alignment, in bytes, of the parts of a save or scratch area. */
enum { OP_ALIGN = 64 };
static inline size_t op_round(size_t bytes)
{
    return (bytes + OP_ALIGN - 1) / OP_ALIGN * OP_ALIGN;
}

static inline void *op_at(void *area, size_t offset) /* area may be NULL if its size is 0 */
{
    return offset > 0 ? (char *)area + offset : area;
}

static inline size_t op_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* dst = alpha * src, or dst += alpha * src. dst may be src. */
void op_store(float *dst, const float *src, size_t n, float alpha, bool add);
/* Stores the first n elements of a tensor, float32 or bfloat16, as op_store() does; src has the type of dst. */
void op_store_as(const struct tensor *dst, const void *src, size_t n, float alpha, bool add);
/* x [rows, cols] -> out [cols]: alpha times the sum over the rows, stored or added. Blocks of 64
 * rows are summed in float32, and the block sums in double. */
void op_sum_rows(const float *x, size_t rows, size_t cols, float alpha, float *out, bool add);
void op_sum_rows_half(const uint16_t *x, size_t rows, size_t cols, float alpha, float *out,
                      bool add); /* x is bfloat16 */
/* x [rows, cols] -> out [rows]: alpha times the sum of each row, stored or added. */
void op_sum_cols(const float *x, size_t rows, size_t cols, float alpha, float *out, bool add);

/* Called by infer after it has set the shape of output 0. Errors: ERR_INPUT if the size in bytes
 * overflows. */
int op_check_size(const struct op_infer *f, struct err *err);

/* Fills order[rank] with the axes of t in memory order, outermost first. */
void op_memory_order(const struct tensor *t, uint32_t *order);
/* Fills step[rank] with the stride of each axis of t, in elements, according to its layout. */
void op_strides(const struct tensor *t, ptrdiff_t *step);

/* Normalises an ONNX axis to 0 .. rank - 1; a negative axis counts from the end. Errors: ERR_INPUT
 * if it is out of range. */
int op_axis(const struct op_infer *f, int64_t *axis, uint32_t rank, struct err *err);
/* Reads input i, a constant scalar or list of int64 or int32. *values belongs to the graph or to
 * the input; an absent input gives *n = 0. Errors: ERR_INPUT (type, rank), ERR_UNSUPPORTED (not a
 * constant), ERR_NOMEM. */
int op_const_ints(const struct op_infer *f, uint32_t i, const int64_t **values, size_t *n,
                  struct err *err);

/* Reads a list of axes of a tensor with `rank` dimensions: from input i (a constant) if present,
 * else from the attribute (attr NULL: no attribute). Sets bit k of *set for each axis k, and *given
 * to true if the list is present and not empty. Errors: as op_const_ints(); ERR_INPUT for an
 * invalid or repeated axis. */
int op_axes(const struct op_infer *f, uint32_t i, const char *attr, uint32_t rank, uint32_t *set,
            bool *given, struct err *err);
/* Returns a tensor attribute in *out; NULL if it is absent. Errors: ERR_INPUT if its type is
 * wrong. */
int op_attr_tensor(const struct op_infer *f, const char *name, const struct tensor **out,
                   struct err *err);

/* Returns true if the gradient of input i is accumulated; false from input 31 on. */
static inline bool op_adds(const struct op_call *c, uint32_t i)
{
    return i < 31 && (c->din_add & OP_IN(i)) != 0;
}

/* Returns true if calls will request the gradient of input i. */
static inline bool op_wants(const struct op_plan *p, uint32_t i)
{
    return p->training && (p->want_din & OP_IN(i < 31 ? i : 31)) != 0;
}

/* The backward of a call without an incoming gradient: zeroes every din that is not accumulated. */
void op_bwd_zero(const struct op_call *c);
/* Stores or accumulates the gradient of input i, n elements that were summed in double. Does
 * nothing if input i is absent or its gradient is not requested. */
void op_din_wide(const struct op_call *c, uint32_t i, const double *value, size_t n);

/* For kernels that can only overwrite: op_din_at() returns the buffer for the gradient of input i,
 * which is din[i], or `spare` if the gradient is accumulated or not requested. Then op_din_done()
 * accumulates alpha * buffer into din[i], or scales din[i] by alpha. Both buffers have the type of
 * din[i]. */
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
        op_store_as(c->din[i], at, (size_t)tensor_elements(c->din[i]), alpha, add);
}

#endif
