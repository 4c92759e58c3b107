/* rnn_cpu.c - the products and the walk over the steps.
 *
 * R is packed once per call and direction into the layout in which the library's kernel for a few
 * rows is fastest. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "op/dnn.h"
#include "op/op_priv.h"
#include "op/rnn/rnn_layout.h"

struct rnn_state {
    struct rnn_product product[RNN_PARTS];
    uint32_t parts;
    bool has_bias;
    bool keeps;          /* forward keeps its values in the save area; else in the scratch */
    size_t kept_bytes;   /* of one direction */
};

void rnn_cpu_free(void *state)
{
    struct rnn_state *s = state;
    uint32_t i;

    for (i = 0; s != NULL && i < RNN_PARTS; i++) {
        struct rnn_product *q = &s->product[i];

        dnn_free(q->x);
        dnn_free(q->h_pack);
        dnn_free(q->h);
        dnn_free(q->dh_pack);
        dnn_free(q->dh);
        dnn_free(q->dx);
        dnn_free(q->dx_add);
        dnn_free(q->dw);
        dnn_free(q->dr);
    }
    free(s);
}

struct work { /* the head of the scratch */
    struct rnn_work all;
    void *packed[RNN_PARTS]; /* R of a direction */
    float *row;              /* [RNN_ROW, H] */
    float *part;             /* a gradient that is added to another: [k, I or H] */
    void *rest;              /* the kernels' */
};

static struct work work_at(const struct rnn_param *p, const struct rnn_state *s, bool bwd,
                           void *scratch, size_t *bytes)
{
    struct work w = { 0 };
    char *at = scratch;
    uint32_t i;

    w.all = rnn_work_at(p, s->keeps ? 0 : s->kept_bytes, bwd, at, bytes);
    for (i = 0; i < s->parts; i++)
        w.packed[i] = rnn_take(
            at, bytes,
            op_max(dnn_arg_bytes(s->product[i].h_pack, 1),
                   s->product[i].dh != NULL ? dnn_arg_bytes(s->product[i].dh_pack, 1) : 0) /
                sizeof(float));
    if (bwd) {
        w.row = rnn_take(at, bytes, RNN_ROW * p->hidden);
        w.part = rnn_take(at, bytes, p->cell->gates * p->hidden * op_max(p->inputs, p->hidden));
    }
    w.rest = at != NULL ? at + *bytes : NULL;
    return w;
}

/* ---- plan ---- */

static int plan_product(const struct op_plan *p, struct rnn_state *s, uint32_t i, struct err *err)
{
    const struct rnn_param *r = p->param;
    struct rnn_product *q = &s->product[i];
    int64_t rows = (int64_t)(r->steps * r->batch), b = (int64_t)r->batch, k = (int64_t)q->k;
    int64_t in = (int64_t)r->inputs, n = (int64_t)r->hidden;
    bool apart = r->reset_after && i == 1; /* h R^T goes to e, not onto the gates */
    bool first = r->cell->has_e && i == 1 && !r->reset_after;
    struct dnn_matmul x = { .batch = 1, .m = rows, .n = k, .k = in, .trans_b = true,
                            .bias = s->has_bias };
    struct dnn_matmul h = { .batch = 1, .m = b, .n = k, .k = n, .trans_b = true, .packed = true,
                            .add = !apart, .bias = apart && s->has_bias };
    struct dnn_matmul dh = { .batch = 1, .m = b, .n = n, .k = k, .packed = true, .add = !first };
    struct dnn_matmul dx = { .batch = 1, .m = rows, .n = in, .k = k };
    struct dnn_matmul dw = { .batch = 1, .m = k, .n = in, .k = rows, .trans_a = true };
    struct dnn_matmul dr = { .batch = 1, .m = k, .n = n, .k = rows, .trans_a = true };
    int rc = dnn_matmul(&x, &q->x, err);

    if (rc == 0)
        rc = dnn_matmul_pack(&h, &q->h_pack, err);
    if (rc == 0)
        rc = dnn_matmul(&h, &q->h, err);
    if (rc < 0 || !s->keeps)
        return rc;
    rc = dnn_matmul_pack(&dh, &q->dh_pack, err);
    if (rc == 0)
        rc = dnn_matmul(&dh, &q->dh, err);
    if (rc == 0 && op_wants(p, RNN_X))
        rc = dnn_matmul(&dx, &q->dx, err);
    dx.add = true;
    if (rc == 0 && op_wants(p, RNN_X))
        rc = dnn_matmul(&dx, &q->dx_add, err);
    if (rc == 0 && op_wants(p, RNN_W))
        rc = dnn_matmul(&dw, &q->dw, err);
    if (rc == 0 && op_wants(p, RNN_R))
        rc = dnn_matmul(&dr, &q->dr, err);
    return rc;
}

