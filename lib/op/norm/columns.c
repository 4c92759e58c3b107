#include "op/norm/columns.h"

#include <string.h>

#include "op/half.h"
#include "op/op_priv.h"

enum { WIDTH = 128, CHUNK = 32768, CHUNK_ROWS = 8 /* CHUNK_ROWS: minimum */ };

struct columns columns_of(size_t c, bool is_half)
{
    struct columns k = { .c = c, .is_half = is_half };

    k.group = c * (c < WIDTH ? WIDTH / c : 1);
    k.chunk = k.group * op_max(CHUNK / k.group, CHUNK_ROWS);
    return k;
}

/* ---- the loops, for both types ---- */

struct loops { /* [clamped], [accumulated, or with a residual] */
    void (*sum)(const void *x, size_t n, size_t group, float *restrict s1);
    void (*deviation)(const void *x, size_t n, size_t group, const float *mean,
                      float *restrict s1, float *restrict s2);
    void (*products[2])(const void *x, const struct columns_dy *dy, size_t n, size_t group,
                        const float *mean, float *restrict s1, float *restrict s2);
    void (*pass[2][2])(const struct columns_dy *dy, size_t n, void *out);
    void (*put[2][2])(const void *x, void *y, size_t n, size_t group, const float *mean,
                      const float *a, const float *b, const struct columns_tail *tail);
    void (*gradient[2][2])(const void *x, const struct columns_dy *dy, void *dx, size_t n,
                           size_t group, const struct columns_line *l);
};

#define NAME(n_) n_##_f32
#define T float
#define LOAD(v_) (v_)
#define STORE(v_) (v_)
#include "op/norm/columns_loops.h"

#define NAME(n_) n_##_half
#define T uint16_t
#define LOAD(v_) float_of_bfloat16(v_)
#define STORE(v_) float_to_bfloat16(v_)
#include "op/norm/columns_loops.h"

static const struct loops *loops_of(const struct columns *k)
{
    return k->is_half ? &loops_half : &loops_f32;
}

void columns_sum(const struct columns *k, const void *x, size_t n, float *s1)
{
    memset(s1, 0, k->group * sizeof(*s1));
    loops_of(k)->sum(x, n, k->group, s1);
}

void columns_deviation(const struct columns *k, const void *x, size_t n, const float *mean,
                       float *s1, float *s2)
{
    memset(s1, 0, k->group * sizeof(*s1));
    memset(s2, 0, k->group * sizeof(*s2));
    loops_of(k)->deviation(x, n, k->group, mean, s1, s2);
}

void columns_products(const struct columns *k, const void *x, const struct columns_dy *dy, size_t n,
                      const float *mean, float *s1, float *s2)
{
    memset(s1, 0, k->group * sizeof(*s1));
    memset(s2, 0, k->group * sizeof(*s2));
    loops_of(k)->products[dy->y != NULL](x, dy, n, k->group, mean, s1, s2);
}

void columns_pass(const struct columns *k, const struct columns_dy *dy, size_t n, void *out,
                  bool add)
{
    loops_of(k)->pass[dy->y != NULL][add](dy, n, out);
}

void columns_apply(const struct columns *k, const void *x, void *y, size_t n, const float *mean,
                   const float *a, const float *b, const struct columns_tail *tail)
{
    static const struct columns_tail none = { .residual = NULL };
    const struct columns_tail *t = tail != NULL ? tail : &none;

    loops_of(k)->put[t->clamp][t->residual != NULL](x, y, n, k->group, mean, a, b, t);
}

void columns_gradient(const struct columns *k, const void *x, const struct columns_dy *dy, void *dx,
                      size_t n, const struct columns_line *l, bool add)
{
    loops_of(k)->gradient[dy->y != NULL][add](x, dy, dx, n, k->group, l);
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
