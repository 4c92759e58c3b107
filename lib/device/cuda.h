/* cuda.h - the interface of the plugin trainerd-cuda.so: one table of functions.
 *
 * The program itself does not depend on CUDA. device.c loads the plugin if a CUDA device is
 * requested, and all GPU work goes through this table. The plugin consists of the .cu files of all
 * folders (lib/cuda/plugin.cu fills in the table); each file follows the include rules of its
 * folder.
 *
 * A pointer to GPU memory is an ordinary address that only the GPU may dereference. Work is
 * enqueued on streams and executed asynchronously: a call that takes a stream returns at once, and
 * the memory that it reads and writes belongs to the GPU until the stream has executed it (see
 * `done`, and device_wait() in device.h). A thread first selects its GPU (`enter`); its streams,
 * events and memory belong to that GPU. Threads: any, but only one thread at a time uses a stream,
 * event or graph. Errors: ERR_DEVICE with CUDA's message; after a GPU has failed, every later call
 * for it fails too. ERR_NOMEM: GPU memory is exhausted. */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cancel;
struct err;
struct op_kernels;
struct optim_hyper;
struct optim_opts;
struct optim_state;
struct power_sgd;
struct cuda_optim;
struct cuda_stream; /* cudaStream_t, under a name that C can use */
struct cuda_event;
struct cuda_graph;
struct cuda_comm;

enum { CUDA_ABI = 6, CUDA_ID_BYTES = 128 };

struct cuda_gpu {
    char name[96];          /* "NVIDIA H200" */
    char uuid[48];          /* "GPU-..." */
    uint32_t major, minor;  /* compute capability */
    uint32_t processors;    /* streaming multiprocessors */
    uint64_t memory_bytes;
};

struct cuda_versions { /* 0: unknown; CUDA: 1000 * major + 10 * minor; others: their own encoding */
    int driver, runtime, cublaslt, cudnn, nccl;
};

struct cuda_reading { /* sensors of a GPU; a negative value: not available */
    double utilisation;            /* share of about the last second, 0 to 1 */
    double memory_used, memory_total; /* bytes, all processes */
    double celsius, watts;
    double ecc_errors;             /* uncorrected errors since the driver was loaded */
    double clock_mhz;
    char throttled[96];            /* reasons for a reduced clock; "": the clock is not reduced */
};

/* Of a stream: high if other work waits for it. */
enum cuda_priority { CUDA_HIGH_PRIORITY, CUDA_LOW_PRIORITY };

struct cuda_scan { /* result of a scan of floats */
    double squares;    /* sum of squares, in a fixed order */
    uint32_t checksum; /* as computed by base/checksum.h on a CPU */
    uint32_t non_finite; /* not 0: a number is NaN or infinite */
};

/* Number of `struct cuda_scan` that math->scan needs for n floats: one per thread block, and the
 * result. */
enum { CUDA_SCAN_FLOATS = 16384 };
static inline size_t cuda_scan_count(size_t n)
{
    return n / CUDA_SCAN_FLOATS + 2;
}

struct cuda_statistic { /* floats [first, first + n) of the weights: w = keep * w + (1 - keep) * g *
                           share */
    size_t first, n;
    float keep;
};

/* Vectors that are added along the tree over lanes, one of each rank: `own` of rank `self`, and the
 * vector of each other rank k at others + stride * (k < self ? k : k - 1). They are pushed on a stack in
 * the order of the ranks; after vector k the two topmost entries are added merges[k] times
 * (reduce_merges() of comm/reduce.h). All memory is of the GPU. */
enum { CUDA_TREE_DEPTH = 17 }; /* entries of the stack, at most */
struct cuda_tree {
    float *own; /* [n] receives the sum */
    const float *others;
    size_t stride, n; /* floats */
    const uint8_t *merges; /* [world] */
    uint32_t world, self;
};

/* How blocks of the gradient are coded: code/code.h, code/map.h. `before` and `step` are GPU memory. */
struct cuda_code {
    uint32_t kind;          /* enum code_kind of opts/code.h; a code of blocks */
    const uint32_t *before; /* [n_blocks + 1] of struct code_map */
    size_t n_blocks;
    uint64_t seed;        /* of the job */
    const uint64_t *step; /* read when the work is executed */
};

