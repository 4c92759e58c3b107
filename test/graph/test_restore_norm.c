/* Batch normalization that a file expresses as arithmetic: recognized forms, and their results. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fault.h"
#include "graph/graph_priv.h"
#include "graph/kit.h"
#include "harness/net.h"

enum form {
    JAX,         /* x s + (-mean s + beta), 1 / sqrt by Div, vectors reshaped */
    TENSORFLOW,  /* x s + (beta - mean s), Reciprocal, no Reshape */
    CENTERED,    /* (x - mean) s + beta */
    NO_SCALE,    /* as JAX without gamma */
    NO_BIAS,     /* as JAX without beta */
    FORMS,
    BY_OP = FORMS, /* the op */
};

enum { C = 4 };

/* Adds the vector `name`, reshaped to [1, C] if the form requires it; returns the name of the
 * tensor to read. */
static const char *vector(struct model *m, enum form form, const char *name, char reshaped[32])
{
    if (form == TENSORFLOW || form == CENTERED)
        return name;
    snprintf(reshaped, 32, "%s_r", name);
    model_node(m, "Reshape",
               name[0] == 'm'   ? "mean wide"
               : name[0] == 'v' ? "var wide"
               : name[0] == 'g' ? "gamma wide"
                                : "beta wide",
               reshaped);
    return reshaped;
}

static void two(struct model *m, const char *op, const char *a, const char *b, const char *out)
{
    char in[80];

    snprintf(in, sizeof(in), "%s %s", a, b);
    model_node(m, op, in, out);
}

/* s = gamma / sqrt(var + eps); returns the name of the tensor. */
static const char *scale(struct model *m, enum form form)
{
    char buf[2][32];
    const char *var = vector(m, form, "var", buf[0]);

    two(m, "Add", var, "eps", "sum");
    model_node(m, "Sqrt", "sum", "root");
    if (form == TENSORFLOW)
        model_node(m, "Reciprocal", "root", "inverse");
    else
        model_node(m, "Div", "one root", "inverse");
    if (form == NO_SCALE)
        return "inverse";
    two(m, "Mul", "inverse", vector(m, form, "gamma", buf[1]), "scale");
    return "scale";
}

static void arithmetic(struct model *m, enum form form)
{
    char buf[2][32];
    const char *s = scale(m, form);

    if (form == CENTERED) {
        model_node(m, "Sub", "h mean", "centered");
        two(m, "Mul", "centered", s, "product");
        model_node(m, "Add", "product beta", "n");
        return;
    }
    if (form == TENSORFLOW) {
        two(m, "Mul", "mean", s, "shift");
        model_node(m, "Sub", "beta shift", "offset");
    } else {
        model_node(m, "Neg", vector(m, form, "mean", buf[0]), "negative");
        two(m, "Mul", "negative", s, form == NO_BIAS ? "offset" : "shift");
        if (form != NO_BIAS)
            two(m, "Add", "shift", vector(m, form, "beta", buf[1]), "offset");
    }
    two(m, "Mul", "h", s, "product");
    model_node(m, "Add", "product offset", "n");
}

/* x [n, 4] -> MatMul -> normalisation -> MatMul -> logits */
static struct model *network(enum form form, enum form like)
{
    static const float gamma[C] = { 1, 1.5f, 0.5f, 2 }, beta[C] = { 0, 0.5f, -0.5f, 0.25f };
    static const float mean[C] = { 0.25f, 0, -0.25f, 0.5f }, var[C] = { 1, 2, 0.5f, 1.5f };
    static const float ones[C] = { 1, 1, 1, 1 }, zeros[C] = { 0 }, eps = 1e-3f, one = 1;
    static const int64_t wide[] = { 1, C };
    struct shape c = shape_of(1, (int64_t)C);
    struct model *m = begin(17);

    model_weights(m, "fc", shape_of(2, (int64_t)4, (int64_t)C), 2);
    model_floats(m, "gamma", c, like == NO_SCALE ? ones : gamma);
    model_floats(m, "beta", c, like == NO_BIAS ? zeros : beta);
    model_floats(m, "mean", c, mean);
    model_floats(m, "var", c, var);
    model_floats(m, "eps", shape_of(0), &eps);
    model_floats(m, "one", shape_of(0), &one);
    model_int64s(m, "wide", wide, 2);
    model_node(m, "MatMul", "x fc", "h");
    if (form == BY_OP) {
        model_node(m, "BatchNormalization", "h gamma beta mean var", "n");
        model_float(m, "epsilon", eps);
        model_float(m, "momentum", 0.99f);
    } else {
        arithmetic(m, form);
    }
    model_node(m, "MatMul", "n w", "logits");
    model_output(m, "logits");
    return m;
}

static struct net opened(enum form form, enum form like, enum graph_norm how,
                         enum plan_purpose purpose)
{
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = how };
    struct model *m = network(form, like);
    struct net n = net_open_graph(net_import_model(m, &opts), purpose, 8);

    model_free(m);
    net_fill(&n, 0);
    return n;
}

