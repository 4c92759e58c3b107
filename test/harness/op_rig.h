/* op_rig.h - one op prepared for calls as the planner does it: inferred, planned, its tensors in
 * guarded buffers of exactly the declared size. gradcheck.c is built on it; a test can use it
 * directly for other checks. Misbehaviour fails the running test.
 *
 * With TRAINERD_TEST_CUDA=1 in the environment the GPU kernels are used: all buffers, guards
 * included, are copied to the GPU before a call and back after it, so that every test of an op also
 * tests its GPU kernels. An invalid number that they record becomes the error of the call, as in a
 * plan. An op without GPU kernels ends the test as skipped. */
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

/* Poison bytes: as floats they are NaN, and a number around 1.5e16. */
enum { RIG_POISON_NAN = 0xFF, RIG_POISON_BIG = 0x5A };

/* [guard][bytes][guard] */
struct block {
    unsigned char *raw;
    size_t bytes;
    void *device; /* of the same size, on the GPU; NULL: not allocated */
};

struct rig {
    const struct gradcheck_case *gc;
    const struct op_def *def;
    const struct cuda_api *cuda; /* NULL: CPU kernels */
    const struct op_kernels *kernels;
    char name[160];
    struct arena mem;
    void *param;
    void *state;
    uint32_t n_in, n_out, wanted;
    struct tensor in[GRADCHECK_MAX], out[GRADCHECK_MAX], din[GRADCHECK_MAX], dout[GRADCHECK_MAX];
    const struct tensor *in_at[GRADCHECK_MAX], *out_at[GRADCHECK_MAX], *din_at[GRADCHECK_MAX],
        *dout_at[GRADCHECK_MAX];
    void *kept[GRADCHECK_MAX]; /* copy of each input in its layout */
    struct block in_mem[GRADCHECK_MAX], out_mem[GRADCHECK_MAX], din_mem[GRADCHECK_MAX],
        dout_mem[GRADCHECK_MAX], save, scratch;
    struct op_run run;
    struct op_call call;
    struct op_run *run_on_gpu;
    struct op_invalid *trouble_on_gpu;
    bool refused_on_gpu; /* the last call failed by a recorded invalid number */
    uint32_t calls_on_gpu;
};

/* Opens a rig. `wanted`: OP_IN bits of the gradients for which the plan is made, as far as the case
 * permits. Returns the error of infer or plan; the rig is then closed. */
int rig_open(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted, struct err *err);
void rig_close(struct rig *r);

/* As rig_open(), with CPU kernels regardless of the environment. */
int rig_open_cpu(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted, struct err *err);
/* Runs forward after poisoning outputs, save and scratch. Inputs must stay unchanged. */
int rig_fwd(struct rig *r, int poison_byte, struct err *err);
/* Runs backward after poisoning the values that the op does not list in bwd_reads, and din[i],
 * except for the inputs in `add`, which accumulate into the caller's values. */
void rig_bwd(struct rig *r, int poison_byte, uint32_t add);
void rig_check_guards(const struct rig *r);
/* Runs only the kernel, on the current contents of the buffers. */
int rig_call(struct rig *r, bool backward, struct err *err);

/* Fills in n elements of random data as the case describes. */
void rig_random(const struct gradcheck_tensor *gt, enum tensor_dtype dtype, void *data, size_t n,
                uint64_t seed);
/* true if GPU kernels are used; true if the op has kernels for the device */
bool rig_on_gpu(void);
bool rig_has_kernels(const struct op_def *def);
/* Rounds v to bfloat16, ties to even. */
double rig_round_half(double v);
/* Index in t's layout of element i of the plain order. */
size_t rig_place(const struct tensor *t, size_t i);
/* Copies t to plain order; the caller frees out->data. wide: converts bfloat16 and float16 to
 * float32. */
void rig_take(const struct tensor *t, struct tensor *out, bool wide);

#endif
