/* gradcheck.h - runs one op the way the planner does, and verifies its results.
 *
 * Every buffer is surrounded by canaries. Outputs, save and scratch are poisoned (once with NaN,
 * once with large numbers, and both runs must give the same bits, so every element is written and
 * no unwritten element is read). Values that are not listed in `bwd_reads` are poisoned before
 * backward. Only infer receives the values of constants. Gradients are compared with central
 * differences of the op's own forward (Richardson extrapolation from two steps), weighted by a
 * random dout and summed in double. A mismatch fails the running cmocka test with the op, the
 * element and both values. */
#ifndef HARNESS_GRADCHECK_H
#define HARNESS_GRADCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/op.h"
#include "tensor/tensor.h"

struct err;

enum { GRADCHECK_MAX = 12 };

/* A shape in an initializer: .shape = GRADCHECK_SHAPE(2, 3). A scalar is {0}. */
#define GRADCHECK_SHAPE(...)                                                                       \
    {                                                                                              \
        .rank = sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), .dim = { __VA_ARGS__ }       \
    }

struct gradcheck_tensor {
    enum tensor_dtype dtype; /* 0: float32 */
    struct shape shape;
    const void *data; /* in plain order, borrowed; NULL: random in [lo, hi) */
    double lo, hi;    /* both 0: [-1, 1) */
    /* random, but any two values differ by at least (hi - lo) / n and none is near the middle: for
     * ops with kinks (max, ReLU); the difference step is reduced accordingly */
    bool apart;
    bool constant;    /* infer receives the values */
    bool absent;
    bool plain;       /* stays plain beside channels-last tensors, like a parameter */
};

struct gradcheck_case {
    const struct op_def *def; /* the op; NULL: op_find(domain, op, opset) */
    const char *domain;
    const char *op;
    uint32_t opset;
    bool eval; /* plan and infer with training = false; backward is not run */
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in;
    struct gradcheck_tensor in[GRADCHECK_MAX];
    uint32_t n_out;      /* 0: 1 */
    uint32_t unread;     /* OP_OUT bits: unused, the op receives NULL */
    uint32_t no_dout;    /* OP_OUT bits: no gradient arrives */
    const float *dout[GRADCHECK_MAX]; /* plain; NULL: random in [-1, 1) */
    uint32_t not_wanted; /* OP_IN bits: this gradient is never requested */
    /* OP_IN and OP_OUT bits: bfloat16 in this run, as the planner chooses after infer; the data is
     * rounded to it. Results are returned as float32. */
    uint32_t half;
    uint32_t rounded;    /* the same bits: the data is rounded to bfloat16, but stays float32 */
    bool float16;        /* float16 instead of bfloat16; supported only on GPUs */
    enum tensor_layout layout; /* of tensors of rank >= 3, for OP_LAYOUT_ANY ops; gradcheck_run
                                  checks both layouts */
    bool turned; /* outputs have the other layout: for Reorder */
    struct op_run run; /* loss_scale 0 means 1 */
    uint32_t stream;
    uint64_t seed; /* of the random data */
    double step;   /* step of the differences; 0: 1/64 */
    double tol;    /* tolerance, relative to the element plus the root mean square of the tensor; 0:
                      1e-3 */
    uint32_t probes; /* number of elements of each input to perturb; 0: 200 */
};

/* Values in plain order, for any layout of the run; freed with gradcheck_free(). */
struct gradcheck_result {
    struct tensor in[GRADCHECK_MAX];  /* the inputs */
    struct tensor out[GRADCHECK_MAX]; /* data NULL: unread */
    struct tensor dout[GRADCHECK_MAX];
    struct tensor din[GRADCHECK_MAX]; /* data NULL: not requested; includes statistics */
};

/* Runs infer, plan and fwd. Returns the first error; *r is then empty. Misbehaviour (canary,
 * poison, modified input) fails the test. */
int gradcheck_forward(const struct gradcheck_case *gc, struct gradcheck_result *r, struct err *err);
/* The same and bwd with all gradients requested. */
int gradcheck_backward(const struct gradcheck_case *gc, struct gradcheck_result *r,
                       struct err *err);
void gradcheck_free(struct gradcheck_result *r); /* idempotent */

/* Runs all checks above, and: finite differences, each requested gradient alone, din_add, output in
 * the memory of input 0 if the op permits it, channels-last against plain if it accepts any
 * layout. */
void gradcheck_run(const struct gradcheck_case *gc);

/* Fails unless the n values agree: |got - want| <= tol * (1 + |want|); NaN equals NaN. */
void gradcheck_near(const char *what, const float *got, const double *want, size_t n, double tol);

#endif
