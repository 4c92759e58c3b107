/* The form in which PyTorch 2.15 writes Conv3d(bias=False) with optimize=False, and DFT. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/kit.h"
#include "graph/plan_priv.h"
#include "harness/net.h"

/* x [b, 4] as volumes [b, 1, 1, 2, 2], convolved, as logits [b, 3]. The caller adds the bias. */
static struct model *begin_conv(void)
{
    static const int64_t volume[] = { 0, 1, 1, 2, 2 }, flat[] = { 0, 3 };
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(5, (int64_t)3, (int64_t)1, (int64_t)1, (int64_t)2, (int64_t)2),
                  1);
    model_int64s(m, "volume", volume, 5);
    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "x volume", "v");
    return m;
}

static void end_conv(struct model *m, const char *inputs)
{
    model_node(m, "Conv", inputs, "y");
    model_node(m, "Reshape", "y flat", "logits");
    model_output(m, "logits");
}

/* Expand(CastLike(0, x), Concat(channels, 2)), as the exporter writes it. */
static struct model *exported_bias(float value)
{
    static const int64_t channels[] = { 3 }, two[] = { 2 };
    const struct shape scalar = shape_of(0);
    struct model *m = begin_conv();

    model_floats(m, "zero", scalar, &value);
    model_int64s(m, "channels", channels, 1);
    model_int64s(m, "two", two, 1);
    model_node(m, "Concat", "channels two", "shape");
    model_int(m, "axis", 0);
    model_node(m, "CastLike", "zero x", "zero_like");
    model_node(m, "Expand", "zero_like shape", "bias");
    end_conv(m, "v w bias");
    return m;
}

static const struct graph_opts opts = { .path = "conv.onnx",
                                        .frozen = (const char *const[]){ "zero" },
                                        .n_frozen = 1 };

static void zero_bias_with_two_dimensions_is_removed(void **state)
{
    struct model *m = exported_bias(0), *plain = begin_conv();
    const struct graph_opts reread = { .path = "again.onnx", .all_constant = true };
    struct graph *g = net_import_model(m, &opts), *again;
    struct net n, reference;
    const char *const *notes;
    struct err err = { 0 };
    char path[] = "/tmp/test_repair-XXXXXX";
    struct graph_opts at_path = reread;
    uint32_t n_notes, i, said = 0, convs = 0;

    (void)state;
    notes = graph_notes(g, &n_notes);
    for (i = 0; i < n_notes; i++)
        said += strstr(notes[i], "bias of zeros") != NULL && strstr(notes[i], "'y'") != NULL;
    assert_int_equal(said, 1);
    n = net_open_graph(g, PLAN_TRAIN, 2);
    end_conv(plain, "v w");
    reference = net_open_model(plain, PLAN_TRAIN, 2);
    net_fill(&n, 0);
    net_fill(&reference, 0);
    assert_float_equal(net_forward(&n), net_forward(&reference), 0);
    net_backward(&n);
    net_check_gradients(&n, 1, 1e-2f, 2e-3f);

    close(mkstemp(path));
    at_path.path = path;
    if (graph_export(g, n.params, path, &err) < 0 || graph_import(&at_path, &again, &err) < 0)
        fail_msg("%s", err.text);
    for (i = 0; i < again->file.model->graph->n_node; i++) {
        const Onnx__NodeProto *node = again->file.model->graph->node[i];

        if (strcmp(node->op_type, "Conv") == 0) {
            convs++;
            assert_int_equal(node->n_input, 2);
        }
    }
    assert_int_equal(convs, 1);
    unlink(path);
    graph_free(again);
    net_close(&n);
    net_close(&reference);
    model_free(m);
    model_free(plain);
}

static void plan_refused(struct graph *g, const char *part)
{
    const struct plan_feed feed = { .name = "x",
                                    .dtype = TENSOR_F32,
                                    .shape = shape_of(1, (int64_t)4) };
    const struct plan_opts o = {
        .purpose = PLAN_TRAIN, .batch = 2, .feeds = &feed, .n_feeds = 1, .sum_outputs = true
    };
    struct plan *p = NULL;
    struct err err = { 0 };

    assert_int_not_equal(plan_new(g, &o, &p, &err), 0);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, err.text);
    graph_free(g);
}