static size_t kernel_scratch(const struct rnn_product *q)
{
    const struct dnn *all[] = { q->x, q->h_pack, q->h, q->dh_pack, q->dh, q->dx, q->dx_add, q->dw,
                                q->dr };
    size_t most = 0, i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        most = op_max(most, dnn_scratch_bytes(all[i]));
    return most;
}

int rnn_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct rnn_param *r = p->param;
    struct rnn_state *s = calloc(1, sizeof(*s));
    size_t kernels = 0, row = 0, fwd, bwd = 0;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    s->has_bias = p->n_in > RNN_B && p->in[RNN_B] != NULL;
    s->keeps = p->training && p->want_din != 0;
    while (s->parts < RNN_PARTS && r->cell->part[s->parts] > 0 && rc == 0) {
        struct rnn_product *q = &s->product[s->parts];

        q->first = row;
        q->k = r->cell->part[s->parts] * r->hidden;
        row += q->k;
        rc = plan_product(p, s, s->parts, err);
        kernels = op_max(kernels, kernel_scratch(q));
        s->parts++;
    }
    if (rc < 0) {
        rnn_cpu_free(s);
        return err_wrap(err, rc, "%s '%s'", p->def->name, p->node);
    }
    (void)rnn_kept_at(r, NULL, &s->kept_bytes);
    (void)work_at(r, s, false, NULL, &fwd);
    if (s->keeps) {
        p->save_bytes = r->dirs * s->kept_bytes;
        (void)work_at(r, s, true, NULL, &bwd);
    }
    p->scratch_bytes = op_max(fwd, bwd) + kernels;
    p->state = s;
    return 0;
}

/* ---- kernels for the cells ---- */

int rnn_run_h(const struct rnn_step *s, uint32_t part, const float *h, float *y, struct err *err)
{
    void *args[DNN_ARGS] = { (void *)(uintptr_t)h, s->packed[part], y,
                             (void *)(uintptr_t)s->bias_e };

    return dnn_run(s->product[part].h, args, s->scratch, err);
}

int rnn_run_dh(const struct rnn_step *s, uint32_t part, const float *gates, float *dh,
               struct err *err)
{
    void *args[DNN_ARGS] = { (void *)(uintptr_t)gates, s->packed[part], dh };

    return dnn_run(s->product[part].dh, args, s->scratch, err);
}

/* ---- rows of tensors that a direction reads and writes ---- */

/* An absent state is zero. */
static void read_state(const struct rnn_param *p, struct rnn_slice from, float *to)
{
    size_t n = p->hidden, b;

    if (from.at == NULL)
        memset(to, 0, p->batch * n * sizeof(float));
    for (b = 0; b < p->batch && from.at != NULL; b++)
        memcpy(to + b * n, from.at + b * from.step, n * sizeof(float));
}

static void write_state(const struct rnn_param *p, const float *from, struct rnn_slice to, bool add)
{
    size_t n = p->hidden, b;

    for (b = 0; b < p->batch && to.at != NULL; b++)
        op_store(to.at + b * to.step, from + b * n, n, 1.0f, add);
}

/* y of a step: h, or 0 after the end of a sequence. */
static void write_y(const struct rnn_step *s, struct rnn_slice y)
{
    size_t n = s->p->hidden, b;

    for (b = 0; b < s->p->batch && y.at != NULL; b++) {
        if (rnn_live(s, b))
            memcpy(y.at + b * y.step, s->at.h + b * n, n * sizeof(float));
        else
            memset(y.at + b * y.step, 0, n * sizeof(float));
    }
}

