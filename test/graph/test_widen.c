/* Files of 16-bit floats: trained with parameters in float32, exported in the types of the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/build.h"
#include "graph/kit.h"
#include "graph/plan_priv.h"
#include "harness/net.h"
#include "tensor/half.h"

enum { N_W = 12 };

/* x float32 -> Cast -> MatMul of w -> Add of the constant 0.1 -> logits, all in `type`. */
static struct build *network(enum tensor_dtype type)
{
    struct build *b = build_new("half", 17);
    uint16_t w[N_W], tenth;
    float values[N_W], c = 0.1f;
    int i;

    assert_non_null(b);
    for (i = 0; i < N_W; i++)
        values[i] = (float)(i - 5) / 7.0f;
    tensor_narrow(type, values, N_W, w);
    tensor_narrow(type, &c, 1, &tenth);
    build_input(b, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    build_data(b, "w", type, shape_of(2, (int64_t)4, (int64_t)3), w);
    build_constant(b, "tenth", type, shape_of(0), &tenth);
    build_node(b, "Cast", "x", "narrow");
    build_int(b, "to", type);
    build_node(b, "MatMul", "narrow w", "h");
    build_node(b, "Add", "h tenth", "logits");
    build_output(b, "logits", type, shape_of(2, (int64_t)-1, (int64_t)3));
    return b;
}

static struct graph *import_build(struct build *b, bool all_constant)
{
    const struct graph_opts opts = { .path = "half.onnx", .all_constant = all_constant };
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

static void half_parameters_train_as_float32(enum tensor_dtype type)
{
    struct build *b = network(type);
    struct net n = net_open_graph(import_build(b, false), PLAN_TRAIN, 3);
    const struct graph_param *w = net_param(&n, "w");
    uint32_t n_notes, i;
    const char *const *notes = graph_notes(n.graph, &n_notes);
    bool said = false;

    for (i = 0; i < n_notes; i++)
        said = said || (strstr(notes[i], tensor_dtype_name(type)) != NULL &&
                        strstr(notes[i], "train.precision") != NULL);
    assert_true(said);
    assert_int_equal(plan_tensor(n.plan, "logits")->dtype, TENSOR_F32);
    for (i = 0; i < N_W; i++) { /* exactly the values of the file */
        float value = ((float)i - 5.0f) / 7.0f;
        uint16_t code;

        tensor_narrow(type, &value, 1, &code);
        tensor_widen(type, &code, 1, &value);
        assert_true(w->initial[i] == value);
    }
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    net_check_gradients(&n, 1, 1e-2f, 2e-3f); /* through the Cast and the product */
    net_close(&n);
    build_free(b);
}

static void bfloat16_parameters_train_as_float32(void **state)
{
    (void)state;
    half_parameters_train_as_float32(TENSOR_BF16);
}

static void float16_parameters_train_as_float32(void **state)
{
    (void)state;
    half_parameters_train_as_float32(TENSOR_F16);
}

static void export_writes_the_types_of_the_file(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_BF16, TENSOR_F16 };
    int k;

    (void)state;
    for (k = 0; k < 2; k++) {
        struct build *b = network(types[k]);
        struct graph *g = import_build(b, false), *again;
        char path[] = "/tmp/test_widen-XXXXXX";
        const struct graph_opts opts = { .path = path, .all_constant = true };
        float *arena = calloc(graph_arena_floats(g), sizeof(*arena));
        struct err err = { 0 };
        uint16_t want[N_W];
        const struct graph_value *w = NULL;
        uint32_t i;

        close(mkstemp(path));
        for (i = 0; i < N_W; i++)
            arena[i] = (float)i * 0.3f;
        tensor_narrow(types[k], arena, N_W, want);
        if (graph_export(g, arena, path, &err) < 0 || graph_import(&opts, &again, &err) < 0)
            fail_msg("%s", err.text);
        for (i = 0; i < again->n_values; i++)
            if (strcmp(again->values[i].name, "w") == 0)
                w = &again->values[i];
        assert_non_null(w);
        assert_int_equal(w->tensor.dtype, types[k]);
        assert_memory_equal(w->tensor.data, want, sizeof(want));
        assert_int_equal(again->io.outputs[0].dtype, types[k]);
        unlink(path);
        free(arena);
        graph_free(g);
        graph_free(again);
        build_free(b);
    }
}

static void inputs_of_16_bits_are_fed_in_float32(void **state)
{
    struct build *b = build_new("half", 17);
    struct graph *g;
    uint32_t n;

    (void)state;
    build_input(b, "x", TENSOR_BF16, shape_of(2, (int64_t)-1, (int64_t)4));
    build_node(b, "Relu", "x", "y");
    build_output(b, "y", TENSOR_BF16, shape_of(2, (int64_t)-1, (int64_t)4));
    g = import_build(b, false);
    assert_int_equal(graph_inputs(g, &n)[0].dtype, TENSOR_F32);
    graph_free(g);
    g = import_build(b, true); /* a graph that is only executed keeps its types */
    assert_int_equal(graph_inputs(g, &n)[0].dtype, TENSOR_BF16);
    graph_free(g);
    build_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bfloat16_parameters_train_as_float32),
        cmocka_unit_test(float16_parameters_train_as_float32),
        cmocka_unit_test(export_writes_the_types_of_the_file),
        cmocka_unit_test(inputs_of_16_bits_are_fed_in_float32),
    };

    return cmocka_run_group_tests_name("graph/widen", tests, NULL, NULL);
}
