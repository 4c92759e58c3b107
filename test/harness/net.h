/* net.h - a network for tests, planned and with memory, ready to run.
 *
 * Inputs are a formula of the sample's number (net_fill), the same as in make_reference.py, so a
 * batch can be split into smaller ones. An error fails the test. */
#ifndef HARNESS_NET_H
#define HARNESS_NET_H

#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"
#include "op/op.h"

struct model;

/* The objective of most tests: SoftmaxCrossEntropy of "logits". */
extern const struct plan_measure net_loss;
extern const struct plan_feed net_labels;
#define NET_LOSS .targets = &net_labels, .n_targets = 1, .losses = &net_loss, .n_losses = 1

struct net {
    struct graph *graph;
    struct plan *plan;
    const struct graph_param *params_of; /* graph_params() */
    uint32_t n_params;
    uint32_t batch, classes;
    size_t arena_bytes;
    float *params, *grads; /* arenas; grads is NaN before the first backward */
    void *work;
    struct op_run run; /* loss_scale 0.25 */
};

/* Opens the model `path` below test/graph/data. Labels and loss are SoftmaxCrossEntropy of
 * "logits". */
struct net net_open(const char *path, enum plan_purpose purpose, uint32_t batch);
struct net net_open_model(struct model *m, enum plan_purpose purpose, uint32_t batch);
struct net net_open_graph(struct graph *g, enum plan_purpose purpose, uint32_t batch);
/* ... and keeps these tensors, which must include "logits", readable after a run. */
struct net net_open_keep(struct graph *g, enum plan_purpose purpose, uint32_t batch,
                         const char *const *keep, uint32_t n_keep);
/* ... in bfloat16 (plan_opts.precision) */
struct net net_open_half(struct graph *g, enum plan_purpose purpose, uint32_t batch);
struct graph *net_import(const char *path);
struct graph *net_import_model(struct model *m, const struct graph_opts *opts);
void net_close(struct net *n);

/* Fills in samples first, first + 1, ...: element j of sample s is ((1009 s + 37 j) mod 61 - 30) /
 * 16, the label s mod classes, the weight 1 or 1.5. */
void net_fill(struct net *n, uint32_t first);
float net_forward(struct net *n); /* returns the loss */
void net_backward(struct net *n);
const struct graph_param *net_param(const struct net *n, const char *name);

/* Compares grads with central differences of the plan's own loss at every stride-th element of
 * every trained parameter. Fails with the position of the first mismatch. */
void net_check_gradients(struct net *n, size_t stride, float step, float tolerance);

#endif
