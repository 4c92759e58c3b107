#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "graph/fuse_kit.h"
#include "harness/model.h"
#include "harness/net.h"

enum { LONG = 70, HEADS = 2, EACH = 3, WIDE = HEADS * EACH };

static const int64_t heads_first[] = { 0, 2, 1, 3 }, keys_last[] = { 0, 2, 3, 1 },
                     swapped[] = { 0, 1, 3, 2 };

static void number(struct model *m, const char *name, float value)
{
    model_node(m, "Constant", "", name);
    model_float(m, "value_float", value);
}

static void transpose(struct model *m, const char *x, const char *y, const int64_t *perm, size_t n)
{
    model_node(m, "Transpose", x, y);
    model_ints(m, "perm", perm, n);
}

/* "mask" [t, t]: true above the diagonal. */
static void causal(struct model *m)
{
    static const int64_t square[] = { LONG, LONG }, above[] = { 1 };

    number(m, "unit", 1);
    model_int64s(m, "square", square, 2);
    model_int64s(m, "above", above, 1);
    model_node(m, "ConstantOfShape", "square", "zeros");
    model_node(m, "Add", "zeros unit", "ones");
    model_node(m, "Trilu", "ones above", "later");
    model_int(m, "upper", 1);
    model_node(m, "Cast", "later", "mask");
    model_int(m, "to", TENSOR_BOOL);
}

/* x [n, t, w] -> "q", "k" and "v" [n, t, h, e] */
static struct model *begin(void)
{
    static const char *const parts[] = { "q", "k", "v" };
    static const int64_t heads[] = { 0, 0, HEADS, EACH };
    struct model *m = model_new(17);
    uint32_t i;

    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)LONG, (int64_t)WIDE));
    model_int64s(m, "heads", heads, 4);
    for (i = 0; i < 3; i++) {
        char name[3][16], line[64];

        snprintf(name[0], sizeof(name[0]), "w%s", parts[i]);
        snprintf(name[1], sizeof(name[1]), "p%s", parts[i]);
        model_weights(m, name[0], shape_of(2, (int64_t)WIDE, (int64_t)WIDE), 11 + i);
        snprintf(line, sizeof(line), "x %s", name[0]);
        model_node(m, "MatMul", line, name[1]);
        snprintf(line, sizeof(line), "%s heads", name[1]);
        model_node(m, "Reshape", line, parts[i]);
    }
    return m;
}

/* The product `weights` v, heads side by side, and a classifier. */
static struct model *end(struct model *m, const char *weights)
{
    static const int64_t flat[] = { 0, LONG * WIDE };
    char line[64];

    transpose(m, "v", "vt", heads_first, 4);
    snprintf(line, sizeof(line), "%s vt", weights);
    model_node(m, "MatMul", line, "y");
    transpose(m, "y", "yt", heads_first, 4);
    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "yt flat", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head", "logits");
    model_output(m, "logits");
    return m;
}

static void product(struct model *m)
{
    transpose(m, "q", "qt", heads_first, 4);
    transpose(m, "k", "kt", keys_last, 4);
    model_node(m, "MatMul", "qt kt", "scores");
}

static void softmax(struct model *m, const char *x, const char *y)
{
    model_node(m, "Softmax", x, y);
    model_int(m, "axis", -1);
}

/* Asserts one Attention, no unfused node, and the same results. Frees the model. */
static void fused(struct model *m)
{
    static const char *const unfused_ops[] = { "Softmax", "Transpose", "Where",
                                               "Mul",     "Div",       "Dropout" };
    struct net n;
    uint32_t i;

    compare(m, PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    for (i = 0; i < COUNT_OF(unfused_ops); i++)
        assert_int_equal(nodes_of(&n, unfused_ops[i]), 0);
    assert_int_equal(nodes_of(&n, "MatMul"), 4);
    assert_true(plan_work_bytes(n.plan) < sizeof(float) * BATCH * HEADS * LONG * LONG);
    net_close(&n);
}

static void not_fused(struct model *m)
{
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);

    assert_int_equal(nodes_of(&n, "Attention"), 0);
    assert_int_equal(nodes_of(&n, "Softmax"), 1);
    net_close(&n);
    model_free(m);
}

