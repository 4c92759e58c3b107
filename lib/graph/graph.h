/* graph.h - a network: imported from ONNX, planned for training or evaluation, exported to ONNX.
 *
 *   graph_import -> graph (values, nodes, parameters; the ModelProto is kept for export)
 *   plan_new     -> plan: the graph for one batch size, one purpose and one device: shapes
 *                   inferred, losses and metrics appended, gradients derived, layouts chosen,
 *                   memory planned, kernels bound. A plan is a flat list of calls.
 *   plan_forward, plan_backward: execute the list without allocations, look-ups or strings.
 *
 * Parameters are in one arena that the caller owns: [trained, in the order in which backward
 * completes them][tables, in the same order][statistics]. Gradients are in arenas of the same
 * layout. An optimizer therefore sweeps one range, and a bucket whose gradients are complete is a
 * range too. A table is a trained parameter (an embedding) of which a step may use only a few rows.
 * The layout belongs to the graph and is the same for all its plans.
 *
 * A remote table is a table whose values are not in the arena: parameter servers hold them. Before
 * a lane, the caller fetches the rows that the lane reads into a compact table, in which a slot
 * replaces the number of a row:
 *
 *   plan_forward_indices -> lookups: the row numbers that each Gather from a remote table reads
 *   the caller replaces each row number by its slot, and calls plan_set_remote()
 *   plan_forward, plan_backward
 *
 * A plan executes one lane (micro-batch) at a time.
 * Threads: a graph is read-only after the import; a plan belongs to one replica thread. */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/graph.h"
#include "tensor/fill.h"
#include "tensor/tensor.h"

struct arena;
struct buf;
struct cuda_api;
struct err;
struct graph;
struct mapping;
struct op_run;
struct op_invalid;
struct packed;
struct packed_table;
struct plan;

enum graph_param_kind {
    GRAPH_TRAINED,   /* float32, updated by the optimizer */
    GRAPH_STATISTIC, /* running average: p = momentum * p + (1 - momentum) * (mean over lanes of
                        g) */
};

struct graph_param {
    const char *name;            /* as in the ONNX graph */
    enum graph_param_kind kind;
    struct shape shape;
    /* plain layout, float32; valid until the graph is freed or graph_release_initial() is called.
     * NULL: the values need a conversion, see graph_fill_initial() */
    const float *initial;
    size_t offset;               /* floats from the start of the arena; a multiple of 16 */
    size_t elements;
    float momentum;              /* GRAPH_STATISTIC: weight of the old value */
    bool is_table; /* GRAPH_TRAINED: only Gather nodes along axis 0 read it (an embedding table) */
    bool is_delayed; /* PLAN_TRAIN reads an older version of it: plan_bind_delayed() */
};

struct graph_io { /* an input or an output of the graph */
    const char *name;
    enum tensor_dtype dtype;
    bool has_shape;
    struct shape shape; /* dynamic dimensions are -1 */
};

enum graph_class { /* how an initializer is classified */
    GRAPH_IS_TRAINED,
    GRAPH_IS_FROZEN,    /* a parameter that the job freezes */
    GRAPH_IS_STATISTIC, /* a running average */
    GRAPH_IS_BUFFER,
    GRAPH_IS_CONSTANT,
    GRAPH_IS_REFUSED,   /* graph_question() states the reason; only with collect_questions */
};
const char *graph_class_name(enum graph_class v); /* "trained" */

struct graph_classified { /* a floating-point initializer */
    const char *name;         /* the name that the module defines, if the file states it */
    const char *name_in_file; /* NULL: equal to `name` */
    enum tensor_dtype dtype;
    struct shape shape;
    enum graph_class classification;
    const char *reason;
    const char *const *tied; /* [n_tied] other names of the same parameter in the module */
    uint32_t n_tied;
};

struct graph_op { /* an op type that the file uses */
    const char *domain; /* "": ai.onnx */
    const char *name;
    uint32_t n;        /* number of nodes, including those of nested graphs */
    bool is_supported;
    const char *first; /* name of the first node of this type */
};

/* A tensor of a weights file. */
struct graph_weight {
    struct tensor tensor;          /* the data may be unaligned: access with memcpy */
    const struct mapping *mapping; /* mapping that contains the data; NULL: the data is in other
                                      memory */
};

