/* The form of a BatchNormalization: selected by the file, by the job, or by the origin of its
 * statistics. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "graph/graph_priv.h"
#include "graph/kit.h"
#include "harness/net.h"

enum { TRAINS, APPLIES }; /* the form in the file */

static void norm(struct model *m, int64_t opset, int form, const char *in, const char *out)
{
    char outs[64];

    if (form == TRAINS)
        snprintf(outs, sizeof(outs), opset < 14 ? "%s %sm %sv %ssm %ssv" : "%s %sm %sv", out, out,
                 out, out, out);
    else
        snprintf(outs, sizeof(outs), "%s", out);
    model_node(m, "BatchNormalization", in, outs);
    model_float(m, "momentum", 0.75f);
    if (opset >= 14 && form == TRAINS)
        model_int(m, "training_mode", 1);
}

/* x [n, 4] -> Gemm -> BatchNormalization -> Gemm -> logits */
static struct model *network(int64_t opset, int form, const char *statistics)
{
    static const float ones[4] = { 1, 1.5f, 0.5f, 2 }, zeros[4] = { 0, 0.5f, -0.5f, 0.25f };
    struct shape c = shape_of(1, (int64_t)4);
    struct model *m = begin(opset);
    char in[64];

    model_weights(m, "fc.weight", shape_of(2, (int64_t)4, (int64_t)4), 2);
    model_floats(m, "bn.weight", c, ones);
    model_floats(m, "bn.bias", c, zeros);
    model_floats(m, "bn.running_mean", c, zeros);
    model_floats(m, "bn.running_var", c, ones);
    model_node(m, "MatMul", "x fc.weight", "h");
    snprintf(in, sizeof(in), "h bn.weight bn.bias %s", statistics);
    norm(m, opset, form, in, "n");
    model_node(m, "MatMul", "n w", "logits");
    model_output(m, "logits");
    return m;
}

#define RUNNING "bn.running_mean bn.running_var"

static struct graph *import_as(struct model *m, enum graph_norm how)
{
    const struct graph_opts opts = { .path = "test.onnx", .batch_norm = how };
    struct graph *g = net_import_model(m, &opts);

    model_free(m);
    return g;
}

static const struct graph_param *find(const struct graph *g, const char *name)
{
    uint32_t n, i;
    const struct graph_param *p = graph_params(g, &n);

    for (i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return &p[i];
    return NULL;
}

static bool has_note(const struct graph *g, const char *part)
{
    uint32_t n, i;
    const char *const *notes = graph_notes(g, &n);

    for (i = 0; i < n; i++)
        if (strstr(notes[i], part) != NULL)
            return true;
    return false;
}

static const int64_t opsets[] = { 7, 9, 11, 13, 14, 17, 20, 28 };

static void inference_form_without_decision_is_refused_with_both_options(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++)
        refused(network(opsets[i], APPLIES, RUNNING), ERR_INPUT,
                "1 BatchNormalization node (first 'n')", "inference form",
                "\"batch_norm\": \"train\"", "\"batch_norm\": \"frozen\"", NULL);
}

static void inference_form_with_collect_questions_is_a_question(void **state)
{
    const struct graph_opts opts = { .path = "test.onnx", .collect_questions = true };
    struct model *m = network(17, APPLIES, RUNNING), *trains = network(17, TRAINS, RUNNING);
    struct graph *g = net_import_model(m, &opts), *h = net_import_model(trains, &opts);

    (void)state;
    assert_non_null(strstr(graph_question(g), "\"batch_norm\": \"train\""));
    assert_null(graph_question(h));
    graph_free(g);
    graph_free(h);
    model_free(m);
    model_free(trains);
}

