/* Attention in the form of the exporters of 2026: guards of empty rows, repeated heads of keys,
 * masks computed from shapes, capped scores. A near miss is not changed, and the plan states the
 * reason. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "graph/fuse_kit.h"
#include "harness/model.h"
#include "harness/net.h"

enum { LONG = 70, HEADS = 4, EACH = 3, WIDE = HEADS * EACH };

static const int64_t heads_first[] = { 0, 2, 1, 3 }, swapped[] = { 0, 2, 1 };

static void number(struct model *m, const char *name, float value)
{
    model_node(m, "Constant", "", name);
    model_float(m, "value_float", value);
}

static void transpose(struct model *m, const char *x, const char *y)
{
    model_node(m, "Transpose", x, y);
    model_ints(m, "perm", heads_first, 4);
}

/* x w [n, t, heads * each] -> `name` [n, heads, t, each] */
static void heads(struct model *m, const char *name, int64_t n)
{
    const int64_t apart[] = { 0, 0, n, EACH };
    char line[64], w[16], p[16], shape[16], r[16];

    snprintf(w, sizeof(w), "w%s", name);
    snprintf(p, sizeof(p), "p%s", name);
    snprintf(r, sizeof(r), "r%s", name);
    snprintf(shape, sizeof(shape), "s%s", name);
    model_int64s(m, shape, apart, 4);
    model_weights(m, w, shape_of(2, (int64_t)WIDE, n * EACH), 11 + (uint64_t)name[0]);
    snprintf(line, sizeof(line), "x %s", w);
    model_node(m, "MatMul", line, p);
    snprintf(line, sizeof(line), "%s %s", p, shape);
    model_node(m, "Reshape", line, r);
    transpose(m, r, name);
}

/* Repeats each head of `name`: Unsqueeze, Expand, Reshape. */
static void repeat(struct model *m, const char *name, const char *out, int64_t n, int64_t times,
                   bool inner)
{
    const int64_t axis[] = { inner ? 3 : 2 }, wide[] = { 1, 1, inner ? 1 : times, inner ? times : 1, 1 },
                  all[] = { 0, n * times, LONG, EACH };
    char one[16], many[16], line[64];

    snprintf(one, sizeof(one), "%s1", name);
    snprintf(many, sizeof(many), "%sn", name);
    snprintf(line, sizeof(line), "%saxis", name);
    model_int64s(m, line, axis, 1);
    snprintf(line, sizeof(line), "%swide", name);
    model_int64s(m, line, wide, 5);
    snprintf(line, sizeof(line), "%sall", name);
    model_int64s(m, line, all, 4);
    snprintf(line, sizeof(line), "%s %saxis", name, name);
    model_node(m, "Unsqueeze", line, one);
    snprintf(line, sizeof(line), "%s %swide", one, name);
    model_node(m, "Expand", line, many);
    snprintf(line, sizeof(line), "%s %sall", many, name);
    model_node(m, "Reshape", line, out);
}

/* Transposes k as onnxscript's library does: over a Reshape that merges batch and heads. Both sides
 * are scaled. */
static void product(struct model *m, const char *q, const char *k)
{
    static const int64_t merged[] = { -1, LONG, EACH }, apart[] = { -1, HEADS, EACH, LONG };
    char line[64];

    number(m, "root", 0.7598357f);
    model_int64s(m, "merged", merged, 3);
    model_int64s(m, "apart", apart, 4);
    snprintf(line, sizeof(line), "%s merged", k);
    model_node(m, "Reshape", line, "k3");
    model_node(m, "Transpose", "k3", "kt3");
    model_ints(m, "perm", swapped, 3);
    model_node(m, "Reshape", "kt3 apart", "kt");
    snprintf(line, sizeof(line), "%s root", q);
    model_node(m, "Mul", line, "q_scaled");
    model_node(m, "Mul", "kt root", "k_scaled");
    model_node(m, "MatMul", "q_scaled k_scaled", "scores");
}

