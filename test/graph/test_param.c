/* Classification of initializers by import: parameters, statistics and constants, and their
 * order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/kit.h"
#include "harness/model.h"
#include "harness/net.h"

static const struct graph_param *find(const struct graph *g, const char *name)
{
    const struct graph_param *p;
    uint32_t n, i;

    p = graph_params(g, &n);
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

static void parameters_are_ordered_by_completion_in_backward(void **state)
{
    static const char *const order[] = { "fc.weight",        "fc.bias",         "bn2.weight",
                                         "bn2.bias",         "conv2.weight",    "bn1.weight",
                                         "bn1.bias",         "conv1.weight",    "conv1.bias",
                                         "bn1.running_mean", "bn1.running_var", "bn2.running_mean",
                                         "bn2.running_var" };
    struct graph *g = net_import("cnn_13.onnx");
    const struct graph_param *p;
    size_t at = 0;
    uint32_t n, i;

    (void)state;
    p = graph_params(g, &n);
    assert_int_equal(n, 13);
    for (i = 0; i < n; i++) {
        assert_string_equal(p[i].name, order[i]);
        assert_int_equal(p[i].offset, at);
        assert_int_equal(p[i].kind, i < 9 ? GRAPH_TRAINED : GRAPH_STATISTIC);
        assert_float_equal(p[i].momentum, i < 9 ? 0 : 0.9f, 0);
        at += (p[i].elements + 15) / 16 * 16;
        if (i == 8)
            assert_int_equal(graph_trained_floats(g), at);
    }
    assert_int_equal(graph_arena_floats(g), at);
    graph_free(g);
}

static void identity_copies_become_parameters_and_ties_remain(void **state)
{
    struct graph *g = net_import("identity.onnx"), *tied = net_import("tied.onnx");
    uint32_t n;

    (void)state;
    assert_non_null(find(g, "fc1.bias"));
    assert_non_null(find(g, "fc2.bias"));
    assert_non_null(find(g, "onnx::Bias_9"));
    assert_memory_equal(find(g, "fc1.bias")->initial, find(g, "onnx::Bias_9")->initial, 20);
    assert_true(has_note(g, "shared through Identity"));
    assert_true(has_note(g, "trains 3 initializers with generated names"));
    (void)graph_params(tied, &n);
    assert_int_equal(n, 4);
    assert_false(has_note(tied, "Identity"));
    graph_free(g);
    graph_free(tied);
}

static void frozen_patterns_exclude_parameters(void **state)
{
    const char *frozen[] = { "conv*", "bn1.*" };
    struct graph_opts opts = { .path = "test/graph/data/cnn_17.onnx",
                               .frozen = frozen,
                               .n_frozen = 2 };
    struct err err = { 0 };
    struct graph *g;
    uint32_t n;

    (void)state;
    assert_int_equal(graph_import(&opts, &g, &err), 0);
    (void)graph_params(g, &n);
    assert_int_equal(n, 6); /* fc, bn2 and its statistics */
    graph_free(g);
    frozen[1] = "bn1.weihgt";
    assert_int_equal(graph_import(&opts, &g, &err), ERR_INPUT);
    assert_non_null(
        strstr(err.text, "'bn1.weihgt' matches no parameter; did you mean 'bn1.weight'?"));
    frozen[1] = "encoder.*";
    assert_int_equal(graph_import(&opts, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "'encoder.*' matches none of the 13 parameters"));
}

static struct model *normalised(int64_t mode, const char *mean, const char *second_mean)
{
    static const float ones[4] = { 1, 1, 1, 1 }, zeros[4] = { 0, 0, 0, 0 };
    struct shape c = shape_of(1, (int64_t)4);
    struct model *m = begin(17);
    char in[64];

    model_floats(m, "scale", c, ones);
    model_floats(m, "bias", c, zeros);
    model_floats(m, "mean", c, zeros);
    model_floats(m, "mean2", c, zeros);
    model_floats(m, "var", c, ones);
    model_floats(m, "var2", c, ones);
    snprintf(in, sizeof(in), "x scale bias %s var", mean);
    model_node(m, "BatchNormalization", in, mode != 0 ? "a a1 a2" : "a");
    model_int(m, "training_mode", mode);
    snprintf(in, sizeof(in), "a scale bias %s var2", second_mean);
    model_node(m, "BatchNormalization", in, mode != 0 ? "b b1 b2" : "b");
    model_int(m, "training_mode", mode);
    model_node(m, "MatMul", "b w", "logits");
    model_output(m, "logits");
    return m;
}