static void add_dy(const struct rnn_step *s, struct rnn_slice dy)
{
    size_t n = s->p->hidden, b;

    for (b = 0; b < s->p->batch && dy.at != NULL; b++)
        if (rnn_live(s, b))
            op_store(s->dh + b * n, dy.at + b * dy.step, n, 1.0f, true);
}

/* x [T, B, I]: the input itself, or its transpose in w->all.x. */
static const float *steps_of(const struct rnn_param *p, const struct op_call *c,
                             const struct work *w)
{
    const float *x = c->in[RNN_X]->data;
    size_t b, t;

    if (!p->batch_first)
        return x;
    for (b = 0; b < p->batch; b++)
        for (t = 0; t < p->steps; t++, x += p->inputs)
            memcpy(w->all.x + (t * p->batch + b) * p->inputs, x, p->inputs * sizeof(float));
    return w->all.x;
}

/* ---- one direction ---- */

static int pack(const struct rnn_state *s, const struct rnn_param *p, const struct op_call *c,
                uint32_t d, bool bwd, const struct work *w, struct err *err)
{
    uint32_t i;
    int rc = 0;

    for (i = 0; i < s->parts && rc == 0; i++) {
        const struct rnn_product *q = &s->product[i];
        float *r =
            (float *)c->in[RNN_R]->data + (d * p->cell->gates * p->hidden + q->first) * p->hidden;
        void *args[DNN_ARGS] = { r, w->packed[i] };

        rc = dnn_run(bwd ? q->dh_pack : q->h_pack, args, w->rest, err);
    }
    return rc;
}

static struct rnn_step new_step(const struct rnn_state *s, const struct op_call *c,
                                const struct work *w, uint32_t d)
{
    const struct tensor *length = rnn_input(c, RNN_LENGTHS);
    const struct tensor *peephole = rnn_input(c, RNN_PEEPHOLES);
    const struct rnn_param *p = c->param;

    return (struct rnn_step){ .p = p, .product = s->product, .packed = w->packed, .act = p->act[d],
                              .peephole = peephole != NULL ? (float *)peephole->data +
                                                                 d * 3 * p->hidden
                                                           : NULL,
                              .length = length != NULL ? length->data : NULL, .dh = w->all.dh,
                              .dc = w->all.dc, .spare = w->all.spare, .row = w->row,
                              .scratch = w->rest };
}

static int fwd_direction(const struct op_call *c, const struct work *w, const float *x, uint32_t d,
                         struct err *err)
{
    const struct rnn_param *p = c->param;
    const struct rnn_state *s = c->state;
    size_t rows = p->cell->gates * p->hidden, kept_bytes, i, t, state = p->batch * p->hidden;
    char *base = s->keeps ? c->save : w->all.kept;
    struct rnn_kept k = rnn_kept_at(p, base + d * s->kept_bytes, &kept_bytes);
    struct rnn_step step = new_step(s, c, w, d);
    bool reverse = rnn_is_reverse(p, d);
    size_t first = reverse ? p->steps * state : 0, last = reverse ? 0 : p->steps * state;
    const float *bias = s->has_bias ? (float *)c->in[RNN_B]->data + d * 2 * rows : NULL;
    int rc = pack(s, p, c, d, false, w, err);

    for (i = 0; i < rows && bias != NULL; i++) /* reset_after: the last gate has only W's */
        w->all.bias[i] = p->reset_after && i >= 2 * p->hidden ? bias[i] : bias[i] + bias[rows + i];
    step.bias_e = bias != NULL ? bias + rows + 2 * p->hidden : NULL;
    for (i = 0; i < s->parts && rc == 0; i++) {
        const struct rnn_product *q = &s->product[i];
        float *wx = (float *)c->in[RNN_W]->data + (d * rows + q->first) * p->inputs;
        void *args[DNN_ARGS] = { (void *)(uintptr_t)x, wx, k.gates[i], w->all.bias + q->first };

        rc = dnn_run(q->x, args, w->rest, err);
    }
    read_state(p, rnn_state_of(p, rnn_input(c, RNN_H), d), k.h + first);
    if (k.c != NULL)
        read_state(p, rnn_state_of(p, rnn_input(c, RNN_C), d), k.c + first);
    for (i = 0; i < p->steps && rc == 0; i++) {
        t = reverse ? p->steps - 1 - i : i;
        rnn_at_step(p, &k, reverse, t, &step.at);
        rc = p->cell->fwd(&step, err);
        write_y(&step, rnn_y_of(p, c->out[0], d, t));
    }
    if (c->n_out > 1)
        write_state(p, k.h + last, rnn_state_of(p, c->out[1], d), false);
    if (c->n_out > 2)
        write_state(p, k.c + last, rnn_state_of(p, c->out[2], d), false);
    return rc;
}

