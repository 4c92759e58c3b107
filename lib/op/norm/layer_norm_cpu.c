/* layer_norm_cpu.c - processes a row at a time: its statistics or sums, then a second pass while
 * the row is in cache. The gradients of scale and bias are summed in float over BLOCK rows, then in
 * double. */
#include <string.h>

#include "base/check.h"
#include "op/half.h"
#include "op/norm/norm_priv.h"
#include "op/norm/row.h"
#include "op/op_priv.h"

enum { BLOCK = 64 };

/* Parts of scratch in backward. */
struct work {
    float *part_scale, *part_bias, *spare; /* [n]; spare: zeros, for a dy that does not arrive */
    double *scale, *bias;                  /* [n] */
};

static size_t work_bytes(size_t n)
{
    return 3 * op_round(n * sizeof(float)) + 2 * op_round(n * sizeof(double));
}

static struct work work_at(void *scratch, size_t n)
{
    size_t floats = op_round(n * sizeof(float)), doubles = op_round(n * sizeof(double));
    char *at = scratch;

    return (struct work){ .part_scale = (void *)at,
                          .part_bias = (void *)(at + floats),
                          .spare = (void *)(at + 2 * floats),
                          .scale = (void *)(at + 3 * floats),
                          .bias = (void *)(at + 3 * floats + doubles) };
}

/* The beginning of scratch: rows as float32, for tensors that are bfloat16 or absent. */
struct rooms {
    float *x, *dy, *out, *other;
    void *rest;
};

static size_t room_bytes(size_t n)
{
    return op_round(n * sizeof(float));
}

static struct rooms rooms_at(void *scratch, size_t n)
{
    size_t bytes = room_bytes(n);

    return (struct rooms){ scratch, op_at(scratch, bytes), op_at(scratch, 2 * bytes),
                           op_at(scratch, 3 * bytes), op_at(scratch, 4 * bytes) };
}

int layer_norm_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct layer_norm_param *l = p->param;

    (void)err;
    p->save_bytes = l->rows * sizeof(struct row_stat);
    p->scratch_bytes = 4 * room_bytes(l->n) + (p->training ? work_bytes(l->n) : 0);
    return 0;
}

/* y may be x */
CLONES static void apply_row(const float *x, float *y, size_t n, float mean, float rstd,
                             const float *scale, const float *bias)
{
    size_t i;

    if (bias != NULL) {
        OP_EACH
        for (i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * scale[i] + bias[i];
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * scale[i];
    }
}

static float *output(const struct op_call *c, uint32_t i)
{
    return i < c->n_out && c->out[i] != NULL ? c->out[i]->data : NULL;
}

CLONES static void add_rows(const float *x, const float *y, size_t n, float *sum)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        sum[i] = x[i] + y[i];
}

/* Returns row r of the normalised tensor: x, or the sum, which is stored in output 1 and rounded to
 * its type. */
static const float *row_at(const struct op_call *c, size_t r, const struct rooms *room)
{
    const struct layer_norm_param *p = c->param;
    size_t n = p->n, at = r * n;
    const float *x = op_floats(c->in[0], at, n, room->x), *y;
    bool is_half;
    float *sum;

    if (!p->adds)
        return x;
    y = op_floats(c->in[3], at, n, room->other);
    sum = c->out[1] != NULL ? op_floats_to(c->out[1], at, room->x) : room->x;
    add_rows(x, y, n, sum);
    is_half =
        c->out[1] != NULL ? op_is_half(c->out[1]) : op_is_half(c->in[0]) && op_is_half(c->in[3]);
    if (is_half) {
        uint16_t *half = c->out[1] != NULL ? op_element(c->out[1], at) : (uint16_t *)room->other;

        op_narrow(sum, n, half);
        op_widen(half, n, sum);
    }
    return sum;
}

int layer_norm_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct layer_norm_param *p = c->param;
    const float *scale = c->in[1]->data;
    const float *bias = c->n_in > 2 && c->in[2] != NULL ? c->in[2]->data : NULL;
    float *mean = p->adds ? NULL : output(c, 1), *rstd = output(c, 2);
    struct rooms room = rooms_at(c->scratch, p->n);
    struct row_stat *save = c->save;
    size_t r, n = p->n;

    (void)err; /* cannot fail */
    for (r = 0; r < p->rows; r++) {
        const float *x = row_at(c, r, &room);
        struct row_stat s = row_measure(x, n, (double)p->epsilon, p->rms);

        if (c->out[0] != NULL) {
            float *y = op_floats_to(c->out[0], r * n, room.out);

            apply_row(x, y, n, s.mean, s.rstd, scale, bias);
            op_floats_done(c->out[0], r * n, n, y);
        }
        save[r] = s;
        if (mean != NULL)
            mean[r] = s.mean;
        if (rstd != NULL)
            rstd[r] = s.rstd;
    }
    return 0;
}

/* dx = a g - b - d k with d = x - mean and g = dy scale */
struct line {
    float mean, a, b, k;
};

