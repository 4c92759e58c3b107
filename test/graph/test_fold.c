/* Simplification before planning: arithmetic on shapes is folded, If, Loop and Scan are expanded,
 * functions are inlined, and several losses are summed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/build.h"
#include "graph/kit.h"
#include "graph/plan_priv.h"
#include "harness/net.h"

static uint32_t count(const struct plan *p, const char *op)
{
    uint32_t n = 0;
    size_t i;

    for (i = 0; i < p->nodes.n; i++)
        n += strcmp(p->nodes.at[i].def->name, op) == 0;
    return n;
}

/* ---- shapes ---- */

static void shape_arithmetic_is_folded_completely(void **state)
{
    static const int64_t zero[] = { 0 }, four[] = { 4 };
    struct model *m = begin(17);
    struct net n;

    (void)state;
    model_int64s(m, "zero", zero, 1);
    model_int64s(m, "four", four, 1);
    model_node(m, "Relu", "x", "only_its_shape"); /* dead once the shape is known */
    model_node(m, "Shape", "only_its_shape", "s");
    model_node(m, "Gather", "s zero", "batch");
    model_node(m, "Concat", "batch four", "to");
    model_int(m, "axis", 0);
    model_node(m, "MatMul", "x w", "y");
    model_node(m, "Concat", "y y", "yy");
    model_int(m, "axis", 1);
    model_node(m, "Shape", "x", "s2");
    model_node(m, "Reshape", "x s2", "x2");
    model_node(m, "MatMul", "x2 w", "z");
    model_node(m, "Reshape", "x to", "x3");
    model_node(m, "MatMul", "x3 w", "z3");
    model_node(m, "Add", "z z3", "logits");
    model_output(m, "logits");
    n = net_open_model(m, PLAN_TRAIN, 6);
    assert_int_equal(count(n.plan, "Shape") + count(n.plan, "Gather") + count(n.plan, "Concat"), 0);
    assert_int_equal(count(n.plan, "Relu"), 0);
    assert_int_equal(n.plan->nodes.n, 4); /* two products, their sum, the loss; views of the same
                                             shape are removed */
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    net_check_gradients(&n, 1, 1e-2f, 2e-3f);
    net_close(&n);
    model_free(m);
}

/* ---- bodies ---- */

static uint8_t pool[1 << 14]; /* memory of all bodies, which models do not own */
static size_t pool_used;

/* Adds a graph attribute to the last node of m; the graph is that of `body`. */
static void add_body(struct model *m, const char *name, struct model *body)
{
    Onnx__GraphProto *g = model_proto(m)->graph, *inner = model_proto(body)->graph;
    Onnx__AttributeProto *a;
    size_t bytes = onnx__graph_proto__get_packed_size(inner);

    model_int(m, name, 0);
    a = g->node[g->n_node - 1]->attribute[g->node[g->n_node - 1]->n_attribute - 1];
    a->type = 5;
    a->has_i = 0;
    a->has_g = 1;
    assert_true(pool_used + bytes <= sizeof(pool));
    a->g.data = pool + pool_used;
    pool_used += bytes;
    a->g.len = bytes;
    onnx__graph_proto__pack(inner, a->g.data);
}

/* h -> Tanh(h w), `iterations` times, written as a Loop that captures a weight. */
static struct model *looped(const int64_t *iterations)
{
    struct model *body = model_new(17), *m = model_new(17);

    model_input(body, "turn", TENSOR_I64, shape_of(0));
    model_input(body, "go", TENSOR_BOOL, shape_of(0));
    model_input(body, "h", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_node(body, "Identity", "go", "go_on");
    model_node(body, "MatMul", "h w", "product");
    model_node(body, "Tanh", "product", "next");
    model_output(body, "go_on");
    model_output(body, "next");
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)4), 1);
    if (iterations != NULL)
        model_int64s(m, "trips", iterations, 1);
    else
        model_input(m, "trips", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_node(m, "Loop", "trips - x", "logits");
    add_body(m, "body", body);
    model_output(m, "logits");
    model_free(body);
    return m;
}

