/* Files of megabytes with many inputs, names or products are imported and planned within seconds:
 * the time of each step grows linearly, not quadratically, with their size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "harness/model.h"

enum { WIDE = 20000, LONG = 19000, TEXT_BYTES = 1 << 20 };

static struct arena mem; /* memory that models refer to; emptied after each test */

static char *to_arena(struct buf *b)
{
    char *text;

    assert_false(b->failed);
    text = arena_strdup(&mem, b->data);
    assert_non_null(text);
    buf_fini(b);
    return text;
}

/* Creates one entry of metadata. */
static Onnx__StringStringEntryProto **entry(const char *key, const char *value)
{
    Onnx__StringStringEntryProto **list = arena_alloc(&mem, sizeof(*list));
    Onnx__StringStringEntryProto *e = arena_alloc(&mem, sizeof(*e));

    assert_non_null(list);
    assert_non_null(e);
    onnx__string_string_entry_proto__init(e);
    e->key = (char *)key;
    e->value = (char *)value;
    *list = e;
    return list;
}

static void annotate_last_node(struct model *m, const char *text)
{
    Onnx__GraphProto *p = model_proto(m)->graph;

    p->node[p->n_node - 1]->metadata_props = entry("pkg.torch.onnx.fx_node", text);
    p->node[p->n_node - 1]->n_metadata_props = 1;
}

/* `sums` sums of an input and WIDE parameters, whose FX nodes have a text of a megabyte. */
static struct model *wide_sums(uint32_t sums)
{
    static const float one = 1;
    struct model *m = model_new(18);
    Onnx__GraphProto *p = model_proto(m)->graph;
    struct buf names = { 0 }, signature = { 0 }, text = { 0 };
    char name[32], line[96], output[16], *all, *fx;
    uint32_t i;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)1));
    for (i = 0; i < WIDE; i++) {
        snprintf(name, sizeof(name), "m.w%u", i);
        model_floats(m, name, shape_of(1, (int64_t)1), &one);
        p->initializer[i]->metadata_props =
            entry("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
        p->initializer[i]->n_metadata_props = 1;
        buf_str(&names, " ");
        buf_str(&names, name);
        snprintf(line, sizeof(line), "p%u: PARAMETER target='m.w%u'\n", i, i);
        buf_str(&signature, line);
    }
    buf_str(&text,
            "%sum : [num_users=1] = call_function[target=torch.ops.aten.cat.default](args = (");
    while (text.len < TEXT_BYTES)
        buf_str(&text, "%a");
    all = to_arena(&names);
    fx = to_arena(&text);
    for (i = 0; i < sums; i++) {
        char *inputs = arena_printf(&mem, "%s%s", i == 0 ? "x" : "y0", all);

        assert_non_null(inputs);
        snprintf(output, sizeof(output), "y%u", i);
        model_node(m, "Sum", inputs, output);
        annotate_last_node(m, fx);
    }
    model_output(m, output);
    p->metadata_props =
        entry("pkg.torch.export.ExportedProgram.graph_signature", to_arena(&signature));
    p->n_metadata_props = 1;
    return m;
}

/* x w0 w1 w2 ... */
static struct model *product_chain(void)
{
    static const float one = 1;
    struct model *m = model_new(18);
    char inputs[64], output[32] = "x";
    uint32_t i;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)1));
    model_floats(m, "scale", shape_of(1, (int64_t)1), &one);
    for (i = 0; i < LONG; i++) {
        snprintf(inputs, sizeof(inputs), "%s scale", output);
        snprintf(output, sizeof(output), "y%u", i);
        model_node(m, "Mul", inputs, output);
    }
    model_output(m, output);
    return m;
}

static void import_and_plan(struct model *m, const char *output)
{
    static const struct plan_feed labels = { .name = "label", .dtype = TENSOR_I64 };
    const char *trainable[] = { "*" };
    const struct plan_measure loss = { .op = "SoftmaxCrossEntropy", .tensor = output };
    const struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)1) };
    const struct plan_opts opts = { .purpose = PLAN_TRAIN,
                                    .batch = 2,
                                    .feeds = &feed,
                                    .n_feeds = 1,
                                    .targets = &labels,
                                    .n_targets = 1,
                                    .losses = &loss,
                                    .n_losses = 1 };
    const struct graph_opts how = { .path = "large.onnx", .trainable = trainable, .n_trainable = 1 };
    struct graph *g = NULL;
    struct plan *p = NULL;
    struct err err = { 0 };
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);

    alarm(120); /* far above the usual time, also with a sanitizer */
    if (graph_import_bytes(&how, bytes, n, &g, &err) < 0)
        fail_msg("%s", err.text);
    if (plan_new(g, &opts, &p, &err) < 0)
        fail_msg("%s", err.text);
    alarm(0);
    plan_free(p);
    graph_free(g);
    model_free(m);
    arena_fini(&mem);
}

static void sum_of_many_parameters_with_long_text_is_imported_in_time(void **state)
{
    (void)state;
    import_and_plan(wide_sums(1), "y0");
}

static void parameters_with_two_unknown_readers_are_imported_in_time(void **state)
{
    (void)state;
    import_and_plan(wide_sums(2), "y1");
}

static void long_chain_of_products_is_planned_in_time(void **state)
{
    (void)state;
    import_and_plan(product_chain(), "y18999");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_of_many_parameters_with_long_text_is_imported_in_time),
        cmocka_unit_test(parameters_with_two_unknown_readers_are_imported_in_time),
        cmocka_unit_test(long_chain_of_products_is_planned_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
