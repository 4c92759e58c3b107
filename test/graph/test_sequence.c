/* Sequences of tensors: converted to the tensor ops that they express, or refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
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

static void number(struct model *m, const char *name, int64_t value)
{
    struct shape scalar = shape_of(0);
    Onnx__GraphProto *g;

    model_int64s(m, name, &value, 1);
    g = model_proto(m)->graph;
    g->initializer[g->n_initializer - 1]->n_dims = scalar.rank;
}

/* x [b, 4] w [4, 6] -> h [b, 6]; the rest of the network computes logits from h. */
static struct model *begin_wide(void)
{
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)6), 1);
    model_node(m, "MatMul", "x w", "h");
    return m;
}

/* Asserts that both networks have the same loss and gradients, bit by bit, and that no op on
 * sequences is left in m. */
static void computes_the_same(struct model *m, struct model *reference)
{
    struct net a, b;
    float loss_a, loss_b;

    model_output(m, "logits");
    model_output(reference, "logits");
    a = net_open_model(m, PLAN_TRAIN, 3);
    b = net_open_model(reference, PLAN_TRAIN, 3);
    net_fill(&a, 0);
    net_fill(&b, 0);
    loss_a = net_forward(&a);
    loss_b = net_forward(&b);
    assert_float_equal(loss_a, loss_b, 0);
    net_backward(&a);
    net_backward(&b);
    assert_int_equal(a.n_params, b.n_params);
    assert_memory_equal(a.grads, b.grads, a.params_of[0].elements * sizeof(float));
    net_check_gradients(&a, 1, 1e-2f, 2e-3f);
    net_close(&a);
    net_close(&b);
    model_free(m);
    model_free(reference);
}

static struct model *split_reference(void)
{
    static const int64_t halves[] = { 3, 3 };
    struct model *m = begin_wide();

    model_int64s(m, "halves", halves, 2);
    model_node(m, "Split", "h halves", "a b");
    model_int(m, "axis", -1);
    model_node(m, "Sigmoid", "b", "gate");
    model_node(m, "Mul", "a gate", "logits");
    return m;
}

static void gate(struct model *m)
{
    number(m, "first", 0);
    number(m, "last", -1);
    model_node(m, "SequenceAt", "parts first", "a");
    model_node(m, "SequenceAt", "parts last", "b");
    model_node(m, "Sigmoid", "b", "gate");
    model_node(m, "Mul", "a gate", "logits");
}

static void chunk_becomes_a_split(void **state)
{
    struct model *m = begin_wide();

    (void)state;
    number(m, "each", 3);
    model_node(m, "SplitToSequence", "h each", "parts");
    model_int(m, "axis", -1);
    gate(m);
    computes_the_same(m, split_reference());
}

static void split_to_sequence_with_sizes_becomes_a_split(void **state)
{
    static const int64_t halves[] = { 3, 3 };
    struct model *m = begin_wide();

    (void)state;
    model_int64s(m, "halves", halves, 2);
    model_node(m, "SplitToSequence", "h halves", "listed");
    model_int(m, "axis", 1);
    model_node(m, "Identity", "listed", "parts"); /* of a sequence */
    gate(m);
    computes_the_same(m, split_reference());
}

/* unbind of [b, 2, 3] along 1, the last chunk of a scalar size is smaller, new_axis stacks. */
static void unbound_and_stacked_tensors_are_unchanged(void **state)
{
    static const int64_t cube[] = { 0, 2, 3 };
    struct model *m = begin_wide(), *reference = split_reference();

    (void)state;
    model_int64s(m, "cube", cube, 3);
    model_node(m, "Reshape", "h cube", "h3");
    model_node(m, "SplitToSequence", "h3 -", "unbound");
    model_int(m, "axis", 1);
    model_int(m, "keepdims", 0);
    model_node(m, "ConcatFromSequence", "unbound", "stacked"); /* [2, b, 3] */
    model_int(m, "axis", 0);
    model_int(m, "new_axis", 1);
    model_node(m, "SplitToSequence", "stacked -", "parts");
    model_int(m, "keepdims", 0);
    gate(m);
    computes_the_same(m, reference);
}

