/* plan_priv.h - the passes that make a plan, and their shared types.
 *
 *   plan_build.c   selects the needed part of the graph; infers the shapes of each node in order
 *                  (plan_node.c); folds constants (plan_double.c: in float64; plan_types.c: types
 *                  without kernels). plan_feeds.c: inputs; plan_control.c: expands If, Loop and
 *                  Scan; plan_batch.c: batch sizes that an export wrote into shapes;
 *                  plan_measure.c: losses and metrics; plan_sequence.c: sequences of tensors;
 *                  plan_embedding_bags.c: EmbeddingBag, plan_padded_bags.c: with padding. Finally, nodes without a reader are removed
 *   plan_fuse.c    replaces chains that one kernel computes by one node; the patterns: fuse_*.c
 *   plan_precision.c  selects float32 or 16 bits for each value; adds `Convert` nodes
 *   plan_layout.c  selects a layout for each value; adds `Reorder` nodes
 *   plan_remote.c  moves the nodes that compute indices of remote tables to the front
 *   plan_grad.c    determines the values with a gradient and the nodes that run backward
 *   plan_warn.c    warns about a loss that trains nothing, or another one than intended
 *   plan_range.c   states which numbers an input may have
 *   plan_share.c   lets values share memory: views, and results in place
 *   plan_calls.c   converts nodes to calls, and values to tensors with lifetimes
 *   plan_place.c   converts lifetimes to offsets in the work memory
 *   plan_device.c  on a GPU: kernels, constants, results
 *   plan.c         plan_new() runs the passes; binding and execution
 *   plan_nonfinite.c  non-finite tracing: execution that checks every number
 *   plan_verify.c  checks the memory of a finished plan; shares no code with the passes
 *
 * Time is counted in nodes: node i runs forward at time i and backward at 2 * n_nodes - 1 -
 * node.order; order is i unless plan_remote.c moved nodes. */
#ifndef GRAPH_PLAN_PRIV_H
#define GRAPH_PLAN_PRIV_H

#include "base/vec.h"
#include "graph/graph_priv.h"

enum plan_value_kind {
    PLAN_FEED,  /* `index` into the feeds */
    PLAN_CONST, /* tensor.data is known */
    PLAN_PARAM, /* `index` into graph.params */
    PLAN_MADE,  /* computed by node `index` */
};

struct plan_value {
    const char *name;
    enum plan_value_kind kind;
    uint32_t index;
    struct tensor tensor;  /* type, shape, layout */
    bool kept;             /* the caller reads it after the last call */
    bool by_sample;        /* axis 0 enumerates the samples, or consecutive parts of them */
    const char *one_draw;  /* axis 0 has size 1 because of the shape of this random node
                              (plan_draw.c); else NULL */
    bool is_read;          /* by a node, the caller, or backward */
    bool needs_grad;       /* a trained parameter is upstream */
    bool has_grad;         /* needs_grad, and backward computes a gradient for it */
    bool is_fed;           /* plan_precision.c: depends on an input, not only on parameters */
    bool is_half; /* the type is plan.types.half because of this plan, not because of the model */
    uint32_t other_type;   /* plan_precision.c: the same value in the other of float32 and
                              plan.types.half; GRAPH_NONE: no Convert exists */
    uint32_t other_layout; /* the same value in the other layout; GRAPH_NONE: no Reorder exists */
    uint32_t root;         /* the value whose memory it shares; itself if it has its own */
    uint32_t grad_root;    /* the value whose memory its gradient shares */
    uint32_t block;        /* roots of kind FEED and MADE: block of work memory */
    size_t constant_at;    /* roots of kind CONST, on a GPU: offset in plan_device.constants; 0: not
                              placed yet */
    uint32_t grad_block;   /* gradient roots other than parameters: block of work memory */
    bool grad_written;     /* while backward calls are made: the next contribution is added */
    struct tensor *fwd, *meta, *grad; /* as calls see it; meta: without data. NULL until first
                                         used */
};

