/* Networks that draw: a variational autoencoder and stochastic depth, as exporters write them. */
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

static void noise_is_a_constant_of_the_gradient(void **state)
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

static void samples_are_dropped_as_their_draw_says(void **state)
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

static void note_says_that_numbers_are_drawn_in_evaluation(void **state)
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

/* PyTorch 2.15 folds torch.bernoulli(constant): the file then holds one draw for all steps. */
static void mask_that_the_exporter_drew_is_refused(void **state)
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
    g->metadata_props = NULL; /* not the model's */
    g->n_metadata_props = 0;
    g->value_info = NULL;
    g->n_value_info = 0;
    model_free(m);
}

/* spectral_norm moves its vectors in train(); BatchNormalization nodes move their averages themselves. */
static void buffers_that_the_module_changes_are_noted(void **state)
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
    g->metadata_props = NULL; /* not the model's */
    g->n_metadata_props = 0;
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_that_the_module_changes_are_noted),
        cmocka_unit_test(noise_is_a_constant_of_the_gradient),
        cmocka_unit_test(samples_are_dropped_as_their_draw_says),
        cmocka_unit_test(mask_that_the_exporter_drew_is_refused),
        cmocka_unit_test(note_says_that_numbers_are_drawn_in_evaluation),
    };

    return cmocka_run_group_tests_name("graph/draws", tests, NULL, NULL);
}
