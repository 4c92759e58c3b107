/* plan_priv.h - how a plan is made, pass by pass.
 *
 *   plan_build.c   what is needed, nodes in order, each with inferred shapes (plan_node.c), constants
 *                  folded (plan_double.c: in float64; plan_types.c: types without kernels); plan_feeds.c: the inputs; plan_control.c: If, Loop and Scan taken apart;
 *                  plan_batch.c: batch sizes that an export wrote into shapes; plan_measure.c: losses
 *                  and metrics; plan_sequence.c: sequences of tensors; plan_bags.c: EmbeddingBag. At
 *                  last, nodes without a reader are removed
 *   plan_fuse.c    chains that one kernel computes become one node; the patterns: fuse_*.c
 *   plan_precision.c  float32 or 16 bits for every value, `Convert` nodes where two disagree
 *   plan_layout.c  a layout for every value, `Reorder` nodes where two disagree
 *   plan_grad.c    which values have a gradient, which nodes run backward
 *   plan_share.c   values that live in another's bytes: views, and results in place
 *   plan_calls.c   nodes become calls, values become tensors at a place, with lifetimes
 *   plan_place.c   lifetimes become offsets in the work memory
 *   plan_there.c   where a GPU computes: its kernels, constants, results
 *   plan.c         plan_new() runs the passes; binding and running
 *   plan_hunt.c    running, with an eye on every number
 *
 * Time is counted in nodes: node i runs forward at i and backward at 2 * n_nodes - 1 - i. */
#ifndef GRAPH_PLAN_PRIV_H
#define GRAPH_PLAN_PRIV_H

#include "base/vec.h"
#include "graph/graph_priv.h"

enum plan_value_kind {
    PLAN_FEED,  /* `index`: of the feeds */
    PLAN_CONST, /* tensor.data is known */
    PLAN_PARAM, /* `index`: of graph.params */
    PLAN_MADE,  /* `index`: the node that makes it */
};

struct plan_value {
    const char *name;
    enum plan_value_kind kind;
    uint32_t index;
    struct tensor tensor;  /* type, shape, layout */
    bool kept;             /* the caller reads it after the last call */
    bool by_sample;        /* axis 0 counts the samples, or parts of them, one after the other */
    const char *one_draw;  /* axis 0 is of size 1, and of this node's draw (plan_draw.c); else NULL */
    bool is_read;          /* by a node, the caller, or backward */
    bool needs_grad;       /* a trained parameter is upstream */
    bool has_grad;         /* and backward brings a gradient here */
    bool is_fed;           /* plan_precision.c: depends on an input, not on parameters alone */
    bool is_half;          /* plan.half because this plan is, not because the model says so */
    uint32_t other_type;   /* the same value in the other of float32 and plan.half, likewise */
    uint32_t other_layout; /* the same value in the other layout, once a Reorder exists */
    uint32_t root;         /* the value whose bytes it lives in; itself if its own */
    uint32_t grad_root;    /* the same for the gradient */
    uint32_t block;        /* roots of kind FEED and MADE: the work memory */
    size_t constant_at;    /* roots of kind CONST, on a GPU: where it lies; 0: nowhere yet */
    uint32_t grad_block;   /* gradient roots that are no parameter */
    bool grad_written;     /* while backward calls are made: the next contribution adds */
    struct tensor *fwd, *meta, *grad; /* as calls see it; meta: no data. NULL until asked for */
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
    const struct op_kernels *kernels; /* of the row, for where the plan computes */
    void *state; /* of plan.states */
    size_t save_bytes, scratch_bytes;
    double flops;
    bool draws_fixed; /* a draw whose shape no input of the graph decides */
    bool stops_gradient;
    bool is_alias;  /* the output is the input's bytes: no call */
    bool in_place;  /* output 0 overwrites input 0 */
    bool runs_bwd;
    uint32_t save_block;
};

struct plan_block { /* a piece of work memory */
    size_t bytes;
    uint32_t first, last; /* used from ... to, both included */
    size_t offset;        /* plan_place.c */
};

enum plan_base { PLAN_WORK, PLAN_ARENA, PLAN_GRADS, PLAN_CONSTANTS, PLAN_BASES };

/* On a GPU: constants lie one behind the other in memory of the plan's own, behind a number that is 1.
 * What forward computes for the caller is copied back to memory of the host, in the order of `results`. */
