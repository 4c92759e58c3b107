/* Networks with random numbers: a variational autoencoder and stochastic depth, as exporters write
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/kit.h"
#include "graph/plan_priv.h"
#include "harness/net.h"

/* z = mu + e^(v / 2) noise, logits = z w3 */
static struct model *autoencoder(void)
{
    static const float half = 0.5f;
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w1", shape_of(2, (int64_t)4, (int64_t)5), 1);
    model_weights(m, "w2", shape_of(2, (int64_t)4, (int64_t)5), 2);
    model_weights(m, "w3", shape_of(2, (int64_t)5, (int64_t)3), 3);
    model_floats(m, "half", shape_of(0), &half);
    model_node(m, "MatMul", "x w1", "mu");
    model_node(m, "MatMul", "x w2", "v");
    model_node(m, "Mul", "v half", "v2");
    model_node(m, "Exp", "v2", "deviation");
    model_node(m, "RandomNormalLike", "mu", "noise");
    model_node(m, "Mul", "deviation noise", "scaled");
    model_node(m, "Add", "mu scaled", "z");
    model_node(m, "MatMul", "z w3", "logits");
    model_output(m, "logits");
    return m;
}

static void noise_is_constant_for_the_gradient(void **state)
{
    struct model *m = autoencoder();
    struct net n = net_open_model(m, PLAN_TRAIN, 3);

    (void)state;
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    net_check_gradients(&n, 1, 1e-2f, 2e-3f); /* the same draw in every forward of this step */
    net_close(&n);
    model_free(m);
}

/* x + h w mask / 0.7, the mask one number per sample. */
static struct model *stochastic_depth(void)
{
    static const float keep = 0.7f;
    static const int64_t first[] = { 0 }, last[] = { 1 }, axis[] = { 1 };
    struct model *m = begin(17);

    model_floats(m, "keep", shape_of(0), &keep);
    model_int64s(m, "first", first, 1);
    model_int64s(m, "last", last, 1);
    model_int64s(m, "axis", axis, 1);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Slice", "h first last axis", "column");
    model_node(m, "RandomUniformLike", "column", "u");
    model_node(m, "Less", "u keep", "stays");
    model_node(m, "Cast", "stays", "mask");
    model_int(m, "to", TENSOR_F32);
    model_node(m, "Mul", "h mask", "kept");
    model_node(m, "Div", "kept keep", "logits");
    model_output(m, "logits");
    return m;
}

static void stochastic_depth_drops_the_drawn_samples(void **state)
{
    struct model *m = stochastic_depth();
    const struct graph_opts opts = { .path = "depth.onnx",
                                     .frozen = (const char *const[]){ "keep" },
                                     .n_frozen = 1 };
    struct net n = net_open_graph(net_import_model(m, &opts), PLAN_TRAIN, 64);
    const float *y = plan_tensor(n.plan, "logits")->data;
    uint8_t dropped[2][64];
    size_t step, i, k, total = 0;

    (void)state;
    for (step = 0; step < 2; step++) {
        n.run.step = step;
        net_fill(&n, 0);
        (void)net_forward(&n);
        for (i = 0; i < 64; i++) {
            dropped[step][i] = y[3 * i] == 0;
            total += dropped[step][i];
            for (k = 0; k < 3; k++)
                assert_int_equal(y[3 * i + k] == 0, dropped[step][i]);
        }
        net_backward(&n);
        net_check_gradients(&n, 1, 1e-2f, 2e-3f);
    }
    assert_memory_not_equal(dropped[0], dropped[1], 64);
    assert_in_range(total, 15, 65); /* of 128, 38 expected */
    net_close(&n);
    model_free(m);
}

/* y = x w + noise, where the noise has a fixed shape; with `compares`, a mask computed from it.
 * first: batch of x, -1: dynamic. */
static struct model *fixed_noise(const char *op, int64_t first, const int64_t *shape, size_t rank,
                                 bool compares)
{
    static const float half = 0.5f;
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, first, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)5), 1);
    model_floats(m, "half", shape_of(0), &half);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, op, "", "noise");
    model_ints(m, "shape", shape, rank);
    if (compares) {
        model_node(m, "Less", "noise half", "stays");
        model_node(m, "Cast", "stays", "mask");
        model_int(m, "to", TENSOR_F32);
        model_node(m, "Mul", "h mask", "logits");
    } else {
        model_node(m, "Add", "h noise", "logits");
    }
    model_output(m, "logits");
    return m;
}

static int plan_noise(struct model *m, enum plan_purpose purpose, uint32_t batch, struct err *err)
{
    struct graph *g = net_import_model(m, NULL);
    const struct plan_feed feed = { .name = "x", .source = "x", .dtype = TENSOR_F32,
                                    .shape = shape_of(1, (int64_t)4) };
    const struct plan_opts o = { .purpose = purpose, .batch = batch, .feeds = &feed, .n_feeds = 1,
                                 .sum_outputs = true };
    struct plan *p = NULL;
    int rc;

    *err = (struct err){ 0 };
    rc = plan_new(g, &o, &p, err);
    if (rc == 0)
        plan_free(p);
    graph_free(g);
    model_free(m);
    return rc;
}

