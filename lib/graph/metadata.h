/* metadata.h - information about the initializers of a file from the exporter's metadata.
 *
 * PyTorch's exporter stores the signature of the module (a line for each parameter and buffer), the
 * kind of each unchanged initializer, the sources of each folded initializer, and the FX node of
 * each ONNX node. metadata.c collects this information. restore.c then rewrites the message so that
 * each parameter that the file contains in another form becomes an initializer with the name, shape
 * and orientation that the module defines. param.c trains the tensors that the metadata classifies
 * as parameters and refuses tensors that would train incorrectly. All of this changes the message,
 * before values are read and before functions are inlined. */
#ifndef GRAPH_METADATA_H
#define GRAPH_METADATA_H

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
struct graph_rename;
struct graph_weights;
struct tensor_source;

#define METADATA_NONE UINT32_MAX

enum graph_metadata_kind {
    METADATA_CONSTANT,  /* lifted, or folded from constants and buffers alone */
    METADATA_PARAMETER, /* a parameter of the module, with the module's name and shape */
    METADATA_BUFFER,
    METADATA_FOLDED,    /* computed from one or more parameters */
    METADATA_CHANGED,   /* named like a parameter, but with other values */
};

struct graph_metadata_target { /* a line of the signature */
    const char *name;    /* defined by the module: "fc.weight" */
    const char *placeholder; /* in the FX graph: "p_fc_weight" */
    bool is_parameter;   /* else a buffer */
    bool is_volatile;    /* a non-persistent buffer: not in the state_dict() */
    bool is_mentioned;   /* an FX node in the file reads the placeholder */
    bool is_held;        /* an initializer of this name contains the parameter */
    bool is_folded;      /* an initializer is computed from the parameter */
    uint32_t alias_of;   /* target that this name is tied to; METADATA_NONE: no tie is known */
    uint32_t aliases, next_alias; /* list of the names tied to this one: first element, and next
                                     element of the same list */
};

struct graph_metadata_tensor { /* an initializer */
    const char *name;
    enum graph_metadata_kind kind;
    uint32_t target;     /* PARAMETER, BUFFER, CHANGED: its target. FOLDED: the first parameter.
                            Else METADATA_NONE */
    uint32_t n_sources;  /* FOLDED: number of parameters */
    uint32_t n_others;   /* FOLDED: number of other tensors that it was computed from */
    const char *reason;  /* for `inspect`; NULL: the kind is sufficient */
    const char *refusal; /* why training is refused although the initializer receives a gradient;
                            NULL: it is not refused */
    const char *restored; /* name of the file's tensor from which this parameter was restored */
};

struct graph_metadata {
    bool has_signature;
    struct graph_metadata_target *targets; /* [n_targets] */
    uint32_t n_targets;
    struct map by_placeholder, by_name; /* to indices of targets */
    VEC(struct graph_metadata_tensor) tensors;
    struct map by_tensor;   /* to indices of tensors, by name */
    struct map fx_names;    /* results of FX nodes that the file's nodes refer to */
    struct map sources;     /* every name in a folded_from attribute */
    struct map others;      /* placeholders that are neither parameters nor buffers */
    bool may_be_optimized;  /* the exporter may have merged and removed nodes (optimize=True) */
    uint32_t n_vanished;    /* results that FX nodes or the signature read and that no node computes,
                               although their node may have read a parameter; only of an optimized
                               file */
    const char *vanished;   /* the first of them */
};

/* Fills g->file.metadata from g->file.model. It stays empty if the file has no signature.
 * Errors: ERR_INPUT (metadata that no exporter writes), ERR_NOMEM. */
int graph_metadata_collect(struct graph *g, struct err *err);
/* mutation.c: adds a note about the buffers that the module changes in each call and the file does
 * not. `signature` is the text of the metadata, or NULL. Errors: ERR_UNSUPPORTED (the module changes
 * a parameter), ERR_NOMEM. */
int graph_note_mutations(struct graph *g, const char *signature, struct err *err);
/* Rewrites g->file.model, which must be the message as unpacked. `weights` (NULL: none) determine the
 * form of a parameter where the metadata does not. Errors: those of reading tensors. */
int graph_restore(struct graph *g, struct tensor_source *src, const struct graph_weights *weights,
                  struct err *err);
/* tie.c: records second names of tensors: `ties[i].graph` is a name of the tensor `ties[i].file`, or
 * the reverse. Called after graph_restore(). Errors: ERR_INPUT, ERR_NOMEM. */
int graph_tie_names(struct graph *g, const struct graph_rename *ties, uint32_t n, struct err *err);
void graph_metadata_free(struct graph_metadata *e);

/* NULL: no metadata about this initializer. */
const struct graph_metadata_tensor *graph_metadata_of(const struct graph *g, const char *name);
/* The first parameter of the signature, at `from` or later, that occurs neither as an initializer
 * nor in an FX node of the file; e->n_targets: there is none. Such a parameter may be unused, tied
 * to another one, or folded into a constant. Parameters never become unseen again, so a caller may
 * continue at the last result. */
uint32_t graph_next_unseen(const struct graph_metadata *e, uint32_t from);
/* The PARAMETER of this placeholder ("p_fc_weight", without %), or METADATA_NONE. */
uint32_t graph_metadata_parameter(const struct graph_metadata *e, struct fx_span placeholder);
/* Returns whether the node is an Identity that represents Tensor.detach(). */
bool graph_is_detach(const Onnx__NodeProto *n);
/* Returns whether the FX node of `n` reads the result of a detach() that the file does not
 * contain. */
bool graph_loses_detach(const struct graph_metadata *e, const Onnx__NodeProto *n);
/* Returns whether the FX node of `n` reads a result that the file does not contain, of a node that
 * the optimizer of the exporter merged with `maker`: their names differ in the number alone
 * ("linear_1" and "linear"). *merged receives the name; the span is in the metadata of `n`. */
bool graph_reads_merged(const struct graph_metadata *e, const Onnx__NodeProto *n,
                        const Onnx__NodeProto *maker, struct fx_span *merged);
/* The text of the node's FX node; NULL: it has none. */
const char *graph_fx_text(const Onnx__NodeProto *n);

#endif