static void other_bias_with_two_dimensions_is_refused_with_remedy(void **state)
{
    struct model *m = exported_bias(0.5f);

    (void)state;
    plan_refused(net_import_model(m, &opts), "the bias has shape [3, 2]; expected [3]: "
                                             "torch.onnx.export of PyTorch 2.15");
    model_free(m);
}

/* ---- DFT ---- */

/* x [b, 4] as [b, 2, 2, 1] or [b, 2, 1, 2]; DFT along `axis`; all its numbers times v -> logits [b,
 * 3]. */
static struct model *transform(int opset, const int64_t *shape, int64_t axis, const int64_t *length,
                               const char *flag, int64_t numbers)
{
    const int64_t flat[] = { 0, numbers };
    struct model *m = model_new(opset);
    char inputs[64];

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)4), 1);
    model_weights(m, "v", shape_of(2, numbers, (int64_t)3), 2);
    model_int64s(m, "shape", shape, 4);
    model_int64s(m, "flat", flat, 2);
    model_int64s(m, "axis", &axis, 1);
    if (length != NULL)
        model_int64s(m, "length", length, 1);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Reshape", "h shape", "signal");
    snprintf(inputs, sizeof(inputs), "signal %s%s", length != NULL ? "length" : "-",
             opset >= 20 ? " axis" : "");
    model_node(m, "DFT", inputs, "spectrum");
    if (opset < 20)
        model_int(m, "axis", axis);
    if (flag != NULL)
        model_int(m, flag, 1);
    model_node(m, "Reshape", "spectrum flat", "numbers");
    model_node(m, "MatMul", "numbers v", "logits");
    model_output(m, "logits");
    return m;
}

/* Number (j, part) of the transform of n numbers at distance `stride`, of `parts` parts each. */
static double spectrum_at(const float *x, int64_t n, int64_t stride, int64_t parts, int64_t length,
                          bool inverse, int64_t j, int part)
{
    double re = 0, im = 0, turn = (inverse ? 2 : -2) * acos(-1) / (double)length;
    int64_t k;

    for (k = 0; k < n && k < length; k++) {
        double a = (double)x[k * stride], b = parts == 2 ? (double)x[k * stride + 1] : 0;
        double c = cos(turn * (double)(j * k)), s = sin(turn * (double)(j * k));

        re += a * c - b * s;
        im += a * s + b * c;
    }
    return (part == 0 ? re : im) / (inverse ? (double)length : 1);
}

static void dft_matches_its_definition(void **state)
{
    static const int64_t real[] = { 0, 4, 1, 1 }, complex[] = { 0, 1, 2, 2 }, three = 3, six = 6;
    static const struct {
        int opset;
        const int64_t *shape, *length;
        int64_t axis, n, parts, transformed, m;
        const char *flag;
    } cases[] = {
        { 17, real, NULL, 1, 4, 1, 4, 4, NULL },
        { 20, real, NULL, 1, 4, 1, 4, 3, "onesided" },
        { 20, real, &three, -3, 4, 1, 3, 3, NULL },
        { 17, real, &six, 1, 4, 1, 6, 4, "onesided" },
        { 20, complex, NULL, -2, 2, 2, 2, 2, NULL },
        { 20, complex, NULL, 2, 2, 2, 2, 2, "inverse" },
        { 17, complex, &three, 2, 2, 2, 3, 3, "inverse" },
    };
    static const char *const keep[] = { "h", "spectrum", "logits" };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = transform(cases[i].opset, cases[i].shape, cases[i].axis, cases[i].length,
                                    cases[i].flag, 2 * cases[i].m);
        struct net n = net_open_keep(net_import_model(m, NULL), PLAN_TRAIN, 3, keep, 3);
        bool inverse = cases[i].flag != NULL && strcmp(cases[i].flag, "inverse") == 0;
        const float *h, *y;
        int64_t s, j;
        int part;

        net_fill(&n, 0);
        (void)net_forward(&n);
        h = plan_tensor(n.plan, "h")->data;
        y = plan_tensor(n.plan, "spectrum")->data;
        for (s = 0; s < 3; s++)
            for (j = 0; j < cases[i].m; j++)
                for (part = 0; part < 2; part++) {
                    double want = spectrum_at(h + 4 * s, cases[i].n, cases[i].parts, cases[i].parts,
                                              cases[i].transformed, inverse, j, part);
                    double got = (double)y[(s * cases[i].m + j) * 2 + part];

                    if (fabs(got - want) > 1e-5)
                        fail_msg("case %zu: %g, expected %g", i, got, want);
                }
        net_backward(&n);
        net_check_gradients(&n, 1, 1e-2f, 2e-3f);
        net_close(&n);
        model_free(m);
    }
}