/* ---- fused forms ---- */

static void attention_of_gpt2_is_fused(void **state)
{
    struct model *m = begin();

    (void)state;
    causal(m);
    number(m, "scale", 0.57735f);
    number(m, "lowest", -FLT_MAX);
    product(m);
    model_node(m, "Mul", "scores scale", "scaled");
    model_node(m, "Where", "mask lowest scaled", "masked");
    softmax(m, "masked", "weights");
    fused(end(m, "weights"));
}

static void attention_of_pytorch_export_is_fused(void **state)
{
    struct model *m = begin();

    (void)state;
    causal(m);
    number(m, "root", 0.75983f);
    number(m, "zero", 0);
    number(m, "never", -INFINITY);
    transpose(m, "q", "qt", heads_first, 4);
    transpose(m, "k", "k1", heads_first, 4);
    transpose(m, "k1", "k2", swapped, 4);
    model_node(m, "Mul", "qt root", "q1");
    model_node(m, "Mul", "k2 root", "k3");
    model_node(m, "MatMul", "q1 k3", "scores");
    model_node(m, "Where", "mask never zero", "bias");
    model_node(m, "Add", "scores bias", "masked");
    softmax(m, "masked", "weights");
    fused(end(m, "weights"));
}

/* The padding is computed from the batch: x's first column, per sample. */
static void attention_of_hugging_face_with_fed_mask_is_fused(void **state)
{
    static const int64_t first[] = { 0 }, one[] = { 1 }, last[] = { 2 }, rows[] = { 0, 1, 1, LONG };
    struct model *m = begin();

    (void)state;
    causal(m);
    number(m, "root", 1.73205f);
    number(m, "lowest", -FLT_MAX);
    number(m, "weight", -10000);
    model_int64s(m, "first", first, 1);
    model_int64s(m, "one", one, 1);
    model_int64s(m, "last", last, 1);
    model_int64s(m, "rows", rows, 4);
    model_node(m, "Slice", "x first one last", "column");
    model_node(m, "Relu", "column", "positive");
    model_node(m, "Mul", "positive weight", "padding");
    model_node(m, "Reshape", "padding rows", "bias");
    product(m);
    model_node(m, "Div", "scores root", "scaled");
    model_node(m, "Where", "mask lowest scaled", "masked");
    model_node(m, "Add", "masked bias", "biased");
    softmax(m, "biased", "weights");
    {
        struct net n;

        compare(end(m, "weights"), PLAN_TRAIN, &n);
        assert_int_equal(nodes_of(&n, "Attention"), 1);
        assert_int_equal(nodes_of(&n, "Softmax") + nodes_of(&n, "Transpose"), 0);
        net_close(&n);
    }
}

enum between { HEADS_APART, TOKENS_IN_A_COLUMN, ONE_HEAD, BATCH_WITH_HEADS, SWAPPED, OUTPUT_READ, WHOLE_READ, UNLIKE,
               INDEXED, UNBOUND, INDEX_SWAPPED, INDEX_INSIDE };

/* Splits "qkv" along an axis of 3, which is moved to the front; indices of it are "qt", "kk" and
 * "vt". */
