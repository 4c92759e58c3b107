/* graph.h - a network: read from ONNX, made ready for training or evaluation, written back.
 *
 *   graph_import -> graph (values, nodes, parameters; the ModelProto is kept for export)
 *   plan_new     -> plan: the graph for one batch size and one purpose on one device: shapes
 *                   inferred, loss and metrics appended, differentiated, layouts chosen, memory
 *                   planned, kernels bound. A plan is a flat list of calls.
 *   plan_forward, plan_backward: run the list. No allocation, no look-up, no string.
 *
 * Parameters live in one arena that the caller owns: [trained, in the order in which backward
 * finishes them][tables, likewise][statistics]; gradients in arenas of the same layout. So an
 * optimizer sweeps one range, and a bucket that is ready is a range too. A table is a trained
 * parameter of which a step may reach a few rows only. The layout belongs to the graph and is the
 * same for all its plans.
 * Threads: a graph is read-only after import; a plan belongs to one replica thread. */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct arena;
struct buf;
struct cuda_api;
struct err;
struct graph;
struct mapping;
struct op_run;
struct op_trouble;
struct packed;
struct packed_table;
struct plan;

enum graph_param_kind {
    GRAPH_TRAINED,   /* float32, moved by the optimizer */
    GRAPH_STATISTIC, /* a running average: p = momentum * p + (1 - momentum) * mean over lanes of g */
};

struct graph_param {
    const char *name;            /* as in the ONNX graph */
    enum graph_param_kind kind;
    struct shape shape;
    const float *initial;        /* plain, float32; valid until the graph is freed or the values are
                                    released. NULL: they need conversion, graph_fill_initial() */
    size_t offset;               /* floats from the start of the arena; a multiple of 16 */
    size_t elements;
    float momentum;              /* GRAPH_STATISTIC: weight of the old value */
    bool is_table;               /* GRAPH_TRAINED: read by Gather along axis 0 and by nothing else */
};

struct graph_io { /* an input or an output of the graph */
    const char *name;
    enum tensor_dtype dtype;
    bool has_shape;
    struct shape shape; /* dynamic dimensions are -1 */
};

enum graph_verdict { /* what becomes of an initializer */
    GRAPH_IS_TRAINED,
    GRAPH_IS_FROZEN,    /* a parameter that the job freezes */
    GRAPH_IS_STATISTIC, /* a running average */
    GRAPH_IS_BUFFER,
    GRAPH_IS_CONSTANT,
    GRAPH_IS_REFUSED,   /* graph_question() states why; only with collect_questions */
};
const char *graph_verdict_name(enum graph_verdict v); /* "trained" */

struct graph_judged { /* an initializer of floats */
    const char *name;         /* the module's, if the file states it */
    const char *name_in_file; /* NULL: the same */
    enum tensor_dtype dtype;
    struct shape shape;
    enum graph_verdict verdict;
    const char *reason;
    const char *const *tied; /* [n_tied] other names of the module for the same parameter */
    uint32_t n_tied;
};

struct graph_op { /* a kind of op that the file uses */
    const char *domain; /* "": ai.onnx */
    const char *name;
    uint32_t n;        /* nodes, those inside of others included */
    bool is_supported;
    const char *first; /* name of the first node of the kind */
};

enum graph_norm { /* what a BatchNormalization in inference form means */
    GRAPH_NORM_ASK,    /* refuse the model if such a node would train: the job has to decide */
    GRAPH_NORM_TRAIN,  /* it trains: statistics of the batch normalise, running averages move */
    GRAPH_NORM_FROZEN, /* running averages normalise and stay, in every node of the file */
};

/* A tensor of a file of weights. */
struct graph_weight {
    struct tensor tensor;          /* data at any address, which need not be aligned: memcpy */
    const struct mapping *mapping; /* that has the data; NULL: other memory */
};

/* Values by the names of the module's tensors, as in a safetensors file. The data stays valid until
 * the graph has been freed or graph_forget_initial() was called. */
