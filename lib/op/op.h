/* op.h - an op is one row.
 *
 * The life of a node: graph/ finds its row by (domain, name, opset), `infer` settles attributes,
 * types and shapes once, `plan` (optional) makes ready what a kernel needs for those shapes, then
 * `fwd` and `bwd` only compute: no allocation, no look-up, no check of shapes. Families are folders
 * (op/act, op/attention, op/elem, op/gemm, op/conv, op/norm, op/pool, op/random, op/reduce, op/region, op/resize,
 * op/rnn, op/shape, op/loss); op_list.h has a line per op.
 * A new op is its file(s), that line, and a test.
 *
 * Backward is a kernel too, so that op stays below graph. All kernels are called by one replica
 * thread; different replicas run different calls, so state and scratch are never shared.
 *
 * The kernels for GPUs stand beside those for CPUs in files *.cu (op_cuda.cuh) and have the same contract;
 * the plugin hands them out by the number of the row (device/cuda.h). Their `plan` may allocate memory of
 * the GPU for its state. */
#ifndef OP_OP_H
#define OP_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct cancel;
struct err;
struct arena;
struct cuda_stream;
struct op_call;
struct op_infer;
struct op_plan;
struct packed_rows;

#define OP_IN(i_) (1u << (i_))
#define OP_OUT(i_) (1u << (16 + (i_)))
enum { OP_MANY = 65535 /* n_in.max, n_out.max: no limit (every further input behaves as the last bit) */ };

/* What an op does with channels-last tensors. The planner keeps every activation in one layout
 * and puts a `Reorder` between a producer and a consumer that disagree. */
enum op_layout {
    OP_LAYOUT_PLAIN,    /* wants everything plain */
    OP_LAYOUT_ANY,      /* works on any layout as long as all in/outs of rank >= 3 share it: element-wise */
    OP_LAYOUT_CHANNELS, /* in 0 and out 0 channels-last when rank >= 3; everything else plain */
};

/* What an op does in a plan that computes in bfloat16 or float16 (graph/plan_precision.c), for the operands
 * that `half_of` lists; all others stay float32. Whatever the types, sums and functions are computed in
 * float32, and a gradient has the type of its value.
 *
 * One table serves both, since what bfloat16 has no digits for, float16 has no range for (65504). Left out of it:
 *   OP_HALF_NO         what adds up or multiplies many numbers (Reduce*, CumSum); what grows faster than its
 *                      input (Exp, Pow, Reciprocal) or needs its digits (Log, Softmax, Erf)
 *   not in half_of     results of losses and metrics; moments and statistics of normalisations; rows of tables;
 *                      whatever belongs to a parameter
 *   inside a kernel    sums, scores of an attention
 * What is in it stays within its inputs (pools, shapes), grows no faster than they (activations, normalised
 * numbers), or is what a network keeps in range: products, and + - * / of two, as in PyTorch's autocast. If it
 * does not, there is an infinity, and the loss tells. A gradient may leave the range because it is scaled
 * (train/loss_scale.h): that of a loss is as large as run->loss_scale times a weight, and where branches meet two
 * are added. Then the reduced gradient tells. */
enum op_half {
    OP_HALF_NO,   /* float32 only */
    OP_HALF_SAME, /* either, as long as all operands share it: they are float32 if one is */
    OP_HALF_MIX,  /* each operand may be either; outputs are of 16 bits if all activations are (values
                     that depend on an input of the graph; not parameters and constants) */
    OP_HALF_WANT, /* a product: activations become 16 bits for it, parameters are converted inside
                     the call, and their gradients are float32 (a GPU rounds those of a convolution
                     to 16 bits once) */
};

struct op_kernels {
    /* Optional. Fills p->save_bytes, p->scratch_bytes, p->state. May be called again for another
     * batch size; each state is freed with `free_state`. Errors: ERR_UNSUPPORTED, ERR_NOMEM, ERR_DEVICE. */
    int (*plan)(struct op_plan *p, struct err *err);
    int (*fwd)(const struct op_call *c, struct err *err);
    int (*bwd)(const struct op_call *c, struct err *err); /* NULL: no gradient passes */
    void (*free_state)(void *state);
};