/* "hidden" [1, 1, t, t]: 0 where key <= row and key > row - window, else `lowest`. */
static void masked(struct model *m, const char *scores, const char *out, int64_t window,
                   float lowest)
{
    static const int64_t row[] = { LONG, 1 }, column[] = { 1, LONG }, square[] = { 1, 1, LONG, LONG }, zero[] = { 0 },
                         end[] = { LONG }, one[] = { 1 };
    const int64_t width[] = { window };
    char line[64];

    model_int64s(m, "row_shape", row, 2);
    model_int64s(m, "column_shape", column, 2);
    model_int64s(m, "square_shape", square, 4);
    model_int64s(m, "from1", zero, 1);
    model_int64s(m, "to1", end, 1);
    model_int64s(m, "by1", one, 1);
    model_int64s(m, "window", width, 1);
    model_node(m, "Squeeze", "from1", "from");
    model_node(m, "Squeeze", "to1", "to");
    model_node(m, "Squeeze", "by1", "by");
    model_node(m, "Range", "from to by", "positions");
    model_node(m, "Reshape", "positions row_shape", "rows");
    model_node(m, "Reshape", "positions column_shape", "keys");
    model_node(m, "LessOrEqual", "keys rows", "past");
    model_node(m, "Add", "keys window", "reach");
    model_node(m, "Greater", "reach rows", "near");
    model_node(m, "And", "past near", "seen2");
    model_node(m, "Expand", "seen2 square_shape", "seen");
    number(m, "none", 0);
    number(m, "lowest", lowest);
    model_node(m, "Where", "seen none lowest", "hidden");
    snprintf(line, sizeof(line), "%s hidden", scores);
    model_node(m, "Add", line, out);
}

static void softmax(struct model *m, const char *x, const char *y)
{
    model_node(m, "Softmax", x, y);
    model_int(m, "axis", -1);
}

static void guard(struct model *m, const char *x, const char *y)
{
    char line[64];

    number(m, "nothing", 0);
    model_node(m, "IsNaN", x, "is_nan");
    snprintf(line, sizeof(line), "is_nan nothing %s", x);
    model_node(m, "Where", line, y);
}

static struct model *begin(int64_t shared)
{
    struct model *m = model_new(18);

    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)LONG, (int64_t)WIDE));
    heads(m, "q", HEADS);
    heads(m, "k", HEADS / shared);
    heads(m, "v", HEADS / shared);
    return m;
}

static struct model *end(struct model *m, const char *weights, const char *v)
{
    static const int64_t flat[] = { 0, LONG * WIDE };
    char line[64];

    snprintf(line, sizeof(line), "%s %s", weights, v);
    model_node(m, "MatMul", line, "y");
    transpose(m, "y", "yt");
    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "yt flat", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head", "logits");
    model_output(m, "logits");
    return m;
}

static const struct plan_node *attention_of(const struct net *n)
{
    for (size_t i = 0; i < n->plan->nodes.n; i++)
        if (strcmp(n->plan->nodes.at[i].def->name, "Attention") == 0)
            return &n->plan->nodes.at[i];
    fail_msg("no Attention");
    return NULL;
}

static const struct op_attr *attr_of(const struct net *n, const char *name)
{
    const struct plan_node *a = attention_of(n);

    for (uint32_t i = 0; i < a->n_attrs; i++)
        if (strcmp(a->attrs[i].name, name) == 0)
            return &a->attrs[i];
    return NULL;
}

/* Asserts one Attention, no unfused node, and the same results. Frees the model; the caller closes
 * the net. */
static void fused(struct model *m, struct net *n)
{
    static const char *const unfused_ops[] = { "Softmax", "Transpose", "Where", "Mul",
                                               "IsNaN",   "Expand",    "Add",   "Tanh" };
    const struct plan_attention *a;
    uint32_t count;

    compare(m, PLAN_TRAIN, n);
    assert_int_equal(nodes_of(n, "Attention"), 1);
    for (uint32_t i = 0; i < COUNT_OF(unfused_ops); i++)
        if (nodes_of(n, unfused_ops[i]) != 0)
            fail_msg("%s was not fused", unfused_ops[i]);
    a = plan_attentions(n->plan, &count);
    assert_int_equal(count, 1);
    assert_true(a[0].is_fused);
    assert_string_equal(a[0].why, "");
}

static void not_fused(struct model *m, const char *why)
{
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);
    const struct plan_attention *a;
    uint32_t count;

    assert_int_equal(nodes_of(&n, "Attention"), 0);
    a = plan_attentions(n.plan, &count);
    assert_int_equal(count, 1);
    assert_false(a[0].is_fused);
    if (strstr(a[0].why, why) == NULL)
        fail_msg("expected '%s', found '%s'", why, a[0].why);
    net_close(&n);
    model_free(m);
}

/* ---- fused forms ---- */