static void by_index(struct model *m, enum between between)
{
    static const int64_t cut[] = { 0, 0, 3, HEADS, EACH }, inside[] = { 0, 0, HEADS, 3, EACH },
                         front[] = { 2, 0, 3, 1, 4 }, front3[] = { 3, 0, 2, 1, 4 }, first[] = { 0 },
                         numbers[] = { 0, 1, 2 };
    static const char *const names[] = { "qt", "kk", "vt" }, *const at[] = { "i0", "i1", "i2" };

    model_int64s(m, "cut", between == INDEX_INSIDE ? inside : cut, 5);
    model_node(m, "Reshape", "qkv cut", "five");
    transpose(m, "five", "fronted", between == INDEX_INSIDE ? front3 : front, 5);
    if (between == UNBOUND) {
        model_node(m, "Split", "fronted", "s0 s1 s2");
        model_int(m, "axis", 0);
        model_int64s(m, "first", first, 1);
    }
    for (uint32_t i = 0; i < 3; i++) {
        char line[32];

        snprintf(line, sizeof(line), between == UNBOUND ? "s%u first" : "fronted i%u", i);
        if (between == UNBOUND) {
            model_node(m, "Squeeze", line, names[i]);
            continue;
        }
        model_node(m, "Constant", "", at[i]);
        model_int(m, "value_int", numbers[between == INDEX_SWAPPED ? 2 - i : i]);
        model_node(m, "Gather", line, names[i]);
    }
    transpose(m, "kk", "kt", swapped, 4);
    model_node(m, "MatMul", "qt kt", "scores");
    softmax(m, "scores", "weights");
    model_node(m, "MatMul", "weights vt", "y");
    transpose(m, "y", "yt", heads_first, 4);
}

/* q, k and v as thirds of one product; `between` selects the nodes between them and the scores, and
 * other readers. */
static struct model *thirds(enum between between)
{
    static const int64_t heads[] = { -1, LONG, HEADS, EACH }, column[] = { -1, WIDE }, mixed[] = { -1, LONG * HEADS, EACH }, all[] = { 0, -1 },
                         alike[] = { WIDE, WIDE, WIDE }, unlike[] = { WIDE, WIDE, WIDE + 2 * EACH },
                         wider[] = { 0, 0, HEADS + 2, EACH }, turned3[] = { 0, 2, 1 };
    struct model *m = model_new(17);
    const int64_t wide = between == UNLIKE ? 3 * WIDE + 2 * EACH : 3 * WIDE;

    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)LONG, (int64_t)WIDE));
    model_weights(m, "w", shape_of(2, (int64_t)WIDE, wide), 11);
    model_weights(m, "b", shape_of(1, wide), 12);
    model_int64s(m, "sizes", between == UNLIKE ? unlike : alike, 3);
    if (between == TOKENS_IN_A_COLUMN) { /* of all samples */
        model_int64s(m, "column", column, 2);
        model_node(m, "Reshape", "x column", "tokens");
        model_node(m, "Gemm", "tokens w b", "qkv");
    } else {
        model_node(m, "MatMul", "x w", "products");
        model_node(m, "Add", "products b", "qkv");
    }
    if (between < INDEXED) {
        model_node(m, "Split", "qkv sizes", between == SWAPPED ? "pk pq pv" : "pq pk pv");
        model_int(m, "axis", -1);
    }
    model_int64s(m, "all", all, 2);
    if (between >= INDEXED) {
        by_index(m, between);
    } else if (between == ONE_HEAD) {
        transpose(m, "pk", "kt", turned3, 3);
        model_node(m, "MatMul", "pq kt", "scores");
        softmax(m, "scores", "weights");
        model_node(m, "MatMul", "weights pv", "yt");
    } else if (between == BATCH_WITH_HEADS) {
        model_int64s(m, "mixed", mixed, 3);
        model_node(m, "Reshape", "pq mixed", "q");
        model_node(m, "Reshape", "pk mixed", "k");
        model_node(m, "Reshape", "pv mixed", "v");
        transpose(m, "k", "kt", turned3, 3);
        model_node(m, "MatMul", "q kt", "scores");
        softmax(m, "scores", "weights");
        model_node(m, "MatMul", "weights v", "yt");
    } else {
        model_int64s(m, "heads", heads, 4);
        model_int64s(m, "wider", wider, 4);
        model_node(m, "Reshape", "pq heads", "q");
        model_node(m, "Reshape", "pk heads", "k");
        if (between == UNLIKE) { /* v has more heads: half of them are dropped */
            static const int64_t none[] = { 0 }, few[] = { HEADS }, axis[] = { 2 };

            model_int64s(m, "none", none, 1);
            model_int64s(m, "few", few, 1);
            model_int64s(m, "axis", axis, 1);
            model_node(m, "Reshape", "pv wider", "vs");
            model_node(m, "Slice", "vs none few axis", "v");
        } else {
            model_node(m, "Reshape", "pv heads", "v");
        }
        product(m);
        softmax(m, "scores", "weights");
        transpose(m, "v", "vt", heads_first, 4);
        model_node(m, "MatMul", "weights vt", "y");
        transpose(m, "y", "yt", heads_first, 4);
    }
    model_node(m, "Reshape", "yt all", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head",
               between == OUTPUT_READ || between == WHOLE_READ ? "some" : "logits");
    if (between == OUTPUT_READ || between == WHOLE_READ) {
        model_weights(
            m, "other",
            shape_of(2, (int64_t)(LONG * (between == OUTPUT_READ ? WIDE : wide)), (int64_t)CLASSES),
            22);
        model_node(m, "Reshape", between == OUTPUT_READ ? "pk all" : "qkv all", "more");
        model_node(m, "MatMul", "more other", "others");
        model_node(m, "Add", "some others", "logits");
    }
    model_output(m, "logits");
    return m;
}

