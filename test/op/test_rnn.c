#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"
#include "harness/op_rig.h"

#define INT(name_, i_) (struct op_attr){ .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define STRING(name_, s_) (struct op_attr){ .name = name_, .type = OP_ATTR_STRING, .s = s_ }
#define D (int64_t)

enum { X, W, R, B, LENGTHS, H0, C0, P };
enum kind { LSTM, GRU, GRU_AFTER, RNN };

struct extra { /* rarely used attributes */
    bool peepholes, coupled;
    float clip;         /* 0: none */
    const char *act[3]; /* NULL: the default */
    float alpha[3], beta[3];
    size_t n_alpha, n_beta; /* number of elements in the attributes */
};

struct rnn {
    enum kind kind;
    int64_t steps, batch, in, hidden;
    int dirs;     /* -1: reverse */
    bool batch_first, has_bias, has_state;
    const int32_t *length; /* NULL: the full length */
    const struct extra *extra; /* NULL: none */
};

static const struct extra peepholes = { .peepholes = true };
static const struct extra coupled = { .coupled = true };
static const struct extra clipped = { .clip = 0.4f };
static const struct extra everything = { .peepholes = true, .coupled = true, .clip = 1.5f };
static const struct extra hard = { .act = { "HardSigmoid", "Softsign", "ScaledTanh" },
                                   .alpha = { 0.3f, 1.5f }, .beta = { 0.4f, 0.7f }, .n_alpha = 2,
                                   .n_beta = 2 };
static const struct extra soft = { .act = { "Softplus", "Elu", "Affine" }, .clip = 3,
                                   .alpha = { 0.5f, 0.8f }, .beta = { 0.1f }, .n_alpha = 2,
                                   .n_beta = 1 };
static const struct extra by_default = { .act = { "HardSigmoid", "LeakyRelu", "Sigmoid" },
                                         .alpha = { 0.2f, 0.01f }, .beta = { 0.5f } };
static const struct extra gates = { .act = { "HardSigmoid", "Softsign" }, .clip = 1,
                                    .alpha = { 0.2f }, .beta = { 0.5f } };
static const struct extra leaky = { .act = { "LeakyRelu" }, .alpha = { 0.3f }, .n_alpha = 1 };
static const struct extra thresholded = { .act = { "ThresholdedRelu" }, .alpha = { 0.1f },
                                          .n_alpha = 1 };
/* Derivative 0 below 0, as in Relu; y is -0 there. */
static const struct extra flat_leaky = { .act = { "LeakyRelu" }, .alpha = { 0 }, .n_alpha = 1 };
static const struct extra flat_elu = { .act = { "Elu" }, .alpha = { 0 }, .n_alpha = 1 };
static const struct extra rectified = { .act = { "Relu" } };

static const int32_t lengths[] = { 3, 5, 0, 1 };

