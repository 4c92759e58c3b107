/* rnn.c - LSTM, GRU, RNN: x [T, B, I], W [D, G H, I], R [D, G H, H], B [D, 2 G H] (of W, then of
 * R), lengths [B] int32, initial h and c [D, B, H] -> y [T, D, B, H], last h and c [D, B, H]. D is
 * 2 for bidirectional, else 1. layout 1 (opset 14): x [B, T, I], y [B, T, D, H], states [B, D, H].
 * After the end of a sequence y is 0 and the state stays; a reverse direction begins at its end.
 * The cells: lstm.c (with peepholes P [D, 3 H], of i, o, f), gru.c, plain.c; their functions:
 * function.c. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/rnn/rnn_priv.h"

static struct rnn_numbers read_numbers(const struct op_infer *f, const char *name)
{
    uint32_t i;

    for (i = 0; i < f->n_attrs; i++)
        if (strcmp(f->attrs[i].name, name) == 0 && f->attrs[i].type == OP_ATTR_FLOATS)
            return (struct rnn_numbers){ f->attrs[i].floats, f->attrs[i].n };
    return (struct rnn_numbers){ 0 };
}

/* The functions of the gates, `usual` [n_acts] unless the node names others; those but h are
 * clipped. */
static int read_functions(const struct op_infer *f, const char *const *usual, size_t n_acts,
                          struct err *err)
{
    struct rnn_numbers alpha = read_numbers(f, "activation_alpha");
    struct rnn_numbers beta = read_numbers(f, "activation_beta");
    struct rnn_param *p = f->param;
    const char *const *given;
    float clip = INFINITY;
    size_t n, i;
    int rc = op_attr_strings(f, "activations", &given, &n, err);

    if (rc == 0)
        rc = op_attr_f(f, "clip", INFINITY, &clip, err);
    if (rc == 0 && !(clip > 0))
        rc = op_error(f, ERR_INPUT, err, "attribute 'clip' is %g; expected a number above 0",
                      (double)clip);
    if (rc == 0 && given != NULL && n != n_acts * p->dirs)
        rc = op_error(f, ERR_INPUT, err, "attribute 'activations' has %zu names; expected %zu for "
                      "each direction", n, n_acts);
    for (i = 0; i < n_acts * p->dirs && rc == 0; i++) {
        struct rnn_act *a = &p->act[i / n_acts][i % n_acts];

        rc = rnn_act_init(f, given != NULL ? given[i] : usual[i % n_acts], &alpha, &beta, a, err);
        if (rc == 0 && clip < INFINITY && i % n_acts < RNN_ACTS - 1)
            rnn_act_clip(a, clip);
    }
    return rc;
}

static int read_attrs(const struct op_infer *f, struct rnn_param *p, int64_t *hidden,
                      struct err *err)
{
    const char *direction;
    int64_t layout;
    int rc = op_attr_s(f, "direction", "forward", &direction, err);

    if (rc == 0)
        rc = op_attr_i(f, "layout", 0, &layout, err);
    if (rc == 0)
        rc = op_attr_i(f, "hidden_size", 0, hidden, err);
    if (rc < 0)
        return rc;
    p->dirs = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
    p->reverse = strcmp(direction, "reverse") == 0;
    if (p->dirs == 1 && !p->reverse && strcmp(direction, "forward") != 0)
        return op_error(f, ERR_INPUT, err, "attribute 'direction' is '%s'; expected forward, "
                        "reverse or bidirectional", direction);
    if (layout != 0 && layout != 1)
        return op_error(f, ERR_INPUT, err, "attribute 'layout' is %" PRId64 "; expected 0 or 1",
                        layout);
    p->batch_first = layout == 1;
    return 0;
}

/* Input i must be of this shape. It may be absent unless `must`. */
static int check_shape(const struct op_infer *f, uint32_t i, const char *what, bool must,
                       enum tensor_dtype dtype, struct shape want, struct err *err)
{
    char got[192], text[192];
    int rc;

