/* random.c - tensors of random numbers:
 *   RandomUniform (1), RandomUniformLike (1)   low + (high - low) u, u in [0, 1)
 *   RandomNormal (1), RandomNormalLike (1)     mean + scale z
 *   Bernoulli (15)                             1 with the probability given by the input, else 0
 *   Multinomial (7)                            classes, drawn with the probabilities softmax(input)
 *
 * Element i in the order of the shape is computed from the random word of its coordinates (seed,
 * step, lane, node, i), as in Dropout: the same numbers on CPUs and GPUs and on whichever task
 * computes the lane. Evaluation and `trainerctl run` draw them, too, because the file does not
 * distinguish training from inference. The `seed` attribute has no effect: the seed of the job
 * applies. A draw has no gradient; operations on the drawn numbers are differentiated as usual. */
#include "op/random/random.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "op/op_priv.h"
#include "op/random/draw.h"

enum { BLOCKS = 64 }; /* of random words per iteration */

/* ---- infer ---- */

static int check_size(const struct op_infer *f, struct err *err)
{
    int rc = op_check_size(f, err);

    if (rc == 0 && shape_elements(&f->out[0].shape) > (int64_t)1 << 34)
        rc = op_error(f, ERR_UNSUPPORTED, err, "more than 2^34 random elements are not supported");
    return rc;
}

static int float_type(struct op_infer *f, enum tensor_dtype dflt, struct err *err)
{
    int64_t dtype;
    int rc = op_attr_i(f, "dtype", dflt, &dtype, err);

    if (rc < 0)
        return rc;
    if (dtype != TENSOR_F32)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "draws %s; supported is float32: export the model after model.float()",
                        tensor_dtype_name((enum tensor_dtype)dtype));
    f->out[0].dtype = TENSOR_F32;
    return 0;
}

static int read_uniform(struct op_infer *f, struct err *err)
{
    struct draw *d = f->param;
    float high;
    int rc = op_attr_f(f, "low", 0, &d->base, err);

    if (rc == 0)
        rc = op_attr_f(f, "high", 1, &high, err);
    if (rc < 0)
        return rc;
    if (!(high >= d->base) || isinf(high - d->base))
        return op_error(f, ERR_INPUT, err, "low is %g and high is %g; expected a finite range",
                        (double)d->base, (double)high);
    d->scale = high - d->base;
    return 0;
}

static int read_normal(struct op_infer *f, struct err *err)
{
    struct draw *d = f->param;
    int rc = op_attr_f(f, "mean", 0, &d->base, err);

    return rc < 0 ? rc : op_attr_f(f, "scale", 1, &d->scale, err);
}

/* Reads the shape from the attribute. */
static int listed_shape(struct op_infer *f, struct err *err)
{
    const int64_t *dims;
    size_t n, k;
    int rc = op_attr_ints(f, "shape", &dims, &n, err);

    if (rc == 0)
        rc = float_type(f, TENSOR_F32, err);
    if (rc < 0)
        return rc;
    if (n > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err, "the shape has %zu dimensions; supported are %d",
                        n, TENSOR_MAX_RANK);
    f->out[0].shape.rank = (uint32_t)n;
    for (k = 0; k < n; k++) {
        if (dims[k] < 0)
            return op_error(f, ERR_INPUT, err, "the shape has %" PRId64 " at %zu", dims[k], k);
        f->out[0].shape.dim[k] = dims[k];
    }
    return check_size(f, err);
}

static int shape_like(struct op_infer *f, struct err *err)
{
    int rc;

    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = float_type(f, f->in[0]->dtype, err);
    f->out[0].shape = f->in[0]->shape;
    return rc < 0 ? rc : check_size(f, err);
}

static int uniform_infer(struct op_infer *f, struct err *err)
{
    int rc = read_uniform(f, err);

    return rc < 0 ? rc : listed_shape(f, err);
}

static int normal_infer(struct op_infer *f, struct err *err)
{
    int rc = read_normal(f, err);

    return rc < 0 ? rc : listed_shape(f, err);
}

