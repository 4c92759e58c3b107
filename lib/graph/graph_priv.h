/* graph_priv.h - what the files of graph/ share: the imported network.
 *
 * A value is a tensor with a name; a node reads and makes values. Both are numbers: indices into
 * graph.values and graph.nodes. Nodes are in an order in which they can run. Constant nodes are
 * gone (their outputs are constants), Identity nodes that only hand out a copy of an initializer
 * too (see param.c). */
#ifndef GRAPH_GRAPH_PRIV_H
#define GRAPH_GRAPH_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/map.h"
#include "base/vec.h"
#include "graph/evidence.h"
#include "graph/graph.h"
#include "op/op.h"
#include "proto/onnx.pb-c.h"

#define GRAPH_NONE UINT32_MAX /* no value: an input or output that is absent */

enum {
    GRAPH_OPSET_MIN = 7,
    GRAPH_OPSET_MAX = 28,
    GRAPH_PARAM_ALIGN = 16,  /* floats: a parameter starts a cache line */
    GRAPH_MAX_NODES = 20000, /* planning memory is quadratic; the largest networks have a fifth */
    GRAPH_MAX_DEPTH = 16,    /* of bodies in bodies, and of functions that call functions */
};

struct graph_outside { /* the files of external data */
    const char *model_path;       /* borrowed; they lie below its folder */
    VEC(struct mapping *) files; /* owned */
};

enum value_kind {
    VALUE_INPUT, /* fed; `index` into inputs */
    VALUE_CONST, /* known at load */
    VALUE_PARAM, /* `index` into params */
    VALUE_NODE,  /* made by node `index` */
    VALUE_INNER, /* of a body: an input of it, or made by one of its nodes */
};

struct graph_value {
    const char *name;
    enum value_kind kind;
    uint32_t index;
    uint32_t initializer; /* of the file's graph.initializer; GRAPH_NONE: comes from elsewhere */
    uint32_t identity;    /* of the file's graph.node: the Identity whose output this copy of
                             `initializer` is; GRAPH_NONE: it is the initializer itself */
    struct tensor tensor; /* const and param: with data, plain */
    bool is_frozen; /* const: it would train, but the job freezes it */
    const char *file_name; /* is_loaded: its other name, in the file of weights; NULL: the same */
    bool is_loaded; /* its value comes from a file of weights: not the one that the model has */
    struct tensor half; /* param: 16-bit values that are widened when they are copied; `tensor` has no
                           data then. data NULL: there are none */
    const struct mapping *outside; /* param: the file of external data that has tensor.data; NULL: the
                                      data is in memory */
};

/* A graph inside of a node: a branch of If, the body of Loop or Scan. Its values are in the table
 * of the whole graph, its nodes are its own. */
struct graph_body {
    uint32_t n_in, n_out;
    const uint32_t *in;  /* values of kind INNER */
    const uint32_t *out; /* values; may be of the graph around it */
    struct graph_node *nodes;
    uint32_t n_nodes;
};

struct graph_node {
    const char *name; /* for messages: its own, else its first output's */
    const struct op_def *def;
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in, n_out;
    const uint32_t *in; /* values, GRAPH_NONE: absent */
    const uint32_t *out;
    uint32_t proto;                  /* of the file's graph.node */
    bool draws_fixed; /* a draw whose shape no input of the graph decides */
    bool stops_gradient;             /* Identity that stands for detach() */
    bool is_restored;                /* made by restore_norm.c in the place of arithmetic */
    uint32_t stream;                 /* random nodes: their rng stream, the same in every plan */
    const struct graph_body *bodies; /* If: then, else. Loop, Scan: one. NULL: an ordinary node */
    uint32_t n_bodies;
    const uint32_t *captured; /* values of the graphs around the node that its bodies read */
    uint32_t n_captured;
};

struct graph_initial { /* where the initial values of a parameter lie */
    struct tensor from;            /* float32, float64, float16 or bfloat16; plain, at any address;
                                      data NULL: released */
    const struct mapping *mapping; /* borrowed; the file that has them; NULL: memory of the model */
};