static void attention_of_pytorch_2_15_with_shared_heads_is_fused(void **state)
{
    struct model *m = begin(2);
    const struct op_attr *band;
    struct net n;

    (void)state;
    repeat(m, "k", "k_all", HEADS / 2, 2, false);
    repeat(m, "v", "v_all", HEADS / 2, 2, false);
    product(m, "q", "k_all");
    masked(m, "scores", "visible", LONG, -FLT_MAX);
    softmax(m, "visible", "weights");
    guard(m, "weights", "safe");
    fused(end(m, "safe", "v_all"), &n);
    assert_int_equal(attention_of(&n)->n_in, 3); /* no mask, no repeated head */
    assert_int_equal(n.plan->values.at[attention_of(&n)->in[1]].tensor.shape.dim[2], HEADS / 2);
    band = attr_of(&n, "band");
    assert_non_null(band);
    assert_int_equal(band->ints[0], INT64_MIN);
    assert_int_equal(band->ints[1], 0);
    assert_non_null(attr_of(&n, "empty"));
    net_close(&n);
}

static void sliding_window_mask_becomes_a_band(void **state)
{
    struct model *m = begin(1);
    const struct op_attr *band;
    struct net n;

    (void)state;
    product(m, "q", "k");
    masked(m, "scores", "visible", 20, -INFINITY);
    softmax(m, "visible", "weights");
    fused(end(m, "weights", "v"), &n);
    band = attr_of(&n, "band");
    assert_non_null(band);
    assert_int_equal(band->ints[0], -19);
    assert_int_equal(band->ints[1], 0);
    assert_null(attr_of(&n, "empty"));
    net_close(&n);
}

/* Rows of a window after the last key see no key: with a guard they are 0. */
static void guarded_row_without_a_key_is_zero(void **state)
{
    struct model *m = begin(1);
    struct net n;

    (void)state;
    product(m, "q", "k");
    masked(m, "scores", "visible", -3, -INFINITY);
    softmax(m, "visible", "weights");
    guard(m, "weights", "safe");
    m = end(m, "safe", "v");
    n = net_open_model(m, PLAN_EVAL, BATCH);
    net_fill(&n, 0);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    assert_non_null(attr_of(&n, "empty"));
    (void)net_forward(&n);
    for (uint32_t i = 0; i < BATCH * CLASSES; i++)
        assert_true(((const float *)plan_tensor(n.plan, "logits")->data)[i] == 0);
    net_close(&n);
    model_free(m);
}

static void mask_without_effect_is_removed(void **state)
{
    struct model *m = begin(1);
    struct net n;

    (void)state;
    product(m, "q", "k");
    masked(m, "scores", "visible", LONG, 0);
    softmax(m, "visible", "weights");
    fused(end(m, "weights", "v"), &n);
    assert_int_equal(attention_of(&n)->n_in, 3);
    assert_null(attr_of(&n, "band"));
    net_close(&n);
}

static void mask_of_other_numbers_remains_an_operand(void **state)
{
    struct model *m = begin(1);
    struct net n;

    (void)state;
    product(m, "q", "k");
    masked(m, "scores", "visible", LONG, -1);
    softmax(m, "visible", "weights");
    fused(end(m, "weights", "v"), &n);
    assert_int_equal(attention_of(&n)->n_in, 4);
    assert_null(attr_of(&n, "band"));
    net_close(&n);
}

static void capped_scores_are_fused_as_a_step(void **state)
{
    struct model *m = begin(1);
    struct net n;

    (void)state;
    product(m, "q", "k");
    number(m, "cap", 0.5f);
    model_node(m, "Div", "scores cap", "small");
    model_node(m, "Tanh", "small", "bent");
    model_node(m, "Mul", "bent cap", "capped");
    masked(m, "capped", "visible", LONG, -FLT_MAX);
    softmax(m, "visible", "weights");
    fused(end(m, "weights", "v"), &n);
    assert_non_null(attr_of(&n, "band"));
    net_close(&n);
}

/* An einsum operand in the form of tf2onnx, of a [n, .., h, d] with the axes of `perm` and a unit
 * axis at `unit`: views with unit axes around a Transpose, then one batch axis. */
static void einsum_operand(struct model *m, const char *x, const char *y, int64_t unit,
                           const int64_t *perm, const int64_t *merged, bool swap)
{
    char line[64], a[16], b[16], c[16];

    snprintf(line, sizeof(line), "%sunit", y);
    model_int64s(m, line, &unit, 1);
    snprintf(line, sizeof(line), "%smerged", y);
    model_int64s(m, line, merged, 3);
    snprintf(a, sizeof(a), "%sa", y);
    snprintf(b, sizeof(b), "%sb", y);
    snprintf(c, sizeof(c), "%sc", y);
    snprintf(line, sizeof(line), "%s %sunit", x, y);
    model_node(m, "Unsqueeze", line, a);
    model_node(m, "Transpose", a, b);
    model_ints(m, "perm", perm, 5);
    snprintf(line, sizeof(line), "%s %smerged", b, y);
    model_node(m, "Reshape", line, swap ? c : y);
    if (swap) {
        model_node(m, "Transpose", c, y);
        model_ints(m, "perm", swapped, 3);
    }
}