/* Other readers of the whole contribute to its gradient, before or after the attention. */
static void thirds_of_one_product_are_read_in_place(void **state)
{
    /* number of unfused nodes */
    static const struct { enum between between; uint32_t cuts; } rows[] = {
        { HEADS_APART, 0 }, { TOKENS_IN_A_COLUMN, 0 }, { ONE_HEAD, 0 }, { WHOLE_READ, 0 }, { BATCH_WITH_HEADS, 1 }, { SWAPPED, 1 },
        { OUTPUT_READ, 1 }, { UNLIKE, 1 },      { INDEXED, 0 },  { UNBOUND, 0 },  { INDEX_SWAPPED, 4 },
        { INDEX_INSIDE, 4 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct net n;
        uint32_t cuts;

        compare(thirds(rows[i].between), PLAN_TRAIN, &n);
        assert_int_equal(nodes_of(&n, "Attention"), 1);
        assert_int_equal(nodes_of(&n, "Softmax"), 0);
        cuts = nodes_of(&n, "Split") + nodes_of(&n, "Gather") + nodes_of(&n, "Transpose");
        if (cuts != rows[i].cuts)
            fail_msg("form %d has %u unfused nodes", (int)rows[i].between, cuts);
        net_close(&n);
    }
}

/* nn.MultiheadAttention: batch and heads are one axis, in the middle of the projections. */
static void attention_of_multihead_attention_with_three_axes_is_fused(void **state)
{
    static const int64_t time_first[] = { 1, 0, 2 }, keys[] = { 1, 2, 0 },
                         merged[] = { LONG, -1, EACH }, flat[] = { LONG, -1, WIDE },
                         all[] = { 0, LONG * WIDE };
    static const char *const parts[] = { "q", "k", "v" };
    struct model *m = model_new(17);
    struct net n;
    uint32_t i;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)LONG, (int64_t)WIDE));
    transpose(m, "x", "xt", time_first, 3);
    number(m, "scale", 0.57735f);
    model_int64s(m, "merged", merged, 3);
    model_int64s(m, "flat", flat, 3);
    model_int64s(m, "all", all, 2);
    for (i = 0; i < 3; i++) {
        char name[4][16], line[64];

        snprintf(name[0], sizeof(name[0]), "w%s", parts[i]);
        snprintf(name[1], sizeof(name[1]), "p%s", parts[i]);
        snprintf(name[2], sizeof(name[2]), "m%s", parts[i]);
        model_weights(m, name[0], shape_of(2, (int64_t)WIDE, (int64_t)WIDE), 11 + i);
        snprintf(line, sizeof(line), "xt %s", name[0]);
        model_node(m, "MatMul", line, name[1]);
        if (i == 0) {
            model_node(m, "Mul", "pq scale", "sq");
            model_node(m, "Reshape", "sq merged", "mq");
        } else {
            snprintf(line, sizeof(line), "%s merged", name[1]);
            model_node(m, "Reshape", line, name[2]);
        }
        transpose(m, name[2], parts[i], i == 1 ? keys : time_first, 3);
    }
    model_node(m, "MatMul", "q k", "scores");
    softmax(m, "scores", "weights");
    model_node(m, "MatMul", "weights v", "y");
    transpose(m, "y", "yt", time_first, 3);
    model_node(m, "Reshape", "yt flat", "joined");
    transpose(m, "joined", "back", time_first, 3);
    model_node(m, "Reshape", "back all", "features");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "features head", "logits");
    model_output(m, "logits");
    compare(m, PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    assert_int_equal(nodes_of(&n, "Softmax"), 0);
    assert_int_equal(nodes_of(&n, "Transpose"), 2); /* of x, and of the joined heads */
    net_close(&n);
}