/* A weights file: its tensors are found by the names of the module's tensors, as in a safetensors
 * file. The data must stay valid until the graph is freed or graph_release_initial() is called. */
struct graph_weights {
    const char *path; /* for messages */
    /* false: the file has no such name */
    bool (*find)(const void *arg, const char *name, struct graph_weight *out);
    const void *arg;
    const char *const *names; /* [n_names] all names of the file, for messages */
    uint32_t n_names;
    /* Names that differ between graph and file: {"lm_head.weight", "wte.weight"}, or with one '*'
     * each {"bert.*", "*"}. The left side is the name in the graph. The longest left side that
     * matches applies. */
    const struct graph_rename *renames;
    uint32_t n_renames;
    const char *const *fresh; /* [n_fresh] fnmatch patterns: tensors that keep the values of the
                                 model if the file lacks them */
    uint32_t n_fresh;
};

struct graph_weights_facts { /* statistics of an import with weights */
    uint32_t loaded;  /* tensors of the graph whose values come from the file */
    uint32_t fresh;   /* tensors that the file lacks, and that keep the values of the model */
    uint32_t surplus; /* tensors of the file that the graph does not have */
};

struct graph_opts {
    const char *path;          /* path of the .onnx file; external data must be below its folder */
    const struct graph_padding *padding; /* [n_padding] these override the file's metadata */
    uint32_t n_padding;
    enum graph_norm batch_norm;
    bool collect_questions;    /* decisions that only the job can make are no errors: see
                                  graph_question() */
    /* fnmatch patterns of initializers that are trained, regardless of the file's metadata, and of
     * those that are frozen. `trainable` overrides `frozen`. A pattern may match the name that the
     * module defines, a name that is tied to it, or the name in the file. */
    const char *const *trainable;
    uint32_t n_trainable;
    const char *const *frozen;
    uint32_t n_frozen;
    const struct graph_rename *ties; /* [n_ties] second names of tensors of the module, which
                                        graph_module_tensors() lists too */
    uint32_t n_ties;
    const struct graph_weights *weights; /* initial values, and values of frozen parameters; NULL:
                                            those of the model */
    /* Returns whether a table becomes a remote table. Called once for each table during the import.
     * NULL: no table does. */
    bool (*is_remote)(const void *arg, const char *name, uint64_t rows, uint64_t width);
    /* Returns whether a table that is not remote becomes a delayed one, called in the same way. NULL: no table does. */
    bool (*is_delayed)(const void *arg, const char *name, uint64_t rows, uint64_t width);
    const void *remote_arg; /* of both */
    bool delays_dense;      /* the other trained parameters become delayed ones */
    const struct graph_table *tables; /* [n_tables] initializers [1, width] that become tables
                                         [rows, width] of generated rows; a dynamic table is a remote table
                                         wherever is_remote is given */
    uint32_t n_tables;
    uint64_t seed; /* of the generated rows */
    bool all_constant; /* no parameters and no statistics: for executing a graph unchanged */
    uint64_t max_bytes;        /* limit of the file size; 0: 16 GiB */
};

/* Reads and validates the file. The scan checks size and nesting before the file is unpacked. Every
 * op must have a row; otherwise ERR_UNSUPPORTED lists all missing ops with node, opset and the
 * supported opsets. On success the caller owns *out. Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOENT,
 * ERR_IO, ERR_NOMEM. */
int graph_import(const struct graph_opts *opts, struct graph **out, struct err *err);
/* Imports a model from n bytes in memory; `path` is used for messages and to locate external
 * data. */
int graph_import_bytes(const struct graph_opts *opts, const void *bytes, size_t n,
                       struct graph **out, struct err *err);
/* Reads only the properties of the file: graph_ops(), graph_opset(), graph_producer(). Used for a
 * model whose import fails. */
int graph_list_ops(const struct graph_opts *opts, struct graph **out, struct err *err);
void graph_free(struct graph *g); /* after its plans are freed; NULL is allowed */

uint32_t graph_opset(const struct graph *g);
const char *graph_producer(const struct graph *g); /* "pytorch 2.1.0"; "" if the file states no
                                                      producer */
