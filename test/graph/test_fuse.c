#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "graph/fuse_kit.h"
#include "harness/model.h"
#include "harness/net.h"

/* ---- batch normalisation ---- */

static void add_norm(struct model *m, const char *x, const char *y)
{
    static const float values[][5] = { { 1, 0.5f, 2, 1.5f, 0.75f },
                                       { 0.5f, -0.25f, 0, 1, 0.125f } };
    static const char *const parts[] = { "scale", "bias", "mean", "var" };
    char line[128], name[32];
    uint32_t i;

    for (i = 0; i < COUNT_OF(parts); i++) {
        snprintf(name, sizeof(name), "%s.%s", y, parts[i]);
        model_floats(m, name, shape_of(1, (int64_t)5), values[i == 1 || i == 2]);
    }
    snprintf(line, sizeof(line), "%s %s.scale %s.bias %s.mean %s.var", x, y, y, y, y);
    model_node(m, "BatchNormalization", line, y);
    model_int(m, "training_mode", 1);
}

static void add_conv(struct model *m, const char *x, const char *y, int64_t from, uint64_t seed)
{
    char line[64], name[32];

    snprintf(name, sizeof(name), "%s.w", y);
    model_weights(m, name, shape_of(4, (int64_t)5, from, (int64_t)1, (int64_t)1), seed);
    snprintf(line, sizeof(line), "%s %s", x, name);
    model_node(m, "Conv", line, y);
}

static struct model *begin_images(int64_t opset)
{
    struct model *m = model_new(opset);

    model_input(m, "x", TENSOR_F32, shape_of(4, (int64_t)-1, (int64_t)2, (int64_t)3, (int64_t)4));
    return m;
}

static struct model *end_images(struct model *m, const char *last)
{
    model_node(m, "GlobalAveragePool", last, "pooled");
    model_node(m, "Flatten", "pooled", "flat");
    model_weights(m, "head", shape_of(2, (int64_t)5, (int64_t)CLASSES), 9);
    model_node(m, "MatMul", "flat head", "logits");
    model_output(m, "logits");
    return m;
}

/* Two branches with a norm each, as in the first block of a stage. */
static struct model *residual(bool clamp)
{
    struct model *m = begin_images(17);

    add_conv(m, "x", "c1", 2, 1);
    add_norm(m, "c1", "n1");
    model_node(m, "Relu", "n1", "r1");
    add_conv(m, "r1", "c2", 5, 2);
    add_norm(m, "c2", "n2");
    add_conv(m, "r1", "c3", 5, 3);
    add_norm(m, "c3", "n3");
    model_node(m, "Add", "n3 n2", "sum");
    if (clamp)
        model_node(m, "Relu", "sum", "out");
    return end_images(m, clamp ? "out" : "sum");
}

static void residual_block_is_fused_into_two_norms(void **state)
{
    struct net n;

    (void)state;
    compare(residual(true), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "BatchNormRelu"), 2);
    assert_int_equal(nodes_of(&n, "BatchNormalization"), 1); /* the shortcut's */
    assert_int_equal(nodes_of(&n, "Relu") + nodes_of(&n, "Add"), 0);
    net_close(&n);
    compare(residual(false), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "BatchNormAdd"), 1);
    net_close(&n);
    compare(residual(true), PLAN_EVAL, &n);
    assert_int_equal(nodes_of(&n, "BatchNormRelu"), 2);
    net_close(&n);
}

