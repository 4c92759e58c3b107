/* Language models written by transformers and PyTorch's exporter (make_current.py): the nodes of
 * the plan, and its loss and gradients compared with PyTorch's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "graph/graph.h"
#include "graph/plan_priv.h"

#define FOLDER "test/graph/data/current/"
enum { BATCH = 2, LENGTH = 64, WORDS = 32, LAYERS = 2 };

struct network {
    struct graph *graph;
    struct plan *plan;
    float *params, *grads;
    void *work;
};

/* The files lack the exporter's metadata, which state that these are buffers. A pattern without a
 * match is refused, so the first set of patterns that all match is used. */
static struct graph *import(const char *path)
{
    static const char *const frozen[] = { "*inv_freq", "*embed_scale" };
    struct graph_opts from = { .path = path, .frozen = frozen };
    struct err err = { 0 };
    struct graph *g;

    for (from.n_frozen = COUNT_OF(frozen);; from.n_frozen--) {
        if (graph_import(&from, &g, &err) == 0)
            return g;
        if (from.n_frozen == 0)
            fail_msg("%s", err.text);
    }
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);

    assert_non_null(p);
    memset(p, 0, bytes);
    return p;
}

static struct network open_network(const char *name, bool padded)
{
    struct plan_feed feeds[] = { { .name = "ids", .dtype = TENSOR_I64, .shape = shape_of(1, (int64_t)LENGTH) },
                                 { .name = "mask", .dtype = TENSOR_I64, .shape = shape_of(1, (int64_t)LENGTH) } };
    struct plan_opts o = { .purpose = PLAN_TRAIN, .batch = BATCH, .feeds = feeds, .n_feeds = padded ? 2 : 1,
                           .sum_outputs = true };
    const struct graph_param *p;
    struct network n = { NULL };
    struct err err = { 0 };
    char path[160];
    uint32_t count;
    size_t bytes;

    snprintf(path, sizeof(path), FOLDER "%s.onnx", name);
    n.graph = import(path);
    if (plan_new(n.graph, &o, &n.plan, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    bytes = graph_arena_floats(n.graph) * sizeof(float);
    n.params = allocate(bytes);
    n.grads = allocate(bytes);
    n.work = allocate(plan_work_bytes(n.plan));
    p = graph_params(n.graph, &count);
    for (uint32_t i = 0; i < count; i++)
        memcpy(n.params + p[i].offset, p[i].initial, p[i].elements * sizeof(float));
    plan_bind(n.plan, n.params, n.work);
    return n;
}

static void close_network(struct network *n)
{
    plan_free(n->plan);
    graph_free(n->graph);
    free(n->params);
    free(n->grads);
    free(n->work);
}

/* The tokens and the mask of make_current.py. */
static void fill(struct network *n, bool padded)
{
    int64_t *ids = plan_input(n->plan, 0)->data,
            *mask = padded ? plan_input(n->plan, 1)->data : NULL;
    float *weights = plan_input(n->plan, padded ? 2 : 1)->data;

    for (int64_t b = 0; b < BATCH; b++) {
        weights[b] = 1;
        for (int64_t t = 0; t < LENGTH; t++) {
            ids[b * LENGTH + t] = (7 * b + 3 * t + t * t / 5) % WORDS;
            if (padded)
                mask[b * LENGTH + t] = t < LENGTH - 3 - 7 * b;
        }
    }
}

static void close_to(const char *what, const char *of, double found, double want, double scale)
{
    if (!(fabs(found - want) <= 2e-4 * (fabs(want) + scale) + 1e-5))
        fail_msg("%s of '%s': found %.9g, PyTorch has %.9g", what, of, found, want);
}

/* Every parameter of the graph must be one of PyTorch's and have its gradient. */
static void expect_pytorch(const struct network *n, const char *name, double loss)
{
    const struct graph_param *p;
    uint32_t count, found = 0;
    char path[160], line[256], of[160];
    double length, product;
    FILE *f;

    snprintf(path, sizeof(path), FOLDER "%s.txt", name);
    f = fopen(path, "r");
    assert_non_null(f);
    p = graph_params(n->graph, &count);
    while (fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "loss %lf", &length) == 1) {
            close_to("loss", name, loss, length, 1);
            continue;
        }
        assert_int_equal(sscanf(line, "%159s %lf %lf", of, &length, &product), 3);
        for (uint32_t i = 0; i < count; i++) {
            double square = 0, sum = 0;

            if (strcmp(p[i].name, of) != 0)
                continue;
            for (size_t k = 0; k < p[i].elements; k++) {
                double g = (double)n->grads[p[i].offset + k];

                square += g * g;
                sum += g * ((double)(k * 37 % 61) - 30) / 16;
            }
            close_to("length of the gradient", of, sqrt(square), length, 0);
            close_to("gradient", of, sum, product, length);
            found++;
        }
    }
    fclose(f);
    assert_true(found == count);
}

static uint32_t nodes_of(const struct network *n, const char *op)
{
    uint32_t found = 0;

    for (size_t i = 0; i < n->plan->nodes.n; i++)
        found += strcmp(n->plan->nodes.at[i].def->name, op) == 0;
    return found;
}

