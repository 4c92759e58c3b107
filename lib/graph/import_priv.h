/* import_priv.h - declarations shared by the files of the import: import.c (the model), nodes.c
 * (its nodes and bodies), import_value.c and unsupported.c. */
#ifndef GRAPH_IMPORT_PRIV_H
#define GRAPH_IMPORT_PRIV_H

#include "graph/graph_priv.h"

/* Names that are visible to a node: those of its own graph, then those of the enclosing graphs. */
struct scope {
    struct map *names; /* name to index into values */
    const struct scope *outer;
};

struct importer {
    struct graph *g;
    const Onnx__GraphProto *proto;
    struct tensor_source src;
    VEC(const Onnx__GraphProto *) bodies; /* in the order in which the nodes are visited */
    size_t next_body;
    uint32_t streams; /* number of RNG streams assigned to random nodes */
    uint32_t n_nodes; /* nodes of the graph and of all bodies */
    const struct graph_opts *opts;
    const struct graph_weights *weights; /* weights of the job; NULL: none */
    const struct graph_rename *ties;     /* [n_ties] model.tied of the job */
    uint32_t n_ties;
    bool trains;      /* the graph is imported for training and may be rewritten for it */
};

/* ---- import_value.c ---- */
/* lift.c: converts Constant nodes that may be weights to initializers. Changes g->file.model, which
 * must be the message as unpacked, after graph_metadata_collect(). Errors: ERR_NOMEM. */
int graph_lift_constants(struct graph *g, struct err *err);
const char *import_text(const char *s); /* never NULL */
bool import_is_onnx(const char *domain);
int import_no_memory(struct err *err);

/* Appends a value and registers its name. */
int import_add_value(struct importer *im, const struct scope *scope, const char *name,
                     struct graph_value v, uint32_t *out, struct err *err);
/* Reads a graph's initializers as VALUE_CONST. is_inner: they belong to a body rather than to the
 * file's graph. */
int import_initializers(struct importer *im, const Onnx__GraphProto *p, const struct scope *scope,
                        bool is_inner, struct err *err);

/* ---- generated.c ---- */
/* Makes a value that opts->tables names a table of generated rows; nothing for other values. */
int import_generate(struct importer *im, const char *name, struct graph_value *v, struct err *err);

/* ---- nodes.c ---- */
/* Counts the ops of the model in g->report.ops, and unpacks the bodies. */
int import_count_ops(struct importer *im, struct err *err);
int import_nodes(struct importer *im, const struct scope *scope, struct err *err);

/* ---- unsupported.c ---- */
/* Returns ERR_UNSUPPORTED if ops have no row; the message lists all of them, the first node of
 * each, and the remedy. */
int import_check_ops(const struct importer *im, struct err *err);

#endif
