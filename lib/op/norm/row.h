/* row.h - statistics and sums of one row of numbers, shared by layer, group and instance
 * normalisation. With d = x - mean and r = rstd:
 *   y = d r scale + bias
 *   dx = r (g - sum g / n - d r^2 sum g d / n),  g = dy scale
 *
 * Sums: 64 partial sums in float over at most 4096 elements, totals in double. The variance is
 * computed about a first mean, and the same pass corrects it: a mean far from 0 loses no
 * precision. */
#ifndef OP_NORM_ROW_H
#define OP_NORM_ROW_H

#include <stdbool.h>
#include <stddef.h>

struct row_stat {
    float mean;
    float rstd; /* 1 / sqrt(population variance + epsilon) */
};

/* n >= 1. rms: mean 0, and the variance about 0. */
struct row_stat row_measure(const float *x, size_t n, double epsilon, bool rms);

/* *sum = sum of g, *product = sum of g (x - mean), where g = dy scale; scale NULL: 1. */
void row_products(const float *x, const float *dy, const float *scale, size_t n, float mean,
                  double *sum, double *product);

#endif