struct plan_node {
    const struct op_def *def;
    const char *name;
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in, n_out;
    uint32_t *in, *out; /* values; GRAPH_NONE: absent */
    uint32_t stream;
    void *param;
    const struct op_kernels *kernels; /* kernels of the row for the plan's device */
    void *state; /* owned by plan.calls.states */
    size_t save_bytes, scratch_bytes;
    double flops;
    bool draws_fixed; /* a random node whose shape does not depend on an input of the graph */
    bool stops_gradient;
    /* Position before plan_remote.c moved nodes. Backward runs in descending order of it, so that
     * gradients are added in the same order as with local tables */
    uint32_t order;
    struct op_lookup *lookup; /* Gather from a remote table; NULL: another node */
    bool is_alias;  /* the output shares the input's bytes: no call */
    bool in_place;  /* output 0 overwrites input 0 */
    bool runs_bwd;
    uint32_t save_block;
};

struct plan_block { /* a range of work memory */
    size_t bytes;
    uint32_t first, last; /* lifetime: first and last time of use, inclusive */
    size_t offset;        /* computed by plan_place.c */
};

/* PLAN_REMOTE and PLAN_REMOTE_GRADS stand for remote tables and their gradients. They have no
 * memory: addresses are not set, since kernels use op_call.lookup and op_call.rows instead. PLAN_DELAYED has the
 * layout of PLAN_ARENA. */
enum plan_base {
    PLAN_WORK,
    PLAN_ARENA,
    PLAN_DELAYED,
    PLAN_GRADS,
    PLAN_CONSTANTS,
    PLAN_REMOTE,
    PLAN_REMOTE_GRADS,
    PLAN_BASES
};

/* On a GPU: constants are stored consecutively in device memory owned by the plan, after the number
 * 1. Results of forward that the caller reads are copied back to host memory, in the order of
 * result_at(). */
struct plan_device {
    const struct cuda_api *cuda; /* NULL: the plan computes on this CPU */
    void *constants;
    size_t constants_bytes;
    VEC(uint32_t) constant_values;
    void *results;               /* pinned host memory; owned */
};

struct plan_bind { /* an address that binding sets */
    void **at;
    size_t offset;  /* bytes from the base; for PLAN_WORK plan_place() computes it from `block` */
    uint32_t block; /* index of the block that contains it */
};

/* A non-canonical address: an access faults at the erroneous instruction. (Not NULL, because a
 * kernel may do arithmetic on an address that it never accesses.) */
#define PLAN_POISON_ADDRESS ((void *)((uintptr_t)1 << 62))

struct plan_call {
    int (*kernel)(const struct op_call *c, struct err *err);
    struct op_call call;
    uint32_t node;
    uint32_t time;
};

struct plan_state { /* the state made by an op's plan function; owned */
    void *state;
    void (*free_state)(void *state);
};

struct plan_ready { /* a range that is final after backward call `call` (UINT32_MAX: before the
                       first) */
    uint32_t call;
    size_t offset, n;
};

struct plan_span {
    size_t offset, n;
};

struct plan_sums { /* the values of a metric */
    uint32_t value, weight; /* values whose elements it sums */
};

/* In the builder's map, indices from here on are sequences. */
#define PLAN_SEQUENCE_FIRST 0x80000000u

struct plan_list;      /* plan_sequence.c */
struct plan_sequence { /* a sequence of tensors: the first n elements of a list */
    struct plan_list *list;
    uint32_t n;
};

struct plan_fold { /* memory of a constant that was computed while planning */
    void *data;
    size_t bytes;
    bool is_read;
};

struct plan_kept {
    const char *name;
    uint32_t value;
};

struct plan_types {         /* the element types that calls compute with */
    enum tensor_dtype half; /* type of 16-bit activations: TENSOR_BF16, TENSOR_F16; TENSOR_NONE: all
                               are float32 */
    bool tf32;              /* see op_plan.tf32 */
    uint32_t n_rounded; /* PLAN_RUN: number of float64 nodes that are computed in float32 */
    const char *first_rounded; /* name of the first of them; NULL: none */
};

struct plan_inputs {  /* what the caller writes before a call */
    uint32_t n;       /* feeds, targets, sample weights */
    uint32_t *values; /* [n] */
    uint32_t n_feeds;
    bool feed_grads; /* backward computes gradients of the float32 feeds */
};