/* Floats [begin, begin + n) of the gradient, of which x is the first. `begin` is a multiple of CODE_BLOCK, and x
 * of 16 bytes; a block at the end of which only a part is there is not coded. A message of these floats is:
 *
 *     codes of the coded blocks, of one group | ... of each other group | floats of the other blocks
 *
 * or, without codes, all floats. */
struct cuda_code_part {
    float *x;
    size_t begin, n;
};

/* A subtree of the tree over lanes, which comes from a rank: its float32 sum (n_codes 0), or one of the codes of
 * its message. Leaves are pushed on a stack; then the two topmost entries are added `merges` times. */
struct cuda_code_leaf {
    uint32_t rank;
    uint32_t place;    /* of the rounding below (struct code_key) */
    uint8_t n_codes;   /* in the message of the rank */
    uint8_t code;      /* the number of the code in the message */
    uint8_t merges;
    uint8_t rounds_at; /* the sum is rounded after so many of the merges; 0: it is not */
};

/* The message of each rank k but `self` is at received + stride * (k < self ? k : k - 1). GPU memory. */
struct cuda_code_tree {
    const uint8_t *received;
    size_t stride; /* bytes; a multiple of 16 */
    const struct cuda_code_leaf *leaves; /* [n_coded] of coded blocks, then [n_raw] of the other blocks */
    uint32_t n_coded, n_raw;
    uint32_t self;
    uint32_t place; /* of the rounding of the whole sum */
};

/* Computations beside ops. dst, src, x, g, state and `result` are GPU memory. */
struct cuda_math {
    /* dst += src */
    int (*add)(float *dst, const float *src, size_t n, struct cuda_stream *s, struct err *err);
    int (*scale)(float *x, size_t n, float by, struct cuda_stream *s, struct err *err);
    int (*add_tree)(const struct cuda_tree *t, struct cuda_stream *s, struct err *err);
    /* Rounds the coded blocks of the part. codes: NULL, or receives the codes of the coded blocks of the whole
     * vector, of which these are a part. */
    int (*code_round)(const struct cuda_code *c, const struct cuda_code_part *p, uint32_t place, uint8_t *codes,
                      struct cuda_stream *s, struct err *err);
    /* Writes a message with n_codes > 0 codes, which code_round() has made: number g at codes + g * stride. */
    int (*code_join)(const struct cuda_code *c, const struct cuda_code_part *p, const uint8_t *codes, size_t stride,
                     uint32_t n_codes, uint8_t *out, struct cuda_stream *s, struct err *err);
    /* Replaces the part by the sum of all ranks, rounded, and writes a message with its code. The part has the
     * sum of this rank, in which whole groups are rounded. */
    int (*code_sum)(const struct cuda_code *c, const struct cuda_code_part *p, const struct cuda_code_tree *t,
                    uint8_t *out, struct cuda_stream *s, struct err *err);
    /* Replaces the part by the numbers of a message with one code. */
    int (*code_read)(const struct cuda_code *c, const struct cuda_code_part *p, const uint8_t *in,
                     struct cuda_stream *s, struct err *err);
    /* Codes with residuals, with the bytes of CPUs; arguments that are not stated here are those of the functions
     * of code/top_k.h and code/power_sgd.h. Floats have any alignment, codes that of 4 bytes. */
    /* Replaces the residual x [n] by its sum with a gradient, as code_residual_add(). */
    int (*residual_add)(float *x, const float *gradient, size_t n, struct cuda_stream *s, struct err *err);
    int (*top_k_encode)(double fraction, float *x, size_t n, uint8_t *out, struct cuda_stream *s, struct err *err);
    /* y [n] = the sum of n_codes vectors, a power of two, along a binary tree. The code of vector i is at
     * codes + i * stride. */
    int (*top_k_sum)(double fraction, const uint8_t *codes, size_t stride, uint32_t n_codes, float *y, size_t n,
                     struct cuda_stream *s, struct err *err);
    int (*power_sgd_begin)(const struct power_sgd *m, float *q, struct cuda_stream *s, struct err *err);
    int (*power_sgd_left)(const struct power_sgd *m, const float *x, const float *q, float *p,
                          struct cuda_stream *s, struct err *err);
    int (*power_sgd_orthogonalize)(const struct power_sgd *m, float *p, struct cuda_stream *s, struct err *err);
    int (*power_sgd_right)(const struct power_sgd *m, const float *x, const float *p, float *q,
                           struct cuda_stream *s, struct err *err);
    int (*power_sgd_decode)(const struct power_sgd *m, const float *p, const float *q, float *y,
                            struct cuda_stream *s, struct err *err);
    int (*power_sgd_subtract)(const struct power_sgd *m, const float *p, const float *q, float *x,
                              struct cuda_stream *s, struct err *err);
    /* Scans x [n], the beginning of the vector; x is 16-byte aligned. result [cuda_scan_count(n)]:
     * the first element receives the result, the others are scratch. */
    int (*scan)(const float *x, size_t n, struct cuda_scan *result, struct cuda_stream *s, struct err *err);