static const struct rnn cases[] = {
    /* kind, T, B, I, H, directions, batch first, bias, initial states, lengths */
    { LSTM, 5, 4, 3, 6, 1, false, true, true, NULL, NULL },
    { LSTM, 5, 4, 3, 6, 2, false, true, true, lengths, NULL },
    { LSTM, 3, 2, 17, 33, -1, true, true, false, NULL, NULL },
    { LSTM, 4, 1, 1, 1, 1, true, false, true, NULL, NULL },
    { LSTM, 5, 4, 2, 3, 2, true, true, true, lengths, NULL },
    { LSTM, 1, 3, 2, 16, 1, false, true, false, NULL, NULL },
    { LSTM, 0, 2, 3, 4, 2, false, true, true, NULL, NULL },
    { LSTM, 3, 0, 3, 4, 1, true, true, true, NULL, NULL },
    { GRU, 5, 4, 3, 6, 1, false, true, true, NULL, NULL },
    { GRU, 5, 4, 3, 5, 2, true, true, true, lengths, NULL },
    { GRU, 3, 2, 2, 17, -1, false, false, false, NULL, NULL },
    { GRU, 3, 1, 1, 1, 1, false, true, true, NULL, NULL },
    { GRU_AFTER, 5, 4, 3, 6, 1, false, true, true, NULL, NULL },
    { GRU_AFTER, 5, 4, 3, 5, 2, true, true, true, lengths, NULL },
    { GRU_AFTER, 3, 2, 2, 17, -1, false, false, true, NULL, NULL },
    { GRU_AFTER, 0, 1, 1, 1, 1, false, true, true, NULL, NULL },
    { RNN, 5, 4, 3, 6, 2, false, true, true, lengths, NULL },
    { RNN, 4, 2, 3, 20, -1, true, true, false, NULL, NULL },
    { RNN, 4, 3, 3, 6, 1, false, true, true, NULL, &rectified },
    /* rarely used attributes */
    { LSTM, 5, 4, 3, 6, 2, false, true, true, lengths, &peepholes },
    { LSTM, 4, 3, 2, 17, -1, true, true, false, NULL, &peepholes },
    { LSTM, 4, 3, 2, 5, 1, false, true, true, NULL, &coupled },
    { LSTM, 4, 3, 2, 5, 2, true, false, true, NULL, &clipped },
    { LSTM, 5, 4, 3, 6, 2, false, true, true, lengths, &everything },
    { LSTM, 4, 3, 2, 5, 2, false, true, true, NULL, &hard },
    { LSTM, 4, 3, 2, 5, 1, false, true, true, NULL, &soft },
    { LSTM, 4, 3, 2, 5, 2, false, true, true, NULL, &by_default },
    { GRU, 5, 4, 3, 5, 2, true, true, true, lengths, &gates },
    { GRU_AFTER, 5, 4, 3, 5, 2, false, true, true, lengths, &gates },
    { GRU_AFTER, 3, 2, 3, 5, 1, false, true, true, NULL, &clipped },
    { RNN, 4, 3, 3, 6, 2, false, true, true, NULL, &leaky },
    { RNN, 4, 3, 3, 6, 2, false, true, true, NULL, &flat_leaky },
    { RNN, 4, 3, 3, 6, 2, false, true, true, NULL, &flat_elu },
    { RNN, 4, 3, 3, 6, 1, false, true, true, NULL, &thresholded },
    { RNN, 4, 3, 3, 6, 1, false, true, true, NULL, &clipped },
};

static const char *const names[] = { "LSTM", "GRU", "GRU", "RNN" };
static const int gates_of[] = { 4, 3, 3, 1 };
static const int acts_of[] = { 3, 2, 2, 1 };

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[9];
    const char *acts[6];
    float alpha[6], beta[6];
};

/* Adds the rarely used attributes, repeated for each direction. */
static void set_extra(struct built *b, const struct rnn *c, int64_t dirs)
{
    const struct extra *e = c->extra;
    size_t acts = (size_t)(acts_of[c->kind] * dirs), k;
    struct op_attr *at = b->attrs;
    uint32_t *n = &b->gc.n_attrs;

    if (e->peepholes) {
        b->gc.n_in = P + 1;
        b->gc.in[P].shape = shape_of(2, dirs, 3 * c->hidden);
    }
    if (e->coupled)
        at[(*n)++] = INT("input_forget", 1);
    if (e->clip > 0)
        at[(*n)++] = (struct op_attr){ .name = "clip", .type = OP_ATTR_FLOAT, .f = e->clip };
    if (e->act[0] == NULL)
        return;
    for (k = 0; k < acts; k++)
        b->acts[k] = e->act[k % (size_t)acts_of[c->kind]];
    for (k = 0; k < e->n_alpha * (size_t)dirs; k++)
        b->alpha[k] = e->alpha[k % e->n_alpha];
    for (k = 0; k < e->n_beta * (size_t)dirs; k++)
        b->beta[k] = e->beta[k % e->n_beta];
    at[(*n)++] = (struct op_attr){ .name = "activations", .type = OP_ATTR_STRINGS, .n = acts,
                                   .strings = b->acts };
    at[(*n)++] = (struct op_attr){ .name = "activation_alpha", .type = OP_ATTR_FLOATS,
                                   .n = e->n_alpha * (size_t)dirs, .floats = b->alpha };
    at[(*n)++] = (struct op_attr){ .name = "activation_beta", .type = OP_ATTR_FLOATS,
                                   .n = e->n_beta * (size_t)dirs, .floats = b->beta };
}

