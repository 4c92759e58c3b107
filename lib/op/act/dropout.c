/* dropout.c - Dropout: y = x / (1 - ratio) where kept, 0 where dropped; each element is dropped
 * with probability `ratio`.   dx = dy / (1 - ratio) where kept, 0 where dropped.
 *
 * Element i in the order of the shape (not of the layout) is dropped if its random word, a
 * function of (seed, step, lane, node, i), is below ratio * 2^32. The mask therefore depends
 * neither on the replica that computes it nor on the layout. It is saved as one byte per
 * element, in the order of memory.
 *
 * From opset 12 on, ratio and training_mode are inputs, which must be constants here; a node
 * drops only if its training_mode is true and the plan trains. Before opset 12, ratio is an
 * attribute, and no flag distinguishes training from inference: the node drops whenever the plan
 * trains. The `seed` attribute is accepted and has no effect; the job's seed is used. */
#include "op/act/dropout.h"

#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "op/op.h"
#include "op/half.h"
#include "op/op_priv.h"

/* ---- infer ---- */

int dropout_finish(const struct op_infer *f, double ratio, bool drops, int64_t n, struct dropout *d,
                   struct err *err)
{
    if (!(ratio >= 0 && ratio <= 1))
        return op_error(f, ERR_INPUT, err, "ratio is %g; expected 0 to 1", ratio);
    if (n > (int64_t)1 << 34)
        return op_error(f, ERR_UNSUPPORTED, err, "more than 2^34 elements have no random numbers");
    d->drops = drops && f->training && ratio > 0;
    d->below = (uint64_t)(ratio * 0x1p32 + 0.5);
    d->scale = ratio < 1 ? (float)(1 / (1 - ratio)) : 0;
    return 0;
}

static int infer_common(struct op_infer *f, double ratio, bool drops, struct err *err)
{
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = dropout_finish(f, ratio, drops, shape_elements(&f->out[0].shape), f->param, err);
    if (rc < 0)
        return rc;
    if (f->n_out > 1) {
        f->out[1].dtype = f->opset < 10 ? TENSOR_F32 : TENSOR_BOOL;
        f->out[1].shape = f->out[0].shape;
    }
    return 0;
}

static const struct tensor *input(const struct op_infer *f, uint32_t i)
{
    return i < f->n_in ? f->in[i] : NULL;
}

/* Checks that input i is a constant with a single element of one of two types. */
static int need_constant(const struct op_infer *f, uint32_t i, const char *name,
                         enum tensor_dtype one, enum tensor_dtype two, struct err *err)
{
    const struct tensor *t = f->in[i];
    char text[192];

    if (t->dtype != one && t->dtype != two)
        return op_error(f, ERR_INPUT, err, "%s is %s; expected %s", name,
                        tensor_dtype_name(t->dtype), tensor_dtype_name(one));
    if (tensor_elements(t) != 1)
        return op_error(f, ERR_INPUT, err, "%s has shape %s; expected a scalar", name,
                        shape_print(&t->shape, text, sizeof(text)));
    if (t->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "%s is computed by the graph; it must be a constant of the model", name);
    return 0;
}

static int infer_12(struct op_infer *f, struct err *err)
{
    const struct tensor *ratio = input(f, 1), *mode = input(f, 2);
    bool drops = false;
    double r = 0.5;
    int rc = 0;

    if (ratio != NULL) {
        rc = need_constant(f, 1, "ratio", TENSOR_F32, TENSOR_F64, err);
        if (rc < 0)
            return rc;
        r = ratio->dtype == TENSOR_F32 ? *(const float *)ratio->data : *(const double *)ratio->data;
    }
    if (mode != NULL) {
        rc = need_constant(f, 2, "training_mode", TENSOR_BOOL, TENSOR_BOOL, err);
        if (rc < 0)
            return rc;
        drops = *(const uint8_t *)mode->data != 0;
    }
    return infer_common(f, r, drops, err);
}

static int infer_7(struct op_infer *f, struct err *err)
{
    float ratio;
    int rc = op_attr_f(f, "ratio", 0.5f, &ratio, err);

    return rc < 0 ? rc : infer_common(f, ratio, true, err);
}

static int dropout_plan(struct op_plan *p, struct err *err)
{
    const struct dropout *d = p->param;

    (void)err;
    if (d->drops)
        p->save_bytes = (size_t)tensor_elements(p->in[0]);
    return 0;
}

/* ---- kernels ---- */

INLINED void keep_words(const uint32_t *word, uint64_t below, size_t n, uint8_t *keep, size_t step)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        keep[i * step] = word[i] >= below;
}

CLONES static void keep_row(const uint32_t *word, uint64_t below, size_t n, uint8_t *keep)
{
    keep_words(word, below, n, keep, 1);
}

/* Computes keep[i] for the n elements from index `first` on, in the order of the shape. The bytes
 * are `step` apart. */
static void draw_run(const struct rng_key *key, uint64_t below, uint64_t first, size_t n,
                     uint8_t *keep, size_t step)
{
    enum { BLOCKS = 64 };
    uint32_t word[4 * BLOCKS];

    while (n > 0) {
        uint32_t skip = (uint32_t)(first & 3);
        size_t some = 4 * BLOCKS - skip < n ? 4 * BLOCKS - skip : n;

        rng_blocks(key, (uint32_t)(first >> 2), (uint32_t)((skip + some + 3) / 4), word);
        if (step == 1)
            keep_row(word + skip, below, some, keep);
        else
            keep_words(word + skip, below, some, keep, step);
        first += some;
        keep += some * step;
        n -= some;
    }
}