struct plan_loss {
    uint32_t value, weight;  /* values; GRAPH_NONE: absent */
    struct tensor grad;      /* seed gradient: scalar 1.0 */
    float last, last_weight; /* copies after the last forward: backward may overwrite their
                                memory */
};

/* Positions of a bag, without those whose id is the padding (plan_padded_bags.c). */
struct plan_selection {
    const char *name;          /* of the Loop, for messages */
    uint32_t positions;        /* the constant that replaces them: [first, end) */
    uint32_t ids;              /* value [n] */
    int64_t first, end;
    int64_t padding, from_end; /* the id of the padding, and the same counted from the end */
};

struct plan_building {   /* used while the plan is made */
    uint32_t n_expanded; /* number of bodies expanded so far */
    VEC(struct plan_sequence) sequences;
    uint32_t sequence_items; /* total capacity of their lists, in elements */
    VEC(struct plan_selection) selections;
    size_t folded_bytes;
    VEC(struct plan_fold) folds; /* plan_fold.c: large folds only */
};

struct plan_memory { /* the memory plan */
    VEC(struct plan_block) blocks;
    VEC(struct plan_bind) binds[PLAN_BASES];
    size_t work_bytes;
};

struct plan_calls {
    VEC(struct plan_call *) forward;
    VEC(struct plan_call *) backward;
    VEC(struct plan_ready) ready;
    VEC(struct plan_span) zeros; /* trained parameters without a gradient */
    VEC(struct plan_state) states;
};

struct plan_tables {          /* gradients of embedding tables */
    struct packed_rows *rows; /* [n_tables of the graph] row-sparse gradients for Gather; marks
                                 NULL: gradients are dense */
    struct packed *packed;    /* borrowed from the caller of plan_set_packed(); NULL: gradients of tables
                                 are dense */
    size_t rows_at;           /* set by plan_record_rows(); 0: rows are not recorded */
};

struct plan_remote { /* remote tables that the plan reads */
    uint32_t n;                   /* number of lookups: calls of Gather from a remote table */
    struct plan_lookup *lookups;  /* [n] in the order of the nodes */
    struct op_lookup *reads;      /* [n] the same as calls see them; plan_node.lookup points here */
    uint8_t **is_padding;         /* [n] memory of reads[i].is_padding; NULL: no padding row */
    struct plan_call **calls;     /* [n] their forward calls */
    uint32_t n_nodes;             /* the first nodes: all that compute indices of lookups */
    uint32_t n_calls;             /* the first forward calls: those of these nodes */
    struct packed_rows *rows;     /* [n_remotes of the graph] gradients, for Gather */
    struct packed *packed;        /* borrowed from the caller of plan_set_remote(); NULL: no
                                     gradients */
    size_t at;                    /* first value of the gradients in the arena of gradients */
    bool has_rows;                /* plan_forward_indices() wrote the lookups of the next forward */
};

struct plan_bound { /* the memory that the caller provides */
    float *params, *grads;
    void *work;
    bool is_bound;
};

struct plan_watch {
    plan_watch_fn *fn; /* NULL: no callback */
    void *arg;
};

struct plan {
    const struct graph *g;
    enum plan_purpose purpose;
    uint32_t batch;
    bool training;    /* nodes in training form */
    struct arena mem; /* owns all objects of the plan that have no other owner */
    VEC(struct plan_value) values;
    VEC(struct plan_node) nodes; /* in forward order */
    struct plan_types types;
    struct plan_inputs inputs;
    struct plan_loss loss;
    struct plan_sums *metrics;
    uint32_t n_metrics;
    struct plan_kept *kept;
    uint32_t n_kept;
    struct plan_building building;
    VEC(struct plan_attention) attentions; /* plan_fuse.c: the attentions of the graph, fused or
                                              not */
    VEC(char *) notes; /* see plan_notes() */
    VEC(char *) warnings; /* see plan_warnings() */
    struct plan_memory memory;
    struct plan_calls calls;
    struct plan_device device;
    struct plan_tables tables;
    struct plan_remote remote;
    struct plan_bound bound;
    struct plan_watch watch;
    struct plan_nonfinite *nonfinite; /* NULL: non-finite tracing is disabled */
};