    /* Creates an optimizer (a row of optim/optim.h) for all parameters, and the update of the
     * running statistics. The object copies opts and statistics into tables that it owns. Errors:
     * ERR_NOMEM, ERR_DEVICE. */
    int (*optim_open)(const struct optim_opts *opts, const struct cuda_statistic *statistics,
                      uint32_t n_statistics, struct cuda_optim **out, struct err *err);
    void (*optim_close)(struct cuda_optim *o);
    /* Scans the gradients of all parameters and statistics. The checksum treats the gaps between
     * them as zeros; the sum of squares covers only parameters. After the checksum and the search
     * for non-finite numbers, the gradients of parameters are limited to [-clip, clip] if clip >
     * 0. */
    int (*optim_scan)(struct cuda_optim *o, float *g, float clip, struct cuda_scan *result,
                      struct cuda_stream *s, struct err *err);
    /* Updates all parameters in one sweep, or two for optimizers that need norms. `state` holds GPU
     * addresses, all 16-byte aligned; the average, and slots that optim_uses() does not report, may
     * be NULL. Gradients are dense; with state->read, rows that the CPU would skip are unchanged
     * here too. */
    int (*optim_update)(struct cuda_optim *o, const struct optim_hyper *h, const struct optim_state *state,
                        float share, struct cuda_stream *s, struct err *err);
};

/* What a rank sends to another one, and receives from it. The other rank states the same sizes. */
struct cuda_exchange {
    const void *from;
    void *to;
    size_t from_bytes, to_bytes; /* multiples of 4 */
};

struct cuda_api {
    uint32_t abi;        /* CUDA_ABI */
    const char *version; /* TRAINERD_VERSION of the build; must equal that of the program */
    uint32_t least_capability; /* 10 * major + minor: the lowest compute capability for which the
                                  plugin has code */

    /* ---- GPUs ---- */
    void (*versions)(struct cuda_versions *out); /* works without a GPU, too */
    /* Lists the visible GPUs (CUDA_VISIBLE_DEVICES) in CUDA's order. Errors: ERR_DEVICE (no driver,
     * or one too old for the runtime: the message has both versions). */
    int (*gpus)(struct cuda_gpu *out, uint32_t max, uint32_t *n, struct err *err);
    int (*enter)(uint32_t gpu, struct err *err);
    /* reads the sensors (NVML); any thread */
    int (*read)(uint32_t gpu, struct cuda_reading *out, struct err *err);

    /* ---- memory ---- */
    int (*alloc)(void **out, size_t bytes, struct err *err); /* 256-byte aligned, uninitialised */
    void (*free)(void *p);                                   /* NULL is allowed */
    int (*free_bytes)(size_t *unused, struct err *err);      /* of the current GPU */
    /* page-locked host memory for copies, zeroed */
    int (*pin)(void **out, size_t bytes, struct err *err);
    void (*unpin)(void *p);