static void statistic_of_two_nodes_is_refused(void **state)
{
    struct model *m = normalised(1, "mean", "mean2");
    struct graph *g = net_import_model(m, NULL);

    (void)state;
    assert_int_equal(find(g, "mean")->kind, GRAPH_STATISTIC);
    assert_int_equal(find(g, "scale")->kind, GRAPH_TRAINED);
    graph_free(g);
    model_free(m);

    refused(normalised(1, "mean", "mean"), ERR_INPUT, "'mean' is shared with a node", NULL);
    refused(normalised(1, "scale", "mean"), ERR_INPUT,
            "'scale' is a running statistic and a weight", NULL);
    m = normalised(1, "mean", "mean2");
    model_output(m, "a1");
    refused(m, ERR_UNSUPPORTED, "output 'a1' is used", NULL);
}

static void integers_scalars_and_unused_initializers_are_not_trained(void **state)
{
    struct model *m = begin(17);
    const int64_t shape[] = { -1, 4 };
    struct graph *g;
    uint32_t n;

    (void)state;
    model_int64s(m, "shape", shape, 2);
    model_weights(m, "unused", shape_of(1, (int64_t)3), 2);
    model_weights(m, "gain", shape_of(0), 3);
    /* old files list initializers as inputs */
    model_input(m, "w", TENSOR_F32, shape_of(2, (int64_t)4, (int64_t)3));
    model_node(m, "Reshape", "x shape", "y");
    model_node(m, "MatMul", "y w", "z");
    model_node(m, "Mul", "z gain", "logits");
    model_output(m, "logits");
    g = net_import_model(m, NULL);
    (void)graph_params(g, &n);
    assert_int_equal(n, 1);
    assert_non_null(find(g, "w"));
    (void)graph_inputs(g, &n);
    assert_int_equal(n, 1);
    graph_free(g);
    model_free(m);
}

/* A limit of Clip is a bound, unless the job or the module state that it is a parameter. */
static void limit_of_clip_is_trained_on_request(void **state)
{
    static const char *const limit[] = { "limit" };
    const struct graph_opts trainable = { .trainable = limit, .n_trainable = 1 };
    const float six = 6, zero = 0;
    struct model *m = linear(17);
    struct graph *g;
    uint32_t n;

    (void)state;
    model_floats(m, "limit", shape_of(0), &six);
    model_floats(m, "onnx::Clip_2", shape_of(0), &zero);
    model_node(m, "Clip", "logits onnx::Clip_2 limit", "y");
    model_output(m, "y");
    g = net_import_model(m, NULL);
    (void)graph_params(g, &n);
    assert_int_equal(n, 1); /* w */
    graph_free(g);
    g = net_import_model(m, &trainable);
    assert_int_equal(find(g, "limit")->kind, GRAPH_TRAINED);
    (void)graph_params(g, &n);
    assert_int_equal(n, 2);
    graph_free(g);
    model_proto(m)->producer_name = (char *)"pytorch";
    model_proto(m)->graph->initializer[1]->name = (char *)"/act/Constant_output_0";
    model_proto(m)->graph->node[1]->input[2] = (char *)"/act/Constant_output_0";
    g = net_import_model(m, NULL);
    (void)graph_params(g, &n);
    assert_int_equal(n, 1);
    graph_free(g);
    model_proto(m)->producer_name = NULL;
    model_proto(m)->graph->node[1]->input[2] = model_proto(m)->graph->initializer[1]->name =
        (char *)"limit";
    model_free(m);
}