struct plan_there {
    const struct cuda_api *cuda; /* NULL: computed by this CPU */
    void *constants;
    size_t constants_bytes;
    VEC(uint32_t) constant_values;
    void *results;               /* pinned */
};

struct plan_bind { /* an address that binding fills in */
    void **at;
    size_t offset;  /* bytes from the base; for PLAN_WORK plan_place() fills it in from */
    uint32_t block; /* where the block lies */
};

/* No canonical address: reading it ends the program where the mistake is. (Not NULL, since a
 * kernel may compute with an address that it never reads.) */
#define PLAN_NOWHERE ((void *)((uintptr_t)1 << 62))

struct plan_call {
    int (*kernel)(const struct op_call *c, struct err *err);
    struct op_call call;
    uint32_t node;
    uint32_t time;
};

struct plan_state { /* what an op's plan made */
    void *state;
    void (*free_state)(void *state);
};

struct plan_ready { /* after backward call `call` (UINT32_MAX: before the first) */
    uint32_t call;
    size_t offset, n;
};

struct plan_span {
    size_t offset, n;
};

struct plan_sums { /* a metric */
    uint32_t value, weight; /* what it adds up */
};

/* Numbers from here on, where the builder maps a value, are sequences. */
#define PLAN_SEQUENCE_FIRST 0x80000000u

struct plan_list; /* plan_sequence.c */
struct plan_sequence { /* a sequence of tensors: the first n elements of a list */
    struct plan_list *list;
    uint32_t n;
};

struct plan_fold { /* memory of a constant that planning computed */
    void *data;
    size_t bytes;
    bool is_read;
};

struct plan_kept {
    const char *name;
    uint32_t value;
};

struct plan {
    const struct graph *g;
    enum plan_purpose purpose;
    uint32_t batch;
    enum tensor_dtype half; /* TENSOR_BF16, TENSOR_F16: of activations; TENSOR_NONE: all are float32 */
    bool tf32;              /* as op_plan.tf32 */
    struct arena mem; /* of the plan: everything without another owner */
    VEC(struct plan_value) values;
    VEC(struct plan_node) nodes; /* in the order of forward */
    uint32_t n_inputs;           /* feeds, targets, sample weights */
    uint32_t *input_values;      /* [n_inputs] */
    uint32_t n_feeds;
    bool training;               /* nodes in training form */
    bool feed_grads;
    uint32_t loss_value, loss_weight; /* GRAPH_NONE: none */
    struct plan_sums *metrics;
    uint32_t n_metrics;
    uint32_t n_turns;            /* bodies put in so far */
    uint32_t n_rounded;          /* nodes of float64 that are computed in float32 (PLAN_RUN) */
    const char *first_rounded;   /* name of the first of them */
    VEC(struct plan_attention) attentions; /* plan_fuse.c: those of the graph, fused or not */
    VEC(struct plan_sequence) sequences; /* while it is made */
    uint32_t sequence_items;     /* elements that their lists have room for */
    VEC(char *) notes;           /* plan_notes() */
    struct plan_kept *kept;
    uint32_t n_kept;
    VEC(struct plan_block) blocks;
    VEC(struct plan_bind) binds[PLAN_BASES];
    VEC(struct plan_call *) forward;
    VEC(struct plan_call *) backward;
    VEC(struct plan_ready) ready;
    VEC(struct plan_span) zeros; /* trained parameters that no gradient reaches */
    VEC(struct plan_state) states;
    struct plan_there there;
    struct tensor loss_grad;  /* of one number, which is 1 */
    struct packed_rows *rows; /* [g->n_tables] as Gather sees them; marks NULL: not packed */
    struct packed *packed;    /* the caller's; NULL: tables have whole gradients */
    size_t rows_at;           /* plan_tell_rows(); 0: not called */
    size_t folded_bytes;
    VEC(struct plan_fold) folds; /* plan_fold.c: the large ones */
    size_t work_bytes;
    float *params, *grads;
    void *work;
    bool is_bound;
    plan_watch_fn *watch; /* NULL: nobody does */
    void *watch_arg;
    struct plan_culprit *culprit; /* NULL: nobody hunts for one */
    float loss, weight; /* of the last forward: backward may use their memory */
};

int plan_no_memory(struct err *err);