static void batch_norm_train_updates_averages_in_every_opset(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++) {
        struct graph *g = import_as(network(opsets[i], APPLIES, RUNNING), GRAPH_NORM_TRAIN);

        assert_int_equal(find(g, "bn.running_mean")->kind, GRAPH_STATISTIC);
        assert_int_equal(find(g, "bn.running_var")->kind, GRAPH_STATISTIC);
        assert_true(find(g, "bn.running_var")->momentum == 0.75f);
        assert_int_equal(find(g, "bn.weight")->kind, GRAPH_TRAINED);
        assert_false(has_note(g, "inference form"));
        graph_free(g);
    }
}

static void batch_norm_frozen_keeps_averages_in_either_form(void **state)
{
    size_t i;
    int form;

    (void)state;
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++)
        for (form = TRAINS; form <= APPLIES; form++) {
            struct graph *g = import_as(network(opsets[i], form, RUNNING), GRAPH_NORM_FROZEN);

            assert_null(find(g, "bn.running_mean"));
            assert_null(find(g, "bn.running_var"));
            assert_int_equal(find(g, "bn.bias")->kind, GRAPH_TRAINED);
            assert_true(has_note(g, "inference form"));
            graph_free(g);
        }
}

static void training_form_needs_no_decision(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++) {
        struct graph *g = import_as(network(opsets[i], TRAINS, RUNNING), GRAPH_NORM_ASK);

        assert_int_equal(find(g, "bn.running_mean")->kind, GRAPH_STATISTIC);
        graph_free(g);
    }
}

static void frozen_scale_needs_no_decision(void **state)
{
    const char *frozen[] = { "bn.*" };
    const struct graph_opts opts = { .path = "test.onnx", .frozen = frozen, .n_frozen = 1 };
    struct model *m = network(17, APPLIES, RUNNING);
    struct graph *g = net_import_model(m, &opts);

    (void)state;
    assert_null(find(g, "bn.weight"));
    assert_non_null(find(g, "fc.weight"));
    assert_true(has_note(g, "inference form"));
    graph_free(g);
    model_free(m);
}

/* Asserts that the loss and the gradients of `m` are those of the same network in the file's
 * training form. */
/* ---- the mode of each module ---- */

#define LEGIT(name_) "%n = call_function[target=torch.ops.aten._native_batch_norm_legit" name_ ".default](args = ("
#define BATCH_NORM(training_) \
    "%n = call_function[target=torch.ops.aten.batch_norm.default](args = (%x, %w, %b, %m, %v, " training_ ", 0.1, 1e-05, True)"

/* x [n, 4] -> BatchNormalization -> BatchNormalization -> Gemm -> logits, in inference form, with these
 * calls in their metadata. */
static struct graph *import_pair(const char *first, const char *second, enum graph_norm how,
                                 bool collects, struct err *err)
{
    static const float ones[4] = { 1, 1.5f, 0.5f, 2 }, zeros[4] = { 0, 0.5f, -0.5f, 0.25f };
    static Onnx__StringStringEntryProto entries[2], *lists[2][1];
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = how, .collect_questions = collects };
    const char *const calls[] = { first, second };
    struct shape c = shape_of(1, (int64_t)4);
    struct model *m = begin(17);
    struct graph *g = NULL;
    const uint8_t *bytes;
    size_t n, i;

    for (i = 0; i < 2; i++) {
        char names[4][16], in[80];
        static const char *const stems[] = { "weight", "bias", "mean", "var" };

        for (size_t k = 0; k < 4; k++) {
            snprintf(names[k], sizeof(names[k]), "%c.%s", "ab"[i], stems[k]);
            model_floats(m, names[k], c, k % 3 == 0 ? ones : zeros);
        }
        snprintf(in, sizeof(in), "%s %s %s %s %s", i == 0 ? "x" : "h", names[0], names[1], names[2],
                 names[3]);
        norm(m, 17, APPLIES, in, i == 0 ? "h" : "n");
    }
    model_node(m, "MatMul", "n w", "logits");
    model_output(m, "logits");
    for (i = 0; i < 2; i++) {
        Onnx__NodeProto *bn = model_proto(m)->graph->node[i];

        onnx__string_string_entry_proto__init(&entries[i]);
        entries[i].key = (char *)"pkg.torch.onnx.fx_node";
        entries[i].value = (char *)(uintptr_t)calls[i];
        lists[i][0] = &entries[i];
        bn->metadata_props = lists[i];
        bn->n_metadata_props = 1;
    }
    bytes = model_bytes(m, &n);
    (void)graph_import_bytes(&opts, bytes, n, &g, err);
    for (i = 0; i < 2; i++) {
        model_proto(m)->graph->node[i]->metadata_props = NULL;
        model_proto(m)->graph->node[i]->n_metadata_props = 0;
    }
    model_free(m);
    return g;
}

