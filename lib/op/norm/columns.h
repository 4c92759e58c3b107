/* columns.h - loops over x [rows, c] with values per column: used by batch normalisation of
 * channels-last tensors, and by group normalisation for each sample.
 *
 * Vectors: several rows form a group, so that the innermost loop is long even if there are few
 * columns. Element i of a group belongs to column i % c, and values per column are repeated over
 * the group (columns_repeat). No loop sums across a vector; columns_fold() combines the elements of
 * a group at the end.
 *
 * Sums: callers split the rows into chunks that stay in cache. Sums within a chunk are float (at
 * most a few hundred terms), sums over chunks double. The order depends only on the shape.
 *
 * n is a number of elements, of whole rows. The sums s1, s2 [group] start at 0 in each call. */
#ifndef OP_NORM_COLUMNS_H
#define OP_NORM_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>

struct columns {
    size_t c;
    size_t group; /* elements: a multiple of c */
    size_t chunk; /* elements: a multiple of group */
    bool is_half; /* x, y, the residual and their gradients are bfloat16, else float32; all other
                     values are float32 */
};

struct columns columns_of(size_t c, bool is_half);

/* s1 = sum of x */
void columns_sum(const struct columns *k, const void *x, size_t n, float *s1);
/* s1 = sum of x - mean, s2 = sum of its square */
void columns_deviation(const struct columns *k, const void *x, size_t n, const float *mean,
                       float *s1, float *s2);
/* The operations after y = (x - mean) a + b: adds a residual, then clamps the sum to 0 .. ceiling
 * (infinity: Relu). All fields 0: no operation. */
struct columns_tail {
    const void *residual; /* type of x; NULL: none */
    bool clamp;
    float ceiling;
};

/* An incoming gradient: 0 for elements that were clamped. */
struct columns_dy {
    const void *dy;
    const void *y; /* NULL: no clamp */
    float ceiling;
};

/* s1 = sum of dy, s2 = sum of dy (x - mean) */
void columns_products(const struct columns *k, const void *x, const struct columns_dy *dy, size_t n,
                      const float *mean, float *s1, float *s2);
/* out [n] = dy, or += dy */
void columns_pass(const struct columns *k, const struct columns_dy *dy, size_t n, void *out,
                  bool add);
/* Sums [group] floats to [c] doubles. */
void columns_fold(const struct columns *k, const float *s, double *out);
/* Repeats the first c floats over the whole group. */
void columns_repeat(const struct columns *k, float *v);

/* y = (x - mean) a + b, then `tail` (NULL: none); y may be x or the residual */
void columns_apply(const struct columns *k, const void *x, void *y, size_t n, const float *mean,
                   const float *a, const float *b, const struct columns_tail *tail);

struct columns_line { /* each [group] */
    const float *mean, *a, *b, *k;
};
/* dx = a dy - b - (x - mean) k, or += ; dx may be dy */
void columns_gradient(const struct columns *k, const void *x, const struct columns_dy *dy, void *dx,
                      size_t n, const struct columns_line *l, bool add);

#endif
