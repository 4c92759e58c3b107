/* contract.c - see contract.h. One of two inner loops is used: along the last kept axis, with a
 * block of adjacent sums, or, if strides are shorter along it, along the last summed axis. */
#include "op/gemm/contract.h"

#include <stdlib.h>

#include "base/check.h"
#include "op/simd.h"
#include "op/op_priv.h"

enum { SUMS = 128 };

void contract_add_axis(struct contract *k, size_t size, ptrdiff_t x, ptrdiff_t y, ptrdiff_t out)
{
    struct contract_axis axis = { size, x, y, out };

    CHECK(k->n_kept + k->n_summed < CONTRACT_AXES);
    if (size == 1)
        return;
    if (out != 0) {
        k->is_empty = k->is_empty || size == 0;
        k->kept[k->n_kept++] = axis;
    } else {
        k->is_zero = k->is_zero || size == 0;
        k->summed[k->n_summed++] = axis;
    }
}

/* Order of axes: longer strides first, in out if the axis is kept, else in x and y. */
static bool is_outer(const struct contract_axis *a, const struct contract_axis *b)
{
    if (a->out != b->out)
        return a->out > b->out;
    return a->x + a->y > b->x + b->y;
}

static uint32_t settle(struct contract_axis *axis, uint32_t count)
{
    uint32_t i, j, n = 0;

    for (i = 1; i < count; i++)
        for (j = i; j > 0 && is_outer(&axis[j], &axis[j - 1]); j--) {
            struct contract_axis a = axis[j];

            axis[j] = axis[j - 1];
            axis[j - 1] = a;
        }
    for (i = 0; i < count; i++) {
        struct contract_axis *last = n > 0 ? &axis[n - 1] : NULL, next = axis[i];
        ptrdiff_t size = (ptrdiff_t)next.size;

        if (last != NULL && last->x == size * next.x && last->y == size * next.y &&
            last->out == size * next.out) {
            next.size *= last->size;
            *last = next;
        } else {
            axis[n++] = next;
        }
    }
    return n;
}

void contract_finish(struct contract *k)
{
    k->n_kept = k->is_empty ? 0 : settle(k->kept, k->n_kept);
    k->n_summed = k->is_zero ? 0 : settle(k->summed, k->n_summed);
}

/* ---- inner loops ---- */

/* sum[j] += x[j] y[j] */
CLONES static void add_products(double *restrict sum, const float *x, ptrdiff_t xs, const float *y,
                                ptrdiff_t ys, size_t n)
{
    size_t j;

    if (xs == 1 && ys == 1)
        for (j = 0; j < n; j++)
            sum[j] += (double)x[j] * (double)y[j];
    else if (xs == 1 && ys == 0)
        for (j = 0; j < n; j++)
            sum[j] += (double)x[j] * (double)*y;
    else if (xs == 0 && ys == 1)
        for (j = 0; j < n; j++)
            sum[j] += (double)*x * (double)y[j];
    else
        for (j = 0; j < n; j++)
            sum[j] += (double)x[(ptrdiff_t)j * xs] * (double)y[(ptrdiff_t)j * ys];
}

CLONES static double dot(const float *x, ptrdiff_t xs, const float *y, ptrdiff_t ys, size_t n)
{
    op_simd lanes = { 0 };
    double rest = 0;
    size_t i = 0, j;

    for (; i + OP_SIMD_LANES <= n; i += OP_SIMD_LANES) {
        op_simd a, b;

        for (j = 0; j < OP_SIMD_LANES; j++) {
            a[j] = (double)x[(ptrdiff_t)(i + j) * xs];
            b[j] = (double)y[(ptrdiff_t)(i + j) * ys];
        }
        lanes += a * b;
    }
    for (; i < n; i++)
        rest += (double)x[(ptrdiff_t)i * xs] * (double)y[(ptrdiff_t)i * ys];
    return op_simd_total(&lanes) + rest;
}

/* ---- iteration ---- */

struct place {
    const float *x, *y;
    float *out;
};

/* Advances the index over `n` axes and the position `at`; false: back at the first index. */
static bool next(const struct contract_axis *axis, uint32_t n, size_t *index, struct place *at)
{
    uint32_t k;

    for (k = n; k-- > 0;) {
        const struct contract_axis *a = &axis[k];

        at->x += a->x;
        at->y += a->y;
        at->out += a->out;
        if (++index[k] < a->size)
            return true;
        index[k] = 0;
        at->x -= (ptrdiff_t)a->size * a->x;
        at->y -= (ptrdiff_t)a->size * a->y;
        at->out -= (ptrdiff_t)a->size * a->out;
    }
    return false;
}

static void store(float *out, ptrdiff_t step, const double *sum, size_t n, bool add)
{
    size_t j;

    for (j = 0; j < n; j++, out += step)
        *out = add ? *out + (float)sum[j] : (float)sum[j];
}

/* Computes one line of out along the axis `a`, a block at a time. */
static void line(const struct contract *k, const struct contract_axis *a, struct place at, bool add)
{
    size_t from, m;

    for (from = 0; from < a->size; from += m) {
        struct place p = { at.x + (ptrdiff_t)from * a->x, at.y + (ptrdiff_t)from * a->y, at.out };
        size_t index[CONTRACT_AXES] = { 0 };
        double sum[SUMS] = { 0 };

        m = a->size - from < SUMS ? a->size - from : SUMS;
        do {
            add_products(sum, p.x, a->x, p.y, a->y, m);
        } while (next(k->summed, k->n_summed, index, &p));
        store(at.out + (ptrdiff_t)from * a->out, a->out, sum, m, add);
    }
}

/* Computes one element of out; the last summed axis is the inner loop. */
static void element(const struct contract *k, struct place at, bool add)
{
    const struct contract_axis *s = &k->summed[k->n_summed - 1];
    size_t index[CONTRACT_AXES] = { 0 };
    struct place p = at;
    double sum = 0;

    do {
        sum += dot(p.x, s->x, p.y, s->y, s->size);
    } while (next(k->summed, k->n_summed - 1, index, &p));
    store(at.out, 1, &sum, 1, add);
}

void contract_run(const struct contract *k, const float *x, const float *y, float *out, bool add)
{
    static const float one = 1.0f;
    static const struct contract_axis single = { 1, 0, 0, 1 };
    const struct contract_axis *a = k->n_kept > 0 ? &k->kept[k->n_kept - 1] : &single;
    const struct contract_axis *s = k->n_summed > 0 ? &k->summed[k->n_summed - 1] : NULL;
    uint32_t outer = k->n_kept > 0 ? k->n_kept - 1 : 0;
    bool by_element = s != NULL && (k->n_kept == 0 || s->x + s->y < a->x + a->y);
    size_t index[CONTRACT_AXES] = { 0 };
    struct place at = { x, y != NULL ? y : &one, out };
    struct contract zeros;

    if (k->is_empty)
        return;
    if (k->is_zero) { /* equivalent to one product of zero */
        static const float zero;

        zeros = *k;
        zeros.n_summed = 0;
        zeros.is_zero = false;
        for (outer = 0; outer < zeros.n_kept; outer++)
            zeros.kept[outer].x = zeros.kept[outer].y = 0;
        contract_run(&zeros, &zero, &zero, out, add);
        return;
    }
    do {
        if (by_element) {
            size_t inner[CONTRACT_AXES] = { 0 };
            struct place e = at;

            do {
                element(k, e, add);
            } while (next(a, k->n_kept > 0 ? 1 : 0, inner, &e));
        } else {
            line(k, a, at, add);
        }
    } while (next(k->kept, outer, index, &at));
}