static void clamp_from_zero_is_fused_and_clamp_from_one_is_not(void **state)
{
    float lo;

    (void)state;
    for (lo = 0; lo < 2; lo++) {
        struct model *m = begin_images(17);
        struct net n;

        model_node(m, "Constant", "", "lo");
        model_float(m, "value_float", lo);
        model_node(m, "Constant", "", "hi");
        model_float(m, "value_float", 1.25f);
        add_conv(m, "x", "c1", 2, 1);
        add_norm(m, "c1", "n1");
        model_node(m, "Clip", "n1 lo hi", "r1");
        if (lo == 0) {
            compare(end_images(m, "r1"), PLAN_TRAIN, &n);
            assert_int_equal(nodes_of(&n, "BatchNormRelu"), 1);
        } else {
            n = net_open_model(end_images(m, "r1"), PLAN_TRAIN, BATCH);
            assert_int_equal(nodes_of(&n, "Clip"), 1);
            model_free(m);
        }
        net_close(&n);
    }
}

static void value_with_another_reader_is_not_fused(void **state)
{
    struct model *m = begin_images(17);
    struct net n;

    (void)state;
    add_conv(m, "x", "c1", 2, 1);
    add_norm(m, "c1", "n1");
    model_node(m, "Relu", "n1", "r1");
    model_node(m, "Mul", "n1 r1", "product");
    n = net_open_model(end_images(m, "product"), PLAN_TRAIN, BATCH);
    assert_int_equal(nodes_of(&n, "BatchNormalization"), 1);
    assert_int_equal(nodes_of(&n, "Relu"), 1);
    model_free(m);
    net_close(&n);
}

/* ---- products ---- */

static void transposed_operand_and_bias_are_fused_into_the_product(void **state)
{
    static const int64_t swap[] = { 0, 2, 1 }, turn[] = { 1, 0 }, to[] = { -1, 15 };
    struct model *m = model_new(17);
    struct net n;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)4, (int64_t)6));
    model_weights(m, "w1", shape_of(2, (int64_t)5, (int64_t)6), 1);
    model_weights(m, "b1", shape_of(1, (int64_t)5), 2);
    model_weights(m, "w2", shape_of(3, (int64_t)1, (int64_t)3, (int64_t)4), 3);
    model_weights(m, "head", shape_of(2, (int64_t)CLASSES, (int64_t)15), 4);
    model_weights(m, "b2", shape_of(1, (int64_t)CLASSES), 5);
    model_node(m, "Transpose", "w1", "w1t");
    model_ints(m, "perm", turn, 2);
    model_node(m, "MatMul", "x w1t", "p1");
    model_node(m, "Add", "b1 p1", "h1"); /* [n, 4, 5] */
    model_node(m, "Transpose", "h1", "h1t");
    model_ints(m, "perm", swap, 3);
    model_node(m, "Transpose", "w2", "w2t"); /* [1, 4, 3] */
    model_ints(m, "perm", swap, 3);
    model_node(m, "MatMul", "h1t w2t", "p2"); /* [n, 5, 3] */
    model_int64s(m, "to", to, 2);
    model_node(m, "Reshape", "p2 to", "h2");
    model_node(m, "Transpose", "head", "headt");
    model_ints(m, "perm", turn, 2);
    model_node(m, "MatMul", "h2 headt", "p3");
    model_node(m, "Add", "p3 b2", "logits");
    model_output(m, "logits");
    compare(m, PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Transpose"), 0);
    assert_int_equal(nodes_of(&n, "MatMul"), 3);
    assert_int_equal(nodes_of(&n, "Add"), 0);
    net_close(&n);
}

/* ---- activations ---- */

struct line { /* a node: "Op inputs > output" */
    const char *op, *in, *out;
};

enum { MAX_LINES = 12 };