static void sequence_insert_and_erase_keep_the_order(void **state)
{
    struct model *m = begin_wide(), *reference = split_reference();

    (void)state;
    number(m, "each", 3);
    number(m, "zero", 0);
    number(m, "one", 1);
    model_node(m, "SplitToSequence", "h each", "two");
    model_int(m, "axis", -1);
    model_node(m, "SequenceAt", "two zero", "p");
    model_node(m, "SequenceAt", "two one", "q");
    model_node(m, "SequenceEmpty", "", "empty");
    model_node(m, "SequenceInsert", "empty q", "s1");   /* q */
    model_node(m, "SequenceInsert", "s1 p zero", "s2"); /* p q */
    model_node(m, "SequenceInsert", "s2 q", "s3");      /* p q q */
    model_node(m, "SequenceInsert", "s2 p", "s4");      /* p q p: s3 keeps its own */
    model_node(m, "SequenceErase", "s3 -", "s5");       /* p q */
    model_node(m, "SequenceLength", "s4", "three");
    model_node(m, "Sub", "three each", "nothing");   /* 0 */
    model_node(m, "SequenceAt", "s4 nothing", "a0"); /* p */
    model_node(m, "SequenceAt", "s5 one", "b0");     /* q */
    model_node(m, "SequenceConstruct", "a0 b0", "parts");
    gate(m);
    computes_the_same(m, reference);
}

/* ---- EmbeddingBag ---- */

static uint8_t pool[1 << 12]; /* memory of a body, which models do not own */

/* rows [6, 2] of x [b = 3, 4]; a Loop over three bags of two rows, which a sequence collects. */
static struct model *bags(const char *reduction, int opset)
{
    struct model *m = model_new(opset), *body = model_new(opset);
    static const int64_t axes[] = { 0 }, trips[] = { 3 }, rows[] = { -1, 2 }, two[] = { 2 };
    Onnx__GraphProto *g = model_proto(m)->graph, *inner;
    Onnx__AttributeProto *a;

    model_input(body, "turn", TENSOR_I64, shape_of(0));
    model_input(body, "go", TENSOR_BOOL, shape_of(0));
    model_input(body, "so_far", TENSOR_F32, shape_of(0));
    model_node(body, "Identity", "go", "go_on");
    model_node(body, "Reshape", "turn one_long", "i");
    model_node(body, "Mul", "i two", "start");
    model_node(body, "Add", "start two", "end");
    model_node(body, "Slice", "rows start end", "bag");
    model_node(body, reduction, opset >= 18 ? "bag axes" : "bag", "row");
    if (opset < 18)
        model_ints(body, "axes", axes, 1);
    model_node(body, "SequenceInsert", "so_far row", "further");
    model_output(body, "go_on");
    model_output(body, "further");

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)4), 1);
    model_weights(m, "v", shape_of(2, (int64_t)2, (int64_t)3), 2);
    model_int64s(m, "axes", axes, 1);
    model_int64s(m, "trips", trips, 1);
    model_int64s(m, "to_rows", rows, 2);
    model_int64s(m, "two", two, 1);
    model_int64s(m, "one_long", (const int64_t[]){ 1 }, 1);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Reshape", "h to_rows", "rows");
    model_node(m, "SequenceEmpty", "", "empty");
    model_node(m, "Loop", "trips - empty", "all");
    inner = model_proto(body)->graph;
    model_int(m, "body", 0);
    a = g->node[g->n_node - 1]->attribute[0];
    a->type = 5;
    a->has_i = 0;
    a->has_g = 1;
    a->g.len = onnx__graph_proto__get_packed_size(inner);
    assert_true(a->g.len <= sizeof(pool));
    a->g.data = pool;
    onnx__graph_proto__pack(inner, pool);
    model_node(m, "ConcatFromSequence", "all", "reduced");
    model_int(m, "axis", 0);
    model_node(m, "MatMul", "reduced v", "logits");
    model_output(m, "logits");
    model_free(body);
    return m;
}