/* y [n, h, t, s] from "p3" [n h, t, s], over a unit axis */
static void einsum_result(struct model *m, const char *x, const char *y, int64_t columns)
{
    const int64_t wide[] = { -1, HEADS, LONG, columns, 1 }, last[] = { 4 };
    char line[64], a[16];

    snprintf(line, sizeof(line), "%swide", y);
    model_int64s(m, line, wide, 5);
    snprintf(line, sizeof(line), "%slast", y);
    model_int64s(m, line, last, 1);
    snprintf(a, sizeof(a), "%sw", y);
    snprintf(line, sizeof(line), "%s %swide", x, y);
    model_node(m, "Reshape", line, a);
    snprintf(line, sizeof(line), "%s %slast", a, y);
    model_node(m, "Squeeze", line, y);
}

/* Keras' attention exported by tf2onnx: rq, rk and rv are [n, t, h, d]; the mask is multiplied and
 * added. */
static struct model *of_tf2onnx(float kept)
{
    static const int64_t q[] = { 0, 2, 1, 3, 4 }, k[] = { 0, 3, 1, 2, 4 }, v[] = { 0, 3, 2, 4, 1 },
                         rows[] = { -1, LONG, EACH }, columns[] = { -1, EACH, LONG }, scores[] = { -1, LONG, LONG },
                         three[] = { 3 };
    struct model *m = begin(1);

    einsum_operand(m, "rq", "q3", 3, q, rows, false);
    einsum_operand(m, "rk", "k3", 1, k, rows, true);
    einsum_operand(m, "rv", "v3", 2, v, columns, true);
    model_node(m, "MatMul", "q3 k3", "s3");
    einsum_result(m, "s3", "raw", LONG);
    number(m, "root", 0.57735f);
    model_node(m, "Mul", "raw root", "scores");
    masked(m, "scores", "unused", LONG, -1); /* for "seen" */
    number(m, "kept", kept);
    number(m, "large", -2e38f);
    model_node(m, "Not", "seen", "out");
    model_node(m, "Cast", "seen", "one");
    model_int(m, "to", TENSOR_F32);
    model_node(m, "Cast", "out", "other");
    model_int(m, "to", TENSOR_F32);
    model_node(m, "Mul", "one kept", "factor");
    model_node(m, "Mul", "large other", "term");
    model_node(m, "Mul", "factor scores", "some");
    model_node(m, "Add", "some term", "visible");
    softmax(m, "visible", "weights");
    model_int64s(m, "three", three, 1);
    model_int64s(m, "one_batch", scores, 3);
    model_node(m, "Unsqueeze", "weights three", "w5");
    model_node(m, "Reshape", "w5 one_batch", "w3");
    model_node(m, "MatMul", "w3 v3", "y3");
    einsum_result(m, "y3", "y4", EACH);
    return m;
}

/* Like end(), for the results of the einsums. */
static struct model *end_of_tf2onnx(struct model *m)
{
    static const int64_t flat[] = { 0, LONG * WIDE };

    transpose(m, "y4", "yt");
    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "yt flat", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head", "logits");
    model_output(m, "logits");
    return m;
}

static void attention_of_keras_by_tf2onnx_is_fused(void **state)
{
    struct net n;

    (void)state;
    fused(end_of_tf2onnx(of_tf2onnx(1)), &n);
    assert_int_equal(attention_of(&n)->n_in, 3);
    assert_non_null(attr_of(&n, "band"));
    net_close(&n);
}

static void numeric_mask_that_scales_is_not_fused(void **state)
{
    (void)state;
    not_fused(end_of_tf2onnx(of_tf2onnx(2)),
              "Mul 'some', which computes 'some', is not a supported step");
}

/* ---- forms that are not fused ---- */

static void mask_before_a_cap_is_not_a_band(void **state)
{
    struct model *m = begin(1);
    struct net n;

    (void)state;
    product(m, "q", "k");
    masked(m, "scores", "visible", LONG, -FLT_MAX);
    model_node(m, "Tanh", "visible", "bent"); /* hidden keys then have the weight e^-1 */
    softmax(m, "bent", "weights");
    fused(end(m, "weights", "v"), &n);
    assert_null(attr_of(&n, "band"));
    assert_int_equal(attention_of(&n)->n_in, 4);
    net_close(&n);
}

