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
#include "op/op.h"

enum { X, SCALE, BIAS, MEAN, VAR, N_IN };

/* All tensors are in plain order: x [n, c, inner]. */
static const struct shape shapes[] = {
    { 2, { 6, 1 } },        { 2, { 7, 17 } },       { 2, { 12, 300 } },    { 3, { 3, 5, 4 } },
    { 3, { 2, 1, 9 } },     { 4, { 2, 3, 4, 5 } },  { 4, { 3, 1, 8, 8 } }, { 4, { 9, 17, 1, 1 } },
    { 4, { 2, 64, 3, 3 } }, { 5, { 1, 4, 2, 2, 3 } },
};

struct setting {
    uint32_t opset;
    int training_mode; /* -1: attribute absent */
    bool eval;
    bool from_batch; /* expected: statistics of the batch are used */
    uint32_t n_out;  /* outputs of the node; only the first is read */
};

static const struct setting settings[] = {
    { 15, 1, false, true, 3 },  { 15, 0, false, false, 1 }, { 15, -1, false, false, 1 },
    { 15, 1, true, false, 3 },  { 11, -1, false, true, 5 }, { 11, -1, true, false, 5 },
    { 15, 1, false, true, 1 },  { 11, -1, false, false, 1 },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[3];
};

#define NOT_Y (0xFFFFu << 16 & ~OP_OUT(0))

static void set(struct built *b, const struct shape *s, const struct setting *how)
{
    uint32_t i;

    memset(b, 0, sizeof(*b));
    b->attrs[0] = (struct op_attr){ .name = "epsilon", .type = OP_ATTR_FLOAT, .f = 1e-3f };
    b->attrs[1] = (struct op_attr){ .name = "momentum", .type = OP_ATTR_FLOAT, .f = 0.75f };
    b->attrs[2] =
        (struct op_attr){ .name = "training_mode", .type = OP_ATTR_INT, .i = how->training_mode };
    b->gc = (struct gradcheck_case){ .op = "BatchNormalization", .opset = how->opset,
                                     .attrs = b->attrs, .n_attrs = how->training_mode < 0 ? 2 : 3,
                                     .eval = how->eval, .n_in = N_IN, .n_out = how->n_out,
                                     .unread = NOT_Y, .no_dout = NOT_Y, .seed = 9 };
    b->gc.in[X] = (struct gradcheck_tensor){ .shape = *s, .lo = -1, .hi = 3 };
    for (i = SCALE; i < N_IN; i++)
        b->gc.in[i] =
            (struct gradcheck_tensor){ .shape = shape_of(1, s->dim[1]), .lo = 0.5, .hi = 2 };
}

static size_t inner_of(const struct shape *s)
{
    return s->dim[0] == 0 ? 0 : (size_t)(shape_elements(s) / s->dim[0] / s->dim[1]);
}

/* Computes the mean and the population variance of channel ch with two passes in double. */
static void statistics(const struct tensor *x, size_t ch, double *mean, double *var)
{
    size_t n = (size_t)x->shape.dim[0], c = (size_t)x->shape.dim[1], inner = inner_of(&x->shape);
    const float *v = x->data;
    size_t i, k;

    *mean = *var = 0;
    for (i = 0; i < n; i++)
        for (k = 0; k < inner; k++)
            *mean += (double)v[(i * c + ch) * inner + k] / (double)(n * inner);
    for (i = 0; i < n; i++)
        for (k = 0; k < inner; k++)
            *var += pow((double)v[(i * c + ch) * inner + k] - *mean, 2) / (double)(n * inner);
}

