#include "op/half.h"
#include "op/op_priv.h"

enum { ROWS = 64, COLS = 128, LANES = 16, SPAN = 4096 };

CLONES static void scale(float *dst, const float *src, size_t n, float alpha)
{
    size_t i;

    for (i = 0; i < n; i++)
        dst[i] = alpha * src[i];
}

CLONES static void scale_add(float *dst, const float *src, size_t n, float alpha)
{
    size_t i;

    for (i = 0; i < n; i++)
        dst[i] += alpha * src[i];
}

void op_store(float *dst, const float *src, size_t n, float alpha, bool add)
{
    (add ? scale_add : scale)(dst, src, n, alpha);
}

CLONES static void scale_half(uint16_t *dst, const uint16_t *src, size_t n, float alpha)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        dst[i] = float_to_bfloat16(alpha * float_of_bfloat16(src[i]));
}

CLONES static void scale_half_add(uint16_t *dst, const uint16_t *src, size_t n, float alpha)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        dst[i] = float_to_bfloat16(float_of_bfloat16(dst[i]) + alpha * float_of_bfloat16(src[i]));
}

void op_store_as(const struct tensor *dst, const void *src, size_t n, float alpha, bool add)
{
    if (op_is_half(dst))
        (add ? scale_half_add : scale_half)(dst->data, src, n, alpha);
    else
        op_store(dst->data, src, n, alpha, add);
}

static void store(float *out, double value, bool add)
{
    *out = add ? *out + (float)value : (float)value;
}

/* SUM_ROWS defines the functions for one type. name_add sums rows of `w` elements, `step` apart. */
#define SUM_ROWS(name_, type_, load_)                                                              \
    CLONES static void name_##_add(const type_ *x, size_t rows, size_t step, size_t w,             \
                                   float *restrict part)                                           \
    {                                                                                              \
        size_t r, j;                                                                               \
                                                                                                   \
        memset(part, 0, w * sizeof(*part));                                                        \
        for (r = 0; r < rows; r++)                                                                 \
            for (j = 0; j < w; j++)                                                                \
                part[j] += load_(x[r * step + j]);                                                 \
    }                                                                                              \
    void name_(const type_ *x, size_t rows, size_t cols, float alpha, float *out, bool add)        \
    {                                                                                              \
        size_t at, r, j;                                                                           \
                                                                                                   \
        for (at = 0; at < cols; at += COLS) { /* the sums of a strip fit the L1 cache */    \
            size_t w = cols - at < COLS ? cols - at : COLS;                                        \
            double total[COLS] = { 0 };                                                            \
            float part[COLS];                                                                      \
                                                                                                   \
            for (r = 0; r < rows; r += ROWS) {                                                     \
                name_##_add(x + r * cols + at, rows - r < ROWS ? rows - r : ROWS, cols, w, part);  \
                for (j = 0; j < w; j++)                                                            \
                    total[j] += (double)part[j];                                                   \
            }                                                                                      \
            for (j = 0; j < w; j++)                                                                \
                store(out + at + j, (double)alpha * total[j], add);                                \
        }                                                                                          \
    }
SUM_ROWS(op_sum_rows, float, )
SUM_ROWS(op_sum_rows_half, uint16_t, float_of_bfloat16)

CLONES static float sum_span(const float *x, size_t n)
{
    float lane[LANES] = { 0 };
    size_t whole = n / LANES * LANES, i, j;

    for (i = 0; i < whole; i += LANES)
        for (j = 0; j < LANES; j++)
            lane[j] += x[i + j];
    for (j = 0; whole + j < n; j++)
        lane[j] += x[whole + j];
    for (i = LANES / 2; i > 0; i /= 2)
        for (j = 0; j < i; j++)
            lane[j] += lane[i + j];
    return lane[0];
}

void op_sum_cols(const float *x, size_t rows, size_t cols, float alpha, float *out, bool add)
{
    size_t r, at;

    for (r = 0; r < rows; r++, x += cols) {
        double total = 0;

        for (at = 0; at < cols; at += SPAN)
            total += (double)sum_span(x + at, cols - at < SPAN ? cols - at : SPAN);
        store(out + r, (double)alpha * total, add);
    }
}

void op_bwd_zero(const struct op_call *c)
{
    uint32_t i;

    for (i = 0; i < c->n_in; i++)
        if (c->din[i] != NULL && !op_adds(c, i))
            memset(c->din[i]->data, 0, tensor_bytes(c->din[i]));
}

void op_din_wide(const struct op_call *c, uint32_t i, const double *value, size_t n)
{
    float *to = i < c->n_in && c->din[i] != NULL ? c->din[i]->data : NULL;
    bool add = op_adds(c, i);
    size_t k;

    for (k = 0; k < n && to != NULL; k++)
        to[k] = add ? to[k] + (float)value[k] : (float)value[k];
}