static void loop_with_captured_weights_trains_as_the_flat_graph(void **state)
{
    static const int64_t iterations[] = { 3 };
    struct model *m = looped(iterations), *flat = model_new(17);
    struct net a, b;

    (void)state;
    model_input(flat, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(flat, "w", shape_of(2, (int64_t)4, (int64_t)4), 1);
    model_node(flat, "MatMul", "x w", "p1");
    model_node(flat, "Tanh", "p1", "h1");
    model_node(flat, "MatMul", "h1 w", "p2");
    model_node(flat, "Tanh", "p2", "h2");
    model_node(flat, "MatMul", "h2 w", "p3");
    model_node(flat, "Tanh", "p3", "logits");
    model_output(flat, "logits");
    a = net_open_model(m, PLAN_TRAIN, 5);
    b = net_open_model(flat, PLAN_TRAIN, 5);
    assert_int_equal(a.n_params, 1);
    assert_int_equal(count(a.plan, "MatMul"), 3);
    net_fill(&a, 0);
    net_fill(&b, 0);
    assert_true(net_forward(&a) == net_forward(&b));
    net_backward(&a);
    net_backward(&b);
    assert_memory_equal(a.grads, b.grads, 16 * sizeof(float));
    net_close(&a);
    net_close(&b);
    model_free(m);
    model_free(flat);
}

/* h -> Tanh(h v + b), three times, with v and b in the body; sum of it and x w. */
static struct model *holding(const char *bias_op)
{
    static const int64_t iterations[] = { 3 };
    static const float bias[] = { 0, 0, 1, 0 };
    struct model *body = model_new(17), *m = begin(17);

    model_input(body, "turn", TENSOR_I64, shape_of(0));
    model_input(body, "go", TENSOR_BOOL, shape_of(0));
    model_input(body, "h", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)3));
    model_node(body, "Identity", "go", "go_on");
    model_floats(body, "b", shape_of(1, (int64_t)3), bias + 1);
    model_node(body, bias_op, "h b", "sum");
    model_node(body, "Tanh", "sum", "next");
    model_output(body, "go_on");
    model_output(body, "next");
    model_int64s(m, "trips", iterations, 1);
    model_node(m, "MatMul", "x w", "y");
    model_node(m, "Loop", "trips - y", "logits");
    add_body(m, "body", body);
    model_output(m, "logits");
    model_proto(m)->producer_name = (char *)(uintptr_t) "jax2onnx";
    model_free(body);
    return m;
}

static void bias_in_body_is_refused_unless_frozen(void **state)
{
    static const char *const frozen[] = { "b" };
    struct graph_opts opts = { .frozen = frozen, .n_frozen = 1 };
    struct model *m = holding("Add");
    struct graph *g;
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), 0);
    graph_free(g);
    refused(m, ERR_INPUT, "'b' [3] (a vector that is added to an activation)",
            "inside the body of a Loop", "trainerctl recipe keras", "\"frozen\": [\"b\"]", NULL);
    m = holding("Pow"); /* an exponent */
    bytes = model_bytes(m, &n);
    opts.n_frozen = 0;
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), 0);
    graph_free(g);
    model_free(m);
}

static void loop_with_data_dependent_trip_count_is_refused(void **state)
{
    struct model *m = looped(NULL);
    struct plan_feed feeds[2] = {
        { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)4) },
        { .name = "trips", .dtype = TENSOR_I64, .shape = { .rank = 0 } },
    };
    struct plan_opts o = {
        .purpose = PLAN_TRAIN, .batch = 2, .feeds = feeds, .n_feeds = 2, NET_LOSS
    };
    struct graph *g = net_import_model(m, NULL);
    struct err err = { 0 };
    struct plan *p = NULL;

    (void)state;
    assert_int_equal(plan_new(g, &o, &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Loop 'logits': its trip count depends on the data"));
    graph_free(g);
    model_free(m);
}

static void loop_with_too_many_iterations_is_refused(void **state)
{
    static const int64_t iterations[] = { INT64_MAX };
    struct model *m = looped(iterations);
    struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)4) };
    struct plan_opts o = {
        .purpose = PLAN_TRAIN, .batch = 2, .feeds = &feed, .n_feeds = 1, NET_LOSS
    };
    struct graph *g = net_import_model(m, NULL);
    struct err err = { 0 };
    struct plan *p = NULL;

    (void)state;
    assert_int_equal(plan_new(g, &o, &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "more than 20000 nodes"));
    graph_free(g);
    model_free(m);
}