struct graph_weights {
    const char *path; /* for messages */
    bool (*find)(const void *arg, const char *name, struct graph_weight *out); /* false: no such name */
    const void *arg;
    const char *const *names; /* [n_names] all of them, for messages */
    uint32_t n_names;
    /* Names that differ between graph and file; {"lm_head.weight", "wte.weight"}, or with one '*' each
     * {"bert.*", "*"}. Left: of the graph. The longest left side that matches counts. */
    const struct graph_rename {
        const char *graph, *file;
    } *renames;
    uint32_t n_renames;
    const char *const *fresh; /* fnmatch patterns: these keep the values of the model if they are absent */
    uint32_t n_fresh;
};

struct graph_weights_facts { /* of an import with weights */
    uint32_t loaded;  /* tensors of the graph that have values of the file */
    uint32_t fresh;   /* that are absent from the file and keep those of the model */
    uint32_t surplus; /* tensors of the file that the graph does not have */
};

/* A table (initializers by an fnmatch pattern) of which no Gather passes a gradient to one row, as in
 * torch.nn.Embedding(padding_idx). */
struct graph_padding {
    const char *match;
    int64_t row;
};

struct graph_opts {
    const char *path;          /* of the .onnx file; external data must lie below its folder */
    const struct graph_padding *padding; /* [n_padding] before what the file's metadata state */
    uint32_t n_padding;
    enum graph_norm batch_norm;
    bool collect_questions;    /* what only a job can decide is not an error: graph_question() */
    /* fnmatch patterns of initializers that train, whatever the file states about them, and of those
     * that do not. `trainable` decides before `frozen`. A pattern may match the name that the module
     * defines, a name that is tied to it, or the name in the file. */
    const char *const *trainable;
    uint32_t n_trainable;
    const char *const *frozen;
    uint32_t n_frozen;
    const struct graph_weights *weights; /* initial values, and those of frozen parameters; NULL: the
                                            model's own */
    bool all_constant;         /* nothing trains and nothing averages: to run a graph as it is */
    uint64_t max_bytes;        /* refuse larger files; 0: 16 GiB */
};

/* Reads and checks the file: size and nesting are scanned before anything is unpacked; every op
 * must have a row (all that are missing are listed together, with node, opset and what is
 * supported: ERR_UNSUPPORTED). On success the caller owns *out.
 * Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int graph_import(const struct graph_opts *opts, struct graph **out, struct err *err);
/* The same from memory; `path` only for names and external data. */
int graph_import_bytes(const struct graph_opts *opts, const void *bytes, size_t n,
                       struct graph **out, struct err *err);
/* Only what the file says of itself: graph_ops(), graph_opset(), graph_producer(). For a model whose
 * import fails. */
int graph_survey(const struct graph_opts *opts, struct graph **out, struct err *err);
void graph_free(struct graph *g); /* after its plans; NULL is fine */

uint32_t graph_opset(const struct graph *g);
const char *graph_producer(const struct graph *g); /* "pytorch 2.1.0"; "" if the file does not say */
const struct graph_op *graph_ops(const struct graph *g, uint32_t *n); /* in the order of the file */
/* The ops of ai.onnx that are supported, a line each: the name, and the opsets of its rows. */
void graph_list_supported(struct buf *out);

const struct graph_param *graph_params(const struct graph *g, uint32_t *n); /* by offset */
size_t graph_arena_floats(const struct graph *g);   /* whole arena, a multiple of 16 */
size_t graph_trained_floats(const struct graph *g); /* its first part; the rest are statistics */
size_t graph_dense_floats(const struct graph *g);   /* of that the first part; the rest are tables */
/* The tables as matrices, by offset, laid out (tensor/packed.h); *words: of all their marks. */
const struct packed_table *graph_tables(const struct graph *g, uint32_t *n, size_t *words);
const struct graph_io *graph_inputs(const struct graph *g, uint32_t *n); /* without initializers */
const struct graph_io *graph_outputs(const struct graph *g, uint32_t *n);
/* Every initializer of floats, with what became of it and why. */
const struct graph_judged *graph_judged(const struct graph *g, uint32_t *n);
/* What a person should know about this import ("trains anonymous initializer ..."), for the log. */
const char *const *graph_notes(const struct graph *g, uint32_t *n);
/* With collect_questions: what the job of this model has to decide, in the words of the error that
 * graph_import() returns otherwise; NULL: nothing. */