static void undifferentiated_input_is_noted(void **state)
{
    static const char *const fill[] = { "fill" };
    const struct graph_opts trainable = { .trainable = fill, .n_trainable = 1 };
    const int64_t pads[] = { 0, 1, 0, 1 };
    const float zero = 0;
    struct model *m = linear(17);
    const struct graph_classified *t;
    const char *const *notes;
    struct graph *g;
    uint32_t n, i;

    (void)state;
    model_int64s(m, "pads", pads, 4);
    model_floats(m, "fill", shape_of(0), &zero);
    model_node(m, "Pad", "logits pads fill", "y");
    model_output(m, "y");
    g = net_import_model(m, &trainable);
    t = graph_classified(g, &n);
    for (i = 0; i < n && strcmp(t[i].name, "fill") != 0;)
        i++;
    assert_true(i < n);
    assert_int_equal(t[i].classification, GRAPH_IS_CONSTANT);
    assert_string_equal(t[i].reason, "Pad 'y' does not differentiate its input 2");
    notes = graph_notes(g, &n);
    assert_int_equal(n, 1);
    assert_string_equal(notes[0], "'fill' is a parameter, but is not trained: Pad 'y' does not differentiate its "
                                  "input 2");
    graph_free(g);
    model_free(m);
}

/* Keras initializes the bias of an LSTM with zeros, and with ones for the forget gate; zeros and
 * ones that are multiplied are a mask. */
static void added_vector_of_zeros_and_ones_is_a_bias(void **state)
{
    static const float values[] = { 0, 1, 0 };
    struct model *m = begin(17);
    struct graph *g;

    (void)state;
    model_floats(m, "b", shape_of(1, (int64_t)3), values);
    model_floats(m, "mask", shape_of(1, (int64_t)3), values);
    model_node(m, "MatMul", "x w", "y");
    model_node(m, "Add", "y b", "z");
    model_node(m, "Mul", "z mask", "logits");
    model_output(m, "logits");
    g = net_import_model(m, NULL);
    assert_non_null(find(g, "b"));
    assert_null(find(g, "mask"));
    graph_free(g);
    model_free(m);
}

enum { ROWS = 6, MANY_ROWS = 200, WIDTH = 8 };

/* Angles position / 10000^(2 k / WIDTH): sines and cosines alternating, or in halves; row 1 is
 * padding. `change` is added to the rows [changed, n). */