static bool near(float a, float b)
{
    float d = a - b, m = b < 0 ? -b : b;

    return (d < 0 ? -d : d) <= 2e-5f * (m + 0.1f);
}

/* Asserts that loss and gradients (of statistics: the values of the batch) are those of the network
 * with the op. */
static void compare_with_op(enum form form, enum graph_norm how)
{
    static const char *const names[] = { "fc", "w", "gamma", "beta", "mean", "var" };
    struct net a = opened(form, form, how, PLAN_TRAIN), b = opened(BY_OP, form, how, PLAN_TRAIN);
    uint32_t n = how == GRAPH_NORM_TRAIN ? 6 : 4;

    assert_true(near(net_forward(&a), net_forward(&b)));
    net_backward(&a);
    net_backward(&b);
    for (uint32_t i = 0; i < n; i++) {
        const struct graph_param *p, *q;

        if ((form == NO_SCALE && i == 2) || (form == NO_BIAS && i == 3))
            continue; /* the file has none */
        p = net_param(&a, names[i]);
        q = net_param(&b, names[i]);
        assert_int_equal(p->kind, i < 4 ? GRAPH_TRAINED : GRAPH_STATISTIC);
        assert_true(p->momentum == q->momentum);
        for (size_t k = 0; k < p->elements; k++)
            if (!near(a.grads[p->offset + k], b.grads[q->offset + k]))
                fail_msg("form %d, %s [%zu]: %g, the op has %g", (int)form, names[i], k,
                         (double)a.grads[p->offset + k], (double)b.grads[q->offset + k]);
    }
    net_close(&a);
    net_close(&b);
}

static void restored_norm_trains_as_the_op(void **state)
{
    (void)state;
    for (enum form form = 0; form < FORMS; form++) {
        compare_with_op(form, GRAPH_NORM_TRAIN);
        compare_with_op(form, GRAPH_NORM_FROZEN);
    }
}

static void restored_norm_in_evaluation_uses_the_averages(void **state)
{
    (void)state;
    for (enum form form = 0; form < FORMS; form++) {
        struct net a = opened(form, form, GRAPH_NORM_TRAIN, PLAN_EVAL),
                   b = opened(BY_OP, form, GRAPH_NORM_TRAIN, PLAN_EVAL);

        assert_true(near(net_forward(&a), net_forward(&b)));
        net_close(&a);
        net_close(&b);
    }
}

static void restored_norm_without_decision_is_refused(void **state)
{
    (void)state;
    for (enum form form = 0; form < FORMS; form++)
        refused(network(form, form), ERR_INPUT, "model.batch_norm", "\"batch_norm\": \"train\"",
                NULL);
}

/* A near miss stays arithmetic: another mean in the shift, no epsilon, a vector of another
 * length. */
static void other_arithmetic_is_not_restored(void **state)
{
    static const char *const edits[][2] = { { "shift", "mean2" }, { "root", "var" } };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct graph_opts opts = { .path = "t.onnx", .collect_questions = true };
        static const float other[C] = { 1, 2, 3, 4 };
        struct model *m = network(TENSORFLOW, TENSORFLOW);
        Onnx__GraphProto *p = model_proto(m)->graph;
        struct graph *g;
        char *was = NULL;
        size_t k;

        model_floats(m, "mean2", shape_of(1, (int64_t)C), other);
        for (k = 0; k < p->n_node && strcmp(p->node[k]->output[0], edits[i][0]) != 0; k++)
            ;
        assert_true(k < p->n_node);
        was = p->node[k]->input[i == 0 ? 1 : 0];
        p->node[k]->input[i == 0 ? 1 : 0] = (char *)(uintptr_t)edits[i][1];
        g = net_import_model(m, &opts);
        for (uint32_t n = 0; n < g->n_nodes; n++)
            assert_string_not_equal(g->nodes[n].def->name, "BatchNormalization");
        graph_free(g);
        p->node[k]->input[i == 0 ? 1 : 0] = was;
        model_free(m);
    }
}

static void files_of_pytorch_are_not_restored(void **state)
{
    const struct graph_opts opts = { .path = "t.onnx", .collect_questions = true };
    struct model *m = network(JAX, JAX);
    struct graph *g;

    (void)state;
    model_proto(m)->producer_name = (char *)"pytorch";
    g = net_import_model(m, &opts);
    for (uint32_t n = 0; n < g->n_nodes; n++)
        assert_string_not_equal(g->nodes[n].def->name, "BatchNormalization");
    graph_free(g);
    model_proto(m)->producer_name = NULL;
    model_free(m);
}

/* Four dimensions: the channels are the last one, or the second one by a Reshape to [1, C, 1, 1].
 */
