/* columns.h - x [rows, c] with something known about each column: what batch normalisation of
 * channels-last tensors does, and group normalisation sample by sample.
 *
 * Vectors. Several rows make a group, so that the innermost loop is long also for few columns:
 * element i of a group belongs to column i % c, and what is known per column is repeated over the
 * group (columns_repeat). No loop adds up across a vector; groups are folded at the end.
 *
 * Sums. Callers take the rows in chunks that stay in cache: in a chunk, float sums (of at most a
 * few hundred terms); between chunks, double. The order of everything depends on the shape alone.
 *
 * n is a number of floats, whole rows. The sums s1, s2 [group] start at 0 in each call. */
#ifndef OP_NORM_COLUMNS_H
#define OP_NORM_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>

struct columns {
    size_t c;
    size_t group; /* floats: a multiple of c */
    size_t chunk; /* floats: a multiple of group */
};

struct columns columns_of(size_t c);

/* s1 = sum of x */
void columns_sum(const struct columns *k, const float *x, size_t n, float *s1);
/* s1 = sum of x - mean, s2 = sum of its square */
void columns_deviation(const struct columns *k, const float *x, size_t n, const float *mean,
                       float *s1, float *s2);
/* What comes behind y = (x - mean) a + b: a residual is added, then the sum is held within 0 and
 * ceiling (infinity: Relu). Zeroed: nothing. */
struct columns_tail {
    const float *residual; /* as x; NULL: none */
    bool clamp;
    float ceiling;
};

/* A gradient that arrives behind a tail: where y was clamped it is 0. */
struct columns_dy {
    const float *dy;
    const float *y; /* NULL: not clamped */
    float ceiling;
};

/* s1 = sum of dy, s2 = sum of dy (x - mean) */
void columns_products(const struct columns *k, const float *x, const struct columns_dy *dy,
                      size_t n, const float *mean, float *s1, float *s2);
/* out [n] = dy, or added */
void columns_pass(const struct columns_dy *dy, size_t n, float *out, bool add);
/* [group] floats -> [c] doubles */
void columns_fold(const struct columns *k, const float *s, double *out);
/* The first c floats over the whole group. */
void columns_repeat(const struct columns *k, float *v);

/* y = (x - mean) a + b, and the tail (NULL: none); y may be x, or the residual */
void columns_put(const struct columns *k, const float *x, float *y, size_t n, const float *mean,
                 const float *a, const float *b, const struct columns_tail *tail);

struct columns_line { /* each [group] */
    const float *mean, *a, *b, *k;
};
/* dx = a dy - b - (x - mean) k, or added; dx may be dy */
void columns_gradient(const struct columns *k, const float *x, const struct columns_dy *dy,
                      float *dx, size_t n, const struct columns_line *l, bool add);

#endif
