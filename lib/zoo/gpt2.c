/* gpt2.c - GPT-2: A. Radford et al., "Language models are unsupervised multitask learners", 2019
 * (the smallest: 124 439 808 numbers; the output layer is the embedding of the tokens). Weights are
 * normal with deviation 0.02, those that end a residual branch with 0.02 / sqrt(2 layers). */
#include "zoo/zoo_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct gpt2 {
    struct zoo_net *n;
    int64_t width, heads, sequence, layers;
    float dropout;
};

const char *zoo_check_gpt2(const struct zoo_net *n)
{
    if (zoo_value(n, "width") % zoo_value(n, "heads") != 0)
        return "heads must divide width";
    if (zoo_value(n, "sequence") > zoo_value(n, "context"))
        return "sequence must be at most context";
    return NULL;
}

/* out = in W + b with W [from, to], like Hugging Face's Conv1D. */
static void dense(struct gpt2 *g, const char *name, const char *in, const char *out, int64_t from,
                  int64_t to, double deviation)
{
    char weight[ZOO_NAME], bias[ZOO_NAME], product[ZOO_NAME];

    snprintf(weight, sizeof(weight), "%s.weight", name);
    snprintf(bias, sizeof(bias), "%s.bias", name);
    snprintf(product, sizeof(product), "%s.product", name);
    zoo_normal(g->n, weight, shape_of(2, from, to), deviation);
    zoo_fill(g->n, bias, shape_of(1, to), 0);
    zoo_node(g->n, "MatMul", product, "%s %s", in, weight);
    zoo_node(g->n, "Add", out, "%s %s", product, bias);
}

static void layer_norm(struct gpt2 *g, const char *name, const char *in, const char *out)
{
    char weight[ZOO_NAME], bias[ZOO_NAME];

    snprintf(weight, sizeof(weight), "%s.weight", name);
    snprintf(bias, sizeof(bias), "%s.bias", name);
    zoo_fill(g->n, weight, shape_of(1, g->width), 1);
    zoo_fill(g->n, bias, shape_of(1, g->width), 0);
    zoo_node(g->n, "LayerNormalization", out, "%s %s %s", in, weight, bias);
    build_int(g->n->b, "axis", -1);
    build_float(g->n->b, "epsilon", 1e-5f);
}

/* Appends a Dropout to `value`, which then names its output. Adds no node if dropout is 0. */
static const char *dropped(struct gpt2 *g, char *value)
{
    char out[ZOO_NAME];

    if (g->dropout == 0)
        return value;
    snprintf(out, sizeof(out), "%.*s.drop", ZOO_NAME - 8, value);
    zoo_node(g->n, "Dropout", out, "%s dropout training", value);
    snprintf(value, ZOO_NAME, "%s", out);
    return value;
}

static void reshape(struct gpt2 *g, const char *in, const char *out, const char *shape)
{
    zoo_node(g->n, "Reshape", out, "%s %s", in, shape);
}

static void transpose(struct gpt2 *g, const char *in, const char *out, const int64_t perm[4])
{
    zoo_node(g->n, "Transpose", out, "%s", in);
    build_ints(g->n->b, "perm", perm, 4);
}

/* softmax(q k^T / sqrt(d) + mask) v, the heads concatenated. */
static void attention(struct gpt2 *g, const char *block, const char *in, const char *out)
{
    static const char *const parts[] = { "q", "k", "v" };
    static const int64_t heads_first[4] = { 0, 2, 1, 3 }, keys_last[4] = { 0, 2, 3, 1 };
    char name[ZOO_NAME], all[ZOO_NAME], outputs[4 * ZOO_NAME], a[ZOO_NAME], c[ZOO_NAME];
    double last = 0.02 / sqrt(2.0 * (double)g->layers);
    int i;

    snprintf(name, sizeof(name), "%s.attn.c_attn", block);
    snprintf(all, sizeof(all), "%s.qkv", block);
    dense(g, name, in, all, g->width, 3 * g->width, 0.02);
    snprintf(outputs, sizeof(outputs), "%s.q %s.k %s.v", block, block, block);
    zoo_node(g->n, "Split", outputs, "%s three", all);
    build_int(g->n->b, "axis", -1);
    for (i = 0; i < 3; i++) {
        snprintf(a, sizeof(a), "%s.%s", block, parts[i]);
        snprintf(name, sizeof(name), "%s.heads", a);
        snprintf(c, sizeof(c), "%s.turned", a);
        reshape(g, a, name, "to_heads");
        transpose(g, name, c, i == 1 ? keys_last : heads_first);
    }
    snprintf(a, sizeof(a), "%s.scores", block);
    zoo_node(g->n, "MatMul", a, "%s.q.turned %s.k.turned", block, block);
    snprintf(c, sizeof(c), "%s.scaled", block);
    zoo_node(g->n, "Mul", c, "%s scale", a);
    snprintf(a, sizeof(a), "%s.masked", block);
    zoo_node(g->n, "Where", a, "mask %s lowest", c);
    snprintf(c, sizeof(c), "%s.weights", block);
    zoo_node(g->n, "Softmax", c, "%s", a);
    build_int(g->n->b, "axis", -1);
    (void)dropped(g, c);
    snprintf(a, sizeof(a), "%s.mixed", block);
    zoo_node(g->n, "MatMul", a, "%s %s.v.turned", c, block);
    snprintf(c, sizeof(c), "%s.turned", block);
    transpose(g, a, c, heads_first);
    snprintf(a, sizeof(a), "%s.joined", block);
    reshape(g, c, a, "to_width");
    snprintf(name, sizeof(name), "%s.attn.c_proj", block);
    dense(g, name, a, out, g->width, g->width, last);
}

