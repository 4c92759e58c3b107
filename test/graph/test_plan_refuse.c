/* Plans that cannot be made, and the texts of the errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "harness/model.h"
#include "harness/net.h"

static void plan_refused(const char *path, const struct plan_opts *opts, int code, ...)
{
    struct graph *g = net_import(path);
    struct plan *p = NULL;
    struct err err = { 0 };
    const char *part;
    va_list ap;

    assert_int_equal(plan_new(g, opts, &p, &err), code);
    assert_null(p);
    va_start(ap, code);
    while ((part = va_arg(ap, const char *)) != NULL)
        if (strstr(err.text, part) == NULL)
            fail_msg("'%s' is not in: %s", part, err.text);
    va_end(ap);
    graph_free(g);
}

static void mismatched_feeds_and_names_are_refused_with_both_sides(void **state)
{
    struct plan_feed feed = {
        .name = "x", .source = "image", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)5)
    };
    const struct plan_opts good = { .purpose = PLAN_TRAIN,
                                    .batch = 4,
                                    .feeds = &feed,
                                    .n_feeds = 1,
                                    NET_LOSS };
    struct plan_opts o = good;
    struct plan_measure loss = net_loss;

    (void)state;
    feed.shape.dim[0] = 6;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "model input 'x' has shape [-1, 5]",
                 "feature 'image' has [4, 6]", NULL);
    feed.shape = shape_of(2, (int64_t)5, (int64_t)1);
    plan_refused("mlp.onnx", &o, ERR_INPUT, "has [4, 5, 1]", NULL);
    feed.shape = shape_of(1, (int64_t)0);
    plan_refused("mlp.onnx", &o, ERR_INPUT, "no elements", NULL);
    feed.shape = shape_of(1, (int64_t)5);
    feed.dtype = TENSOR_U8;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "'x' is float32, but feature 'image' is uint8", NULL);
    feed.dtype = TENSOR_F32;
    feed.name = "input";
    plan_refused("mlp.onnx", &o, ERR_INPUT, "no input 'input'; its inputs are: 'x'", NULL);
    feed.name = "x";
    o.n_feeds = 0;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "'x' is not fed", NULL);
    o = good;
    loss.tensor = "logit";
    o.losses = &loss;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "no tensor 'logit'; did you mean 'logits'?", NULL);
    o = good;
    loss = (struct plan_measure){ .op = "Hinge", .tensor = "logits" };
    o.losses = &loss;
    plan_refused("mlp.onnx", &o, ERR_UNSUPPORTED, "loss 'Hinge' does not exist",
                 "SoftmaxCrossEntropy", NULL);
    o = good;
    o.n_targets = 0;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "needs labels", NULL);
    o = good;
    o.n_losses = 0;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "training needs a loss", NULL);
    o = good;
    o.batch = 0;
    plan_refused("mlp.onnx", &o, ERR_INPUT, "at least 1", NULL);
}

/* x [8, 5] -> MatMul -> Reshape to `shape` -> logits. */
static struct graph *with_reshape(const int64_t *shape, size_t n)
{
    struct model *m = model_new(17);
    struct graph *g;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)8, (int64_t)5));
    model_weights(m, "w", shape_of(2, (int64_t)5, (int64_t)4), 1);
    model_int64s(m, "shape", shape, n);
    model_node(m, "MatMul", "x w", "y");
    model_node(m, "Reshape", "y shape", "logits");
    model_output(m, "logits");
    g = net_import_model(m, NULL);
    model_free(m);
    return g;
}

