/* onnx_target.h - the target of the fuzz programs for models: import refuses or accepts the bytes;
 * an accepted model is planned for each purpose, and run if it is small. Nothing may crash, hang,
 * or allocate unlimited memory. */
#ifndef FUZZ_ONNX_TARGET_H
#define FUZZ_ONNX_TARGET_H

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "fuzz/driver.h"
#include "graph/plan_priv.h"

enum { BATCH = 3, MAX_FEEDS = 4, MAX_WORK_BYTES = 4 << 20 };

static bool is_small(const struct plan *p)
{
    double flops = 0;
    size_t i;

    for (i = 0; i < p->nodes.n; i++)
        flops += p->nodes.at[i].flops;
    return plan_work_bytes(p) <= MAX_WORK_BYTES && flops < 1e7;
}

static void *zeros(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

    CHECK(p != NULL);
    return memset(p, 0, (bytes + 127) / 64 * 64);
}

static void run(const struct graph *g, struct plan *p, enum plan_purpose purpose)
{
    float *params = zeros(graph_arena_floats(g) * sizeof(float));
    float *grads = zeros(graph_arena_floats(g) * sizeof(float));
    void *work = zeros(plan_work_bytes(p));
    const struct op_run lane = { .seed = 1, .loss_scale = 1 };
    struct err err = { 0 };
    uint32_t n, i;
    const struct graph_param *q = graph_params(g, &n);

    for (i = 0; i < n; i++)
        memcpy(params + q[i].offset, q[i].initial, q[i].elements * sizeof(float));
    plan_bind(p, params, work); /* the inputs are zero: label 0, weight 0 */
    if (plan_forward(p, &lane, &err) == 0 && purpose != PLAN_EVAL)
        (void)plan_backward(p, &lane, grads, NULL, NULL, &err);
    free(params);
    free(grads);
    free(work);
}

/* Plans the model and runs a small plan; false: the plan was refused. */
static bool plan(const struct graph *g, enum plan_purpose purpose)
{
    static const struct plan_feed labels = { .name = "label", .dtype = TENSOR_I64 };
    struct plan_measure loss = { .op = "SoftmaxCrossEntropy" };
    struct plan_feed feeds[MAX_FEEDS] = { { 0 } };
    struct plan_opts opts = { .purpose = purpose,
                              .batch = BATCH,
                              .feeds = feeds,
                              .targets = &labels,
                              .n_targets = 1,
                              .losses = &loss,
                              .n_losses = purpose == PLAN_RUN ? 0 : 1,
                              .sum_outputs = purpose == PLAN_RUN,
                              .feed_grads = purpose == PLAN_RUN,
                              .training = purpose == PLAN_RUN };
    const struct graph_io *in = graph_inputs(g, &opts.n_feeds), *out;
    struct plan *p = NULL;
    struct err err = { 0 };
    uint32_t n, i, k, first;

    out = graph_outputs(g, &n);
    if (n == 0 || opts.n_feeds > MAX_FEEDS)
        return false;
    loss.tensor = out[n - 1].name;
    opts.n_targets = opts.n_losses;
    for (i = 0; i < opts.n_feeds; i++) {
        feeds[i].name = in[i].name;
        feeds[i].dtype = in[i].dtype;
        first = purpose != PLAN_RUN && in[i].shape.rank > 0 ? 1 : 0;
        feeds[i].shape.rank = in[i].shape.rank - first;
        for (k = 0; k < feeds[i].shape.rank; k++)
            feeds[i].shape.dim[k] = in[i].shape.dim[k + first] < 0 ? 2 : in[i].shape.dim[k + first];
    }
    if (plan_new(g, &opts, &p, &err) < 0) {
        CHECK(p == NULL && err.text[0] != '\0');
        return false;
    }
    if (is_small(p))
        run(g, p, purpose);
    plan_free(p);
    return true;
}

/* Returns true if import and a plan accept the model. */
static bool try_model(const uint8_t *data, size_t n)
{
    const struct graph_opts opts = { .path = "test/graph/data/fuzz.onnx", .max_bytes = 1 << 20 };
    struct graph *g = NULL;
    struct err err = { 0 };
    bool trains, evaluates, runs;

    if (graph_import_bytes(&opts, data, n, &g, &err) < 0) {
        CHECK(g == NULL && err.text[0] != '\0');
        return false;
    }
    CHECK(strlen(graph_digest(g)) == 64);
    trains = plan(g, PLAN_TRAIN);
    evaluates = plan(g, PLAN_EVAL);
    runs = plan(g, PLAN_RUN);
    graph_free(g);
    return trains || evaluates || runs;
}

#endif