const struct graph_op *graph_ops(const struct graph *g, uint32_t *n); /* in the order of the file */
/* Writes the supported ops of ai.onnx, one per line: the name, and the opsets of its rows. */
void graph_list_supported(struct buf *out);

const struct graph_param *graph_params(const struct graph *g, uint32_t *n); /* ordered by offset */
size_t graph_arena_floats(const struct graph *g);   /* size of the whole arena, a multiple of 16 */
size_t graph_trained_floats(const struct graph *g); /* size of its first part, the trained
                                                       parameters; statistics follow */
size_t graph_dense_floats(const struct graph *g);   /* size of the part of it without tables; tables
                                                       follow */
/* The tables as matrices, ordered by offset, with their layout (tensor/packed.h). *words receives
 * the number of mark words of all tables. */
const struct packed_table *graph_tables(const struct graph *g, uint32_t *n, size_t *words);
struct graph_remote {   /* a remote table: a matrix [rows, width] */
    const char *name;   /* as in the ONNX graph */
    uint64_t rows;      /* <= UINT32_MAX; 0: a dynamic table, whose indices are 64-bit ids */
    uint32_t width;     /* floats per row */
    struct shape shape; /* as in the ONNX graph, or as the job states; [1, width] of a dynamic table */
    struct table_fill fill; /* how its initial rows are generated; of kind TABLE_FROM_FILE: they are not */
};
/* The remote tables, in the order in which backward completes their gradients. They are in none of
 * the lists and sizes above. */
const struct graph_remote *graph_remotes(const struct graph *g, uint32_t *n);

struct graph_described {       /* a node for a drawing of the graph; valid during the call */
    const char *name;          /* unique; without ':' and without a slash at the start */
    const char *op;            /* of the node; "Input", "Parameter", "Statistic" or "Constant" */
    const char *const *inputs; /* [n_inputs] NAME, or NAME:OUTPUT of an output other than the first */
    uint32_t n_inputs;
    enum tensor_dtype dtype;   /* TENSOR_NONE: unknown */
    bool has_shape;            /* of inputs and constant tensors */
    struct shape shape;        /* dynamic dimensions are -1 */
};
/* Calls `each` for the inputs, the constant tensors and the nodes of the graph, as imported: without
 * losses and without the nodes of bodies. Errors: ERR_NOMEM. */
int graph_describe(const struct graph *g,
                   void (*each)(void *arg, const struct graph_described *node), void *arg,
                   struct err *err);

const struct graph_io *graph_inputs(const struct graph *g, uint32_t *n); /* without initializers */
const struct graph_io *graph_outputs(const struct graph *g, uint32_t *n);
/* Every floating-point initializer, with its classification and the reason. */
const struct graph_classified *graph_classified(const struct graph *g, uint32_t *n);
/* Messages about this import for the log ("trains 3 initializers with generated names ..."). */
const char *const *graph_notes(const struct graph *g, uint32_t *n);
/* With collect_questions: the decisions that the job of this model has to make, in the words of the
 * error that graph_import() returns otherwise. NULL: there is no open decision. */
const char *graph_question(const struct graph *g);
/* Copies the initial values of all parameters into an arena of graph_arena_floats(); the gaps
 * between parameters are not written. Errors: ERR_IO (a file of external data or of weights was
 * truncated in the meantime; the content of the arena is then undefined). */
int graph_fill_initial(const struct graph *g, float *arena, struct err *err);
/* Copies the initial values of rows [first, first + n) of remote table i to out [n, width]. Any
 * thread, also several at once. Errors: as graph_fill_initial(). */
int graph_fill_remote(const struct graph *g, uint32_t i, uint64_t first, uint64_t n, float *out,
                      struct err *err);
struct graph_tensor { /* a tensor of the module, as in its state_dict() */
    const char *name;
    struct tensor tensor; /* with data, unless is_param or is_remote */
    bool is_param;        /* the values are in the arena, at `offset` */
    size_t offset;
    bool is_remote;       /* the values are those of a remote table; is_param is false */
    uint32_t remote;      /* is_remote: index into graph_remotes() */
};
/* The tensors of the module in the order of the file: parameters, running statistics, frozen
 * parameters and buffers, but not constants of formulas. A tied parameter whose second name is
 * known is listed under both names. The graph owns the result. */
