/* op.h - the interface of all ops: one row (struct op_def) per op.
 *
 * The life of a node:
 *   1. graph/ finds the row by (domain, name, opset);
 *   2. `infer` validates the attributes and computes types and shapes, once;
 *   3. `plan` (optional) prepares what the kernels need for those shapes;
 *   4. `fwd` and `bwd` only compute: they do not allocate, look up names or check shapes.
 * Each family of ops is a folder (op/act, op/attention, op/conv, op/elem, op/gemm, op/loss,
 * op/norm, op/pool, op/random, op/reduce, op/region, op/resize, op/rnn, op/shape). op_list.h has
 * one line per op. To add an op, write its files, its line in op_list.h and a test.
 *
 * Backward is a kernel of the op, so op does not depend on graph. One replica thread runs all
 * kernels of its plan. Other replicas run other calls, so state and scratch are never shared
 * between threads.
 *
 * The GPU kernels are in *.cu files beside the CPU kernels (see op_cuda.cuh) and have the same
 * contract. The CUDA plugin returns them by row number (device/cuda.h). A GPU `plan` may allocate
 * device memory for its state. A formula of more than one operator is written once, in a header
 * *_formula.h of its family, for both (base/formula.h).
 *
 * Reproducibility. Hosts with the same instruction set, kernel library and C library compute the
 * same bits, wherever a lane (micro-batch) is placed, whatever the world size, and however a range
 * is cut. op_kernel_id() names the first two; tasks compare it when they join. Two rules ensure
 * these bits on a CPU:
 *   - The order of every sum depends on shapes alone: a fixed number of partial sums (simd.h), and
 *     kernels of the library that are made for one thread (dnn.h).
 *   - No multiplication is fused with an addition (-ffp-contract=off in the Makefile). A compiler
 *     may fuse in a loop and not in its tail, or in one of two loops that inline the same formula.
 *     Then the elements of a short range, a fused op and its parts, or an optimizer on CPUs and on
 *     GPUs (optim/optim_formula.h) would differ. Random numbers that a CPU and a GPU draw alike
 *     (random/draw.h), and exact zeros such as x - mean in a row of one, need the rule too. The
 *     price: with fused operations exp, tanh and Gelu take 25 to 35 % less time on AVX-512, a
 *     training step of a ResNet-18 1 % and of a GPT-2 3 %.
 * The rules of GPU kernels are in op_cuda.cuh. */
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
enum { OP_MANY = 65535 /* n_in.max, n_out.max: no limit; inputs from 31 on share the last bit */ };

/* The tensor layouts that an op accepts. The planner keeps every activation in one layout, and
 * inserts a `Reorder` between a producer and a consumer that need different layouts. */
enum op_layout {
    OP_LAYOUT_PLAIN,    /* requires the plain layout for all operands */
    OP_LAYOUT_ANY,      /* any layout, the same for all operands of rank >= 3 (element-wise ops) */
    OP_LAYOUT_CHANNELS, /* input 0 and output 0 are channels-last if their rank is >= 3; other
                           operands are plain */
};

/* The types that an op accepts in a plan that computes in bfloat16 or float16
 * (graph/plan_precision.c). The setting applies to the operands listed in `half_of`; all other
 * operands stay float32. Sums and functions are computed in float32 for every type, and a gradient
 * has the type of its value.
 *
 * One table serves both types: an op whose numbers need more digits than bfloat16 has also tends to
 * exceed the range of float16 (65504). The table excludes:
 *   OP_HALF_NO         ops that sum or multiply many numbers (Reduce*, CumSum), that grow faster
 *                      than their input (Exp, Pow, Reciprocal) or need its digits (Log, Softmax,
 *                      Erf)
 *   not in half_of     results of losses and metrics; moments and statistics of normalisations;
 *                      rows of embedding tables; operands that belong to a parameter
 *   inside a kernel    sums, attention scores
 * The ops in the table stay within the range of their inputs (pools, shape ops), grow no faster
 * than their inputs (activations, normalised values), or compute values that a network keeps in
 * range: products, and + - * / of two operands, as in PyTorch's autocast. A value out of range
 * becomes infinite, and the loss shows it. A gradient may leave the range because it is scaled
 * (train/loss_scale.h): the gradient of a loss is run->loss_scale times a weight, and gradients of
 * branches are added. In that case the reduced gradient is not finite. */
