/* Noise that a file computes from random numbers is imported as Dropout. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fault.h"
#include "graph/graph_priv.h"
#include "graph/kit.h"
#include "harness/net.h"

/* x [n, 4] times b / p, b of shape [n, 1] as for stochastic depth, then a product; as the exporter
 * writes it. */
static struct model *network(float keep, float over)
{
    const float p = keep, q = over;
    static const int64_t first = 0, wide[] = { 1 };
    struct model *m = begin(18);

    model_floats(m, "p", shape_of(0), &p);
    model_floats(m, "q", shape_of(0), &q);
    model_int64s(m, "first", &first, 1);
    model_int64s(m, "wide", wide, 1);
    model_node(m, "Shape", "x", "sizes");
    model_node(m, "Gather", "sizes first", "n");
    model_node(m, "Concat", "n wide", "shape");
    model_int(m, "axis", 0);
    model_node(m, "ConstantOfShape", "shape", "empty");
    model_node(m, "RandomUniformLike", "empty", "rands");
    model_float(m, "low", 0);
    model_float(m, "high", 1);
    model_node(m, "CastLike", "p rands", "p_cast");
    model_node(m, "Less", "rands p_cast", "sampled");
    model_node(m, "CastLike", "sampled empty", "bernoulli");
    model_node(m, "Div", "bernoulli q", "div");
    model_node(m, "Mul", "x div", "noisy");
    model_node(m, "MatMul", "noisy w", "logits");
    model_output(m, "logits");
    return m;
}

static uint32_t count(const struct graph *g, const char *op)
{
    uint32_t n = 0, i;

    for (i = 0; i < g->n_nodes; i++)
        n += strcmp(g->nodes[i].def->name, op) == 0;
    return n;
}

static void restored_dropout_is_active_in_training_only(void **state)
{
    struct model *m = network(0.75f, 0.75f), *plain = begin(18);
    struct net train = net_open_model(m, PLAN_TRAIN, 64), eval = net_open_model(m, PLAN_EVAL, 64),
               bare;
    float with, without;

    (void)state;
    model_node(plain, "MatMul", "x w", "logits");
    model_output(plain, "logits");
    bare = net_open_model(plain, PLAN_EVAL, 64);
    assert_int_equal(count(train.graph, "Dropout"), 1);
    assert_int_equal(count(train.graph, "RandomUniformLike"), 0);
    assert_int_equal(count(train.graph, "Less"), 0);
    net_fill(&train, 0);
    net_fill(&eval, 0);
    net_fill(&bare, 0);
    with = net_forward(&train);
    without = net_forward(&bare);
    assert_true(net_forward(&eval) == without);
    assert_true(with != without);
    net_fill(&train, 0);
    assert_true(net_forward(&train) == with); /* a function of seed, step and lane */
    net_backward(&train);
    net_close(&train);
    net_close(&eval);
    net_close(&bare);
    model_free(m);
    model_free(plain);
}

static void restored_dropout_keeps_rows_with_probability_and_scale(void **state)
{
    static const char *const kept[] = { "logits", "div" };
    struct model *m = network(0.75f, 0.75f);
    struct net n;
    const float *div;
    uint32_t ones = 0;

    (void)state;
    model_output(m, "div");
    n = net_open_keep(net_import_model(m, NULL), PLAN_TRAIN, 4000, kept, 2);
    net_fill(&n, 0);
    (void)net_forward(&n);
    div = plan_tensor(n.plan, "div")->data;
    for (uint32_t i = 0; i < 4000; i++) {
        assert_true(div[i] == 0 || fabsf(div[i] - 1 / 0.75f) < 1e-6f);
        ones += div[i] != 0;
    }
    assert_in_range(ones, 2850, 3150);
    net_close(&n);
    model_free(m);
}

static void other_arithmetic_on_random_numbers_is_not_restored(void **state)
{
    struct model *m = network(0.75f, 0.5f); /* divided by another number */
    struct graph *g = net_import_model(m, NULL);

    (void)state;
    assert_int_equal(count(g, "Dropout"), 0);
    assert_int_equal(count(g, "RandomUniformLike"), 1);
    graph_free(g);
    model_free(m);
}

static void exported_restored_dropout_is_not_random(void **state)
{
    char path[] = "/tmp/restore-dropout-XXXXXX";
    struct model *m = network(0.75f, 0.75f);
    struct net n = net_open_model(m, PLAN_EVAL, 8);
    const struct graph_opts run = { .path = path, .all_constant = true };
    struct err err = { 0 };
    struct graph *g;
    int fd = mkstemp(path);
    uint32_t i;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(graph_export(n.graph, n.params, path, &err), 0);
    assert_int_equal(graph_import(&run, &g, &err), 0);
    assert_int_equal(count(g, "RandomUniformLike"), 0);
    for (i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].def->name, "Dropout") == 0)
            assert_int_equal(g->nodes[i].n_in, 2);            /* no training_mode */
    for (i = 0; i < g->file.model->graph->n_initializer; i++) /* p and q have no reader */
        assert_true(strcmp(g->file.model->graph->initializer[i]->name, "p") != 0 &&
                    strcmp(g->file.model->graph->initializer[i]->name, "q") != 0);
    graph_free(g);
    net_close(&n);
    model_free(m);
    unlink(path);
}

static void restoration_out_of_memory_returns_an_error(void **state)
{
    const struct graph_opts opts = { .path = "t.onnx", .batch_norm = GRAPH_NORM_ASK };
    struct model *m = network(0.75f, 0.75f);
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);
    uint32_t i;

    (void)state;
    for (i = 1; i < 1000; i++) {
        struct graph *g = NULL;
        struct err err = { 0 };
        char spec[32];
        int rc;

        snprintf(spec, sizeof(spec), "mem@%u", i);
        assert_int_equal(fault_arm(spec, &err), 0);
        rc = graph_import_bytes(&opts, bytes, n, &g, &err);
        assert_int_equal(rc, fault_fired() ? ERR_NOMEM : 0);
        graph_free(g);
        if (!fault_fired())
            break;
    }
    assert_in_range(i, 10, 999);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_dropout_is_active_in_training_only),
        cmocka_unit_test(restored_dropout_keeps_rows_with_probability_and_scale),
        cmocka_unit_test(other_arithmetic_on_random_numbers_is_not_restored),
        cmocka_unit_test(exported_restored_dropout_is_not_random),
        cmocka_unit_test(restoration_out_of_memory_returns_an_error),
    };

    return cmocka_run_group_tests_name("graph/restore_dropout", tests, NULL, NULL);
}