static void body_that_mismatches_its_node_is_refused(void **state)
{
    static const int64_t iterations[] = { 3 };
    struct model *m = looped(iterations), *empty = model_new(17);
    Onnx__NodeProto *loop = model_proto(m)->graph->node[0];

    (void)state;
    loop->n_input = 2; /* the loop-carried value is missing */
    refused(m, ERR_INPUT, "Loop 'logits'", NULL);
    m = looped(iterations);
    model_proto(m)->graph->node[0]->attribute[0]->name = (char *)"bdy";
    refused(m, ERR_UNSUPPORTED, "attribute 'bdy' is not supported; did you mean 'body'?", NULL);
    m = looped(iterations);
    model_proto(m)->graph->node[0]->n_attribute = 0;
    refused(m, ERR_INPUT, "expected the attribute 'body'", NULL);
    m = begin(17);
    model_node(m, "If", "x", "logits");
    add_body(m, "then_branch", empty);
    model_output(m, "logits");
    refused(m, ERR_INPUT, "If 'logits'", "'else_branch'", NULL);
    model_free(empty);
}

/* Random ops in a body could not be removed at export. */
static void random_op_in_body_is_refused(void **state)
{
    struct model *body = model_new(17), *m = begin(17);

    (void)state;
    model_node(body, "Dropout", "x", "y");
    model_output(body, "y");
    model_node(m, "If", "x", "logits");
    add_body(m, "then_branch", body);
    add_body(m, "else_branch", body);
    model_output(m, "logits");
    refused(m, ERR_UNSUPPORTED, "Dropout 'y' is inside an If, Loop or Scan", NULL);
    model_free(body);
}

/* ---- losses ---- */

/* x [batch, 4] -> y [batch, 3] -> mean of squares, a number; and y itself. */
static struct model *with_own_loss(void)
{
    struct model *m = begin(17);

    model_node(m, "MatMul", "x w", "logits");
    model_node(m, "Mul", "logits logits", "squares");
    model_node(m, "ReduceMean", "squares", "own");
    model_int(m, "keepdims", 0);
    model_output(m, "own");
    model_output(m, "logits");
    return m;
}

static float loss_of(const struct graph *g, const struct plan_measure *losses, uint32_t n,
                     float *grads)
{
    static const struct plan_feed feed = {
        .name = "x", .dtype = TENSOR_F32, .shape = { .rank = 1, .dim = { 4 } }
    };
    static const struct plan_feed targets[] = {
        { .name = "class", .dtype = TENSOR_I64 },
        { .name = "numbers", .dtype = TENSOR_F32, .shape = { .rank = 1, .dim = { 3 } } },
    };
    const struct plan_opts o = { .purpose = PLAN_TRAIN,
                                 .batch = 2,
                                 .feeds = &feed,
                                 .n_feeds = 1,
                                 .targets = targets,
                                 .n_targets = 2,
                                 .losses = losses,
                                 .n_losses = n };
    const struct op_run run = { .loss_scale = 0.5f };
    struct err err = { 0 };
    struct plan *p;
    float *params = aligned_alloc(64, 4096), loss;
    void *work;
    uint32_t count_params;

    if (plan_new(g, &o, &p, &err) < 0)
        fail_msg("%s", err.text);
    work = aligned_alloc(64, plan_work_bytes(p));
    memcpy(params, graph_params(g, &count_params)[0].initial, 12 * sizeof(float));
    plan_bind(p, params, work);
    for (int i = 0; i < 8; i++)
        ((float *)plan_input(p, 0)->data)[i] = (float)(i - 3) / 4;
    memcpy(plan_input(p, 1)->data, (int64_t[]){ 2, 0 }, 16);
    for (int i = 0; i < 6; i++)
        ((float *)plan_input(p, 2)->data)[i] = (float)i / 8;
    memcpy(plan_input(p, 3)->data, (float[]){ 1, 1 }, 8);
    assert_int_equal(plan_forward(p, &run, &err), 0);
    assert_int_equal(plan_backward(p, &run, grads, NULL, NULL, &err), 0);
    loss = plan_loss(p);
    plan_free(p);
    free(work);
    free(params);
    return loss;
}

static void several_losses_are_summed_with_their_factors(void **state)
{
    const struct plan_measure cross = { .op = "SoftmaxCrossEntropy", .tensor = "logits", .target = 0 };
    const struct plan_measure square = { .op = "MeanSquaredError", .tensor = "logits", .target = 1, .weight = 3 };
    const struct plan_measure own = { .tensor = "own", .weight = 0.25f };
    const struct plan_measure all[] = { cross, square, own };
    struct model *m = with_own_loss();
    struct graph *g = net_import_model(m, NULL);
    float grads[4][16], parts[3], sum;
    int i, k;

    (void)state;
    sum = loss_of(g, all, 3, grads[3]);
    for (i = 0; i < 3; i++)
        parts[i] = loss_of(g, &all[i], 1, grads[i]);
    assert_float_equal(sum, parts[0] + parts[1] + parts[2], 1e-6);
    for (k = 0; k < 12; k++)
        assert_float_equal(grads[3][k], grads[0][k] + grads[1][k] + grads[2][k], 1e-6);
    assert_true(fabsf(grads[2][0]) > 1e-6f); /* the graph's own loss has a gradient */
    graph_free(g);
    model_free(m);
}

