/* fuse_kit.h - compares a fused network with the same network without fusion. */
#ifndef GRAPH_FUSE_KIT_H
#define GRAPH_FUSE_KIT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/plan_priv.h"
#include "harness/model.h"
#include "harness/net.h"

enum { BATCH = 4, CLASSES = 3, MAX_VALUES = 64 };

static inline uint32_t nodes_of(const struct net *n, const char *op)
{
    uint32_t found = 0;
    size_t i;

    for (i = 0; i < n->plan->nodes.n; i++)
        found += strcmp(n->plan->nodes.at[i].def->name, op) == 0;
    return found;
}

static inline void near(const char *what, const float *a, const float *b, size_t n)
{
    double scale = 0;
    size_t i;

    for (i = 0; i < n; i++)
        scale += (double)b[i] * (double)b[i] / (double)n;
    scale = sqrt(scale) + 1e-7;
    for (i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= 2e-5 * (scale + fabs((double)b[i]))))
            fail_msg("%s: element %zu is %.9g fused and %.9g unfused", what, i, (double)a[i],
                     (double)b[i]);
}

/* Lists every value that a node computes; keeping them all prevents fusion. */
static inline uint32_t all_values(struct model *m, const char **names)
{
    const Onnx__GraphProto *g = model_proto(m)->graph;
    uint32_t n = 0;
    size_t i;

    for (i = 0; i < g->n_node; i++) {
        assert_true(n < MAX_VALUES);
        names[n++] = g->node[i]->output[0];
    }
    return n;
}

/* Asserts that the network computes the same loss, output, gradients and statistics with and
 * without fusion. Frees the model; the caller owns *fused and closes it. */
static inline void compare(struct model *m, enum plan_purpose purpose, struct net *fused)
{
    const char *names[MAX_VALUES];
    struct net plain;
    uint32_t i;

    *fused = net_open_model(m, purpose, BATCH);
    plain = net_open_keep(net_import_model(m, NULL), purpose, BATCH, names, all_values(m, names));
    net_fill(fused, 0);
    net_fill(&plain, 0);
    near("loss", &(float){ net_forward(fused) }, &(float){ net_forward(&plain) }, 1);
    near("logits", plan_tensor(fused->plan, "logits")->data,
         plan_tensor(plain.plan, "logits")->data, BATCH * CLASSES);
    if (purpose == PLAN_TRAIN) {
        net_backward(fused);
        net_backward(&plain);
    }
    for (i = 0; purpose == PLAN_TRAIN && i < fused->n_params; i++)
        near(fused->params_of[i].name, fused->grads + fused->params_of[i].offset,
             plain.grads + plain.params_of[i].offset, fused->params_of[i].elements);
    if (fused->plan->nodes.n >= plain.plan->nodes.n) {
        struct buf text = { 0 };

        plan_print(fused->plan, &text);
        fail_msg("nothing was fused:\n%s", text.data);
    }
    net_close(&plain);
    model_free(m);
}

#endif