/* Indices and offsets as exporters write them: two lists as inputs, and the Loop over the bags. */
static void bags_with_offsets_are_refused_with_the_reason(void **state)
{
    const struct plan_feed feeds[] = {
        { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)4) },
        { .name = "indices", .dtype = TENSOR_I64, .shape = shape_of(1, (int64_t)3) },
        { .name = "offsets", .dtype = TENSOR_I64, .shape = shape_of(0) },
    };
    const char *keep[] = { "logits" };
    const struct plan_opts o = { .purpose = PLAN_TRAIN, .batch = 3, .feeds = feeds, .n_feeds = 3, .keep = keep,
                                 .n_keep = 1, .sum_outputs = true };
    struct model *m = bags("ReduceMean", 18);
    struct plan *p = NULL;
    struct graph *g;
    struct err err = { 0 };

    (void)state;
    model_input(m, "indices", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_input(m, "offsets", TENSOR_I64, shape_of(1, (int64_t)-1));
    g = net_import_model(m, NULL);
    assert_int_equal(plan_new(g, &o, &p, &err), ERR_INPUT);
    assert_non_null(
        strstr(err.text, "the indices and offsets of an EmbeddingBag have no batch in common"));
    assert_non_null(
        strstr(err.text, "call the module with indices [batch, bag size] and no offsets"));
    graph_free(g);
    model_free(m);
}

static void bags_of_one_size_become_one_reduction(void **state)
{
    static const struct {
        const char *op;
        int opset;
    } cases[] = { { "ReduceMean", 17 }, { "ReduceMax", 17 }, { "ReduceMean", 18 },
                  { "ReduceMax", 18 } };
    size_t i;

    (void)state;
    for (i = 0; i < 4; i++) {
        struct model *m = bags(cases[i].op, cases[i].opset);
        struct net n = net_open_model(m, PLAN_TRAIN, 3);

        assert_int_equal(count(n.plan, "Slice") + count(n.plan, "Concat"), 0);
        assert_int_equal(count(n.plan, cases[i].op), 1);
        net_fill(&n, 0);
        (void)net_forward(&n);
        net_backward(&n);
        net_check_gradients(&n, 1, 1e-2f, 2e-3f);
        net_close(&n);
        model_free(m);
    }
}

/* ---- refused ---- */

/* Asserts that the plan is refused and that the text contains each part (NULL-terminated list). */
static void plan_refused(struct model *m, ...)
{
    const struct plan_feed feed = { .name = "x",
                                    .dtype = TENSOR_F32,
                                    .shape = shape_of(1, (int64_t)4) };
    const struct plan_opts opts = {
        .purpose = PLAN_TRAIN, .batch = 3, .feeds = &feed, .n_feeds = 1, .sum_outputs = true
    };
    struct graph *g;
    struct plan *p = NULL;
    struct err err = { 0 };
    const char *part;
    va_list ap;

    model_output(m, "logits");
    g = net_import_model(m, NULL);
    assert_int_not_equal(plan_new(g, &opts, &p, &err), 0);
    va_start(ap, m);
    while ((part = va_arg(ap, const char *)) != NULL)
        if (strstr(err.text, part) == NULL)
            fail_msg("'%s' is not in: %s", part, err.text);
    va_end(ap);
    graph_free(g);
    model_free(m);
}