    if (!must && (i >= f->n_in || f->in[i] == NULL))
        return 0;
    rc = op_check_input(f, i, dtype, -1, err);
    if (rc == 0 && !shape_equal(&f->in[i]->shape, &want))
        rc = op_error(f, ERR_INPUT, err, "input %" PRIu32 " (%s) has shape %s; expected %s", i,
                      what, shape_print(&f->in[i]->shape, got, sizeof(got)),
                      shape_print(&want, text, sizeof(text)));
    return rc;
}

static struct shape state_shape(const struct rnn_param *p)
{
    int64_t d = p->dirs, b = (int64_t)p->batch, h = (int64_t)p->hidden;

    return p->batch_first ? shape_of(3, b, d, h) : shape_of(3, d, b, h);
}

static int check_inputs(const struct op_infer *f, const struct rnn_param *p, struct err *err)
{
    int64_t d = p->dirs, rows = (int64_t)(p->cell->gates * p->hidden);
    int64_t h = (int64_t)p->hidden;
    int rc =
        check_shape(f, RNN_W, "W", true, TENSOR_F32, shape_of(3, d, rows, (int64_t)p->inputs), err);

    if (rc == 0)
        rc = check_shape(f, RNN_R, "R", true, TENSOR_F32, shape_of(3, d, rows, h), err);
    if (rc == 0)
        rc = check_shape(f, RNN_B, "B", false, TENSOR_F32, shape_of(2, d, 2 * rows), err);
    if (rc == 0)
        rc = check_shape(f, RNN_LENGTHS, "sequence_lens", false, TENSOR_I32,
                         shape_of(1, (int64_t)p->batch), err);
    if (rc == 0)
        rc = check_shape(f, RNN_H, "initial_h", false, TENSOR_F32, state_shape(p), err);
    if (rc == 0)
        rc = check_shape(f, RNN_C, "initial_c", false, TENSOR_F32, state_shape(p), err);
    if (rc == 0)
        rc = check_shape(f, RNN_PEEPHOLES, "P", false, TENSOR_F32, shape_of(2, d, 3 * h), err);
    return rc;
}

static int infer(struct op_infer *f, const struct rnn_cell *cell, struct err *err)
{
    struct rnn_param *p = f->param;
    const struct shape *x, *r;
    int64_t hidden, y[4];
    uint32_t i;
    int rc = op_check_input(f, RNN_X, TENSOR_F32, 3, err);

    if (rc == 0)
        rc = op_check_input(f, RNN_R, TENSOR_F32, 3, err);
    if (rc == 0)
        rc = read_attrs(f, p, &hidden, err);
    if (rc < 0)
        return rc;
    x = &f->in[RNN_X]->shape;
    r = &f->in[RNN_R]->shape;
    p->cell = cell;
    p->steps = (size_t)x->dim[p->batch_first ? 1 : 0];
    p->batch = (size_t)x->dim[p->batch_first ? 0 : 1];
    p->inputs = (size_t)x->dim[2];
    p->hidden = (size_t)r->dim[2];
    if (hidden != 0 && hidden != r->dim[2])
        return op_error(f, ERR_INPUT, err, "attribute 'hidden_size' is %" PRId64 ", the weights R "
                        "have %" PRId64, hidden, r->dim[2]);
    if (x->dim[2] < 1 || r->dim[2] < 1 || x->dim[0] > INT32_MAX || x->dim[1] > INT32_MAX ||
        x->dim[2] > INT32_MAX || r->dim[2] > INT32_MAX / 8)
        return op_error(f, ERR_INPUT, err, "there are %" PRId64 " inputs and %" PRId64
                        " hidden values; expected at least 1 of each", x->dim[2], r->dim[2]);
    rc = check_inputs(f, p, err);
    y[p->batch_first ? 0 : 2] = (int64_t)p->batch;
    y[p->batch_first ? 1 : 0] = (int64_t)p->steps;
    y[p->batch_first ? 2 : 1] = p->dirs;
    y[3] = (int64_t)p->hidden;
    f->out[0].shape = shape_of(4, y[0], y[1], y[2], y[3]);
    for (i = 0; i < f->n_out; i++) {
        f->out[i].dtype = TENSOR_F32;
        if (i > 0)
            f->out[i].shape = state_shape(p);
    }
    return rc < 0 ? rc : op_check_size(f, err);
}

