#include "op/norm/columns.h"

#include <string.h>

#include "op/half.h"
#include "op/op_priv.h"

enum { WIDTH = 128, CHUNK = 32768, CHUNK_ROWS = 8 /* at least */ };

struct columns columns_of(size_t c, bool is_half)
{
    struct columns k = { .c = c, .is_half = is_half };

    k.group = c * (c < WIDTH ? WIDTH / c : 1);
    k.chunk = k.group * op_max(CHUNK / k.group, CHUNK_ROWS);
    return k;
}

/* ---- the loops, for either type ---- */

#define SAME(v_) (v_)
#define COLUMNS(name_, type_, load_, store_)                                                       \
    CLONES static void sum_##name_(const type_ *x, size_t n, size_t group, float *restrict s1)     \
    {                                                                                              \
        size_t at, i, w;                                                                           \
                                                                                                   \
        memset(s1, 0, group * sizeof(*s1));                                                        \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            for (i = 0; i < w; i++)                                                                \
                s1[i] += load_(x[at + i]);                                                         \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    CLONES static void deviation_##name_(const type_ *x, size_t n, size_t group,                   \
                                         const float *mean, float *restrict s1,                    \
                                         float *restrict s2)                                       \
    {                                                                                              \
        size_t at, i, w;                                                                           \
                                                                                                   \
        memset(s1, 0, group * sizeof(*s1));                                                        \
        memset(s2, 0, group * sizeof(*s2));                                                        \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            for (i = 0; i < w; i++) {                                                              \
                float d = load_(x[at + i]) - mean[i];                                              \
                                                                                                   \
                s1[i] += d;                                                                        \
                s2[i] += d * d;                                                                    \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    CLONES static void products_##name_(const type_ *x, const type_ *dy, size_t n, size_t group,   \
                                        const float *mean, float *restrict s1,                     \
                                        float *restrict s2)                                        \
    {                                                                                              \
        size_t at, i, w;                                                                           \
                                                                                                   \
        memset(s1, 0, group * sizeof(*s1));                                                        \
        memset(s2, 0, group * sizeof(*s2));                                                        \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            for (i = 0; i < w; i++) {                                                              \
                float d = load_(dy[at + i]);                                                       \
                                                                                                   \
                s1[i] += d;                                                                        \
                s2[i] += d * (load_(x[at + i]) - mean[i]);                                         \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    CLONES static void put_##name_(const type_ *x, type_ *y, size_t n, size_t group,               \
                                   const float *mean, const float *a, const float *b)              \
    {                                                                                              \
        size_t at, i, w;                                                                           \
                                                                                                   \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++)                                                                \
                y[at + i] = store_((load_(x[at + i]) - mean[i]) * a[i] + b[i]);                    \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    CLONES static void gradient_##name_(const type_ *x, const type_ *dy, type_ *dx, size_t n,      \
                                        size_t group, const struct columns_line *l)                \
    {                                                                                              \
        const float *mean = l->mean, *a = l->a, *b = l->b, *k = l->k;                              \
        size_t at, i, w;                                                                           \
                                                                                                   \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++)                                                                \
                dx[at + i] = store_(a[i] * load_(dy[at + i]) - b[i] -                              \
                                    (load_(x[at + i]) - mean[i]) * k[i]);                          \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    CLONES static void gradient_add_##name_(const type_ *x, const type_ *dy, type_ *dx, size_t n,  \
                                            size_t group, const struct columns_line *l)            \
    {                                                                                              \
        const float *mean = l->mean, *a = l->a, *b = l->b, *k = l->k;                              \
        size_t at, i, w;                                                                           \
                                                                                                   \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++)                                                                \
                dx[at + i] = store_(load_(dx[at + i]) +                                            \
                                    (a[i] * load_(dy[at + i]) - b[i] -                             \
                                     (load_(x[at + i]) - mean[i]) * k[i]));                        \
        }                                                                                          \
    }
COLUMNS(f32, float, SAME, SAME)
COLUMNS(half, uint16_t, op_half_load, op_half_store)

/* ---- which of the two ---- */

void columns_sum(const struct columns *k, const void *x, size_t n, float *s1)
{
    if (k->is_half)
        sum_half(x, n, k->group, s1);
    else
        sum_f32(x, n, k->group, s1);
}

void columns_deviation(const struct columns *k, const void *x, size_t n, const float *mean,
                       float *s1, float *s2)
{
    if (k->is_half)
        deviation_half(x, n, k->group, mean, s1, s2);
    else
        deviation_f32(x, n, k->group, mean, s1, s2);
}

void columns_products(const struct columns *k, const void *x, const void *dy, size_t n,
                      const float *mean, float *s1, float *s2)
{
    if (k->is_half)
        products_half(x, dy, n, k->group, mean, s1, s2);
    else
        products_f32(x, dy, n, k->group, mean, s1, s2);
}

void columns_put(const struct columns *k, const void *x, void *y, size_t n, const float *mean,
                 const float *a, const float *b)
{
    if (k->is_half)
        put_half(x, y, n, k->group, mean, a, b);
    else
        put_f32(x, y, n, k->group, mean, a, b);
}

void columns_gradient(const struct columns *k, const void *x, const void *dy, void *dx, size_t n,
                      const struct columns_line *l, bool add)
{
    if (k->is_half)
        (add ? gradient_add_half : gradient_half)(x, dy, dx, n, k->group, l);
    else
        (add ? gradient_add_f32 : gradient_f32)(x, dy, dx, n, k->group, l);
}

/* ---- columns ---- */

CLONES static void fold(const float *s, size_t group, size_t c, double *restrict out)
{
    size_t at, i;

    for (i = 0; i < c; i++)
        out[i] = (double)s[i];
    for (at = c; at < group; at += c)
        for (i = 0; i < c; i++)
            out[i] += (double)s[at + i];
}

void columns_fold(const struct columns *k, const float *s, double *out)
{
    fold(s, k->group, k->c, out);
}

void columns_repeat(const struct columns *k, float *v)
{
    size_t at;

    for (at = k->c; at < k->group; at += k->c)
        memcpy(v + at, v, k->c * sizeof(*v));
}
