/* test_describe.c - the list of nodes for a drawing of the graph. */
#include "graph/kit.h"

#include <stdio.h>

#include "base/buf.h"

static void add_line(void *arg, const struct graph_described *n)
{
    struct buf *out = arg;

    buf_printf(out, "%s = %s(", n->name, n->op);
    for (uint32_t i = 0; i < n->n_inputs; i++)
        buf_printf(out, "%s%s", i > 0 ? ", " : "", n->inputs[i]);
    buf_str(out, ")");
    for (int i = 0; n->dtype != TENSOR_NONE && n->has_shape && i < (int)n->shape.rank; i++)
        buf_printf(out, "%s%lld", i > 0 ? " x " : " ", (long long)n->shape.dim[i]);
    buf_str(out, "\n");
}

/* Imports and describes the model; frees it. */
static void described(struct model *m, const char *expected)
{
    const struct graph_opts opts = { .path = "test.onnx" };
    struct graph *g = NULL;
    struct buf text = { 0 };
    struct err err;
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);

    if (graph_import_bytes(&opts, bytes, n, &g, &err) < 0 ||
        graph_describe(g, add_line, &text, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(text.data, expected);
    buf_fini(&text);
    graph_free(g);
    model_free(m);
}

static void inputs_parameters_and_nodes_are_listed_with_their_connections(void **state)
{
    (void)state;
    described(linear(17), "w = Parameter() 4 x 3\n"
                          "x = Input() -1 x 4\n"
                          "logits = MatMul(x, w)\n");
}

static void names_become_unique_and_free_of_reserved_characters(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "MatMul", "x w", "a:0");
    model_node(m, "Relu", "a:0", "b");
    model_proto(m)->graph->node[1]->name = (char *)"/block/Relu";
    model_node(m, "Relu", "b", "c");
    model_proto(m)->graph->node[2]->name = (char *)"block/Relu";
    model_node(m, "Relu", "c", "d");
    model_proto(m)->graph->node[3]->name = (char *)"x";
    model_output(m, "d");
    described(m, "w = Parameter() 4 x 3\n"
                 "x = Input() -1 x 4\n"
                 "a_0 = MatMul(x, w)\n"
                 "block/Relu = Relu(a_0)\n"
                 "block/Relu_2 = Relu(block/Relu)\n"
                 "x_2 = Relu(block/Relu_2)\n");
}

static void second_output_is_named_by_its_number(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "MatMul", "x w", "a");
    model_node(m, "Split", "a", "b c d");
    model_int(m, "axis", 1);
    model_proto(m)->graph->node[1]->name = (char *)"split";
    model_node(m, "Add", "d b", "e");
    model_output(m, "e");
    described(m, "w = Parameter() 4 x 3\n"
                 "x = Input() -1 x 4\n"
                 "a = MatMul(x, w)\n"
                 "split = Split(a)\n"
                 "e = Add(split:2, split)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_parameters_and_nodes_are_listed_with_their_connections),
        cmocka_unit_test(names_become_unique_and_free_of_reserved_characters),
        cmocka_unit_test(second_output_is_named_by_its_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