static void batch_norm_train_keeps_modules_that_were_in_eval(void **state)
{
    static const struct {
        const char *first, *second;
    } cases[] = { { LEGIT("_no_training"), LEGIT("_functional") },
                  { BATCH_NORM("False"), BATCH_NORM("True") },
                  { LEGIT("_no_training"), "" } };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = { 0 };
        struct graph *g =
            import_pair(cases[i].first, cases[i].second, GRAPH_NORM_TRAIN, false, &err);

        if (g == NULL)
            fail_msg("case %zu: %s", i, err.text);
        assert_null(find(g, "a.mean"));
        assert_int_equal(find(g, "b.mean")->kind, GRAPH_STATISTIC);
        assert_int_equal(find(g, "a.weight")->kind, GRAPH_TRAINED);
        assert_true(has_note(g, "the running averages of 1 BatchNormalization nodes"));
        assert_true(has_note(
            g, "their modules were in eval(), which \"batch_norm\": \"train\" does not change"));
        graph_free(g);
    }
}

static void batch_norm_train_with_all_modules_in_eval_is_refused(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_null(
        import_pair(LEGIT("_no_training"), BATCH_NORM("False"), GRAPH_NORM_TRAIN, false, &err));
    assert_int_equal(err.code, ERR_INPUT);
    assert_non_null(strstr(err.text, "every BatchNorm (2) was in eval() when it was exported"));
    assert_non_null(
        strstr(err.text, "use \"batch_norm\": \"frozen\", or export the module in train()"));
}

static void question_about_modules_in_both_modes_counts_those_in_eval(void **state)
{
    struct err err = { 0 };
    struct graph *g =
        import_pair(LEGIT("_no_training"), LEGIT("_functional"), GRAPH_NORM_ASK, true, &err);

    (void)state;
    assert_non_null(g);
    assert_non_null(strstr(graph_question(g), "1 of them were in eval() when they were exported"));
    graph_free(g);
}

static void same_as_training_form(struct model *m, enum graph_norm how)
{
    struct net a = net_open_graph(import_as(m, how), PLAN_TRAIN, 8),
               b = net_open_graph(import_as(network(17, TRAINS, RUNNING), GRAPH_NORM_ASK),
                                  PLAN_TRAIN, 8);
    static const char *const names[] = { "fc.weight", "bn.weight", "bn.bias", "w" };
    size_t i;

    net_fill(&a, 0);
    net_fill(&b, 0);
    assert_true(net_forward(&a) == net_forward(&b));
    net_backward(&a);
    net_backward(&b);
    for (i = 0; i < 4; i++) {
        const struct graph_param *p = net_param(&a, names[i]), *q = net_param(&b, names[i]);

        assert_memory_equal(a.grads + p->offset, b.grads + q->offset, p->elements * sizeof(float));
    }
    net_close(&a);
    net_close(&b);
}

static void batch_norm_train_computes_as_the_training_form(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++)
        same_as_training_form(network(opsets[i], APPLIES, RUNNING), GRAPH_NORM_TRAIN);
}

/* As PyTorch writes track_running_stats=False: the graph computes the statistics of the batch. */
static struct model *own_batch(bool of_another)
{
    static const int64_t first[] = { 0 };
    struct model *m = begin(18);
    static const float ones[4] = { 1, 1.5f, 0.5f, 2 }, zeros[4] = { 0, 0.5f, -0.5f, 0.25f };
    struct shape c = shape_of(1, (int64_t)4);

