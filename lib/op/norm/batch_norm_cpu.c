/* batch_norm_cpu.c - BatchNormalization of x as [rows, c] (columns.h): channels-last, and any [n,
 * c]. Also the ops with a residual and a clamp after the norm.
 *
 * The variance of a chunk is computed about the chunk's own mean and merged (T. Chan, G. Golub, R.
 * LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979), so a
 * mean far from zero loses no precision, and x is read from memory only once for it. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/half.h"
#include "op/norm/columns.h"
#include "op/norm/norm_priv.h"
#include "op/op_priv.h"

/* The dimensions of x as rows. */
struct rows {
    struct columns columns;
    size_t rows;
    size_t total; /* number of elements */
};

static struct rows rows_of(const struct tensor *x)
{
    struct rows s = { .columns = columns_of((size_t)x->shape.dim[1], op_is_half(x)),
                      .total = (size_t)tensor_elements(x) };

    CHECK(x->layout == TENSOR_CHANNELS_LAST || x->shape.rank < 3);
    s.rows = s.total / s.columns.c;
    return s;
}

/* Parts of scratch. */
struct work {
    float *mean, *a, *b, *k; /* [group]: per channel, repeated */
    float *s1, *s2;          /* [group]: sums of a chunk */
    double *d1, *d2;         /* [c]: sums over all rows */
    double *t1, *t2;         /* [c]: sums of a chunk */
};

enum { GROUP_PARTS = 6, CHANNEL_PARTS = 4 };

static size_t work_bytes(const struct rows *s)
{
    return GROUP_PARTS * op_round(s->columns.group * sizeof(float)) +
           CHANNEL_PARTS * op_round(s->columns.c * sizeof(double));
}

static struct work work_at(const struct rows *s, void *scratch)
{
    size_t group_bytes = op_round(s->columns.group * sizeof(float));
    size_t channel_bytes = op_round(s->columns.c * sizeof(double));
    char *g = scratch, *c = g + GROUP_PARTS * group_bytes;

    return (struct work){
        .mean = (void *)g,
        .a = (void *)(g + group_bytes),
        .b = (void *)(g + 2 * group_bytes),
        .k = (void *)(g + 3 * group_bytes),
        .s1 = (void *)(g + 4 * group_bytes),
        .s2 = (void *)(g + 5 * group_bytes),
        .d1 = (void *)c,
        .d2 = (void *)(c + channel_bytes),
        .t1 = (void *)(c + 2 * channel_bytes),
        .t2 = (void *)(c + 3 * channel_bytes),
    };
}

int batch_norm_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct batch_norm_param *b = p->param;
    struct rows s = rows_of(p->in[0]);

    (void)err;
    CHECK(p->out[0].layout == p->in[0]->layout);
    if (b->from_batch)                                   /* without training, too */
        p->save_bytes = 2 * s.columns.c * sizeof(float); /* mean, variance */
    p->scratch_bytes = work_bytes(&s);
    return 0;
}

/* Merges a chunk of `m` rows into the mean d1 and the sum of squared deviations d2 of the `n` rows
 * before it. The sums of the chunk are relative to `about`: t1 of deviations, t2 of their
 * squares. */
CLONES static void merge(size_t c, double n, double m, const float *about, const double *t1,
                         const double *t2, double *restrict d1, double *restrict d2)
{
    double share = m / (n + m), weight = n * share;
    size_t i;

    for (i = 0; i < c; i++) {
        double mean = (double)about[i] + t1[i] / m, square = t2[i] - t1[i] * (t1[i] / m);
        double apart = mean - d1[i];

        d1[i] += apart * share;
        d2[i] += square + apart * apart * weight;
    }
}