const char *graph_question(const struct graph *g);
/* Copies the initial values of all parameters into an arena of graph_arena_floats(); the gaps
 * between parameters are left alone. Errors: ERR_IO (a file of external data or of weights was
 * truncated meanwhile; the content of the arena is then undefined). */
int graph_fill_initial(const struct graph *g, float *arena, struct err *err);
struct graph_tensor { /* of the module, as its state_dict() has it */
    const char *name;
    struct tensor tensor; /* with data, unless is_param */
    bool is_param;        /* its values are in the arena, at `offset` */
    size_t offset;
};
/* The tensors that the module has, in the order of the file: parameters, running statistics, frozen
 * parameters and buffers, but no constants of formulas. A tied parameter whose second name is known is
 * listed under both. Lives with the graph. */
const struct graph_tensor *graph_module_tensors(const struct graph *g, uint32_t *n);
/* What graph_opts.weights gave; all 0 without. */
struct graph_weights_facts graph_weights_facts(const struct graph *g);
/* Does the file have this tensor, under the name that `renames` gives it? */
bool graph_weights_find(const struct graph_weights *w, const char *name, struct graph_weight *out);
/* Compares `values`, float32 and plain, with a tensor of the file converted to float32, bit by bit.
 * Dimension i of `values` is dimension order[i] of the file's tensor; NULL: the same order.
 * false also if the shapes differ. `shape` is that of `values`. */
bool graph_weight_equals(const struct graph_weight *w, const float *values,
                         const struct shape *shape, const uint32_t *order);
/* Releases the initial values: the memory of those that lie in the unpacked model, and the mappings
 * of external data. No plan may be made meanwhile. */
void graph_forget_initial(struct graph *g);
/* SHA-256 of the structure and the names and shapes of the parameters, not of their values. */
const char *graph_digest(const struct graph *g);

/* The model with these parameters, for inference: BatchNormalization and Dropout switched to
 * inference form, everything else as it came, unknown fields kept. Weights above ~1.9 GB go to
 * `<path>.data` as external data. Durable and atomic (temporary, sync, rename).
 * `arena` has graph_arena_floats(). Errors: ERR_IO, ERR_FULL, ERR_NOMEM. */
int graph_export(const struct graph *g, const float *arena, const char *path, struct err *err);

/* A file with one onnx.TensorProto, as ONNX's test data has them. The data is in `mem`. */
int graph_read_tensor_file(const char *path, uint64_t max_bytes, struct arena *mem,
                           struct tensor *out, struct err *err);
/* The same from n bytes in memory; external data lies below the folder of `path`. */
int graph_read_tensor_bytes(const char *path, const uint8_t *bytes, size_t n, struct arena *mem,
                            struct tensor *out, struct err *err);
int graph_write_tensor_file(const char *path, const char *name, const struct tensor *t,
                            struct err *err);

/* ---- plans ---- */

enum plan_purpose {
    PLAN_TRAIN, /* forward, losses, backward; metrics not computed */
    PLAN_EVAL,  /* forward in inference form, losses and metrics */
    PLAN_RUN,   /* the graph once, on arrays as they are: no batch, no targets, no sample weights */
};

struct plan_feed { /* a graph input, or a target */
    const char *name;   /* the graph input's name; for targets any name */
    const char *source; /* for messages: the feature it comes from */
    enum tensor_dtype dtype; /* graph inputs: what the graph says; targets: what their row wants */
    struct shape shape;      /* of one sample, without the batch dimension; PLAN_RUN: the whole */
    const void *value;       /* PLAN_RUN, may be NULL: what every call will be fed. Shapes and
                                branches may depend on it; read during plan_new() */
};

struct op_attr;

/* A loss or a metric: a row of domain trainerd over (tensor, target, sample weights), see
 * op/loss/loss.h. */
