/* speed.h - shared by the files of `ops speed`: the cases, an op with its buffers, and the meter,
 * which allocates memory and measures time in the calling thread or on GPU 0.
 * Threads: one. */
#ifndef TEST_OPS_SPEED_H
#define TEST_OPS_SPEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "device/cuda.h"
#include "device/device.h"
#include "op/op.h"
#include "tensor/tensor.h"

struct err;

/* ---- cases ---- */

enum { SPEED_MAX_IN = 6, SPEED_MAX_SETS = 16 };
enum speed_fill { SPEED_UNIFORM, SPEED_POSITIVE, SPEED_LABELS, SPEED_MASK, SPEED_FILLS };
enum { SPEED_BATCH = -1 }; /* in a shape: stands for the batch */
enum speed_size { SPEED_GPU, SPEED_CPU, SPEED_QUICK, SPEED_SIZES };

struct speed_operand {
    int64_t dim[4];
    uint32_t rank;
    enum speed_fill fill;  /* floats in (-1, 1); floats in (0.5, 1.5); int64 0 to 999; bool */
    bool is_weight;        /* stays float32 in a bfloat16 case, as the parameter of a product does */
    bool is_partial;       /* forward reads only as many bytes as the output has */
    const int64_t *ints;   /* [dim[0]], rank 1: the values of a constant; NULL: filled by `fill` */
};

struct speed_case {
    const char *domain, *op;
    uint32_t opset;
    int64_t batch[SPEED_SIZES];
    struct speed_operand in[SPEED_MAX_IN]; /* up to the first of rank 0 */
    const struct op_attr *attrs;
    uint32_t n_attrs;
    /* How often forward and backward must read tensors of the size of input 0; 0 counts as 1.
     * Statistics over more data than a cache holds need a separate pass. */
    uint32_t reads, reads_back;
    bool plain_in; /* input 0 is plain, the output channels-last */
};

extern const struct speed_case speed_cases[];
extern const size_t n_speed_cases;
extern const struct speed_case speed_square_product; /* the limit of products on a GPU */

/* ---- the meter ---- */

struct meter {
    const struct cuda_api *cuda; /* NULL: the CPU */
    struct cuda_stream *stream;
    struct cuda_event *from, *to;
    enum speed_size size;
    struct device_mem patterns; /* host memory, repeated to fill buffers */
};

/* Opens the meter for the GPU that ops_open_gpu() returned, or for CPU kernels if cuda is NULL. The
 * caller calls meter_close() after an error too. Errors: ERR_NOMEM, ERR_DEVICE. */
int meter_open(struct meter *m, const struct cuda_api *cuda, bool quick, struct err *err);
void meter_close(struct meter *m);
/* Allocates memory of the device; its address is out->base. Errors: ERR_NOMEM, ERR_DEVICE. */
int meter_alloc(const struct meter *m, struct device_mem *out, size_t bytes, struct err *err);
void meter_free(const struct meter *m, struct device_mem *mem); /* idempotent */
/* Copies; on a GPU the copy is queued. */
int meter_copy(const struct meter *m, void *to, const void *from, size_t bytes, struct err *err);
/* Fills a buffer of the device with numbers of `type`. */
int meter_fill(const struct meter *m, void *to, enum speed_fill fill, enum tensor_dtype type,
               size_t bytes, struct err *err);
int meter_wait(const struct meter *m, struct err *err);
/* Sets *us to the microseconds of work(arg), which only computes or queues work on the stream: the
 * fastest of a few rounds, because other processes only lengthen a round. On a GPU the work is
 * captured into a graph once. Returns the error of work(), or ERR_DEVICE. */
typedef int meter_work(void *arg, struct err *err);
int meter_time(const struct meter *m, meter_work *work, void *arg, double *us, struct err *err);
/* Sets *us to the microseconds of n copies that read and write `bytes` each, half of them read; each
 * copy has its own memory. */
int meter_time_copies(const struct meter *m, size_t bytes, uint32_t n, double *us, struct err *err);

/* ---- an op with its buffers ---- */

struct speed_set { /* the buffers of one call */
    struct tensor in[SPEED_MAX_IN], out, din[SPEED_MAX_IN], dout;
    const struct tensor *in_at[SPEED_MAX_IN], *out_at, *din_at[SPEED_MAX_IN], *dout_at;
    void *save;
};

struct speed_op {
    const struct meter *meter;
    const struct speed_case *row;
    const struct op_def *def;
    const struct op_kernels *kernels;
    struct arena mem;
    void *param;
    struct op_plan plan;
    uint32_t n_in;
    struct tensor in[SPEED_MAX_IN], out;
    const struct tensor *in_at[SPEED_MAX_IN];
    double flops; /* of forward; 0: the op is limited by memory */
    uint32_t n_sets;
    struct speed_set sets[SPEED_MAX_SETS];
    void *scratch;
    struct op_run run;
    struct device_mem mine[SPEED_MAX_SETS * (2 * SPEED_MAX_IN + 3) + 2];
    uint32_t n_mine;
    bool backward; /* the direction of speed_op_call() */
};

/* Infers and plans the op, and allocates its buffers. `type`: float32 or bfloat16. The caller calls
 * speed_op_close() after an error too. Errors: ERR_UNSUPPORTED, and those of infer and plan. */
int speed_op_open(struct speed_op *b, const struct meter *m, const struct speed_case *row,
                  enum tensor_dtype type, struct err *err);
void speed_op_close(struct speed_op *b);
bool speed_op_has_backward(const struct speed_op *b);
/* A meter_work: one call of the kernel on each set, so that the caches do not have its data. */
int speed_op_call(void *b, struct err *err);
/* Returns the bytes that a call must transfer: each input as often as the row requires, each output
 * once, and what backward keeps. */
size_t speed_op_bytes(const struct speed_op *b);
/* Returns the operations of a call; backward computes a gradient for both factors. */
double speed_op_flops(const struct speed_op *b);

/* ---- lines ---- */

struct speed_line {
    const char *name, *way, *type; /* way: "forward", "backward", "update" or "scan" */
    char shape[96];
    double us;          /* of a call */
    double work, limit; /* bytes or operations per second */
    bool is_product;    /* operations */
};

void speed_print(struct speed_line *line);
void speed_print_error(const char *name, const char *way, const char *type, const struct err *err);

/* ---- optimizers ---- */

bool speed_is_optimizer(const char *name);
/* Measures an optimizer over the weights of a GPT-2; prints a line for the update, and for adamw a
 * second one for the scan of the gradients. Returns the number of lines with an error. */
int speed_optimizer(const struct meter *m, const char *name);
extern const char *const speed_optimizers[]; /* ends with NULL */

#endif
