/* import_priv.h - what import.c (the model) and nodes.c (its nodes and bodies) share. */
#ifndef GRAPH_IMPORT_PRIV_H
#define GRAPH_IMPORT_PRIV_H

#include "graph/graph_priv.h"

/* Names that a node can see: those of its own graph, then those of the graphs around it. */
struct scope {
    struct map *names; /* to values */
    const struct scope *outer;
};

struct importer {
    struct graph *g;
    const Onnx__GraphProto *proto;
    struct tensor_source src;
    VEC(const Onnx__GraphProto *) bodies; /* in the order in which the nodes are walked */
    size_t next_body;
    uint32_t streams; /* given to random nodes so far */
    uint32_t n_nodes; /* of the graph and all bodies */
    const struct graph_weights *weights; /* of the job; NULL: none */
    bool trains;      /* parameters are wanted: the graph may be rewritten for them */
};

const char *import_text(const char *s); /* never NULL */
bool import_is_onnx(const char *domain);
int import_no_memory(struct err *err);

/* Appends a value and makes its name known. */
int import_add_value(struct importer *im, const struct scope *scope, const char *name,
                     struct graph_value v, uint32_t *out, struct err *err);
/* VALUE_CONSTs of a graph's initializers. is_inner: of a body, they are not the file's. */
int import_initializers(struct importer *im, const Onnx__GraphProto *p, const struct scope *scope,
                        bool is_inner, struct err *err);

/* ---- nodes.c ---- */
/* Counts what ops there are into g->ops, and unpacks the bodies. */
int import_survey(struct importer *im, struct err *err);
int import_nodes(struct importer *im, const struct scope *scope, struct err *err);

/* ---- unsupported.c ---- */
/* ERR_UNSUPPORTED with all ops that have no row, where each is first, and what to do about it. */
int import_check_ops(const struct importer *im, struct err *err);

#endif