/* out [2][c] = mean and population variance of each channel */
static void measure(const struct rows *s, const struct tensor *x, const struct work *w, float *out)
{
    const struct columns *k = &s->columns;
    size_t at, i, c = k->c;

    memset(w->d1, 0, c * sizeof(double));
    memset(w->d2, 0, c * sizeof(double));
    for (at = 0; at < s->total; at += k->chunk) {
        size_t n = s->total - at < k->chunk ? s->total - at : k->chunk;
        double m = (double)(n / c);

        columns_sum(k, op_element(x, at), n, w->s1);
        columns_fold(k, w->s1, w->t1);
        for (i = 0; i < c; i++)
            w->mean[i] = (float)(w->t1[i] / m);
        columns_repeat(k, w->mean);
        columns_deviation(k, op_element(x, at), n, w->mean, w->s1, w->s2);
        columns_fold(k, w->s1, w->t1);
        columns_fold(k, w->s2, w->t2);
        merge(c, (double)(at / c), m, w->mean, w->t1, w->t2, w->d1, w->d2);
    }
    for (i = 0; i < c; i++) {
        out[i] = (float)w->d1[i];
        out[c + i] = (float)(fmax(w->d2[i], 0) / (double)s->rows);
    }
}

static float inverse_deviation(float var, float epsilon)
{
    return (float)(1 / sqrt((double)var + (double)epsilon));
}

/* ---- calls ---- */

struct stats {
    const float *mean, *var;
};

static struct stats stats_of(const struct op_call *c, size_t channels)
{
    const struct batch_norm_param *p = c->param;
    const float *save = c->save;

    if (p->from_batch)
        return (struct stats){ save, save + channels };
    return (struct stats){ c->in[3]->data, c->in[4]->data };
}

/* Stores outputs 1 and 2, the running averages after this call alone, and outputs 3 and 4, the
 * statistics used. Training does not use them. */
static void store_statistics(const struct op_call *c, const struct stats *st, size_t channels)
{
    const struct batch_norm_param *p = c->param;
    float keep = p->from_batch ? p->momentum : 1.0f, move = 1.0f - keep;
    uint32_t i;

    for (i = 1; i < c->n_out; i++) {
        const struct tensor *old = c->in[i % 2 == 1 ? 3 : 4];
        const float *used = i % 2 == 1 ? st->mean : st->var;

        if (c->out[i] == NULL)
            continue;
        op_store(c->out[i]->data, used, channels,
                 i == 1   ? move
                 : i == 2 ? move * p->correction
                          : 1.0f,
                 false);
        if (i < 3)
            op_store(c->out[i]->data, old->data, channels, keep, true);
    }
}

enum { RESIDUAL = 5 };

static const void *residual_of(const struct op_call *c)
{
    return c->n_in > RESIDUAL && c->in[RESIDUAL] != NULL ? c->in[RESIDUAL]->data : NULL;
}

static bool wants_residual(const struct op_call *c)
{
    return c->n_in > RESIDUAL && c->din[RESIDUAL] != NULL;
}

int batch_norm_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct batch_norm_param *p = c->param;
    struct rows s = rows_of(c->in[0]);
    struct work w = work_at(&s, c->scratch);
    struct stats st = stats_of(c, s.columns.c);
    const float *scale = c->in[1]->data, *bias = c->in[2]->data;
    size_t i;

    (void)err; /* cannot fail */
    if (p->from_batch)
        measure(&s, c->in[0], &w, c->save);
    store_statistics(c, &st, s.columns.c);
    if (c->out[0] == NULL)
        return 0;
    for (i = 0; i < s.columns.c; i++) {
        w.mean[i] = st.mean[i];
        w.a[i] = scale[i] * inverse_deviation(st.var[i], p->epsilon);
        w.b[i] = bias[i];
    }
    columns_repeat(&s.columns, w.mean);
    columns_repeat(&s.columns, w.a);
    columns_repeat(&s.columns, w.b);
    columns_apply(&s.columns, c->in[0]->data, c->out[0]->data, s.total, w.mean, w.a, w.b,
                  &(struct columns_tail){ .residual = residual_of(c),
                                        .clamp = p->clamp,
                                        .ceiling = p->ceiling });
    return 0;
}

/* d1 = sum of dy, d2 = sum of dy (x - mean), over all rows. Also stores the gradient of the
 * residual while dy is in cache. */
