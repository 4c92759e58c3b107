/* Gradients of whole networks, compared with finite differences of the loss, and with
 * data/reference.txt, which make_reference.py computed independently in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/model.h"
#include "harness/net.h"

static void assert_near(const char *what, size_t i, double found, double want, double tolerance)
{
    if (!(fabs(found - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s [%zu]: found %.8g, expected %.8g", what, i, found, want);
}

static void check_grad(const struct net *n, char *line)
{
    char *rest, *name = strtok_r(line, " \n", &rest), *value;
    const struct graph_param *p = net_param(n, name);
    size_t k = 0;

    for (value = strtok_r(NULL, " \n", &rest); value != NULL;
         value = strtok_r(NULL, " \n", &rest)) {
        assert_in_range(k, 0, p->elements - 1);
        assert_near(name, k, (double)n->grads[p->offset + k], atof(value), 2e-6);
        k++;
    }
    assert_int_equal(k, p->elements);
}

static void network_matches_the_reference(void **state)
{
    FILE *f = fopen("test/graph/data/reference.txt", "r");
    struct net train = { 0 };
    char *line = NULL, path[128] = "";
    size_t cap = 0, models = 0, grads = 0;
    double loss, accuracy;

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        if (sscanf(line, "model %120s", path) == 1) {
            strcat(path, ".onnx");
            models++;
        } else if (sscanf(line, "eval %lf %lf", &loss, &accuracy) == 2) {
            struct net n = net_open(path, PLAN_EVAL, 4);
            double sums[2] = { 0 };

            net_fill(&n, 0);
            assert_int_equal(plan_metric_words(n.plan, 0), 2);
            assert_near(path, 0, (double)net_forward(&n), loss, 1e-6);
            plan_metric_add(n.plan, 0, sums);
            assert_near(path, 1, sums[0], accuracy, 0);
            net_close(&n);
        } else if (sscanf(line, "loss %lf", &loss) == 1) {
            if (train.plan != NULL)
                net_close(&train);
            train = net_open(path, PLAN_TRAIN, 4);
            net_fill(&train, 0);
            assert_near(path, 0, (double)net_forward(&train), loss, 1e-6);
            net_backward(&train);
        } else if (strncmp(line, "grad ", 5) == 0) {
            check_grad(&train, line + 5);
            grads++;
        } else {
            fail_msg("unknown line '%s'", line);
        }
    }
    net_close(&train);
    free(line);
    fclose(f);
    assert_int_equal(models, 10);
    assert_int_equal(grads, 4 + 2 * 13 + 6 + 4 + 6);
}

static void gradients_match_finite_differences(void **state)
{
    static const char *const paths[] = { "mlp.onnx",      "residual.onnx",   "tied.onnx",
                                         "identity.onnx", "dropout_17.onnx", "dropout_11.onnx" };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct net n = net_open(paths[i], PLAN_TRAIN, 3);

        net_fill(&n, 1);
        (void)net_forward(&n);
        net_backward(&n);
        net_check_gradients(&n, 7, 2e-3f, 2e-3f);
        net_close(&n);
    }
}

/* Two readers of a view and one of its source; the same value on both sides of a product; a
 * parameter that is read only through a view. */
static void gradients_of_views_and_shared_values_are_summed(void **state)
{
    struct model *m = model_new(17);
    const int64_t flat[] = { 0, -1 }, square[] = { 6, 6 };
    struct net n;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)6));
    model_int64s(m, "flat", flat, 2);
    model_int64s(m, "square", square, 2);
    model_weights(m, "w", shape_of(1, (int64_t)36), 1);
    model_weights(m, "head", shape_of(2, (int64_t)6, (int64_t)3), 2);
    model_node(m, "Reshape", "w square", "w2");
    model_node(m, "Identity", "w2", "w3");
    model_node(m, "MatMul", "x w3", "h");
    model_node(m, "Reshape", "h flat", "v");
    model_node(m, "Mul", "v v", "sq");
    model_node(m, "Tanh", "v", "t");
    model_node(m, "Add", "sq t", "s1");
    model_node(m, "Mul", "s1 h", "s2");
    model_node(m, "MatMul", "s2 w2", "s3");
    model_node(m, "MatMul", "s3 head", "y");
    model_node(m, "Relu", "y", "r"); /* not in place: y is read again */
    model_node(m, "Add", "r y", "logits");
    model_output(m, "logits");
    n = net_open_model(m, PLAN_TRAIN, 2);
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    net_check_gradients(&n, 1, 2e-3f, 1e-2f);
    net_close(&n);
    model_free(m);
}