/* ---- plan_build.c and its helpers ---- */
struct plan_builder {
    struct plan *p;
    const struct plan_opts *opts;
    bool *needed;        /* [g->n_values] */
    bool *node_needed;   /* [g->n_nodes] */
    uint32_t *map;       /* [g->n_values] plan's value of a graph's value */
    int64_t file_batch;  /* the batch that the export fixed, if it is not the lane's; 0 */
    const char *fixed_input; /* which input says so */
};

int plan_build(struct plan *p, const struct plan_opts *opts, struct err *err);
/* The value called `name`; `role` is for messages. */
int plan_find_tensor(const struct graph *g, const char *name, const char *role, uint32_t *out,
                     struct err *err);
int plan_add_graph_node(struct plan_builder *b, const struct graph_node *from, struct err *err);
/* Of the node just appended: marks samples, folds. */
int plan_settle_new(struct plan *p, struct plan_node *n, struct err *err);
int plan_feeds(struct plan_builder *b, struct err *err);
int plan_control(struct plan_builder *b, const struct graph_node *from, struct err *err);
/* ---- plan_sequence.c ---- */
/* A node whose row is in sequence.c. */
int plan_sequence(struct plan_builder *b, const struct graph_node *from, struct err *err);
bool plan_is_sequence(uint32_t value);
/* The error of a node that reads the sequence `name`, and wants tensors. */
int plan_refuse_sequence(const struct graph_node *n, const char *name, struct err *err);
/* ---- plan_bags.c ---- */
/* If the items [n] are the reduced rows of equal bags, *out becomes all of them, [n, ...], and *done
 * is set. stacks: the items have no axis in front yet. */
int plan_bags(struct plan *p, const char *name, const uint32_t *items, uint32_t n, bool stacks,
              uint32_t *out, bool *done, struct err *err);
/* Is the node a pool over more axes of space than the kernels know? (lower_pool.c) */
bool plan_is_wide_pool(const struct plan_builder *b, const struct graph_node *from);
/* Adds the nodes that compute a node of a lowered row (graph_is_lowered()) or a wide pool. */
int plan_lower(struct plan_builder *b, const struct graph_node *from, struct err *err);
/* Before node n is inferred: a batch size of the export in its shape becomes the lane's. */
int plan_unfix_batch(struct plan_builder *b, struct plan_node *n, struct err *err);
/* After it: what of its outputs is by_sample. Refuses random numbers that samples would share. */
int plan_mark_samples(struct plan *p, const struct plan_node *n, struct err *err);
/* Part of it (plan_draw.c). */
int plan_follow_draws(struct plan *p, const struct plan_node *n, struct err *err);
int plan_measures(struct plan_builder *b, struct err *err);

/* ---- plan_node.c ---- */
enum { PLAN_MAX_VALUES = 4096 /* elements of a feed that are looked at while planning */ };
/* Are the value's numbers known, and the same in every run? */
bool plan_is_known(const struct plan_value *v);
/* Appends a value; GRAPH_NONE: out of memory. */
uint32_t plan_add_value(struct plan *p, const char *name, enum plan_value_kind kind,
                        uint32_t index, const struct tensor *t);
/* A constant of int64: a list, or with n = 0 one number. GRAPH_NONE: out of memory. */
uint32_t plan_add_ints(struct plan *p, const char *name, const int64_t *values, uint32_t n);
/* Is a tensor of this shape beyond what any machine holds? */
bool plan_is_too_large(const struct tensor *t);
/* Runs the row's infer for a node whose def, name, attributes and inputs are set; *out [n_out] is
 * the plan's. */
int plan_infer_node(struct plan *p, struct plan_node *n, struct tensor **out, struct err *err);
/* Infers such a node and appends it, and its outputs
 * as values called out_names[i] (NULL or "": absent). */
int plan_add_node(struct plan *p, struct plan_node *n, const char *const *out_names,
                  struct err *err);
/* Of the node just appended: if all it depends on is known, it is computed now, its outputs become
 * constants, and it goes. */
int plan_settle_node(struct plan *p, struct plan_node *n, struct err *err);

/* An op of ONNX over values of the plan: inferred, appended, folded if possible; out [n_out] gets its
 * outputs. attrs are copied. */
int plan_add_op(struct plan *p, const char *op, const char *name, const struct op_attr *attrs,
                uint32_t n_attrs, const uint32_t *in, uint32_t n_in, uint32_t *out, uint32_t n_out,
                struct err *err);
/* *value with an axis of one put in at `axis`, or the axis of one there taken out. */
int plan_move_axis(struct plan *p, const char *name, uint32_t *value, int64_t axis, bool put,
                   struct err *err);

