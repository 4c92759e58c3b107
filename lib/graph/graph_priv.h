/* graph_priv.h - the imported network, shared by the files of graph/.
 *
 * A value is a named tensor; a node reads and computes values. Both are identified by indices into
 * graph.values and graph.nodes. Nodes are in topological order. Constant nodes are removed (their
 * outputs are constants), and so are Identity nodes that only copy an initializer (see param.c). */
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
#include "graph/metadata.h"
#include "graph/graph.h"
#include "op/op.h"
#include "proto/onnx.pb-c.h"

#define GRAPH_NONE UINT32_MAX /* absent input or output */

enum {
    GRAPH_OPSET_MIN = 7,
    GRAPH_OPSET_MAX = 28,
    GRAPH_PARAM_ALIGN = 16,  /* floats; a parameter starts at a cache line */
    GRAPH_MAX_NODES = 20000, /* planning needs quadratic memory; the largest networks have a fifth
                                of this */
    GRAPH_MAX_DEPTH = 16,    /* nested bodies, and nested calls of functions */
};

struct graph_external { /* the external data files of a model */
    const char *model_path;       /* borrowed; external data is below its folder */
    VEC(struct mapping *) files; /* owned */
};

enum value_kind {
    VALUE_INPUT, /* fed by the caller; `index` into inputs */
    VALUE_CONST, /* known at import */
    VALUE_PARAM, /* `index` into params; remote tables included */
    VALUE_NODE,  /* computed by node `index` */
    VALUE_INNER, /* belongs to a body: an input of it, or computed by one of its nodes */
};

struct graph_value {
    const char *name;
    enum value_kind kind;
    uint32_t index;
    uint32_t initializer; /* index into the file's graph.initializer; GRAPH_NONE: the value has
                             another origin */
    uint32_t identity;    /* index into the file's graph.node: the Identity whose output this copy
                             of `initializer` is; GRAPH_NONE: the value is the initializer itself */
    struct tensor tensor; /* const and param: with data, plain layout */
    bool is_frozen; /* const: would be trained, but the job freezes it */
    const char *file_name; /* is_loaded: its name in the weights file; NULL: the same name */
    bool is_loaded; /* the value comes from a weights file instead of the model */
    struct tensor half; /* param: 16-bit values that are widened when they are copied; `tensor` then
                           has no data. data NULL: there are none */
    const struct mapping *external; /* param: the external data file that contains tensor.data;
                                       NULL: the data is in memory */
    bool is_dynamic; /* param: a dynamic table; the tensor has one row, which is not used */
    const struct table_fill *fill; /* param: its rows are generated, and tensor.data is zero; NULL: they
                                      are in a file */
};

/* A graph nested in a node: a branch of If, the body of Loop or Scan. Its values are in the table
 * of the whole graph, its nodes are its own. */
struct graph_body {
    uint32_t n_in, n_out;
    const uint32_t *in;  /* values of kind INNER */
    const uint32_t *out; /* values; may belong to an enclosing graph */
    struct graph_node *nodes;
    uint32_t n_nodes;
};

struct graph_node {
    const char *name; /* for messages: the node's name, else the name of its first output */
    const struct op_def *def;
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in, n_out;
    const uint32_t *in; /* values, GRAPH_NONE: absent */
    const uint32_t *out;
    uint32_t proto;                  /* index into the file's graph.node */
    const char *call;                /* the FX node of PyTorch's exporter (fx.h), borrowed from the
                                        message; NULL: the file does not have it */
    bool draws_fixed; /* a random node whose shape does not depend on an input of the graph */
    bool stops_gradient;             /* Identity that represents detach() */
    bool is_restored;                /* created by restore_norm.c to replace arithmetic */
    uint32_t stream;                 /* random nodes: their RNG stream, the same in every plan */
    const struct graph_body *bodies; /* If: then, else. Loop, Scan: one body. NULL: an ordinary
                                        node */
    uint32_t n_bodies;
    const uint32_t *captured; /* values of the enclosing graphs that its bodies read */
    uint32_t n_captured;
};

struct graph_initial { /* location of the initial values of a parameter */
    struct tensor from;            /* float32, float64, float16 or bfloat16; plain layout, any
                                      alignment; data NULL: released */
    const struct mapping *mapping; /* borrowed; the file that contains the values; NULL: memory of
                                      the model */
    const struct table_fill *fill; /* the rows are generated; NULL: they are `from` */
};

struct graph_reserved { /* addresses of zeros: the values of a table of generated rows */
    void *at;
    size_t bytes;
};