static void weights_with_another_reader_are_not_fused(void **state)
{
    struct model *m = begin(1);

    (void)state;
    product(m, "q", "k");
    softmax(m, "scores", "weights");
    model_node(m, "ReduceMean", "weights", "mean");
    model_node(m, "Add", "v mean", "more");
    not_fused(end(m, "weights", "more"), "'weights' have other readers");
}

static void scores_with_another_reader_are_not_fused(void **state)
{
    struct model *m = begin(1);

    (void)state;
    product(m, "q", "k");
    softmax(m, "scores", "weights");
    model_node(m, "ReduceMean", "scores", "mean");
    model_node(m, "Add", "v mean", "more");
    not_fused(end(m, "weights", "more"),
              "'scores', computed by MatMul 'scores', has other readers");
}

static void guard_with_another_number_is_not_fused(void **state)
{
    struct model *m = begin(1);

    (void)state;
    product(m, "q", "k");
    softmax(m, "scores", "weights");
    number(m, "one", 1);
    model_node(m, "IsNaN", "weights", "is_nan");
    model_node(m, "Where", "is_nan one weights", "safe");
    not_fused(end(m, "safe", "v"), "Where 'safe' is between");
}

static void guard_of_another_value_is_not_fused(void **state)
{
    struct model *m = begin(1);

    (void)state;
    product(m, "q", "k");
    softmax(m, "scores", "weights");
    number(m, "nothing", 0);
    model_node(m, "IsNaN", "scores", "is_nan");
    model_node(m, "Where", "is_nan nothing weights", "safe");
    not_fused(end(m, "safe", "v"), "Where 'safe' is between");
}

static void unsupported_step_is_not_fused(void **state)
{
    struct model *m = begin(1);

    (void)state;
    product(m, "q", "k");
    model_node(m, "Erf", "scores", "bent");
    softmax(m, "bent", "weights");
    not_fused(end(m, "weights", "v"), "Erf 'bent', which computes 'bent', is not a supported step");
}

static void trained_bias_of_scores_is_not_fused(void **state)
{
    struct model *m = begin(1);

    (void)state;
    product(m, "q", "k");
    model_weights(m, "bias", shape_of(3, (int64_t)HEADS, (int64_t)LONG, (int64_t)LONG), 3);
    model_node(m, "Add", "scores bias", "biased");
    softmax(m, "biased", "weights");
    not_fused(end(m, "weights", "v"), "a parameter is trained through 'bias'");
}

/* Heads 0 1 0 1 of keys instead of 0 0 1 1: the whole list is repeated. */
static void tiled_heads_are_copied(void **state)
{
    static const int64_t axis[] = { 1 }, wide[] = { 1, 2, 1, 1, 1 }, all[] = { 0, HEADS, LONG, EACH };
    struct model *m = begin(2);
    struct net n;

    (void)state;
    repeat(m, "v", "v_all", HEADS / 2, 2, false);
    model_int64s(m, "kaxis", axis, 1);
    model_int64s(m, "kwide", wide, 5);
    model_int64s(m, "kall", all, 4);
    model_node(m, "Unsqueeze", "k kaxis", "k1");
    model_node(m, "Expand", "k1 kwide", "kn");
    model_node(m, "Reshape", "kn kall", "k_all");
    product(m, "q", "k_all");
    softmax(m, "scores", "weights");
    compare(end(m, "weights", "v_all"), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    assert_int_equal(nodes_of(&n, "Expand"), 2); /* of k and, for equal shapes, of v */
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_pytorch_2_15_with_shared_heads_is_fused),
        cmocka_unit_test(sliding_window_mask_becomes_a_band),
        cmocka_unit_test(guarded_row_without_a_key_is_zero),
        cmocka_unit_test(mask_without_effect_is_removed),
        cmocka_unit_test(mask_of_other_numbers_remains_an_operand),
        cmocka_unit_test(capped_scores_are_fused_as_a_step),
        cmocka_unit_test(attention_of_keras_by_tf2onnx_is_fused),
        cmocka_unit_test(numeric_mask_that_scales_is_not_fused),
        cmocka_unit_test(mask_before_a_cap_is_not_a_band),
        cmocka_unit_test(weights_with_another_reader_are_not_fused),
        cmocka_unit_test(scores_with_another_reader_are_not_fused),
        cmocka_unit_test(guard_with_another_number_is_not_fused),
        cmocka_unit_test(guard_of_another_value_is_not_fused),
        cmocka_unit_test(unsupported_step_is_not_fused),
        cmocka_unit_test(trained_bias_of_scores_is_not_fused),
        cmocka_unit_test(tiled_heads_are_copied),
    };

    return cmocka_run_group_tests_name("graph/fuse_current", tests, NULL, NULL);
}
