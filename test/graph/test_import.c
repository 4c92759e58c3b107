/* Import: accepted and refused models, and the texts of the errors. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "graph/kit.h"
#include "harness/model.h"
#include "base/buf.h"
#include "harness/net.h"

/* ---- the model as a whole ---- */

static void missing_ops_are_listed_in_one_message(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "MatMul", "x w", "a");
    model_node(m, "FancyOp", "a", "b");
    model_node(m, "FancyOp", "b", "c");
    model_node(m, "SequenceMap", "c", "d");
    model_proto(m)->graph->node[3]->name = (char *)"seq1";
    model_node(m, "Reorder", "d", "e");
    model_proto(m)->graph->node[4]->domain = (char *)"trainerd";
    model_output(m, "e");
    refused(m, ERR_UNSUPPORTED, "opset 17", "FancyOp (2 nodes, first 'b')",
            "SequenceMap (1 node, first 'seq1'): use tensors in place of sequences",
            "trainerd.Reorder (1 node, first 'e'): an op of another domain", "inspect --ops", NULL);
}

static void missing_op_is_refused_with_remedy(void **state)
{
    static const struct {
        const char *op, *domain, *said;
    } cases[] = {
        { "LayerNormalisation", NULL, "the nearest that is supported is LayerNormalization" },
        { "QLinearSoftmax", NULL, "export the float model" },
        { "FusedConv", "com.microsoft", "before an optimizer for inference has rewritten the graph" },
        { "GroupNormalization", NULL, "supported in opset 18" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = begin(13);

        model_node(m, cases[i].op, "x", "y");
        if (cases[i].domain != NULL)
            model_proto(m)->graph->node[0]->domain = (char *)(uintptr_t)cases[i].domain;
        model_output(m, "y");
        refused(m, ERR_UNSUPPORTED, "not supported at opset 13: ", cases[i].said, NULL);
    }
}

static void control_op_of_older_opset_is_refused_with_its_opsets(void **state)
{
    struct model *m = begin(8);

    (void)state;
    model_node(m, "Scan", "x", "y");
    model_output(m, "y");
    refused(m, ERR_UNSUPPORTED, "Scan (1 node, first 'y'): supported in opset 9 and later;", NULL);
}

static void supported_ops_are_listed_once_with_their_opsets(void **state)
{
    struct buf out = { 0 };

    (void)state;
    graph_list_supported(&out);
    assert_false(out.failed);
    assert_non_null(strstr(out.data, "\nLoop "));
    assert_non_null(strstr(out.data, "\nConstant "));
    assert_non_null(strstr(out.data, "\nConv "));
    assert_null(strstr(strstr(out.data, "\nSoftmax ") + 1, "\nSoftmax "));
    assert_null(strstr(out.data, "Reorder"));
    buf_fini(&out);
}

static void two_opsets_of_onnx_are_refused(void **state)
{
    Onnx__OperatorSetIdProto other = ONNX__OPERATOR_SET_ID_PROTO__INIT;
    struct model *m = linear(17);
    Onnx__ModelProto *p = model_proto(m);
    Onnx__OperatorSetIdProto *both[] = { p->opset_import[0], &other };
    Onnx__OperatorSetIdProto **one = p->opset_import;
    size_t n;
    const uint8_t *bytes;
    struct err err = { 0 };

    (void)state;
    other.domain = (char *)"ai.onnx";
    other.has_version = 1;
    other.version = 13;
    p->opset_import = both;
    p->n_opset_import = 2;
    bytes = model_bytes(m, &n);
    assert_int_equal(import_bytes(bytes, n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "opset 17 of ai.onnx and also 13"));
    p->opset_import = one;
    p->n_opset_import = 1;
    model_free(m);
}

/* ---- files of Paddle ---- */

static void opset_in_both_spellings_of_the_domain_is_accepted(void **state)
{
    Onnx__OperatorSetIdProto other = ONNX__OPERATOR_SET_ID_PROTO__INIT;
    struct model *m = linear(17);
    Onnx__ModelProto *p = model_proto(m);
    Onnx__OperatorSetIdProto *both[] = { p->opset_import[0], &other };
    Onnx__OperatorSetIdProto **one = p->opset_import;
    struct err err = { 0 };
    const uint8_t *bytes;
    size_t n;

    (void)state;
    other.domain = (char *)"ai.onnx";
    other.has_version = 1;
    other.version = 17;
    p->opset_import = both;
    p->n_opset_import = 2;
    bytes = model_bytes(m, &n);
    if (import_bytes(bytes, n, &err) < 0)
        fail_msg("%s", err.text);
    p->opset_import = one;
    p->n_opset_import = 1;
    model_free(m);
}

static void dimension_of_minus_one_is_dynamic(void **state)
{
    struct model *m = linear(17);
    Onnx__TensorShapeProto__Dimension *d =
        model_proto(m)->graph->input[0]->type->tensor_type->shape->dim[0];
    const struct graph_opts opts = { .path = "test.onnx" };
    struct err err = { 0 };
    struct graph *g;
    const uint8_t *bytes;
    uint32_t n_io;
    size_t n;

    (void)state;
    d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    d->dim_value = -1;
    bytes = model_bytes(m, &n);
    if (graph_import_bytes(&opts, bytes, n, &g, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(graph_inputs(g, &n_io)[0].shape.dim[0], -1);
    graph_free(g);
    d->dim_value = -2;
    refused(m, ERR_INPUT, "graph input 'x': dimension 0 is -2", NULL);
}

/* x [batch, 4] -> MatMul with the Constant 'linear_0.w_0' -> Mul with the Constant 'scale'. */
static struct model *with_constants(Onnx__TensorProto *tensors, Onnx__AttributeProto *attributes,
                                    Onnx__AttributeProto **lists, const char *producer)
{
    static float weight[12] = { 1, 2, 3, 4 }, scale[1] = { 2 };
    static int64_t dims[2] = { 4, 3 };
    struct model *m = model_new(17);
    size_t i;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_node(m, "Constant", "", "linear_0.w_0");
    model_node(m, "Constant", "", "scale");
    for (i = 0; i < 2; i++) {
        Onnx__NodeProto *node = model_proto(m)->graph->node[i];

        onnx__tensor_proto__init(&tensors[i]);
        tensors[i].has_data_type = tensors[i].has_raw_data = 1;
        tensors[i].data_type = TENSOR_F32;
        tensors[i].raw_data.data = (uint8_t *)(i == 0 ? weight : scale);
        tensors[i].raw_data.len = i == 0 ? sizeof(weight) : sizeof(scale);
        tensors[i].dims = dims;
        tensors[i].n_dims = i == 0 ? 2 : 0;
        onnx__attribute_proto__init(&attributes[i]);
        attributes[i].name = (char *)"value";
        attributes[i].has_type = 1;
        attributes[i].type = 4; /* TENSOR */
        attributes[i].t = &tensors[i];
        lists[i] = &attributes[i];
        node->attribute = &lists[i];
        node->n_attribute = 1;
    }
    model_node(m, "MatMul", "x linear_0.w_0", "y");
    model_node(m, "Mul", "y scale", "logits");
    model_output(m, "logits");
    model_proto(m)->producer_name = (char *)(uintptr_t)producer;
    return m;
}

static void weights_that_are_constant_nodes_train(void **state)
{
    static const char *const producers[] = { "PaddlePaddle", "pytorch" };
    const struct graph_opts opts = { .path = "test.onnx" };
    size_t i, k, n;

    (void)state;
    for (i = 0; i < 2; i++) {
        Onnx__TensorProto tensors[2];
        Onnx__AttributeProto attributes[2], *lists[2];
        struct model *m = with_constants(tensors, attributes, lists, producers[i]);
        const uint8_t *bytes = model_bytes(m, &n);
        const struct graph_param *p;
        struct err err = { 0 };
        struct graph *g;
        uint32_t n_params;

        if (graph_import_bytes(&opts, bytes, n, &g, &err) < 0)
            fail_msg("%s", err.text);
        p = graph_params(g, &n_params);
        assert_int_equal(n_params, i == 0 ? 1 : 0);
        if (i == 0) {
            assert_string_equal(p[0].name, "linear_0.w_0");
            assert_true(p[0].initial[1] == 2);
        }
        graph_free(g);
        for (k = 0; k < 2; k++) {
            model_proto(m)->graph->node[k]->attribute = NULL;
            model_proto(m)->graph->node[k]->n_attribute = 0;
        }
        model_proto(m)->producer_name = NULL;
        model_free(m);
    }
}

static void two_opsets_of_another_domain_are_refused(void **state)
{
    Onnx__OperatorSetIdProto other[2] = { ONNX__OPERATOR_SET_ID_PROTO__INIT, ONNX__OPERATOR_SET_ID_PROTO__INIT };
    struct model *m = linear(17);
    Onnx__ModelProto *p = model_proto(m);
    Onnx__OperatorSetIdProto *all[] = { p->opset_import[0], &other[0], &other[1] };
    Onnx__OperatorSetIdProto **one = p->opset_import;
    struct err err;
    size_t n;
    const uint8_t *bytes;

    (void)state;
    other[0].domain = other[1].domain = (char *)"com.example";
    other[0].has_version = other[1].has_version = 1;
    other[0].version = 1;
    other[1].version = 2;
    p->opset_import = all;
    p->n_opset_import = 3;
    bytes = model_bytes(m, &n);
    assert_int_equal(import_bytes(bytes, n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "opset 1 of com.example and also 2"));
    p->opset_import = one;
    p->n_opset_import = 1;
    model_free(m);
}

/* Packs a function com.example.Twice; `overload` NULL: none; its attributes are called "slope". The
 * caller frees *out.data. */
static void pack_function(const char *overload, size_t n_opsets, size_t n_attributes,
                          size_t n_inputs, bool refers, ProtobufCBinaryData *out)
{
    char *slopes[] = { (char *)"slope", (char *)"slope" };
    Onnx__AttributeProto alpha = ONNX__ATTRIBUTE_PROTO__INIT, *alphas[] = { &alpha };
    Onnx__FunctionProto f = ONNX__FUNCTION_PROTO__INIT;
    Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = { &opset, &opset };
    Onnx__NodeProto node = ONNX__NODE_PROTO__INIT, *nodes[] = { &node };
    char *x[] = { (char *)"x", (char *)"x" }, *y[] = { (char *)"y" };

    opset.has_version = 1;
    opset.version = 17;
    node.op_type =
        (char *)(uintptr_t)(refers ? "LeakyRelu" : "Add"); /* with the function's slope as alpha */
    alpha.name = (char *)"alpha";
    alpha.ref_attr_name = (char *)"slope";
    alpha.has_type = 1;
    alpha.type = 1;
    node.attribute = alphas;
    node.n_attribute = refers;
    node.input = x;
    node.n_input = refers ? 1 : 2;
    node.output = y;
    node.n_output = 1;
    f.name = (char *)"Twice";
    f.domain = (char *)"com.example";
    f.overload = (char *)(uintptr_t)overload;
    f.opset_import = opsets;
    f.n_opset_import = n_opsets;
    f.attribute = slopes;
    f.n_attribute = n_attributes;
    f.node = nodes;
    f.n_node = 1;
    f.input = x;
    f.n_input = n_inputs;
    f.output = y;
    f.n_output = 1;
    out->len = onnx__function_proto__get_packed_size(&f);
    out->data = malloc(out->len);
    assert_non_null(out->data);
    onnx__function_proto__pack(&f, out->data);
}

static void duplicate_function_and_attribute_names_are_refused(void **state)
{
    static const struct {
        const char *overload;                             /* of the second function */
        size_t n_opsets, n_attributes, n_inputs, n_given; /* n_given: attributes "slope" of the call */
        const char *refused; /* NULL: it is accepted */
        bool refers; /* the called function reads an attribute "slope" */
    } cases[] = {
        { "other", 1, 1, 1, 1, NULL, true },
        { "other", 1, 1, 1, 0, "attribute 'alpha' refers to 'slope', which the function does not have", true },
        { "other", 1, 1, 1, 1, NULL, false },
        { NULL, 1, 0, 1, 0, "the model has two functions 'Twice' of domain 'com.example'", false },
        { "other", 2, 0, 1, 0, "function 'Twice' imports opset 17 of ai.onnx and also 17", false },
        { "other", 1, 2, 1, 0, "function 'Twice' has 2 attributes, 'slope' more than once", false },
        { "other", 1, 1, 1, 2, "calls function 'Twice' with 2 attributes, 'slope' more than once", false },
        { "other", 1, 1, 1, 3, "attribute 'slope' refers to a function's attribute outside of a function", false },
        { "other", 1, 1, 2, 1, "function 'Twice': two of its inputs or outputs have the name 'x'", false },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = begin(17);
        ProtobufCBinaryData functions[2];
        Onnx__AttributeProto given = ONNX__ATTRIBUTE_PROTO__INIT, *slope[3];
        struct err err;
        const uint8_t *bytes;
        size_t n;

        given.name = (char *)"slope";
        given.has_type = given.has_f = 1;
        given.type = 1;
        model_node(m, "Twice", "x", "y");
        model_proto(m)->graph->node[0]->domain = (char *)"com.example";
        model_node(m, "MatMul", "y w", "logits");
        model_output(m, "logits");
        if (cases[i].n_given == 3) /* one of them refers to an attribute of a function */
            given.ref_attr_name = (char *)"slope";
        for (n = 0; n < cases[i].n_given; n++)
            slope[n] = &given;
        model_proto(m)->graph->node[0]->attribute = slope;
        model_proto(m)->graph->node[0]->n_attribute = cases[i].n_given;
        pack_function(NULL, 1, cases[i].n_given > 0, 1, cases[i].refers, &functions[0]);
        pack_function(cases[i].overload, cases[i].n_opsets, cases[i].n_attributes,
                      cases[i].n_inputs, false, &functions[1]);
        model_proto(m)->functions = functions;
        model_proto(m)->n_functions = 2;
        bytes = model_bytes(m, &n);
        assert_int_equal(import_bytes(bytes, n, &err), cases[i].refused != NULL ? ERR_INPUT : 0);
        if (cases[i].refused != NULL && strstr(err.text, cases[i].refused) == NULL)
            fail_msg("'%s' is not in: %s", cases[i].refused, err.text);
        model_proto(m)->graph->node[0]->n_attribute = 0;
        model_proto(m)->functions = NULL;
        model_proto(m)->n_functions = 0;
        free(functions[0].data);
        free(functions[1].data);
        model_free(m);
    }
}

static void opsets_from_7_to_28_are_accepted(void **state)
{
    struct err err;
    int64_t opset;

    (void)state;
    for (opset = 7; opset <= 28; opset++) {
        struct model *m = linear(opset);
        size_t n;
        const uint8_t *bytes = model_bytes(m, &n);

        assert_int_equal(import_bytes(bytes, n, &err), 0);
        model_free(m);
    }
    refused(linear(6), ERR_UNSUPPORTED, "opset 6", "7 to 28", "opset_version=20", "tf2onnx",
            "jax2onnx", NULL);
    refused(linear(29), ERR_UNSUPPORTED, "opset 29", "7 to 28", NULL);
}

static void missing_file_and_folder_are_refused(void **state)
{
    struct graph_opts opts = { .path = "test/graph/data/none.onnx" };
    struct graph *g;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(graph_import(&opts, &g, &err), ERR_NOENT);
    opts.path = "test/graph/data";
    assert_int_equal(graph_import(&opts, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "not a regular file"));
    opts.path = "test/graph/data/mlp.onnx";
    opts.max_bytes = 100;
    assert_int_equal(graph_import(&opts, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "the limit is 100"));
}

/* ---- bytes ---- */

static void truncated_or_corrupted_bytes_do_not_crash_the_import(void **state)
{
    struct model *m = linear(17);
    struct err err;
    size_t n, i;
    const uint8_t *bytes = model_bytes(m, &n);
    uint8_t *copy = malloc(n);
    unsigned flip;

    (void)state;
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    for (i = 0; i < n; i++) {
        uint8_t *cut = malloc(i + 1); /* exact size, so that a read after the end is detected */

        memcpy(cut, bytes, i);
        (void)import_bytes(cut, i, &err);
        free(cut);
        for (flip = 1; flip < 256; flip <<= 1) {
            copy[i] = bytes[i] ^ (uint8_t)flip;
            (void)import_bytes(copy, n, &err);
        }
        copy[i] = bytes[i];
    }
    assert_int_equal(import_bytes("", 0, &err), ERR_INPUT);
    assert_int_equal(import_bytes("\x08", 1, &err), ERR_INPUT);
    free(copy);
    model_free(m);
}

static size_t write_varint(uint8_t *at, size_t v)
{
    size_t n = 0;

    for (; v >= 0x80; v >>= 7)
        at[n++] = (uint8_t)(v | 0x80);
    at[n++] = (uint8_t)v;
    return n;
}

/* Four million empty nodes in 8 MB, which need a gigabyte once unpacked. */
static void file_that_unpacks_to_excessive_memory_is_refused(void **state)
{
    const size_t nodes = 4 << 20;
    uint8_t *bytes = malloc(2 * nodes + 16);
    struct err err;
    size_t n = 0, i;

    (void)state;
    assert_non_null(bytes);
    bytes[n++] = 7 << 3 | 2; /* ModelProto.graph */
    n += write_varint(bytes + n, 2 * nodes);
    for (i = 0; i < nodes; i++) {
        bytes[n++] = 1 << 3 | 2; /* GraphProto.node */
        bytes[n++] = 0;
    }
    assert_int_equal(import_bytes(bytes, n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "more structure than the limit"));
    free(bytes);
}

/* A graph nested 100000 times. No step may recurse into it. */
static void deeply_nested_graphs_are_refused_without_recursion(void **state)
{
    enum { DEPTH = 100000, ROOM = DEPTH * 40 };
    uint8_t *bytes = malloc(ROOM), *at = bytes + ROOM; /* built from the inside out */
    struct model *m = begin(17);
    Onnx__AttributeProto a = ONNX__ATTRIBUTE_PROTO__INIT, *attrs[] = { &a };
    size_t i, n = 0;

    (void)state;
    assert_non_null(bytes);
    for (i = 0; i < DEPTH; i++) { /* GraphProto { node { attribute { g { ... */
        static const uint8_t tags[] = { 6 << 3 | 2, 5 << 3 | 2, 1 << 3 | 2 };
        size_t k;

        for (k = 0; k < sizeof(tags); k++) {
            uint8_t head[11];
            size_t h = 1 + write_varint(head + 1, n);

            head[0] = tags[k];
            at -= h;
            memcpy(at, head, h);
            n += h;
        }
    }
    model_node(m, "If", "x", "logits");
    model_output(m, "logits");
    a.name = (char *)"then_branch";
    a.has_g = 1;
    a.g.data = at;
    a.g.len = n;
    model_proto(m)->graph->node[0]->n_attribute = 1;
    model_proto(m)->graph->node[0]->attribute = attrs;
    refused(m, ERR_UNSUPPORTED, "(no op_type)", NULL);
    free(bytes);
}

static void names_that_are_not_text_are_refused(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "MatMul", "x w", "log\xff");
    refused(m, ERR_INPUT, "not UTF-8", NULL);
}

/* ---- the graph ---- */

static void nodes_out_of_order_or_with_unknown_inputs_are_refused(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "Relu", "h", "logits");
    model_node(m, "MatMul", "x w", "h");
    model_output(m, "logits");
    refused(m, ERR_INPUT, "Relu 'logits' reads 'h' before MatMul 'h' computes it", NULL);

    m = begin(17);
    model_node(m, "Relu", "absent", "logits");
    refused(m, ERR_INPUT, "reads 'absent', which the graph does not contain", NULL);

    m = linear(17);
    model_output(m, "other");
    refused(m, ERR_INPUT, "no node computes graph output 'other'", NULL);
}

static void duplicate_names_are_refused(void **state)
{
    struct model *m = linear(17);

    (void)state;
    model_node(m, "Relu", "logits", "w");
    refused(m, ERR_INPUT, "two tensors of the graph have the name 'w'", NULL);
}

static void wrong_inputs_outputs_and_attributes_are_refused(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "MatMul", "x", "logits");
    refused(m, ERR_INPUT, "has 1 inputs, expected 2 to 2", NULL);

    m = linear(17);
    model_node(m, "Relu", "logits", "-");
    refused(m, ERR_INPUT, "has 0 outputs", NULL);

    m = begin(17);
    model_node(m, "Gemm", "x w", "logits");
    model_int(m, "transb", 0);
    refused(m, ERR_UNSUPPORTED, "attribute 'transb' is not supported", "did you mean 'transB'?",
            NULL);

    m = begin(17);
    model_node(m, "Gemm", "x w", "logits");
    model_int(m, "transB", 0);
    model_int(m, "transB", 1);
    refused(m, ERR_INPUT, "attribute 'transB' occurs twice", NULL);
}

