/* op_rig.h - one op made ready to be called, as the planner would: inferred, planned, its tensors
 * in guarded buffers of exactly the declared size. What gradcheck.c judges with; a test can use it
 * where that does not suffice. Misbehaviour fails the running test.
 *
 * With TRAINERD_TEST_CUDA=1 in the environment the kernels are those for GPUs: all buffers, guards
 * included, go to the GPU before a call and come back behind it, so that every test of an op is one of its
 * kernels for GPUs too. What they note of numbers that cannot be is made the error of the call, as a plan does. A
 * row that has none ends the test as skipped. */
#ifndef HARNESS_OP_RIG_H
#define HARNESS_OP_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "device/cuda.h"
#include "harness/gradcheck.h"
#include "op/op.h"
#include "tensor/tensor.h"

/* What garbage looks like: as floats NaN, and a number around 1.5e16. */
enum { RIG_POISON_NAN = 0xFF, RIG_POISON_BIG = 0x5A };

/* [guard][bytes][guard] */
struct block {
    unsigned char *raw;
    size_t bytes;
    void *there; /* of the same size, on the GPU; NULL: not yet */
};

struct rig {
    const struct gradcheck_case *gc;
    const struct op_def *def;
    const struct cuda_api *cuda; /* NULL: kernels for CPUs */
    const struct op_kernels *kernels;
    char who[160];
    struct arena mem;
    void *param;
    void *state;
    uint32_t n_in, n_out, wanted;
    struct tensor in[GRADCHECK_MAX], out[GRADCHECK_MAX], din[GRADCHECK_MAX], dout[GRADCHECK_MAX];
    const struct tensor *in_at[GRADCHECK_MAX], *out_at[GRADCHECK_MAX], *din_at[GRADCHECK_MAX],
        *dout_at[GRADCHECK_MAX];
    void *kept[GRADCHECK_MAX]; /* copy of each input as it was fed, same layout */
    struct block in_mem[GRADCHECK_MAX], out_mem[GRADCHECK_MAX], din_mem[GRADCHECK_MAX],
        dout_mem[GRADCHECK_MAX], save, scratch;
    struct op_run run;
    struct op_call call;
    struct op_run *run_there;
    struct op_trouble *trouble_there;
    bool refused_there; /* the last call, by what its kernels noted */
    uint32_t calls_there;
};

/* `wanted`: OP_IN bits of the gradients the plan is made for, as far as the case allows them. The
 * error of infer or plan; then the rig is closed. */
int rig_open(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted, struct err *err);
void rig_close(struct rig *r);

/* rig_open(), but for the kernels of CPUs whatever the environment says. */
int rig_open_cpu(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted, struct err *err);
/* Forward over outputs, save and scratch full of garbage. Inputs must survive. */
int rig_fwd(struct rig *r, int poison_byte, struct err *err);
/* Backward. Values that the row does not list in bwd_reads become garbage first, and so does
 * din[i], but for the inputs in `add`, which are added to what the caller put there. */
void rig_bwd(struct rig *r, int poison_byte, uint32_t add);
void rig_check_guards(const struct rig *r);
/* The kernel alone, over what is in the buffers. */
int rig_call(struct rig *r, bool backward, struct err *err);

/* Random data as the case describes it, n elements. */
void rig_random(const struct gradcheck_tensor *gt, enum tensor_dtype dtype, void *data, size_t n,
                uint64_t seed);
/* Are the kernels those for GPUs? Has this row any? */
bool rig_on_gpu(void);
bool rig_has_kernels(const struct op_def *def);
/* v rounded to bfloat16, ties to even. */
double rig_round_half(double v);
/* Where element i of the plain order lies in t's layout. */
size_t rig_place(const struct tensor *t, size_t i);
/* A copy of t in plain order; the caller frees out->data. wide: bfloat16 and float16 as float32. */
void rig_take(const struct tensor *t, struct tensor *out, bool wide);

#endif