    model_weights(m, "fc.weight", shape_of(2, (int64_t)4, (int64_t)4), 2);
    model_floats(m, "bn.weight", c, ones);
    model_floats(m, "bn.bias", c, zeros);
    model_int64s(m, "axes", first, 1);
    model_node(m, "MatMul", "x fc.weight", "h");
    model_node(m, "Relu", "h", "other");
    model_node(m, "ReduceMean", of_another ? "other axes" : "h axes", "mean");
    model_int(m, "keepdims", 0);
    model_node(m, "ReduceMean", "h axes", "kept");
    model_node(m, "Sub", "h kept", "d");
    model_node(m, "Mul", "d d", "dd");
    model_node(m, "ReduceMean", "dd axes", "var");
    model_int(m, "keepdims", 0);
    norm(m, 18, APPLIES, "h bn.weight bn.bias mean var", "n");
    model_node(m, "MatMul", "n w", "logits");
    model_output(m, "logits");
    return m;
}

static void statistics_of_own_batch_pass_their_gradient(void **state)
{
    (void)state;
    same_as_training_form(own_batch(false), GRAPH_NORM_ASK);
    same_as_training_form(own_batch(false), GRAPH_NORM_TRAIN);
    same_as_training_form(own_batch(false), GRAPH_NORM_FROZEN);
}

static void statistics_that_lose_a_gradient_are_refused(void **state)
{
    (void)state;
    refused(own_batch(true), ERR_UNSUPPORTED,
            "'n': its mean 'mean' is computed from trained values", NULL);
}

static void average_that_is_a_weight_is_refused(void **state)
{
    struct err err = { 0 };
    struct graph *g;
    struct model *m = network(17, APPLIES, "bn.running_mean bn.weight");
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = GRAPH_NORM_FROZEN };

    (void)state;
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "'bn.weight' is a running average and a weight at once"));
    model_free(m);
}

static void computed_averages_with_batch_norm_train_are_refused(void **state)
{
    struct err err = { 0 };
    struct graph *g;
    struct model *m = network(17, APPLIES, RUNNING);
    Onnx__NodeProto *bn = model_proto(m)->graph->node[1];
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = GRAPH_NORM_TRAIN };
    char *was = bn->input[3];
    size_t n;
    const uint8_t *bytes;

    (void)state;
    bn->input[3] = (char *)"x"; /* fed */
    bytes = model_bytes(m, &n);
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "its running averages are computed by the graph"));
    bn->input[3] = was;
    model_free(m);
}

/* The file does not show a Dropout that eval() removed, but it shows that the module was in
 * eval(). */
static void export_in_eval_mode_is_noted(void **state)
{
    static Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    static Onnx__StringStringEntryProto *list[] = { &entry };
    static const struct {
        const char *call, *producer;
        bool is_noted;
    } cases[] = {
        { "%n = call_function[target=torch.ops.aten._native_batch_norm_legit_no_training.default](args = ())",
          "pytorch", true },
        { "%n = call_function[target=torch.ops.aten._native_batch_norm_legit_functional.default](args = ())",
          "pytorch", false },
        { "", "tf2onnx", true },
        { "", "jax2onnx", true },
        { "", "", false },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct graph_opts opts = { .path = "t.onnx", .batch_norm = GRAPH_NORM_FROZEN };
        struct model *m = network(17, APPLIES, RUNNING);
        Onnx__NodeProto *bn = model_proto(m)->graph->node[1];
        struct graph *g;

        entry.key = (char *)"pkg.torch.onnx.fx_node";
        entry.value = (char *)(uintptr_t)cases[i].call;
        bn->metadata_props = list;
        bn->n_metadata_props = 1;
        model_proto(m)->producer_name = (char *)(uintptr_t)cases[i].producer;
        g = net_import_model(m, &opts);
        assert_int_equal(has_note(g, "Dropout"), cases[i].is_noted);
        graph_free(g);
        bn->metadata_props = NULL;
        bn->n_metadata_props = 0;
        model_proto(m)->producer_name = NULL;
        model_free(m);
    }
}

