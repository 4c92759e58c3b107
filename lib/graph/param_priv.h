/* param_priv.h - what param.c (gradients, statistics, the arena), verdict.c (which tensors are
 * parameters) and form.c (the form of the graph) share. */
#ifndef GRAPH_PARAM_PRIV_H
#define GRAPH_PARAM_PRIV_H

#include "graph/graph_priv.h"

enum use {
    USE_GRADIENT = 1,  /* an op carries a gradient from here to an end */
    USE_STATISTIC = 2, /* the moving average of an op */
    USE_OUTPUT = 4,    /* the graph returns it */
    USE_WHOLE = 8,     /* something else than a Gather along axis 0 reads it */
};

struct finder {
    struct graph *g;
    const struct graph_opts *opts;
    uint8_t *use;        /* [n_values] enum use */
    uint32_t *source;    /* [n_values] the initializer it is, or copies by Identity; GRAPH_NONE */
    float *momentum;     /* [n_values] of statistics */
    uint64_t *first_use; /* [n_values] node << 16 | input of the first consumer */
    bool *dropped;       /* [n_nodes] Identity nodes taken apart */
    bool *frozen_used, *trainable_used; /* [n_frozen], [n_trainable] patterns that match a tensor */
    uint16_t *role;      /* [n_values] form.c */
    bool has_unseen;     /* the signature has a parameter of which nothing is in the file */
};

/* ---- form.c ---- */
enum form_verdict { FORM_PARAMETER, FORM_CONSTANT, FORM_UNCLEAR };

/* Fills f->role: the kinds of places in which each value is read. ERR_NOMEM. */
int form_find_roles(struct finder *f, struct arena *mem, struct err *err);
/* Does an op read it in the place of a weight, with two dimensions or more? */
bool form_is_weight(const struct finder *f, uint32_t value);
/* May constants that are no initializers of the file's own graph be weights? PyTorch and `trainerctl model`
 * write every parameter as an initializer. */
bool form_may_hold(const struct graph *g);
/* Is an initializer of floats a table of positions [rows, width] of sines and cosines, as it is before any
 * training? One row may be zero. */
bool form_is_sinusoid(const struct graph_value *v);
/* What the form of the graph states about an initializer; *reason is a static text. */
enum form_verdict form_judge(const struct finder *f, uint32_t value, const char **reason);

/* ---- verdict.c ---- */
/* What becomes of an initializer of floats. REFUSED: only with opts.collect_questions; otherwise an
 * error. Also appends it to g->judged. Errors: ERR_INPUT, ERR_NOMEM. */
int verdict_of(struct finder *f, uint32_t value, enum graph_verdict *out, struct err *err);
/* A tensor of floats that export cannot write back, since it is in a body or the output of a Constant node:
 * an error, or a question, if it is in the place of a parameter. Errors: ERR_INPUT, ERR_NOMEM. */
int verdict_of_inner(struct finder *f, uint32_t value, struct err *err);
/* After all verdicts: parameters of the module that no tensor holds, tensors whose form is not clear,
 * patterns that match nothing. Errors: ERR_INPUT, ERR_NOMEM. */
int verdict_finish(struct finder *f, struct err *err);

/* ---- bias.c ---- */
/* With parameters found: layers of a file of tf2onnx whose biases may have been removed are refused, asked
 * about or noted. Errors: ERR_INPUT, ERR_NOMEM. */
int graph_check_biases(struct graph *g, const struct graph_opts *opts, struct err *err);

#endif