/* ---- plan_build.c and helpers ---- */
struct plan_builder {
    struct plan *p;
    const struct plan_opts *opts;
    /* Adds a node of the graph; plan_control() calls the function for the nodes of bodies. */
    int (*add_node)(struct plan_builder *b, const struct graph_node *from, struct err *err);
    bool *needed;        /* [g->n_values] the plan needs the value */
    bool *node_needed;   /* [g->n_nodes] the plan needs the node */
    uint32_t *map;       /* [g->n_values] plan value for each graph value; GRAPH_NONE: none */
    int64_t file_batch; /* batch size fixed by the export, if it differs from the lane's; 0: none */
    const char *fixed_input; /* the input that fixes it */
};

int plan_build(struct plan *p, const struct plan_opts *opts, struct err *err);
int plan_feeds(struct plan_builder *b, struct err *err);
int plan_control(struct plan_builder *b, const struct graph_node *from, struct err *err);
/* ---- plan_sequence.c ---- */
/* Handles a node whose row is in sequence.c. */
int plan_sequence(struct plan_builder *b, const struct graph_node *from, struct err *err);
bool plan_is_sequence(uint32_t value);
/* The error of a node that reads the sequence `name` but requires tensors. */
int plan_refuse_sequence(const struct graph_node *n, const char *name, struct err *err);
/* ---- plan_padded_bags.c ---- */
/* If the Loop collects the positions of a bag without padding, its outputs get values, and *done is set
 * to true. */
int plan_padded_bag(struct plan_builder *b, const struct graph_node *from, bool *done,
                    struct err *err);
/* ---- plan_embedding_bags.c ---- */
/* If the items [n] are reduced rows of bags of one size, *out receives one tensor [n, ...] and
 * *done is set to true. stacks: the items lack the leading axis. */
int plan_embedding_bags(struct plan *p, const char *name, const uint32_t *items, uint32_t n,
                        bool stacks, uint32_t *out, bool *done, struct err *err);
/* Refuses a plan in which a node reads a selection as if it had no padding. */
int plan_check_selections(const struct plan *p, struct err *err);
/* Returns whether the node is a pool with more spatial axes than the kernels support
 * (lower_pool.c). */
bool plan_is_wide_pool(const struct plan_builder *b, const struct graph_node *from);
/* Returns whether the node has the bounds of a call of PyTorch, but the gradient of another one
 * (lower_clamp.c). */
bool plan_is_clamp(const struct plan_builder *b, const struct graph_node *from);
/* Adds the nodes that compute a node of a lowered row (graph_is_lowered()), a wide pool or a
 * clamp. */
int plan_lower(struct plan_builder *b, const struct graph_node *from, struct err *err);
/* Called before node n is inferred: replaces a batch size of the export in its shape by the
 * lane's. */
int plan_replace_batch(struct plan_builder *b, struct plan_node *n, struct err *err);
/* Called after node n is inferred: sets by_sample of its outputs. Refuses random numbers that
 * samples would share. */
int plan_mark_samples(struct plan *p, const struct plan_node *n, struct err *err);
/* The part of plan_mark_samples() that tracks random numbers (plan_draw.c). */
int plan_track_draws(struct plan *p, const struct plan_node *n, struct err *err);
int plan_measures(struct plan_builder *b, struct err *err);

/* ---- plan_value.c ---- */
enum { PLAN_MAX_VALUES = 4096 /* elements of a feed whose values planning uses */ };
int plan_no_memory(struct err *err);
/* Finds the value of the graph called `name`; `role` is for messages. Errors: ERR_INPUT, with the
 * nearest name. */
int plan_find_tensor(const struct graph *g, const char *name, const char *role, uint32_t *out,
                     struct err *err);
/* Returns whether the numbers of the value are known and the same in every run. */
bool plan_is_known(const struct plan_value *v);
/* Reads the single number of a value of the plan; GRAPH_NONE is allowed. Returns false if the number is not known or has
 * another type. `dtype`: bool or int64. */
bool plan_read_number(const struct plan *p, uint32_t value, enum tensor_dtype dtype, int64_t *out);
/* Returns the value of the plan for a value of the graph; GRAPH_NONE: none, or absent. */
uint32_t plan_mapped(const struct plan_builder *b, uint32_t value);
/* Appends a value. GRAPH_NONE: out of memory. */
uint32_t plan_add_value(struct plan *p, const char *name, enum plan_value_kind kind, uint32_t index,
                        const struct tensor *t);