struct graph {
    struct arena mem;              /* everything below that has no other owner */
    Onnx__ModelProto *unpacked;    /* as it came; constants and initial values point into it */
    Onnx__ModelProto *model;       /* the same with functions inlined, by shallow copies */
    VEC(ProtobufCMessage *) parts; /* bodies and functions, unpacked */
    uint64_t unpack_budget;        /* bytes that unpacking may still take */
    struct graph_outside outside;  /* mapped until graph_forget_initial() */
    const char *path;
    const char *producer;
    uint32_t opset;
    struct graph_op *ops;
    uint32_t n_ops;
    struct graph_value *values; /* on the heap */
    size_t cap_values;
    uint32_t n_values;
    struct map by_name; /* to values */
    struct graph_node *nodes;
    uint32_t n_nodes;
    struct graph_io *inputs, *outputs;
    uint32_t *input_values, *output_values;
    uint32_t n_inputs, n_outputs;
    struct graph_param *params; /* by offset */
    uint32_t *param_values;
    uint32_t n_params;
    struct graph_initial *initials; /* [n_params] */
    size_t dense_floats, trained_floats, arena_floats;
    struct packed_table *tables; /* [n_tables]: the params from first_table on */
    uint32_t first_table, n_tables;
    size_t table_words;
    const char *question; /* see graph_question() */
    const char **unread;  /* [n_unread] constants that may have lost their reader (restore_dropout.c):
                             export leaves them out if so */
    size_t n_unread;
    VEC(struct graph_judged) judged; /* see graph_judged() */
    struct graph_weights_facts weights;
    struct graph_tensor *tensors; /* [n_tensors] of the module */
    uint32_t n_tensors;
    const char **notes;
    uint32_t n_notes, cap_notes;
    struct evidence evidence; /* of the exporter's metadata */
    char digest[DIGEST_HEX_BYTES];
};

/* ---- scan.c ---- */
/* Walks the bytes of a message without building anything: well-formed, nested no deeper than our
 * schema allows, strings UTF-8, and no more memory to unpack than *budget, which shrinks by it.
 * Errors: ERR_INPUT. */
int graph_scan(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
               uint64_t *budget, struct err *err);
uint64_t graph_scan_budget(size_t n); /* what a file of n bytes may ask for */

/* ---- nodes.c ---- */
/* The row of an op of ai.onnx at an opset, whichever part of the importer has it. NULL: not supported. */
const struct op_def *graph_find_row(const char *name, uint32_t opset);

/* ---- control.c ---- */
/* The row of If, Loop or Scan: no kernel, the planner takes them apart. NULL: another op. */
const struct op_def *graph_control_row(const char *name, uint32_t opset);
enum { GRAPH_CONTROLS = 3 };
const struct op_def *graph_control_at(size_t i); /* i < GRAPH_CONTROLS */
bool graph_is_control(const struct op_def *def);
/* Values that go round: each turn's result is the next turn's input. Body inputs and outputs beside
 * them: Loop has two and one in front (turn and condition; condition), Scan none. */
uint32_t graph_carried(const struct graph_node *n);

/* ---- lowered.c ---- */
/* The row of an op without a kernel, which the planner replaces by nodes of other rows. NULL: another op. */
const struct op_def *graph_lowered_row(const char *name, uint32_t opset);
const struct op_def *graph_lowered_at(size_t i); /* all these rows; NULL: no more */
bool graph_is_lowered(const struct op_def *def);
/* Does a gradient flow to the inputs in def->diff? */
bool graph_passes_gradient(const struct op_def *def);
/* Scans and unpacks a body or a function; the graph owns it. NULL: an error. `what` is for
 * messages. */
ProtobufCMessage *graph_unpack_part(struct graph *g, const ProtobufCMessageDescriptor *type,
                                    const ProtobufCBinaryData *bytes, const char *what,
                                    struct err *err);

