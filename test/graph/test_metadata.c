/* The exporter's metadata are untrusted text: parsing of FX nodes, and signatures, sources and
 * nodes that no exporter writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/fx.h"
#include "graph/graph_priv.h"
#include "graph/kit.h"

static void fx_text_is_split_into_operator_and_arguments(void **state)
{
    static const char text[] =
        "%linear_1 : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, [%a, "
        "(1, 2)], %p_fc_weight), kwargs = {scale: %late})";
    struct fx fx;
    struct fx_span name;
    size_t at = 0;
    uint32_t n = 0;

    (void)state;
    fx_parse(text, &fx);
    assert_true(fx_is(fx.name, "linear_1"));
    assert_true(fx_is(fx.op, "linear"));
    assert_int_equal(fx.n_args, 3);
    assert_true(fx_is(fx.args[0], "%x"));
    assert_true(fx_is(fx.args[1], "[%a, (1, 2)]"));
    assert_true(fx_is(fx.args[2], "%p_fc_weight"));
    while (fx_next_name(fx.all, &at, &name))
        n++;
    assert_int_equal(n, 4);
    assert_true(fx_has_stem(fx.name, "linear"));
    assert_false(fx_has_stem(fx.name, "lin"));
}

static void fx_text_of_another_form_has_no_operator(void **state)
{
    static const char *const texts[] = { "", "%", "%x", "x : target=torch.ops", "%x target=torch.ops.] args = (",
                                         "%x target=operator.getitem](args = (%a))",
                                         "%x : target=torch.ops.aten](args = ((((((((((((((((" };
    struct fx fx;
    size_t i;

    (void)state;
    fx_parse(NULL, &fx);
    assert_int_equal(fx.op.n, 0);
    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        fx_parse(texts[i], &fx);
        assert_int_equal(fx.op.n, 0);
    }
}

/* Sets metadata of the graph and of its one weight; the texts are borrowed. */
static void annotate(struct model *m, Onnx__StringStringEntryProto *entries, const char *signature,
                     const char *key, const char *value)
{
    static Onnx__StringStringEntryProto *of_graph[1], *of_weight[1];
    Onnx__GraphProto *p = model_proto(m)->graph;

    onnx__string_string_entry_proto__init(&entries[0]);
    onnx__string_string_entry_proto__init(&entries[1]);
    entries[0].key = (char *)"pkg.torch.export.ExportedProgram.graph_signature";
    entries[0].value = (char *)(uintptr_t)signature;
    entries[1].key = (char *)(uintptr_t)key;
    entries[1].value = (char *)(uintptr_t)value;
    of_graph[0] = &entries[0];
    of_weight[0] = &entries[1];
    p->metadata_props = of_graph;
    p->n_metadata_props = 1;
    weight_of(m)->metadata_props = of_weight;
    weight_of(m)->n_metadata_props = 1;
}

#define KIND "pkg.torch.export.graph_signature.InputSpec.kind"
#define FOLDED "pkg.onnxscript.optimizer.folded_from"

static int import_annotated(const char *signature, const char *key, const char *value,
                            uint32_t *n_params, struct err *err)
{
    const struct graph_opts opts = { .path = "test.onnx" };
    Onnx__StringStringEntryProto entries[2];
    struct model *m = linear(17);
    struct graph *g = NULL;
    const uint8_t *bytes;
    size_t n;
    int rc;

    annotate(m, entries, signature, key, value);
    bytes = model_bytes(m, &n);
    rc = graph_import_bytes(&opts, bytes, n, &g, err);
    if (rc == 0)
        (void)graph_params(g, n_params);
    graph_free(g);
    model_proto(m)->graph->metadata_props = NULL;
    model_proto(m)->graph->n_metadata_props = 0;
    weight_of(m)->metadata_props = NULL;
    weight_of(m)->n_metadata_props = 0;
    model_free(m);
    return rc;
}

static void signature_determines_trained_parameters(void **state)
{
    static const char parameter[] = "# inputs\np_w: PARAMETER target='w'\n\n# outputs\n";
    static const char buffer[] = "# inputs\nb_w: BUFFER target='w' persistent=True\n";
    static const char other[] = "# inputs\np_v: PARAMETER target='v'\n";
    struct err err = { 0 };
    uint32_t n = 9;

    (void)state;
    assert_int_equal(import_annotated(parameter, KIND, "PARAMETER", &n, &err), 0);
    assert_int_equal(n, 1);
    assert_int_equal(import_annotated(buffer, KIND, "BUFFER", &n, &err), 0);
    assert_int_equal(n, 0);
    assert_int_equal(import_annotated(parameter, "other", "", &n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "changed the values of the parameter 'w'"));
    assert_int_equal(import_annotated(other, FOLDED, "['v']", &n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "computed 'w' from the parameter 'v'"));
    assert_int_equal(import_annotated(other, FOLDED, "['val_1', 'zeros']", &n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "is used as a weight"));
}

static void module_that_changes_its_parameter_is_refused(void **state)
{
    static const char text[] = "# inputs\np_w: PARAMETER target='w'\n\n# outputs\n"
                               "embedding_renorm: PARAMETER_MUTATION target='w'\nlogits: USER_OUTPUT\n";
    struct err err = { 0 };
    uint32_t n;

    (void)state;
    assert_int_equal(import_annotated(text, KIND, "PARAMETER", &n, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "the module changes its parameter 'w' in each call"));
    assert_non_null(strstr(err.text, "max_norm=None"));
}