static void set(struct built *b, const struct rnn *c)
{
    int64_t dirs = c->dirs == 2 ? 2 : 1, rows = gates_of[c->kind] * c->hidden;
    struct shape state = c->batch_first ? shape_of(3, c->batch, dirs, c->hidden)
                                        : shape_of(3, dirs, c->batch, c->hidden);
    uint32_t i;

    memset(b, 0, sizeof(*b));
    b->attrs[0] = STRING("direction", c->dirs == 2   ? "bidirectional"
                                      : c->dirs == 1 ? "forward"
                                                     : "reverse");
    b->attrs[1] = INT("layout", c->batch_first);
    b->attrs[2] = INT("hidden_size", c->hidden);
    b->gc = (struct gradcheck_case){ .op = names[c->kind], .opset = 14, .attrs = b->attrs,
                                     .n_attrs = 3, .n_in = c->kind == LSTM ? 7 : 6,
                                     .n_out = c->kind == LSTM ? 3 : 2, .seed = 17, .probes = 40 };
    if (c->kind == GRU_AFTER)
        b->attrs[b->gc.n_attrs++] = INT("linear_before_reset", 1);
    b->gc.in[X].shape = c->batch_first ? shape_of(3, c->batch, c->steps, c->in)
                                       : shape_of(3, c->steps, c->batch, c->in);
    b->gc.in[W].shape = shape_of(3, dirs, rows, c->in);
    b->gc.in[R].shape = shape_of(3, dirs, rows, c->hidden);
    b->gc.in[B] = (struct gradcheck_tensor){ .shape = shape_of(2, dirs, 2 * rows),
                                             .absent = !c->has_bias };
    b->gc.in[LENGTHS] = (struct gradcheck_tensor){ .dtype = TENSOR_I32,
                                                   .shape = shape_of(1, c->batch),
                                                   .data = c->length,
                                                   .absent = c->length == NULL };
    for (i = H0; i <= C0; i++)
        b->gc.in[i] = (struct gradcheck_tensor){ .shape = state, .absent = !c->has_state };
    if (c->extra != NULL)
        set_extra(b, c, dirs);
}

/* ---- the definition, in double, one sequence and one value at a time ---- */

struct weights { /* of one direction */
    const float *w, *r, *b, *p;
    int64_t rows;
};