    /* ---- streams and events ---- */
    int (*stream_open)(enum cuda_priority priority, struct cuda_stream **out, struct err *err);
    void (*stream_close)(struct cuda_stream *s);
    int (*event_open)(bool timed, struct cuda_event **out, struct err *err);
    void (*event_close)(struct cuda_event *e);
    int (*record)(struct cuda_event *e, struct cuda_stream *s, struct err *err);
    /* later work of s waits for e */
    int (*wait)(struct cuda_stream *s, struct cuda_event *e, struct err *err);
    /* Returns 1: all work is done; 0: not yet; negative: an error. s and e may be NULL. */
    int (*done)(struct cuda_stream *s, struct cuda_event *e, struct err *err);
    /* both events timed and done */
    double (*elapsed_ms)(struct cuda_event *from, struct cuda_event *to);
    /* Copies in any direction. Host memory should be pinned; otherwise the call may block until the
     * copy is done. */
    int (*copy)(void *to, const void *from, size_t bytes, struct cuda_stream *s, struct err *err);
    int (*fill)(void *to, int byte, size_t bytes, struct cuda_stream *s, struct err *err);

    /* ---- graphs ---- */
    /* records later work on s instead of executing it */
    int (*capture_begin)(struct cuda_stream *s, struct err *err);
    int (*capture_end)(struct cuda_stream *s, struct cuda_graph **out, struct err *err);
    int (*launch)(struct cuda_graph *g, struct cuda_stream *s, struct err *err);
    void (*graph_close)(struct cuda_graph *g); /* NULL is allowed; does not wait: a graph that is
                                                  executing finishes first */

    /* ---- computation ---- */
    const struct op_kernels *(*op)(uint32_t row); /* index in op_all(); NULL: no GPU kernels */
    const struct cuda_math *math;

    /* ---- communication between GPUs: NCCL ---- */
    /* Creates the id of one attempt to connect one group. The calling process must live until all
     * ranks are connected. */
    int (*comm_id)(unsigned char id[CUDA_ID_BYTES], struct err *err);
    /* Starts to connect the current GPU of the thread. comm_state() reports the progress; until it
     * is ready, and after a failure, the only permitted call is comm_abort(). Waits inside the call
     * check *cancel, which must outlive the object. One thread at a time. A rank that never joins
     * is not reported, and a departed rank not always: the caller sets a deadline. Errors: ERR_PEER
     * (a rank has left), ERR_INPUT (different NCCL versions, two ranks on one GPU), ERR_DEVICE,
     * ERR_CANCELED. */
    int (*comm_open)(const unsigned char id[CUDA_ID_BYTES], uint32_t rank, uint32_t world,
                     const struct cancel *cancel, struct cuda_comm **out, struct err *err);
    /* 1: ready; 0: connecting; or an error */
    int (*comm_state)(struct cuda_comm *c, struct err *err);
    /* All-reduce: enqueues the sum of x over all ranks, with the same bits on each. If a rank has
     * left, the stream never completes it. All ranks make the same calls with the same n in the
     * same order. May be captured. */
    int (*comm_all_reduce)(struct cuda_comm *c, float *x, size_t n, struct cuda_stream *s, struct err *err);
    /* Enqueues that this rank sends to each other rank k with[k].from, and receives with[k].to; with[rank] is
     * not used. with [world] is not used after the call. As comm_all_reduce(). */
    int (*comm_exchange)(struct cuda_comm *c, const struct cuda_exchange *with, struct cuda_stream *s,
                         struct err *err);
    /* Both end the object. Close the graphs that contain its sums before, even if they are
     * executing: the call waits for them. comm_abort() works at any time; pending sums end with
     * undefined results. Call comm_close() when all sums are done on every rank; if the other ranks
     * do not call it, it aborts after a timeout. Both may take some seconds. On failure the
     * communicator cannot be stopped and its streams may never finish: leak all of it and end the
     * process. */
    int (*comm_abort)(struct cuda_comm *c, struct err *err);
    int (*comm_close)(struct cuda_comm *c, struct err *err);
};

/* The only exported symbol of the plugin, a `struct cuda_api`. */
#define CUDA_SYMBOL "trainerd_cuda_plugin"

#endif