struct plan_measure {
    const char *op;     /* "SoftmaxCrossEntropy"; NULL, for losses: `tensor` is a number that the graph
                           computes itself, as a mean over the samples of its batch */
    const char *tensor; /* of the graph: logits, predictions, the number */
    uint32_t target;    /* of opts.targets; without meaning if op is NULL */
    float weight;       /* of a loss in the sum of all; 0: 1 */
    const struct op_attr *attrs; /* of the row; copied */
    uint32_t n_attrs;
};

/* In all of them parameters, their gradients, statistics, losses and what callers see are float32, and so
 * are sums on the way. */
enum plan_precision {
    PLAN_FLOAT32,
    PLAN_TF32,     /* GPUs: products of float32 may be of 10 bits of fraction and 8 of exponent each */
    PLAN_BFLOAT16, /* products multiply bfloat16, and activations between them are bfloat16 */
    PLAN_FLOAT16,  /* GPUs: the same with float16. Its range ends at 65504, and below 6e-8 there is nothing:
                      gradients keep their digits if run->loss_scale is large enough */
};
const char *plan_precision_name(enum plan_precision p); /* "tf32" */
bool plan_precision_parse(const char *name, enum plan_precision *out);
/* Can it be computed so? By a GPU of this compute capability (10 * major + minor), 0: by this CPU. Errors:
 * ERR_UNSUPPORTED: what it needs, what there is, what to do. */
int plan_precision_check(enum plan_precision p, uint32_t capability, struct err *err);

struct plan_opts {
    enum plan_purpose purpose;
    uint32_t batch;               /* samples of a call: the lane batch */
    /* NULL: computed by this CPU. Else by the GPU that the thread has entered, now and in every call: then
     * addresses of parameters, gradients, work and of the tensors below are the GPU's, and forward and
     * backward put their work on run->queue and return (op/op.h); what a call of theirs returns as a
     * number can be asked for when the queue has come to rest. */
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
    const char *const *keep;      /* tensors whose values the caller wants to read afterwards */
    uint32_t n_keep;
    bool sum_outputs; /* the loss is the sum over all float32 outputs of the graph; no other then */
    bool feed_grads;  /* PLAN_RUN: backward, to the float32 feeds */
    bool training;    /* PLAN_RUN: nodes in training form */
};

/* Shape errors name node, op and both shapes. ERR_UNSUPPORTED also for a precision that this processor
 * has no instructions for. On success the caller owns *out.
 * Errors: ERR_INPUT, ERR_UNSUPPORTED, ERR_NOMEM, ERR_DEVICE. */
int plan_new(const struct graph *g, const struct plan_opts *opts, struct plan **out,
             struct err *err);
void plan_free(struct plan *p); /* NULL is fine */

/* Memory this plan wants from the caller, 64-byte aligned. */
size_t plan_work_bytes(const struct plan *p);
/* Parameters and work memory for the calls that follow. `params`: the arena; gradients are given
 * to each backward. Cheap enough to be called per lane. */
void plan_bind(struct plan *p, float *params, void *work);

/* Where the next batch is to be written: feed i in the order of opts, then the targets, then (but for
 * PLAN_RUN) the sample weights, float32 [batch]. Valid until plan_bind(). */
const struct tensor *plan_input(struct plan *p, uint32_t i);
/* With feed_grads, after backward: the gradient of the loss by feed i, plain. NULL: none gets there,
 * it is zero. */
const struct tensor *plan_input_grad(const struct plan *p, uint32_t i);

/* From now on the gradients of tables are packed: forward marks in `rows` what it reads, and backward
 * leaves `rows` settled and the values of marked rows in the arena from graph_dense_floats() on; the
 * rest of that part of the arena is not touched. `rows`: of graph_tables(), borrowed; NULL: tables
 * have whole gradients. Cheap enough to be called per lane. Only PLAN_TRAIN. */
void plan_pack(struct plan *p, struct packed *rows);
/* On a GPU, where gradients of tables are whole: from now on backward leaves, in floats [at, at + 64 words) of
 * the arena (words: of graph_tables()), 1 for each row that forward read and else 0: row r of a table is float
 * at + 64 first_word + r, so that arenas that are added up count. Only PLAN_TRAIN. */