static void fixed_batch_is_replaced_if_certain_and_refused_otherwise(void **state)
{
    static const struct {
        int64_t shape[3];
        size_t n;
        const char *refused; /* NULL: it can be trained */
    } cases[] = {
        { { 8, 4 }, 2, NULL },      { { 8, -1 }, 2, NULL }, { { -1, 4 }, 2, NULL },
        { { 8, 4, 1 }, 3, NULL },   { { 4, 8 }, 2, "its batch is fixed at 8, but a lane has 4" },
        { { 2, 4, 4 }, 3, "(export it with a dynamic batch" },
    };
    struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)5) };
    struct plan_opts o = {
        .purpose = PLAN_TRAIN, .batch = 4, .feeds = &feed, .n_feeds = 1, NET_LOSS
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct graph *g = with_reshape(cases[i].shape, cases[i].n);
        struct plan_feed labels = net_labels;
        struct err err = { 0 };
        struct plan *p = NULL;
        int rc;

        if (cases[i].n == 3) /* logits [4, 4, 1]: a label for each of one position */
            labels.shape = shape_of(1, (int64_t)1);
        o.targets = &labels;
        rc = plan_new(g, &o, &p, &err);
        if (cases[i].refused == NULL && rc < 0)
            fail_msg("case %zu: %s", i, err.text);
        if (cases[i].refused != NULL) {
            assert_int_equal(rc, ERR_INPUT);
            if (strstr(err.text, cases[i].refused) == NULL)
                fail_msg("case %zu: %s", i, err.text);
        }
        plan_free(p);
        graph_free(g);
    }
}

static void shape_error_names_node_op_and_shapes(void **state)
{
    struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)5) };
    struct plan_opts o = { .purpose = PLAN_TRAIN,
                           .batch = 4,
                           .feeds = &feed,
                           .n_feeds = 1,
                           NET_LOSS };
    struct model *m = model_new(17);
    struct err err = { 0 };
    struct graph *g;
    struct plan *p;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)-1));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 1);
    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    g = net_import_model(m, NULL);
    assert_int_equal(plan_new(g, &o, &p, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "MatMul 'logits'"));
    assert_non_null(strstr(err.text, "[4, 5]"));
    assert_non_null(strstr(err.text, "[4, 3]"));
    graph_free(g);
    model_free(m);
}

/* ---- the axis of the classes ---- */

enum { T = 3, V = 3 }; /* as many positions as classes */

/* Declares dimensions of the output; -1: the dynamic dimension "length"; -2: one that no input
 * has. */
static void declare_output(struct model *m, int64_t second, int64_t last)
{
    static Onnx__TensorShapeProto__Dimension dims[3];
    static Onnx__TensorShapeProto__Dimension *list[3];
    Onnx__TensorShapeProto *shape = model_proto(m)->graph->output[0]->type->tensor_type->shape;
    const int64_t sizes[3] = { -2, second, last };
    size_t i;

    for (i = 0; i < 3; i++) {
        onnx__tensor_shape_proto__dimension__init(&dims[i]);
        dims[i].value_case = sizes[i] >= 0 ? ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE
                                           : ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
        if (sizes[i] >= 0)
            dims[i].dim_value = sizes[i];
        else
            dims[i].dim_param = (char *)(uintptr_t)(sizes[i] == -1 ? "length" : "other");
        list[i] = &dims[i];
    }
    shape->dim = list;
    shape->n_dim = 3;
}

/* x [batch, T, width] -> logits [batch, T, V]: a score for each class at each position. */
static int plan_of_positions(int64_t width, int64_t second, int64_t last, int64_t axis,
                             struct err *err)
{
    struct plan_feed feed = {
        .name = "x", .dtype = TENSOR_F32, .shape = shape_of(2, (int64_t)T, width)
    };
    struct plan_feed labels = net_labels;
    struct plan_opts o = { .purpose = PLAN_TRAIN, .batch = 2, .feeds = &feed, .n_feeds = 1, NET_LOSS };
    struct plan_measure loss = net_loss;
    struct op_attr stated = { .name = "class_axis", .type = OP_ATTR_INT };
    struct model *m = model_new(17);
    struct graph *g;
    struct plan *p = NULL;
    int rc;

    labels.shape = shape_of(1, (int64_t)T);
    o.targets = &labels;
    o.losses = &loss;
    if (axis != 0) {
        stated.i = axis;
        loss.attrs = &stated;
        loss.n_attrs = 1;
    }
    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)-1, width));
    model_proto(m)->graph->input[0]->type->tensor_type->shape->dim[1]->dim_param =
        (char *)(uintptr_t) "length";
    model_weights(m, "w", shape_of(2, width, (int64_t)V), 1);
    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    if (second != 0)
        declare_output(m, second, last);
    g = net_import_model(m, NULL);
    rc = plan_new(g, &o, &p, err);
    plan_free(p);
    graph_free(g);
    model_free(m);
    return rc;
}