const struct graph_tensor *graph_module_tensors(const struct graph *g, uint32_t *n);
/* Statistics about graph_opts.weights; all 0 without weights. */
struct graph_weights_facts graph_weights_facts(const struct graph *g);
/* Returns whether the file has this tensor, under the name that `renames` defines. */
bool graph_weights_find(const struct graph_weights *w, const char *name, struct graph_weight *out);
/* Returns whether `values`, float32 in plain layout, is bitwise equal to a tensor of the file
 * converted to float32. Dimension i of `values` is dimension order[i] of the file's tensor; NULL:
 * the same order. Returns false also if the shapes differ. `shape` is the shape of `values`. */
bool graph_weight_equals(const struct graph_weight *w, const float *values,
                         const struct shape *shape, const uint32_t *order);
/* Releases the initial values: the memory of those in the unpacked model, and the mappings of
 * external data. No plan may be made afterwards. */
void graph_release_initial(struct graph *g);
/* SHA-256 of the structure, and of the names and shapes of the parameters; the values do not
 * enter, and neither does the choice of remote tables. */
const char *graph_digest(const struct graph *g);

/* Writes the model with these parameters for inference: BatchNormalization and Dropout in inference
 * form, everything else as imported; unknown fields are kept. Weights above about 1.9 GB are
 * written to `<path>.data` as external data. Durable and atomic (temporary file, sync, rename).
 * `arena` has graph_arena_floats(). Errors: ERR_IO, ERR_FULL, ERR_NOMEM, ERR_UNSUPPORTED (the graph
 * has remote tables: use graph_export_remote()). */
int graph_export(const struct graph *g, const float *arena, const char *path, struct err *err);
struct graph_row_reader { /* the values of remote tables, for export */
    /* Copies rows [first, first + n) of remote table i to out [n, width]. Called by the thread of
     * the export, table after table in the order of the file, rows ascending. An error ends the
     * export. */
    int (*read)(void *arg, uint32_t i, uint64_t first, uint64_t n, float *out, struct err *err);
    void *arg;
    /* Lists the ids of the trained rows of dynamic table i, ascending, valid until the export ends. Row k of read() is
     * then that of ids[k]. NULL: no table is dynamic. */
    int (*list)(void *arg, uint32_t i, const int64_t **ids, uint64_t *n, struct err *err);
};
/* graph_export() for a graph with remote tables. Ids of a dynamic table become row numbers (export_ids.h); ids
 * without a row read a row of zeros, the mean of initial rows. With external data, a table is never in memory as
 * a whole. Errors: also those of `rows`. */
int graph_export_remote(const struct graph *g, const float *arena,
                        const struct graph_row_reader *rows, const char *path, struct err *err);

/* Reads a file with one onnx.TensorProto, as in ONNX's test data. `mem` owns the data. */
int graph_read_tensor_file(const char *path, uint64_t max_bytes, struct arena *mem,
                           struct tensor *out, struct err *err);
/* Reads a TensorProto from n bytes in memory; external data is below the folder of `path`. */
int graph_read_tensor_bytes(const char *path, const uint8_t *bytes, size_t n, struct arena *mem,
                            struct tensor *out, struct err *err);
int graph_write_tensor_file(const char *path, const char *name, const struct tensor *t,
                            struct err *err);

/* ---- plans ---- */

enum plan_purpose {
    PLAN_TRAIN, /* forward, losses, backward; no metrics */
    PLAN_EVAL,  /* forward in inference form, losses and metrics */
    PLAN_RUN, /* the graph alone, on arrays as they are: no batch, no targets, no sample weights */
};

struct plan_feed { /* a graph input or a target */
    const char *name;   /* name of the graph input; any name for a target */
    const char *source; /* the feature that supplies it; for messages */
    enum tensor_dtype dtype; /* graph inputs: the type in the graph; targets: the type that the loss
                                or metric requires */
    struct shape shape;      /* shape of one sample, without the batch dimension; PLAN_RUN: the
                                whole shape */
    const void *value;       /* PLAN_RUN, NULL is allowed: the value that every call will be fed.
                                Shapes and branches may depend on it; read during plan_new() */
};

struct op_attr;

/* A loss or a metric: a row of domain trainerd with the inputs (tensor, target, sample weights),
 * see op/loss/loss.h. */