enum op_half {
    OP_HALF_NO,   /* float32 only */
    OP_HALF_SAME, /* 16 bits if all operands are, float32 if any operand is float32 */
    /* each operand may have either type; outputs have 16 bits if all activations do (an activation
     * is a value that depends on a graph input; parameters and constants are not activations) */
    OP_HALF_MIX,
    /* a product: activations are converted to 16 bits for it, parameters are converted inside the
     * call, and parameter gradients are float32 (a GPU rounds those of a convolution to 16 bits
     * once) */
    OP_HALF_WANT,
};

struct op_kernels {
    /* Optional. Sets p->save_bytes, p->scratch_bytes and p->state. May be called again for another
     * batch size; the caller frees each state with `free_state`. Errors: ERR_UNSUPPORTED,
     * ERR_NOMEM, ERR_DEVICE. */
    int (*plan)(struct op_plan *p, struct err *err);
    int (*fwd)(const struct op_call *c, struct err *err);
    int (*bwd)(const struct op_call *c, struct err *err); /* NULL: no gradient */
    void (*free_state)(void *state);
};

struct op_def {
    const char *domain; /* NULL: ai.onnx; "trainerd": our own ops, created by the graph passes */
    const char *name;
    uint32_t since; /* first opset with these semantics; several rows may have the same name */
    uint32_t until; /* last opset; 0: no limit */
    struct { uint32_t min, max; } n_in, n_out;
    /* NULL-terminated names of the supported attributes; any other attribute is rejected at load.
     * NULL: no attributes */
    const char *const *attrs;
    size_t param_bytes; /* size of the op's parameter struct, zeroed before `infer` fills it */
    int (*infer)(struct op_infer *f, struct err *err);
    uint32_t diff;      /* OP_IN bits: differentiable inputs */
    uint32_t bwd_reads; /* OP_IN and OP_OUT bits: values that bwd reads; the planner keeps only
                           these until bwd */
    /* OP_IN bits: running statistics. In training, bwd stores the statistic of the batch in din[i].
     * The step averages it over the lanes (micro-batches), and moves the parameter towards the
     * average by the factor 1 - stat_momentum(). */
    uint32_t stat;
    bool view;          /* output 0 has the bytes of input 0 under another shape; fwd and bwd copy
                           if the planner cannot alias */
    bool in_place;      /* output 0 may use the memory of input 0 if no later call reads input 0 */
    bool random;        /* uses c->run->seed; the node gets its own random stream */
    bool of_shape;      /* the outputs depend only on the shapes of the inputs: computed at load;
                           fwd reads no data */
    uint32_t of_type;   /* OP_IN bits: inputs of which only the type affects the outputs; fwd does
                           not read their data */
    enum op_layout layout;
    uint32_t channels_in; /* OP_LAYOUT_CHANNELS: OP_IN bits of further inputs that have the layout
                             of input 0 */
    enum op_half half;
    uint32_t half_of;   /* OP_IN and OP_OUT bits: operands that may be bfloat16 or float16 */
    /* OP_OUT bits, a subset of half_of: these outputs have 16 bits even if an input is float32,
     * provided that every reader is a product (which would convert them); the value is rounded
     * once, when stored. */
    uint32_t half_round;
    struct op_kernels cpu;
    float (*stat_momentum)(const void *param); /* required if `stat` != 0: weight of the old
                                                  value */
    /* Required if fwd validates numbers (indices, labels, divisors). Reports the error for the
     * invalid number `value` at element `at`. Does not read tensor data, so it also serves errors
     * that a GPU kernel recorded. */
    int (*refuse)(const struct op_call *c, size_t at, int64_t value, struct err *err);
    double (*flops)(const struct op_infer *f);  /* forward FLOPs, a multiply-add counts as 2; NULL:
                                                   number of elements of output 0 */
};