void dropout_draw(const struct dropout *d, const struct op_call *c, uint64_t first, size_t n,
                  uint8_t *keep)
{
    const struct rng_key key = { c->run->seed, (uint32_t)c->run->step, c->run->lane, c->stream };

    draw_run(&key, d->below, first, n, keep, 1);
}

static void draw(const struct op_call *c, uint8_t *keep)
{
    const struct dropout *p = c->param;
    const struct tensor *x = c->in[0];
    const struct rng_key key = { c->run->seed, (uint32_t)c->run->step, c->run->lane, c->stream };
    size_t n = (size_t)tensor_elements(x), i, channels, inner;

    if (x->layout == TENSOR_PLAIN || x->shape.rank < 3 || n == 0) {
        draw_run(&key, p->below, 0, n, keep, 1);
        return;
    }
    channels = (size_t)x->shape.dim[1];
    inner = n / channels / (size_t)x->shape.dim[0];
    for (i = 0; i < n / inner; i++) /* the elements of a channel of a sample */
        draw_run(&key, p->below, (uint64_t)i * inner, inner,
                 keep + i / channels * channels * inner + i % channels, channels);
}

CLONES static void apply(size_t n, const float *x, const uint8_t *keep, float scale, float *y,
                         bool add)
{
    size_t i;

    if (add) {
        OP_EACH
        for (i = 0; i < n; i++)
            y[i] += keep[i] != 0 ? x[i] * scale : 0.0f;
    } else {
        OP_EACH
        for (i = 0; i < n; i++)
            y[i] = keep[i] != 0 ? x[i] * scale : 0.0f;
    }
}

/* Does what apply() does, for tensors; bfloat16 is converted in chunks. */
static void apply_to(const struct tensor *x, const uint8_t *keep, float scale,
                     const struct tensor *y, bool add)
{
    size_t n = (size_t)tensor_elements(x), at, m;
    float room[2][OP_CHUNK], *to;

    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, op_is_half(x));
        to = op_floats_on(y, at, add ? m : 0, room[1]);
        apply(m, op_floats(x, at, m, room[0]), keep + at, scale, to, add);
        op_floats_done(y, at, m, to);
    }
}

static void write_mask(const struct tensor *out, const uint8_t *keep)
{
    size_t n = (size_t)tensor_elements(out), i;
    float *f = out->data;

    if (out->dtype == TENSOR_BOOL && keep != NULL)
        memcpy(out->data, keep, n);
    else if (out->dtype == TENSOR_BOOL)
        memset(out->data, 1, n);
    else
        for (i = 0; i < n; i++)
            f[i] = keep == NULL || keep[i] != 0 ? 1.0f : 0.0f;
}

static int dropout_fwd(const struct op_call *c, struct err *err)
{
    const struct dropout *p = c->param;
    uint8_t *keep = p->drops ? c->save : NULL;

    (void)err;
    if (keep != NULL) {
        draw(c, keep);
        if (c->out[0] != NULL)
            apply_to(c->in[0], keep, p->scale, c->out[0], false);
    } else if (c->out[0] != NULL && c->out[0]->data != c->in[0]->data) {
        memcpy(c->out[0]->data, c->in[0]->data, tensor_bytes(c->in[0]));
    }
    if (c->n_out > 1 && c->out[1] != NULL)
        write_mask(c->out[1], keep);
    return 0;
}

static int dropout_bwd(const struct op_call *c, struct err *err)
{
    const struct dropout *p = c->param;
    bool add = (c->din_add & OP_IN(0)) != 0;
    size_t n = (size_t)tensor_elements(c->in[0]);

    (void)err;
    if (c->dout[0] == NULL || c->din[0] == NULL)
        op_bwd_zero(c);
    else if (p->drops)
        apply_to(c->dout[0], c->save, p->scale, c->din[0], add);
    else
        op_store_as(c->din[0], c->dout[0]->data, n, 1.0f, add);
    return 0;
}

static const char *const attrs_12[] = { "seed", NULL };
static const char *const attrs_7[] = { "ratio", NULL };

const struct op_def op_dropout_12 = {
    .name = "Dropout",
    .since = 12,
    .n_in = { 1, 3 },
    .n_out = { 1, 2 },
    .attrs = attrs_12,
    .param_bytes = sizeof(struct dropout),
    .infer = infer_12,
    .diff = OP_IN(0),
    .in_place = true,
    .random = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { dropout_plan, dropout_fwd, dropout_bwd, NULL },
};

const struct op_def op_dropout_7 = {
    .name = "Dropout",
    .since = 7,
    .until = 11,
    .n_in = { 1, 1 },
    .n_out = { 1, 2 },
    .attrs = attrs_7,
    .param_bytes = sizeof(struct dropout),
    .infer = infer_7,
    .diff = OP_IN(0),
    .in_place = true,
    .random = true,
    .layout = OP_LAYOUT_ANY,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { dropout_plan, dropout_fwd, dropout_bwd, NULL },
};