/* Appends a constant of int64: a list, or with n = 0 a scalar. GRAPH_NONE: out of memory. */
uint32_t plan_add_ints(struct plan *p, const char *name, const int64_t *values, uint32_t n);
/* Returns whether a tensor of this shape exceeds the memory of any machine. */
bool plan_is_too_large(const struct tensor *t);

/* ---- plan_node.c ---- */
/* Runs the row's infer function for a node whose def, name, attributes and inputs are set. The plan
 * owns *out [n_out]. */
int plan_infer_node(struct plan *p, struct plan_node *n, struct tensor **out, struct err *err);
/* Infers such a node and appends it and its outputs; output i is called out_names[i] (NULL or "":
 * absent). */
int plan_add_node(struct plan *p, struct plan_node *n, const char *const *out_names,
                  struct err *err);
/* Called for the node just appended: if all values it depends on are known, computes it, converts
 * its outputs to constants and removes it. */
int plan_fold_node(struct plan *p, struct plan_node *n, struct err *err);
/* Called for the node just appended: marks samples and folds the node if possible. */
int plan_mark_and_fold(struct plan *p, struct plan_node *n, struct err *err);

/* Adds an ONNX op on values of the plan: inferred, appended, folded if possible. out [n_out]
 * receives its outputs. attrs are copied. */
int plan_add_op(struct plan *p, const char *op, const char *name, const struct op_attr *attrs,
                uint32_t n_attrs, const uint32_t *in, uint32_t n_in, uint32_t *out, uint32_t n_out,
                struct err *err);
/* insert: inserts an axis of size one at `axis` into *value; else removes the axis of size one at
 * `axis`. */
int plan_move_axis(struct plan *p, const char *name, uint32_t *value, int64_t axis, bool insert,
                   struct err *err);

/* ---- plan_double.c: float64 in formulas ---- */
/* Returns whether the node reads float64 and is computed by plan_double.c. Its inputs are set, and
 * all are known. */
bool plan_folds_double(const struct plan *p, const struct plan_node *n);
/* Replaces the row's infer function, which refuses float64, for such a node. */
int plan_infer_double(const struct plan_node *n, struct op_infer *f, struct err *err);
/* Replaces the kernel of such a node; writes to the outputs' data. */
int plan_compute_double(const struct plan *p, const struct plan_node *n, struct err *err);
/* Adds the remedy to the error `rc` of a row whose node reads float64. */
int plan_refuse_double(const struct plan *p, const struct plan_node *n, int rc, struct err *err);
/* Refuses a node that is not folded and that converts a float32 activation to float64 or computes
 * in float64. */
int plan_check_double(const struct plan *p, const struct plan_node *n, struct err *err);

/* ---- plan_types.c: element types that a row has no kernels for ---- */
/* Calls plan_add_node() and plan_fold_node() for node n with Cast nodes around it; its row
 * refused it with `rc` because of the types of its inputs. Returns `rc`, and does not change *err,
 * if that fails too. */
int plan_add_cast(struct plan_builder *b, struct plan_node *n, const char *const *out_names, int rc,
                  struct err *err);

/* ---- the other passes ---- */
int plan_fuse(struct plan *p, struct err *err);
int plan_precision(struct plan *p, struct err *err); /* only with a plan.types.half */
enum tensor_dtype plan_precision_half(enum plan_precision p);
int plan_layouts(struct plan *p, struct err *err);
int plan_gradients(struct plan *p, struct err *err);
/* Used before plan_gradients(): *out is set to whether a trained parameter (in a plan with
 * feed_grads: a float32 feed) is upstream of the value, through inputs that pass a gradient. */
int plan_is_trained(const struct plan *p, uint32_t value, bool *out, struct err *err);
int plan_share(struct plan *p, struct err *err);
int plan_calls(struct plan *p, struct err *err);
int plan_place(struct plan *p, struct err *err);