static int uniform_like_infer(struct op_infer *f, struct err *err)
{
    int rc = read_uniform(f, err);

    return rc < 0 ? rc : shape_like(f, err);
}

static int normal_like_infer(struct op_infer *f, struct err *err)
{
    int rc = read_normal(f, err);

    return rc < 0 ? rc : shape_like(f, err);
}

static int bernoulli_infer(struct op_infer *f, struct err *err)
{
    int64_t dtype;
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_attr_i(f, "dtype", TENSOR_F32, &dtype, err);
    if (rc < 0)
        return rc;
    if (dtype != TENSOR_F32 && dtype != TENSOR_BOOL && dtype != TENSOR_I32 && dtype != TENSOR_I64)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "draws %s; supported are float32, bool, int32 and int64",
                        tensor_dtype_name((enum tensor_dtype)dtype));
    f->out[0].dtype = (enum tensor_dtype)dtype;
    f->out[0].shape = f->in[0]->shape;
    return check_size(f, err);
}

static int multinomial_infer(struct op_infer *f, struct err *err)
{
    struct choice *m = f->param;
    int64_t dtype;
    int rc = op_check_input(f, 0, TENSOR_F32, 2, err);

    if (rc == 0)
        rc = op_attr_i(f, "dtype", TENSOR_I32, &dtype, err);
    if (rc == 0)
        rc = op_attr_i(f, "sample_size", 1, &m->samples, err);
    if (rc < 0)
        return rc;
    m->rows = f->in[0]->shape.dim[0];
    m->classes = f->in[0]->shape.dim[1];
    if ((dtype != TENSOR_I32 && dtype != TENSOR_I64) || m->samples < 1 || m->classes < 1)
        return op_error(f, ERR_INPUT, err,
                        "draws %" PRId64 " of %" PRId64 " classes as %s; expected at least 1 of at "
                        "least 1, as int32 or int64",
                        m->samples, m->classes, tensor_dtype_name((enum tensor_dtype)dtype));
    f->out[0].dtype = (enum tensor_dtype)dtype;
    f->out[0].shape = shape_of(2, m->rows, m->samples);
    return check_size(f, err);
}

/* ---- kernels ---- */

static struct rng_key key_of(const struct op_call *c)
{
    return (struct rng_key){ c->run->seed, (uint32_t)c->run->step, c->run->lane, c->stream };
}

CLONES static void uniform_row(const uint32_t *word, size_t n, float base, float scale, float *y)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = DRAW_ADD(base, DRAW_MUL(scale, draw_uniform(word[i])));
}

CLONES static void normal_row(const uint32_t *word, size_t n, float base, float scale, float *y)
{
    float z[4 * BLOCKS] = { 0 };
    size_t i;

    OP_EACH
    for (i = 0; i < (n + 1) / 2; i++)
        draw_normal(word[2 * i], word[2 * i + 1], &z[2 * i], &z[2 * i + 1]);
    OP_EACH
    for (i = 0; i < n; i++)
        y[i] = DRAW_ADD(base, DRAW_MUL(scale, z[i]));
}

typedef void row_fn(const uint32_t *word, size_t n, float base, float scale, float *y);

static int draw_all(const struct op_call *c, row_fn *row)
{
    const struct draw *d = c->param;
    const struct rng_key key = key_of(c);
    size_t n = (size_t)tensor_elements(c->out[0]), at, some;
    uint32_t word[4 * BLOCKS];
    float *y = c->out[0]->data;

    for (at = 0; at < n; at += some) {
        some = n - at < 4 * BLOCKS ? n - at : 4 * BLOCKS;
        rng_blocks(&key, (uint32_t)(at / 4), (uint32_t)((some + 3) / 4), word);
        row(word, some, d->base, d->scale, y + at);
    }
    return 0;
}

static int uniform_fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    return draw_all(c, uniform_row);
}

static int normal_fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    return draw_all(c, normal_row);
}

