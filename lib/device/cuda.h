/* cuda.h - what the plugin, trainerd-cuda.so, does for the program: one table of functions.
 *
 * The program itself knows nothing of CUDA: device.c loads the plugin when a CUDA device is wanted, and
 * everybody reaches GPUs through this table. The plugin is built of the .cu files of all folders
 * (lib/cuda/plugin.cu fills the table in); each of them keeps the rules of its folder.
 *
 * Memory of a GPU is an address like any other that only the GPU may follow. Work is put in order on
 * streams and done some time later: a call that takes a stream returns at once, and what it reads and
 * writes belongs to the GPU until the stream has come that far (`done`, or device_wait() in device.h). A
 * thread first says which GPU it works on (`enter`); streams, events and memory are of that GPU.
 * Threads: any; a stream, an event or a graph is used by one thread at a time.
 * Errors: ERR_DEVICE with CUDA's words; when a GPU has failed, every later call for it says so.
 * ERR_NOMEM: the GPU's memory is used up. */
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
struct cuda_optim;
struct cuda_stream; /* cudaStream_t, under a name that C knows */
struct cuda_event;
struct cuda_graph;
struct cuda_comm;

enum { CUDA_ABI = 3, CUDA_ID_BYTES = 128 };

struct cuda_gpu {
    char name[96];          /* "NVIDIA H200" */
    char uuid[48];          /* "GPU-..." */
    uint32_t major, minor;  /* compute capability */
    uint32_t processors;    /* streaming multiprocessors */
    uint64_t memory_bytes;
};

struct cuda_versions { /* 0: not known; CUDA: 1000 * major + 10 * minor; others as they encode it */
    int driver, runtime, cublaslt, cudnn, nccl;
};

struct cuda_reading { /* of a GPU's sensors; negative: it does not tell */
    double utilisation;            /* of the last second or so, 0 to 1 */
    double memory_used, memory_total; /* bytes, of all processes */
    double celsius, watts;
    double ecc_errors;             /* uncorrected since the driver was loaded */
    double clock_mhz;
    char throttled[96];            /* why its clock is lower than it could be; "": it is not */
};

enum cuda_when { CUDA_FIRST, CUDA_SOME_TIME }; /* what waits for a stream: others' work, or nobody's */

struct cuda_look { /* what a pass over numbers found */
    double squares;    /* the sum of their squares, in a fixed order */
    uint32_t checksum; /* base/checksum.h: the same on a CPU */
    uint32_t bad;      /* not 0: one is NaN or infinite */
};

/* How many of them math->look wants for n floats: one for each block of threads, and the result. */
enum { CUDA_LOOK_FLOATS = 16384 };
static inline size_t cuda_look_room(size_t n)
{
    return n / CUDA_LOOK_FLOATS + 2;
}

struct cuda_statistic { /* floats [first, first + n) of the weights: w = keep * w + (1 - keep) * g * share */
    size_t first, n;
    float keep;
};

/* What is computed by more than ops. dst, src, x, g, state, `there`: of the GPU. */
struct cuda_math {
    int (*add)(float *dst, const float *src, size_t n, struct cuda_stream *s, struct err *err); /* += */
    int (*scale)(float *x, size_t n, float by, struct cuda_stream *s, struct err *err);
    /* All of x, which begins the vector; x 16-byte aligned. there [cuda_look_room(n)]: the first is what was
     * found, the others are room to work in. */
    int (*look)(const float *x, size_t n, struct cuda_look *there, struct cuda_stream *s, struct err *err);

    /* A row of optim/optim.h at work on all parameters, and what moves the statistics: tables are made of
     * opts and belong to the object. */
    int (*optim_open)(const struct optim_opts *opts, const struct cuda_statistic *statistics,
                      uint32_t n_statistics, struct cuda_optim **out, struct err *err);
    void (*optim_close)(struct cuda_optim *o);
    /* What is in the gradients of all parameters and statistics: checksum as if zeros lay between them. The
     * squares are of parameters alone, whose gradients are limited to [-clip, clip] if clip > 0, behind
     * the checksum and the search for what is not finite. */
    int (*optim_look)(struct cuda_optim *o, float *g, float clip, struct cuda_look *there,
                      struct cuda_stream *s, struct err *err);
    /* One sweep over all: two for optimizers that need norms. `state` holds addresses of the GPU, all 16-byte
     * aligned; slots that optim_uses() does not want and the average may be NULL. Gradients are whole; with
     * state->read, rows that CPUs would not look at are left alone here too. */
    int (*optim_update)(struct cuda_optim *o, const struct optim_hyper *h, const struct optim_state *state,
                        float share, struct cuda_stream *s, struct err *err);
};

