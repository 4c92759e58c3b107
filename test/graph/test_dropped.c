/* Arguments of PyTorch's calls that its exporter drops and the metadata of the file still have. */
#include <stdlib.h>

#include "graph/kit.h"
#include "harness/net.h"

#define CALL(target_, args_) \
    "%y : [num_users=1] = call_function[target=torch.ops.aten." target_ ".default](args = (" args_ "), kwargs = {})"
#define LOSS(args_) CALL("cross_entropy_loss", "%linear, %label, " args_)

/* Plans training of the model, whose node `at` has this call. Frees the model. NULL: refused with *err. */
static int plan_with(struct model *m, size_t at, const char *call, const struct graph_opts *how,
                     const struct plan_opts *opts, struct err *err)
{
    static Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    static Onnx__StringStringEntryProto *list[] = { &entry };
    Onnx__NodeProto *node = model_proto(m)->graph->node[at];
    struct graph *g;
    struct plan *p = NULL;
    int rc;

    entry.key = (char *)"pkg.torch.onnx.fx_node";
    entry.value = (char *)(uintptr_t)call;
    node->metadata_props = list;
    node->n_metadata_props = 1;
    g = net_import_model(m, how);
    *err = (struct err){ 0 };
    rc = plan_new(g, opts, &p, err);
    node->metadata_props = NULL;
    node->n_metadata_props = 0;
    plan_free(p);
    graph_free(g);
    model_free(m);
    return rc;
}

/* x [batch, 4] -> scores -> SoftmaxCrossEntropyLoss -> logits (the name of the loss) */
static int plan_own_loss(const char *call, bool trains_on_scores, struct err *err)
{
    static const struct plan_feed feeds[] = {
        { .name = "x", .dtype = TENSOR_F32, .shape = { .rank = 1, .dim = { 4 } } },
        { .name = "label", .dtype = TENSOR_I64, .shape = { 0 } },
    };
    const struct plan_measure own = { .tensor = "loss" };
    struct plan_measure scores = net_loss;
    struct plan_opts opts = { .purpose = PLAN_TRAIN, .batch = 2, .feeds = feeds, .n_feeds = 2,
                              .targets = &net_labels, .n_targets = 1, .losses = &own, .n_losses = 1 };
    struct model *m = begin(17);

    model_input(m, "label", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_node(m, "MatMul", "x w", "logits");
    model_node(m, "SoftmaxCrossEntropyLoss", "logits label", "loss");
    model_output(m, "logits");
    if (trains_on_scores)
        opts.losses = &scores;
    return plan_with(m, 1, call, NULL, &opts, err);
}

static void label_smoothing_that_the_file_lacks_is_refused(void **state)
{
    static const struct {
        const char *call;
        bool is_refused;
    } cases[] = {
        { LOSS("None, 1, -100, 0.3"), true },
        { LOSS("None, 1, -100, 0.0"), false },
        { LOSS("None, 1, -100"), false },
        { "%y : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (%a, %b), "
          "kwargs = {label_smoothing: 0.3})", true },
        { "%y : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (%a, %b), "
          "kwargs = {reduction: 1, label_smoothing: 0.0})", false },
        { CALL("nll_loss", "%a, %b, None, 1, -100, 0.3"), false },
        { "", false },
    };
    struct err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = plan_own_loss(cases[i].call, false, &err);

        if (rc != (cases[i].is_refused ? ERR_UNSUPPORTED : 0))
            fail_msg("case %zu: %d %s", i, rc, err.text);
        if (cases[i].is_refused) {
            assert_non_null(strstr(err.text, "SoftmaxCrossEntropyLoss 'loss'"));
            assert_non_null(strstr(err.text, "label_smoothing 0.3"));
            assert_non_null(
                strstr(err.text, "\"type\": \"softmax_cross_entropy\", \"label_smoothing\": 0.3}"));
        }
    }
    assert_int_equal(plan_own_loss(LOSS("None, 1, -100, 0.3"), true, &err), 0); /* the loss is not needed */
}