static void node_of_another_opset_is_refused_with_both_opsets(void **state)
{
    static const struct {
        int64_t opset;
        const char *op, *inputs, *attribute, *said, *remedy;
    } cases[] = {
        { 17, "ReduceMean", "x axes", NULL, "has 2 inputs, expected 1 to 1; the model has opset 17, and the node is of opset 18",
          "export the model with opset 18" },
        { 12, "ReduceSum", "x axes", NULL, "has 2 inputs", "export the model with opset 13" },
        { 17, "ReduceMax", "x", "noop_with_empty_axes", "attribute 'noop_with_empty_axes' is not supported",
          "the node is of opset 18" },
        { 18, "ReduceMean", "x", "axes", "attribute 'axes' is not supported", "export the model with opset 17" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = begin(cases[i].opset);

        model_weights(m, "axes", shape_of(1, (int64_t)1), 1);
        model_node(m, cases[i].op, cases[i].inputs, "logits");
        if (cases[i].attribute != NULL)
            model_int(m, cases[i].attribute, 1);
        model_output(m, "logits");
        refused(m, cases[i].attribute != NULL ? ERR_UNSUPPORTED : ERR_INPUT, cases[i].said,
                cases[i].remedy, NULL);
    }
}

static void required_input_without_a_name_is_refused(void **state)
{
    static const struct {
        const char *op, *inputs, *said;
    } cases[] = {
        { "Add", "- x", "Add 'logits': input 0 has an empty name" },
        { "Add", "x -", "Add 'logits': input 1 has an empty name" },
        { "Where", "x - w", "Where 'logits': input 1 has an empty name" },
        { "Concat", "x - x", "Concat 'logits': input 1 has an empty name" },
        { "Sum", "x -", "Sum 'logits': input 1 has an empty name" },
        { "Clip", "- x", "Clip 'logits': input 0 has an empty name" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = begin(17);

        model_node(m, cases[i].op, cases[i].inputs, "logits");
        model_output(m, "logits");
        refused(m, ERR_INPUT, cases[i].said, "expected the name of a tensor", NULL);
    }
}

static void excess_inputs_and_outputs_without_names_are_refused(void **state)
{
    struct model *m = begin(17);

    (void)state;
    model_node(m, "MatMul", "x w -", "logits");
    model_output(m, "logits");
    refused(m, ERR_INPUT, "MatMul 'logits' has 3 inputs, expected 2 to 2", NULL);

    m = begin(17);
    model_node(m, "MatMul", "x w", "logits -");
    model_output(m, "logits");
    refused(m, ERR_INPUT, "MatMul 'logits' has 2 outputs, expected 1 to 1", NULL);
}

static void attribute_with_a_value_of_another_type_is_refused(void **state)
{
    const int64_t one = 1;
    struct model *m = begin(17);

    (void)state;
    model_node(m, "Gemm", "x w", "logits");
    model_int(m, "transB", 0);
    model_proto(m)->graph->node[0]->attribute[0]->has_f = 1;
    model_output(m, "logits");
    refused(m, ERR_INPUT,
            "attribute 'transB' has type 2, but a value in the field 'f', which is of type 1",
            NULL);

    m = begin(17);
    model_node(m, "Constant", "", "c");
    model_float(m, "value_float", 2);
    model_proto(m)->graph->node[0]->attribute[0]->ints = (int64_t *)(uintptr_t)&one;
    model_proto(m)->graph->node[0]->attribute[0]->n_ints = 1;
    model_node(m, "Mul", "x c", "logits");
    model_output(m, "logits");
    refused(m, ERR_INPUT, "attribute 'value_float' has type 1, but a value in the field 'ints'",
            NULL);
}

static void model_without_ir_version_is_refused(void **state)
{
    struct model *m = linear(17);

    (void)state;
    model_proto(m)->has_ir_version = 0;
    refused(m, ERR_INPUT, "the model has ir_version 0; expected 3 or later", NULL);
    m = linear(17);
    model_proto(m)->ir_version = 2;
    refused(m, ERR_INPUT, "the model has ir_version 2; expected 3 or later", NULL);
}

/* If with branches that compute `name` from x. */
static void shadowed_names_and_sparse_initializers_in_body_are_refused(void **state)
{
    static const struct {
        const char *name;
        int code;
        const char *said;
    } cases[] = {
        { "branch", 0, "" },
        { "h", ERR_INPUT, "computes 'h', and so does an enclosing graph" },
        { "branch", ERR_UNSUPPORTED, "a graph has 1 sparse initializers" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Onnx__GraphProto body = ONNX__GRAPH_PROTO__INIT;
        Onnx__NodeProto node = ONNX__NODE_PROTO__INIT, *nodes[] = { &node };
        Onnx__ValueInfoProto info = ONNX__VALUE_INFO_PROTO__INIT, *infos[] = { &info };
        Onnx__AttributeProto attr[2] = { ONNX__ATTRIBUTE_PROTO__INIT, ONNX__ATTRIBUTE_PROTO__INIT };
        Onnx__AttributeProto *attrs[] = { &attr[0], &attr[1] };
        char *x[] = { (char *)"x" }, *made[] = { (char *)(uintptr_t)cases[i].name };
        struct model *m = begin(17);
        ProtobufCBinaryData sparse = { 0, NULL };
        uint8_t bytes[128];
        struct err err;
        size_t n, k;
        const uint8_t *all;

        node.op_type = (char *)"Relu";
        node.input = x;
        node.output = made;
        node.n_input = node.n_output = 1;
        info.name = made[0];
        body.sparse_initializer = &sparse;
        body.n_sparse_initializer = i == 2;
        body.node = nodes;
        body.output = infos;
        body.n_node = body.n_output = 1;
        n = onnx__graph_proto__pack(&body, bytes);
        assert_true(n <= sizeof(bytes));
        for (k = 0; k < 2; k++) {
            attr[k].name = (char *)(uintptr_t)(k == 0 ? "then_branch" : "else_branch");
            attr[k].has_type = attr[k].has_g = 1;
            attr[k].type = 5;
            attr[k].g.data = bytes;
            attr[k].g.len = n;
        }
        model_node(m, "MatMul", "x w", "h");
        model_node(m, "If", "h", "logits");
        model_proto(m)->graph->node[1]->attribute = attrs;
        model_proto(m)->graph->node[1]->n_attribute = 2;
        model_output(m, "logits");
        all = model_bytes(m, &n);
        assert_int_equal(import_bytes(all, n, &err), cases[i].code);
        if (strstr(err.text, cases[i].said) == NULL)
            fail_msg("%s", err.text);
        model_proto(m)->graph->node[1]->n_attribute = 0;
        model_free(m);
    }
}

static void absent_optional_input_is_accepted(void **state)
{
    static const struct {
        const char *op, *inputs;
    } cases[] = {
        { "Clip", "x - high" }, { "Clip", "x - -" }, { "Gemm", "x w -" }, { "Resize", "x - scales" },
        { "Slice", "x from to - steps" },
    };
    const float high = 1, scales[] = { 1, 2 };
    const int64_t from = 0, to = 2, steps = 1;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = begin(17);
        struct err err;
        size_t n;
        const uint8_t *bytes;

        model_floats(m, "high", (struct shape){ 0 }, &high);
        model_floats(m, "scales", shape_of(1, (int64_t)2), scales);
        model_int64s(m, "from", &from, 1);
        model_int64s(m, "to", &to, 1);
        model_int64s(m, "steps", &steps, 1);
        model_node(m, cases[i].op, cases[i].inputs, "logits");
        model_output(m, "logits");
        bytes = model_bytes(m, &n);
        if (import_bytes(bytes, n, &err) != 0)
            fail_msg("%s %s: %s", cases[i].op, cases[i].inputs, err.text);
        model_free(m);
    }
}

static void initializer_with_wrong_size_or_type_is_refused(void **state)
{
    struct model *m = linear(17);

    (void)state;
    weight_of(m)->raw_data.len -= 4;
    refused(m, ERR_INPUT, "initializer 'w' is float32 [4, 3] but holds 44 bytes", NULL);

    m = linear(17);
    weight_of(m)->dims[0] = -4;
    refused(m, ERR_INPUT, "dimension 0 is -4", NULL);

    m = linear(17);
    weight_of(m)->dims[0] = INT64_MAX / 2;
    refused(m, ERR_INPUT, "initializer 'w'", NULL);

    m = linear(17);
    weight_of(m)->data_type = 8; /* string */
    refused(m, ERR_UNSUPPORTED, "ONNX data type 8", NULL);

    m = linear(17);
    weight_of(m)->data_type = TENSOR_F64;
    weight_of(m)->dims[0] = 2;
    refused(m, ERR_UNSUPPORTED, "weight 'w' is float64", "model.float()", NULL);
}

static void typed_lists_are_accepted_like_raw_bytes(void **state)
{
    struct graph *raw, *list;
    struct model *m = linear(17);
    Onnx__TensorProto *w = weight_of(m);
    const struct graph_param *a, *b;
    float *values = (float *)(void *)w->raw_data.data;
    uint32_t n;

    (void)state;
    raw = net_import_model(m, NULL);
    w->has_raw_data = 0;
    w->float_data = values;
    w->n_float_data = 12;
    list = net_import_model(m, NULL);
    a = graph_params(raw, &n);
    b = graph_params(list, &n);
    assert_int_equal(n, 1);
    assert_memory_equal(a->initial, b->initial, 48);
    assert_string_equal(graph_digest(raw), graph_digest(list));
    graph_free(raw);
    graph_free(list);
    w->n_float_data = 11;
    refused(m, ERR_INPUT, "is float32 [4, 3] but holds 11 floats", NULL);
}

static void tensor_with_two_storage_fields_is_refused(void **state)
{
    float values[12] = { 0 };
    struct model *m = linear(17);

    (void)state;
    weight_of(m)->float_data = values;
    weight_of(m)->n_float_data = 12;
    refused(m, ERR_INPUT, "initializer 'w' has raw_data and float_data; expected one of them",
            NULL);

    m = linear(17);
    weight_of(m)->has_data_location = 1;
    weight_of(m)->data_location = 1;
    refused(m, ERR_INPUT, "initializer 'w' has external data and raw_data", NULL);
}

/* ---- external data ---- */

struct folder {
    char path[64];
};

static struct folder folder_new(void)
{
    struct folder f = { "/tmp/test_import-XXXXXX" };
    char data[128];

    assert_non_null(mkdtemp(f.path));
    snprintf(data, sizeof(data), "%s/model", f.path);
    assert_int_equal(mkdir(data, 0700), 0);
    return f;
}

static void write_file(const struct folder *f, const char *name, size_t bytes)
{
    static const char zeros[4096];
    char path[128];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, zeros, bytes), bytes);
    close(fd);
}