static void draw_with_exported_batch_is_refused_in_every_plan(void **state)
{
    static const int64_t one[] = { 1, 5 };
    static const char *const ops[] = { "RandomNormal", "RandomUniform" };
    static const uint32_t batches[] = { 1, 2, 8 };
    size_t i, k;
    int compares;

    (void)state;
    for (i = 0; i < 2; i++)
        for (k = 0; k < 3; k++)
            for (compares = 0; compares < 2; compares++) {
                enum plan_purpose purpose = k == 1 ? PLAN_EVAL : PLAN_TRAIN;
                struct err err;

                assert_int_equal(plan_noise(fixed_noise(ops[i], -1, one, 2, compares), purpose,
                                            batches[k], &err),
                                 ERR_UNSUPPORTED);
                assert_non_null(strstr(err.text, "random numbers of 'noise'"));
                assert_non_null(strstr(err.text, "[1, 5] has 1 in place of the batch"));
                assert_non_null(strstr(err.text, "torch.randn_like()"));
            }
}

/* PyTorch's current exporter: RandomNormalLike of ConstantOfShape; the shape is fixed, or contains
 * the batch of x. */
static struct model *noise_like_a_constant(bool has_batch)
{
    static const int64_t one[] = { 1, 5 }, five[] = { 5 }, first[] = { 0 };
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)5), 1);
    model_int64s(m, "one", one, 2);
    model_int64s(m, "five", five, 1);
    model_int64s(m, "first", first, 1);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Shape", "x", "shape");
    model_node(m, "Gather", "shape first", "n");
    model_node(m, "Concat", "n five", "size");
    model_int(m, "axis", 0);
    model_node(m, "ConstantOfShape", has_batch ? "size" : "one", "zeros");
    model_node(m, "RandomNormalLike", "zeros", "noise");
    model_node(m, "Add", "h noise", "logits");
    model_output(m, "logits");
    return m;
}

static void draw_like_constant_without_batch_is_refused(void **state)
{
    struct err err;
    uint32_t batch;

    (void)state;
    for (batch = 1; batch < 4; batch++) {
        assert_int_equal(plan_noise(noise_like_a_constant(true), PLAN_TRAIN, batch, &err), 0);
        assert_int_equal(plan_noise(noise_like_a_constant(false), PLAN_TRAIN, batch, &err),
                         ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "random numbers of 'noise'"));
    }
}

static void draw_in_file_of_batch_one_is_accepted_for_batch_one_only(void **state)
{
    static const int64_t one[] = { 1, 5 };
    struct err err;

    (void)state;
    assert_int_equal(plan_noise(fixed_noise("RandomNormal", 1, one, 2, false), PLAN_TRAIN, 1, &err),
                     0);
    assert_int_equal(plan_noise(fixed_noise("RandomNormal", 1, one, 2, false), PLAN_TRAIN, 4, &err),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "random numbers of 'noise'"));
}

static void draw_with_full_batch_or_without_batch_axis_is_accepted(void **state)
{
    static const int64_t whole[] = { 3, 5 }, shared[] = { 5 };
    struct err err;

    (void)state;
    assert_int_equal(
        plan_noise(fixed_noise("RandomNormal", -1, shared, 1, false), PLAN_TRAIN, 3, &err), 0);
    assert_int_equal(
        plan_noise(fixed_noise("RandomUniform", -1, shared, 1, true), PLAN_EVAL, 3, &err), 0);
    assert_int_equal(
        plan_noise(fixed_noise("RandomNormal", 3, whole, 2, false), PLAN_TRAIN, 3, &err), 0);
}

static void draw_of_fixed_shape_is_noted(void **state)
{
    static const int64_t shared[] = { 5 };
    struct model *like = autoencoder(), *fixed = fixed_noise("RandomNormal", -1, shared, 1, false);
    struct graph *g = net_import_model(like, NULL), *h = net_import_model(fixed, NULL);
    const char *const *notes;
    uint32_t n, i, found = 0;

    (void)state;
    notes = graph_notes(g, &n);
    for (i = 0; i < n; i++)
        assert_null(strstr(notes[i], "fixed shape"));
    notes = graph_notes(h, &n);
    for (i = 0; i < n; i++)
        found += strstr(notes[i], "1 have a fixed shape (first 'noise')") != NULL;
    assert_int_equal(found, 1);
    graph_free(g);
    graph_free(h);
    model_free(like);
    model_free(fixed);
}

static void draw_in_evaluation_is_noted(void **state)
{
    struct model *m = autoencoder();
    struct graph *g = net_import_model(m, NULL);
    const char *const *notes;
    uint32_t n, i, found = 0;

    (void)state;
    notes = graph_notes(g, &n);
    for (i = 0; i < n; i++)
        found += strstr(notes[i], "1 nodes draw random numbers (first 'noise')") != NULL;
    assert_int_equal(found, 1);
    graph_free(g);
    model_free(m);
}