static void store_one(const struct tensor *y, size_t i, int64_t value)
{
    switch ((int)y->dtype) {
    case TENSOR_F32: ((float *)y->data)[i] = (float)value; return;
    case TENSOR_I32: ((int32_t *)y->data)[i] = (int32_t)value; return;
    case TENSOR_I64: ((int64_t *)y->data)[i] = value; return;
    default: ((uint8_t *)y->data)[i] = (uint8_t)value; return;
    }
}

static int bernoulli_fwd(const struct op_call *c, struct err *err)
{
    const struct rng_key key = key_of(c);
    size_t n = (size_t)tensor_elements(c->out[0]), at, some, i;
    const float *p = c->in[0]->data;
    uint32_t word[4 * BLOCKS];

    (void)err;
    for (at = 0; at < n; at += some) {
        some = n - at < 4 * BLOCKS ? n - at : 4 * BLOCKS;
        rng_blocks(&key, (uint32_t)(at / 4), (uint32_t)((some + 3) / 4), word);
        for (i = 0; i < some; i++)
            store_one(c->out[0], at + i, draw_uniform(word[i]) < p[at + i]);
    }
    return 0;
}

static int multinomial_fwd(const struct op_call *c, struct err *err)
{
    const struct choice *m = c->param;
    const struct rng_key key = key_of(c);
    int64_t r, s;

    (void)err;
    for (r = 0; r < m->rows; r++) {
        const float *x = (const float *)c->in[0]->data + r * m->classes;
        float max;
        double total = draw_total(x, m->classes, &max);

        for (s = 0; s < m->samples; s++) {
            uint64_t i = (uint64_t)(r * m->samples + s);

            store_one(c->out[0], (size_t)i,
                      draw_class(x, m->classes, max, total, rng_u32(&key, i)));
        }
    }
    return 0;
}

/* ---- op definitions ---- */

static const char *const uniform_attrs[] = { "dtype", "high", "low", "seed", "shape", NULL };
static const char *const normal_attrs[] = { "dtype", "mean", "scale", "seed", "shape", NULL };
static const char *const uniform_like_attrs[] = { "dtype", "high", "low", "seed", NULL };
static const char *const normal_like_attrs[] = { "dtype", "mean", "scale", "seed", NULL };
static const char *const bernoulli_attrs[] = { "dtype", "seed", NULL };
static const char *const multinomial_attrs[] = { "dtype", "sample_size", "seed", NULL };

#define ROW(op_, name_, since_, n_in_, attrs_, param_, infer_, fwd_)                               \
    const struct op_def op_ = {                                                                    \
        .name = (name_),                                                                           \
        .since = (since_),                                                                         \
        .n_in = { (n_in_), (n_in_) },                                                              \
        .n_out = { 1, 1 },                                                                         \
        .attrs = (attrs_),                                                                         \
        .param_bytes = (param_),                                                                   \
        .infer = (infer_),                                                                         \
        .random = true,                                                                            \
        .layout = OP_LAYOUT_PLAIN,                                                                 \
        .cpu = { .fwd = (fwd_) },                                                                  \
    };

ROW(op_random_uniform, "RandomUniform", 1, 0, uniform_attrs, sizeof(struct draw), uniform_infer,
    uniform_fwd)
ROW(op_random_normal, "RandomNormal", 1, 0, normal_attrs, sizeof(struct draw), normal_infer,
    normal_fwd)
ROW(op_random_uniform_like, "RandomUniformLike", 1, 1, uniform_like_attrs, sizeof(struct draw),
    uniform_like_infer, uniform_fwd)
ROW(op_random_normal_like, "RandomNormalLike", 1, 1, normal_like_attrs, sizeof(struct draw),
    normal_like_infer, normal_fwd)
ROW(op_bernoulli, "Bernoulli", 15, 1, bernoulli_attrs, 0, bernoulli_infer, bernoulli_fwd)
ROW(op_multinomial, "Multinomial", 7, 1, multinomial_attrs, sizeof(struct choice),
    multinomial_infer, multinomial_fwd)
