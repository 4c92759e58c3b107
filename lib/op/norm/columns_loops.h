/* columns_loops.h - the loops of columns.c for one element type. columns.c includes it once per
 * type, with
 *   NAME(n_)   the function's name      T   the element type
 *   LOAD(v_)   a T as float             STORE(v_)   a float as T */

static CLONES void NAME(sum)(const void *vx, size_t n, size_t group, float *restrict s1)
{
    const T *x = vx;
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++)
            s1[i] += LOAD(x[at + i]);
    }
}

static CLONES void NAME(deviation)(const void *vx, size_t n, size_t group, const float *mean,
                                   float *restrict s1, float *restrict s2)
{
    const T *x = vx;
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++) {
            float d = LOAD(x[at + i]) - mean[i];

            s1[i] += d;
            s2[i] += d * d;
        }
    }
}

/* The incoming gradient of element i: unchanged, or through a clamp. */
#define ARRIVES LOAD(d[at + i])
#define PASSES                                                                                     \
    (LOAD(y[at + i]) <= 0.0f || LOAD(y[at + i]) >= ceiling ? 0.0f : LOAD(d[at + i]))

#define PRODUCTS(name_, dy_)                                                                       \
    static CLONES void NAME(name_)(const void *vx, const struct columns_dy *dy, size_t n,          \
                                   size_t group, const float *mean, float *restrict s1,            \
                                   float *restrict s2)                                             \
    {                                                                                              \
        const T *x = vx, *d = dy->dy, *y = dy->y;                                                  \
        float ceiling = dy->ceiling;                                                               \
        size_t at, i, w;                                                                           \
                                                                                                   \
        (void)y, (void)ceiling;                                                                    \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            for (i = 0; i < w; i++) {                                                              \
                float here = (dy_);                                                                \
                                                                                                   \
                s1[i] += here;                                                                     \
                s2[i] += here * (LOAD(x[at + i]) - mean[i]);                                       \
            }                                                                                      \
        }                                                                                          \
    }
PRODUCTS(products, ARRIVES)
PRODUCTS(products_clamped, PASSES)
#undef PRODUCTS

#define PASS(name_, value_)                                                                        \
    static CLONES void NAME(name_)(const struct columns_dy *dy, size_t n, void *vout)              \
    {                                                                                              \
        const T *d = dy->dy, *y = dy->y;                                                           \
        float ceiling = dy->ceiling;                                                               \
        size_t at = 0, i;                                                                          \
        T *out = vout;                                                                             \
                                                                                                   \
        (void)y, (void)ceiling;                                                                    \
        OP_EACH                                                                                    \
        for (i = 0; i < n; i++)                                                                    \
            out[i] = STORE(value_);                                                                \
    }
PASS(pass, ARRIVES)
PASS(pass_add, LOAD(out[i]) + ARRIVES)
PASS(pass_clamped, PASSES)
PASS(pass_clamped_add, LOAD(out[i]) + PASSES)
#undef PASS

/* Defines one function per kind of tail: y = tail_ applied to (x - mean) a + b. */
#define CLAMPED(v_) ((v_) < 0.0f ? 0.0f : (v_) > ceiling ? ceiling : (v_))
#define PUT(name_, tail_)                                                                          \
    static CLONES void NAME(name_)(const void *vx, void *vy, size_t n, size_t group,               \
                                   const float *mean, const float *a, const float *b,              \
                                   const struct columns_tail *tail)                                \
    {                                                                                              \
        const T *x = vx, *r = tail->residual;                                                      \
        float ceiling = tail->ceiling;                                                             \
        size_t at, i, w;                                                                           \
        T *y = vy;                                                                                 \
                                                                                                   \
        (void)r, (void)ceiling;                                                                    \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++) {                                                              \
                float v = (LOAD(x[at + i]) - mean[i]) * a[i] + b[i];                               \
                                                                                                   \
                y[at + i] = STORE(tail_);                                                          \
            }                                                                                      \
        }                                                                                          \
    }
PUT(put, v)
PUT(put_clamp, CLAMPED(v))
PUT(put_add, v + LOAD(r[at + i]))
PUT(put_add_clamp, CLAMPED(v + LOAD(r[at + i])))
#undef PUT
#undef CLAMPED

#define GRADIENT(name_, before_, dy_)                                                              \
    static CLONES void NAME(name_)(const void *vx, const struct columns_dy *dy, void *vdx,         \
                                   size_t n, size_t group, const struct columns_line *l)           \
    {                                                                                              \
        const float *mean = l->mean, *a = l->a, *b = l->b, *k = l->k;                              \
        const T *x = vx, *d = dy->dy, *y = dy->y;                                                  \
        float ceiling = dy->ceiling;                                                               \
        size_t at, i, w;                                                                           \
        T *dx = vdx;                                                                               \
                                                                                                   \
        (void)y, (void)ceiling;                                                                    \
        for (at = 0; at < n; at += group) {                                                        \
            w = n - at < group ? n - at : group;                                                   \
            OP_EACH                                                                                \
            for (i = 0; i < w; i++)                                                                \
                dx[at + i] =                                                                       \
                    STORE(before_(a[i] * (dy_)-b[i] - (LOAD(x[at + i]) - mean[i]) * k[i]));        \
        }                                                                                          \
    }
#define ONTO LOAD(dx[at + i]) +
GRADIENT(gradient, , ARRIVES)
GRADIENT(gradient_add, ONTO, ARRIVES)
GRADIENT(gradient_clamped, , PASSES)
GRADIENT(gradient_clamped_add, ONTO, PASSES)
#undef ONTO
#undef GRADIENT
#undef ARRIVES
#undef PASSES

static const struct loops NAME(loops) = {
    .sum = NAME(sum),
    .deviation = NAME(deviation),
    .products = { NAME(products), NAME(products_clamped) },
    .pass = { { NAME(pass), NAME(pass_add) }, { NAME(pass_clamped), NAME(pass_clamped_add) } },
    .put = { { NAME(put), NAME(put_add) }, { NAME(put_clamp), NAME(put_add_clamp) } },
    .gradient = { { NAME(gradient), NAME(gradient_add) },
                  { NAME(gradient_clamped), NAME(gradient_clamped_add) } },
};

#undef NAME
#undef T
#undef LOAD
#undef STORE