struct plan_measure {
    const char *op;     /* "SoftmaxCrossEntropy"; NULL, for losses only: `tensor` is a scalar loss
                           that the graph computes, as a mean over the samples of its batch */
    const char *tensor; /* a tensor of the graph: logits, predictions or the scalar */
    uint32_t target;    /* index into opts.targets; not used if op is NULL */
    float weight;       /* weight of a loss in the sum of all losses; 0 means 1 */
    const struct op_attr *attrs; /* attributes of the row; copied */
    uint32_t n_attrs;
};

const char *plan_precision_name(enum plan_precision p); /* "tf32" */
bool plan_precision_parse(const char *name, enum plan_precision *out);
/* Returns 0 if a device supports this precision: the GPU of this compute capability (10 * major +
 * minor), or with 0 this CPU. Errors: ERR_UNSUPPORTED, with the requirement, the capability found
 * and the remedy. */
int plan_precision_check(enum plan_precision p, uint32_t capability, struct err *err);

struct plan_opts {
    enum plan_purpose purpose;
    uint32_t batch;               /* samples of one call: the size of a lane (micro-batch) */
    /* NULL: the plan computes on this CPU. Otherwise on the GPU whose context is current in the
     * calling thread, now and in every call. Addresses of parameters, gradients, work memory and of
     * the tensors below are then device addresses; forward and backward enqueue their work on
     * run->queue and return (op/op.h). Numbers that a call computes can be read after the queue has
     * been synchronized. */
    const struct cuda_api *cuda;
    enum plan_precision precision;
    const struct plan_feed *feeds; /* every graph input once; copied */
    uint32_t n_feeds;
    const struct plan_feed *targets;
    uint32_t n_targets;
    const struct plan_measure *losses;
    uint32_t n_losses;
    const struct plan_measure *metrics;
    uint32_t n_metrics;
    const char *const *keep;      /* tensors whose values the caller reads after a call */
    uint32_t n_keep;
    bool sum_outputs; /* the loss is the sum of all elements of the float32 outputs of the graph;
                         other losses are then not allowed */
    bool feed_grads;  /* PLAN_RUN: backward computes gradients of the float32 feeds */
    bool training;    /* PLAN_RUN: nodes in training form */
};

/* Makes a plan. Shape errors name the node, the op and both shapes. ERR_UNSUPPORTED is also
 * returned for a precision that this processor has no instructions for. On success the caller owns
 * *out. Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOMEM, ERR_DEVICE. */
int plan_new(const struct graph *g, const struct plan_opts *opts, struct plan **out,
             struct err *err);
void plan_free(struct plan *p); /* NULL is allowed */
/* Checks the memory of a plan that plan_new() made, with code of its own: every read finds the bytes
 * that were written for it, whatever was written in between; operands of a call overlap only where
 * the op's row permits in-place; all addresses are aligned and inside their memory; every gradient
 * has all its contributions before it is read or reported as final. The plan may be bound or not.
 * For tests, and for work on the planner: the time is quadratic in the number of calls.
 * Errors: ERR_CORRUPT, with the node, the operand, the place, and what was expected and found;
 * ERR_NOMEM. */
int plan_verify(const struct plan *p, struct err *err);

/* Bytes of work memory that the caller must provide, 64-byte aligned. */
size_t plan_work_bytes(const struct plan *p);
/* Sets the parameters and the work memory for the following calls. `params` is the arena; gradients
 * are an argument of each plan_backward(). Cheap enough to be called for each lane. */
void plan_bind(struct plan *p, float *params, void *work);
/* After each plan_bind(): sets where PLAN_TRAIN reads the delayed parameters: at their offsets in the arena
 * `params`, of which nothing else is read. Without this call they are read where plan_bind() says. */
void plan_bind_delayed(struct plan *p, float *params);

/* The tensor into which the caller writes the next batch: feed i in the order of opts, then the
 * targets, then (except with PLAN_RUN) the sample weights, float32 [batch]. Valid until
 * plan_bind(). */
const struct tensor *plan_input(struct plan *p, uint32_t i);
const char *plan_input_name(const struct plan *p, uint32_t i); /* of the graph; valid until plan_free() */
/* Returns the number of indices of forward call `call` (op_call.number), which reads rows at indices; 0: another call. */
uint64_t plan_n_indices(const struct plan *p, uint32_t call);
/* With feed_grads, after backward: the gradient of the loss with respect to feed i, in plain
 * layout. NULL: no gradient reaches the feed; it is zero. */