static void expect_output(const struct gradcheck_result *r, bool from_batch, double epsilon,
                          double tol)
{
    const struct tensor *x = &r->in[X];
    size_t n = (size_t)x->shape.dim[0], c = (size_t)x->shape.dim[1], inner = inner_of(&x->shape);
    double *want = calloc(n * c * inner + 1, sizeof(*want));
    size_t ch, i, k;

    for (ch = 0; ch < c; ch++) {
        double mean = (double)((float *)r->in[MEAN].data)[ch],
               var = (double)((float *)r->in[VAR].data)[ch];

        if (from_batch)
            statistics(x, ch, &mean, &var);
        for (i = 0; i < n; i++)
            for (k = 0; k < inner; k++) {
                size_t at = (i * c + ch) * inner + k;

                want[at] = (double)((float *)r->in[SCALE].data)[ch] *
                               ((double)((float *)x->data)[at] - mean) / sqrt(var + epsilon) +
                           (double)((float *)r->in[BIAS].data)[ch];
            }
    }
    gradcheck_near("BatchNormalization", r->out[0].data, want, n * c * inner, tol);
    free(want);
}

static void every_setting_selects_expected_statistics(void **state)
{
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(settings); k++) {
            struct built b;
            struct gradcheck_result r;
            struct err err = { 0 };

            set(&b, &shapes[i], &settings[k]);
            if (gradcheck_forward(&b.gc, &r, &err) < 0)
                fail_msg("%s", err.text);
            expect_output(&r, settings[k].from_batch, (double)1e-3f, 1e-5);
            gradcheck_free(&r);
        }
}

static void gradients_match_differences_in_training_and_when_frozen(void **state)
{
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(settings); k++) {
            struct built b;

            if (settings[k].eval)
                continue;
            set(&b, &shapes[i], &settings[k]);
            b.gc.probes = 25;
            b.gc.step = 1.0 / 16;
            gradcheck_run(&b.gc);
        }
}

/* The step moves the running averages towards din[3] and din[4] by 1 - momentum. */
static void training_reports_batch_statistics_and_frozen_ones_stay(void **state)
{
    size_t i, k, ch;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(settings); k++) {
            size_t c = (size_t)shapes[i].dim[1];
            double *mean = calloc(c, sizeof(*mean)), *var = calloc(c, sizeof(*var));
            struct built b;
            struct gradcheck_result r;
            struct err err = { 0 };

            if (!settings[k].eval) {
                set(&b, &shapes[i], &settings[k]);
                assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
                for (ch = 0; ch < c; ch++) {
                    mean[ch] = (double)((float *)r.in[MEAN].data)[ch];
                    var[ch] = (double)((float *)r.in[VAR].data)[ch];
                    if (settings[k].from_batch)
                        statistics(&r.in[X], ch, &mean[ch], &var[ch]);
                }
                gradcheck_near("mean", r.din[MEAN].data, mean, c,
                               settings[k].from_batch ? 3e-7 : 0);
                gradcheck_near("variance", r.din[VAR].data, var, c,
                               settings[k].from_batch ? 1e-6 : 0);
                gradcheck_free(&r);
            }
            free(mean);
            free(var);
        }
}

static float momentum_of(const struct setting *how)
{
    struct built b;
    struct err err = { 0 };
    struct tensor in[N_IN], out[5];
    const struct tensor *at[N_IN];
    char param[64] = { 0 };
    struct op_infer f;
    uint32_t i;

    set(&b, &shapes[5], how);
    for (i = 0; i < N_IN; i++) {
        in[i] = (struct tensor){ .dtype = TENSOR_F32, .shape = b.gc.in[i].shape };
        at[i] = &in[i];
    }
    f = (struct op_infer){ .def = op_find(NULL, "BatchNormalization", how->opset), .node = "n",
                           .opset = how->opset, .training = !how->eval, .attrs = b.attrs,
                           .n_attrs = b.gc.n_attrs, .n_in = N_IN, .in = at, .n_out = how->n_out,
                           .out = out, .param = param };
    assert_true(f.def->param_bytes <= sizeof(param));
    assert_int_equal(f.def->infer(&f, &err), 0);
    return f.def->stat_momentum(param);
}

static void running_averages_change_only_with_batch_statistics(void **state)
{
    size_t k;

    (void)state;
    for (k = 0; k < COUNT_OF(settings); k++)
        assert_true(momentum_of(&settings[k]) == (settings[k].from_batch ? 0.75f : 1.0f));
}

