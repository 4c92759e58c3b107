/* evidence.h - what the exporter's metadata state about the initializers of a file.
 *
 * PyTorch's exporter stores the signature of the module (a line for each parameter and buffer), the kind
 * of each unchanged initializer, the sources of each folded initializer, and the FX node of each ONNX
 * node. evidence.c collects them; restore.c then rewrites the message so that each parameter that the file
 * holds in another form is an initializer with the name, shape and orientation that the module defines;
 * param.c trains what the evidence calls a parameter and refuses tensors that would train incorrectly.
 * All of this happens to the message, before values are read and before functions are inlined. */
#ifndef GRAPH_EVIDENCE_H
#define GRAPH_EVIDENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/vec.h"
#include "graph/fx.h"
#include "proto/onnx.pb-c.h"

struct err;
struct graph;
struct graph_opts;
struct graph_weights;
struct tensor_source;

#define EVIDENCE_NONE UINT32_MAX

enum evidence_kind {
    EVIDENCE_CONSTANT,  /* lifted, or folded from constants and buffers alone */
    EVIDENCE_PARAMETER, /* of the module, with the module's name and shape */
    EVIDENCE_BUFFER,
    EVIDENCE_FOLDED,    /* a function of one or more parameters */
    EVIDENCE_CHANGED,   /* has the name of a parameter, but other values */
};

struct evidence_target { /* a line of the signature */
    const char *name;    /* the module's: "fc.weight" */
    const char *placeholder; /* of the FX graph: "p_fc_weight" */
    bool is_parameter;   /* else a buffer */
    bool is_volatile;    /* a buffer that is not persistent: state_dict() does not have it */
    bool is_mentioned;   /* an FX node in the file reads the placeholder */
    bool is_held;        /* an initializer of this name holds the parameter */
    bool is_folded;      /* an initializer is a function of the parameter */
    uint32_t alias_of;   /* target that this name is tied to; EVIDENCE_NONE: none is known */
    uint32_t aliases, next_alias; /* names tied to this one: the first, and the next of the same tie */
};

struct evidence_tensor { /* an initializer */
    const char *name;
    enum evidence_kind kind;
    uint32_t target;     /* PARAMETER, BUFFER, CHANGED: itself. FOLDED: the first parameter. Else NONE */
    uint32_t n_sources;  /* FOLDED: how many parameters */
    uint32_t n_others;   /* FOLDED: other tensors that it was computed from */
    const char *reason;  /* for `inspect`; NULL: the kind says all */
    const char *refusal; /* why training is refused although the initializer receives a gradient; or NULL */
    const char *restored; /* name in the file of the tensor that this parameter was restored from */
};

struct evidence {
    bool has_signature;
    struct evidence_target *targets; /* [n_targets] */
    uint32_t n_targets;
    struct map by_placeholder, by_name; /* to targets */
    VEC(struct evidence_tensor) tensors;
    struct map by_tensor;   /* to tensors, by name */
    struct map fx_names;    /* results of FX nodes that the file's nodes name */
    struct map sources;     /* every name in a folded_from */
    uint32_t n_vanished;    /* results of add, mul, sub, div that FX nodes read and no node computes */
    const char *vanished;   /* the first of them */
};

/* Fills g->evidence from g->model. Without a signature in the file it stays empty.
 * Errors: ERR_INPUT (metadata that no exporter writes), ERR_NOMEM. */
int graph_evidence_collect(struct graph *g, struct err *err);
/* mutation.c: a note about the buffers that the module changes in each call and the file does not. `signature` is
 * the text of the metadata, or NULL. Errors: ERR_NOMEM. */
int graph_note_mutations(struct graph *g, const char *signature, struct err *err);
/* Rewrites g->model, which must be the message as unpacked. `weights` (NULL: none) decide the form of a parameter
 * that the metadata leave open. Errors: as for reading tensors. */
int graph_restore(struct graph *g, struct tensor_source *src, const struct graph_weights *weights,
                  struct err *err);
void graph_evidence_free(struct evidence *e);

/* NULL: no evidence about this initializer. */
const struct evidence_tensor *graph_evidence_of(const struct graph *g, const char *name);
/* The first parameter of the signature, at `from` or later, that neither an initializer nor an FX node of the
 * file has; e->n_targets: all are known. It may be unused, tied to another one, or have disappeared in a
 * constant. A parameter that is known stays known, so a caller may go on where the last call ended. */
uint32_t graph_next_unseen(const struct evidence *e, uint32_t from);
/* The PARAMETER of this placeholder ("p_fc_weight", without %); EVIDENCE_NONE. */
uint32_t graph_evidence_parameter(const struct evidence *e, struct fx_span placeholder);
/* Is the node an Identity that stands for Tensor.detach()? */
bool graph_is_detach(const Onnx__NodeProto *n);
/* Does the FX node of `n` read the result of a detach() that the file does not contain? */
bool graph_loses_detach(const struct evidence *e, const Onnx__NodeProto *n);
/* The text of the node's FX node; NULL. */
const char *graph_fx_text(const Onnx__NodeProto *n);

#endif
