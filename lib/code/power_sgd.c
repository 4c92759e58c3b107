/* power_sgd.c - see power_sgd.h. */
#include "code/power_sgd.h"

#include <math.h>
#include <string.h>

#include "base/clones.h"
#include "base/rng.h"
#include "code/power_sgd_formula.h"

enum { PARTS = POWER_SGD_PARTS };

bool power_sgd_is_shorter(size_t rows, size_t cols, uint32_t rank)
{
    return rows * cols > rank * (rows + cols);
}

/* Returns the sum of products, in double. */
CLONES static double product(const float *a, const float *b, size_t n)
{
    double parts[PARTS] = { 0 };
    size_t whole = n / PARTS * PARTS;

    for (size_t i = 0; i < whole; i += PARTS)
        for (size_t k = 0; k < PARTS; k++)
            parts[k] += (double)a[i + k] * (double)b[i + k];
    for (size_t i = whole; i < n; i++)
        parts[i - whole] += (double)a[i] * (double)b[i];
    for (size_t half = PARTS / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            parts[k] += parts[k + half];
    return parts[0];
}

static double length(const float *x, size_t n)
{
    return sqrt(product(x, x, n));
}

CLONES static void divide(float *x, size_t n, double by)
{
    for (size_t i = 0; i < n; i++)
        x[i] = power_sgd_divide(x[i], by);
}

static void fill_randomly(const struct power_sgd *s, uint32_t row, float *x)
{
    const struct rng_key key = { .seed = s->seed,
                                 .step = s->number,
                                 .lane = row,
                                 .stream = POWER_SGD_STREAM };

    for (size_t i = 0; i < s->cols; i++)
        x[i] = power_sgd_random(rng_u32(&key, i));
}

void power_sgd_begin(const struct power_sgd *s, float *q)
{
    for (uint32_t k = 0; k < s->rank; k++, q += s->cols) {
        double norm = length(q, s->cols);

        if (power_sgd_is_zero(norm)) {
            fill_randomly(s, k, q);
            norm = length(q, s->cols);
        }
        divide(q, s->cols, norm);
    }
}

CLONES static float dot(const float *restrict a, const float *restrict b, size_t n)
{
    float parts[PARTS] = { 0 };
    size_t whole = n / PARTS * PARTS;

    for (size_t i = 0; i < whole; i += PARTS)
        for (size_t k = 0; k < PARTS; k++)
            parts[k] += a[i + k] * b[i + k];
    for (size_t i = whole; i < n; i++)
        parts[i - whole] += a[i] * b[i];
    for (size_t half = PARTS / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            parts[k] += parts[k + half];
    return parts[0];
}

void power_sgd_left(const struct power_sgd *s, const float *m, const float *q, float *p)
{
    for (size_t i = 0; i < s->rows; i++, m += s->cols)
        for (uint32_t k = 0; k < s->rank; k++)
            p[k * s->rows + i] = dot(m, q + k * s->cols, s->cols);
}

CLONES static void add_product(float *restrict y, const float *restrict x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i] * factor;
}

void power_sgd_orthogonalize(const struct power_sgd *s, float *p)
{
    for (uint32_t k = 0; k < s->rank; k++) {
        float *row = p + k * s->rows;
        double before = length(row, s->rows), after;

        for (uint32_t j = 0; j < k; j++)
            add_product(row, p + j * s->rows, s->rows,
                        -(float)product(p + j * s->rows, row, s->rows));
        after = length(row, s->rows);
        /* also a row of zeros; a row with NaN stays */
        if (power_sgd_is_dependent(before, after))
            memset(row, 0, s->rows * sizeof(*row));
        else
            divide(row, s->rows, after);
    }
}

void power_sgd_right(const struct power_sgd *s, const float *m, const float *p, float *q)
{
    memset(q, 0, s->rank * s->cols * sizeof(*q));
    for (size_t i = 0; i < s->rows; i++, m += s->cols)
        for (uint32_t k = 0; k < s->rank; k++)
            add_product(q + k * s->cols, m, s->cols, p[k * s->rows + i]);
}

void power_sgd_decode(const struct power_sgd *s, const float *p, const float *q, float *y)
{
    memset(y, 0, s->rows * s->cols * sizeof(*y));
    for (size_t i = 0; i < s->rows; i++, y += s->cols)
        for (uint32_t k = 0; k < s->rank; k++)
            add_product(y, q + k * s->cols, s->cols, p[k * s->rows + i]);
}

CLONES static void flush(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = code_flush(x[i]);
}

void power_sgd_subtract(const struct power_sgd *s, const float *p, const float *q, float *m)
{
    for (size_t i = 0; i < s->rows; i++, m += s->cols) {
        for (uint32_t k = 0; k < s->rank; k++)
            add_product(m, q + k * s->cols, s->cols, -p[k * s->rows + i]);
        flush(m, s->cols);
    }
}