static void missing_dout_still_reports_statistics(void **state)
{
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    double mean[3], var[3], zero[120] = { 0 };
    size_t ch;

    (void)state;
    set(&b, &shapes[5], &settings[0]);
    b.gc.no_dout = OP_OUT(0);
    assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
    for (ch = 0; ch < 3; ch++)
        statistics(&r.in[X], ch, &mean[ch], &var[ch]);
    gradcheck_near("mean", r.din[MEAN].data, mean, 3, 3e-7);
    gradcheck_near("variance", r.din[VAR].data, var, 3, 1e-6);
    gradcheck_near("dx", r.din[X].data, zero, 120, 0);
    gradcheck_near("dscale", r.din[SCALE].data, zero, 3, 0);
    gradcheck_free(&r);
}

static void large_mean_keeps_precision_of_variance(void **state)
{
    enum { N = 40, C = 3, INNER = 15 * 15 };
    struct shape s = { 4, { N, C, 15, 15 } };
    float *x = malloc(N * C * INNER * sizeof(*x));
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    double mean[C], var[C];
    size_t i;

    (void)state;
    for (i = 0; i < N * C * INNER; i++)
        x[i] = 4096.0f + (float)((i * 7919) % 1024) / 512.0f; /* exact; deviation about 0.6 */
    set(&b, &s, &settings[0]);
    b.gc.in[X].data = x;
    assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
    for (i = 0; i < C; i++)
        statistics(&r.in[X], i, &mean[i], &var[i]);
    gradcheck_near("mean", r.din[MEAN].data, mean, C, 1e-7);
    gradcheck_near("variance", r.din[VAR].data, var, C, 1e-6);
    expect_output(&r, true, (double)1e-3f, 1e-3); /* rounding of a mean of 4096 */
    gradcheck_free(&r);
    free(x);
}

/* More rows than a chunk has, more channels than a group. */
static void large_tensor_in_several_chunks_is_exact(void **state)
{
    static const struct shape large[] = {
        { 4, { 5, 16, 31, 29 } },
        { 4, { 3, 7, 50, 47 } },
        { 2, { 40, 5000 } },
        { 4, { 2, 200, 15, 15 } },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(large); i++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set(&b, &large[i], &settings[0]);
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        expect_output(&r, true, (double)1e-3f, 1e-5);
        gradcheck_free(&r);
        b.gc.probes = 3;
        b.gc.step = 1.0 / 16;
        gradcheck_run(&b.gc);
    }
}

static void additional_outputs_are_running_averages(void **state)
{
    size_t k, ch;

    (void)state;
    for (k = 0; k < COUNT_OF(settings); k++) {
        const struct setting *how = &settings[k];
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };
        uint32_t i;

        set(&b, &shapes[5], how);
        if (how->n_out == 1)
            continue;
        b.gc.unread = 0;
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        for (i = 1; i < b.gc.n_out; i++) {
            double used[3], want[3];

            assert_int_equal(r.out[i].shape.rank, 1);
            for (ch = 0; ch < 3; ch++) {
                const float *old = r.in[i % 2 == 1 ? MEAN : VAR].data;
                double mean, var;

                statistics(&r.in[X], ch, &mean, &var);
                used[ch] = !how->from_batch ? (double)old[ch] : i % 2 == 1 ? mean : var;
                want[ch] = i < 3 ? 0.75 * (double)old[ch] + 0.25 * used[ch] : used[ch];
            }
            gradcheck_near("further output", r.out[i].data, want, 3, 1e-6);
        }
        gradcheck_free(&r);
    }
}

/* Operations after the norm: the residual, the clamp, both. The ceiling is within the range of the
 * data. */
static const struct {
    const char *op;
    bool residual;
    float ceiling; /* 0: none */
} tails[] = { { "BatchNormAdd", true, 0 },
              { "BatchNormRelu", false, INFINITY },
              { "BatchNormRelu", true, INFINITY },
              { "BatchNormRelu", true, 1.25f } };

