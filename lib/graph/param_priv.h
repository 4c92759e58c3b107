/* param_priv.h - declarations shared by param.c (gradients, statistics, the arena), classification.c
 * (which tensors are parameters) and form.c (metadata from the form of the graph). */
#ifndef GRAPH_PARAM_PRIV_H
#define GRAPH_PARAM_PRIV_H

#include "graph/graph_priv.h"

enum use {
    USE_GRADIENT = 1,  /* an op passes a gradient from the loss to this value */
    USE_STATISTIC = 2, /* running average of an op */
    USE_OUTPUT = 4,    /* an output of the graph */
    USE_WHOLE = 8,     /* read by an op other than a Gather along axis 0 */
    USE_TRAINED = 16,  /* classified as trained */
};

struct finder {
    struct graph *g;
    const struct graph_opts *opts;
    uint8_t *use;        /* [n_values] flags of enum use */
    uint32_t *source;    /* [n_values] the initializer that the value is, or copies through
                            Identity; GRAPH_NONE: none */
    float *momentum;     /* [n_values] momentum of statistics */
    uint64_t *first_use; /* [n_values] (node << 16 | input) of the first consumer */
    bool *dropped;       /* [n_nodes] Identity nodes that were removed */
    bool *frozen_used, *trainable_used; /* [n_frozen], [n_trainable] patterns that match a tensor */
    uint16_t *role;      /* [n_values] computed by form.c */
    bool has_unseen;     /* the file has no trace of some parameter of the signature */
};

/* ---- form.c ---- */
enum form_class { FORM_PARAMETER, FORM_CONSTANT, FORM_UNCLEAR };

/* Fills f->role: how each value is used. Errors: ERR_NOMEM. */
int form_find_roles(struct finder *f, struct arena *mem, struct err *err);
/* Returns whether an op uses the value as a weight of two or more dimensions. */
bool form_is_weight(const struct finder *f, uint32_t value);
/* Returns whether constants other than initializers of the file's own graph may be weights. PyTorch
 * and `trainerctl model` write every parameter as an initializer. */
bool form_may_have_inner_weights(const struct graph *g);
/* Returns whether a floating-point initializer is a table of positions [rows, width] of sines and
 * cosines, as it is before any training. One row may be zero. */
bool form_is_sinusoid(const struct graph_value *v);
/* The metadata of the form of the graph about an initializer; *reason is a static text. */
enum form_class form_classify(const struct finder *f, uint32_t value, const char **reason);

/* ---- classification.c ---- */
/* Classifies a floating-point initializer and appends it to g->classified. GRAPH_IS_REFUSED is returned
 * only with opts.collect_questions; otherwise such a tensor is an error. Errors: ERR_INPUT,
 * ERR_NOMEM. */
int classify_value(struct finder *f, uint32_t value, enum graph_class *out, struct err *err);
/* Handles a floating-point tensor that export cannot write back, because it is in a body or the
 * output of a Constant node: it is an error or a question if it is used as a parameter.
 * Errors: ERR_INPUT, ERR_NOMEM. */
int classify_inner(struct finder *f, uint32_t value, struct err *err);
/* Called after all classifications. Reports parameters of the module that no tensor contains, tensors
 * whose form is not clear, and patterns that match nothing. Errors: ERR_INPUT, ERR_NOMEM. */
int classify_finish(struct finder *f, struct err *err);

/* ---- bias.c ---- */
/* Called after parameters are selected. In a file of tf2onnx, layers whose biases may have been
 * removed are refused, reported as a question or noted. Errors: ERR_INPUT, ERR_NOMEM. */
int graph_check_biases(struct graph *g, const struct graph_opts *opts, struct err *err);

#endif