int rnn_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    const struct rnn_param *p = c->param;

    return err_set(err, ERR_INPUT, "sequence_lens has %" PRId64 " at %zu; expected 0 to %zu, the steps "
                   "of the input", value, at, p->steps);
}

static int check_lengths(const struct op_call *c, struct err *err)
{
    const struct rnn_param *p = c->param;
    const struct tensor *length = rnn_input(c, RNN_LENGTHS);
    size_t b;

    for (b = 0; length != NULL && b < p->batch; b++) {
        int32_t n = ((const int32_t *)length->data)[b];

        if (n < 0 || (size_t)n > p->steps)
            return rnn_refuse(c, b, n, err);
    }
    return 0;
}

int rnn_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct rnn_param *p = c->param;
    const struct rnn_state *s = c->state;
    size_t bytes;
    struct work w = work_at(p, s, false, c->scratch, &bytes);
    const float *x;
    uint32_t d;
    int rc = check_lengths(c, err);

    if (rc < 0)
        return rc;
    x = steps_of(p, c, &w);
    for (d = 0; d < p->dirs && rc == 0; d++)
        rc = fwd_direction(c, &w, x, d, err);
    return rc;
}

/* ---- backward ---- */

/* to [n] = a^T b, or += ; the kernel itself can only overwrite. */
static int put_product(struct dnn *d, const float *a, const float *b, float *to, size_t n, bool add,
                       const struct work *w, struct err *err)
{
    void *args[DNN_ARGS] = { (void *)(uintptr_t)a, (void *)(uintptr_t)b, add ? w->part : to };
    int rc = dnn_run(d, args, w->rest, err);

    if (rc == 0 && add)
        op_store(to, w->part, n, 1.0f, true);
    return rc;
}

/* The gradients of the biases of a part: sums of the gradients of the gates over all steps. */
static void bwd_bias(const struct op_call *c, const struct work *w, uint32_t d,
                     const struct rnn_product *q, const float *gates, const float *recurrent)
{
    const struct rnn_param *p = c->param;
    size_t rows = p->cell->gates * p->hidden;
    float *db = (float *)c->din[RNN_B]->data + d * 2 * rows + q->first;
    bool add = op_adds(c, RNN_B);

    op_sum_rows(gates, p->steps * p->batch, q->k, 1.0f, w->all.bias, false);
    op_store(db, w->all.bias, q->k, 1.0f, add);
    if (recurrent != gates)
        op_sum_rows(recurrent, p->steps * p->batch, q->k, 1.0f, w->all.bias, false);
    op_store(db + rows, w->all.bias, q->k, 1.0f, add);
}

static bool wants(const struct op_call *c, uint32_t i)
{
    return i < c->n_in && c->din[i] != NULL;
}

/* After the last step: the gradients of W, R, B and x from one part. */
static int bwd_part(const struct op_call *c, const struct work *w, const struct rnn_kept *k,
                    const float *x, float *dx, bool dx_add, uint32_t d, uint32_t i, struct err *err)
{
    const struct rnn_param *p = c->param;
    const struct rnn_product *q = &((const struct rnn_state *)c->state)->product[i];
    size_t first = d * p->cell->gates * p->hidden + q->first;
    const float *gates = k->gates[i], *recurrent = gates;
    const float *h = k->h + (rnn_is_reverse(p, d) ? p->batch * p->hidden : 0); /* h_prev */
    int rc = 0;

    if (k->e != NULL && i == 1 && p->reset_after)
        recurrent = k->e;
    else if (k->e != NULL && i == 1)
        h = k->e;
    if (wants(c, RNN_W))
        rc = put_product(q->dw, gates, x, (float *)c->din[RNN_W]->data + first * p->inputs,
                         q->k * p->inputs, op_adds(c, RNN_W), w, err);
    if (rc == 0 && wants(c, RNN_R))
        rc = put_product(q->dr, recurrent, h, (float *)c->din[RNN_R]->data + first * p->hidden,
                         q->k * p->hidden, op_adds(c, RNN_R), w, err);
    if (rc == 0 && wants(c, RNN_B))
        bwd_bias(c, w, d, q, gates, recurrent);
    if (rc == 0 && dx != NULL) {
        void *args[DNN_ARGS] = { (void *)(uintptr_t)gates,
                                 (float *)c->in[RNN_W]->data + first * p->inputs, dx };

        rc = dnn_run(dx_add ? q->dx_add : q->dx, args, w->rest, err);
    }
    return rc;
}