struct graph_file { /* the model file */
    const char *path;
    const char *producer;
    Onnx__ModelProto *unpacked;    /* as in the file; constants and initial values point into it */
    Onnx__ModelProto *model;       /* `unpacked` with functions inlined; a shallow copy */
    VEC(ProtobufCMessage *) parts; /* unpacked bodies and functions; owned */
    uint64_t unpack_budget;        /* bytes that unpacking may still allocate */
    struct graph_external external; /* mapped until graph_release_initial() */
    struct graph_metadata metadata;       /* from the exporter's metadata */
};

struct graph_ios { /* inputs and outputs of the graph */
    struct graph_io *inputs, *outputs;
    uint32_t *input_values, *output_values;
    uint32_t n_inputs, n_outputs;
};

struct graph_arena { /* the layout of the arena of parameters */
    size_t dense_floats, trained_floats, floats;
    size_t remote_floats; /* size of all remote tables, in the layout of the arena */
    struct packed_table *tables; /* [n_tables] the parameters from first_table on */
    uint32_t first_table, n_tables;
    size_t table_words;
};

struct graph_report { /* what callers may read about the import */
    struct graph_op *ops;
    uint32_t n_ops;
    const char *question;            /* see graph_question() */
    VEC(struct graph_classified) classified; /* see graph_classified() */
    struct graph_weights_facts weights;
    const char **notes;
    uint32_t n_notes, cap_notes;
};

struct graph_module { /* the tensors of the module */
    struct graph_tensor *tensors;
    uint32_t n;
};

struct graph {
    struct arena mem; /* owns all objects below that have no other owner */
    struct graph_file file;
    uint32_t opset;
    struct graph_value *values; /* on the heap; owned */
    size_t cap_values;
    uint32_t n_values;
    struct map by_name; /* name to index into values */
    struct graph_node *nodes;
    uint32_t n_nodes;
    struct graph_ios io;
    /* [n_params + n_remotes] parameters of the arena ordered by offset, then the remote tables. The
     * offset of a remote table counts from the start of the first one; no arena contains them, but
     * plan_verify() uses the offset to distinguish them */
    struct graph_param *params;
    uint32_t *param_values; /* [n_params + n_remotes] */
    uint32_t n_params;
    struct graph_initial *initials; /* [n_params + n_remotes] */
    struct graph_remote *remotes;   /* [n_remotes] */
    uint32_t n_remotes;
    struct graph_arena arena;
    const char **unread; /* [n_unread] constants that may have lost their reader
                            (restore_dropout.c); export omits those without a reader */
    size_t n_unread;
    struct graph_report report;
    struct graph_module module;
    char digest[DIGEST_HEX_BYTES];
    struct graph_reserved *reserved; /* [opts.n_tables] mapped; NULL: none */
    uint32_t n_reserved;
};

/* ---- scan.c ---- */
/* Validates the bytes of a message without allocating memory: the wire format, a nesting no deeper
 * than the schema allows, UTF-8 strings, and the memory that unpacking needs, which must not exceed
 * *budget and is subtracted from it. Errors: ERR_INPUT. */
int graph_scan(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
               uint64_t *budget, struct err *err);
uint64_t graph_scan_budget(size_t n); /* initial budget for a file of n bytes */

/* ---- nodes.c ---- */
/* The row of an op of ai.onnx at an opset, from any part of the importer. NULL: not supported. */
const struct op_def *graph_find_row(const char *name, uint32_t opset);

/* ---- control.c ---- */
/* The row of If, Loop or Scan. These have no kernels; the planner expands them. NULL: another
 * op. */
const struct op_def *graph_control_row(const char *name, uint32_t opset);
enum { GRAPH_CONTROLS = 3 };
const struct op_def *graph_control_at(size_t i); /* i < GRAPH_CONTROLS */
bool graph_is_control(const struct op_def *def);
/* The number of loop-carried values: the result of one iteration is the input of the next. The
 * other body inputs and outputs: Loop has two inputs and one output before them (iteration number
 * and condition; condition), Scan has none. */
uint32_t graph_n_carried(const struct graph_node *n);

/* ---- lowered.c ---- */
/* The row of an op without kernels, which the planner replaces by nodes of other rows. NULL:
 * another op. */
const struct op_def *graph_lowered_row(const char *name, uint32_t opset);
const struct op_def *graph_lowered_at(size_t i); /* enumerates these rows; NULL: no more rows */
bool graph_is_lowered(const struct op_def *def);
/* Returns whether a gradient flows to the inputs in def->diff. */
bool graph_passes_gradient(const struct op_def *def);
/* Validates and unpacks a body or a function; the graph owns the result. `what` is for messages.
 * Returns NULL on error and sets *err. */