CLONES static void store_dx(const float *x, const float *dy, const float *scale, size_t n,
                            const struct line *l, float *dx, bool add)
{
    float mean = l->mean, a = l->a, b = l->b, k = l->k;
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] += a * (dy[i] * scale[i]) - b - (x[i] - mean) * k;
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            dx[i] = a * (dy[i] * scale[i]) - b - (x[i] - mean) * k;
    }
}

/* scale += dy d r, bias += dy; scale and bias do not overlap the inputs */
CLONES static void add_row(const float *x, const float *dy, size_t n, float mean, float rstd,
                           float *restrict scale, float *restrict bias)
{
    size_t i;

    for (i = 0; i < n; i++) {
        scale[i] += dy[i] * ((x[i] - mean) * rstd);
        bias[i] += dy[i];
    }
}

CLONES static void add_part(float *part, double *restrict total, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        total[i] += (double)part[i];
    memset(part, 0, n * sizeof(*part));
}

/* Computes the coefficients of dx, with the contributions of the gradients of outputs 1 and 2: d
 * mean / d x = 1 / n, d rstd / d x = -r^3 d / n. */
static struct line row_line(const struct op_call *c, size_t r, struct row_stat s, double sum,
                            double product)
{
    const struct layer_norm_param *p = c->param;
    double n = (double)p->n, rstd = (double)s.rstd, cube = rstd * rstd * rstd;
    double b = p->rms ? 0 : rstd * sum, k = cube * product;

    if (c->n_out > 1 && c->dout[1] != NULL && !p->rms && !p->adds)
        b -= (double)((const float *)c->dout[1]->data)[r];
    if (c->n_out > 2 && c->dout[2] != NULL)
        k += cube * (double)((const float *)c->dout[2]->data)[r];
    return (struct line){ s.mean, s.rstd, (float)(b / n), (float)(k / n) };
}

/* Stores the gradient of row r in x, or, plus the gradient of the sum, in both summands. */
static void store_gradients(const struct op_call *c, size_t r, const float *x, const float *dy,
                            const struct line *l, const struct rooms *room)
{
    static const uint32_t both[] = { 0, 3 };
    const struct layer_norm_param *p = c->param;
    const float *scale = c->in[1]->data, *more;
    size_t n = p->n, at = r * n, i;

    if (!p->adds) {
        float *dx;

        if (c->din[0] == NULL)
            return;
        dx = op_floats_on(c->din[0], at, op_adds(c, 0) ? n : 0, room->out);
        store_dx(x, dy, scale, n, l, dx, op_adds(c, 0));
        op_floats_done(c->din[0], at, n, dx);
        return;
    }
    store_dx(x, dy, scale, n, l, room->out, false);
    if (c->dout[1] != NULL) {
        more = op_floats(c->dout[1], at, n, room->other);
        add_rows(more, room->out, n, room->out);
    }
    for (i = 0; i < COUNT_OF(both); i++) {
        const struct tensor *t = c->din[both[i]];
        bool add = op_adds(c, both[i]);
        float *to;

        if (t == NULL)
            continue;
        to = op_floats_on(t, at, add ? n : 0, room->other);
        if (add)
            add_rows(to, room->out, n, to);
        else
            memcpy(to, room->out, n * sizeof(*to));
        op_floats_done(t, at, n, to);
    }
}

static bool has_dout(const struct op_call *c)
{
    uint32_t i;

    for (i = 0; i < c->n_out; i++)
        if (c->dout[i] != NULL)
            return true;
    return false;
}

int layer_norm_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct layer_norm_param *p = c->param;
    const float *scale = c->in[1]->data;
    const struct row_stat *save = c->save;
    const struct tensor *from = p->adds ? c->out[1] : c->in[0];
    struct rooms room = rooms_at(c->scratch, p->n);
    struct work w = work_at(room.rest, p->n);
    size_t n = p->n, r;
    bool wants_scale = c->din[1] != NULL || (c->n_in > 2 && c->din[2] != NULL);

    (void)err; /* cannot fail */
    if (!has_dout(c)) {
        op_bwd_zero(c);
        return 0;
    }
    memset(room.rest, 0, work_bytes(n));
    for (r = 0; r < p->rows; r++) {
        const float *x = op_floats(from, r * n, n, room.x), *dy = w.spare; /* zeros */
        struct row_stat s = save[r];
        double sum, product;
        struct line l;

        if (c->dout[0] != NULL)
            dy = op_floats(c->dout[0], r * n, n, room.dy);
        row_products(x, dy, scale, n, s.mean, &sum, &product);
        l = row_line(c, r, s, sum, product);
        store_gradients(c, r, x, dy, &l, &room);
        if (!wants_scale)
            continue;
        add_row(x, dy, n, s.mean, s.rstd, w.part_scale, w.part_bias);
        if ((r + 1) % BLOCK == 0 || r + 1 == p->rows) {
            add_part(w.part_scale, w.scale, n);
            add_part(w.part_bias, w.bias, n);
        }
    }
    op_din_wide(c, 1, w.scale, n);
    op_din_wide(c, 2, w.bias, n);
    return 0;
}
