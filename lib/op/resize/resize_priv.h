/* resize_priv.h - the parameters of Resize, set by infer, and the tables that its kernels use. */
#ifndef OP_RESIZE_PRIV_H
#define OP_RESIZE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/op.h"

enum { RESIZE_LONGEST = 1 << 22 /* maximum size of an axis: its tables have a row per element */ };

struct resize_axis {
    int64_t in, out;
    float scale;      /* 1 and not `cropped`: the axis is unchanged */
    float start, end; /* region of interest, 0 to 1 along the axis */
    bool cropped;
};

/* Returns the position in the input, in elements, of output element x. */
typedef float resize_place_fn(const struct resize_axis *a, float x);
/* Returns the element nearest to a position. */
typedef float resize_round_fn(float x);
/* Returns the weight of a sample at distance x; a is cubic_coeff_a. */
typedef double resize_filter_fn(double x, double a);

struct resize_param {
    resize_place_fn *place;
    resize_filter_fn *filter; /* NULL: nearest */
    double radius;            /* radius of the filter, in samples */
    resize_round_fn *round;   /* rounding of `nearest` */
    float cubic_a, outside;   /* outside: extrapolation_value */
    bool exclude_outside, antialias;
    struct resize_axis axis[TENSOR_MAX_RANK];
};

/* Output element j along an axis is the sum of w[row.w + t] times input element row.at + t, t <
 * row.n. n = 0: the position is outside of the region of interest. */
struct resize_row {
    uint32_t at, n;
    size_t w;
};

struct resize_map {
    size_t n, n_w;
    struct resize_row *row; /* [n] */
    float *w;
};

/* Computes the table of an axis. On success the caller owns the arrays of *map. Errors:
 * ERR_NOMEM. */
int resize_map_make(const struct resize_param *p, const struct resize_axis *a,
                    struct resize_map *map, struct err *err);
/* Computes the transposed table: row i lists the outputs that input i of n contributes to. Errors:
 * ERR_NOMEM. */
int resize_map_transpose(const struct resize_map *map, size_t n, struct resize_map *bwd,
                         struct err *err);
void resize_map_fini(struct resize_map *map); /* idempotent */

/* One pass: [outer, in, inner] of an item becomes [outer, out, inner]. */
struct resize_pass {
    uint32_t place; /* index of the axis in memory order */
    size_t outer, in, out, inner;
    struct resize_map fwd, bwd;    /* bwd: only if a gradient is requested */
};

struct resize_state { /* state of the plan of the CPU kernels (op_plan.state) */
    size_t items, item_in, item_out; /* elements; 0 items: the output is empty */
    size_t between;                  /* maximum elements of an item between two passes */
    uint32_t n;
    struct resize_pass pass[TENSOR_MAX_RANK];
};

/* Stride of the axis of pass i in the finished item, in elements. */
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
