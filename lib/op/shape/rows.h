/* rows.h - data taken as rows of `width` elements, and a list of rows, made of the indices of the
 * call: what Gather, GatherElements and GatherND take, and what ScatterElements and ScatterND put.
 *
 * The list is checked and made by forward, into op_call.save, where backward finds it. Rows are
 * taken or put in the order of the list, round by round, so sums over equal indices have the same
 * bits always. */
#ifndef OP_SHAPE_ROWS_H
#define OP_SHAPE_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "op/op.h"

enum rows_kind {
    ROWS_AXIS,     /* Gather: indices along one axis, any shape */
    ROWS_ELEMENTS, /* ...Elements: an index along one axis for each element */
    ROWS_ND,       /* ...ND: the last axis of the indices is a place along the first axes */
};

struct rows { /* op_def.param */
    enum rows_kind kind;
    size_t n;      /* in the list */
    size_t width;  /* elements of each */
    size_t rounds; /* how often the list is gone through: ROWS_AXIS once for each element before the
                      axis, else once */
    size_t stride; /* rows of the data from one round to the next */
    size_t per;    /* ROWS_ND: of the list for each element of the batch */
    int64_t axis;  /* ROWS_ELEMENTS, and for messages */
    uint32_t depth, batch; /* ROWS_ND: how many indices make a place, and batch axes before them */
    int64_t reduction;     /* of a scatter */
    int64_t padding;       /* Gather: no gradient reaches this row of the data; -1: none */
};

/* An attribute that graph/ gives to a Gather along axis 0; files cannot have it. */
#define ROWS_PADDING_ATTR "trainerd.padding_idx"

/* For infer: data is input 0, indices input 1 (int32 or int64). axis must be settled. */
int rows_infer_axis(struct op_infer *f, int64_t axis, struct err *err);
int rows_infer_elements(struct op_infer *f, int64_t axis, struct err *err);
int rows_infer_nd(struct op_infer *f, int64_t batch, struct err *err);

static inline size_t rows_bytes(const struct rows *r)
{
    return r->n * sizeof(int64_t);
}

/* ERR_INPUT: index `at` of the call is `value`, which is out of range. */
int rows_refuse(const struct op_call *c, const char *op, size_t at, int64_t value, struct err *err);
/* Fills list [n]. ERR_INPUT names the index that is out of range. */
int rows_list(const struct op_call *c, const char *op, int64_t *list, struct err *err);

#endif