static void invalid_dft_is_refused(void **state)
{
    static const int64_t real[] = { 0, 4, 1, 1 }, huge = (int64_t)1 << 40, none = 0;
    static const int64_t complex[] = { 0, 1, 2, 2 };
    struct model *m = transform(20, real, 3, NULL, NULL, 8);

    (void)state;
    plan_refused(net_import_model(m, NULL), "the axis is 3 of 4 dimensions");
    model_free(m);
    m = transform(20, real, 1, &huge, NULL, 8);
    plan_refused(net_import_model(m, NULL), "at most 2^26 numbers");
    model_free(m);
    m = transform(20, real, 1, &none, NULL, 8);
    plan_refused(net_import_model(m, NULL), "expected at least 1");
    model_free(m);
    m = transform(20, complex, 2, NULL, "onesided", 8);
    plan_refused(net_import_model(m, NULL), "onesided with complex input");
    model_free(m);
}

/* The inverse of half a spectrum equals that of the whole one, whose other half is its mirror
 * image. */
static void inverse_dft_of_half_a_spectrum_is_the_signal(void **state)
{
    static const int64_t lengths[] = { 3, 4 };
    static const char *const keep[] = { "h", "signal2", "logits" };
    size_t i, k;

    (void)state;
    for (i = 0; i < 2; i++) {
        const int64_t real[] = { 0, 4, 1 }, flat[] = { 0, lengths[i] };
        struct model *m = model_new(20);
        struct net n;

        model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
        model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)4), 1);
        model_weights(m, "v", shape_of(2, lengths[i], (int64_t)3), 2);
        model_int64s(m, "real", real, 3);
        model_int64s(m, "flat", flat, 2);
        model_int64s(m, "length", &lengths[i], 1);
        model_node(m, "MatMul", "x w", "h");
        model_node(m, "Reshape", "h real", "signal");
        model_node(m, "DFT", "signal length", "half");
        model_int(m, "onesided", 1);
        model_node(m, "DFT", "half length", "back");
        model_int(m, "onesided", 1);
        model_int(m, "inverse", 1);
        model_node(m, "Reshape", "back flat", "signal2");
        model_node(m, "MatMul", "signal2 v", "logits");
        model_output(m, "logits");
        n = net_open_keep(net_import_model(m, NULL), PLAN_TRAIN, 3, keep, 3);
        net_fill(&n, 0);
        (void)net_forward(&n);
        for (k = 0; k < (size_t)(3 * lengths[i]); k++) {
            size_t s = k / (size_t)lengths[i], j = k % (size_t)lengths[i];
            float want = ((const float *)plan_tensor(n.plan, "h")->data)[4 * s + j];

            assert_float_equal(((const float *)plan_tensor(n.plan, "signal2")->data)[k], want,
                               1e-5);
        }
        net_backward(&n);
        net_check_gradients(&n, 1, 1e-2f, 2e-3f);
        net_close(&n);
        model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_bias_with_two_dimensions_is_removed),
        cmocka_unit_test(other_bias_with_two_dimensions_is_refused_with_remedy),
        cmocka_unit_test(dft_matches_its_definition),
        cmocka_unit_test(inverse_dft_of_half_a_spectrum_is_the_signal),
        cmocka_unit_test(invalid_dft_is_refused),
    };

    return cmocka_run_group_tests_name("graph/repair", tests, NULL, NULL);
}