/* Gate g of hidden unit j before its activation: the contributions of x and (with `of_h`) of h. */
static double into(const struct rnn *c, const struct weights *m, int g, int64_t j, const float *x,
                   const double *h, bool of_x, bool of_h)
{
    int64_t row = g * c->hidden + j, k;
    double sum = 0;

    for (k = 0; k < c->in && of_x; k++)
        sum += (double)m->w[row * c->in + k] * (double)x[k];
    for (k = 0; k < c->hidden && of_h; k++)
        sum += (double)m->r[row * c->hidden + k] * h[k];
    if (m->b != NULL)
        sum += (of_x ? (double)m->b[row] : 0) + (of_h ? (double)m->b[m->rows + row] : 0);
    return sum;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ONNX's function of this name; a and b as listed in `extra`. */
static double function(const char *name, double x, double a, double b)
{
    if (strcmp(name, "Sigmoid") == 0)
        return sigmoid(x);
    if (strcmp(name, "Tanh") == 0)
        return tanh(x);
    if (strcmp(name, "Relu") == 0)
        return fmax(x, 0);
    if (strcmp(name, "LeakyRelu") == 0)
        return x < 0 ? a * x : x;
    if (strcmp(name, "ThresholdedRelu") == 0)
        return x > a ? x : 0;
    if (strcmp(name, "ScaledTanh") == 0)
        return a * tanh(b * x);
    if (strcmp(name, "HardSigmoid") == 0)
        return fmin(fmax(a * x + b, 0), 1);
    if (strcmp(name, "Elu") == 0)
        return x < 0 ? a * expm1(x) : x;
    if (strcmp(name, "Softsign") == 0)
        return x / (1 + fabs(x));
    if (strcmp(name, "Softplus") == 0)
        return log1p(exp(x));
    assert_string_equal(name, "Affine");
    return a * x + b;
}

/* Activation k of the cell, f, g or h. The alphas and betas are assigned in order to the
 * activations that have one. */
static double act(const struct rnn *c, int k, double x)
{
    static const char *const usual[4][3] = { { "Sigmoid", "Tanh", "Tanh" }, { "Sigmoid", "Tanh" },
                                             { "Sigmoid", "Tanh" }, { "Tanh" } };
    static const char with_alpha[] = "LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Affine";
    static const char with_beta[] = "ScaledTanh HardSigmoid Affine";
    const struct extra none = { 0 }, *e = c->extra != NULL ? c->extra : &none;
    const char *name = e->act[0] != NULL ? e->act[k] : usual[c->kind][k];
    int i, a = 0, b = 0;

    for (i = 0; i < k && e->act[0] != NULL; i++) {
        a += strstr(with_alpha, e->act[i]) != NULL;
        b += strstr(with_beta, e->act[i]) != NULL;
    }
    if (e->clip > 0 && k < 2)
        x = fmin(fmax(x, -(double)e->clip), (double)e->clip);
    return function(name, x, (double)e->alpha[a], (double)e->beta[b]);
}

static void lstm_step(const struct rnn *c, const struct weights *m, int64_t j, const float *x,
                      const double *h, double *cell, double *next)
{
    int64_t n = c->hidden;
    double pi = m->p != NULL ? (double)m->p[j] : 0, po = m->p != NULL ? (double)m->p[n + j] : 0;
    double pf = m->p != NULL ? (double)m->p[2 * n + j] : 0;
    double i = act(c, 0, into(c, m, 0, j, x, h, true, true) + pi * cell[j]);
    double f = act(c, 0, into(c, m, 2, j, x, h, true, true) + pf * cell[j]);

    if (c->extra != NULL && c->extra->coupled)
        f = 1 - i;
    cell[j] = f * cell[j] + i * act(c, 1, into(c, m, 3, j, x, h, true, true));
    next[j] = act(c, 0, into(c, m, 1, j, x, h, true, true) + po * cell[j]) * act(c, 2, cell[j]);
}

static void one_step(const struct rnn *c, const struct weights *m, const float *x, double *h,
                     double *cell)
{
    double *next = calloc((size_t)c->hidden, sizeof(*next));
    double *reset = calloc((size_t)c->hidden, sizeof(*reset));
    int64_t j;

    for (j = 0; j < c->hidden; j++)
        reset[j] = c->kind == GRU ? act(c, 0, into(c, m, 1, j, x, h, true, true)) * h[j] : 0;
    for (j = 0; j < c->hidden; j++) {
        double z = act(c, 0, into(c, m, 0, j, x, h, true, true)), n;

        switch (c->kind) {
        case LSTM: lstm_step(c, m, j, x, h, cell, next); break;
        case GRU:
            n = act(c, 1, into(c, m, 2, j, x, reset, true, true));
            next[j] = (1 - z) * n + z * h[j];
            break;
        case GRU_AFTER:
            n = act(c, 1,
                    into(c, m, 2, j, x, h, true, false) +
                        act(c, 0, into(c, m, 1, j, x, h, true, true)) *
                            into(c, m, 2, j, x, h, false, true));
            next[j] = (1 - z) * n + z * h[j];
            break;
        case RNN: next[j] = z; break;
        }
    }
    memcpy(h, next, (size_t)c->hidden * sizeof(*h));
    free(next);
    free(reset);
}

struct want {
    double *y, *h, *c;
};

static int64_t y_at(const struct rnn *c, int64_t dirs, int64_t t, int64_t d, int64_t b)
{
    return (c->batch_first ? (b * c->steps + t) * dirs + d : (t * dirs + d) * c->batch + b) *
           c->hidden;
}

static int64_t state_at(const struct rnn *c, int64_t dirs, int64_t d, int64_t b)
{
    return (c->batch_first ? b * dirs + d : d * c->batch + b) * c->hidden;
}

static void sequence(const struct rnn *c, const struct gradcheck_result *r, int64_t d, int64_t b,
                     struct want *w)
{
    int64_t dirs = c->dirs == 2 ? 2 : 1, n = c->hidden, rows = gates_of[c->kind] * n, i, j;
    int64_t len = c->length != NULL ? c->length[b] : c->steps, s = state_at(c, dirs, d, b);
    struct weights m = { (float *)r->in[W].data + d * rows * c->in,
                         (float *)r->in[R].data + d * rows * n,
                         c->has_bias ? (float *)r->in[B].data + d * 2 * rows : NULL,
                         c->extra != NULL && c->extra->peepholes
                             ? (float *)r->in[P].data + d * 3 * n : NULL, rows };
    double *h = calloc((size_t)n, sizeof(*h)), *cell = calloc((size_t)n, sizeof(*cell));

    for (j = 0; j < n && c->has_state; j++) {
        h[j] = (double)((float *)r->in[H0].data)[s + j];
        cell[j] = c->kind == LSTM ? (double)((float *)r->in[C0].data)[s + j] : 0;
    }
    for (i = 0; i < len; i++) {
        int64_t t = c->dirs == -1 || d == 1 ? len - 1 - i : i;

        one_step(c, &m,
                 (float *)r->in[X].data +
                     (c->batch_first ? b * c->steps + t : t * c->batch + b) * c->in,
                 h, cell);
        memcpy(w->y + y_at(c, dirs, t, d, b), h, (size_t)n * sizeof(*h));
    }
    memcpy(w->h + s, h, (size_t)n * sizeof(*h));
    memcpy(w->c + s, cell, (size_t)n * sizeof(*h));
    free(h);
    free(cell);
}

static void expect_defined(const struct rnn *c, const struct gradcheck_result *r)
{
    int64_t dirs = c->dirs == 2 ? 2 : 1, d, b;
    size_t state = (size_t)(dirs * c->batch * c->hidden), all = state * (size_t)c->steps;
    struct want w = { calloc(all + 1, sizeof(double)), calloc(state + 1, sizeof(double)),
                      calloc(state + 1, sizeof(double)) };

    for (d = 0; d < dirs; d++)
        for (b = 0; b < c->batch; b++)
            sequence(c, r, d, b, &w);
    assert_int_equal(tensor_elements(&r->out[0]), all);
    if (r->out[0].data != NULL)
        gradcheck_near("y", r->out[0].data, w.y, all, 2e-6);
    if (r->out[1].data != NULL)
        gradcheck_near("last h", r->out[1].data, w.h, state, 2e-6);
    if (r->out[2].data != NULL)
        gradcheck_near("last c", r->out[2].data, w.c, state, 2e-6);
    free(w.y);
    free(w.h);
    free(w.c);
}

static void outputs_follow_definition(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set(&b, &cases[i]);
        if (gradcheck_forward(&b.gc, &r, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        expect_defined(&cases[i], &r);
        gradcheck_free(&r);
        b.gc.eval = true;
        b.gc.unread = OP_OUT(1);
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        expect_defined(&cases[i], &r);
        gradcheck_free(&r);
    }
}

static void gradients_through_time_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct built b;

        set(&b, &cases[i]);
        if (cases[i].extra != NULL)
            b.gc.step = 1e-3; /* kinks */
        b.gc.tol = 2e-3;
        gradcheck_run(&b.gc);
    }
}

