/* Fusion of a transformer's block: a norm with the preceding sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/buf.h"
#include "graph/fuse_kit.h"
#include "harness/lacking.h"

enum { WIDTH = 6 };

static struct model *begin(void)
{
    struct model *m = model_new(20);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)WIDTH));
    return m;
}

static struct model *end(struct model *m, const char *last)
{
    char in[64];

    model_weights(m, "head", shape_of(2, (int64_t)WIDTH, (int64_t)CLASSES), 9);
    snprintf(in, sizeof(in), "%s head", last);
    model_node(m, "MatMul", in, "logits");
    model_output(m, "logits");
    return m;
}

/* y = x w with a separate weight. */
static void add_product(struct model *m, const char *x, const char *y)
{
    char in[64], w[32];

    snprintf(w, sizeof(w), "%s.w", y);
    snprintf(in, sizeof(in), "%s %s", x, w);
    model_weights(m, w, shape_of(2, (int64_t)WIDTH, (int64_t)WIDTH),
                  (uint64_t)y[0] * 31 + (uint64_t)y[1]);
    model_node(m, "MatMul", in, y);
}

/* apart: a node without effect precedes the norm, so that no pattern matches. */
static void add_norm_at(struct model *m, const char *x, const char *y, bool apart)
{
    char in[96], name[32], between[32];

    if (apart) {
        snprintf(between, sizeof(between), "%s.in", y);
        model_node(m, "Sum", x, between);
        x = between;
    }

    snprintf(name, sizeof(name), "%s.scale", y);
    model_weights(m, name, shape_of(1, (int64_t)WIDTH), 5);
    snprintf(name, sizeof(name), "%s.bias", y);
    model_weights(m, name, shape_of(1, (int64_t)WIDTH), 6);
    snprintf(in, sizeof(in), "%s %s.scale %s.bias", x, y, y);
    model_node(m, "LayerNormalization", in, y);
}

static void add_norm(struct model *m, const char *x, const char *y)
{
    add_norm_at(m, x, y, false);
}

/* Norms before the branches: the residual stream bypasses them. */
static struct model *stream(bool apart)
{
    struct model *m = begin();

    add_norm(m, "x", "n0");
    add_product(m, "n0", "p1");
    model_node(m, "Add", "x p1", "s1");
    add_norm_at(m, "s1", "n1", apart);
    add_product(m, "n1", "p2");
    model_node(m, "Add", "p2 s1", "s2");
    add_norm_at(m, "s2", "n2", apart);
    return end(m, "n2");
}

/* Norms after the branches: the sum has no other reader. */
static struct model *closed(bool apart)
{
    struct model *m = begin();

    add_product(m, "x", "p1");
    model_node(m, "Add", "x p1", "s1");
    add_norm_at(m, "s1", "n1", apart);
    return end(m, "n1");
}

static enum tensor_dtype type_of(const struct net *n, const char *value)
{
    size_t i;

    for (i = 0; i < n->plan->values.n; i++)
        if (strcmp(n->plan->values.at[i].name, value) == 0)
            return n->plan->values.at[i].tensor.dtype;
    fail_msg("no value %s", value);
    return TENSOR_NONE;
}

/* The fused network must compute the same bits as the unfused one. */
static void expect_same(struct model *(*make)(bool apart), uint32_t sums)
{
    struct model *m[] = { make(false), make(true) };
    struct net n[2];
    float loss[2];
    uint32_t i;

    for (i = 0; i < 2; i++) {
        n[i] = net_open_model(m[i], PLAN_TRAIN, BATCH);
        net_fill(&n[i], 0);
        loss[i] = net_forward(&n[i]);
        net_backward(&n[i]);
        assert_int_equal(nodes_of(&n[i], "Add"), i == 0 ? 0 : sums);
        assert_int_equal(nodes_of(&n[i], "LayerNormAdd"), i == 0 ? sums : 0);
    }
    assert_true(loss[0] == loss[1]);
    assert_memory_equal(n[0].grads, n[1].grads, n[0].arena_bytes);
    net_check_gradients(&n[0], 5, 1e-2f, 2e-3f);
    for (i = 0; i < 2; i++) {
        net_close(&n[i]);
        n[i] = net_open_model(m[i], PLAN_EVAL, BATCH);
        net_fill(&n[i], 0);
        assert_true(net_forward(&n[i]) == loss[0]);
        net_close(&n[i]);
        model_free(m[i]);
    }
}