static void set_tail(struct built *b, struct op_attr attrs[4], const struct shape *s, size_t tail)
{
    set(b, s, &settings[0]);
    memcpy(attrs, b->attrs, sizeof(b->attrs));
    attrs[3] = (struct op_attr){ .name = "ceiling", .type = OP_ATTR_FLOAT, .f = tails[tail].ceiling };
    b->gc.domain = "trainerd";
    b->gc.op = tails[tail].op;
    b->gc.opset = 1;
    b->gc.attrs = attrs;
    b->gc.n_attrs = tails[tail].ceiling != 0 ? 4 : 3;
    b->gc.in[N_IN] = (struct gradcheck_tensor){ .shape = *s, .lo = -1, .hi = 1 };
    b->gc.n_in = N_IN + tails[tail].residual;
    for (uint32_t i = SCALE; i < N_IN; i++)
        b->gc.in[i].plain = true;
}

static void residual_and_clamp_apply_after_norm(void **state)
{
    size_t i, k, e;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(tails); k++) {
            size_t n = (size_t)shape_elements(&shapes[i]);
            struct op_attr attrs[4];
            struct built b, norm;
            struct gradcheck_result r, plain;
            struct err err = { 0 };
            double *want = calloc(n + 1, sizeof(*want));

            set_tail(&b, attrs, &shapes[i], k);
            set(&norm, &shapes[i], &settings[0]);
            assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
            assert_int_equal(gradcheck_forward(&norm.gc, &plain, &err), 0);
            for (e = 0; e < n; e++) {
                double v = (double)((float *)plain.out[0].data)[e];

                if (tails[k].residual)
                    v += (double)((float *)r.in[N_IN].data)[e];
                if (tails[k].ceiling != 0)
                    v = fmin(fmax(v, 0), (double)tails[k].ceiling);
                want[e] = v;
            }
            gradcheck_near(tails[k].op, r.out[0].data, want, n, 1e-6);
            gradcheck_free(&r);
            gradcheck_free(&plain);
            free(want);
        }
}

/* Differences are not valid where y is clamped: the gradient is compared with that of the norm
 * alone for the dy that passes the kernel's clamp. */
static void clamped_elements_block_gradient(void **state)
{
    size_t i, k, e;
    uint32_t j;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(tails); k++) {
            size_t n = (size_t)shape_elements(&shapes[i]);
            struct op_attr attrs[4];
            struct built b, norm;
            struct gradcheck_result r, plain;
            struct err err = { 0 };
            float *passed = calloc(n + 1, sizeof(*passed));
            double *want = calloc(n + 1, sizeof(*want));

            set_tail(&b, attrs, &shapes[i], k);
            assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
            for (e = 0; e < n; e++) {
                float y = ((float *)r.out[0].data)[e], d = ((float *)r.dout[0].data)[e];
                bool inside = tails[k].ceiling == 0 || (y > 0 && y < tails[k].ceiling);

                passed[e] = inside ? d : 0;
                want[e] = (double)passed[e];
            }
            set(&norm, &shapes[i], &settings[0]);
            norm.gc.dout[0] = passed;
            assert_int_equal(gradcheck_backward(&norm.gc, &plain, &err), 0);
            if (tails[k].residual)
                gradcheck_near("residual", r.din[N_IN].data, want, n, 0);
            for (j = 0; j < N_IN; j++) {
                size_t m = (size_t)tensor_elements(&plain.din[j]);

                for (e = 0; e < m; e++)
                    want[e] = (double)((float *)plain.din[j].data)[e];
                gradcheck_near(tails[k].op, r.din[j].data, want, m, 1e-6);
            }
            gradcheck_free(&r);
            gradcheck_free(&plain);
            free(passed);
            free(want);
        }
}

