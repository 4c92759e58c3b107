/* float64 in formulas: constants are computed in float64, activations are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/build.h"
#include "graph/kit.h"
#include "graph/plan_priv.h"
#include "harness/net.h"

static struct build *begin_build(void)
{
    struct build *b = build_new("double", 17);
    float *w;
    int i;

    assert_non_null(b);
    build_input(b, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    w = build_weights(b, "w", shape_of(2, (int64_t)4, (int64_t)3));
    assert_non_null(w);
    for (i = 0; i < 12; i++)
        w[i] = (float)(i % 5) - 2.0f;
    build_node(b, "MatMul", "x w", "h");
    return b;
}

static void scalar(struct build *b, const char *name, double value)
{
    build_constant(b, name, TENSOR_F64, shape_of(0), &value);
}

static struct graph *import_build(struct build *b)
{
    const struct graph_opts opts = { .path = "double.onnx" };
    const Onnx__ModelProto *m = build_proto(b);
    size_t n = onnx__model_proto__get_packed_size(m);
    uint8_t *bytes = malloc(n);
    struct err err = { 0 };
    struct graph *g = NULL;

    assert_non_null(bytes);
    onnx__model_proto__pack(m, bytes);
    if (graph_import_bytes(&opts, bytes, n, &g, &err) < 0)
        fail_msg("%s", err.text);
    free(bytes);
    return g;
}

static float ratio_of(struct net *n)
{
    const float *h, *y;

    net_fill(n, 0);
    (void)net_forward(n);
    h = plan_tensor(n->plan, "h")->data;
    y = plan_tensor(n->plan, "logits")->data;
    assert_true(h[1] != 0.0f);
    return y[1] / h[1];
}

static float scaled_by(struct build *b)
{
    static const char *const keep[] = { "h", "logits" };
    struct net n;
    float ratio;

    build_node(b, "Cast", "scale", "scale32");
    build_int(b, "to", TENSOR_F32);
    build_node(b, "Mul", "h scale32", "logits");
    build_output(b, "logits", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)3));
    n = net_open_keep(import_build(b), PLAN_TRAIN, 2, keep, 2);
    ratio = ratio_of(&n);
    net_close(&n);
    build_free(b);
    return ratio;
}

static void float64_attention_scale_is_folded(void **state)
{
    struct build *b = begin_build();

    (void)state;
    scalar(b, "quarter", 0.25);
    build_node(b, "Sqrt", "quarter", "scale");
    assert_float_equal(scaled_by(b), 0.5f, 0);
}

/* (1 + 2^-40 - 1) 2^40 is 1 in float64 and 0 in float32. */
static void float64_constants_are_computed_in_float64(void **state)
{
    struct build *b = begin_build();

    (void)state;
    scalar(b, "one", 1);
    scalar(b, "tiny", 0x1p-40);
    build_node(b, "Add", "one tiny", "a");
    build_node(b, "Sub", "a one", "b");
    build_node(b, "Reciprocal", "tiny", "large");
    build_node(b, "Mul", "b large", "scale");
    assert_float_equal(scaled_by(b), 1.0f, 0);
}

static void float64_constants_broadcast_and_compare(void **state)
{
    static const double row[] = { 1, 2, 3 }, column[] = { 10, 2.5 };
    static const int64_t place[] = { 1 };
    struct build *b = begin_build();

    (void)state;
    build_constant(b, "row", TENSOR_F64, shape_of(2, (int64_t)1, (int64_t)3), row);
    build_constant(b, "column", TENSOR_F64, shape_of(2, (int64_t)2, (int64_t)1), column);
    build_constant(b, "place", TENSOR_I64, shape_of(0), place);
    build_node(b, "Greater", "row column", "is_greater");          /* row 1: 0 0 1 */
    build_node(b, "Sub", "row column", "difference");              /* row 1: -1.5 -0.5 0.5 */
    build_node(b, "Where", "is_greater difference row", "chosen"); /* row 1: 1 2 0.5 */
    build_node(b, "Gather", "chosen place", "second");
    build_int(b, "axis", 0);
    build_node(b, "Pow", "second second", "scale"); /* 1 4 sqrt(0.5) */
    assert_float_equal(scaled_by(b), 4.0f, 0);
}

/* In the form of the frequencies of a diffusion network: exp(-9.21 arange(4) / 4), in float64. */
static void float64_range_is_folded(void **state)
{
    static const int64_t place[] = { 3 };
    struct build *b = begin_build();

    (void)state;
    scalar(b, "zero", 0);
    scalar(b, "four", 4);
    scalar(b, "one", 1);
    scalar(b, "rate", -9.21);
    build_constant(b, "place", TENSOR_I64, shape_of(0), place);
    build_node(b, "Range", "zero four one", "steps");
    build_node(b, "Mul", "steps rate", "scaled");
    build_node(b, "Div", "scaled four", "quarter");
    build_node(b, "Exp", "quarter", "frequencies");
    build_node(b, "Gather", "frequencies place", "scale");
    assert_float_equal(scaled_by(b), (float)exp(-9.21 * 3 / 4), 1e-9);
}

static void refused_plan(struct build *b, const char *const *parts)
{
    const struct plan_feed feed = { .name = "x",
                                    .dtype = TENSOR_F32,
                                    .shape = shape_of(1, (int64_t)4) };
    const struct plan_opts opts = {
        .purpose = PLAN_TRAIN, .batch = 2, .feeds = &feed, .n_feeds = 1, .sum_outputs = true
    };
    struct graph *g = import_build(b);
    struct err err = { 0 };
    struct plan *p = NULL;

    assert_int_equal(plan_new(g, &opts, &p, &err), ERR_UNSUPPORTED);
    for (; *parts != NULL; parts++)
        if (strstr(err.text, *parts) == NULL)
            fail_msg("'%s' is not in: %s", *parts, err.text);
    graph_free(g);
    build_free(b);
}

/* A conversion to float64 and back would lose the gradient without a message. */
static void float64_cast_of_activation_is_refused_with_remedy(void **state)
{
    static const char *const parts[] = { "Cast 'wide'", "'h'", "model.float()", NULL };
    struct build *b = begin_build();

    (void)state;
    build_node(b, "Cast", "h", "wide");
    build_int(b, "to", TENSOR_F64);
    build_node(b, "Cast", "wide", "logits");
    build_int(b, "to", TENSOR_F32);
    build_output(b, "logits", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)3));
    refused_plan(b, parts);
}

static void float64_op_on_data_is_refused_with_remedy(void **state)
{
    static const char *const parts[] = { "Pow 'logits'", "float64", "model.float()", NULL };
    struct build *b = begin_build();

    (void)state;
    scalar(b, "exponent", 2.5);
    build_node(b, "Pow", "h exponent", "logits");
    build_output(b, "logits", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)3));
    refused_plan(b, parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float64_attention_scale_is_folded),
        cmocka_unit_test(float64_constants_are_computed_in_float64),
        cmocka_unit_test(float64_constants_broadcast_and_compare),
        cmocka_unit_test(float64_range_is_folded),
        cmocka_unit_test(float64_cast_of_activation_is_refused_with_remedy),
        cmocka_unit_test(float64_op_on_data_is_refused_with_remedy),
    };

    return cmocka_run_group_tests_name("graph/double", tests, NULL, NULL);
}