/* ---- attributes, as graph/ reads them ---- */
enum op_attr_type { OP_ATTR_FLOAT = 1, OP_ATTR_INT = 2, OP_ATTR_STRING = 3, OP_ATTR_TENSOR = 4,
                    /* the numbers of ONNX */
                    OP_ATTR_FLOATS = 6, OP_ATTR_INTS = 7, OP_ATTR_STRINGS = 8 };
struct op_attr {
    const char *name;
    enum op_attr_type type;
    float f;
    int64_t i;
    const char *s;  /* NUL-terminated */
    size_t n;       /* number of elements in the array below */
    const float *floats;
    const int64_t *ints;
    const struct tensor *tensor;
    const char *const *strings; /* [n] */
};

/* ---- infer ---- */
struct op_infer {
    const struct op_def *def;
    const char *node; /* name, for error messages */
    uint32_t opset;
    bool training;    /* the plan trains: Dropout drops, BatchNormalization uses batch statistics */
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in;
    const struct tensor *const *in; /* [n_in]; NULL: absent. data != NULL: a constant known at
                                       load */
    uint32_t n_out;
    struct tensor *out; /* [n_out]; infer sets dtype and shape of each; the planner sets the
                           layout */
    void *param;        /* op_def.param_bytes, zeroed */
    struct arena *mem;  /* the graph's arena; holds what param points to */
};

/* Return the attribute in *out, or `dflt` if it is absent. Errors: ERR_INPUT with the node and the
 * attribute if its type is wrong. */
int op_attr_i(const struct op_infer *f, const char *name, int64_t dflt, int64_t *out,
              struct err *err);
int op_attr_f(const struct op_infer *f, const char *name, float dflt, float *out, struct err *err);
int op_attr_s(const struct op_infer *f, const char *name, const char *dflt, const char **out,
              struct err *err);
/* Return the elements of a list attribute, owned by the graph. An absent attribute gives n = 0 and
 * *out = NULL. Errors: ERR_INPUT if its type is wrong. */
int op_attr_ints(const struct op_infer *f, const char *name, const int64_t **out, size_t *n,
                 struct err *err);
int op_attr_floats(const struct op_infer *f, const char *name, const float **out, size_t *n,
                   struct err *err);
int op_attr_strings(const struct op_infer *f, const char *name, const char *const **out, size_t *n,
                    struct err *err);
/* Sets an error with the prefix "Conv 'node' (opset 13): ". Returns ERR_INPUT, or `code` if not
 * 0. */
