/* plan_batch.c - replaces batch sizes that an export wrote into the graph.
 *
 * A model exported with a fixed batch B has it in the shapes of its inputs, and often in constant
 * shapes of Reshape and Expand. Such a file can be trained with lanes of any size where the meaning
 * of the number is certain: it is the first axis of a tensor whose samples are consecutive. Other
 * shapes are not changed; they then do not match, or the loss refuses them, because it requires one
 * row per label. The message names the node and the remedy. */
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

/* Product of the dimensions after the first; *has_rest: a -1 is among them and counts as 1. Returns
 * -1 if it cannot be computed. */
static int64_t inner_elements(const int64_t *dim, const struct shape *x, uint32_t rank,
                              bool *has_rest)
{
    int64_t product = 1;
    uint32_t k;

    *has_rest = false;
    for (k = 1; k < rank; k++) {
        int64_t d = dim[k] == 0 && k < x->rank ? x->dim[k] : dim[k];

        if (d == -1)
            *has_rest = true;
        else if (d < 1 || __builtin_mul_overflow(product, d, &product))
            return -1;
    }
    return product;
}

/* The required first dimension of a Reshape; 0: unchanged. */
static int64_t reshape_first(const struct plan_builder *b, const struct plan_value *x,
                             const int64_t *dim, uint32_t rank)
{
    const int64_t lane = b->p->batch, file = b->file_batch;
    int64_t n = shape_elements(&x->tensor.shape), all, scaled;
    bool has_rest;
    int64_t inner = inner_elements(dim, &x->tensor.shape, rank, &has_rest);

    if (inner < 1 || dim[0] < 1 || !x->by_sample || n < 1)
        return 0;
    if (!has_rest && !__builtin_mul_overflow(dim[0], inner, &all) && all == n)
        return 0; /* already matches */
    if (file == 0)
        return !has_rest && x->tensor.shape.dim[0] == lane && n % inner == 0 && n / inner == lane
                   ? lane
                   : 0;
    if (dim[0] % file != 0 || (has_rest && file == 1 && dim[0] != 1) ||
        __builtin_mul_overflow(dim[0] / file, lane, &scaled) ||
        __builtin_mul_overflow(scaled, inner, &all))
        return 0;
    return (has_rest ? n % all == 0 : n == all) ? scaled : 0;
}

static int64_t expand_first(const struct plan_builder *b, const struct plan_value *x,
                            const int64_t *dim, uint32_t rank)
{
    const struct shape *s = &x->tensor.shape;

    if (b->file_batch == 0 || dim[0] != b->file_batch || s->rank > rank)
        return 0;
    return s->rank < rank || s->dim[0] == 1 || s->dim[0] == (int64_t)b->p->batch
               ? (int64_t)b->p->batch
               : 0;
}

int plan_replace_batch(struct plan_builder *b, struct plan_node *n, struct err *err)
{
    struct plan *p = b->p;
    bool is_reshape = op_is_onnx(n->def, "Reshape");
    const struct plan_value *x, *want;
    int64_t dim[TENSOR_MAX_RANK], first;
    uint32_t rank;

    if (p->purpose == PLAN_RUN || (!is_reshape && !op_is_onnx(n->def, "Expand")) || n->n_in != 2 ||
        n->in[0] == GRAPH_NONE || n->in[1] == GRAPH_NONE)
        return 0;
    x = &p->values.at[n->in[0]];
    want = &p->values.at[n->in[1]];
    if (want->kind != PLAN_CONST || want->tensor.dtype != TENSOR_I64 ||
        want->tensor.shape.rank != 1 || want->tensor.shape.dim[0] < 1 ||
        want->tensor.shape.dim[0] > TENSOR_MAX_RANK)
        return 0;
    rank = (uint32_t)want->tensor.shape.dim[0];
    memcpy(dim, want->tensor.data, rank * sizeof(*dim));
    first = is_reshape ? reshape_first(b, x, dim, rank) : expand_first(b, x, dim, rank);
    if (first == 0 || first == dim[0])
        return 0;
    dim[0] = first;
    n->in[1] = plan_add_ints(p, want->name, dim, rank);
    return n->in[1] != GRAPH_NONE ? 0 : plan_no_memory(err);
}

/* Sets by_sample of the outputs. Most ops process each sample separately. Ops that move axis 0
 * change its size, or are a Transpose; an op that gathers from axis 0 of a constant creates the
 * axes of the indices. */
int plan_mark_samples(struct plan *p, const struct plan_node *n, struct err *err)
{
    uint32_t i, k;

    if (p->purpose == PLAN_RUN) /* no axis enumerates samples */
        return 0;

    for (k = 0; k < n->n_out; k++) {
        struct plan_value *out = n->out[k] != GRAPH_NONE ? &p->values.at[n->out[k]] : NULL;
        int64_t rows = out != NULL && out->tensor.shape.rank > 0 ? out->tensor.shape.dim[0] : 0;

        for (i = 0; i < n->n_in && rows > 0 && !out->by_sample; i++) {
            const struct plan_value *in = n->in[i] != GRAPH_NONE ? &p->values.at[n->in[i]] : NULL;

            if (in != NULL && in->by_sample)
                out->by_sample = op_is_onnx(n->def, "Reshape") || op_is_onnx(n->def, "Flatten")
                                     ? rows % p->batch == 0
                                     : in->tensor.shape.rank > 0 && in->tensor.shape.dim[0] == rows;
        }
        if (out != NULL && out->by_sample && op_is_onnx(n->def, "Transpose"))
            for (i = 0; i < n->n_attrs; i++)
                if (n->attrs[i].n > 0 && n->attrs[i].ints != NULL && n->attrs[i].ints[0] != 0)
                    out->by_sample = false;
    }
    return plan_track_draws(p, n, err);
}