/* A node has more readers of one value than din_add has bits. */
static void value_read_forty_times_by_one_node_has_the_summed_gradient(void **state)
{
    struct model *m = model_new(17);
    char inputs[256] = "b";
    struct net n;
    int i;

    (void)state;
    for (i = 1; i < 40; i++)
        strcat(inputs, i % 2 != 0 ? " h" : " b");
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 1);
    model_weights(m, "b", shape_of(1, (int64_t)3), 2);
    model_node(m, "MatMul", "x w", "m");
    model_node(m, "Tanh", "m", "h");
    model_node(m, "Sum", inputs, "s");
    model_node(m, "Add", "s h", "logits"); /* the gradient of h is written before */
    model_output(m, "logits");
    n = net_open_model(m, PLAN_TRAIN, 2);
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    net_check_gradients(&n, 1, 1e-3f, 4e-3f);
    net_close(&n);
    model_free(m);
}

/* The gradient of a batch is the sum over its parts; lanes (micro-batches) depend on this. */
static void gradient_of_batch_is_the_sum_of_its_parts(void **state)
{
    static const char *const paths[] = { "mlp.onnx", "residual.onnx", "tied.onnx" };
    size_t i, k;

    (void)state;
    for (i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct net whole = net_open(paths[i], PLAN_TRAIN, 4);
        struct net half = net_open(paths[i], PLAN_TRAIN, 2);
        float loss, *sum = calloc(1, half.arena_bytes);
        uint32_t lane, p;

        assert_non_null(sum);
        net_fill(&whole, 10);
        loss = net_forward(&whole);
        net_backward(&whole);
        for (lane = 0; lane < 2; lane++) {
            net_fill(&half, 10 + 2 * lane);
            loss -= net_forward(&half);
            net_backward(&half);
            for (p = 0; p < half.n_params; p++)
                for (k = 0; k < half.params_of[p].elements; k++)
                    sum[half.params_of[p].offset + k] += half.grads[half.params_of[p].offset + k];
        }
        assert_near("loss", 0, (double)loss, 0, 1e-6);
        for (p = 0; p < half.n_params; p++)
            for (k = 0; k < half.params_of[p].elements; k++)
                assert_near(half.params_of[p].name, k, (double)sum[half.params_of[p].offset + k],
                            (double)whole.grads[whole.params_of[p].offset + k], 1e-6);
        free(sum);
        net_close(&whole);
        net_close(&half);
    }
}

static void samples_of_weight_zero_have_no_gradient(void **state)
{
    struct net two = net_open("mlp.onnx", PLAN_TRAIN, 2),
               four = net_open("mlp.onnx", PLAN_TRAIN, 4);
    float *w;
    uint32_t p;
    size_t k;

    (void)state;
    net_fill(&two, 0);
    net_fill(&four, 0);
    w = plan_input(four.plan, 2)->data;
    w[2] = w[3] = 0;
    assert_near("loss", 0, (double)net_forward(&four), (double)net_forward(&two), 1e-7);
    net_backward(&two);
    net_backward(&four);
    for (p = 0; p < two.n_params; p++)
        for (k = 0; k < two.params_of[p].elements; k++)
            assert_near(two.params_of[p].name, k, (double)four.grads[two.params_of[p].offset + k],
                        (double)two.grads[two.params_of[p].offset + k], 1e-6);
    net_close(&two);
    net_close(&four);
}

static void dropout_differs_by_step_and_lane_and_is_off_in_evaluation(void **state)
{
    struct net n = net_open("dropout_17.onnx", PLAN_TRAIN, 4);
    struct net eval = net_open("dropout_17.onnx", PLAN_EVAL, 4);
    float first, again, step, lane, e;

    (void)state;
    net_fill(&n, 0);
    net_fill(&eval, 0);
    first = net_forward(&n);
    again = net_forward(&n);
    n.run.step = 1;
    step = net_forward(&n);
    n.run.step = 0;
    n.run.lane = 1;
    lane = net_forward(&n);
    assert_true(first == again);
    assert_true(first != step && first != lane && step != lane);
    e = net_forward(&eval);
    eval.run.step = 1;
    assert_true(e == net_forward(&eval));
    net_close(&n);
    net_close(&eval);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(network_matches_the_reference),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(gradients_of_views_and_shared_values_are_summed),
        cmocka_unit_test(value_read_forty_times_by_one_node_has_the_summed_gradient),
        cmocka_unit_test(gradient_of_batch_is_the_sum_of_its_parts),
        cmocka_unit_test(samples_of_weight_zero_have_no_gradient),
        cmocka_unit_test(dropout_differs_by_step_and_lane_and_is_off_in_evaluation),
    };

    return cmocka_run_group_tests_name("graph/gradient", tests, NULL, NULL);
}