const struct tensor *plan_input_grad(const struct plan *p, uint32_t i);

/* Selects row-sparse gradients of tables for the following calls: forward marks in `rows` the rows
 * that it reads. Backward completes the index of `rows` (tensor/packed.h) and writes the values of
 * the marked rows to the arena from graph_dense_floats() on; it does not write the rest of that
 * part of the arena. `rows` has the layout of graph_tables() and is borrowed; NULL: tables have
 * dense gradients. Cheap enough to be called for each lane. Only PLAN_TRAIN. */
void plan_set_packed(struct plan *p, struct packed *rows);
/* On a GPU, where gradients of tables are dense: selects a record of the rows read for the
 * following calls. Backward writes to the floats [at, at + 64 * words) of the arena (words: of
 * graph_tables()) 1 for each row that forward read and 0 for the others. Row r of a table is the
 * float at at + 64 * first_word + r, so that the sum of several arenas counts the readers. Only
 * PLAN_TRAIN. */
void plan_record_rows(struct plan *p, size_t at);

/* ---- remote tables: PLAN_TRAIN and PLAN_EVAL, on a CPU ---- */
struct plan_lookup { /* a Gather from a remote table */
    uint32_t table;  /* index into graph_remotes() */
    size_t n;        /* number of indices */
    /* [n] plan_forward_indices() writes the numbers of the rows, 0 <= row < rows of the table, or the ids,
     * any int64_t, of a dynamic table.
     * Before plan_forward() the caller replaces each by the slot of its row in the compact table,
     * also that of the padding row, whose values are read. The list must not change until backward
     * has ended */
    int64_t *rows;
    int64_t padding; /* this row, or id, gets no gradient from the lookup; -1: no row. The plan records its
                        positions, so that the caller need not know its slot */
};
/* The lookups, one for each Gather from a remote table that the plan computes, in order. The plan
 * owns them; the addresses never change. */
const struct plan_lookup *plan_lookups(struct plan *p, uint32_t *n);
/* The number of row numbers that one call looks up in a remote table: the sum of n over its
 * lookups. */
uint64_t plan_lookup_room(const struct plan *p, uint32_t table);
/* The first part of forward: runs the calls that compute the indices, and writes the rows of all
 * lookups. plan_forward() then runs only the remaining calls. Required before each plan_forward()
 * of a plan with lookups, after plan_bind() and after the inputs are written; without lookups the
 * call has no effect. `run` as for plan_forward(). Errors: those of plan_forward(), and ERR_INPUT
 * with the index that is out of range. */
int plan_forward_indices(struct plan *p, const struct op_run *run, struct err *err);
/* Sets the compact tables for the following calls. values [graph_remotes()]: the rows of each table
 * that the next lane reads, [slots, width]; the pointers are copied. `rows` has one table for each
 * remote table, with its width and with `rows` >= the number of slots (tensor/packed.h); borrowed:
 * forward marks the slots that it reads, except through padding rows. Backward completes the index
 * of `rows`, and writes the values of the marked slots to the floats from `at` on of its arena
 * `grads`, which has room for them there. NULL: there is no backward, as with PLAN_EVAL. Cheap
 * enough to be called for each lane. */
void plan_set_remote(struct plan *p, float *const *values, struct packed *rows, size_t at);

/* Runs forward. run->refused is set by an op that refuses an index. Each loss is the sum over the batch of sample weight * loss, times run->loss_scale.
 * Errors, also of backward: those of kernels, ERR_CANCELED (run->cancel, run->stops). */
int plan_forward(struct plan *p, const struct op_run *run, struct err *err);
/* Runs backward into `grads`, an arena. Every element that belongs to a parameter is overwritten;
 * gaps are not written; statistics receive the values of the batch. `ready` may be NULL. It is
 * called when the floats [offset, offset + n) are final, in order of offset, and covers the trained
 * part (with packed tables: its dense part) without gaps. */
typedef void plan_ready_fn(void *arg, size_t offset, size_t n);
int plan_backward(struct plan *p, const struct op_run *run, float *grads, plan_ready_fn *ready,
                  void *arg, struct err *err);