static int import_keys(const struct folder *f, const char *const *keys, const char *location,
                       const char *offset, const char *length, struct err *err)
{
    Onnx__StringStringEntryProto entry[3], *entries[3] = { &entry[0], &entry[1], &entry[2] };
    const char *values[] = { location, offset, length };
    struct graph_opts opts = { 0 };
    struct model *m = linear(17);
    struct graph *g = NULL;
    const uint8_t *bytes;
    char path[128];
    size_t n, i;
    int rc;

    for (i = 0; i < 3; i++) {
        onnx__string_string_entry_proto__init(&entry[i]);
        entry[i].key = (char *)(uintptr_t)keys[i];
        entry[i].value = (char *)(uintptr_t)values[i];
    }
    weight_of(m)->has_raw_data = 0;
    weight_of(m)->has_data_location = 1;
    weight_of(m)->data_location = 1;
    weight_of(m)->n_external_data = length != NULL ? 3 : 2;
    weight_of(m)->external_data = entries;
    bytes = model_bytes(m, &n);
    snprintf(path, sizeof(path), "%s/model/m.onnx", f->path);
    opts.path = path;
    *err = (struct err){ 0 };
    rc = graph_import_bytes(&opts, bytes, n, &g, err);
    graph_free(g);
    model_free(m);
    return rc;
}

