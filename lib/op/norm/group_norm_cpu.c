/* group_norm_cpu.c - a plain tensor is processed as rows (row.h), one per sample and group; scale
 * and bias are constant over a part of a row. A channels-last sample is processed as columns
 * (columns.h), whose sums are combined per group.
 *
 * In both cases, save[r] holds the statistics of row r. The sums of dy and dy (x - mean) over each
 * part are the gradients of bias and of scale / rstd, and determine those of x. */
#include <math.h>
#include <string.h>

#include "op/norm/columns.h"
#include "op/norm/norm_priv.h"
#include "op/norm/row.h"
#include "op/op_priv.h"

static bool is_columns(const struct tensor *x)
{
    return x->layout == TENSOR_CHANNELS_LAST && x->shape.rank >= 3;
}

/* Parts of scratch. n_scale = groups * parts. */
struct work {
    double *scale, *bias;            /* [n_scale] gradients */
    double *d1, *d2;                 /* [n_scale]: sums of one sample */
    double *t1, *t2;                 /* columns: [channels], sums of a chunk */
    float *mean, *a, *b, *k;         /* columns: [group] */
    float *s1, *s2;                  /* columns: [group] */
};

enum { SCALE_PARTS = 4, CHANNEL_PARTS = 2, GROUP_PARTS = 6 };

static size_t work_bytes(const struct group_norm_param *p, const struct tensor *x)
{
    size_t bytes = SCALE_PARTS * op_round(p->groups * p->parts * sizeof(double));

    if (is_columns(x))
        bytes += CHANNEL_PARTS * op_round(p->channels * sizeof(double)) +
                 GROUP_PARTS * op_round(columns_of(p->channels, false).group * sizeof(float));
    return bytes;
}

static struct work work_at(const struct group_norm_param *p, const struct columns *k, void *scratch)
{
    size_t scale = op_round(p->groups * p->parts * sizeof(double));
    size_t channel = op_round(p->channels * sizeof(double));
    size_t group = op_round(k->group * sizeof(float));
    char *s = scratch, *c = s + SCALE_PARTS * scale, *g = c + CHANNEL_PARTS * channel;

    return (struct work){
        .scale = (void *)s, .bias = (void *)(s + scale), .d1 = (void *)(s + 2 * scale),
        .d2 = (void *)(s + 3 * scale), .t1 = (void *)c, .t2 = (void *)(c + channel),
        .mean = (void *)g, .a = (void *)(g + group), .b = (void *)(g + 2 * group),
        .k = (void *)(g + 3 * group), .s1 = (void *)(g + 4 * group),
        .s2 = (void *)(g + 5 * group),
    };
}

int group_norm_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct group_norm_param *g = p->param;

    (void)err;
    p->scratch_bytes = work_bytes(g, p->in[0]);
    p->save_bytes = g->batch * g->groups * sizeof(struct row_stat);
    return 0;
}

/* ---- forward ---- */

/* y may be x */
CLONES static void apply_part(const float *x, float *y, size_t n, float mean, float a, float b)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = (x[i] - mean) * a + b;
}

static void fwd_rows(const struct op_call *c, const float *scale, const float *bias)
{
    const struct group_norm_param *p = c->param;
    size_t row = p->parts * p->len, r, k;
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    struct row_stat *save = c->save;

    for (r = 0; r < p->batch * p->groups; r++) {
        const float *g = scale + r % p->groups * p->parts, *h = bias + r % p->groups * p->parts;
        struct row_stat s = save[r] = row_measure(x, row, (double)p->epsilon, false);

        for (k = 0; k < p->parts; k++, x += p->len, y += p->len)
            apply_part(x, y, p->len, s.mean, s.rstd * g[k], h[k]);
    }
}

/* Index of the item of channel ch, if `things` items share the channels equally and in order. */
static size_t of_channel(const struct group_norm_param *p, size_t ch, size_t things)
{
    return ch / (p->channels / things);
}

/* Computes mean and deviation of each group of a sample [total / c, c]. */
static void measure_columns(const struct group_norm_param *p, const struct columns *k,
                            const float *x, size_t total, const struct work *w,
                            struct row_stat *out)
{
    double n = (double)(p->parts * p->len);
    size_t at, i, g;