/* ---- plan_double.c: float64 in formulas ---- */
/* Does the node read float64, and is it computed there? Its inputs are set, and all are known. */
bool plan_folds_double(const struct plan *p, const struct plan_node *n);
/* In place of the row's infer for such a node, which refuses float64. */
int plan_infer_double(const struct plan_node *n, struct op_infer *f, struct err *err);
/* In place of its kernel: into the outputs' data. */
int plan_compute_double(const struct plan *p, const struct plan_node *n, struct err *err);
/* Adds the remedy to a refusal `rc` by the row of a node that reads float64. */
int plan_refuse_double(const struct plan *p, const struct plan_node *n, int rc, struct err *err);
/* Refuses a node, not folded, that makes float64 of an activation in float32, or computes in it. */
int plan_check_double(const struct plan *p, const struct plan_node *n, struct err *err);

/* ---- plan_types.c: element types that a row has no kernels for ---- */
/* plan_add_node() and plan_settle_node() for node n, whose row refused it with `rc` because of the
 * types of its inputs: with Cast nodes around it. Returns `rc`, and leaves *err, if that does not
 * help. */
int plan_add_cast(struct plan_builder *b, struct plan_node *n, const char *const *out_names, int rc,
                  struct err *err);

/* ---- the other passes ---- */
int plan_fuse(struct plan *p, struct err *err);
int plan_precision(struct plan *p, struct err *err); /* only where there is a plan.half */
enum tensor_dtype plan_precision_half(enum plan_precision p);
int plan_layouts(struct plan *p, struct err *err);
int plan_gradients(struct plan *p, struct err *err);
/* Before plan_gradients(): does a trained parameter (in a plan with feed_grads: a float32 feed) lead to the
 * value, through inputs that pass a gradient? */
int plan_wants_gradient(const struct plan *p, uint32_t value, bool *out, struct err *err);
int plan_share(struct plan *p, struct err *err);
int plan_calls(struct plan *p, struct err *err);
int plan_place(struct plan *p, struct err *err);

/* ---- plan_fold.c: constants that planning computes ---- */
/* Room for one, 64-byte aligned; the plan's. NULL: no memory. */
void *plan_fold_room(struct plan *p, size_t bytes);
void plan_fold_release(struct plan *p); /* the passes are done: what no node reads goes */
void plan_fold_free(struct plan *p);

/* ---- plan_there.c: what a GPU needs ---- */

/* The kernels of a row, for where this plan computes. ERR_UNSUPPORTED: there are none. */
int plan_kernels(const struct plan *p, const struct op_def *def, const char *node,
                 const struct op_kernels **out, struct err *err);
/* A constant that calls read: its place there. */
bool plan_there_constant(struct plan *p, uint32_t value);
int plan_there_open(struct plan *p, struct err *err); /* all calls are made */
void plan_there_close(struct plan *p);
/* Behind forward: what the caller may ask for is on its way. */
int plan_there_results(struct plan *p, const struct op_run *run, struct err *err);
/* The numbers of a value that is one of them. */
const void *plan_there_result(const struct plan *p, uint32_t value);
/* A copy of t in memory of the host, when the queue has come to rest; t itself on a CPU. `mem` owns it. */
int plan_there_look(const struct plan *p, const struct op_run *run, const struct tensor *t,
                    struct arena *mem, struct tensor *out, struct err *err);

/* ---- plan_hunt.c: while somebody hunts ---- */
/* Before forward: inputs and parameters. */
int plan_hunt_begin(struct plan *p, const struct op_run *run, struct err *err);
int plan_hunt_call(struct plan *p, const struct plan_call *call, bool backward, struct err *err);
void plan_hunt_tables(struct plan *p); /* behind backward: rows of tables */

/* Does a node have anything to compute? Not if all its outputs are empty. */
bool plan_is_empty(const struct plan *p, const struct plan_node *n);
/* The bytes of a tensor of this shape are the same in both layouts. */
bool plan_layout_matters(const struct shape *s);
/* Does a gradient flow into input i of node n? After plan_gradients(). */
bool plan_wants_grad(const struct plan *p, const struct plan_node *n, uint32_t i);
/* Is input i of node n a statistic that this plan's backward measures? */
bool plan_wants_stat(const struct plan *p, const struct plan_node *n, uint32_t i);

#endif
