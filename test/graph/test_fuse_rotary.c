/* Rotary embedding, gated products and RMSNorm with 1 + w, as transformers writes them, and near
 * misses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "graph/fuse_kit.h"
#include "harness/model.h"
#include "harness/net.h"

enum { T = 5, HEADS = 2, EACH = 6, WIDE = HEADS * EACH };

struct form { /* deviations from the fused form */
    int64_t axis, start, end;
    bool swapped, positive, split, read, is_trained;
    int64_t shift; /* of the second half */
};

static const struct form plain = { .axis = 3, .end = EACH / 2 };

static void number(struct model *m, const char *name, float value)
{
    model_node(m, "Constant", "", name);
    model_float(m, "value_float", value);
}

static void int_of(struct model *m, const char *name, int64_t value)
{
    model_int64s(m, name, &value, 1);
}

/* "cos" and "sin" [1, 1, t, each], known constants or trained. */
static void angles(struct model *m, bool is_trained)
{
    static const int64_t column[] = { T, 1 }, whole[] = { 1, 1, T, EACH }, from[] = { 0 }, to[] = { T }, by[] = { 1 };

    model_int64s(m, "from1", from, 1);
    model_int64s(m, "to1", to, 1);
    model_int64s(m, "by1", by, 1);
    model_int64s(m, "column", column, 2);
    model_int64s(m, "whole", whole, 4);
    model_node(m, "Squeeze", "from1", "from");
    model_node(m, "Squeeze", "to1", "to");
    model_node(m, "Squeeze", "by1", "by");
    model_node(m, "Range", "from to by", "steps");
    model_node(m, "Cast", "steps", "positions");
    model_int(m, "to", TENSOR_F32);
    model_node(m, "Reshape", "positions column", "position");
    if (is_trained)
        model_weights(m, "frequency", shape_of(1, (int64_t)EACH), 4);
    else
        number(m, "frequency", 0.7f);
    model_node(m, "Mul", "position frequency", "angle2");
    model_node(m, "Expand", "angle2 wide2", "angle1");
    model_node(m, "Reshape", "angle1 whole", "angle");
    model_node(m, "Cos", "angle", "cos");
    model_node(m, "Sin", "angle", "sin");
}

static struct model *begin(void)
{
    struct model *m = model_new(18);

    static const int64_t apart[] = { -1, T, HEADS, EACH }, first[] = { 0, 2, 1, 3 }, wide[] = { T, EACH };

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)(T * WIDE)));
    model_weights(m, "w", shape_of(2, (int64_t)(T * WIDE), (int64_t)(T * WIDE)), 3);
    model_int64s(m, "apart", apart, 4);
    model_int64s(m, "wide2", wide, 2);
    model_node(m, "MatMul", "x w", "p");
    model_node(m, "Reshape", "p apart", "heads");
    model_node(m, "Transpose", "heads", "q");
    model_ints(m, "perm", first, 4);
    return m;
}

static struct model *end(struct model *m, const char *last)
{
    model_node(m, "Flatten", last, "flat");
    model_weights(m, "head", shape_of(2, (int64_t)(T * WIDE), (int64_t)CLASSES), 21);
    model_node(m, "MatMul", "flat head", "logits");
    model_output(m, "logits");
    return m;
}

/* q cos + rotated(q) sin -> "rotated" */
static struct model *rotary(const struct form *f)
{
    struct model *m = begin();

    angles(m, f->is_trained);
    int_of(m, "axis", f->axis);
    int_of(m, "start", f->start);
    int_of(m, "half", EACH / 2 + f->shift);
    int_of(m, "end", f->end);
    int_of(m, "most", f->shift != 0 ? EACH + f->shift : INT64_MAX);
    model_node(m, "Mul", "q cos", "straight");
    if (f->split) {
        model_node(m, "Split", "q", "low high");
        model_int(m, "axis", -1);
        model_int(m, "num_outputs", 2);
    } else {
        model_node(m, "Slice", "q start end axis", "low");
        model_node(m, "Slice", "q half most axis", "high");
    }
    model_node(m, f->positive ? "Abs" : "Neg", f->swapped ? "low" : "high", "minus");
    model_node(m, "Concat", f->swapped ? "high minus" : "minus low", "turned");
    model_int(m, "axis", -1);
    model_node(m, "Mul", "sin turned", "across");
    model_node(m, "Add", "straight across", "rotated");
    if (f->read) {
        model_node(m, "Add", "rotated turned", "more");
        return end(m, "more");
    }
    return end(m, "rotated");
}

