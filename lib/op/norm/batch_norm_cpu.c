/* batch_norm_cpu.c - own loops over x as [rows, c]: channels-last, and any [n, c]. (Plain tensors
 * with space are brought into that form in scratch: rank 3 only, where the planner keeps them.)
 *
 * Vectors. Several rows make a group, so that the innermost loop is at least WIDTH long also for
 * few channels: element i of a group belongs to channel i % c, and what is known per channel is
 * repeated over the group. No loop adds up across a vector; groups are folded at the end.
 *
 * Sums. Rows are taken in chunks that stay in cache. In a chunk, float sums (of at most a few
 * hundred terms); between chunks, double. The variance of a chunk is taken about the chunk's own
 * mean and merged (T. Chan, G. Golub, R. LeVeque: Updating Formulae and a Pairwise Algorithm for
 * Computing Sample Variances, 1979), so a mean far from zero costs no digits, and x is read from
 * memory once for it. The order of everything depends on the shape alone. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/dnn.h"
#include "op/norm/norm_priv.h"
#include "op/op_priv.h"

enum { WIDTH = 128, CHUNK = 32768, CHUNK_ROWS = 8 /* at least */ };

struct batch_norm_state {
    size_t rows, c;
    size_t group;  /* floats of a group: a multiple of c */
    size_t chunk;  /* floats of a chunk: a multiple of group */
    size_t total;  /* rows * c */
    struct dnn *to_rows, *from_rows; /* NULL: x is rows already */
    size_t plain_bytes;              /* of each of two buffers for that, in scratch */
};

void batch_norm_cpu_free(void *state)
{
    struct batch_norm_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->to_rows);
    dnn_free(s->from_rows);
    free(s);
}

/* Parts of scratch. */
struct work {
    float *mean, *a, *b, *k; /* [group]: per channel, repeated */
    float *s1, *s2;          /* [group]: sums of a chunk */
    double *d1, *d2;         /* [c]: sums of everything */
    double *t1, *t2;         /* [c]: sums of a chunk */
    float *x, *dy;           /* rows of a plain x and dy */
    void *rest;              /* the library's */
};

enum { GROUP_PARTS = 6, CHANNEL_PARTS = 4, PLAIN_PARTS = 2 };

static size_t work_bytes(const struct batch_norm_state *s)
{
    return GROUP_PARTS * op_round(s->group * sizeof(float)) +
           CHANNEL_PARTS * op_round(s->c * sizeof(double)) + PLAIN_PARTS * s->plain_bytes;
}

static struct work work_at(const struct batch_norm_state *s, void *scratch)
{
    size_t group_bytes = op_round(s->group * sizeof(float));
    size_t channel_bytes = op_round(s->c * sizeof(double));
    char *g = scratch, *c = g + GROUP_PARTS * group_bytes;
    char *plain = c + CHANNEL_PARTS * channel_bytes;

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
        .x = (void *)plain,
        .dy = (void *)(plain + s->plain_bytes),
        .rest = g + work_bytes(s),
    };
}

static int plan_plain(const struct tensor *x, struct batch_norm_state *s, struct err *err)
{
    struct tensor rows = *x;
    int rc;

    if (x->layout == TENSOR_CHANNELS_LAST || x->shape.rank < 3)
        return 0;
    rows.layout = TENSOR_CHANNELS_LAST;
    s->plain_bytes = op_round(tensor_bytes(x));
    rc = dnn_reorder(x, &rows, &s->to_rows, err);
    return rc < 0 ? rc : dnn_reorder(&rows, x, &s->from_rows, err);
}

int batch_norm_cpu_plan(struct op_plan *p, struct err *err)
{
    struct batch_norm_state *s = calloc(1, sizeof(*s));
    int rc;

    CHECK(p->out[0].layout == p->in[0]->layout);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    s->c = (size_t)p->in[0]->shape.dim[1];
    s->total = (size_t)tensor_elements(p->in[0]);
    s->rows = s->total / s->c;
    s->group = s->c * (s->c < WIDTH ? WIDTH / s->c : 1);
    s->chunk = s->group * op_max(CHUNK / s->group, CHUNK_ROWS);
    rc = plan_plain(p->in[0], s, err);
    if (rc < 0) {
        batch_norm_cpu_free(s);
        return err_wrap(err, rc, "%s '%s'", p->def->name, p->node);
    }
    if (((const struct batch_norm_param *)p->param)->from_batch) /* forward alone needs them too */
        p->save_bytes = 2 * s->c * sizeof(float); /* mean, variance */
    p->scratch_bytes =
        work_bytes(s) + op_max(dnn_scratch_bytes(s->to_rows), dnn_scratch_bytes(s->from_rows));
    p->state = s;
    return 0;
}

/* ---- loops over n floats, a whole number of rows ---- */

/* s[i] = sum of x over the groups */
CLONES static void sum_x(const float *x, size_t n, size_t group, float *restrict s)
{
    size_t at, i, w;

    memset(s, 0, group * sizeof(*s));
    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++)
            s[i] += x[at + i];
    }
}