static void gradients_from_any_single_output_match_differences(void **state)
{
    static const enum kind kinds[] = { LSTM, GRU, GRU_AFTER, RNN };
    uint32_t i, out;

    (void)state;
    for (i = 0; i < COUNT_OF(kinds); i++) {
        struct rnn c = { kinds[i], 3, 4, 2, 5, 2, false, true, true, NULL, NULL };
        struct built b;

        set(&b, &c);
        for (out = 0; out <= b.gc.n_out; out++) { /* the last: no gradient arrives */
            b.gc.no_dout = ~OP_OUT(out);
            b.gc.probes = 10;
            gradcheck_run(&b.gc);
            b.gc.unread = ~OP_OUT(out) & (OP_OUT(3) - OP_OUT(0));
            if (out < b.gc.n_out)
                gradcheck_run(&b.gc);
            b.gc.unread = 0;
        }
    }
}

static void trailing_optional_inputs_and_outputs_may_be_absent(void **state)
{
    struct rnn c = { LSTM, 3, 2, 3, 4, 1, false, false, false, NULL, NULL };
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    set(&b, &c);
    b.gc.n_in = 3;
    b.gc.n_out = 1;
    b.gc.n_attrs = 0;
    assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
    expect_defined(&c, &r);
    gradcheck_free(&r);
    gradcheck_run(&b.gc);
}