/* ---- plan_remote.c: remote tables ---- */
/* The pass: finds lookups, and moves all nodes that compute their indices to the front. Errors:
 * ERR_UNSUPPORTED (an index depends on a row of a remote table, a GPU, PLAN_RUN), ERR_NOMEM. */
int plan_remote(struct plan *p, struct err *err);
/* Called after the calls that compute indices: writes the rows of all lookups. */
int plan_remote_list(struct plan *p, const struct op_run *run, struct err *err);
/* Called before backward: assigns places to the slots that forward marked, and clears their
 * gradients. */
void plan_remote_open(struct plan *p, float *grads);

/* ---- plan_fold.c: constants computed while planning ---- */
/* Allocates memory of a constant, 64-byte aligned, owned by the plan. NULL: out of memory. */
void *plan_fold_alloc(struct plan *p, size_t bytes);
void plan_fold_release(struct plan *p); /* called after the passes: frees folds that no node
                                           reads */
void plan_fold_free(struct plan *p);

/* ---- plan_device.c: GPU support ---- */

/* Finds the kernels of a row for the plan's device. Errors: ERR_UNSUPPORTED (there are none). */
int plan_kernels(const struct plan *p, const struct op_def *def, const char *node,
                 const struct op_kernels **out, struct err *err);
/* Assigns a place in device memory to a constant that calls read. Returns false if memory runs
 * out. */
bool plan_device_add_constant(struct plan *p, uint32_t value);
int plan_device_open(struct plan *p, struct err *err); /* called after all calls are made */
void plan_device_close(struct plan *p);
/* Called at the end of forward: enqueues the copies of results to the host. */
int plan_device_copy_results(struct plan *p, const struct op_run *run, struct err *err);
/* The numbers of a result on the host. */
const void *plan_device_result(const struct plan *p, uint32_t value);
/* Copies t to host memory owned by `mem`, after synchronizing the queue; on a CPU *out is t
 * itself. */
int plan_device_read(const struct plan *p, const struct op_run *run, const struct tensor *t,
                     struct arena *mem, struct tensor *out, struct err *err);

/* ---- plan_nonfinite.c: non-finite tracing ---- */
/* Called before forward: checks inputs and parameters. */
int plan_trace_begin(struct plan *p, const struct op_run *run, struct err *err);
int plan_trace_call(struct plan *p, const struct plan_call *call, bool backward, struct err *err);
/* Called before the calls that read remote tables: checks the rows that they will read. */
void plan_trace_remote(struct plan *p);
void plan_trace_tables(struct plan *p); /* called after backward: checks rows of tables */

/* Returns the base of parameter or remote table i. */
static inline enum plan_base plan_param_base(const struct plan *p, uint32_t i)
{
    if (graph_param_is_remote(p->g, i))
        return PLAN_REMOTE;
    return p->purpose == PLAN_TRAIN && p->g->params[i].is_delayed ? PLAN_DELAYED : PLAN_ARENA;
}

/* Returns whether all outputs of a node are empty, so that it has no call. */
bool plan_is_empty(const struct plan *p, const struct plan_node *n);
/* Returns whether the bytes of a tensor of this shape differ between the two layouts. */
bool plan_layout_matters(const struct shape *s);
/* Returns whether a gradient flows into input i of node n. Valid after plan_gradients(). */
bool plan_needs_grad(const struct plan *p, const struct plan_node *n, uint32_t i);

/* ---- plan_dropped.c ---- */
/* Refuses a node of PyTorch whose call has an argument that the exporter drops and that changes this
 * plan. Errors: ERR_UNSUPPORTED. */
int plan_check_dropped(const struct plan *p, const struct graph_node *n, struct err *err);

/* ---- plan_warn.c ---- */
/* Warns if the tensor of a loss has been made by a node that the loss includes. value: of the graph. Errors: ERR_NOMEM. */
int plan_warn_scores(struct plan *p, const struct plan_measure *m, uint32_t value, struct err *err);
/* Called after the gradients are planned. Warns if no trained parameter has one. Errors: ERR_NOMEM. */
int plan_warn_untrained(struct plan *p, struct err *err);
/* Returns whether input i of node n is a statistic that backward of this plan measures. */
bool plan_needs_stat(const struct plan *p, const struct plan_node *n, uint32_t i);

#endif
