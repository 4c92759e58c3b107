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

/* The gradient at element i of dy and y. */
#define PASSED(dy_, y_, ceiling_) ((y_) <= 0.0f || (y_) >= (ceiling_) ? 0.0f : (dy_))

CLONES static void products(const float *x, const float *dy, size_t n, size_t group,
                            const float *mean, float *restrict s1, float *restrict s2)
{
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++) {
            s1[i] += dy[at + i];
            s2[i] += dy[at + i] * (x[at + i] - mean[i]);
        }
    }
}

CLONES static void products_clamped(const float *x, const struct columns_dy *dy, size_t n,
                                    size_t group, const float *mean, float *restrict s1,
                                    float *restrict s2)
{
    const float *d = dy->dy, *y = dy->y;
    float ceiling = dy->ceiling;
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++) {
            float passed = PASSED(d[at + i], y[at + i], ceiling);

            s1[i] += passed;
            s2[i] += passed * (x[at + i] - mean[i]);
        }
    }
}

void columns_products(const struct columns *k, const float *x, const struct columns_dy *dy,
                      size_t n, const float *mean, float *s1, float *s2)
{
    memset(s1, 0, k->group * sizeof(*s1));
    memset(s2, 0, k->group * sizeof(*s2));
    if (dy->y != NULL)
        products_clamped(x, dy, n, k->group, mean, s1, s2);
    else
        products(x, dy->dy, n, k->group, mean, s1, s2);
}

CLONES static void pass(const struct columns_dy *dy, size_t n, float *out)
{
    const float *d = dy->dy, *y = dy->y;
    float ceiling = dy->ceiling;
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        out[i] = PASSED(d[i], y[i], ceiling);
}

CLONES static void pass_add(const struct columns_dy *dy, size_t n, float *out)
{
    const float *d = dy->dy, *y = dy->y;
    float ceiling = dy->ceiling;
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        out[i] += PASSED(d[i], y[i], ceiling);
}

void columns_pass(const struct columns_dy *dy, size_t n, float *out, bool add)
{
    if (dy->y == NULL)
        op_put(out, dy->dy, n, 1.0f, add);
    else
        (add ? pass_add : pass)(dy, n, out);
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

/* One function for each kind of tail: y = (x - mean) a + b, then what tail_ makes of it. */
#define PUT(name_, tail_)                                                                          \
    CLONES static void name_(const float *x, float *y, size_t n, size_t group, const float *mean, \
                             const float *a, const float *b, const struct columns_tail *tail)      \
    {                                                                                              \
        const float *r = tail->residual;                                                           \
        float ceiling = tail->ceiling;                                                             \
        size_t at, i, w;                                                                           \
                                                                                                   \
        (void)r, (void)ceiling;                                                                    \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++) {                                                              \
                float v = (x[at + i] - mean[i]) * a[i] + b[i];                                     \
                                                                                                   \
                y[at + i] = (tail_);                                                               \
            }                                                                                      \
        }                                                                                          \
    }
#define CLAMPED(v_) ((v_) < 0.0f ? 0.0f : (v_) > ceiling ? ceiling : (v_))
PUT(put, v)
PUT(put_clamp, CLAMPED(v))
PUT(put_add, v + r[at + i])
PUT(put_add_clamp, CLAMPED(v + r[at + i]))

void columns_put(const struct columns *k, const float *x, float *y, size_t n, const float *mean,
                 const float *a, const float *b, const struct columns_tail *tail)
{
    static const struct columns_tail none = { .residual = NULL };
    const struct columns_tail *t = tail != NULL ? tail : &none;

    if (t->residual != NULL)
        (t->clamp ? put_add_clamp : put_add)(x, y, n, k->group, mean, a, b, t);
    else
        (t->clamp ? put_clamp : put)(x, y, n, k->group, mean, a, b, t);
}

#define GRADIENT(name_, to_, dy_)                                                                  \
    CLONES static void name_(const float *x, const struct columns_dy *dy, float *dx, size_t n,    \
                             size_t group, const struct columns_line *l)                           \
    {                                                                                              \
        const float *mean = l->mean, *a = l->a, *b = l->b, *k = l->k, *d = dy->dy, *y = dy->y;     \
        float ceiling = dy->ceiling;                                                               \
        size_t at, i, w;                                                                           \
                                                                                                   \
        (void)y, (void)ceiling;                                                                    \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++)                                                                \
                dx[at + i] to_ a[i] * (dy_)-b[i] - (x[at + i] - mean[i]) * k[i];                   \
        }                                                                                          \
    }
GRADIENT(gradient, =, d[at + i])
GRADIENT(gradient_add, +=, d[at + i])
GRADIENT(gradient_clamped, =, PASSED(d[at + i], y[at + i], ceiling))
GRADIENT(gradient_clamped_add, +=, PASSED(d[at + i], y[at + i], ceiling))

void columns_gradient(const struct columns *k, const float *x, const struct columns_dy *dy,
                      float *dx, size_t n, const struct columns_line *l, bool add)
{
    if (dy->y != NULL)
        (add ? gradient_clamped_add : gradient_clamped)(x, dy, dx, n, k->group, l);
    else
        (add ? gradient_add : gradient)(x, dy, dx, n, k->group, l);
}