static void sequence_read_by_a_tensor_op_is_refused(void **state)
{
    struct model *m = begin_wide();

    (void)state;
    model_node(m, "SequenceConstruct", "h h", "both");
    model_node(m, "Relu", "both", "logits");
    plan_refused(m, "Relu 'logits'", "'both'", "sequence", NULL);

    m = begin_wide();
    model_node(m, "SequenceConstruct", "h h", "logits");
    plan_refused(m, "'logits' is a sequence", NULL);

    m = begin_wide();
    number(m, "zero", 0);
    model_node(m, "SequenceAt", "h zero", "logits");
    plan_refused(m, "SequenceAt 'logits'", "not a sequence", NULL);
}

static void position_that_depends_on_data_is_refused(void **state)
{
    struct model *m = begin_wide();

    (void)state;
    model_node(m, "SequenceConstruct", "h h", "both");
    model_node(m, "ArgMax", "h", "at");
    model_node(m, "SequenceAt", "both at", "logits");
    plan_refused(m, "SequenceAt 'logits'", "depends on the data", "torch.stack", NULL);
}

static void parts_and_positions_out_of_range_are_refused(void **state)
{
    static const int64_t five[] = { 2, 3 }, endless[] = { 3, INT64_MAX };
    struct model *m = begin_wide();

    (void)state;
    model_int64s(m, "five", five, 2);
    number(m, "zero", 0);
    model_node(m, "SplitToSequence", "h five", "parts");
    model_int(m, "axis", 1);
    model_node(m, "SequenceAt", "parts zero", "logits");
    plan_refused(m, "SplitToSequence 'parts'", "6 elements", NULL);

    m = begin_wide();
    model_int64s(m, "endless", endless, 2);
    number(m, "zero", 0);
    model_node(m, "SplitToSequence", "h endless", "parts");
    model_int(m, "axis", 1);
    model_node(m, "SequenceAt", "parts zero", "logits");
    plan_refused(m, "SplitToSequence 'parts'", "6 elements", NULL);

    m = begin_wide();
    number(m, "two", 2);
    model_node(m, "SequenceConstruct", "h h", "both");
    model_node(m, "SequenceAt", "both two", "logits");
    plan_refused(m, "position 2 of 2", NULL);

    m = begin_wide();
    model_node(m, "SequenceEmpty", "", "empty");
    model_node(m, "ConcatFromSequence", "empty", "logits");
    model_int(m, "axis", 0);
    plan_refused(m, "the sequence is empty", NULL);
}

static void cast_like_of_a_constant_is_folded(void **state)
{
    struct model *m = begin_wide(), *reference = begin_wide();
    struct net n;

    (void)state;
    number(m, "two", 2);
    model_node(m, "CastLike", "two h", "scale");
    model_node(m, "Mul", "h scale", "logits");
    number(reference, "two", 2);
    model_node(reference, "Cast", "two", "scale");
    model_int(reference, "to", TENSOR_F32);
    model_node(reference, "Mul", "h scale", "logits");
    model_output(m, "logits");
    n = net_open_model(m, PLAN_TRAIN, 3);
    assert_int_equal(count(n.plan, "CastLike") + count(n.plan, "Cast"), 0);
    net_close(&n);
    computes_the_same(m, reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunk_becomes_a_split),
        cmocka_unit_test(split_to_sequence_with_sizes_becomes_a_split),
        cmocka_unit_test(unbound_and_stacked_tensors_are_unchanged),
        cmocka_unit_test(sequence_insert_and_erase_keep_the_order),
        cmocka_unit_test(bags_of_one_size_become_one_reduction),
        cmocka_unit_test(bags_with_offsets_are_refused_with_the_reason),
        cmocka_unit_test(sequence_read_by_a_tensor_op_is_refused),
        cmocka_unit_test(position_that_depends_on_data_is_refused),
        cmocka_unit_test(parts_and_positions_out_of_range_are_refused),
        cmocka_unit_test(cast_like_of_a_constant_is_folded),
    };

    return cmocka_run_group_tests_name("graph/sequence", tests, NULL, NULL);
}