static struct model *many_positions(uint32_t n, bool halves, uint32_t changed, float change,
                                    float scale, float shift)
{
    struct model *m = model_new(17);
    float table[MANY_ROWS * WIDTH] = { 0 };
    uint32_t i, k;

    for (i = 0; i < n; i++)
        for (k = 0; i != 1 && k < WIDTH / 2; k++) {
            double angle = i / pow(10000, 2.0 * k / WIDTH);

            table[i * WIDTH + (halves ? k : 2 * k)] = (float)sin(angle) * scale + shift;
            table[i * WIDTH + (halves ? k + WIDTH / 2 : 2 * k + 1)] =
                (float)cos(angle) * scale + shift;
        }
    for (i = changed; i < n; i++)
        table[i * WIDTH + 2] += change;
    model_input(m, "i", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_floats(m, "table.weight", shape_of(2, (int64_t)n, (int64_t)WIDTH), table);
    model_weights(m, "out.weight", shape_of(2, (int64_t)WIDTH, (int64_t)3), 1);
    model_node(m, "Gather", "table.weight i", "e");
    model_node(m, "MatMul", "e out.weight", "logits");
    model_output(m, "logits");
    return m;
}

static struct model *positions_moved(bool halves, float change, float scale, float shift)
{
    return many_positions(ROWS, halves, 3, change, scale, shift);
}

/* The initial values of ConViT: its pairs are on a circle, too. */
static struct model *unit_matrix(void)
{
    struct model *m = begin(17);
    float unit[16] = { [0] = 1, [5] = 1, [10] = 1, [15] = 1 };
    float large[16 * 16] = { 0 };
    uint32_t i;

    for (i = 0; i < 16; i++)
        large[i * 16 + i] = 1;
    model_floats(m, "unit.weight", shape_of(2, (int64_t)4, (int64_t)4), unit);
    model_floats(m, "large.weight", shape_of(2, (int64_t)16, (int64_t)16), large);
    model_weights(m, "wide.weight", shape_of(2, (int64_t)4, (int64_t)16), 3);
    model_node(m, "MatMul", "x unit.weight", "a");
    model_node(m, "MatMul", "a wide.weight", "b");
    model_node(m, "MatMul", "b large.weight", "logits");
    model_output(m, "logits");
    return m;
}

static struct model *positions(bool halves, float change)
{
    return positions_moved(halves, change, 1, 0);
}

/* The first rows exclude a table only if they are far from sines and cosines. */
static void rows_of_a_long_table_decide_together(void **state)
{
    struct model *m;
    struct graph *g;

    (void)state;
    refused(many_positions(MANY_ROWS, false, 0, 0, 1, 0), ERR_INPUT, "sines and cosines", NULL);
    refused(many_positions(MANY_ROWS, true, 0, 0, 0.125f, -0.0625f), ERR_INPUT, "sines and cosines",
            NULL);
    for (uint32_t changed = 0; changed <= 100; changed += 100) {
        m = many_positions(MANY_ROWS, false, changed, 0.9f, 0.125f, -0.0625f);
        g = net_import_model(m, NULL);
        assert_non_null(find(g, "table.weight"));
        graph_free(g);
        model_free(m);
    }
}

static void table_of_sines_needs_a_decision_of_the_job(void **state)
{
    static const char *const table[] = { "table.*" };
    const struct graph_opts trainable = { .trainable = table, .n_trainable = 1 },
                            frozen = { .frozen = table, .n_frozen = 1 };
    struct model *m = positions(false, 0);
    struct graph *g = net_import_model(m, &trainable);

    (void)state;
    assert_non_null(find(g, "table.weight"));
    graph_free(g);
    g = net_import_model(m, &frozen);
    assert_null(find(g, "table.weight"));
    assert_non_null(find(g, "out.weight"));
    graph_free(g);
    refused(m, ERR_INPUT, "'table.weight' [6, 8]: a table of positions of sines and cosines",
            "\"trainable\": [\"table.weight\"]", "\"frozen\": [\"table.weight\"]", NULL);
    refused(positions(true, 0), ERR_INPUT, "sines and cosines", NULL);
    /* as PatchTST scales it */
    refused(positions_moved(true, 0, 0.125f, -0.0625f), ERR_INPUT, "sines and cosines", NULL);
    m = positions_moved(true, 0.2f, 0.125f, -0.0625f);
    g = net_import_model(m, NULL);
    assert_non_null(find(g, "table.weight"));
    graph_free(g);
    model_free(m);
    m = unit_matrix();
    g = net_import_model(m, NULL);
    assert_non_null(find(g, "unit.weight"));
    graph_free(g);
    model_free(m);
    m = positions(false, 0.2f); /* after training */
    g = net_import_model(m, NULL);
    assert_non_null(find(g, "table.weight"));
    graph_free(g);
    model_free(m);
}

static void name_last(struct model *m, const char *name)
{
    Onnx__GraphProto *g = model_proto(m)->graph;

    g->node[g->n_node - 1]->name = (char *)(uintptr_t)name;
}

/* Nodes and weights of Keras with the names of tf2onnx: net/dense_1 with a bias unless it was zero,
 * net/head_1 or net/dense_2 without one. */
static struct model *keras(const char *last, bool has_bias, const char *weight)
{
    struct model *m = model_new(17);
    char inputs[64];

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "net/dense_1/Cast:0", shape_of(2, (int64_t)4, (int64_t)4), 1);
    model_weights(m, "net/dense_1/BiasAdd:0", shape_of(1, (int64_t)4), 2);
    model_weights(m, weight, shape_of(2, (int64_t)4, (int64_t)3), 3);
    model_node(m, "MatMul", "x net/dense_1/Cast:0", "y");
    name_last(m, "net/dense_1/Tensordot/MatMul");
    if (has_bias) {
        model_node(m, "Add", "y net/dense_1/BiasAdd:0", "z");
        name_last(m, "net/dense_1/BiasAdd");
    } else {
        model_node(m, "Relu", "y", "z");
    }
    snprintf(inputs, sizeof(inputs), "z %s", weight);
    model_node(m, "MatMul", inputs, "logits");
    name_last(m, last);
    model_output(m, "logits");
    model_proto(m)->producer_name = (char *)(uintptr_t) "tf2onnx";
    return m;
}