static bool is_unbiased(int64_t opset, int form, enum graph_norm how, const char *producer,
                        char digest[65])
{
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = how };
    struct model *m = network(opset, form, RUNNING);
    struct graph *g;
    bool found = false;
    uint32_t i;

    model_proto(m)->producer_name = (char *)(uintptr_t)producer;
    g = net_import_model(m, &opts);
    for (i = 0; i < g->nodes[1].n_attrs; i++)
        found = found ||
                (strcmp(g->nodes[1].attrs[i].name, "unbiased") == 0 && g->nodes[1].attrs[i].i == 1);
    snprintf(digest, 65, "%s", graph_digest(g));
    graph_free(g);
    model_proto(m)->producer_name = NULL;
    model_free(m);
    return found;
}

/* The file does not state the statistic, so the producer determines it; two tasks that differ in it
 * must not train together. */
static void averages_of_pytorch_files_are_unbiased(void **state)
{
    static const char *const others[] = { "", "tf2onnx", "jax2onnx", "trainerd", "backend-test" };
    size_t i, k;

    (void)state;
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++) {
        int64_t opset = opsets[i];
        char torch[65], other[65], none[65];

        assert_true(is_unbiased(opset, APPLIES, GRAPH_NORM_TRAIN, "pytorch", torch));
        assert_false(is_unbiased(opset, APPLIES, GRAPH_NORM_TRAIN, "", none));
        assert_string_not_equal(torch, none);
        assert_true(is_unbiased(opset, TRAINS, GRAPH_NORM_ASK, "pytorch", torch));
        for (k = 0; k < sizeof(others) / sizeof(others[0]); k++)
            assert_false(is_unbiased(opset, TRAINS, GRAPH_NORM_TRAIN, others[k], other));
        assert_string_not_equal(torch, other);
    }
}

static void frozen_averages_have_the_same_digest_for_any_exporter(void **state)
{
    char torch[65], other[65];
    int form;

    (void)state;
    for (form = TRAINS; form <= APPLIES; form++) {
        assert_false(is_unbiased(17, form, GRAPH_NORM_FROZEN, "pytorch", torch));
        assert_false(is_unbiased(17, form, GRAPH_NORM_FROZEN, "", other));
        assert_string_equal(torch, other);
    }
}

static void file_with_attribute_unbiased_is_refused(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_floats(m, "v", shape_of(1, (int64_t)4), (const float[]){ 1, 2, 3, 4 });
    model_node(m, "BatchNormalization", "x v v v v", "y");
    model_int(m, "unbiased", 1);
    model_output(m, "y");
    refused(m, ERR_UNSUPPORTED, "attribute 'unbiased' is not supported", NULL);
}

static const struct op_attr *attr_of(const struct graph_node *n, const char *name)
{
    uint32_t i;

    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, name) == 0)
            return &n->attrs[i];
    return NULL;
}

/* A module that is called twice, as PyTorch's exporter writes it: the second node reads copies of
 * the averages. */
static struct model *called_twice(int form, float momentum)
{
    struct model *m = network(17, form, RUNNING);

    model_node(m, "Identity", "bn.running_mean", "mean2");
    model_node(m, "Identity", "bn.running_var", "var2");
    model_node(m, "BatchNormalization", "n bn.weight bn.bias mean2 var2",
               form == TRAINS ? "n2 nm2 nv2" : "n2");
    model_float(m, "momentum", momentum);
    if (form == TRAINS)
        model_int(m, "training_mode", 1);
    model_node(m, "MatMul", "n2 w", "logits2");
    model_output(m, "logits2");
    return m;
}