static Onnx__StringStringEntryProto *entry(const char *key, const char *value)
{
    static Onnx__StringStringEntryProto pool[4];
    static size_t used;
    Onnx__StringStringEntryProto *e = &pool[used++];

    assert_true(used <= 4);
    onnx__string_string_entry_proto__init(e);
    e->key = (char *)(uintptr_t)key;
    e->value = (char *)(uintptr_t)value;
    return e;
}

/* PyTorch 2.15 folds torch.bernoulli(constant): the file then contains one draw for all steps. */
static void folded_bernoulli_mask_is_refused(void **state)
{
    static const float mask[] = { 1, 0, 1 };
    static Onnx__ValueInfoProto info, *infos[] = { &info };
    static Onnx__StringStringEntryProto *signature[1], *folded[1];
    struct model *m = begin(17);
    Onnx__GraphProto *g = model_proto(m)->graph;

    (void)state;
    model_floats(m, "bernoulli", shape_of(1, (int64_t)3), mask);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Mul", "h bernoulli", "logits");
    model_output(m, "logits");
    signature[0] = entry("pkg.torch.export.ExportedProgram.graph_signature",
                         "# inputs\np_w: PARAMETER target='w'\nx: USER_INPUT\n");
    folded[0] = entry("pkg.onnxscript.optimizer.folded_from", "['full_like']");
    g->metadata_props = signature;
    g->n_metadata_props = 1;
    onnx__value_info_proto__init(&info);
    info.name = (char *)(uintptr_t) "bernoulli";
    info.metadata_props = folded;
    info.n_metadata_props = 1;
    g->value_info = infos;
    g->n_value_info = 1;
    {
        const struct graph_opts opts = { .path = "draws.onnx",
                                         .frozen = (const char *const[]){ "w" },
                                         .n_frozen = 1 };
        struct graph *graph = NULL;
        struct err err = { 0 };
        size_t n;
        const uint8_t *bytes = model_bytes(m, &n);

        assert_int_not_equal(graph_import_bytes(&opts, bytes, n, &graph, &err), 0);
        if (strstr(err.text, "the exporter drew once") == NULL ||
            strstr(err.text, "optimize=False") == NULL)
            fail_msg("%s", err.text);
    }
    g->metadata_props = NULL; /* not owned by the model */
    g->n_metadata_props = 0;
    g->value_info = NULL;
    g->n_value_info = 0;
    model_free(m);
}

/* spectral_norm updates its vectors in train(); BatchNormalization nodes update their averages
 * themselves. */
static void mutated_buffers_are_noted(void **state)
{
    static Onnx__StringStringEntryProto *signature[1];
    const struct graph_opts opts = {
        .path = "mutation.onnx", .trainable = (const char *const[]){ "w" }, .n_trainable = 1
    };
    struct model *m = linear(17);
    Onnx__GraphProto *g = model_proto(m)->graph;
    const char *const *notes;
    struct graph *graph;
    uint32_t n, i, said = 0;

    (void)state;
    signature[0] = entry("pkg.torch.export.ExportedProgram.graph_signature",
                         "# inputs\np_w: PARAMETER target='w'\nb_u: BUFFER target='fc._u' persistent=True\n"
                         "x: USER_INPUT\n\n# outputs\nadd: BUFFER_MUTATION target='bn.running_mean'\n"
                         "div: BUFFER_MUTATION target='fc._u'\nlogits: USER_OUTPUT\n");
    g->metadata_props = signature;
    g->n_metadata_props = 1;
    graph = net_import_model(m, &opts);
    notes = graph_notes(graph, &n);
    for (i = 0; i < n; i++)
        said += strstr(notes[i], "changes 1 of its buffers in each call (first 'fc._u')") != NULL;
    assert_int_equal(said, 1);
    graph_free(graph);
    g->metadata_props = NULL; /* not owned by the model */
    g->n_metadata_props = 0;
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_buffers_are_noted),
        cmocka_unit_test(noise_is_constant_for_the_gradient),
        cmocka_unit_test(stochastic_depth_drops_the_drawn_samples),
        cmocka_unit_test(folded_bernoulli_mask_is_refused),
        cmocka_unit_test(draw_with_exported_batch_is_refused_in_every_plan),
        cmocka_unit_test(draw_like_constant_without_batch_is_refused),
        cmocka_unit_test(draw_in_file_of_batch_one_is_accepted_for_batch_one_only),
        cmocka_unit_test(draw_with_full_batch_or_without_batch_axis_is_accepted),
        cmocka_unit_test(draw_of_fixed_shape_is_noted),
        cmocka_unit_test(draw_in_evaluation_is_noted),
    };

    return cmocka_run_group_tests_name("graph/draws", tests, NULL, NULL);
}
