/* resize_priv.h - what Resize settles at load, and the tables their kernels run on. */
#ifndef OP_RESIZE_PRIV_H
#define OP_RESIZE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/op.h"

enum { RESIZE_LONGEST = 1 << 22 /* elements along an axis: its tables have a row for each */ };

struct resize_axis {
    int64_t in, out;
    float scale;      /* 1 and not `cropped`: the axis stays as it is */
    float start, end; /* of the region of interest, 0 to 1 along the axis */
    bool cropped;
};

/* Where along the input element x of the output lies, in elements. */
typedef float resize_place_fn(const struct resize_axis *a, float x);
/* The element next to a place. */
typedef float resize_round_fn(float x);
/* Weight of a sample at distance x; a is cubic_coeff_a. */
typedef double resize_filter_fn(double x, double a);

struct resize_param {
    resize_place_fn *place;
    resize_filter_fn *filter; /* NULL: nearest */
    double radius;            /* of the filter, in samples */
    resize_round_fn *round;   /* for nearest */
    float cubic_a, outside;   /* outside: extrapolation_value */
    bool exclude_outside, antialias;
    struct resize_axis axis[TENSOR_MAX_RANK];
};

/* Output element j along an axis is the sum of w[row.w + t] times input element row.at + t,
 * t < row.n. No taps: it lies outside of the region of interest. */
struct resize_row {
    uint32_t at, n;
    size_t w;
};

struct resize_map {
    size_t n, n_w;
    struct resize_row *row; /* [n] */
    float *w;
};

/* On success the caller owns what map points to. ERR_NOMEM. */
int resize_map_make(const struct resize_param *p, const struct resize_axis *a,
                    struct resize_map *map, struct err *err);
/* The way back: row i lists the outputs that input i of n went into. */
int resize_map_turn(const struct resize_map *map, size_t n, struct resize_map *back,
                    struct err *err);
void resize_map_fini(struct resize_map *map); /* idempotent */

/* One pass: an item is [outer, in, inner] before it and [outer, out, inner] behind it. */
struct resize_pass {
    uint32_t place; /* of the axis, in memory */
    size_t outer, in, out, inner;
    struct resize_map there, back; /* back: only if a gradient is wanted */
};

struct resize_state { /* op_plan.state of the kernels for CPUs */
    size_t items, item_in, item_out; /* elements; no items: the output is empty */
    size_t between;                  /* the most elements of an item between two passes */
    uint32_t n;
    struct resize_pass pass[TENSOR_MAX_RANK];
};

/* Elements of the finished item, not of what pass i leaves, from one index of its axis to the next. */
static inline size_t resize_line(const struct resize_state *s, uint32_t i)
{
    size_t line = s->pass[i].inner;
    uint32_t later;

    for (later = i + 1; later < s->n; later++)
        if (s->pass[later].place > s->pass[i].place)
            line = line / s->pass[later].in * s->pass[later].out;
    return line;
}

int resize_cpu_plan(struct op_plan *p, struct err *err);
int resize_cpu_fwd(const struct op_call *c, struct err *err);
int resize_cpu_bwd(const struct op_call *c, struct err *err);
void resize_cpu_free(void *state);

#endif