static void restored_norm_accepts_channels_last_or_second(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        static const float gamma[3] = { 1, 1.5f, 0.5f }, beta[3] = { 0, 0.5f, -0.5f }, mean[3] = { 0 },
                           var[3] = { 1, 2, 3 }, eps = 1e-3f, one = 1;
        static const int64_t flat[] = { 0, -1 };
        const int64_t wide[] = { 1, first ? 3 : 1, 1, first ? 1 : 3 };
        const struct graph_opts opts = { .path = "t.onnx", .batch_norm = GRAPH_NORM_TRAIN };
        struct model *m = model_new(17);
        struct shape c = shape_of(1, (int64_t)3);
        struct net n;

        model_input(m, "h", TENSOR_F32,
                    first ? shape_of(4, (int64_t)-1, (int64_t)3, (int64_t)2, (int64_t)2)
                          : shape_of(4, (int64_t)-1, (int64_t)2, (int64_t)2, (int64_t)3));
        model_floats(m, "gamma", c, gamma);
        model_floats(m, "beta", c, beta);
        model_floats(m, "mean", c, mean);
        model_floats(m, "var", c, var);
        model_floats(m, "eps", shape_of(0), &eps);
        model_floats(m, "one", shape_of(0), &one);
        model_int64s(m, "wide", wide, 4);
        model_int64s(m, "flat", flat, 2);
        model_weights(m, "w", shape_of(2, (int64_t)12, (int64_t)3), 1);
        arithmetic(m, JAX);
        model_node(m, "Reshape", "n flat", "rows");
        model_node(m, "MatMul", "rows w", "logits");
        model_output(m, "logits");
        n = net_open_graph(net_import_model(m, &opts), PLAN_TRAIN, 8);
        net_fill(&n, 0);
        (void)net_forward(&n);
        net_backward(&n);
        for (int k = 0; k < 3; k++) { /* the mean of the batch, computed independently */
            const float *x = plan_input(n.plan, 0)->data;
            double sum = 0;

            net_fill(&n, 0);
            for (int i = 0; i < 8 * 12; i++)
                sum += (first ? i / 4 % 3 : i % 3) == k ? (double)x[i] : 0;
            assert_true(
                near(n.grads[net_param(&n, "mean")->offset + (size_t)k], (float)(sum / 32)));
        }
        net_close(&n);
        model_free(m);
    }
}

static void export_keeps_the_arithmetic_with_new_values(void **state)
{
    char path[] = "/tmp/restore-norm-XXXXXX";
    const struct graph_opts opts = { .path = path, .batch_norm = GRAPH_NORM_FROZEN };
    struct net n = opened(JAX, JAX, GRAPH_NORM_TRAIN, PLAN_EVAL), again;
    struct err err = { 0 };
    struct graph *g;
    int fd = mkstemp(path);
    float before;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    n.params[net_param(&n, "mean")->offset] = 0.75f;
    n.params[net_param(&n, "gamma")->offset] = 1.25f;
    before = net_forward(&n);
    assert_int_equal(graph_export(n.graph, n.params, path, &err), 0);
    assert_int_equal(graph_import(&opts, &g, &err), 0);
    assert_int_equal(g->file.model->graph->n_node, n.graph->file.model->graph->n_node);
    again = net_open_graph(g, PLAN_EVAL, 8);
    net_fill(&again, 0);
    assert_true(near(net_forward(&again), before));
    net_close(&n);
    net_close(&again);
    unlink(path);
}

static void restoration_out_of_memory_returns_an_error(void **state)
{
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = GRAPH_NORM_TRAIN };
    struct model *m = network(TENSORFLOW, TENSORFLOW);
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);
    uint32_t i;

    (void)state;
    for (i = 1; i < 1000; i++) {
        struct graph *g = NULL;
        struct err err = { 0 };
        char spec[32];
        int rc;

        snprintf(spec, sizeof(spec), "mem@%u", i);
        assert_int_equal(fault_arm(spec, &err), 0);
        rc = graph_import_bytes(&opts, bytes, n, &g, &err);
        assert_int_equal(rc, fault_fired() ? ERR_NOMEM : 0);
        graph_free(g);
        if (!fault_fired())
            break;
    }
    assert_in_range(i, 10, 999);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_norm_trains_as_the_op),
        cmocka_unit_test(restored_norm_in_evaluation_uses_the_averages),
        cmocka_unit_test(restored_norm_without_decision_is_refused),
        cmocka_unit_test(other_arithmetic_is_not_restored),
        cmocka_unit_test(files_of_pytorch_are_not_restored),
        cmocka_unit_test(restored_norm_accepts_channels_last_or_second),
        cmocka_unit_test(export_keeps_the_arithmetic_with_new_values),
        cmocka_unit_test(restoration_out_of_memory_returns_an_error),
    };

    return cmocka_run_group_tests_name("graph/restore_norm", tests, NULL, NULL);
}
