/* Pools with more than three spatial axes, in the form of jax2onnx, compared with the same pool
 * written with Transpose and two or three axes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/kit.h"
#include "harness/net.h"

/* x [b, 80] times a matrix, so that a gradient passes the pool, as rows x columns x channels [b, 4,
 * 5, 4]. */
static struct model *begin_image(void)
{
    static const int64_t image[] = { -1, 4, 5, 4 };
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)80));
    model_weights(m, "scale", shape_of(2, (int64_t)80, (int64_t)80), 1);
    model_int64s(m, "image", image, 4);
    model_node(m, "MatMul", "x scale", "scaled");
    model_node(m, "Reshape", "scaled image", "h");
    return m;
}

static void end_image(struct model *m)
{
    static const int64_t flat[] = { -1, 16 };

    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "y flat", "logits");
    model_output(m, "logits");
}

static void set_pool(struct model *m, const char *op, const int64_t *kernel, const int64_t *strides,
                     uint32_t n)
{
    model_ints(m, "kernel_shape", kernel, n);
    model_ints(m, "strides", strides, n);
    if (op[0] == 'L')
        model_int(m, "p", 2);
}

/* The window of [2, 2] with strides [2, 3] over [1, 1, b, rows, columns, channels]. */
static struct model *wide(const char *op)
{
    static const int64_t kernel[] = { 1, 2, 2, 1 }, strides[] = { 1, 2, 3, 1 }, axes[] = { 0, 1 };
    struct model *m = begin_image();

    model_int64s(m, "axes", axes, 2);
    model_node(m, "Unsqueeze", "h axes", "wide");
    model_node(m, op, "wide", "pooled");
    set_pool(m, op, kernel, strides, 4);
    model_node(m, "Squeeze", "pooled axes", "y");
    end_image(m);
    return m;
}

static struct model *narrow(const char *op)
{
    static const int64_t kernel[] = { 2, 2 }, strides[] = { 2, 3 };
    static const int64_t to_front[] = { 0, 3, 1, 2 }, to_back[] = { 0, 2, 3, 1 };
    struct model *m = begin_image();

    model_node(m, "Transpose", "h", "front");
    model_ints(m, "perm", to_front, 4);
    model_node(m, op, "front", "pooled");
    set_pool(m, op, kernel, strides, 2);
    model_node(m, "Transpose", "pooled", "y");
    model_ints(m, "perm", to_back, 4);
    end_image(m);
    return m;
}

static void wide_pool_matches_the_narrow_pool(void **state)
{
    static const char *const ops[] = { "MaxPool", "AveragePool", "LpPool" };

    (void)state;
    for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
        struct model *a = wide(ops[k]), *b = narrow(ops[k]);
        struct net n = net_open_model(a, PLAN_TRAIN, 3),
                   reference = net_open_model(b, PLAN_TRAIN, 3);

        net_fill(&n, 0);
        net_fill(&reference, 0);
        assert_float_equal(net_forward(&n), net_forward(&reference), 1e-6);
        net_backward(&n);
        net_backward(&reference);
        for (size_t i = 0; i < 80 * 80; i++)
            assert_float_equal(n.grads[net_param(&n, "scale")->offset + i],
                               reference.grads[net_param(&reference, "scale")->offset + i], 1e-6);
        net_close(&n);
        net_close(&reference);
        model_free(a);
        model_free(b);
    }
}

static void refused_plan(struct model *m, const char *part)
{
    const struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)80) };
    const struct plan_opts opts = {
        .purpose = PLAN_TRAIN, .batch = 3, .feeds = &feed, .n_feeds = 1, .sum_outputs = true
    };
    const struct graph_opts import = { .path = "wide.onnx" };
    struct graph *g = net_import_model(m, &import);
    struct plan *p = NULL;
    struct err err = { 0 };

    assert_true(plan_new(g, &opts, &p, &err) < 0);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, err.text);
    graph_free(g);
    model_free(m);
}

static void pool_of_four_pooled_axes_is_refused(void **state)
{
    static const int64_t kernel[] = { 2, 2, 2, 2 }, strides[] = { 1, 2, 3, 1 }, axes[] = { 0, 1 };
    struct model *m = begin_image();

    (void)state;
    model_int64s(m, "axes", axes, 2);
    model_node(m, "Unsqueeze", "h axes", "wide");
    model_node(m, "MaxPool", "wide", "y");
    set_pool(m, "MaxPool", kernel, strides, 4);
    end_image(m);
    refused_plan(m, "pools 4 spatial axes; expected at most 3");
}

static void list_of_another_length_is_refused(void **state)
{
    static const int64_t kernel[] = { 1, 2, 2, 1 }, strides[] = { 2, 3 }, axes[] = { 0, 1 };
    struct model *m = begin_image();

    (void)state;
    model_int64s(m, "axes", axes, 2);
    model_node(m, "Unsqueeze", "h axes", "wide");
    model_node(m, "MaxPool", "wide", "y");
    model_ints(m, "kernel_shape", kernel, 4);
    model_ints(m, "strides", strides, 2);
    end_image(m);
    refused_plan(m, "strides has 2 numbers; expected 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_pool_matches_the_narrow_pool),
        cmocka_unit_test(pool_of_four_pooled_axes_is_refused),
        cmocka_unit_test(list_of_another_length_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