static int bwd_direction(const struct op_call *c, const struct work *w, const float *x, float *dx,
                         bool dx_add, uint32_t d, struct err *err)
{
    const struct rnn_param *p = c->param;
    const struct rnn_state *s = c->state;
    size_t kept_bytes, i;
    struct rnn_kept k = rnn_kept_at(p, (char *)c->save + d * s->kept_bytes, &kept_bytes);
    struct rnn_step step = new_step(s, c, w, d);
    bool reverse = rnn_is_reverse(p, d);
    int rc = pack(s, p, c, d, true, w, err);

    read_state(p, rnn_state_of(p, c->n_out > 1 ? c->dout[1] : NULL, d), w->all.dh);
    read_state(p, rnn_state_of(p, c->n_out > 2 ? c->dout[2] : NULL, d), w->all.dc);
    for (i = 0; i < p->steps && rc == 0; i++) {
        size_t t = reverse ? i : p->steps - 1 - i;

        rnn_at_step(p, &k, reverse, t, &step.at);
        add_dy(&step, rnn_y_of(p, c->dout[0], d, t));
        rc = p->cell->bwd(&step, err);
    }
    if (wants(c, RNN_H))
        write_state(p, w->all.dh, rnn_state_of(p, c->din[RNN_H], d), op_adds(c, RNN_H));
    if (wants(c, RNN_C))
        write_state(p, w->all.dc, rnn_state_of(p, c->din[RNN_C], d), op_adds(c, RNN_C));
    if (wants(c, RNN_PEEPHOLES)) {
        size_t state = p->batch * p->hidden;

        p->cell->peepholes(p, k.gates[0], k.c + reverse * state, k.c + !reverse * state,
                           (float *)c->din[RNN_PEEPHOLES]->data + d * 3 * p->hidden,
                           op_adds(c, RNN_PEEPHOLES));
    }
    for (i = 0; i < s->parts && rc == 0; i++)
        rc = bwd_part(c, w, &k, x, dx, dx_add || i > 0, d, (uint32_t)i, err);
    return rc;
}

/* dx [T, B, I] -> [B, T, I] */
static void write_dx(const struct rnn_param *p, const struct op_call *c, const float *dx)
{
    float *to = c->din[RNN_X]->data;
    size_t b, t;

    for (b = 0; b < p->batch; b++)
        for (t = 0; t < p->steps; t++, to += p->inputs)
            op_store(to, dx + (t * p->batch + b) * p->inputs, p->inputs, 1.0f, op_adds(c, RNN_X));
}

int rnn_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct rnn_param *p = c->param;
    const struct rnn_state *s = c->state;
    size_t bytes;
    struct work w = work_at(p, s, true, c->scratch, &bytes);
    float *dx = NULL;
    const float *x;
    uint32_t d, i;
    int rc = 0;

    for (i = 0; i < c->n_out && c->dout[i] == NULL; i++)
        continue;
    if (i == c->n_out) {
        op_bwd_zero(c);
        return 0;
    }
    x = steps_of(p, c, &w);
    if (c->din[RNN_X] != NULL)
        dx = p->batch_first ? w.all.dx : c->din[RNN_X]->data;
    for (d = 0; d < p->dirs && rc == 0; d++)
        rc = bwd_direction(c, &w, x, dx, d > 0 || (!p->batch_first && op_adds(c, RNN_X)), d, err);
    if (rc == 0 && dx != NULL && p->batch_first)
        write_dx(p, c, dx);
    return rc;
}