static int plan_embedding(const char *call, enum plan_purpose purpose, bool is_frozen,
                          struct err *err)
{
    static const char *const table[] = { "e.weight" };
    static const struct plan_feed ids = { .name = "ids", .dtype = TENSOR_I64, .shape = { .rank = 1, .dim = { 4 } } };
    const struct graph_opts how = { .path = "t.onnx", .frozen = table, .n_frozen = is_frozen };
    const struct plan_opts opts = { .purpose = purpose, .batch = 2, .feeds = &ids, .n_feeds = 1, NET_LOSS };
    static const int64_t axis = 1;
    struct model *m = model_new(17);

    model_input(m, "ids", TENSOR_I64, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "e.weight", shape_of(2, (int64_t)6, (int64_t)4), 1);
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 2);
    model_node(m, "Gather", "e.weight ids", "y");
    model_node(m, "ReduceMean", "y", "z");
    model_ints(m, "axes", &axis, 1);
    model_int(m, "keepdims", 0);
    model_node(m, "MatMul", "z w", "logits");
    model_output(m, "logits");
    return plan_with(m, 0, call, &how, &opts, err);
}

static void scale_grad_by_freq_of_a_trained_table_is_refused(void **state)
{
    static const char scaled[] = CALL("embedding", "%p_e_weight, %ids, -1, True");
    static const char plain[] = CALL("embedding", "%p_e_weight, %ids, -1, False, True");
    static const char bag[] = CALL("_embedding_bag", "%p_e_weight, %ids, %offsets, True, 1");
    struct err err;

    (void)state;
    assert_int_equal(plan_embedding(scaled, PLAN_TRAIN, false, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "divides the gradient of the rows of 'e.weight' by how often the batch has "
                                     "them (scale_grad_by_freq)"));
    assert_non_null(strstr(err.text, "export the module with scale_grad_by_freq=False"));
    assert_non_null(strstr(err.text, "\"frozen\": [\"e.weight\"]"));
    assert_int_equal(plan_embedding(bag, PLAN_TRAIN, false, &err), ERR_UNSUPPORTED);
    assert_int_equal(plan_embedding(plain, PLAN_TRAIN, false, &err), 0);
    assert_int_equal(plan_embedding(scaled, PLAN_TRAIN, true, &err), 0);
    assert_int_equal(plan_embedding(scaled, PLAN_EVAL, false, &err), 0);
}

static void divisor_of_an_average_pool_is_refused(void **state)
{
    static const int64_t two[2] = { 2, 2 }, flat[2] = { 0, 4 };
    static const struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = { .rank = 3, .dim = { 1, 4, 4 } } };
    const struct plan_opts opts = { .purpose = PLAN_EVAL, .batch = 2, .feeds = &feed, .n_feeds = 1, NET_LOSS };
    static const char *const calls[] = {
        CALL("avg_pool2d", "%x, [2, 2], [2, 2], [0, 0], False, True, 3"),
        CALL("avg_pool2d", "%x, [2, 2], [2, 2], [0, 0], False, True"),
        CALL("avg_pool2d", "%x, [2, 2], [2, 2], [0, 0], False, True, None"),
    };
    struct err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct model *m = model_new(17);

        model_input(m, "x", TENSOR_F32,
                    shape_of(4, (int64_t)-1, (int64_t)1, (int64_t)4, (int64_t)4));
        model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 1);
        model_int64s(m, "flat", flat, 2);
        model_node(m, "AveragePool", "x", "y");
        model_ints(m, "kernel_shape", two, 2);
        model_ints(m, "strides", two, 2);
        model_node(m, "Reshape", "y flat", "z");
        model_node(m, "MatMul", "z w", "logits");
        model_output(m, "logits");
        assert_int_equal(plan_with(m, 0, calls[i], NULL, &opts, &err),
                         i == 0 ? ERR_UNSUPPORTED : 0);
        if (i == 0)
            assert_non_null(
                strstr(err.text, "divides the sums of its windows by 3 (divisor_override)"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(label_smoothing_that_the_file_lacks_is_refused),
        cmocka_unit_test(divisor_of_an_average_pool_is_refused),
        cmocka_unit_test(scale_grad_by_freq_of_a_trained_table_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