/* ---- import.c ---- */
/* Does the list import each domain once? `what`, the owner of the list, is for the message. ERR_INPUT: no. */
int graph_check_opsets(const char *what, Onnx__OperatorSetIdProto *const *list, size_t n, struct err *err);

/* ---- sequence.c ---- */
/* The row of an op on sequences of tensors: no kernel either (plan_sequence.c). NULL: another op. */
const struct op_def *graph_sequence_row(const char *name, uint32_t opset);
bool graph_is_sequence(const struct op_def *def);

/* ---- repair.c ---- */
/* After the nodes are read: mends what an exporter wrote wrong, with a note. Export follows the nodes. */
int graph_repair(struct graph *g, struct err *err);

/* ---- inline.c ---- */
/* Puts the nodes of model-local functions in place of their calls, in g->model. */
int graph_inline_functions(struct graph *g, struct err *err);

/* ---- read.c ---- */
/* The whole file, at most `limit` bytes; the caller frees *out. Errors: ERR_INPUT, ERR_NOENT,
 * ERR_IO, ERR_NOMEM. */
int graph_read_file(const char *path, uint64_t limit, uint8_t **out, size_t *n, struct err *err);
/* Maps `location`, a path below the folder of the model; each file is mapped once. No component
 * may be a symbolic link. Errors: ERR_INPUT, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int graph_outside_map(struct graph_outside *o, const char *location, const struct mapping **out,
                      struct err *err);
/* ERR_IO: one of these files was truncated; what was read from it is invalid. */
int graph_outside_check(const struct graph_outside *o, struct err *err);
/* Ends the mappings; no value may point into them any more. */
void graph_outside_close(struct graph_outside *o);

/* ---- tensor_proto.c ---- */
struct tensor_source {
    struct arena *mem;             /* for what has to be copied or converted */
    struct graph_outside *outside; /* where external data is, and its mappings */
    uint64_t budget;               /* bytes of external data that may still be read */
    bool stays_mapped;            /* external data is not copied to `mem` but stays in its mapping */
    const struct mapping *mapped; /* out: the mapping that has the data of the last tensor; or NULL */
    struct tensor half;           /* out: large 16-bit data of the last tensor that stays mapped, which is
                                     widened later: the tensor itself has no data; else data NULL */
    /* A network that trains is computed in float32, or as the job's precision says, whatever the
     * file says: tensors of 16-bit floats are read as float32, and so are the types that attributes
     * name. (A graph that is only run keeps its types.) */
    bool widens;
    uint32_t n_widened;           /* tensors and types read so */
    enum tensor_dtype widened;    /* the type of the first of them; TENSOR_NONE: none */
};
/* The type that stands for `t` in the graph: float32 for 16-bit floats that are widened. */
enum tensor_dtype graph_read_type(struct tensor_source *src, enum tensor_dtype t);
/* Type, shape and data of a TensorProto; the data stays in `p` where it can. `what` is for
 * messages. Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOMEM, ERR_IO, ERR_NOENT. */
int graph_read_tensor(struct tensor_source *src, const Onnx__TensorProto *p, const char *what,
                      struct tensor *out, struct err *err);

/* Replaces t->data by a copy in `mem`. ERR_NOMEM. */
int graph_copy_tensor(struct arena *mem, struct tensor *t, const char *what, struct err *err);

/* ---- attr.c ---- */
/* An attribute holds a value of its type and no other. `node` is for the message. */
int graph_check_attr(const char *node, const Onnx__AttributeProto *p, struct err *err);
/* Attributes of a node as ops read them; those the row does not name are refused. */
int graph_read_attrs(struct tensor_source *src, const Onnx__NodeProto *p, struct graph_node *node,
                     struct err *err);
/* The value of a Constant node. */
int graph_read_constant(struct tensor_source *src, const Onnx__NodeProto *p, const char *name,
                        struct tensor *out, struct err *err);

