/* rows.h - views data as rows of `width` elements, with a list of row numbers computed from the
 * indices of a call: read by Gather, GatherElements and GatherND, and written by ScatterElements
 * and ScatterND.
 *
 * Forward validates the indices and stores the list in op_call.save for backward. Rows are read or
 * written in the order of the list, round by round, so sums over equal indices always have the same
 * bits. */
#ifndef OP_SHAPE_ROWS_H
#define OP_SHAPE_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "op/op.h"

enum rows_kind {
    ROWS_AXIS,     /* Gather: indices along one axis, any shape */
    ROWS_ELEMENTS, /* ...Elements: one index along one axis per element */
    ROWS_ND,       /* ...ND: the last axis of the indices is a position along the first axes */
};

struct rows { /* parameters of the op (op_def.param) */
    enum rows_kind kind;
    size_t n;      /* rows in the list */
    size_t width;  /* elements per row */
    size_t rounds; /* number of iterations over the list: ROWS_AXIS: once for each element before
                      the axis; else 1 */
    size_t stride; /* rows of the data between two rounds */
    size_t per;    /* ROWS_ND: rows of the list per element of the batch */
    int64_t axis;  /* ROWS_ELEMENTS, and for error messages */
    uint32_t depth, batch; /* ROWS_ND: number of indices of a position, and of batch axes before
                              them */
    int64_t reduction;     /* of a scatter: enum scatter_reduction */
    int64_t padding;       /* Gather: this row of the data has no gradient; -1: none */
};

/* An attribute that graph/ adds to a Gather along axis 0; files cannot have it. */
#define ROWS_PADDING_ATTR "trainerd.padding_idx"

/* infer functions: data is input 0, indices are input 1 (int32 or int64). axis must be normalised.
 * Errors: ERR_INPUT. */
int rows_infer_axis(struct op_infer *f, int64_t axis, struct err *err);
int rows_infer_elements(struct op_infer *f, int64_t axis, struct err *err);
int rows_infer_nd(struct op_infer *f, int64_t batch, struct err *err);

static inline size_t rows_bytes(const struct rows *r)
{
    return r->n * sizeof(int64_t);
}

/* Reports that index `at` of the call has the value `value`, which is out of range. Returns
 * ERR_INPUT. */
int rows_refuse(const struct op_call *c, const char *op, size_t at, int64_t value, struct err *err);
/* Computes list [n]. Errors: ERR_INPUT names the index that is out of range. */
int rows_list(const struct op_call *c, const char *op, int64_t *list, struct err *err);
/* Copies the indices of a Gather as they are: its rows are found by ids. */
void rows_list_ids(const struct op_call *c, int64_t *list);

#endif
