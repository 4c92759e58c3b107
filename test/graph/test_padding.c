/* The padding row of an embedding: from the exporter's metadata or from the job. */
#include "graph/graph_priv.h"
#include "graph/kit.h"
#include "harness/net.h"
#include "op/shape/rows.h"

#define CALL "%embedding : [num_users=1] = call_function[target=torch.ops.aten.embedding.default](args = "

/* i [n] -> Gather -> MatMul by the transposed table; note: the text of the exporter's FX node, or
 * NULL. */
static struct model *tied(char *note)
{
    static Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    static Onnx__StringStringEntryProto *list[] = { &entry };
    struct model *m = model_new(17);
    Onnx__NodeProto *gather;

    model_input(m, "i", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_weights(m, "emb.weight", shape_of(2, (int64_t)6, (int64_t)4), 1);
    model_node(m, "Gather", "emb.weight i", "rows");
    model_node(m, "Transpose", "emb.weight", "turned");
    model_node(m, "MatMul", "rows turned", "logits");
    model_output(m, "logits");
    gather = model_proto(m)->graph->node[0];
    entry.key = (char *)"pkg.torch.onnx.fx_node";
    entry.value = note;
    if (note != NULL) {
        gather->metadata_props = list;
        gather->n_metadata_props = 1;
    }
    return m;
}

static void release(struct model *m)
{
    Onnx__NodeProto *gather = model_proto(m)->graph->node[0];

    gather->metadata_props = NULL; /* not owned by the model */
    gather->n_metadata_props = 0;
    model_free(m);
}

/* The padding row of the Gather of an import; -1: none. */
static int64_t padding_of(char *note, const struct graph_padding *given)
{
    const struct graph_opts opts = { .path = "t.onnx", .padding = given, .n_padding = given != NULL };
    struct model *m = tied(note);
    struct graph *g = net_import_model(m, &opts);
    int64_t row = -1;
    uint32_t i, n_notes;
    const char *const *notes = graph_notes(g, &n_notes);

    for (i = 0; i < g->nodes[0].n_attrs; i++)
        if (strcmp(g->nodes[0].attrs[i].name, ROWS_PADDING_ATTR) == 0)
            row = g->nodes[0].attrs[i].i;
    if (row >= 0) {
        for (i = 0; i < n_notes && strstr(notes[i], "padding row") == NULL; i++)
            ;
        assert_true(i < n_notes);
    }
    graph_free(g);
    release(m);
    return row;
}

static void third_argument_of_aten_call_is_the_padding_row(void **state)
{
    static const struct graph_padding given = { "emb.*", 5 };

    (void)state;
    assert_int_equal(padding_of(NULL, NULL), -1);
    assert_int_equal(padding_of((char *)CALL "(%p_emb_weight, %x, 3), kwargs = {})", NULL), 3);
    assert_int_equal(
        padding_of((char *)CALL "(%p_emb_weight, %x, 0, False, True), kwargs = {})", NULL), 0);
    assert_int_equal(padding_of((char *)CALL "(%p_emb_weight, %x), kwargs = {})", NULL), -1);
    assert_int_equal(padding_of((char *)CALL "(%p_emb_weight, %x, -1, True), kwargs = {})", NULL),
                     -1);
    assert_int_equal(padding_of((char *)CALL "(%p_emb_weight", NULL), -1);
    assert_int_equal(padding_of((char *)CALL "(%p_emb_weight, %x, 3", NULL), -1);
    assert_int_equal(padding_of((char *)CALL, NULL), -1);
    assert_int_equal(padding_of((char *)"other.default](args = (%w, %x, 3), kwargs = {})", NULL),
                     -1);
    assert_int_equal(padding_of(NULL, &given), 5);
    assert_int_equal(padding_of((char *)CALL "(%p_emb_weight, %x, 3), kwargs = {})", &given), 5);
}

static void padding_row_outside_the_table_is_refused(void **state)
{
    static const struct graph_padding missing = { "emb.weight", 6 }, other = { "emb.wieght", 0 };
    struct graph_opts opts = { .path = "t.onnx", .padding = &missing, .n_padding = 1 };
    struct model *m = tied(NULL);
    struct err err = { 0 };
    struct graph *g;
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);

    (void)state;
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), ERR_INPUT);
    assert_non_null(
        strstr(err.text, "padding_idx of 'emb.weight' is 6; expected a row from 0 to 5"));
    opts.padding = &other;
    assert_int_equal(graph_import_bytes(&opts, bytes, n, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "'emb.wieght' matches no table"));
    assert_non_null(strstr(err.text, "did you mean 'emb.weight'?"));
    release(m);
}

/* The projection of a tied table passes its gradient to the padding row; the embedding does not. */
static void projection_of_tied_table_updates_the_padding_row(void **state)
{
    static const struct graph_padding given = { "emb.weight", 2 };
    const struct graph_opts opts = { .path = "t.onnx", .padding = &given, .n_padding = 1 };
    struct model *m = tied(NULL);
    struct net masked = net_open_graph(net_import_model(m, &opts), PLAN_TRAIN, 4),
               plain = net_open_model(m, PLAN_TRAIN, 4);
    bool differs = false;

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct net *n = k ? &masked : &plain;

        for (int64_t s = 0; s < 4; s++) {
            ((int64_t *)plan_input(n->plan, 0)->data)[s] = s; /* row 2 is read */
            ((int64_t *)plan_input(n->plan, 1)->data)[s] = 5 - s;
            ((float *)plan_input(n->plan, 2)->data)[s] = 1;
        }
        (void)net_forward(n);
        net_backward(n);
    }
    assert_false(net_param(&masked, "emb.weight")->is_table);
    for (size_t i = 0; i < 24; i++) {
        float a = masked.grads[net_param(&masked, "emb.weight")->offset + i],
              b = plain.grads[net_param(&plain, "emb.weight")->offset + i];

        if (i / 4 == 2) {
            assert_true(a != 0);
            differs = differs || a != b;
        } else {
            assert_true(a == b);
        }
    }
    assert_true(differs);
    net_close(&masked);
    net_close(&plain);
    release(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(third_argument_of_aten_call_is_the_padding_row),
        cmocka_unit_test(padding_row_outside_the_table_is_refused),
        cmocka_unit_test(projection_of_tied_table_updates_the_padding_row),
    };

    return cmocka_run_group_tests_name("graph/padding", tests, NULL, NULL);
}