static void logits_with_as_many_classes_as_positions_need_proof_of_the_class_axis(void **state)
{
    static const struct {
        int64_t second, last, axis; /* dimensions of the output, 0: not declared; stated, 0: not */
        bool ok;
    } cases[] = {
        { 0, 0, 0, false }, { T, V, 0, false },  { -2, V, 0, false }, { T, -2, 0, false },
        { -1, V, 0, true }, { T, -1, 0, true },  { -1, -1, 0, false }, { T, V, -1, true },
        { T, V, 1, true },  { -1, V, -1, true },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = { 0 };
        int rc = plan_of_positions(4, cases[i].second, cases[i].last, cases[i].axis, &err);

        if ((rc == 0) != cases[i].ok ||
            (rc < 0 && strstr(err.text, "state which one it is: \"class_axis\"") == NULL))
            fail_msg("case %zu: %d %s", i, rc, err.text);
        /* the other dimension has the size of an input's: the network may point at its positions */
        rc = plan_of_positions(V, cases[i].second, cases[i].last, cases[i].axis, &err);
        if ((rc == 0) != (cases[i].axis != 0))
            fail_msg("case %zu with an input of that size: %d %s", i, rc, err.text);
    }
}

static void label_out_of_range_is_an_error_of_the_step(void **state)
{
    struct net n = net_open("mlp.onnx", PLAN_TRAIN, 2);
    struct err err = { 0 };

    (void)state;
    net_fill(&n, 0);
    ((int64_t *)plan_input(n.plan, 1)->data)[1] = 3;
    assert_int_equal(plan_forward(n.plan, &n.run, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "label 3"));
    net_close(&n);
}

static void output_with_undeclared_type_is_refused(void **state)
{
    struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)5) };
    const struct plan_opts o = {
        .purpose = PLAN_TRAIN, .batch = 4, .feeds = &feed, .n_feeds = 1, NET_LOSS
    };
    struct model *m = model_new(17);
    struct graph *g;
    struct plan *p = NULL;
    struct err err = { 0 };

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)5));
    model_weights(m, "w", shape_of(2, (int64_t)5, (int64_t)3), 1);
    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    model_proto(m)->graph->output[0]->type->tensor_type->elem_type = TENSOR_I64;
    g = net_import_model(m, NULL);
    model_free(m);
    assert_int_equal(plan_new(g, &o, &p, &err), ERR_INPUT);
    if (strstr(err.text,
               "graph output 'logits' is declared as int64, but its node computes float32") == NULL)
        fail_msg("%s", err.text);
    graph_free(g);
}

/* The size of the second shape overflows. */
static void feed_of_excessive_size_is_refused(void **state)
{
    static const int64_t sizes[] = { (int64_t)1 << 40, INT64_MAX };
    size_t i;

    (void)state;
    for (i = 0; i < 2; i++) {
        struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(2, sizes[0], sizes[i]) };
        const struct plan_opts o = { .purpose = PLAN_RUN, .feeds = &feed, .n_feeds = 1, .sum_outputs = true };
        struct model *m = model_new(17);
        struct graph *g;
        struct plan *p = NULL;
        struct err err = { 0 };

        model_input(m, "x", TENSOR_F32, shape_of(2, sizes[0], sizes[i]));
        model_output(m, "x");
        model_node(m, "Relu", "x", "y");
        g = net_import_model(m, NULL);
        model_free(m);
        assert_int_equal(plan_new(g, &o, &p, &err), ERR_INPUT);
        if (strstr(err.text, "input 'x' of shape [1099511627776, ") == NULL)
            fail_msg("%s", err.text);
        graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feed_of_excessive_size_is_refused),
        cmocka_unit_test(output_with_undeclared_type_is_refused),
        cmocka_unit_test(mismatched_feeds_and_names_are_refused_with_both_sides),
        cmocka_unit_test(fixed_batch_is_replaced_if_certain_and_refused_otherwise),
        cmocka_unit_test(shape_error_names_node_op_and_shapes),
        cmocka_unit_test(logits_with_as_many_classes_as_positions_need_proof_of_the_class_axis),
        cmocka_unit_test(label_out_of_range_is_an_error_of_the_step),
    };

    return cmocka_run_group_tests_name("graph/plan_refuse", tests, NULL, NULL);
}