static int infer_lstm(struct op_infer *f, struct err *err)
{
    static const char *const usual[] = { "Sigmoid", "Tanh", "Tanh" };
    struct rnn_param *p = f->param;
    int64_t coupled;
    int rc = op_attr_i(f, "input_forget", 0, &coupled, err);

    if (rc == 0)
        rc = infer(f, &rnn_lstm, err);
    p->coupled = rc == 0 && coupled != 0;
    return rc < 0 ? rc : read_functions(f, usual, 3, err);
}

static int infer_gru(struct op_infer *f, struct err *err)
{
    static const char *const usual[] = { "Sigmoid", "Tanh" };
    struct rnn_param *p = f->param;
    int64_t after;
    int rc = op_attr_i(f, "linear_before_reset", 0, &after, err);

    if (rc == 0)
        rc = infer(f, &rnn_gru, err);
    p->reset_after = rc == 0 && after != 0;
    return rc < 0 ? rc : read_functions(f, usual, 2, err);
}

static int infer_rnn(struct op_infer *f, struct err *err)
{
    static const char *const usual[] = { "Tanh" };
    int rc = infer(f, &rnn_plain, err);

    return rc < 0 ? rc : read_functions(f, usual, 1, err);
}

/* Returns the operations of all steps: a product with W and one with R for each. */
static double flops(const struct op_infer *f)
{
    const struct rnn_param *p = f->param;

    return 2.0 * (double)p->dirs * (double)p->steps * (double)p->batch *
           (double)(p->cell->gates * p->hidden) * (double)(p->inputs + p->hidden);
}

#define ATTRS                                                                                      \
    "activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size",      \
        "layout"

static const char *const attrs_lstm[] = { ATTRS, "input_forget", NULL };
static const char *const attrs_gru[] = { ATTRS, "linear_before_reset", NULL };
static const char *const attrs_rnn[] = { ATTRS, NULL };

#define FIELDS                                                                                     \
    .since = 7, .param_bytes = sizeof(struct rnn_param),                                           \
    .diff = OP_IN(RNN_X) | OP_IN(RNN_W) | OP_IN(RNN_R) | OP_IN(RNN_B) | OP_IN(RNN_H) |             \
            OP_IN(RNN_C) | OP_IN(RNN_PEEPHOLES),                                                   \
    .bwd_reads = OP_IN(RNN_X) | OP_IN(RNN_W) | OP_IN(RNN_R) | OP_IN(RNN_LENGTHS) |                 \
                 OP_IN(RNN_PEEPHOLES),                                                             \
    .layout = OP_LAYOUT_PLAIN, .flops = flops, .refuse = rnn_refuse,                               \
    .cpu = { rnn_cpu_plan, rnn_cpu_fwd, rnn_cpu_bwd, rnn_cpu_free }

const struct op_def op_lstm = { FIELDS, .name = "LSTM", .n_in = { 3, 8 }, .n_out = { 1, 3 },
                                .attrs = attrs_lstm, .infer = infer_lstm };
const struct op_def op_gru = { FIELDS, .name = "GRU", .n_in = { 3, 6 }, .n_out = { 1, 2 },
                               .attrs = attrs_gru, .infer = infer_gru };
const struct op_def op_rnn = { FIELDS, .name = "RNN", .n_in = { 3, 6 }, .n_out = { 1, 2 },
                               .attrs = attrs_rnn, .infer = infer_rnn };