static void layer_without_the_bias_of_its_class_is_refused(void **state)
{
    static const char *const all[] = { "net/*" };
    const struct graph_opts opts = { .trainable = all, .n_trainable = 1 };
    struct model *m = keras("net/dense_2/MatMul", true, "net/dense_2/Cast:0");
    struct graph *g = net_import_model(m, &opts);

    (void)state;
    graph_free(g);
    refused(m, ERR_INPUT, "1 layer without a bias ('net/dense_2')", "trainerctl recipe tensorflow",
            "\"trainable\": [\"net/dense_2/Cast:0\"]", NULL);
    /* many are defined without a bias */
    m = keras("net/conv2d_1/MatMul", true, "net/conv2d_1/Cast:0");
    g = net_import_model(m, NULL);
    assert_true(has_note(g, "1 layer without a bias ('net/conv2d_1')"));
    graph_free(g);
    model_free(m);
    m = keras("net/head_1/MatMul", true, "net/head_1/Cast:0");
    g = net_import_model(m, NULL);
    assert_true(has_note(g, "1 layer without a bias ('net/head_1')"));
    graph_free(g);
    model_free(m);
    m = keras("net/dense_2/MatMul", false, "net/dense_2/Cast:0"); /* never trained */
    g = net_import_model(m, NULL);
    assert_true(has_note(g, "2 layers without a bias ('net/dense_1', 'net/dense_2')"));
    graph_free(g);
    model_free(m);
    m = keras("net/dense_2/MatMul", true, "dense_2/kernel"); /* named by the recipe */
    g = net_import_model(m, NULL);
    assert_false(has_note(g, "without a bias"));
    graph_free(g);
    model_free(m);
}

/* A list of parameters without the weight of the layer is the answer to another question. */
static void layer_without_bias_is_noted_if_trainable_names_other_weights(void **state)
{
    static const char *const other[] = { "net/dense_1/Cast:0" }, *const own[] = { "net/dense_2/*" };
    struct graph_opts opts = { .trainable = other, .n_trainable = 1 };
    struct model *m = keras("net/dense_2/MatMul", true, "net/dense_2/Cast:0");
    struct graph *g = net_import_model(m, &opts);

    (void)state;
    assert_true(
        has_note(g, "1 layer without a bias ('net/dense_2'): tf2onnx removes biases of zeros"));
    graph_free(g);
    opts.trainable = own;
    g = net_import_model(m, &opts);
    assert_false(has_note(g, "without a bias"));
    graph_free(g);
    model_free(m);
}

/* Tables that only Gather along axis 0 reads, and near misses: tied to a MatMul, gathered along
 * axis 1, read as a whole, an output. */
static void tables_follow_the_dense_parameters(void **state)
{
    static const char *const tables[] = { "late", "twice", "early" };
    struct model *m = model_new(17);
    struct graph *g;
    const struct graph_param *p;
    uint32_t n, i;

    (void)state;
    model_input(m, "i", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_weights(m, "early", shape_of(2, (int64_t)9, (int64_t)4), 1);
    model_weights(m, "twice", shape_of(2, (int64_t)9, (int64_t)4), 2);
    model_weights(m, "late", shape_of(2, (int64_t)9, (int64_t)4), 3);
    model_weights(m, "given", shape_of(2, (int64_t)9, (int64_t)4), 4);
    model_weights(m, "tied", shape_of(2, (int64_t)4, (int64_t)4), 5);
    model_weights(m, "along", shape_of(2, (int64_t)4, (int64_t)9), 6);
    model_weights(m, "out.w", shape_of(2, (int64_t)4, (int64_t)3), 7);
    model_node(m, "Gather", "early i", "a");
    model_node(m, "Gather", "twice i", "b");
    model_int(m, "axis", -2);
    model_node(m, "Gather", "twice i", "c");
    model_node(m, "Gather", "late i", "d");
    model_node(m, "Gather", "given i", "e");
    model_node(m, "Gather", "tied i", "f");
    model_node(m, "Gather", "along i", "g");
    model_int(m, "axis", 1);
    model_node(m, "Transpose", "g", "h");
    model_node(m, "Sum", "a b c d e f h", "all");
    /* exporters write nodes that read the type, or the shape, beside an embedding */
    model_node(m, "CastLike", "all early", "like");
    model_node(m, "Size", "late", "size");
    model_node(m, "Cast", "size", "number");
    model_int(m, "to", 1);
    model_node(m, "Shape", "twice", "shape");
    model_node(m, "ReduceMax", "shape", "rows");
    model_node(m, "Cast", "rows", "float_rows");
    model_int(m, "to", 1);
    model_node(m, "Add", "number float_rows", "factor");
    model_node(m, "Mul", "like factor", "sum");
    model_node(m, "MatMul", "sum tied", "mixed");
    model_node(m, "MatMul", "mixed out.w", "logits");
    model_output(m, "logits");
    model_output(m, "given");
    g = net_import_model(m, NULL);
    p = graph_params(g, &n);
    assert_int_equal(n, 7);
    for (i = 0; i < n; i++) {
        assert_int_equal(p[i].is_table, i >= 4);
        assert_int_equal(p[i].offset >= graph_dense_floats(g), p[i].is_table);
        assert_true(p[i].offset < graph_trained_floats(g));
    }
    for (i = 0; i < 3; i++) /* in the order in which backward completes them */
        assert_string_equal(p[4 + i].name, tables[i]);
    graph_free(g);
    model_free(m);
}

/* A damaged file: planning refuses it, because a scalar has no rows; import must not divide by
 * their number. */
static void scalar_gathered_from_is_not_a_table(void **state)
{
    static const int64_t row = 0;
    static const float number = 2;
    const char *trainable[] = { "*" };
    struct graph_opts opts = { .trainable = trainable, .n_trainable = 1 };
    struct model *m = model_new(17);
    struct graph *g = NULL;
    struct err err = { 0 };
    const struct graph_param *params;
    const uint8_t *bytes;
    uint32_t count;
    size_t n;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)1));
    model_floats(m, "table", shape_of(0), &number);
    model_int64s(m, "row", &row, 1);
    model_node(m, "Gather", "table row", "found");
    model_node(m, "Mul", "x found", "y");
    model_output(m, "y");
    bytes = model_bytes(m, &n);
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), 0);
    params = graph_params(g, &count);
    assert_int_equal(count, 1);
    assert_false(params[0].is_table);
    graph_free(g);
    model_free(m);
}