ProtobufCMessage *graph_unpack_part(struct graph *g, const ProtobufCMessageDescriptor *type,
                                    const ProtobufCBinaryData *bytes, const char *what,
                                    struct err *err);

/* ---- import_value.c ---- */
/* Returns 0 if the list imports each domain once, otherwise ERR_INPUT. `what` names the owner of
 * the list in the message. */
int graph_check_opsets(const char *what, Onnx__OperatorSetIdProto *const *list, size_t n,
                       struct err *err);

/* ---- sequence.c ---- */
/* The row of an op on sequences of tensors. These have no kernels (plan_sequence.c). NULL: another
 * op. */
const struct op_def *graph_sequence_row(const char *name, uint32_t opset);
bool graph_is_sequence(const struct op_def *def);

/* ---- repair.c ---- */
/* Called after the nodes are read: corrects known errors of exporters and adds a note for each.
 * Export uses the corrected nodes. */
int graph_repair(struct graph *g, struct err *err);

/* ---- inline.c ---- */
/* Replaces calls of model-local functions by the nodes of the functions, in g->file.model. */
int graph_inline_functions(struct graph *g, struct err *err);

/* ---- read.c ---- */
/* Reads the whole file, at most `limit` bytes; the caller frees *out. Errors: ERR_INPUT, ERR_NOENT,
 * ERR_IO, ERR_NOMEM. */
int graph_read_file(const char *path, uint64_t limit, uint8_t **out, size_t *n, struct err *err);
/* Maps `location`, a path below the folder of the model; each file is mapped once. No component
 * may be a symbolic link. Errors: ERR_INPUT, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int graph_external_map(struct graph_external *o, const char *location, const struct mapping **out,
                       struct err *err);
/* Returns ERR_IO if one of these files was truncated; data read from it is then invalid. */
int graph_external_check(const struct graph_external *o, struct err *err);
/* Closes the mappings; no value may point into them afterwards. */
void graph_external_close(struct graph_external *o);

/* ---- tensor_proto.c ---- */
struct tensor_source {
    struct arena *mem;             /* owns data that has to be copied or converted */
    struct graph_external *external; /* the external data files and their mappings */
    uint64_t budget;               /* bytes of external data that may still be read */
    bool stays_mapped; /* external data remains in its mapping instead of being copied to `mem` */
    const struct mapping *mapped; /* out: the mapping that contains the data of the last tensor;
                                     NULL: another memory */
    /* out: large 16-bit data of the last tensor that remains mapped and is widened later; the
     * tensor itself then has no data. Otherwise data is NULL */
    struct tensor half;
    /* A network that is trained is computed in float32 or in the job's precision, regardless of the
     * types in the file: tensors of 16-bit floats are read as float32, and so are the types named
     * by attributes. A graph that is only executed keeps its types. */
    bool widens;
    uint32_t n_widened;           /* number of tensors and types that were widened */
    enum tensor_dtype widened;    /* the type of the first of them; TENSOR_NONE: none was widened */
};
/* The type that represents `t` in the graph: float32 for 16-bit floats that are widened. */
enum tensor_dtype graph_read_type(struct tensor_source *src, enum tensor_dtype t);
/* Reads type, shape and data of a TensorProto; the data remains in `p` where possible. `what` is
 * for messages. Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOMEM, ERR_IO, ERR_NOENT. */
int graph_read_tensor(struct tensor_source *src, const Onnx__TensorProto *p, const char *what,
                      struct tensor *out, struct err *err);

/* Replaces t->data by a copy in `mem`. Errors: ERR_NOMEM. */
int graph_copy_tensor(struct arena *mem, struct tensor *t, const char *what, struct err *err);

/* ---- attr.c ---- */
/* Returns ERR_INPUT if the attribute has a value of another type than its own. `node` is for the
 * message. */
int graph_check_attr(const char *node, const Onnx__AttributeProto *p, struct err *err);
/* Reads the attributes of a node in the form that ops use. Attributes that the row does not list
 * are refused. */
int graph_read_attrs(struct tensor_source *src, const Onnx__NodeProto *p, struct graph_node *node,
                     struct err *err);
/* Reads the value of a Constant node. */
int graph_read_constant(struct tensor_source *src, const Onnx__NodeProto *p, const char *name,
                        struct tensor *out, struct err *err);

/* ---- param.c ---- */
/* Selects the trained parameters and the statistics, and defines the layout of the arena. */
int graph_find_params(struct graph *g, const struct graph_opts *opts, struct err *err);

