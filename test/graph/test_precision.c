/* Plans in bfloat16: which values become bfloat16, and that the numbers follow float32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "harness/lacking.h"
#include "harness/model.h"
#include "harness/net.h"

enum { BATCH = 4 };

/* On a processor without the instructions a plan must be refused; that is then the test. */
static bool is_refused(struct model *m)
{
    struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)6) };
    struct plan_opts o = { .purpose = PLAN_EVAL, .batch = BATCH, .precision = PLAN_BFLOAT16,
                           .feeds = &feed, .n_feeds = 1, .sum_outputs = true };
    struct err err = { 0 };
    struct plan *p = NULL;
    struct graph *g;

    if (op_has_bfloat16())
        return false;
    g = net_import_model(m, NULL);
    assert_int_equal(plan_new(g, &o, &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "bfloat16 needs a processor"));
    assert_non_null(strstr(err.text, op_kernel_id()));
    assert_null(p);
    graph_free(g);
    print_message("this processor lacks avx512_bf16\n");
    return true;
}

static enum tensor_dtype type_of(const struct net *n, const char *value)
{
    size_t i;

    for (i = 0; i < n->plan->values.n; i++) /* the first value of a name is the original */
        if (strcmp(n->plan->values.at[i].name, value) == 0)
            return n->plan->values.at[i].tensor.dtype;
    fail_msg("no value %s", value);
    return TENSOR_NONE;
}

/* Counts the nodes that convert this value. */
static uint32_t conversions(const struct net *n, const char *value)
{
    uint32_t found = 0;
    size_t i;

    for (i = 0; i < n->plan->nodes.n; i++)
        found += strcmp(n->plan->nodes.at[i].def->name, "Convert") == 0 &&
                 strcmp(n->plan->nodes.at[i].name, value) == 0;
    return found;
}

static struct model *begin(void)
{
    struct model *m = model_new(20);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)6));
    return m;
}

/* Frees the model. Returns false if bfloat16 was refused as expected. */
static bool end(struct model *m, const char *last, int64_t width, struct net *n)
{
    bool refused;

    model_weights(m, "head", shape_of(2, width, (int64_t)3), 9);
    model_weights(m, "head.bias", shape_of(1, (int64_t)3), 10);
    model_node(m, "Gemm", last, "logits");
    model_output(m, "logits");
    refused = is_refused(m);
    if (!refused) {
        *n = net_open_half(net_import_model(m, NULL), PLAN_TRAIN, BATCH);
        net_fill(n, 0);
        (void)net_forward(n);
        net_backward(n);
    }
    model_free(m);
    return !refused;
}

static void float32_stream_stays_float32_and_branches_become_bfloat16(void **state)
{
    struct model *m = begin();
    struct net n;

    (void)state;
    model_weights(m, "w1", shape_of(2, (int64_t)6, (int64_t)8), 1);
    model_weights(m, "w2", shape_of(2, (int64_t)8, (int64_t)6), 2);
    model_weights(m, "w3", shape_of(2, (int64_t)6, (int64_t)8), 3);
    model_weights(m, "b1", shape_of(1, (int64_t)8), 4);
    model_node(m, "MatMul", "x w1", "p1");
    model_node(m, "Mul", "p1 b1", "scaled"); /* by a parameter */
    model_node(m, "Gelu", "scaled", "g1");
    model_node(m, "MatMul", "x w3", "p3"); /* reads x as well */
    model_node(m, "Mul", "g1 p3", "gated");
    model_node(m, "MatMul", "gated w2", "p2");
    model_node(m, "Add", "x p2", "sum");
    if (!end(m, "sum head head.bias", 6, &n))
        return;
    assert_int_equal(type_of(&n, "p1"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "scaled"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "gated"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "p2"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "sum"), TENSOR_F32);
    assert_int_equal(type_of(&n, "w1"), TENSOR_F32);
    assert_int_equal(conversions(&n, "x"), 1);  /* for both products; the sum reads x itself */
    assert_int_equal(conversions(&n, "p2"), 0); /* the sum reads both types */
    assert_int_equal(conversions(&n, "sum"), 1);
    assert_int_equal(plan_tensor(n.plan, "logits")->dtype, TENSOR_F32);
    net_close(&n);
}