static void transformer_block(struct gpt2 *g, int64_t i, char *at)
{
    char block[ZOO_NAME], name[ZOO_NAME], a[ZOO_NAME], c[ZOO_NAME], sum[ZOO_NAME];
    double last = 0.02 / sqrt(2.0 * (double)g->layers);

    snprintf(block, sizeof(block), "transformer.h.%d", (int)i);
    snprintf(name, sizeof(name), "%s.ln_1", block);
    snprintf(a, sizeof(a), "%s.out", name);
    layer_norm(g, name, at, a);
    snprintf(c, sizeof(c), "%s.attention", block);
    attention(g, block, a, c);
    (void)dropped(g, c);
    snprintf(sum, sizeof(sum), "%s.sum_1", block);
    zoo_node(g->n, "Add", sum, "%s %s", at, c);
    snprintf(name, sizeof(name), "%s.ln_2", block);
    snprintf(a, sizeof(a), "%s.out", name);
    layer_norm(g, name, sum, a);
    snprintf(name, sizeof(name), "%s.mlp.c_fc", block);
    snprintf(c, sizeof(c), "%s.wide", block);
    dense(g, name, a, c, g->width, 4 * g->width, 0.02);
    snprintf(a, sizeof(a), "%s.gelu", block);
    zoo_node(g->n, "Gelu", a, "%s", c);
    build_string(g->n->b, "approximate", "tanh");
    snprintf(name, sizeof(name), "%s.mlp.c_proj", block);
    snprintf(c, sizeof(c), "%s.narrow", block);
    dense(g, name, a, c, 4 * g->width, g->width, last);
    (void)dropped(g, c);
    snprintf(a, sizeof(a), "%s.sum_2", block);
    zoo_node(g->n, "Add", a, "%s %s", sum, c);
    snprintf(at, ZOO_NAME, "%s", a);
}

/* Constant nodes: the shapes, the mask and the scalars of the formulas. */
static void constants(struct gpt2 *g)
{
    struct zoo_net *n = g->n;
    int64_t t = g->sequence, each = g->width / g->heads, i, k;
    const int64_t to_heads[4] = { 0, 0, g->heads, each }, to_width[3] = { 0, 0, g->width };
    const int64_t three[3] = { g->width, g->width, g->width }, zero = 0;
    float scale = (float)(1 / sqrt((double)each)), lowest = -3.4028234663852886e38f;
    uint8_t *mask = build_alloc(n->b, (size_t)t, (size_t)t), yes = 1;

    for (i = 0; mask != NULL && i < t; i++)
        for (k = 0; k <= i; k++)
            mask[i * t + k] = 1;
    if (mask != NULL)
        build_data(n->b, "mask", TENSOR_BOOL, shape_of(4, (int64_t)1, (int64_t)1, t, t), mask);
    build_constant(n->b, "to_heads", TENSOR_I64, shape_of(1, (int64_t)4), to_heads);
    build_constant(n->b, "to_width", TENSOR_I64, shape_of(1, (int64_t)3), to_width);
    build_constant(n->b, "three", TENSOR_I64, shape_of(1, (int64_t)3), three);
    build_constant(n->b, "scale", TENSOR_F32, shape_of(0), &scale);
    build_constant(n->b, "lowest", TENSOR_F32, shape_of(0), &lowest);
    build_constant(n->b, "zero", TENSOR_I64, shape_of(1, (int64_t)1), &zero);
    build_constant(n->b, "length", TENSOR_I64, shape_of(1, (int64_t)1), &t);
    if (g->dropout > 0) {
        build_constant(n->b, "dropout", TENSOR_F32, shape_of(0), &g->dropout);
        build_constant(n->b, "training", TENSOR_BOOL, shape_of(0), &yes);
    }
}

void zoo_make_gpt2(struct zoo_net *n)
{
    struct gpt2 g = { .n = n,
                      .width = zoo_value(n, "width"),
                      .heads = zoo_value(n, "heads"),
                      .sequence = zoo_value(n, "sequence"),
                      .layers = zoo_value(n, "layers"),
                      .dropout = (float)zoo_value(n, "dropout_percent") / 100.0f };
    int64_t vocabulary = zoo_value(n, "vocabulary"), i;
    char at[ZOO_NAME] = "embedded";

    build_input(n->b, "ids", TENSOR_I64, shape_of(2, (int64_t)-1, g.sequence));
    constants(&g);
    zoo_normal(n, "transformer.wte.weight", shape_of(2, vocabulary, g.width), 0.02);
    zoo_normal(n, "transformer.wpe.weight", shape_of(2, zoo_value(n, "context"), g.width), 0.02);
    zoo_node(n, "Gather", "tokens", "transformer.wte.weight ids");
    zoo_node(n, "Slice", "positions", "transformer.wpe.weight zero length zero");
    zoo_node(n, "Add", "embedded", "tokens positions");
    (void)dropped(&g, at);
    for (i = 0; i < g.layers; i++)
        transformer_block(&g, i, at);
    layer_norm(&g, "transformer.ln_f", at, "final");
    zoo_node(n, "Transpose", "wte_turned", "transformer.wte.weight");
    zoo_node(n, "MatMul", "logits", "final wte_turned");
    build_output(n->b, "logits", TENSOR_F32, shape_of(3, (int64_t)-1, g.sequence, vocabulary));
}