static void norm_is_fused_with_the_preceding_sum(void **state)
{
    (void)state;
    expect_same(stream, 2);
    expect_same(closed, 1);
}

static void sum_with_earlier_reader_or_broadcast_is_not_fused(void **state)
{
    struct model *m = begin();
    struct net n;

    (void)state;
    add_product(m, "x", "p1");
    model_node(m, "Add", "x p1", "s1");
    model_node(m, "Relu", "s1", "r1");
    add_norm(m, "s1", "n1");
    model_node(m, "Mul", "n1 r1", "y");
    n = net_open_model(end(m, "y"), PLAN_TRAIN, BATCH);
    assert_int_equal(nodes_of(&n, "Add"), 1);
    assert_int_equal(nodes_of(&n, "LayerNormalization"), 1);
    model_free(m);
    net_close(&n);
    m = begin();
    model_weights(m, "row.bias", shape_of(1, (int64_t)WIDTH), 3);
    model_node(m, "Add", "x row.bias", "s1");
    add_norm(m, "s1", "n1");
    n = net_open_model(end(m, "n1"), PLAN_TRAIN, BATCH);
    assert_int_equal(nodes_of(&n, "Add"), 1);
    assert_int_equal(nodes_of(&n, "LayerNormalization"), 1);
    model_free(m);
    net_close(&n);
}

/* The stream is float32, and values that the products read are written directly as bfloat16. */
static void fused_norm_in_bfloat16_needs_no_conversion(void **state)
{
    struct model *m = stream(false);
    struct net n, wide;
    size_t i;

    (void)state;
    if (!op_has_bfloat16()) {
        model_free(m);
        skip_lacking("the processor has no avx512_bf16");
    }
    n = net_open_half(net_import_model(m, NULL), PLAN_TRAIN, BATCH);
    wide = net_open_model(m, PLAN_TRAIN, BATCH);
    assert_int_equal(nodes_of(&n, "LayerNormAdd"), 2);
    assert_int_equal(type_of(&n, "s1"), TENSOR_F32);
    assert_int_equal(type_of(&n, "n0"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "n1"), TENSOR_BF16);
    assert_int_equal(type_of(&n, "n2"), TENSOR_BF16);
    assert_int_equal(nodes_of(&n, "Convert"), 1); /* of the logits, for this test's loss */
    net_fill(&n, 0);
    net_fill(&wide, 0);
    if (fabsf(net_forward(&n) - net_forward(&wide)) > 0.02f)
        fail_msg("the loss does not follow float32");
    net_backward(&n);
    net_backward(&wide);
    for (i = 0; i < n.n_params; i++) {
        const float *a = n.grads + n.params_of[i].offset,
                    *b = wide.grads + wide.params_of[i].offset;
        double off = 0, size = 0;
        size_t k;

        for (k = 0; k < n.params_of[i].elements; k++) {
            off += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
            size += (double)b[k] * (double)b[k];
        }
        if (off > size * 0.03 * 0.03)
            fail_msg("%s: the gradient is off by %g of %g", n.params_of[i].name, sqrt(off),
                     sqrt(size));
    }
    net_close(&n);
    net_close(&wide);
    model_free(m);
}

/* Another reader of the output needs it unchanged. */
static void norm_with_other_readers_stays_float32(void **state)
{
    struct model *m = begin();
    struct net n;

    (void)state;
    if (!op_has_bfloat16()) {
        model_free(m);
        skip_lacking("the processor has no avx512_bf16");
    }
    add_norm(m, "x", "n1");
    add_product(m, "n1", "p1");
    model_node(m, "Add", "n1 p1", "s1");
    n = net_open_half(net_import_model(end(m, "s1"), NULL), PLAN_TRAIN, BATCH);
    assert_int_equal(type_of(&n, "n1"), TENSOR_F32);
    model_free(m);
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_fused_with_the_preceding_sum),
        cmocka_unit_test(sum_with_earlier_reader_or_broadcast_is_not_fused),
        cmocka_unit_test(fused_norm_in_bfloat16_needs_no_conversion),
        cmocka_unit_test(norm_with_other_readers_stays_float32),
    };

    return cmocka_run_group_tests_name("graph/fuse_stream", tests, NULL, NULL);
}