/* ---- param.c ---- */
/* Decides what trains and what averages, and lays out the arena. */
int graph_find_params(struct graph *g, const struct graph_opts *opts, struct err *err);

/* ---- restore_dropout.c ---- */
/* Puts Dropout in the place of noise that the message has as arithmetic on random numbers. Called with
 * functions inlined and the opset known. ERR_NOMEM. */
int graph_restore_dropout(struct graph *g, struct err *err);

/* ---- restore_norm.c ---- */
/* Puts BatchNormalization nodes in the place of batch normalisations that a file has as arithmetic. Called
 * before parameters are chosen. Errors: ERR_INPUT, ERR_NOMEM. */
int graph_restore_norms(struct graph *g, struct err *err);

/* ---- norm_form.c ---- */
/* Gives each BatchNormalization the form that opts.batch_norm decides. Called before parameters are
 * chosen. Errors: ERR_UNSUPPORTED, ERR_NOMEM. */
int graph_set_norm_forms(struct graph *g, const struct graph_opts *opts, struct err *err);
/* Called after parameters are chosen: refuses a node in inference form that would train while
 * opts.batch_norm does not decide, and averages that need a gradient. Writes a note about averages that
 * stay. Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOMEM. */
int graph_check_norm_forms(struct graph *g, const struct graph_opts *opts, struct err *err);

/* ---- initial.c ---- */
/* Moves constants out of mapped files: a file that changes later must not change them. ERR_NOMEM. */
int graph_copy_constants(struct graph *g, struct err *err);
/* Fills g->initials from the model. ERR_NOMEM. */
int graph_set_initial(struct graph *g, struct err *err);
/* All elements of a float tensor as float32; the address of its data need not be aligned. The pages
 * of `mapping` (NULL is fine) are released after they are read. */
void graph_read_floats(const struct tensor *t, const struct mapping *mapping, float *to);

/* ---- module.c ---- */
/* The first name that the module ties to this parameter, a target of g->evidence; the others follow
 * by next_alias. EVIDENCE_NONE: none is known. */
uint32_t graph_first_alias(const struct graph *g, const char *name);
/* Does state_dict() of the module have this constant? By the signature; without one, if it is frozen. */
bool graph_is_state(const struct graph *g, const struct graph_value *v);
/* Fills g->tensors, when values are final. ERR_NOMEM. */
int graph_find_module_tensors(struct graph *g, struct err *err);

/* ---- weights_match.c ---- */
enum { GRAPH_WEIGHT_NAME_BYTES = 1024 };
/* The name of the graph's tensor in the file. false: it does not fit into `out`. */
bool graph_weights_name(const struct graph_weights *w, const char *name, char *out, size_t size);

/* ---- weights.c ---- */
/* Takes initial values and the values of constants from a file of weights. Called once, after
 * graph_set_initial(). Errors: ERR_INPUT (names are missing, shapes or types differ), ERR_NOMEM. */
int graph_load_weights(struct graph *g, const struct graph_weights *w, struct err *err);

/* ---- padding.c ---- */
/* Gives embeddings their padding row: that of opts.padding, else that of the exporter's metadata.
 * Errors: ERR_INPUT (no such row, a pattern without a table), ERR_NOMEM. */
int graph_set_padding(struct graph *g, const struct graph_opts *opts, struct err *err);

/* ---- export.c ---- */
/* graph_export() with weights of more than `limit` bytes in all beside the model. */
int graph_export_split(const struct graph *g, const float *arena, const char *path, uint64_t limit,
                       struct err *err);

/* A model as it is. Durable and atomic. */
int graph_write_model(const Onnx__ModelProto *model, const char *path, struct err *err);

/* ---- graph.c ---- */
int graph_note(struct graph *g, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fills g->digest. */
int graph_make_digest(struct graph *g, struct err *err);
/* The bit of input i in the masks of a row: from the 16th on all share the last. */
uint32_t graph_input_bit(uint32_t i);

#endif