/* ---- restore_dropout.c ---- */
/* Replaces noise that the message computes from random numbers by Dropout. Called after functions
 * are inlined and the opset is known. Errors: ERR_NOMEM. */
int graph_restore_dropout(struct graph *g, struct err *err);

/* ---- restore_norm.c ---- */
/* Replaces batch normalizations that a file expresses as arithmetic by BatchNormalization nodes.
 * Called before parameters are selected. Errors: ERR_INPUT, ERR_NOMEM. */
int graph_restore_norms(struct graph *g, struct err *err);

/* ---- norm_form.c ---- */
/* Sets each BatchNormalization to the form that opts.batch_norm selects. Called before parameters
 * are selected. Errors: ERR_UNSUPPORTED, ERR_NOMEM. */
int graph_set_norm_forms(struct graph *g, const struct graph_opts *opts, struct err *err);
/* Called after parameters are selected. Refuses a node in inference form that would train while
 * opts.batch_norm makes no decision, and running averages that need a gradient. Adds a note about
 * running averages that do not change. Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOMEM. */
int graph_check_norm_forms(struct graph *g, const struct graph_opts *opts, struct err *err);

/* ---- generated.c ---- */
/* Every table of the job is a trained table of the graph. Errors: ERR_INPUT. */
int graph_check_generated(const struct graph *g, const struct graph_opts *opts, struct err *err);
void graph_free_generated(struct graph *g);

/* ---- initial.c ---- */
/* Copies constants from mapped files into memory, so that later changes of a file do not affect
 * them. Errors: ERR_NOMEM. */
int graph_copy_constants(struct graph *g, struct err *err);
/* Fills g->initials from the model. Errors: ERR_NOMEM. */
int graph_set_initial(struct graph *g, struct err *err);
/* Converts all elements of a float tensor to float32; its data may have any alignment. The pages of
 * `mapping` (NULL is allowed) are released after they are read. */
void graph_read_floats(const struct tensor *t, const struct mapping *mapping, float *to);

/* ---- module.c ---- */
/* The first name that the module ties to this parameter, as an index of g->file.metadata.targets;
 * the next names are linked by next_alias. METADATA_NONE: no tied name is known. */
uint32_t graph_first_alias(const struct graph *g, const char *name);
/* Returns whether the module's state_dict() contains this constant: according to the signature, or
 * without a signature if the constant is frozen. */
bool graph_is_state(const struct graph *g, const struct graph_value *v);
/* Fills g->module.tensors; called when values are final. Errors: ERR_NOMEM. */
int graph_find_module_tensors(struct graph *g, struct err *err);

/* ---- weights_match.c ---- */
enum { GRAPH_WEIGHT_NAME_BYTES = 1024 };
/* Writes the name of the graph's tensor in the weights file. Returns false if it does not fit into
 * `out`. */
bool graph_weights_name(const struct graph_weights *w, const char *name, char *out, size_t size);

/* ---- weights.c ---- */
/* Loads initial values and the values of constants from a weights file. Called once, after
 * graph_set_initial(). Errors: ERR_INPUT (names are missing, shapes or types differ), ERR_NOMEM. */
int graph_load_weights(struct graph *g, const struct graph_weights *w, struct err *err);

/* ---- padding.c ---- */
/* Sets the padding row of embeddings: from opts.padding, else from the exporter's metadata.
 * Errors: ERR_INPUT (the row does not exist, a pattern matches no table), ERR_NOMEM. */
int graph_set_padding(struct graph *g, const struct graph_opts *opts, struct err *err);

/* ---- export.c ---- */
/* graph_export_remote(), but weights above a total of `limit` bytes are written to a separate file.
 * rows NULL: the graph must have no remote tables. */
int graph_export_split(const struct graph *g, const float *arena,
                       const struct graph_row_reader *rows, const char *path, uint64_t limit,
                       struct err *err);

/* Writes a model unchanged. Durable and atomic. */
int graph_write_model(const Onnx__ModelProto *model, const char *path, struct err *err);

/* ---- note.c ---- */
int graph_note(struct graph *g, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- graph.c ---- */
/* Computes g->digest. */
int graph_make_digest(struct graph *g, struct err *err);
/* Returns whether parameter i is a remote table: index i - n_params of graph_remotes(). */
static inline bool graph_param_is_remote(const struct graph *g, uint32_t i)
{
    return i >= g->n_params;
}

/* The bit of input i in the masks of a row; all inputs from the 16th on share the last bit. */
static inline uint32_t graph_input_bit(uint32_t i)
{
    return OP_IN(i < 15 ? i : 15);
}

#endif