/* x [n, 6] -> lines on h -> logits. Constants that a graph may need are available by name. */
static struct model *chain(const struct line *lines, const char *last)
{
    static const struct {
        const char *name;
        float value;
    } numbers[] = { { "one", 1 },
                    { "half", 0.5f },
                    { "two", 2 },
                    { "three", 3 },
                    { "zero", 0 },
                    { "six", 6 },
                    { "root2", 1.41421356f },
                    { "rootHalf", 0.70710678f },
                    { "c", 0.044715f },
                    { "k", 0.79788456f },
                    { "eps", 1e-5f },
                    { "sixth", 1.0f / 6 } };
    struct model *m = model_new(17);
    char in[64];
    size_t i;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    for (i = 0; i < COUNT_OF(numbers); i++) {
        model_node(m, "Constant", "", numbers[i].name);
        model_float(m, "value_float", numbers[i].value);
    }
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)6), 1);
    model_weights(m, "scale", shape_of(1, (int64_t)6), 2);
    model_weights(m, "bias", shape_of(1, (int64_t)6), 3);
    model_weights(m, "head", shape_of(2, (int64_t)6, (int64_t)CLASSES), 4);
    model_node(m, "MatMul", "x w", "h");
    for (; lines->op != NULL; lines++) {
        static const int64_t axes[] = { -1 };

        model_node(m, lines->op, lines->in, lines->out);
        if (strcmp(lines->op, "ReduceMean") == 0)
            model_ints(m, "axes", axes, 1);
        if (strcmp(lines->op, "HardSigmoid") == 0)
            model_float(m, "alpha", 1.0f / 6);
    }
    snprintf(in, sizeof(in), "%s head", last);
    model_node(m, "MatMul", in, "logits");
    model_output(m, "logits");
    return m;
}

static void activation_chain_of_exporters_is_fused_into_the_op(void **state)
{
    static const struct {
        const char *becomes;
        const char *last;
        struct line lines[MAX_LINES];
    } cases[] = {
        { "Swish", "y", { { "Sigmoid", "h", "s" }, { "Mul", "h s", "y" } } },
        { "Swish", "y", { { "Sigmoid", "h", "s" }, { "Mul", "s h", "y" } } },
        { "Mish", "y", { { "Softplus", "h", "s" }, { "Tanh", "s", "t" }, { "Mul", "h t", "y" } } },
        { "HardSwish", "y", { { "HardSigmoid", "h", "s" }, { "Mul", "h s", "y" } } },
        { "HardSwish",
          "y",
          { { "Add", "h three", "a" },
            { "Clip", "a zero six", "b" },
            { "Div", "b six", "g" },
            { "Mul", "h g", "y" } } },
        { "HardSwish",
          "y",
          { { "Add", "h three", "a" },
            { "Clip", "a zero six", "b" },
            { "Mul", "h b", "g" },
            { "Div", "g six", "u" },
            { "Mul", "u one", "y" } } },
        { "Gelu",
          "y",
          { { "Div", "h root2", "a" },
            { "Erf", "a", "e" },
            { "Add", "e one", "s" },
            { "Mul", "h s", "t" },
            { "Mul", "t half", "y" } } },
        { "Gelu",
          "y",
          { { "Mul", "half h", "b" },
            { "Mul", "h rootHalf", "a" },
            { "Erf", "a", "e" },
            { "Add", "one e", "s" },
            { "Mul", "b s", "y" } } },
        { "Gelu",
          "y",
          { { "Pow", "h three", "p" },
            { "Mul", "p c", "q" },
            { "Add", "h q", "a" },
            { "Mul", "a k", "u" },
            { "Tanh", "u", "t" },
            { "Add", "t one", "s" },
            { "Mul", "h half", "b" },
            { "Mul", "b s", "y" } } },
        { "Gelu",
          "y",
          { { "Mul", "h h", "p" },
            { "Mul", "p h", "q" },
            { "Mul", "c q", "r" },
            { "Add", "r h", "a" },
            { "Mul", "k a", "u" },
            { "Tanh", "u", "t" },
            { "Add", "one t", "s" },
            { "Mul", "h s", "b" },
            { "Mul", "half b", "y" } } },
        { "LayerNormalization",
          "y",
          { { "ReduceMean", "h", "m" },
            { "Sub", "h m", "d" },
            { "Pow", "d two", "q" },
            { "ReduceMean", "q", "v" },
            { "Add", "v eps", "a" },
            { "Sqrt", "a", "r" },
            { "Div", "d r", "n" },
            { "Mul", "n scale", "t" },
            { "Add", "t bias", "y" } } },
        { "LayerNormalization",
          "y",
          { { "ReduceMean", "h", "m" },
            { "Sub", "h m", "d" },
            { "Mul", "d d", "q" },
            { "ReduceMean", "q", "v" },
            { "Add", "eps v", "a" },
            { "Sqrt", "a", "r" },
            { "Reciprocal", "r", "i" },
            { "Mul", "i d", "n" },
            { "Mul", "scale n", "y" } } },
        { "RMSNormalization",
          "y",
          { { "Pow", "h two", "q" },
            { "ReduceMean", "q", "v" },
            { "Add", "v eps", "a" },
            { "Sqrt", "a", "r" },
            { "Div", "one r", "i" },
            { "Mul", "h i", "n" },
            { "Mul", "scale n", "y" } } },
        { "RMSNormalization",
          "y",
          { { "Mul", "h h", "q" },
            { "ReduceMean", "q", "v" },
            { "Add", "v eps", "a" },
            { "Sqrt", "a", "r" },
            { "Div", "h r", "n" },
            { "Mul", "n scale", "y" } } },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct net n;

        compare(chain(cases[i].lines, cases[i].last), PLAN_TRAIN, &n);
        if (nodes_of(&n, cases[i].becomes) != 1 || nodes_of(&n, "Add") + nodes_of(&n, "Div") != 0)
            fail_msg("case %zu was not fused into one %s", i, cases[i].becomes);
        net_close(&n);
    }
}