struct op_def {
    const char *domain; /* NULL: ai.onnx; "trainerd": ours, made by the graph passes */
    const char *name;
    uint32_t since; /* first opset with these semantics; several rows may share a name */
    uint32_t until; /* last opset, 0: no end */
    struct { uint32_t min, max; } n_in, n_out;
    const char *const *attrs; /* NULL-terminated names this op understands; any other attribute is
                                 refused at load. NULL: none */
    size_t param_bytes; /* of the op's own struct of settled attributes, filled by infer, zeroed before */
    int (*infer)(struct op_infer *f, struct err *err);
    uint32_t diff;      /* OP_IN bits: inputs that a gradient can flow to */
    uint32_t bwd_reads; /* OP_IN and OP_OUT bits: values that backward reads; the planner keeps only these */
    uint32_t stat;      /* OP_IN bits: running statistics. In training bwd writes the batch's value
                           to din[i]; the step averages it over the lanes and the graph's
                           parameter moves by 1 - momentum (op_stat_momentum) towards it */
    bool view;          /* out 0 is in 0's bytes under another shape; fwd/bwd copy when the planner
                           cannot alias */
    bool in_place;      /* out 0 may share in 0's memory when nobody else reads in 0 later */
    bool random;        /* uses c->run->seed: gets its own rng stream */
    bool of_shape;      /* the outputs depend on nothing but the shapes of the inputs: folded at load;
                           fwd reads no data */
    uint32_t of_type;   /* OP_IN bits: inputs of which the outputs depend on the type alone; fwd reads none
                           of their data */
    enum op_layout layout;
    uint32_t channels_in; /* OP_LAYOUT_CHANNELS: OP_IN bits of inputs behind 0 that lie as it does */
    enum op_half half;
    uint32_t half_of;   /* OP_IN and OP_OUT bits: operands that may be bfloat16 or float16 */
    uint32_t half_round; /* OP_OUT bits of those: of 16 bits beside inputs of float32 too, where all who read
                             it are products, which want it so: rounded once, when it is stored */
    struct op_kernels cpu;
    float (*stat_momentum)(const void *param); /* for `stat`: weight of the old value */
    /* For ops whose fwd looks at numbers that may be wrong (indices, labels, divisors): the error about the one
     * at `at`, which is `value`. Reads nothing that tensors point to: a GPU's are refused by it too. */
    int (*refuse)(const struct op_call *c, size_t at, int64_t value, struct err *err);
    double (*flops)(const struct op_infer *f);  /* forward multiply-adds * 2; NULL: elements of out 0 */
};

/* ---- attributes, as graph/ read them ---- */
enum op_attr_type { OP_ATTR_FLOAT = 1, OP_ATTR_INT = 2, OP_ATTR_STRING = 3, OP_ATTR_TENSOR = 4,
                    OP_ATTR_FLOATS = 6, OP_ATTR_INTS = 7, OP_ATTR_STRINGS = 8 }; /* ONNX's numbers */
struct op_attr {
    const char *name;
    enum op_attr_type type;
    float f;
    int64_t i;
    const char *s;  /* NUL-terminated */
    size_t n;       /* of the arrays below */
    const float *floats;
    const int64_t *ints;
    const struct tensor *tensor;
    const char *const *strings; /* [n] */
};

/* ---- infer ---- */
struct op_infer {
    const struct op_def *def;
    const char *node; /* for messages */
    uint32_t opset;
    bool training;    /* this plan trains: Dropout drops, BatchNormalization uses the batch */
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in;
    const struct tensor *const *in; /* NULL entry: absent. data != NULL: a constant known at load */
    uint32_t n_out;
    struct tensor *out; /* fill dtype and shape of each; layout is the planner's */
    void *param;        /* op_def.param_bytes, zeroed */
    struct arena *mem;  /* of the graph, for what param points to */
};

/* Attribute or default; wrong type is ERR_INPUT with node and attribute. */
int op_attr_i(const struct op_infer *f, const char *name, int64_t dflt, int64_t *out, struct err *err);
int op_attr_f(const struct op_infer *f, const char *name, float dflt, float *out, struct err *err);
int op_attr_s(const struct op_infer *f, const char *name, const char *dflt, const char **out,
              struct err *err);
/* n = 0 and *out = NULL when absent. */
int op_attr_ints(const struct op_infer *f, const char *name, const int64_t **out, size_t *n,
                 struct err *err);
int op_attr_floats(const struct op_infer *f, const char *name, const float **out, size_t *n,
                   struct err *err);
int op_attr_strings(const struct op_infer *f, const char *name, const char *const **out, size_t *n,
                    struct err *err);