/* ---- the weights file of the job determines the form of a fold ---- */

static struct graph_weight in_file; /* 'v' */

static bool find_v(const void *arg, const char *name, struct graph_weight *out)
{
    (void)arg;
    *out = in_file;
    return strcmp(name, "v") == 0;
}

/* x [batch, 4] times w [4, columns], which is folded from 'v' by a node without FX text. *shape
 * receives the shape of the parameter 'v'. */
static int import_folded(int64_t columns, struct shape file_shape, const float *file,
                         const float *w, struct shape *shape, struct err *err)
{
    static const char *const names[] = { "v" };
    const struct graph_weights weights = { .path = "v.safetensors", .find = find_v, .names = names, .n_names = 1 };
    const struct graph_opts opts = { .path = "test.onnx", .weights = &weights };
    Onnx__StringStringEntryProto entries[2];
    struct model *m = model_new(17);
    struct graph *g = NULL;
    const uint8_t *bytes;
    uint32_t n_params;
    size_t n;
    int rc;

    in_file = (struct graph_weight){ .tensor = { .dtype = TENSOR_F32, .shape = file_shape,
                                                 .data = (void *)(uintptr_t)file } };
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_floats(m, "w", shape_of(2, (int64_t)4, columns), w);
    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    annotate(m, entries, "# inputs\np_v: PARAMETER target='v'\n", FOLDED, "['v']");
    bytes = model_bytes(m, &n);
    rc = graph_import_bytes(&opts, bytes, n, &g, err);
    if (rc == 0) {
        const struct graph_param *p = graph_params(g, &n_params);

        assert_int_equal(n_params, 1);
        assert_string_equal(p[0].name, "v");
        *shape = p[0].shape;
    }
    graph_free(g);
    model_proto(m)->graph->metadata_props = NULL;
    model_proto(m)->graph->n_metadata_props = 0;
    weight_of(m)->metadata_props = NULL;
    weight_of(m)->n_metadata_props = 0;
    model_free(m);
    return rc;
}

static void weights_file_determines_the_form_of_a_fold(void **state)
{
    float w[16], transposed[16], symmetric[16];
    const struct shape square = shape_of(2, (int64_t)4, (int64_t)4);
    struct shape shape;
    struct err err = { 0 };
    uint32_t i, k;

    (void)state;
    for (i = 0; i < 4; i++)
        for (k = 0; k < 4; k++) {
            w[i * 4 + k] = transposed[k * 4 + i] = (float)(i * 4 + k) / 16;
            symmetric[i * 4 + k] = (float)(i + k);
        }
    assert_int_equal(import_folded(4, square, transposed, w, &shape, &err), 0);
    assert_int_equal(import_folded(4, square, w, w, &shape, &err), 0);
    assert_int_equal(import_folded(4, square, symmetric, symmetric, &shape, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "computed 'w' from the parameter 'v'"));
    assert_int_equal(import_folded(4, square, symmetric, w, &shape, &err), ERR_INPUT);
    assert_non_null(
        strstr(err.text, "'v' in v.safetensors, as it is or transposed, has other values"));
    /* [4, 3]; in the module it is [3, 4] */
    for (i = 0; i < 4; i++)
        for (k = 0; k < 3; k++)
            w[i * 3 + k] = transposed[k * 4 + i] = (float)(i * 3 + k) / 16;
    assert_int_equal(
        import_folded(3, shape_of(2, (int64_t)3, (int64_t)4), transposed, w, &shape, &err), 0);
    assert_true(shape.rank == 2 && shape.dim[0] == 3 && shape.dim[1] == 4);
}

/* Invalid metadata must not crash or take long, and is ignored. */
static void hostile_metadata_does_not_crash_the_import(void **state)
{
    enum { BIG = 1 << 20 };
    static const char *const signatures[] = {
        "", "\n\n\n", ":", "p: PARAMETER ", "p: PARAMETER target=", "p: PARAMETER target='", "p: PARAMETER target=''",
        "p: PARAMETER target='w'\np: PARAMETER target='w'\np: BUFFER target='w'", "# outputs\np: PARAMETER target='w'",
    };
    static const char *const sources[] = { "", "'", "''", "['w', 'w', 'w']", "[[[[", "'''''''''" };
    char *big = malloc(BIG + 1);
    struct err err = { 0 };
    uint32_t n;
    size_t i, k;

    (void)state;
    assert_non_null(big);
    for (i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++)
        for (k = 0; k < sizeof(sources) / sizeof(sources[0]); k++)
            (void)import_annotated(signatures[i], FOLDED, sources[k], &n, &err);
    memset(big, '\'', BIG);
    big[BIG] = '\0';
    (void)import_annotated("p: PARAMETER target='w'", FOLDED, big, &n, &err);
    memset(big, 'x', BIG);
    memcpy(big, "p: PARAMETER target='", 21);
    big[BIG - 1] = '\'';
    assert_int_equal(import_annotated(big, KIND, "PARAMETER", &n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "a name of more than 1023 bytes"));
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fx_text_is_split_into_operator_and_arguments),
        cmocka_unit_test(fx_text_of_another_form_has_no_operator),
        cmocka_unit_test(signature_determines_trained_parameters),
        cmocka_unit_test(module_that_changes_its_parameter_is_refused),
        cmocka_unit_test(weights_file_determines_the_form_of_a_fold),
        cmocka_unit_test(hostile_metadata_does_not_crash_the_import),
    };

    return cmocka_run_group_tests_name("graph/metadata", tests, NULL, NULL);
}