static void fail_with_nodes(const struct network *n, const char *name, uint32_t expected)
{
    struct buf text = { 0 };

    for (size_t i = 0; i < n->plan->nodes.n; i++) {
        const char *op = n->plan->nodes.at[i].def->name;
        size_t k = 0;

        while (strcmp(n->plan->nodes.at[k].def->name, op) != 0)
            k++;
        if (k == i)
            buf_printf(&text, " %s %u", op, nodes_of(n, op));
    }
    fail_msg("%s has %zu nodes; expected %u: there are%s", name, n->plan->nodes.n, expected,
             text.data);
}

struct expected {
    const char *op;
    uint32_t nodes;
};

/* Trains for a step and asserts that the plan has exactly these nodes and that each attention is
 * fused. */
static void check(const char *name, const char *reference, bool padded, const struct expected *want)
{
    struct network n = open_network(name, padded);
    struct op_run run = { .loss_scale = 1 };
    const struct plan_attention *a;
    struct err err = { 0 };
    uint32_t count, all = 0;

    a = plan_attentions(n.plan, &count);
    for (uint32_t i = 0; i < count; i++)
        if (!a[i].is_fused)
            fail_msg("%s: attention '%s' is not fused: %s", name, a[i].node, a[i].why);
    assert_int_equal(count, LAYERS);
    for (; want->op != NULL; want++) {
        uint32_t found = nodes_of(&n, want->op);

        all += found;
        if (found != want->nodes)
            fail_msg("%s has %u %s; expected %u", name, found, want->op, want->nodes);
    }
    if (all != n.plan->nodes.n)
        fail_with_nodes(&n, name, all);
    fill(&n, padded);
    assert_int_equal(plan_forward(n.plan, &run, &err), 0);
    assert_int_equal(plan_backward(n.plan, &run, n.grads, NULL, NULL, &err), 0);
    expect_pytorch(&n, reference, (double)plan_loss(n.plan));
    close_network(&n);
}

/* Per layer: 7 products, 2 rotations, the views of q, k, v and of the attention's output. */
static const struct expected llama[] = {
    { "Gather", 1 },     { "RMSNormalization", 1 }, { "RMSNormAdd", 4 }, { "MatMul", 15 }, { "Rotary", 4 },
    { "Attention", 2 },  { "Gated", 2 },            { "Reshape", 8 },    { "WeightedSum", 1 }, { NULL, 0 } };

static void llama_is_fused_to_the_expected_nodes(void **state)
{
    (void)state;
    check("llama", "llama", false, llama);
    check("mistral", "mistral", false, llama);
}

/* Norms of the heads of q and k before the rotation, which absorbs the Transpose. */
static void qwen3_is_fused_with_norms_of_its_heads(void **state)
{
    static const struct expected want[] = {
        { "Gather", 1 },    { "RMSNormalization", 5 }, { "RMSNormAdd", 4 }, { "MatMul", 15 }, { "Rotary", 4 },
        { "Attention", 2 }, { "Gated", 2 },            { "Reshape", 8 },    { "WeightedSum", 1 }, { NULL, 0 } };

    (void)state;
    check("qwen3", "qwen3", false, want);
}

/* 9 additions of 1 to a weight; the cap of the scores is a step of the attention, the cap of the
 * logits is separate ops. */
static void gemma2_is_fused_with_capped_scores(void **state)
{
    static const struct expected want[] = {
        { "Gather", 1 }, { "Mul", 2 },        { "Add", 9 },   { "RMSNormalization", 5 }, { "RMSNormAdd", 4 },
        { "MatMul", 15 }, { "Rotary", 4 },    { "Attention", 2 }, { "Gated", 2 },       { "Reshape", 8 },
        { "Div", 1 },    { "Tanh", 1 },       { "WeightedSum", 1 }, { NULL, 0 } };

    (void)state;
    check("gemma2", "gemma2", false, want);
}

/* q, k and v are read from the product that computes them. */
static void gpt2_is_fused_with_operands_in_place(void **state)
{
    static const struct expected want[] = {
        { "Gather", 2 },    { "Add", 1 },     { "LayerNormalization", 1 }, { "LayerNormAdd", 4 }, { "MatMul", 9 },
        { "Attention", 2 }, { "Reshape", 2 }, { "Gelu", 2 },               { "WeightedSum", 1 },  { NULL, 0 } };

    (void)state;
    check("gpt2", "gpt2", false, want);
}

/* The mask depends on an input: both layers read the same one. */
static void bert_with_padding_is_fused_with_one_shared_mask(void **state)
{
    static const struct expected want[] = {
        { "Gather", 3 },   { "Add", 2 },     { "LayerNormalization", 2 }, { "LayerNormAdd", 4 }, { "MatMul", 14 },
        { "Cast", 1 },     { "GatherND", 1 }, { "And", 1 },               { "Where", 1 },        { "Attention", 2 },
        { "Reshape", 8 },  { "Gelu", 3 },    { "WeightedSum", 1 },        { NULL, 0 } };

    (void)state;
    check("bert_padded", "bert_padded", true, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_is_fused_to_the_expected_nodes),
        cmocka_unit_test(qwen3_is_fused_with_norms_of_its_heads),
        cmocka_unit_test(gemma2_is_fused_with_capped_scores),
        cmocka_unit_test(gpt2_is_fused_with_operands_in_place),
        cmocka_unit_test(bert_with_padding_is_fused_with_one_shared_mask),
    };

    return cmocka_run_group_tests_name("graph/fuse_networks", tests, NULL, NULL);
}