    /* Two passes: the sum of x, then the deviations from that mean: w->d1, w->d2 [groups]. */
    memset(w->d1, 0, p->groups * sizeof(double));
    for (at = 0; at < total; at += k->chunk) {
        columns_sum(k, x + at, total - at < k->chunk ? total - at : k->chunk, w->s1);
        columns_fold(k, w->s1, w->t1);
        for (i = 0; i < k->c; i++)
            w->d1[of_channel(p, i, p->groups)] += w->t1[i];
    }
    for (i = 0; i < k->c; i++)
        w->mean[i] = (float)(w->d1[of_channel(p, i, p->groups)] / n);
    columns_repeat(k, w->mean);
    memset(w->d1, 0, p->groups * sizeof(double));
    memset(w->d2, 0, p->groups * sizeof(double));
    for (at = 0; at < total; at += k->chunk) {
        columns_deviation(k, x + at, total - at < k->chunk ? total - at : k->chunk, w->mean, w->s1,
                          w->s2);
        columns_fold(k, w->s1, w->t1);
        columns_fold(k, w->s2, w->t2);
        for (i = 0; i < k->c; i++) {
            w->d1[of_channel(p, i, p->groups)] += w->t1[i];
            w->d2[of_channel(p, i, p->groups)] += w->t2[i];
        }
    }
    for (g = 0; g < p->groups; g++) {
        double off = w->d1[g] / n, var = w->d2[g] / n - off * off;

        out[g].mean = (float)((double)w->mean[g * (k->c / p->groups)] + off);
        out[g].rstd = (float)(1 / sqrt((var < 0 ? 0 : var) + (double)p->epsilon));
    }
}

static void fwd_columns(const struct op_call *c, const float *scale, const float *bias)
{
    const struct group_norm_param *p = c->param;
    struct columns k = columns_of(p->channels, false);
    struct work w = work_at(p, &k, c->scratch);
    size_t total = p->groups * p->parts * p->len, b, i, n_scale = p->groups * p->parts;
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    struct row_stat *save = c->save;

    for (b = 0; b < p->batch; b++, x += total, y += total, save += p->groups) {
        measure_columns(p, &k, x, total, &w, save);
        for (i = 0; i < k.c; i++) {
            struct row_stat s = save[of_channel(p, i, p->groups)];

            w.mean[i] = s.mean;
            w.a[i] = s.rstd * scale[of_channel(p, i, n_scale)];
            w.b[i] = bias[of_channel(p, i, n_scale)];
        }
        columns_repeat(&k, w.mean);
        columns_repeat(&k, w.a);
        columns_repeat(&k, w.b);
        columns_apply(&k, x, y, total, w.mean, w.a, w.b, NULL);
    }
}

int group_norm_cpu_fwd(const struct op_call *c, struct err *err)
{
    (void)err; /* cannot fail */
    (is_columns(c->in[0]) ? fwd_columns : fwd_rows)(c, c->in[1]->data, c->in[2]->data);
    return 0;
}

/* ---- backward ---- */

/* dx = a dy - b - (x - mean) k */
struct line {
    float mean, a, b, k;
};

CLONES static void store_dx(const float *x, const float *dy, size_t n, const struct line *l,
                            float *dx, bool add)
{
    float mean = l->mean, a = l->a, b = l->b, k = l->k;
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] += a * dy[i] - b - (x[i] - mean) * k;
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] = a * dy[i] - b - (x[i] - mean) * k;
    }
}

/* From the sums d1, d2 [groups * parts] of a sample: adds to the gradients of scale and bias, and
 * computes b and k of group g without the factor 1 / n. */
static void group_sums(const struct group_norm_param *p, const struct work *w, const float *scale,
                       struct row_stat s, size_t g, double *b, double *k)
{
    double rstd = (double)s.rstd, sum = 0, product = 0, n = (double)(p->parts * p->len);
    size_t i;

    for (i = g * p->parts; i < (g + 1) * p->parts; i++) {
        w->bias[i] += w->d1[i];
        w->scale[i] += w->d2[i] * rstd;
        sum += w->d1[i] * (double)scale[i];
        product += w->d2[i] * (double)scale[i];
    }
    *b = rstd * sum / n;
    *k = rstd * rstd * rstd * product / n;
}