static void rotary_embedding_with_transpose_is_fused(void **state)
{
    const struct form split = { .split = true };
    struct net n;

    (void)state;
    compare(rotary(&plain), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Rotary"), 1);
    assert_int_equal(nodes_of(&n, "Transpose") + nodes_of(&n, "Slice") + nodes_of(&n, "Concat"), 0);
    net_close(&n);
    compare(rotary(&split), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Rotary"), 1);
    assert_int_equal(nodes_of(&n, "Transpose") + nodes_of(&n, "Split") + nodes_of(&n, "Concat"), 0);
    net_close(&n);
}

static void not_rotary(struct form f)
{
    struct model *m = rotary(&f);
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);

    assert_int_equal(nodes_of(&n, "Rotary"), 0);
    net_close(&n);
    model_free(m);
}

static void rotary_near_miss_is_not_fused(void **state)
{
    struct form f = plain;

    (void)state;
    f.positive = true; /* no change of sign */
    not_rotary(f);
    f = plain;
    f.swapped = true; /* the first half is negated instead of the second */
    not_rotary(f);
    f = plain;
    f.shift = -1; /* halves that overlap */
    not_rotary(f);
    f = plain;
    f.read = true; /* another node reads the rotated half */
    not_rotary(f);
    f = plain;
    f.is_trained = true; /* angles with a gradient */
    not_rotary(f);
}

/* ---- gated products ---- */

static struct model *gated(const char *gate, const char *approximate, bool square)
{
    struct model *m = begin();

    model_weights(m, "u", shape_of(2, (int64_t)(T * WIDE), (int64_t)(T * WIDE)), 6);
    model_node(m, "MatMul", "x u", "up");
    if (strcmp(gate, "Swish") == 0) {
        model_node(m, "Sigmoid", "p", "s");
        model_node(m, "Mul", "p s", "a");
    } else {
        model_node(m, gate, "p", "a");
        if (approximate != NULL)
            model_string(m, "approximate", approximate);
    }
    model_node(m, "Mul", square ? "a a" : "up a", "y");
    return end(m, "y");
}

static void gated_product_is_fused(void **state)
{
    struct net n;

    (void)state;
    compare(gated("Swish", NULL, false), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Gated"), 1);
    assert_int_equal(nodes_of(&n, "Mul") + nodes_of(&n, "Swish"), 0);
    net_close(&n);
    compare(gated("Sigmoid", NULL, false), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "Gated"), 1);
    net_close(&n);
}

static void square_of_an_activation_is_not_fused(void **state)
{
    struct model *m = gated("Swish", NULL, true);
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);

    (void)state;
    assert_int_equal(nodes_of(&n, "Gated"), 0);
    net_close(&n);
    model_free(m);
}

/* ---- RMSNorm ---- */

enum norm_form { ONE_PLUS_W, MEAN_OF_ALL, OTHER_INPUT, CUBE };

static struct model *norm(enum norm_form form)
{
    static const int64_t last[] = { -1 }, all[] = { 1, 2, 3 };
    struct model *m = begin();

    number(m, "two", form == CUBE ? 3.0f : 2.0f);
    number(m, "one", 1);
    number(m, "epsilon", 1e-6f);
    model_int64s(m, "last", form == MEAN_OF_ALL ? all : last, form == MEAN_OF_ALL ? 3 : 1);
    model_node(m, "Pow", "q two", "square");
    model_node(m, "ReduceMean", "square last", "mean");
    model_node(m, "Add", "mean epsilon", "sum");
    model_node(m, "Sqrt", "sum", "root");
    model_node(m, "Reciprocal", "root", "inverse");
    model_node(m, "Abs", "q", "size");
    model_node(m, "Mul", form == OTHER_INPUT ? "size inverse" : "q inverse", "normal");
    model_weights(m, "g", shape_of(1, (int64_t)EACH), 8);
    model_node(m, "Add", "g one", "scale");
    model_node(m, "Mul", "normal scale", "y");
    model_node(m, "CastLike", "y q", "same");
    return end(m, "same");
}

static void rms_norm_with_one_plus_w_is_fused(void **state)
{
    struct net n;

    (void)state;
    compare(norm(ONE_PLUS_W), PLAN_TRAIN, &n);
    assert_int_equal(nodes_of(&n, "RMSNormalization"), 1);
    assert_int_equal(nodes_of(&n, "Mul") + nodes_of(&n, "Pow") + nodes_of(&n, "CastLike"), 0);
    net_close(&n);
}

static void rms_norm_near_miss_is_not_fused(void **state)
{
    (void)state;
    for (enum norm_form f = MEAN_OF_ALL; f <= CUBE; f++) {
        struct model *m = norm(f);
        struct net n = net_open_model(m, PLAN_EVAL, BATCH);

        assert_int_equal(nodes_of(&n, "RMSNormalization"), 0);
        net_close(&n);
        model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotary_embedding_with_transpose_is_fused),
        cmocka_unit_test(rotary_near_miss_is_not_fused),
        cmocka_unit_test(gated_product_is_fused),
        cmocka_unit_test(square_of_an_activation_is_not_fused),
        cmocka_unit_test(rms_norm_with_one_plus_w_is_fused),
        cmocka_unit_test(rms_norm_near_miss_is_not_fused),
    };

    return cmocka_run_group_tests_name("graph/fuse_rotary", tests, NULL, NULL);
}