/* ERR_INPUT (or `code`), "Conv 'node' (opset 13): ..." in front. */
int op_error(const struct op_infer *f, int code, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Input i must be there, of this type and rank (rank -1: any). */
int op_need(const struct op_infer *f, uint32_t i, enum tensor_dtype dtype, int rank, struct err *err);
int infer_same_shape(struct op_infer *f, struct err *err);      /* float32 in 0 -> out 0 */
int infer_broadcast(struct op_infer *f, struct err *err);       /* float32 in 0, in 1 -> out 0 */

/* ---- plan ---- */
struct op_plan {
    const struct op_def *def;
    const char *node;
    const void *param;
    bool training;      /* bwd will be called */
    bool tf32;          /* factors of float32 products may lose their last 13 bits (GPUs) */
    uint32_t want_din;  /* OP_IN bits: gradients that will be asked for */
    uint32_t n_in, n_out;
    const struct tensor *const *in; /* settled type, shape, layout; NULL entry: absent */
    const struct tensor *out;
    /* filled by the op: */
    size_t save_bytes;    /* written by fwd, read by bwd of the same lane, which runs once and may
                             use it up; 64-byte aligned */
    size_t scratch_bytes; /* valid during one call only; 64-byte aligned */
    void *state;          /* NULL is fine */
};

/* ---- call ---- */

/* Where kernels of a GPU note a number that fwd refuses on a CPU: the first call that met one, and there the
 * first of them. Nothing is read or written out of range for it; what is computed of it means nothing. */
struct op_trouble {
    float found;   /* 0: all is well; 1 */
    uint32_t lock; /* while it is written */
    uint32_t lane, call; /* op_call.number */
    uint64_t at;   /* op_def.refuse() makes an error of these */
    int64_t value;
};

struct op_run { /* what changes from lane to lane */
    uint64_t seed;
    uint64_t step;
    uint32_t lane;
    float loss_scale; /* 1 / (sum of the weights of the global batch) */
    const struct cancel *cancel; /* NULL, or looked at between calls: not 0, and the run is given up */
    /* On a GPU a kernel puts its work on `queue`, with no call that waits or allocates: it may be
     * captured, and be done again with another seed, step, lane and loss_scale. So it reads those from
     * `there`, the GPU's copy of this struct, when it is done. On a CPU both are NULL. */
    struct cuda_stream *queue;
    const struct op_run *there;
    struct op_trouble *trouble; /* of the GPU, the same for all runs; NULL: nobody asks, or a CPU */
};

struct op_call {
    const void *param;
    void *state;
    uint32_t n_in, n_out;
    const struct tensor *const *in;   /* [n_in]; NULL: absent */
    const struct tensor *const *out;  /* [n_out]; NULL: nobody reads it. fwd writes every other element */
    const struct tensor *const *dout; /* [n_out]; NULL: no gradient arrives (counts as zero). Only in bwd */
    const struct tensor *const *din;  /* [n_in]; NULL: not wanted. Only in bwd */
    uint32_t din_add;                 /* OP_IN bits: add to din[i] instead of overwriting (input 31 and
                                         above: never added; the planner gives each its own buffer) */
    void *save;
    void *scratch;
    uint32_t stream; /* rng stream of this node */
    uint32_t number; /* of a forward call: its place among those of the plan */
    const struct op_run *run;
    /* Gather of a table: while rows->marks is not NULL, fwd marks the rows that it takes, and bwd adds
     * to the places of marked rows and leaves din[0] alone. On a GPU while rows->read is not NULL, bwd
     * also says there which rows fwd took. NULL: input 0 is no table. */
    const struct packed_rows *rows;
};

/* The row for (domain, name) at an opset; NULL: not supported. domain "" and NULL: ai.onnx. */
const struct op_def *op_find(const char *domain, const char *name, uint32_t opset);
/* Where it is in op_all(), which is how the plugin knows it. */
uint32_t op_row(const struct op_def *def);
/* All rows, for the list of what is supported. */
const struct op_def *const *op_all(size_t *n);

/* Does this processor multiply bfloat16 (avx512_bf16 or better, as far as the library may use it)? */
bool op_has_bfloat16(void);
/* Library, version and instruction set that decide the bits: "onednn 2.6.3 avx512_core_amx". */
const char *op_kernel_id(void);
/* Once per thread that will run kernels: one OpenMP thread, denormals as IEEE. */
void op_thread_init(void);

#endif