int op_error(const struct op_infer *f, int code, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Checks that input i is present and has this type and rank (rank -1: any). Errors: ERR_INPUT. */
int op_check_input(const struct op_infer *f, uint32_t i, enum tensor_dtype dtype, int rank,
                   struct err *err);
int infer_same_shape(struct op_infer *f, struct err *err); /* float32 input 0 -> output 0 */
/* float32 inputs 0, 1 -> output 0 */
int infer_broadcast(struct op_infer *f, struct err *err);

/* ---- plan ---- */
struct op_plan {
    const struct op_def *def;
    const char *node;
    const void *param;
    bool training;      /* bwd will be called */
    bool tf32;          /* float32 products may drop the last 13 bits of their factors (GPUs) */
    uint32_t want_din;  /* OP_IN bits: gradients that calls will request */
    uint32_t n_in, n_out;
    const struct tensor *const *in; /* final type, shape and layout; NULL: absent */
    const struct tensor *out;
    /* set by the op: */
    size_t save_bytes;    /* fwd writes it, bwd of the same lane reads it once and may overwrite it;
                             64-byte aligned */
    size_t scratch_bytes; /* valid during one call; 64-byte aligned */
    void *state;          /* owned by the caller, freed with free_state; may be NULL */
};

/* ---- call ---- */

/* Device memory in which GPU kernels record a number that fwd would reject on a CPU. The record
 * keeps the first call that found an invalid number, and the first such element of that call.
 * Kernels read and write nothing out of range because of an invalid number, but the results that
 * depend on it are undefined. */
struct op_invalid {
    float found;   /* 0: no invalid number; 1: the fields below are set */
    uint32_t lock; /* 1 while a thread writes the record */
    uint32_t lane, call; /* op_run.lane, op_call.number */
    uint64_t at;   /* arguments of op_def.refuse() */
    int64_t value;
};

struct op_run { /* the values that change from lane to lane (a lane is a micro-batch slot) */
    uint64_t seed;
    uint64_t step;
    uint32_t lane;
    float loss_scale; /* 1 / (sum of the weights of the global batch) */
    const struct cancel *cancel; /* checked between calls; the run stops if it is set. NULL:
                                    never */
    /* On a GPU, a kernel enqueues its work on `queue` and neither waits nor allocates: the work may
     * be captured into a graph and replayed with other values of seed, step, lane and loss_scale.
     * The kernel therefore reads those from `device`, the copy of this struct in device memory, when
     * it executes. On a CPU both pointers are NULL. */
    struct cuda_stream *queue;
    const struct op_run *device;
    struct op_invalid *invalid; /* device memory, shared by all runs; NULL: not recorded, or a
                                   CPU */
    /* In the host's memory: fwd on a CPU sets lane, call, at and value when it refuses an index. NULL: not recorded. */
    struct op_invalid *refused;
    /* CPU: called between calls; the run stops, as canceled, if it returns true. NULL: never. */
    bool (*stops)(void *arg);
    void *stops_arg;
};

/* The rows that a Gather from a remote table reads in a run. The values of the table are not in
 * input 0, but in a compact table, where a slot replaces the number of a row (graph/graph.h). CPU
 * only. */
struct op_lookup {
    const int64_t *slots;      /* [n] for each index; stays the same from fwd to bwd of a lane */
    const uint8_t *is_padding; /* [n] 1: the index selects the padding row. NULL: no index does */
    const float *values;       /* [slots, width] */
};

struct op_call {
    const void *param;
    void *state;
    uint32_t n_in, n_out;
    const struct tensor *const *in;   /* [n_in]; NULL: absent */
    const struct tensor *const *out;  /* [n_out]; NULL: unused. fwd writes every element of the
                                         others */
    const struct tensor *const *dout; /* [n_out], bwd only; NULL: no gradient arrives, equal to
                                         zero */
    const struct tensor *const *din;  /* [n_in], bwd only; NULL: not requested */
    /* OP_IN bits: accumulate into din[i] instead of overwriting it. Inputs from 31 on never
     * accumulate: the planner gives each its own buffer. */
    uint32_t din_add;
    void *save;
    void *scratch;
    uint32_t stream; /* random stream of this node */
    uint32_t number; /* forward calls: index in the plan */
    const struct op_run *run;
    /* Gather from an embedding table. While rows->marks is not NULL, fwd marks the rows that it
     * reads, and bwd accumulates into the packed positions of the marked rows and leaves din[0]
     * unchanged. On a GPU, while rows->read is not NULL, bwd also records there which rows fwd
     * read. NULL: input 0 is not an embedding table. */
    const struct packed_rows *rows;
    /* Gather from a remote table: fwd and bwd read no data of inputs 0 and 1, and the rows of
     * `rows` are slots. NULL: another call. */
    const struct op_lookup *lookup;
};

/* Returns the row for (domain, name) at an opset; NULL: not supported. Domain "" and NULL mean
 * ai.onnx. */
const struct op_def *op_find(const char *domain, const char *name, uint32_t opset);
/* Returns whether the row is the op of ONNX with this name. */
bool op_is_onnx(const struct op_def *row, const char *name);
/* Returns whether the row has the attribute. */
bool op_has_attr(const struct op_def *row, const char *name);
/* Returns the index of the row in op_all(); the CUDA plugin identifies rows by it. */
uint32_t op_row(const struct op_def *def);
/* Returns all *n rows, in the order of op_list.h. */
const struct op_def *const *op_all(size_t *n);

/* Returns true if the CPU multiplies bfloat16 (avx512_bf16 or better, as far as oneDNN may use
 * it). */
bool op_has_bfloat16(void);
/* Returns the library, version and instruction set that determine the bits of the results, for
 * example "onednn 2.6.3 avx512_core_amx". */
const char *op_kernel_id(void);
/* Each thread calls it once before it runs kernels. Sets one OpenMP thread and IEEE denormals. */
void op_thread_init(void);

#endif