/* The same elements must be dropped, otherwise the losses would differ much. */
static void fused_dropout_drops_the_same_elements(void **state)
{
    struct model *m = begin();

    (void)state;
    number(m, "ratio", 0.5f);
    number(m, "scale", 0.5f);
    number(m, "one", 1);
    model_node(m, "Cast", "one", "training");
    model_int(m, "to", TENSOR_BOOL);
    model_node(m, "Dropout", "x ratio training", "unused"); /* uses an RNG stream */
    product(m);
    model_node(m, "Mul", "scores scale", "scaled");
    softmax(m, "scaled", "weights");
    model_node(m, "Dropout", "weights ratio training", "dropped");
    fused(end(m, "dropped"));
}

/* Two different numbers for masked elements are not a mask. */
static void uniform_mask_value_is_fused_as_a_number(void **state)
{
    uint32_t same;

    (void)state;
    for (same = 0; same < 2; same++) {
        struct model *m = begin();

        causal(m);
        number(m, "lowest", -10000);
        model_node(m, "Add", same ? "zeros lowest" : "later lowest", "filling");
        product(m);
        model_node(m, "Where", "mask filling scores", "masked");
        softmax(m, "masked", "weights");
        if (same)
            fused(end(m, "weights"));
        else
            not_fused(end(m, "weights"));
    }
}

static void evaluation_plan_is_fused_too(void **state)
{
    struct model *m = begin();
    struct net n;

    (void)state;
    product(m);
    softmax(m, "scores", "weights");
    compare(end(m, "weights"), PLAN_EVAL, &n);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    net_close(&n);
}

/* ---- forms that are not fused ---- */

static void trained_bias_of_scores_is_not_fused(void **state)
{
    struct model *m = begin();

    (void)state;
    model_weights(m, "bias", shape_of(3, (int64_t)HEADS, (int64_t)LONG, (int64_t)LONG), 31);
    product(m);
    model_node(m, "Add", "scores bias", "biased");
    softmax(m, "biased", "weights");
    not_fused(end(m, "weights"));

    m = begin(); /* as far away as possible */
    model_weights(m, "bias", shape_of(3, (int64_t)HEADS, (int64_t)LONG, (int64_t)LONG), 31);
    model_node(m, "Exp", "bias", "positive");
    model_node(m, "Neg", "positive", "negative");
    product(m);
    model_node(m, "Add", "negative scores", "biased");
    softmax(m, "biased", "weights");
    not_fused(end(m, "weights"));
}