static void bwd_rows(const struct op_call *c, const float *scale, const struct work *w)
{
    const struct group_norm_param *p = c->param;
    const float *x = c->in[0]->data, *dy = c->dout[0]->data;
    const struct row_stat *save = c->save;
    float *dx = c->din[0] != NULL ? c->din[0]->data : NULL;
    size_t row = p->parts * p->len, r, i;

    for (r = 0; r < p->batch * p->groups; r++, x += row, dy += row) {
        size_t g = r % p->groups;
        double b, k;

        for (i = 0; i < p->parts; i++)
            row_products(x + i * p->len, dy + i * p->len, NULL, p->len, save[r].mean,
                         &w->d1[g * p->parts + i], &w->d2[g * p->parts + i]);
        group_sums(p, w, scale, save[r], g, &b, &k);
        for (i = 0; i < p->parts && dx != NULL; i++) {
            struct line l = { save[r].mean, save[r].rstd * scale[g * p->parts + i], (float)b,
                              (float)k };

            store_dx(x + i * p->len, dy + i * p->len, p->len, &l, dx + r * row + i * p->len,
                     op_adds(c, 0));
        }
    }
}

/* Computes d1, d2 of a sample with the statistics `save` of its groups. */
static void column_sums(const struct group_norm_param *p, const struct columns *k, const float *x,
                        const float *dy, size_t total, const struct row_stat *save,
                        const struct work *w)
{
    size_t n_scale = p->groups * p->parts, at, i;

    for (i = 0; i < k->c; i++)
        w->mean[i] = save[of_channel(p, i, p->groups)].mean;
    columns_repeat(k, w->mean);
    memset(w->d1, 0, n_scale * sizeof(double));
    memset(w->d2, 0, n_scale * sizeof(double));
    for (at = 0; at < total; at += k->chunk) {
        struct columns_dy d = { .dy = dy + at };

        columns_products(k, x + at, &d, total - at < k->chunk ? total - at : k->chunk, w->mean,
                         w->s1, w->s2);
        columns_fold(k, w->s1, w->t1);
        columns_fold(k, w->s2, w->t2);
        for (i = 0; i < k->c; i++) {
            w->d1[of_channel(p, i, n_scale)] += w->t1[i];
            w->d2[of_channel(p, i, n_scale)] += w->t2[i];
        }
    }
}

static void bwd_columns(const struct op_call *c, const float *scale, const struct work *w)
{
    const struct group_norm_param *p = c->param;
    struct columns k = columns_of(p->channels, false);
    struct columns_line line = { w->mean, w->a, w->b, w->k };
    size_t total = p->groups * p->parts * p->len, n_scale = p->groups * p->parts, s, g, i;
    size_t per = p->channels / p->groups;
    const float *x = c->in[0]->data, *dy = c->dout[0]->data;
    const struct row_stat *save = c->save;

    for (s = 0; s < p->batch; s++, x += total, dy += total, save += p->groups) {
        column_sums(p, &k, x, dy, total, save, w);
        for (g = 0; g < p->groups; g++) {
            double b, d;

            group_sums(p, w, scale, save[g], g, &b, &d);
            for (i = g * per; i < (g + 1) * per; i++) {
                w->a[i] = save[g].rstd * scale[of_channel(p, i, n_scale)];
                w->b[i] = (float)b;
                w->k[i] = (float)d;
            }
        }
        if (c->din[0] == NULL)
            continue;
        columns_repeat(&k, w->a);
        columns_repeat(&k, w->b);
        columns_repeat(&k, w->k);
        columns_gradient(&k, x, &(struct columns_dy){ .dy = dy },
                         (float *)c->din[0]->data + s * total, total, &line, op_adds(c, 0));
    }
}

int group_norm_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct group_norm_param *p = c->param;
    struct columns k = columns_of(p->channels, false);
    struct work w = work_at(p, &k, c->scratch);
    size_t n_scale = p->groups * p->parts;

    (void)err; /* cannot fail */
    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    memset(w.scale, 0, n_scale * sizeof(double));
    memset(w.bias, 0, n_scale * sizeof(double));
    (is_columns(c->in[0]) ? bwd_columns : bwd_rows)(c, c->in[1]->data, &w);
    op_din_wide(c, 1, w.scale, n_scale);
    op_din_wide(c, 2, w.bias, n_scale);
    return 0;
}