/* Returns the error that forward on a CPU would have reported for the trouble that a GPU found. */
int plan_refuse(const struct plan *p, const struct op_invalid *found, struct err *err);
float plan_loss(const struct plan *p); /* sum of all losses of the last forward */
/* On a GPU: the addresses of that sum and of the weight below, for the next calls on the queue. */
const float *plan_loss_at(const struct plan *p);
const float *plan_loss_weight_at(const struct plan *p); /* NULL: there is no weight */
/* The divisor that makes a mean of the one loss: the sum of the weights of the samples that
 * counted, times run->loss_scale. Summed over the global batch it is 1, unless classes have weights
 * or labels are ignored. */
float plan_loss_weight(const struct plan *p);
/* Length of a metric: its sums over samples, followed by the sum of the weights. */
uint32_t plan_metric_words(const struct plan *p, uint32_t i);
/* Adds the metric of the last forward. */
void plan_metric_add(const struct plan *p, uint32_t i, double *sums);
double plan_flops(const struct plan *p); /* floating-point operations of forward */
/* PLAN_RUN: the number of float64 nodes that are computed in float32. *first receives the name of
 * the first such node, or NULL. */
uint32_t plan_rounded(const struct plan *p, const char **first);
/* Messages about gradients that are missing although a caller may expect them. The plan owns
 * them. */
const char *const *plan_notes(const struct plan *p, uint32_t *n);
/* The numbers that an input may have. */
struct plan_range {
    double least, greatest;
    double other; /* allowed too, if has_other */
    bool has_other;
    const char *what; /* for messages, what they are, or the table whose rows they number; the plan owns it */
};
/* Sets *out to the range of input i (feeds, then targets). Returns false if no op restricts it. */
bool plan_input_range(const struct plan *p, uint32_t i, struct plan_range *out);
/* PLAN_TRAIN: what is trained is probably not what the job intends. The plan owns the texts. */
const char *const *plan_warnings(const struct plan *p, uint32_t *n);

/* ---- attentions, fused or not ---- */
struct plan_attention {
    const char *node; /* name of its softmax */
    bool is_fused;    /* computed by one call, which never materializes the matrix of scores */
    const char *why;  /* not fused: the first obstacle; "" otherwise */
};
/* Every softmax of a product of two computed matrices whose result multiplies a third one, in the
 * order of the graph. The plan owns the result. */
const struct plan_attention *plan_attentions(const struct plan *p, uint32_t *n);

/* ---- profiling ---- */
struct plan_call_info { /* a call; first those of forward in order, then those of backward */
    const char *op, *node; /* op "": a sum of gradients */
    bool backward;
};
uint32_t plan_calls_count(const struct plan *p);
struct plan_call_info plan_call_info(const struct plan *p, uint32_t i);
/* Forward and backward call `fn` after each call has ended (on a GPU: after its work was enqueued).
 * NULL ends this. An error of `fn` ends forward or backward with that error. */
typedef int plan_watch_fn(void *arg, uint32_t call, struct err *err);
void plan_watch(struct plan *p, plan_watch_fn *fn, void *arg);

/* ---- non-finite tracing ---- */
struct plan_nonfinite {
    bool found;
    uint32_t sample; /* index in the batch of the first sample affected; UINT32_MAX: not specific to
                        a sample */
    char text[640];  /* "forward of Log 'ln': output 'y' float32 [8, 10] holds -inf, 1 of 80
                        numbers; it read 'x' from 0 to 2.5" */
};
/* Enables non-finite tracing: forward and backward check all numbers that calls read and write,
 * which is slow, and record in `c` the first NaN or infinity that does not derive from another one:
 * in an input of the batch, in a weight, or in the result of a call with finite operands. An
 * intended infinity, as in an attention mask, is not reported. Both passes complete. `c` is
 * borrowed; NULL disables tracing. */
void plan_trace_nonfinite(struct plan *p, struct plan_nonfinite *c);

/* a tensor of opts.keep; plain layout */
const struct tensor *plan_tensor(const struct plan *p, const char *name);
/* Writes one line per call (op, node, shapes, layout, bytes, views), and the memory plan. */
void plan_print(const struct plan *p, struct buf *out);

#endif