void plan_tell_rows(struct plan *p, size_t at);
/* Runs forward. Each loss is the sum over the batch of sample weight * loss, times run->loss_scale.
 * Errors, of backward too: those of kernels, ERR_CANCELED (run->cancel). */
int plan_forward(struct plan *p, const struct op_run *run, struct err *err);
/* Runs backward into `grads` (an arena; every element of it that belongs to a parameter is
 * overwritten, gaps are left alone; statistics get the batch's values). `ready`, if given, is
 * called when the floats [offset, offset + n) are final, in order of offset, covering the trained
 * part (its dense part, when the tables are packed) without gaps. */
typedef void plan_ready_fn(void *arg, size_t offset, size_t n);
int plan_backward(struct plan *p, const struct op_run *run, float *grads, plan_ready_fn *ready,
                  void *arg, struct err *err);
/* The error that a CPU's forward would have ended with. */
int plan_refuse(const struct plan *p, const struct op_trouble *found, struct err *err);
float plan_loss(const struct plan *p); /* of the last forward: the sum of all losses */
/* Where the next calls on the queue find that number, and the next one's, on a GPU. */
const float *plan_loss_at(const struct plan *p);
const float *plan_loss_weight_at(const struct plan *p); /* NULL: there is no weight */
/* What the mean of the one loss has to be divided by: the sum of the weights of what counted, times
 * run->loss_scale (1 when summed over the global batch, unless classes weigh or labels are ignored). */
float plan_loss_weight(const struct plan *p);
/* A metric is a few sums over samples, and behind them the sum of the weights. */
uint32_t plan_metric_words(const struct plan *p, uint32_t i);
void plan_metric_add(const struct plan *p, uint32_t i, double *sums); /* of the last forward */
double plan_flops(const struct plan *p); /* of forward */
/* PLAN_RUN: how many nodes of float64 are computed in float32; *first: the name of the first, or NULL. */
uint32_t plan_rounded(const struct plan *p, const char **first);
/* Sentences about gradients that are missing where a caller may expect them; the plan owns them. */
const char *const *plan_notes(const struct plan *p, uint32_t *n);

/* ---- what became of the attentions ---- */
struct plan_attention {
    const char *node; /* its softmax */
    bool is_fused;    /* it is one call, which never holds the matrix of scores */
    const char *why;  /* if not: the first obstacle; "" otherwise */
};
/* Every softmax of a product of two computed matrices that multiplies a third one, in the order of the graph. The plan
 * owns the result. */
const struct plan_attention *plan_attentions(const struct plan *p, uint32_t *n);

/* ---- where the time goes ---- */
struct plan_call_info { /* a call: forward's in order, then backward's */
    const char *op, *node; /* op "": a sum of gradients */
    bool backward;
};
uint32_t plan_calls_count(const struct plan *p);
struct plan_call_info plan_call_info(const struct plan *p, uint32_t i);
/* From now on forward and backward tell of each call when it has ended (on a GPU: when its work is on the
 * queue); NULL: no longer. A failure ends them. */
typedef int plan_watch_fn(void *arg, uint32_t call, struct err *err);
void plan_watch(struct plan *p, plan_watch_fn *fn, void *arg);

/* ---- where a number stopped being one ---- */
struct plan_culprit {
    bool found;
    uint32_t sample; /* of the batch, the first that it befell; UINT32_MAX: it is not of one sample */
    char text[640];  /* "forward of Log 'ln': output 'y' float32 [8, 10] holds -inf, 1 of 80 numbers;
                        it read 'x' from 0 to 2.5" */
};
/* From now on forward and backward look at all numbers that calls read and write, which is slow, and
 * note in `c` the first that is NaN or infinite and came from none that is: an input of the batch, a
 * weight, or what a call made of finite numbers (an infinity that was meant to be there, as in
 * an attention mask, is none of its own). They run to their end. Borrowed; NULL: no longer. */
void plan_hunt(struct plan *p, struct plan_culprit *c);

const struct tensor *plan_tensor(const struct plan *p, const char *name); /* of opts.keep; plain */
/* A call per line: op, node, shapes, layout, bytes, views; and the memory plan. */
void plan_print(const struct plan *p, struct buf *out);

#endif
