#include "harness/net.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "harness/model.h"

const struct plan_measure net_loss = { .op = "SoftmaxCrossEntropy", .tensor = "logits" };
const struct plan_feed net_labels = { .name = "label", .dtype = TENSOR_I64 };

static void *new_region(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

    assert_non_null(p);
    memset(p, 0xFF, (bytes + 127) / 64 * 64); /* NaN */
    return p;
}

struct graph *net_import(const char *path)
{
    char full[512];
    struct graph_opts opts = { .path = full };
    struct err err = { 0 };
    struct graph *g;

    snprintf(full, sizeof(full), "test/graph/data/%s", path);
    if (graph_import(&opts, &g, &err) < 0)
        fail_msg("%s", err.text);
    return g;
}

struct graph *net_import_model(struct model *m, const struct graph_opts *opts)
{
    static const struct graph_opts none = { .path = "test.onnx" };
    struct err err = { 0 };
    struct graph *g;
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);

    if (graph_import_bytes(opts != NULL ? opts : &none, bytes, n, &g, &err) < 0)
        fail_msg("%s", err.text);
    return g;
}

static const char *const logits[] = { "logits" };

struct net net_open_graph(struct graph *g, enum plan_purpose purpose, uint32_t batch)
{
    return net_open_keep(g, purpose, batch, logits, 1);
}

static struct net open_plan(struct graph *g, enum plan_purpose purpose, uint32_t batch,
                            enum plan_precision precision, const char *const *keep, uint32_t n_keep)
{
    static const struct plan_measure accuracy = { .op = "Accuracy", .tensor = "logits" };
    struct net n = { .graph = g, .batch = batch, .run = { .seed = 7, .loss_scale = 0.25f } };
    struct plan_feed feeds[4] = { { 0 } };
    struct plan_opts opts = { .purpose = purpose,
                              .batch = batch,
                              .precision = precision,
                              .feeds = feeds,
                              NET_LOSS,
                              .metrics = &accuracy,
                              .n_metrics = 1,
                              .keep = keep,
                              .n_keep = n_keep };
    const struct graph_io *inputs = graph_inputs(g, &opts.n_feeds);
    struct err err = { 0 };
    uint32_t i;

    assert_in_range(opts.n_feeds, 1, 4);
    for (i = 0; i < opts.n_feeds; i++) {
        feeds[i].name = inputs[i].name;
        feeds[i].dtype = inputs[i].dtype;
        feeds[i].shape.rank = inputs[i].shape.rank - 1;
        memcpy(feeds[i].shape.dim, inputs[i].shape.dim + 1,
               sizeof(int64_t) * (TENSOR_MAX_RANK - 1));
    }
    if (plan_new(g, &opts, &n.plan, &err) < 0)
        fail_msg("%s", err.text);
    n.params_of = graph_params(g, &n.n_params);
    n.arena_bytes = graph_arena_floats(g) * sizeof(float);
    n.params = new_region(n.arena_bytes);
    n.grads = new_region(n.arena_bytes);
    n.work = new_region(plan_work_bytes(n.plan));
    for (i = 0; i < n.n_params; i++)
        memcpy(n.params + n.params_of[i].offset, n.params_of[i].initial,
               n.params_of[i].elements * sizeof(float));
    plan_bind(n.plan, n.params, n.work);
    n.classes = (uint32_t)plan_tensor(n.plan, "logits")->shape.dim[1];
    return n;
}

struct net net_open_keep(struct graph *g, enum plan_purpose purpose, uint32_t batch,
                         const char *const *keep, uint32_t n_keep)
{
    return open_plan(g, purpose, batch, PLAN_FLOAT32, keep, n_keep);
}

struct net net_open_half(struct graph *g, enum plan_purpose purpose, uint32_t batch)
{
    return open_plan(g, purpose, batch, PLAN_BFLOAT16, logits, 1);
}

struct net net_open(const char *path, enum plan_purpose purpose, uint32_t batch)
{
    return net_open_graph(net_import(path), purpose, batch);
}

struct net net_open_model(struct model *m, enum plan_purpose purpose, uint32_t batch)
{
    return net_open_graph(net_import_model(m, NULL), purpose, batch);
}

void net_close(struct net *n)
{
    plan_free(n->plan);
    graph_free(n->graph);
    free(n->params);
    free(n->grads);
    free(n->work);
}

void net_fill(struct net *n, uint32_t first)
{
    uint32_t n_feeds, i, s;

    (void)graph_inputs(n->graph, &n_feeds);
    for (i = 0; i < n_feeds; i++) {
        const struct tensor *t = plan_input(n->plan, i);
        size_t each = (size_t)tensor_elements(t) / n->batch, j;

        assert_int_equal(t->dtype, TENSOR_F32);
        for (s = 0; s < n->batch; s++)
            for (j = 0; j < each; j++)
                ((float *)t->data)[s * each + j] =
                    ((float)(((first + s) * 1009 + j * 37) % 61) - 30.0f) / 16.0f;
    }
    for (s = 0; s < n->batch; s++) {
        ((int64_t *)plan_input(n->plan, n_feeds)->data)[s] = (first + s) % n->classes;
        ((float *)plan_input(n->plan, n_feeds + 1)->data)[s] =
            1.0f + 0.5f * (float)((first + s) % 2);
    }
}

float net_forward(struct net *n)
{
    struct err err = { 0 };

    if (plan_forward(n->plan, &n->run, &err) < 0)
        fail_msg("%s", err.text);
    return plan_loss(n->plan);
}

void net_backward(struct net *n)
{
    struct err err = { 0 };

    if (plan_backward(n->plan, &n->run, n->grads, NULL, NULL, &err) < 0)
        fail_msg("%s", err.text);
}

const struct graph_param *net_param(const struct net *n, const char *name)
{
    uint32_t i;

    for (i = 0; i < n->n_params; i++)
        if (strcmp(n->params_of[i].name, name) == 0)
            return &n->params_of[i];
    fail_msg("no parameter '%s'", name);
    return NULL;
}

void net_check_gradients(struct net *n, size_t stride, float step, float tolerance)
{
    uint32_t i;
    size_t k;

    for (i = 0; i < n->n_params; i++) {
        const struct graph_param *p = &n->params_of[i];

        for (k = 0; p->kind == GRAPH_TRAINED && k < p->elements; k += stride) {
            float *at = n->params + p->offset + k, keep = *at, up, down, slope;

            *at = keep + step;
            up = net_forward(n);
            *at = keep - step;
            down = net_forward(n);
            *at = keep;
            slope = (up - down) / (2 * step);
            if (!(fabsf(slope - n->grads[p->offset + k]) <= tolerance * (1 + fabsf(slope))))
                fail_msg("%s [%zu]: backward says %g, finite differences %g", p->name, k,
                         (double)n->grads[p->offset + k], (double)slope);
        }
    }
}