static void scores_with_another_reader_are_not_fused(void **state)
{
    struct model *m = begin();

    (void)state;
    product(m);
    softmax(m, "scores", "weights");
    model_node(m, "Mul", "weights weights", "squares");
    model_node(m, "Add", "squares weights", "more");
    not_fused(end(m, "more"));

    m = begin();
    product(m);
    softmax(m, "scores", "weights");
    end(m, "weights");
    {
        static const char *const keep[] = { "logits", "weights" };
        struct net n = net_open_keep(net_import_model(m, NULL), PLAN_TRAIN, BATCH, keep, 2);

        assert_int_equal(nodes_of(&n, "Attention"), 0);
        net_close(&n);
        model_free(m);
    }
}

static void softmax_of_another_axis_or_unknown_step_is_not_fused(void **state)
{
    struct model *m = begin();

    (void)state;
    product(m);
    model_node(m, "Softmax", "scores", "weights");
    model_int(m, "axis", 2);
    not_fused(end(m, "weights"));

    m = begin();
    product(m);
    model_node(m, "Erf", "scores", "bent");
    softmax(m, "bent", "weights");
    not_fused(end(m, "weights"));

    m = begin(); /* scores multiplied with themselves */
    product(m);
    model_node(m, "Relu", "scores", "some");
    softmax(m, "some", "weights");
    not_fused(end(m, "weights"));
}

static void few_scores_are_not_fused(void **state)
{
    static const int64_t heads[] = { 0, 0, HEADS, EACH }, flat[] = { 0, 8 * WIDE };
    struct model *m = model_new(17);

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)8, (int64_t)WIDE));
    model_int64s(m, "heads", heads, 4);
    model_int64s(m, "flat", flat, 2);
    model_weights(m, "w", shape_of(2, (int64_t)WIDE, (int64_t)WIDE), 11);
    model_node(m, "MatMul", "x w", "p");
    model_node(m, "Reshape", "p heads", "q");
    transpose(m, "q", "qt", heads_first, 4);
    transpose(m, "q", "kt", keys_last, 4);
    model_node(m, "MatMul", "qt kt", "scores");
    softmax(m, "scores", "weights");
    model_node(m, "MatMul", "weights qt", "y");
    transpose(m, "y", "yt", heads_first, 4);
    model_node(m, "Reshape", "yt flat", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(8 * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head", "logits");
    model_output(m, "logits");
    not_fused(m);
}

/* k or v [n, t, each] of one head, repeated for all heads of q, as PyTorch 2.15 exports grouped
 * heads. */
static void shared_head(struct model *m, const char *part, uint64_t seed)
{
    char name[6][16], line[64];

    for (uint32_t i = 0; i < 6; i++)
        snprintf(name[i], sizeof(name[i]), "%s%u", part, i);
    model_weights(m, name[0], shape_of(2, (int64_t)WIDE, (int64_t)EACH), seed);
    snprintf(line, sizeof(line), "x %s", name[0]);
    model_node(m, "MatMul", line, name[1]);
    snprintf(line, sizeof(line), "%s one_head", name[1]);
    model_node(m, "Reshape", line, name[2]);
    transpose(m, name[2], name[3], heads_first, 4);
    snprintf(line, sizeof(line), "%s second", name[3]);
    model_node(m, "Unsqueeze", line, name[4]);
    snprintf(line, sizeof(line), "%s repeated", name[4]);
    model_node(m, "Expand", line, name[5]);
    snprintf(line, sizeof(line), "%s all_heads", name[5]);
    model_node(m, "Reshape", line, part);
}

static void onnx_attention_reads_shared_heads_in_place(void **state)
{
    static const int64_t heads[] = { 0, 0, HEADS, EACH }, one[] = { 0, 0, 1, EACH }, second[] = { 2 },
                         repeated[] = { 1, 1, HEADS, 1, 1 }, all[] = { 0, HEADS, LONG, EACH },
                         flat[] = { 0, LONG * WIDE };
    struct model *m = model_new(24);
    struct net n;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)LONG, (int64_t)WIDE));
    model_int64s(m, "heads", heads, 4);
    model_int64s(m, "one_head", one, 4);
    model_int64s(m, "second", second, 1);
    model_int64s(m, "repeated", repeated, 5);
    model_int64s(m, "all_heads", all, 4);
    model_weights(m, "wq", shape_of(2, (int64_t)WIDE, (int64_t)WIDE), 11);
    model_node(m, "MatMul", "x wq", "pq");
    model_node(m, "Reshape", "pq heads", "q");
    transpose(m, "q", "qt", heads_first, 4);
    shared_head(m, "k", 12);
    shared_head(m, "v", 13);
    causal(m);
    model_node(m, "Not", "mask", "seen");
    model_node(m, "Attention", "qt k v seen", "y");
    transpose(m, "y", "yt", heads_first, 4);
    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "yt flat", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head", "logits");
    model_output(m, "logits");
    compare(m, PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    assert_int_equal(nodes_of(&n, "Expand"), 0);
    assert_int_equal(nodes_of(&n, "Transpose"), 0);
    for (size_t i = 0; i < n.plan->nodes.n; i++)
        if (strcmp(n.plan->nodes.at[i].def->name, "Attention") == 0)
            assert_int_equal(n.plan->nodes.at[i].n_in, 3); /* the mask is converted to a band */
    net_close(&n);
}