/* Nothing is clamped: the gradients are those of the norm and the sum. */
static void gradients_with_residual_and_clamp_match_differences(void **state)
{
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (k = 0; k < COUNT_OF(tails); k++) {
            struct op_attr attrs[4];
            struct built b;

            set_tail(&b, attrs, &shapes[i], k);
            if (tails[k].ceiling != 0) {
                attrs[3].f = INFINITY;
                b.gc.in[BIAS].lo = 20;
                b.gc.in[BIAS].hi = 30;
            }
            b.gc.probes = 15;
            b.gc.step = 1.0 / 16;
            b.gc.tol = 3e-3;
            gradcheck_run(&b.gc);
        }
}

static void expect_same_bits(const char *what, const struct tensor *a, const struct tensor *b)
{
    if (memcmp(a->data, b->data, (size_t)shape_elements(&a->shape) * sizeof(float)) != 0)
        fail_msg("%s differs in bits", what);
}

/* Runs the case of `tail`, or of the norm alone (COUNT_OF(tails)), with or without the unbiased
 * statistic. */
static void run_statistic(const struct shape *s, const struct setting *how, size_t tail,
                          int64_t unbiased, struct gradcheck_result *r)
{
    struct op_attr attrs[5];
    struct built b;
    struct err err = { 0 };

    if (tail < COUNT_OF(tails)) {
        set_tail(&b, attrs, s, tail);
    } else {
        set(&b, s, how);
        memcpy(attrs, b.attrs, sizeof(b.attrs));
        b.gc.attrs = attrs;
    }
    attrs[b.gc.n_attrs++] = (struct op_attr){ .name = "unbiased", .type = OP_ATTR_INT, .i = unbiased };
    assert_int_equal(gradcheck_backward(&b.gc, r, &err), 0);
}

static void compare_statistic(const struct shape *s, const struct setting *how, size_t tail)
{
    size_t c = (size_t)s->dim[1], n = (size_t)shape_elements(s) / c, ch;
    double *want = calloc(c, sizeof(*want));
    struct gradcheck_result population, unbiased;
    uint32_t i;

    run_statistic(s, how, tail, 0, &population);
    run_statistic(s, how, tail, 1, &unbiased);
    expect_same_bits("y", &unbiased.out[0], &population.out[0]);
    for (i = X; i < VAR; i++)
        expect_same_bits("a gradient", &unbiased.din[i], &population.din[i]);
    if (tail < COUNT_OF(tails) && tails[tail].residual)
        expect_same_bits("the residual's gradient", &unbiased.din[N_IN], &population.din[N_IN]);
    for (ch = 0; ch < c; ch++) {
        double mean;

        if (how->from_batch) {
            statistics(&unbiased.in[X], ch, &mean, &want[ch]);
            want[ch] *= (double)n / (double)(n - 1);
        } else {
            want[ch] = (double)((float *)unbiased.in[VAR].data)[ch];
        }
    }
    gradcheck_near("unbiased variance", unbiased.din[VAR].data, want, c,
                   how->from_batch ? 1e-6 : 0);
    gradcheck_free(&population);
    gradcheck_free(&unbiased);
    free(want);
}

static void unbiased_attribute_scales_only_reported_variance(void **state)
{
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++) {
        for (k = 0; k < COUNT_OF(settings); k++)
            if (!settings[k].eval)
                compare_statistic(&shapes[i], &settings[k], COUNT_OF(tails));
        for (k = 0; k < COUNT_OF(tails); k++)
            compare_statistic(&shapes[i], &settings[0], k);
    }
}

static void unbiased_attribute_without_dout_reports_same_statistic(void **state)
{
    struct op_attr attrs[4];
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    double mean[3], var[3];
    size_t ch;

    (void)state;
    set(&b, &shapes[5], &settings[0]);
    memcpy(attrs, b.attrs, sizeof(b.attrs));
    attrs[3] = (struct op_attr){ .name = "unbiased", .type = OP_ATTR_INT, .i = 1 };
    b.gc.attrs = attrs;
    b.gc.n_attrs = 4;
    b.gc.no_dout = OP_OUT(0);
    assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
    for (ch = 0; ch < 3; ch++) {
        statistics(&r.in[X], ch, &mean[ch], &var[ch]);
        var[ch] *= 40.0 / 39; /* 2 x 4 x 5 values */
    }
    gradcheck_near("mean", r.din[MEAN].data, mean, 3, 3e-7);
    gradcheck_near("variance", r.din[VAR].data, var, 3, 1e-6);
    gradcheck_free(&r);
}