static void sum_all(const struct op_call *c, const struct rows *s, const struct columns_dy *dy,
                    const struct work *w)
{
    const struct tensor *x = c->in[0], *d = c->dout[0], *y = dy->y != NULL ? c->out[0] : NULL;
    const struct columns *k = &s->columns;
    size_t at, i;

    memset(w->d1, 0, k->c * sizeof(double));
    memset(w->d2, 0, k->c * sizeof(double));
    for (at = 0; at < s->total; at += k->chunk) {
        size_t n = s->total - at < k->chunk ? s->total - at : k->chunk;
        struct columns_dy here = { op_element(d, at), y != NULL ? op_element(y, at) : NULL,
                                   dy->ceiling };

        columns_products(k, op_element(x, at), &here, n, w->mean, w->s1, w->s2);
        columns_fold(k, w->s1, w->t1);
        columns_fold(k, w->s2, w->t2);
        for (i = 0; i < k->c; i++) {
            w->d1[i] += w->t1[i];
            w->d2[i] += w->t2[i];
        }
        if (wants_residual(c))
            columns_pass(k, &here, n, op_element(c->din[RESIDUAL], at), op_adds(c, RESIDUAL));
    }
}

static void store_channel(const struct op_call *c, uint32_t i, const float *value, size_t channels,
                          float factor)
{
    if (c->din[i] != NULL)
        op_store(c->din[i]->data, value, channels, factor, (c->din_add & OP_IN(i)) != 0);
}

int batch_norm_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct batch_norm_param *p = c->param;
    struct rows s = rows_of(c->in[0]);
    struct work w = work_at(&s, c->scratch);
    struct columns_line line = { w.mean, w.a, w.b, w.k };
    struct stats st = stats_of(c, s.columns.c);
    const float *scale = c->in[1]->data;
    struct columns_dy dy = { .ceiling = p->ceiling };
    double n = (double)s.rows;
    size_t i;

    (void)err; /* cannot fail */
    if (c->dout[0] == NULL)
        op_bwd_zero(c);
    store_channel(c, 3, st.mean, s.columns.c, p->share);
    store_channel(c, 4, st.var, s.columns.c, p->share * p->correction);
    if (c->dout[0] == NULL ||
        (c->din[0] == NULL && c->din[1] == NULL && c->din[2] == NULL && !wants_residual(c)))
        return 0;
    dy.dy = c->dout[0]->data;
    dy.y = p->clamp ? c->out[0]->data : NULL;
    memcpy(w.mean, st.mean, s.columns.c * sizeof(float));
    columns_repeat(&s.columns, w.mean);
    sum_all(c, &s, &dy, &w);

    /* dbias = d1, dscale = d2 r with r = 1 / deviation. Through the mean and variance of the batch,
     * x also affects the other elements: dx = a (dy - d1 / n - (x - mean) d2 r^2 / n), a = scale
     * r. */
    for (i = 0; i < s.columns.c; i++) {
        double r = (double)inverse_deviation(st.var[i], p->epsilon);

        w.s1[i] = (float)(w.d2[i] * r);
        w.s2[i] = (float)w.d1[i];
        w.a[i] = scale[i] * (float)r;
        w.b[i] = p->from_batch ? (float)((double)w.a[i] * w.d1[i] / n) : 0.0f;
        w.k[i] = p->from_batch ? (float)((double)w.a[i] * w.d2[i] * r * r / n) : 0.0f;
    }
    store_channel(c, 1, w.s1, s.columns.c, 1.0f);
    store_channel(c, 2, w.s2, s.columns.c, 1.0f);
    if (c->din[0] == NULL)
        return 0;
    columns_repeat(&s.columns, w.a);
    columns_repeat(&s.columns, w.b);
    columns_repeat(&s.columns, w.k);
    if (wants_residual(c) && !op_adds(c, RESIDUAL)) /* it already contains the clamped dy */
        dy = (struct columns_dy){ .dy = c->din[RESIDUAL]->data };
    columns_gradient(&s.columns, c->in[0]->data, &dy, c->din[0]->data, s.total, &line,
                     op_adds(c, 0));
    return 0;
}