static void value_of_parameters_alone_stays_float32(void **state)
{
    struct model *m = begin();
    struct net n;

    (void)state;
    model_weights(m, "v", shape_of(2, (int64_t)6, (int64_t)8), 1);
    model_weights(m, "g", shape_of(1, (int64_t)8), 2);
    model_node(m, "Mul", "v g", "w"); /* a weight in two factors */
    model_node(m, "MatMul", "x w", "h");
    if (!end(m, "h head head.bias", 8, &n))
        return;
    assert_int_equal(type_of(&n, "w"), TENSOR_F32);
    assert_int_equal(conversions(&n, "w"), 0);
    assert_int_equal(type_of(&n, "h"), TENSOR_BF16);
    net_close(&n);
}

/* The precision of the plan decides, not the type in the file, and the gradient passes as in
 * PyTorch. */
static void cast_in_the_model_to_bfloat16_passes_its_gradient(void **state)
{
    struct model *m = begin();
    const struct graph_param *w;
    struct net n;
    size_t i, zeros = 0;

    (void)state;
    model_weights(m, "w1", shape_of(2, (int64_t)6, (int64_t)6), 1);
    model_node(m, "MatMul", "x w1", "h");
    model_node(m, "Cast", "h", "coarse");
    model_int(m, "to", TENSOR_BF16);
    model_node(m, "Identity", "coarse", "same");
    model_node(m, "Cast", "same", "back");
    model_int(m, "to", TENSOR_F32);
    model_node(m, "Add", "back x", "sum");
    if (!end(m, "sum head head.bias", 6, &n))
        return;
    w = net_param(&n, "w1");
    for (i = 0; i < w->elements; i++)
        zeros += n.grads[w->offset + i] == 0;
    assert_true(zeros < w->elements / 2);
    net_close(&n);
}

static void op_without_bfloat16_shares_one_conversion_to_float32(void **state)
{
    struct model *m = begin();
    struct net n;

    (void)state;
    model_weights(m, "w1", shape_of(2, (int64_t)6, (int64_t)6), 1);
    model_node(m, "MatMul", "x w1", "h");
    model_node(m, "Softmax", "h", "s");
    model_node(m, "LogSoftmax", "h", "t");
    model_node(m, "Relu", "h", "r");
    model_node(m, "Add", "s t", "u");
    model_node(m, "Add", "u r", "v");
    if (!end(m, "v head head.bias", 6, &n))
        return;
    assert_int_equal(type_of(&n, "h"), TENSOR_BF16);
    assert_int_equal(conversions(&n, "h"), 1);
    assert_int_equal(type_of(&n, "s"), TENSOR_F32);
    assert_int_equal(type_of(&n, "r"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "v"), TENSOR_F32);
    net_close(&n);
}

/* |a - b|; b NULL: zero */
static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        double d = (double)a[i] - (b != NULL ? (double)b[i] : 0);

        sum += d * d;
    }
    return sqrt(sum);
}

static double largest_gradient(const struct net *n)
{
    double most = 0;
    uint32_t i;

    for (i = 0; i < n->n_params; i++)
        most = fmax(most, n->params_of[i].kind != GRAPH_TRAINED
                              ? 0
                              : distance(n->grads + n->params_of[i].offset, NULL,
                                         n->params_of[i].elements));
    return most;
}

/* Compares gradients relative to their size; if it is nearly zero (a bias before a normalization
 * has none), relative to a small part of the largest gradient. */
static void expect_near(const char *file, const struct net *half, const struct net *wide)
{
    double least = largest_gradient(wide) / 50;
    uint32_t i;

    for (i = 0; i < half->n_params; i++) {
        const struct graph_param *p = &half->params_of[i];
        const float *b = wide->grads + p->offset;
        double off = distance(half->grads + p->offset, b, p->elements) /
                     fmax(distance(b, NULL, p->elements), least);

        if (!(off < 0.06))
            fail_msg("%s: relative error of the gradient of %s is %.3f", file, p->name, off);
    }
}