/* Output 2 is an average and uses the corrected variance. Output 4 is the variance used to
 * normalise. */
static void unbiased_variance_affects_average_but_not_used_variance(void **state)
{
    struct op_attr attrs[4];
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    double average[3], used[3];
    size_t ch;

    (void)state;
    set(&b, &shapes[5], &settings[4]);
    memcpy(attrs, b.attrs, sizeof(b.attrs));
    attrs[b.gc.n_attrs++] = (struct op_attr){ .name = "unbiased", .type = OP_ATTR_INT, .i = 1 };
    b.gc.attrs = attrs;
    b.gc.unread = 0;
    assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
    for (ch = 0; ch < 3; ch++) {
        double mean;

        statistics(&r.in[X], ch, &mean, &used[ch]);
        average[ch] = 0.75 * (double)((float *)r.in[VAR].data)[ch] + 0.25 * used[ch] * 40.0 / 39;
    }
    gradcheck_near("average", r.out[2].data, average, 3, 1e-6);
    gradcheck_near("used", r.out[4].data, used, 3, 1e-6);
    gradcheck_free(&r);
}

static void expect_refused(const struct built *b, const char *says)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(&b->gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "BatchNormalization 'checked' (opset "));
    if (strstr(err.text, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, says);
}

static void inconsistent_inputs_are_rejected_with_node_and_input(void **state)
{
    struct shape one = { 4, { 1, 3, 1, 1 } };
    struct built b;

    (void)state;
    set(&b, &shapes[5], &settings[0]);
    b.gc.in[VAR].shape.dim[0] = 4;
    expect_refused(&b, "input 4 (variance) has 4 elements; expected one for each of 3 channels");
    set(&b, &shapes[5], &settings[0]);
    b.gc.in[SCALE].absent = true;
    expect_refused(&b, "input 1 is missing");
    set(&b, &shapes[5], &settings[0]);
    b.gc.in[X].shape.rank = 1;
    expect_refused(&b, "expected n, c and optionally space");
    set(&b, &shapes[5], &settings[0]);
    b.attrs[0].f = -1;
    expect_refused(&b, "epsilon is -1");
    set(&b, &shapes[5], &settings[0]);
    b.attrs[1].f = NAN;
    expect_refused(&b, "momentum in [0, 1]");
    set(&b, &one, &settings[0]);
    expect_refused(&b, "normalises each channel over a single value");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_selects_expected_statistics),
        cmocka_unit_test(gradients_match_differences_in_training_and_when_frozen),
        cmocka_unit_test(training_reports_batch_statistics_and_frozen_ones_stay),
        cmocka_unit_test(running_averages_change_only_with_batch_statistics),
        cmocka_unit_test(missing_dout_still_reports_statistics),
        cmocka_unit_test(large_mean_keeps_precision_of_variance),
        cmocka_unit_test(large_tensor_in_several_chunks_is_exact),
        cmocka_unit_test(residual_and_clamp_apply_after_norm),
        cmocka_unit_test(clamped_elements_block_gradient),
        cmocka_unit_test(gradients_with_residual_and_clamp_match_differences),
        cmocka_unit_test(additional_outputs_are_running_averages),
        cmocka_unit_test(unbiased_attribute_scales_only_reported_variance),
        cmocka_unit_test(unbiased_attribute_without_dout_reports_same_statistic),
        cmocka_unit_test(unbiased_variance_affects_average_but_not_used_variance),
        cmocka_unit_test(inconsistent_inputs_are_rejected_with_node_and_input),
    };

    return cmocka_run_group_tests_name("op/batch_norm", tests, NULL, NULL);
}