static void onnx_attention_reads_thirds_of_one_product(void **state)
{
    static const int64_t flat[] = { 0, LONG * WIDE };
    struct model *m = model_new(24);
    struct net n;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(3, (int64_t)-1, (int64_t)LONG, (int64_t)WIDE));
    model_weights(m, "w", shape_of(2, (int64_t)WIDE, (int64_t)(3 * WIDE)), 11);
    model_node(m, "MatMul", "x w", "qkv");
    model_node(m, "Split", "qkv", "q k v");
    model_int(m, "axis", -1);
    model_int(m, "num_outputs", 3);
    model_node(m, "Attention", "q k v", "y");
    model_int(m, "q_num_heads", HEADS);
    model_int(m, "kv_num_heads", HEADS);
    model_int(m, "is_causal", 1);
    model_int64s(m, "flat", flat, 2);
    model_node(m, "Reshape", "y flat", "joined");
    model_weights(m, "head", shape_of(2, (int64_t)(LONG * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "joined head", "logits");
    model_output(m, "logits");
    compare(m, PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Attention"), 1);
    assert_int_equal(nodes_of(&n, "Split"), 0);
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_gpt2_is_fused),
        cmocka_unit_test(attention_of_pytorch_export_is_fused),
        cmocka_unit_test(attention_of_hugging_face_with_fed_mask_is_fused),
        cmocka_unit_test(attention_of_multihead_attention_with_three_axes_is_fused),
        cmocka_unit_test(thirds_of_one_product_are_read_in_place),
        cmocka_unit_test(fused_dropout_drops_the_same_elements),
        cmocka_unit_test(uniform_mask_value_is_fused_as_a_number),
        cmocka_unit_test(evaluation_plan_is_fused_too),
        cmocka_unit_test(trained_bias_of_scores_is_not_fused),
        cmocka_unit_test(scores_with_another_reader_are_not_fused),
        cmocka_unit_test(softmax_of_another_axis_or_unknown_step_is_not_fused),
        cmocka_unit_test(few_scores_are_not_fused),
        cmocka_unit_test(onnx_attention_reads_shared_heads_in_place),
        cmocka_unit_test(onnx_attention_reads_thirds_of_one_product),
    };

    return cmocka_run_group_tests_name("graph/fuse_attention", tests, NULL, NULL);
}