static void networks_in_bfloat16_follow_float32(void **state)
{
    static const char *const files[] = { "mlp.onnx", "cnn_17.onnx", "cnn_11.onnx", "residual.onnx",
                                         "tied.onnx", "dropout_17.onnx" };
    size_t k;
    uint32_t i;

    (void)state;
    if (!op_has_bfloat16())
        skip_lacking("the processor has no avx512_bf16");
    for (k = 0; k < COUNT_OF(files); k++) {
        struct net wide = net_open(files[k], PLAN_TRAIN, BATCH);
        struct net half = net_open_half(net_import(files[k]), PLAN_TRAIN, BATCH);
        double a, b;
        float *first;

        net_fill(&wide, 0);
        net_fill(&half, 0);
        a = (double)net_forward(&half);
        b = (double)net_forward(&wide);
        if (!(fabs(a - b) <= 0.02 * (1 + fabs(b))))
            fail_msg("%s: loss %g in bfloat16, %g in float32", files[k], a, b);
        net_backward(&half);
        net_backward(&wide);
        expect_near(files[k], &half, &wide);
        assert_memory_not_equal(half.grads, wide.grads, half.arena_bytes);

        /* A second run over the memory of the first computes the same bits. */
        first = malloc(half.arena_bytes);
        assert_non_null(first);
        memcpy(first, half.grads, half.arena_bytes);
        net_fill(&half, 0);
        (void)net_forward(&half);
        net_backward(&half);
        for (i = 0; i < half.n_params; i++)
            assert_memory_equal(first + half.params_of[i].offset,
                                half.grads + half.params_of[i].offset,
                                half.params_of[i].elements * sizeof(float));
        free(first);
        net_close(&half);
        net_close(&wide);
    }
}

static void evaluation_uses_the_same_precision(void **state)
{
    struct net n;
    double sums[2] = { 0 };

    (void)state;
    if (!op_has_bfloat16())
        skip_lacking("the processor has no avx512_bf16");
    n = net_open_half(net_import("cnn_17.onnx"), PLAN_EVAL, BATCH);
    net_fill(&n, 0);
    (void)net_forward(&n);
    plan_metric_add(n.plan, 0, sums);
    assert_true(sums[1] > 0 && sums[0] <= sums[1]);
    assert_true(conversions(&n, graph_inputs(n.graph, &(uint32_t){ 0 })[0].name) == 1);
    net_close(&n);
}

static void precision_unsupported_by_the_device_is_refused(void **state)
{
    static const struct {
        const char *name;
        uint32_t capability; /* 0: a CPU */
        const char *refused; /* NULL: accepted */
    } rows[] = {
        { "float32", 0, NULL },   { "float32", 60, NULL },
        { "tf32", 80, NULL },     { "tf32", 90, NULL },
        { "bfloat16", 80, NULL }, { "float16", 70, NULL },
        { "tf32", 0, "tf32 is supported by GPUs only: use \"float32\"" },
        { "float16", 0, "float16 is supported by GPUs only: use \"float32\"" },
        { "tf32", 75, "tf32 needs GPUs of compute capability 8.0 or later, these have 7.5: use \"float32\" or "
                      "\"float16\", or use other GPUs" },
        { "bfloat16", 61, "bfloat16 needs GPUs of compute capability 8.0 or later, these have 6.1: use \"float32\", "
                          "or use other GPUs" },
        { "float16", 62, "float16 needs GPUs of compute capability 7.0 or later, these have 6.2: use \"float32\", "
                         "or use other GPUs" },
    };
    enum plan_precision p;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(rows); i++) {
        struct err err = { 0 };
        int rc;

        assert_true(plan_precision_parse(rows[i].name, &p));
        assert_string_equal(plan_precision_name(p), rows[i].name);
        rc = plan_precision_check(p, rows[i].capability, &err);
        assert_int_equal(rc, rows[i].refused != NULL ? ERR_UNSUPPORTED : 0);
        if (rc < 0 && strncmp(err.text, rows[i].refused, strlen(rows[i].refused)) != 0)
            fail_msg("%s", err.text);
    }
    assert_false(plan_precision_parse("half", &p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_stream_stays_float32_and_branches_become_bfloat16),
        cmocka_unit_test(value_of_parameters_alone_stays_float32),
        cmocka_unit_test(cast_in_the_model_to_bfloat16_passes_its_gradient),
        cmocka_unit_test(op_without_bfloat16_shares_one_conversion_to_float32),
        cmocka_unit_test(networks_in_bfloat16_follow_float32),
        cmocka_unit_test(evaluation_uses_the_same_precision),
        cmocka_unit_test(precision_unsupported_by_the_device_is_refused),
    };

    return cmocka_run_group_tests_name("graph/precision", tests, NULL, NULL);
}
