#include "op/norm/columns.h"

#include <string.h>

#include "op/op_priv.h"

enum { WIDTH = 128, CHUNK = 32768, CHUNK_ROWS = 8 /* at least */ };

struct columns columns_of(size_t c)
{
    struct columns k = { .c = c };

    k.group = c * (c < WIDTH ? WIDTH / c : 1);
    k.chunk = k.group * op_max(CHUNK / k.group, CHUNK_ROWS);
    return k;
}

CLONES static void sum(const float *x, size_t n, size_t group, float *restrict s1)
{
    size_t at, i, w;

    memset(s1, 0, group * sizeof(*s1));
    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++)
            s1[i] += x[at + i];
    }
}

void columns_sum(const struct columns *k, const float *x, size_t n, float *s1)
{
    sum(x, n, k->group, s1);
}

CLONES static void deviation(const float *x, size_t n, size_t group, const float *mean,
                             float *restrict s1, float *restrict s2)
{
    size_t at, i, w;

    memset(s1, 0, group * sizeof(*s1));
    memset(s2, 0, group * sizeof(*s2));
    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++) {
            float d = x[at + i] - mean[i];

            s1[i] += d;
            s2[i] += d * d;
        }
    }
}

void columns_deviation(const struct columns *k, const float *x, size_t n, const float *mean,
                       float *s1, float *s2)
{
    deviation(x, n, k->group, mean, s1, s2);
}

CLONES static void products(const float *x, const float *dy, size_t n, size_t group,
                            const float *mean, float *restrict s1, float *restrict s2)
{
    size_t at, i, w;

    memset(s1, 0, group * sizeof(*s1));
    memset(s2, 0, group * sizeof(*s2));
    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++) {
            s1[i] += dy[at + i];
            s2[i] += dy[at + i] * (x[at + i] - mean[i]);
        }
    }
}

void columns_products(const struct columns *k, const float *x, const float *dy, size_t n,
                      const float *mean, float *s1, float *s2)
{
    products(x, dy, n, k->group, mean, s1, s2);
}

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

CLONES static void put(const float *x, float *y, size_t n, size_t group, const float *mean,
                       const float *a, const float *b)
{
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        OP_EACH
        for (i = 0; i < w; i++)
            y[at + i] = (x[at + i] - mean[i]) * a[i] + b[i];
    }
}

void columns_put(const struct columns *k, const float *x, float *y, size_t n, const float *mean,
                 const float *a, const float *b)
{
    put(x, y, n, k->group, mean, a, b);
}

CLONES static void gradient(const float *x, const float *dy, float *dx, size_t n, size_t group,
                            const struct columns_line *l)
{
    const float *mean = l->mean, *a = l->a, *b = l->b, *k = l->k;
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        OP_EACH
        for (i = 0; i < w; i++)
            dx[at + i] = a[i] * dy[at + i] - b[i] - (x[at + i] - mean[i]) * k[i];
    }
}

CLONES static void gradient_add(const float *x, const float *dy, float *dx, size_t n,
                                size_t group, const struct columns_line *l)
{
    const float *mean = l->mean, *a = l->a, *b = l->b, *k = l->k;
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        OP_EACH
        for (i = 0; i < w; i++)
            dx[at + i] += a[i] * dy[at + i] - b[i] - (x[at + i] - mean[i]) * k[i];
    }
}

void columns_gradient(const struct columns *k, const float *x, const float *dy, float *dx, size_t n,
                      const struct columns_line *l, bool add)
{
    (add ? gradient_add : gradient)(x, dy, dx, n, k->group, l);
}