struct cuda_api {
    uint32_t abi;        /* CUDA_ABI */
    const char *version; /* TRAINERD_VERSION of the build: equal to the program's */
    uint32_t least_capability; /* 10 * major + minor: it has code for GPUs from this one on */

    /* ---- GPUs ---- */
    void (*versions)(struct cuda_versions *out); /* also without any GPU */
    /* What can be seen (CUDA_VISIBLE_DEVICES), in CUDA's order. Errors: ERR_DEVICE (no driver, one too
     * old for the runtime: both versions in the text). */
    int (*gpus)(struct cuda_gpu *out, uint32_t max, uint32_t *n, struct err *err);
    int (*enter)(uint32_t gpu, struct err *err);
    int (*read)(uint32_t gpu, struct cuda_reading *out, struct err *err); /* NVML; any thread */

    /* ---- memory ---- */
    int (*alloc)(void **out, size_t bytes, struct err *err); /* 256-byte aligned, garbage */
    void (*free)(void *p);                                   /* NULL is fine */
    int (*room)(size_t *unused, struct err *err);            /* bytes of the GPU that was entered */
    int (*pin)(void **out, size_t bytes, struct err *err);   /* of the host, for copies: zeroed */
    void (*unpin)(void *p);

    /* ---- work in order ---- */
    int (*stream_open)(enum cuda_when when, struct cuda_stream **out, struct err *err);
    void (*stream_close)(struct cuda_stream *s);
    int (*event_open)(bool timed, struct cuda_event **out, struct err *err);
    void (*event_close)(struct cuda_event *e);
    int (*record)(struct cuda_event *e, struct cuda_stream *s, struct err *err);
    int (*wait)(struct cuda_stream *s, struct cuda_event *e, struct err *err); /* s goes on behind e */
    /* 1: all is done; 0: not yet; or what went wrong. Either may be NULL. */
    int (*done)(struct cuda_stream *s, struct cuda_event *e, struct err *err);
    double (*elapsed_ms)(struct cuda_event *from, struct cuda_event *to); /* timed, both done */
    /* Any direction. Host memory should be pinned: else the call itself takes the time of the copy. */
    int (*copy)(void *to, const void *from, size_t bytes, struct cuda_stream *s, struct err *err);
    int (*fill)(void *to, int byte, size_t bytes, struct cuda_stream *s, struct err *err);

    /* ---- the same work again and again ---- */
    int (*capture)(struct cuda_stream *s, struct err *err); /* what follows on s is kept, not done */
    int (*captured)(struct cuda_stream *s, struct cuda_graph **out, struct err *err);
    int (*launch)(struct cuda_graph *g, struct cuda_stream *s, struct err *err);
    void (*graph_close)(struct cuda_graph *g); /* NULL is fine; one that is under way ends first, unwaited for */

    /* ---- what is computed ---- */
    const struct op_kernels *(*op)(uint32_t row); /* of op_all(); NULL: it has no kernels */
    const struct cuda_math *math;

    /* ---- between GPUs: NCCL ---- */
    /* For one attempt of one group. The thread's process lives until all are connected. */
    int (*comm_id)(unsigned char id[CUDA_ID_BYTES], struct err *err);
    /* Of the GPU that the thread has entered. Starts to connect; comm_state() tells when it has, and until
     * then, as from a failure on, there is nothing to be done with it but to abort it. What waits inside
     * looks at *cancel, which outlives it. One thread at a time. A rank that never comes is never reported,
     * and one that is gone not always: set a limit.
     * Errors: ERR_PEER (somebody is gone), ERR_INPUT (other versions of NCCL, two ranks on one GPU),
     * ERR_DEVICE, ERR_CANCELED. */
    int (*comm_open)(const unsigned char id[CUDA_ID_BYTES], uint32_t rank, uint32_t world,
                     const struct cancel *cancel, struct cuda_comm **out, struct err *err);
    int (*comm_state)(struct cuda_comm *c, struct err *err); /* 1: ready; 0: in progress; or what failed */
    /* x is the sum over all ranks, the same bits on each, when the stream has come that far; if one is gone,
     * never. Numbers, order and counts of calls are the same on all. May be captured. */
    int (*comm_sum)(struct cuda_comm *c, float *x, size_t n, struct cuda_stream *s, struct err *err);
    /* The end. Graphs with its sums are closed before, also when they are under way: it waits for their end.
     * Abort: at any time; what is under way comes to an end and leaves garbage. Close: when all is
     * done, on every rank; it is an abort if others do not come. Both take up to some seconds. Failure: it
     * cannot be stopped, and the streams that it was used on may never end: leave all, end the process. */
    int (*comm_abort)(struct cuda_comm *c, struct err *err);
    int (*comm_close)(struct cuda_comm *c, struct err *err);
};

/* The one symbol of the plugin. */
#define CUDA_SYMBOL "trainerd_cuda_plugin"

#endif