static void lengths_beyond_sequence_are_rejected_at_run_time(void **state)
{
    static const int32_t bad[] = { 3, 6, 0, 1 }, negative[] = { 3, 5, 0, -1 };
    struct rnn c = cases[1];
    struct built b;

    (void)state;
    c.length = bad;
    set(&b, &c);
    oracle_refused(&b.gc, ERR_INPUT, "sequence_lens has 6 at 1; expected 0 to 5");
    c.length = negative;
    set(&b, &c);
    oracle_refused(&b.gc, ERR_INPUT, "sequence_lens has -1 at 3");
}

static void invalid_nodes_are_rejected_with_node(void **state)
{
    static const char *const unknown[] = { "Sigmoid", "Tanh", "Gelu" };
    static const char *const falling[] = { "Sigmoid", "LeakyRelu", "Tanh" };
    static const float minus[] = { -1 };
    struct built b;

    (void)state;
    set(&b, &cases[0]);
    b.attrs[3] = (struct op_attr){ .name = "activations", .type = OP_ATTR_STRINGS, .n = 3,
                                   .strings = unknown };
    b.gc.n_attrs = 4;
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "LSTM 'checked' (opset 14): activation 'Gelu'");
    b.attrs[3].n = 2;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'activations' has 2 names; expected 3 for each");
    b.attrs[3].n = 3;
    b.attrs[3].strings = falling;
    b.attrs[4] = (struct op_attr){ .name = "activation_alpha", .type = OP_ATTR_FLOATS, .n = 1,
                                   .floats = minus };
    b.gc.n_attrs = 5;
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "activation 'LeakyRelu' with alpha -1 and beta 0");
    set(&b, &cases[0]);
    b.attrs[3] = (struct op_attr){ .name = "clip", .type = OP_ATTR_FLOAT, .f = 0 };
    b.gc.n_attrs = 4;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'clip' is 0; expected a number above 0");
    set(&b, &cases[0]);
    b.gc.n_in = 8;
    b.gc.in[P].shape = shape_of(2, D 1, D 17);
    oracle_refused(&b.gc, ERR_INPUT, "input 7 (P) has shape [1, 17]; expected [1, 18]");
    set(&b, &cases[0]);
    b.attrs[0].s = "sideways";
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'direction' is 'sideways'");
    set(&b, &cases[0]);
    b.attrs[1].i = 2;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'layout' is 2");
    set(&b, &cases[0]);
    b.attrs[2].i = 7;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'hidden_size' is 7, the weights R have 6");
    set(&b, &cases[0]);
    b.gc.in[W].shape.dim[1] = 23;
    oracle_refused(&b.gc, ERR_INPUT, "input 1 (W) has shape [1, 23, 3]; expected [1, 24, 3]");
    set(&b, &cases[0]);
    b.gc.in[B].shape.dim[1] = 24;
    oracle_refused(&b.gc, ERR_INPUT, "input 3 (B) has shape [1, 24]; expected [1, 48]");
    set(&b, &cases[0]);
    b.gc.in[H0].shape.dim[0] = 2;
    oracle_refused(&b.gc, ERR_INPUT, "input 5 (initial_h) has shape [2, 4, 6]; expected [1, 4, 6]");
    set(&b, &cases[0]);
    b.gc.in[X].shape.rank = 2;
    oracle_refused(&b.gc, ERR_INPUT, "expected 3 dimensions");
    set(&b, &cases[0]);
    b.gc.in[X].shape.dim[2] = b.gc.in[W].shape.dim[2] = 0;
    oracle_refused(&b.gc, ERR_INPUT, "there are 0 inputs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_follow_definition),
        cmocka_unit_test(gradients_through_time_match_differences),
        cmocka_unit_test(gradients_from_any_single_output_match_differences),
        cmocka_unit_test(trailing_optional_inputs_and_outputs_may_be_absent),
        cmocka_unit_test(lengths_beyond_sequence_are_rejected_at_run_time),
        cmocka_unit_test(invalid_nodes_are_rejected_with_node),
    };

    return cmocka_run_group_tests_name("op/rnn", tests, NULL, NULL);
}