static void activation_near_miss_is_not_fused(void **state)
{
    static const struct line cases[][MAX_LINES] = {
        { { "Sigmoid", "h", "s" }, { "Mul", "x6 s", "y" } }, /* of another value */
        { { "Erf", "h", "e" },
          { "Add", "e one", "s" },
          { "Mul", "h s", "t" },
          { "Mul", "t half", "y" } },
        { { "Div", "h root2", "a" },
          { "Erf", "a", "e" },
          { "Add", "e one", "s" },
          { "Mul", "h s", "y" } },
        { { "Pow", "h three", "p" },
          { "Mul", "p half", "q" },
          { "Add", "h q", "a" },
          { "Mul", "a k", "u" },
          { "Tanh", "u", "t" },
          { "Add", "t one", "s" },
          { "Mul", "h half", "b" },
          { "Mul", "b s", "y" } },
        { { "ReduceMean", "h", "m" },
          { "Sub", "h m", "d" },
          { "Pow", "d three", "q" },
          { "ReduceMean", "q", "v" },
          { "Abs", "v", "av" },
          { "Add", "av eps", "a" },
          { "Sqrt", "a", "r" },
          { "Div", "d r", "n" },
          { "Mul", "n scale", "y" } },
    };
    static const char *const rows[] = { "Swish", "Gelu", "LayerNormalization", "RMSNormalization" };
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct line lines[MAX_LINES + 1] = { { "Relu", "h", "x6" } };
        struct model *m;
        struct net n;

        memcpy(lines + 1, cases[i], sizeof(cases[i]));
        m = chain(lines, "y");
        n = net_open_model(m, PLAN_TRAIN, BATCH);
        for (k = 0; k < COUNT_OF(rows); k++)
            assert_int_equal(nodes_of(&n, rows[k]), 0);
        model_free(m);
        net_close(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_block_is_fused_into_two_norms),
        cmocka_unit_test(clamp_from_zero_is_fused_and_clamp_from_one_is_not),
        cmocka_unit_test(value_with_another_reader_is_not_fused),
        cmocka_unit_test(transposed_operand_and_bias_are_fused_into_the_product),
        cmocka_unit_test(activation_chain_of_exporters_is_fused_into_the_op),
        cmocka_unit_test(activation_near_miss_is_not_fused),
    };

    return cmocka_run_group_tests_name("graph/fuse", tests, NULL, NULL);
}
