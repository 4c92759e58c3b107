/* dlrm.c - DLRM: M. Naumov et al., "Deep learning recommendation model for personalization and
 * recommendation systems", 2019, with the layers of its Criteo example (dense-512-256-64-width,
 * interactions-512-256-1) and its initial weights. The output is the logit of a click. */
#include "zoo/zoo_priv.h"

#include <math.h>
#include <stdio.h>

/* Layers with Relu, named `name`.0, .2, ...; the last has no Relu if `ends`. */
static void tower(struct zoo_net *n, const char *name, const char *in, const char *out,
                  const int64_t *widths, int layers, bool ends)
{
    char at[ZOO_NAME], layer[ZOO_NAME], next[ZOO_NAME], weight[ZOO_NAME], bias[ZOO_NAME];
    int i;

    snprintf(at, sizeof(at), "%s", in);
    for (i = 0; i < layers; i++) {
        bool last = i + 1 == layers;
        double from = (double)widths[i], to = (double)widths[i + 1];

        snprintf(layer, sizeof(layer), "%s.%d", name, 2 * i);
        snprintf(weight, sizeof(weight), "%s.weight", layer);
        snprintf(bias, sizeof(bias), "%s.bias", layer);
        zoo_normal(n, weight, shape_of(2, widths[i + 1], widths[i]), sqrt(2 / (from + to)));
        zoo_normal(n, bias, shape_of(1, widths[i + 1]), sqrt(1 / to));
        snprintf(next, sizeof(next), "%s%s", last && ends ? out : layer,
                 last && ends ? "" : ".out");
        zoo_node(n, "Gemm", next, "%s %s %s", at, weight, bias);
        build_int(n->b, "transB", 1);
        if (last && ends)
            return;
        snprintf(at, sizeof(at), "%s%s", last ? out : layer, last ? "" : ".relu");
        zoo_node(n, "Relu", at, "%s", next);
    }
}

/* The constant `pairs`: indices of the products (i, j < i) in the flattened [all, all] matrix. */
static void pairs(struct zoo_net *n, int64_t all)
{
    int64_t *places = build_alloc(n->b, (size_t)(all * (all - 1) / 2), sizeof(*places));
    int64_t i, j, k = 0;

    for (i = 0; places != NULL && i < all; i++)
        for (j = 0; j < i; j++)
            places[k++] = i * all + j;
    if (places != NULL)
        build_constant(n->b, "pairs", TENSOR_I64, shape_of(1, k), places);
}

static void embeddings(struct zoo_net *n, int64_t tables, int64_t rows, int64_t width)
{
    char name[ZOO_NAME], at[ZOO_NAME], out[ZOO_NAME];
    int64_t i;

    build_input(n->b, "sparse", TENSOR_I64, shape_of(2, (int64_t)-1, tables));
    for (i = 0; i < tables; i++) {
        snprintf(name, sizeof(name), "emb_l.%d.weight", (int)i);
        snprintf(at, sizeof(at), "table%d", (int)i);
        build_constant(n->b, at, TENSOR_I64, shape_of(0), &i);
        zoo_uniform(n, name, shape_of(2, rows, width), 1 / sqrt((double)rows));
        snprintf(out, sizeof(out), "index%d", (int)i);
        zoo_node(n, "Gather", out, "sparse %s", at);
        build_int(n->b, "axis", 1);
        snprintf(at, sizeof(at), "embedding%d", (int)i);
        zoo_node(n, "Gather", at, "%s %s", name, out);
    }
}

/* Concatenates the dense part and the embeddings along axis 1. */
static void join(struct zoo_net *n, int64_t tables)
{
    size_t cap = (size_t)(tables + 1) * 24, len;
    char *names = build_alloc(n->b, cap, 1);
    int64_t i;

    if (names == NULL)
        return;
    len = (size_t)snprintf(names, cap, "bottom");
    for (i = 0; i < tables; i++)
        len += (size_t)snprintf(names + len, cap - len, " embedding%d", (int)i);
    build_node(n->b, "Concat", names, "side_by_side");
    build_int(n->b, "axis", 1);
}

void zoo_make_dlrm(struct zoo_net *n)
{
    int64_t tables = zoo_value(n, "tables"), width = zoo_value(n, "width"), all = tables + 1;
    const int64_t bottom[] = { zoo_value(n, "dense"), 512, 256, 64, width };
    const int64_t top[] = { width + all * (all - 1) / 2, 512, 256, 1 };
    const int64_t as_rows[3] = { 0, all, width }, as_row[2] = { 0, all * all };

    build_input(n->b, "dense", TENSOR_F32, shape_of(2, (int64_t)-1, bottom[0]));
    embeddings(n, tables, zoo_value(n, "rows"), width);
    tower(n, "bot_l", "dense", "bottom", bottom, 4, false);
    join(n, tables);
    build_constant(n->b, "as_rows", TENSOR_I64, shape_of(1, (int64_t)3), as_rows);
    build_constant(n->b, "as_row", TENSOR_I64, shape_of(1, (int64_t)2), as_row);
    pairs(n, all);
    zoo_node(n, "Reshape", "rows", "side_by_side as_rows");
    zoo_node(n, "Transpose", "columns", "rows");
    build_ints(n->b, "perm", (int64_t[]){ 0, 2, 1 }, 3);
    zoo_node(n, "MatMul", "products", "rows columns");
    zoo_node(n, "Reshape", "products_row", "products as_row");
    zoo_node(n, "Gather", "interactions", "products_row pairs");
    build_int(n->b, "axis", 1);
    zoo_node(n, "Concat", "together", "bottom interactions");
    build_int(n->b, "axis", 1);
    tower(n, "top_l", "together", "logit", top, 3, true);
    build_output(n->b, "logit", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)1));
}