static int import_external(const struct folder *f, const char *location, const char *offset,
                           const char *length, struct err *err)
{
    static const char *const keys[] = { "location", "offset", "length" };

    return import_keys(f, keys, location, offset, length, err);
}

static void external_data_outside_the_model_folder_is_refused(void **state)
{
    struct folder f = folder_new();
    static const char *const twice[] = { "location", "offset", "location" };
    char link[128], absolute[128];
    struct err err;

    (void)state;
    write_file(&f, "secret", 100);
    write_file(&f, "model/w.bin", 100);
    snprintf(link, sizeof(link), "%s/model/link", f.path);
    assert_int_equal(symlink("../secret", link), 0);
    snprintf(link, sizeof(link), "%s/model/up", f.path);
    assert_int_equal(symlink("..", link), 0);
    snprintf(link, sizeof(link), "%s/model/fifo", f.path);
    assert_int_equal(mkfifo(link, 0600), 0);
    snprintf(absolute, sizeof(absolute), "%s/secret", f.path);

    assert_int_equal(import_external(&f, "w.bin", "52", "48", &err), 0);
    assert_int_equal(import_external(&f, "./w.bin", "0", NULL, &err), 0);
    assert_int_equal(import_keys(&f, twice, "w.bin", "0", "link", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "external data: duplicate key 'location'"));
    assert_int_equal(import_external(&f, absolute, "0", "48", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "expected a path relative to the folder"));
    assert_int_equal(import_external(&f, "../secret", "0", "48", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "leaves the folder"));
    assert_int_equal(import_external(&f, "up/secret", "0", "48", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "symbolic link"));
    assert_int_equal(import_external(&f, "link", "0", "48", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "symbolic link"));
    assert_int_equal(import_external(&f, "fifo", "0", "48", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(import_external(&f, "none", "0", "48", &err), ERR_NOENT);
    assert_int_equal(import_external(&f, "w.bin", "53", "48", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "has 100 bytes; expected 48 bytes at offset 53"));
    assert_int_equal(import_external(&f, "w.bin", "9223372036854775807", "48", &err), ERR_INPUT);
    assert_int_equal(import_external(&f, "w.bin", "0", "40", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "initializer 'w' is float32 [4, 3] but holds 40 bytes"));
    assert_int_equal(import_external(&f, "w.bin", "-1", "48", &err), ERR_INPUT);
    assert_int_equal(fs_remove_tree(f.path, &err), 0);
}

/* ---- out of memory ---- */

/* Fails the 1st, 2nd, ... allocation until none is left; the sanitizer detects leaks. */
static void import_and_plan_out_of_memory_return_an_error(void **state)
{
    const struct graph_opts opts = { .path = "test/graph/data/residual.onnx" };
    struct plan_feed feed = { .name = "x",
                              .dtype = TENSOR_F32,
                              .shape = shape_of(3, (int64_t)3, (int64_t)6, (int64_t)6) };
    const struct plan_opts plan = { .purpose = PLAN_TRAIN,
                                    .batch = 2,
                                    .feeds = &feed,
                                    .n_feeds = 1,
                                    NET_LOSS };
    uint32_t i;

    (void)state;
    for (i = 1; i < 1000; i++) {
        struct graph *g = NULL;
        struct plan *p = NULL;
        struct err err = { 0 };
        char spec[32];
        int rc;

        snprintf(spec, sizeof(spec), "mem@%u", i);
        assert_int_equal(fault_arm(spec, &err), 0);
        rc = graph_import(&opts, &g, &err);
        if (rc == 0)
            rc = plan_new(g, &plan, &p, &err);
        assert_int_equal(rc, fault_fired() ? ERR_NOMEM : 0);
        plan_free(p);
        graph_free(g);
        if (!fault_fired())
            break;
    }
    assert_in_range(i, 20, 999);
    assert_int_equal(fault_arm(NULL, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_ops_are_listed_in_one_message),
        cmocka_unit_test(missing_op_is_refused_with_remedy),
        cmocka_unit_test(control_op_of_older_opset_is_refused_with_its_opsets),
        cmocka_unit_test(supported_ops_are_listed_once_with_their_opsets),
        cmocka_unit_test(opsets_from_7_to_28_are_accepted),
        cmocka_unit_test(two_opsets_of_onnx_are_refused),
        cmocka_unit_test(opset_in_both_spellings_of_the_domain_is_accepted),
        cmocka_unit_test(dimension_of_minus_one_is_dynamic),
        cmocka_unit_test(weights_that_are_constant_nodes_train),
        cmocka_unit_test(two_opsets_of_another_domain_are_refused),
        cmocka_unit_test(duplicate_function_and_attribute_names_are_refused),
        cmocka_unit_test(missing_file_and_folder_are_refused),
        cmocka_unit_test(truncated_or_corrupted_bytes_do_not_crash_the_import),
        cmocka_unit_test(file_that_unpacks_to_excessive_memory_is_refused),
        cmocka_unit_test(deeply_nested_graphs_are_refused_without_recursion),
        cmocka_unit_test(names_that_are_not_text_are_refused),
        cmocka_unit_test(nodes_out_of_order_or_with_unknown_inputs_are_refused),
        cmocka_unit_test(duplicate_names_are_refused),
        cmocka_unit_test(wrong_inputs_outputs_and_attributes_are_refused),
        cmocka_unit_test(node_of_another_opset_is_refused_with_both_opsets),
        cmocka_unit_test(required_input_without_a_name_is_refused),
        cmocka_unit_test(absent_optional_input_is_accepted),
        cmocka_unit_test(excess_inputs_and_outputs_without_names_are_refused),
        cmocka_unit_test(attribute_with_a_value_of_another_type_is_refused),
        cmocka_unit_test(model_without_ir_version_is_refused),
        cmocka_unit_test(shadowed_names_and_sparse_initializers_in_body_are_refused),
        cmocka_unit_test(initializer_with_wrong_size_or_type_is_refused),
        cmocka_unit_test(typed_lists_are_accepted_like_raw_bytes),
        cmocka_unit_test(tensor_with_two_storage_fields_is_refused),
        cmocka_unit_test(external_data_outside_the_model_folder_is_refused),
        cmocka_unit_test(import_and_plan_out_of_memory_return_an_error),
    };

    return cmocka_run_group_tests_name("graph/import", tests, NULL, NULL);
}