static void averages_of_module_called_twice_are_updated_in_turn(void **state)
{
    struct graph *g = import_as(called_twice(APPLIES, 0.75f), GRAPH_NORM_TRAIN);
    const struct graph_param *mean = find(g, "bn.running_mean"),
                             *variance = find(g, "bn.running_var");

    (void)state;
    /* 0.75 (0.75 old + 0.25 first) + 0.25 second */
    assert_true(mean->kind == GRAPH_STATISTIC && mean->momentum == 0.5625f);
    assert_true(variance->kind == GRAPH_STATISTIC && variance->momentum == 0.5625f);
    assert_true(fabsf(attr_of(&g->nodes[1], "share")->f * (1 - 0.5625f) - 0.75f * 0.25f) < 1e-6f);
    assert_true(fabsf(attr_of(&g->nodes[5], "share")->f * (1 - 0.5625f) - 0.25f) < 1e-6f);
    graph_free(g);
    g = import_as(called_twice(APPLIES, 0.75f), GRAPH_NORM_FROZEN);
    assert_null(attr_of(&g->nodes[1], "share"));
    graph_free(g);
    refused(called_twice(TRAINS, 0.5f), ERR_INPUT,
            "'bn.running_mean' is shared with a node of another momentum", NULL);
}

static void export_after_training_is_in_inference_form(void **state)
{
    char path[] = "/tmp/norm-form-XXXXXX";
    size_t i;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (i = 0; i < sizeof(opsets) / sizeof(opsets[0]); i++) {
        struct graph *g = import_as(network(opsets[i], APPLIES, RUNNING), GRAPH_NORM_TRAIN), *back;
        float *arena = calloc(graph_arena_floats(g), sizeof(*arena));
        const struct graph_opts opts = { .path = path, .batch_norm = GRAPH_NORM_FROZEN };
        struct err err = { 0 };
        const Onnx__NodeProto *bn;

        assert_non_null(arena);
        arena[find(g, "bn.running_var")->offset] = 7;
        assert_int_equal(graph_export(g, arena, path, &err), 0);
        assert_int_equal(graph_import(&opts, &back, &err), 0);
        bn = back->file.model->graph->node[1];
        assert_string_equal(bn->op_type, "BatchNormalization");
        assert_int_equal(bn->n_output, 1);
        assert_int_equal(bn->n_attribute, 1); /* momentum */
        assert_true(((const float *)back->file.model->graph->initializer[5]->raw_data.data)[0] ==
                    7);
        free(arena);
        graph_free(back);
        graph_free(g);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inference_form_without_decision_is_refused_with_both_options),
        cmocka_unit_test(inference_form_with_collect_questions_is_a_question),
        cmocka_unit_test(batch_norm_train_updates_averages_in_every_opset),
        cmocka_unit_test(batch_norm_frozen_keeps_averages_in_either_form),
        cmocka_unit_test(training_form_needs_no_decision),
        cmocka_unit_test(frozen_scale_needs_no_decision),
        cmocka_unit_test(batch_norm_train_computes_as_the_training_form),
        cmocka_unit_test(statistics_of_own_batch_pass_their_gradient),
        cmocka_unit_test(statistics_that_lose_a_gradient_are_refused),
        cmocka_unit_test(average_that_is_a_weight_is_refused),
        cmocka_unit_test(computed_averages_with_batch_norm_train_are_refused),
        cmocka_unit_test(export_in_eval_mode_is_noted),
        cmocka_unit_test(batch_norm_train_keeps_modules_that_were_in_eval),
        cmocka_unit_test(batch_norm_train_with_all_modules_in_eval_is_refused),
        cmocka_unit_test(question_about_modules_in_both_modes_counts_those_in_eval),
        cmocka_unit_test(averages_of_pytorch_files_are_unbiased),
        cmocka_unit_test(frozen_averages_have_the_same_digest_for_any_exporter),
        cmocka_unit_test(file_with_attribute_unbiased_is_refused),
        cmocka_unit_test(averages_of_module_called_twice_are_updated_in_turn),
        cmocka_unit_test(export_after_training_is_in_inference_form),
    };

    return cmocka_run_group_tests_name("graph/norm_form", tests, NULL, NULL);
}