static void loss_weight_after_backward_is_available(void **state)
{
    static const struct op_attr ignore = { .name = "ignore_index", .type = OP_ATTR_INT, .i = 1 };
    const struct plan_measure loss = {
        .op = "SoftmaxCrossEntropy", .tensor = "logits", .attrs = &ignore, .n_attrs = 1
    };
    static const struct plan_feed feed = {
        .name = "x", .dtype = TENSOR_F32, .shape = { .rank = 1, .dim = { 4 } }
    };
    const struct plan_opts o = { .purpose = PLAN_TRAIN,
                                 .batch = 4,
                                 .feeds = &feed,
                                 .n_feeds = 1,
                                 .targets = &net_labels,
                                 .n_targets = 1,
                                 .losses = &loss,
                                 .n_losses = 1 };
    const struct op_run run = { .loss_scale = 0.25f };
    struct model *m = begin(17);
    struct graph *g;
    struct plan *p;
    struct err err = { 0 };
    uint32_t n;
    float grads[16];
    void *work;

    (void)state;
    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    g = net_import_model(m, NULL);
    assert_int_equal(plan_new(g, &o, &p, &err), 0);
    work = aligned_alloc(64, plan_work_bytes(p));
    plan_bind(p, (float *)(uintptr_t)graph_params(g, &n)[0].initial, work);
    memset(plan_input(p, 0)->data, 0, 16 * sizeof(float));
    memcpy(plan_input(p, 1)->data, (int64_t[]){ 0, 1, 2, 1 }, 32);
    memcpy(plan_input(p, 2)->data, (float[]){ 1, 1, 1, 1 }, 16);
    assert_int_equal(plan_forward(p, &run, &err), 0);
    assert_int_equal(plan_backward(p, &run, grads, NULL, NULL, &err), 0);
    assert_true(plan_loss_weight(p) == 0.5f);
    assert_float_equal(plan_loss(p) / plan_loss_weight(p), logf(3), 1e-6);
    plan_free(p);
    free(work);
    graph_free(g);
    model_free(m);
}

/* ---- a batch in a shape ---- */

static void fixed_batch_in_shapes_computes_as_the_dynamic_graph(void **state)
{
    static const int64_t fixed[] = { 8, 2, 2 }, dynamic[] = { -1, 2, 2 }, flat[] = { 8, 4 }, any[] = { 0, 4 };
    struct net n[2];
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        struct model *m = model_new(17);

        model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)(i == 0 ? 8 : -1), (int64_t)4));
        model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 1);
        model_weights(m, "v", shape_of(2, (int64_t)2, (int64_t)2), 2);
        model_int64s(m, "rows", i == 0 ? fixed : dynamic, 3);
        model_int64s(m, "flat", i == 0 ? flat : any, 2);
        model_node(m, "Reshape", "x rows", "r");
        model_node(m, "MatMul", "r v", "s");
        model_node(m, "Reshape", "s flat", "t");
        model_node(m, "MatMul", "t w", "logits");
        model_output(m, "logits");
        n[i] = net_open_model(m, PLAN_TRAIN, 3);
        net_fill(&n[i], 0);
        model_free(m);
    }
    assert_true(net_forward(&n[0]) == net_forward(&n[1]));
    net_backward(&n[0]);
    net_backward(&n[1]);
    assert_memory_equal(n[0].grads, n[1].grads, 16 * sizeof(float));
    net_close(&n[0]);
    net_close(&n[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_arithmetic_is_folded_completely),
        cmocka_unit_test(loop_with_captured_weights_trains_as_the_flat_graph),
        cmocka_unit_test(bias_in_body_is_refused_unless_frozen),
        cmocka_unit_test(loop_with_data_dependent_trip_count_is_refused),
        cmocka_unit_test(loop_with_too_many_iterations_is_refused),
        cmocka_unit_test(body_that_mismatches_its_node_is_refused),
        cmocka_unit_test(random_op_in_body_is_refused),
        cmocka_unit_test(several_losses_are_summed_with_their_factors),
        cmocka_unit_test(loss_weight_after_backward_is_available),
        cmocka_unit_test(fixed_batch_in_shapes_computes_as_the_dynamic_graph),
    };

    return cmocka_run_group_tests_name("graph/fold", tests, NULL, NULL);
}