/* s1 = sum of x - mean, s2 = sum of its square */
CLONES static void sum_deviation(const float *x, size_t n, size_t group, const float *mean,
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

/* s1 = sum of dy, s2 = sum of dy (x - mean) */
CLONES static void sum_gradient(const float *x, const float *dy, size_t n, size_t group,
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

/* y = (x - mean) a + b; y may be x */
CLONES static void normalise(const float *x, float *y, size_t n, size_t group,
                                const struct work *w)
{
    const float *mean = w->mean, *a = w->a, *b = w->b;
    size_t at, i, m;

    for (at = 0; at < n; at += group) {
        m = n - at < group ? n - at : group;
        OP_EACH
        for (i = 0; i < m; i++)
            y[at + i] = (x[at + i] - mean[i]) * a[i] + b[i];
    }
}

/* dx = a (dy - b - (x - mean) k); dx may be dy */
CLONES static void gradient(const float *x, const float *dy, float *dx, size_t n, size_t group,
                               const struct work *w)
{
    const float *mean = w->mean, *a = w->a, *b = w->b, *k = w->k;
    size_t at, i, m;

    for (at = 0; at < n; at += group) {
        m = n - at < group ? n - at : group;
        OP_EACH
        for (i = 0; i < m; i++)
            dx[at + i] = a[i] * (dy[at + i] - b[i] - (x[at + i] - mean[i]) * k[i]);
    }
}

CLONES static void gradient_add(const float *x, const float *dy, float *dx, size_t n,
                                   size_t group, const struct work *w)
{
    const float *mean = w->mean, *a = w->a, *b = w->b, *k = w->k;
    size_t at, i, m;

    for (at = 0; at < n; at += group) {
        m = n - at < group ? n - at : group;
        OP_EACH
        for (i = 0; i < m; i++)
            dx[at + i] += a[i] * (dy[at + i] - b[i] - (x[at + i] - mean[i]) * k[i]);
    }
}

/* ---- per channel ---- */

/* [group] floats -> [c] doubles */
CLONES static void fold(const float *s, size_t group, size_t c, double *restrict out)
{
    size_t at, i;

    for (i = 0; i < c; i++)
        out[i] = (double)s[i];
    for (at = c; at < group; at += c)
        for (i = 0; i < c; i++)
            out[i] += (double)s[at + i];
}

/* The first c floats over the whole group. */
static void repeat(float *v, size_t group, size_t c)
{
    size_t at;

    for (at = c; at < group; at += c)
        memcpy(v + at, v, c * sizeof(*v));
}

/* Merges a chunk of `m` rows into the mean d1 and the sum of squared deviations d2 of the `n` rows
 * before it. The chunk was measured about `about`: t1 sums deviations, t2 squares. */
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

/* mean and population variance of each channel -> out [2][c] */
static void measure(const struct batch_norm_state *s, const float *x, const struct work *w,
                    float *out)
{
    size_t at, i, c = s->c;

    memset(w->d1, 0, c * sizeof(double));
    memset(w->d2, 0, c * sizeof(double));
    for (at = 0; at < s->total; at += s->chunk) {
        size_t n = s->total - at < s->chunk ? s->total - at : s->chunk;
        double m = (double)(n / c);

        sum_x(x + at, n, s->group, w->s1);
        fold(w->s1, s->group, c, w->t1);
        for (i = 0; i < c; i++)
            w->mean[i] = (float)(w->t1[i] / m);
        repeat(w->mean, s->group, c);
        sum_deviation(x + at, n, s->group, w->mean, w->s1, w->s2);
        fold(w->s1, s->group, c, w->t1);
        fold(w->s2, s->group, c, w->t2);
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

/* Outputs 1 and 2, the running averages this call alone would lead to, and 3 and 4, the statistics
 * used: for whoever reads them; training does not. */
static void put_statistics(const struct op_call *c, const struct stats *st, size_t channels)
{
    const struct batch_norm_param *p = c->param;
    float keep = p->from_batch ? p->momentum : 1.0f;
    uint32_t i;

    for (i = 1; i < c->n_out; i++) {
        const struct tensor *old = c->in[i % 2 == 1 ? 3 : 4];
        const float *used = i % 2 == 1 ? st->mean : st->var;

        if (c->out[i] == NULL)
            continue;
        op_put(c->out[i]->data, used, channels, i < 3 ? 1.0f - keep : 1.0f, false);
        if (i < 3)
            op_put(c->out[i]->data, old->data, channels, keep, true);
    }
}

int batch_norm_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct batch_norm_param *p = c->param;
    struct batch_norm_state *s = c->state;
    struct work w = work_at(s, c->scratch);
    struct stats st = stats_of(c, s->c);
    const float *scale = c->in[1]->data, *bias = c->in[2]->data, *x = c->in[0]->data;
    float *y = c->out[0] != NULL ? c->out[0]->data : NULL;
    size_t i;
    int rc;

    if (s->to_rows != NULL) {
        rc = dnn_run(s->to_rows, (void *[DNN_ARGS]){ c->in[0]->data, w.x }, w.rest, err);
        if (rc < 0)
            return rc;
        x = w.x;
        y = w.x;
    }
    if (p->from_batch)
        measure(s, x, &w, c->save);
    put_statistics(c, &st, s->c);
    if (c->out[0] == NULL)
        return 0;
    for (i = 0; i < s->c; i++) {
        w.mean[i] = st.mean[i];
        w.a[i] = scale[i] * inverse_deviation(st.var[i], p->epsilon);
        w.b[i] = bias[i];
    }
    repeat(w.mean, s->group, s->c);
    repeat(w.a, s->group, s->c);
    repeat(w.b, s->group, s->c);
    normalise(x, y, s->total, s->group, &w);
    if (s->from_rows == NULL)
        return 0;
    return dnn_run(s->from_rows, (void *[DNN_ARGS]){ w.x, c->out[0]->data }, w.rest, err);
}

/* d1 = sum of dy, d2 = sum of dy (x - mean), over all rows */
static void sum_all(const struct batch_norm_state *s, const float *x, const float *dy,
                    const struct work *w)
{
    size_t at, i;

    memset(w->d1, 0, s->c * sizeof(double));
    memset(w->d2, 0, s->c * sizeof(double));
    for (at = 0; at < s->total; at += s->chunk) {
        size_t n = s->total - at < s->chunk ? s->total - at : s->chunk;

        sum_gradient(x + at, dy + at, n, s->group, w->mean, w->s1, w->s2);
        fold(w->s1, s->group, s->c, w->t1);
        fold(w->s2, s->group, s->c, w->t2);
        for (i = 0; i < s->c; i++) {
            w->d1[i] += w->t1[i];
            w->d2[i] += w->t2[i];
        }
    }
}

static void put_channel(const struct op_call *c, uint32_t i, const float *value, size_t channels)
{
    if (c->din[i] != NULL)
        op_put(c->din[i]->data, value, channels, 1.0f, (c->din_add & OP_IN(i)) != 0);
}

/* dx from what is prepared in w; a plain one through rows. */
static int put_dx(const struct op_call *c, const float *x, const float *dy, const struct work *w,
                  struct err *err)
{
    struct batch_norm_state *s = c->state;
    bool add = (c->din_add & OP_IN(0)) != 0;
    float *dx = c->din[0]->data, *to;
    int rc;

    if (s->from_rows == NULL) {
        (add ? gradient_add : gradient)(x, dy, dx, s->total, s->group, w);
        return 0;
    }
    gradient(x, dy, w->dy, s->total, s->group, w);
    to = add ? w->x : dx; /* x is not needed any more */
    rc = dnn_run(s->from_rows, (void *[DNN_ARGS]){ w->dy, to }, w->rest, err);
    if (rc == 0 && add)
        op_put(dx, to, s->total, 1.0f, true);
    return rc;
}

int batch_norm_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct batch_norm_param *p = c->param;
    struct batch_norm_state *s = c->state;
    struct work w = work_at(s, c->scratch);
    struct stats st = stats_of(c, s->c);
    const float *scale = c->in[1]->data, *x = c->in[0]->data, *dy;
    double n = (double)s->rows;
    size_t i;
    int rc = 0;

    if (c->dout[0] == NULL)
        op_bwd_zero(c);
    put_channel(c, 3, st.mean, s->c);
    put_channel(c, 4, st.var, s->c);
    if (c->dout[0] == NULL || (c->din[0] == NULL && c->din[1] == NULL && c->din[2] == NULL))
        return 0;
    dy = c->dout[0]->data;
    if (s->to_rows != NULL) {
        rc = dnn_run(s->to_rows, (void *[DNN_ARGS]){ c->in[0]->data, w.x }, w.rest, err);
        if (rc == 0)
            rc = dnn_run(s->to_rows, (void *[DNN_ARGS]){ c->dout[0]->data, w.dy }, w.rest, err);
        if (rc < 0)
            return rc;
        x = w.x;
        dy = w.dy;
    }
    memcpy(w.mean, st.mean, s->c * sizeof(float));
    repeat(w.mean, s->group, s->c);
    sum_all(s, x, dy, &w);

    /* dbias = d1, dscale = d2 r with r = 1 / deviation. Through the batch's mean and variance x
     * also moves its neighbours: dx = scale r (dy - d1 / n - (x - mean) d2 r^2 / n). */
    for (i = 0; i < s->c; i++) {
        double r = (double)inverse_deviation(st.var[i], p->epsilon);

        w.s1[i] = (float)(w.d2[i] * r);
        w.s2[i] = (float)w.d1[i];
        w.a[i] = scale[i] * (float)r;
        w.b[i] = p->from_batch ? (float)(w.d1[i] / n) : 0.0f;
        w.k[i] = p->from_batch ? (float)(w.d2[i] * r * r / n) : 0.0f;
    }
    put_channel(c, 1, w.s1, s->c);
    put_channel(c, 2, w.s2, s->c);
    if (c->din[0] == NULL)
        return 0;
    repeat(w.a, s->group, s->c);
    repeat(w.b, s->group, s->c);
    repeat(w.k, s->group, s->c);
    return put_dx(c, x, dy, &w, err);
}