static void digest_depends_on_the_structure_only(void **state)
{
    struct graph *mlp = net_import("mlp.onnx"), *external = net_import("mlp_external.onnx");
    struct model *a = linear(17), *b = linear(17), *c = linear(18), *d = begin(17);
    struct graph *ga, *gb, *gc, *gd;

    (void)state;
    assert_string_equal(graph_digest(mlp), graph_digest(external));
    memset(weight_of(b)->raw_data.data, 0, 48);
    model_proto(b)->doc_string = (char *)"other words";
    model_node(d, "MatMul", "x w", "y");
    model_node(d, "Relu", "y", "logits");
    model_output(d, "logits");
    ga = net_import_model(a, NULL);
    gb = net_import_model(b, NULL);
    gc = net_import_model(c, NULL);
    gd = net_import_model(d, NULL);
    assert_string_equal(graph_digest(ga), graph_digest(gb));
    assert_string_not_equal(graph_digest(ga), graph_digest(gc));
    assert_string_not_equal(graph_digest(ga), graph_digest(gd));
    assert_int_equal(strlen(graph_digest(ga)), 64);
    graph_free(mlp);
    graph_free(external);
    graph_free(ga);
    graph_free(gb);
    graph_free(gc);
    graph_free(gd);
    model_free(a);
    model_free(b);
    model_free(c);
    model_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_ordered_by_completion_in_backward),
        cmocka_unit_test(identity_copies_become_parameters_and_ties_remain),
        cmocka_unit_test(frozen_patterns_exclude_parameters),
        cmocka_unit_test(statistic_of_two_nodes_is_refused),
        cmocka_unit_test(integers_scalars_and_unused_initializers_are_not_trained),
        cmocka_unit_test(limit_of_clip_is_trained_on_request),
        cmocka_unit_test(undifferentiated_input_is_noted),
        cmocka_unit_test(added_vector_of_zeros_and_ones_is_a_bias),
        cmocka_unit_test(rows_of_a_long_table_decide_together),
        cmocka_unit_test(table_of_sines_needs_a_decision_of_the_job),
        cmocka_unit_test(layer_without_the_bias_of_its_class_is_refused),
        cmocka_unit_test(layer_without_bias_is_noted_if_trainable_names_other_weights),
        cmocka_unit_test(tables_follow_the_dense_parameters),
        cmocka_unit_test(scalar_gathered_from_is_not_a_table),
        cmocka_unit_test(digest_depends_on_the_structure_only),
    };

    return cmocka_run_group_tests_name("graph/param", tests, NULL, NULL);
}
