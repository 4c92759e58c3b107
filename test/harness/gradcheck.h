/* gradcheck.h - runs one op row the way the planner does, and judges it.
 *
 * Every buffer stands between canaries; outputs, save and scratch are poisoned (once as NaN, once
 * as large numbers, and both runs must give the same bits, so nothing is left unwritten and nothing
 * unwritten is read); what `bwd_reads` does not list is poisoned before backward; constants are
 * shown to infer only. Gradients are compared with central differences of the op's own forward
 * (Richardson from two steps), weighted by a random dout and summed in double.
 * A mismatch fails the running cmocka test with op, element and both values. */
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
    const void *data; /* plain order, borrowed; NULL: random in [lo, hi) */
    double lo, hi;    /* both 0: [-1, 1) */
    bool apart;       /* random, but no two nearer than (hi - lo) / n and none at the middle: for
                         ops with kinks (max, ReLU); the difference step then shrinks to fit */
    bool constant;    /* infer sees the values */
    bool absent;
    bool plain;       /* stays plain beside channels-last tensors, as a parameter does */
};

struct gradcheck_case {
    const struct op_def *def; /* the row; NULL: op_find(domain, op, opset) */
    const char *domain;
    const char *op;
    uint32_t opset;
    bool eval; /* plan and infer with training = false; then backward is not run */
    const struct op_attr *attrs;
    uint32_t n_attrs;
    uint32_t n_in;
    struct gradcheck_tensor in[GRADCHECK_MAX];
    uint32_t n_out;      /* 0: 1 */
    uint32_t unread;     /* OP_OUT bits: nobody reads it, the op gets NULL */
    uint32_t no_dout;    /* OP_OUT bits: no gradient arrives there */
    const float *dout[GRADCHECK_MAX]; /* plain; NULL: random in [-1, 1) */
    uint32_t not_wanted; /* OP_IN bits: never ask for this gradient */
    uint32_t half;       /* OP_IN and OP_OUT bits: bfloat16 in this run, as the planner makes them after
                            infer; the data is rounded to it. Results come back as float32 */
    uint32_t rounded;    /* likewise: the data is rounded to bfloat16, but is float32 */
    bool float16;        /* all that instead in float16, which only GPUs compute in */
    enum tensor_layout layout; /* of tensors of rank >= 3 for OP_LAYOUT_ANY rows; gradcheck_run does
                                  both by itself */
    bool turned; /* outputs lie the other way: for Reorder */
    struct op_run run; /* loss_scale 0: 1 */
    uint32_t stream;
    uint64_t seed; /* of random data */
    double step;   /* of the differences; 0: 1/64 */
    double tol;    /* relative to the element plus the tensor's root mean square; 0: 1e-3 */
    uint32_t probes; /* elements of each input to perturb; 0: 200 */
};

/* Values in plain order, whatever the layout of the run; owned, gradcheck_free(). */
struct gradcheck_result {
    struct tensor in[GRADCHECK_MAX];  /* what was fed */
    struct tensor out[GRADCHECK_MAX]; /* data NULL: unread */
    struct tensor dout[GRADCHECK_MAX];
    struct tensor din[GRADCHECK_MAX]; /* data NULL: not wanted; statistics are here too */
};

/* infer, plan, fwd. The error of whichever refused; then *r is empty. Misbehaviour (canary, poison,
 * modified input) fails the test. */
int gradcheck_forward(const struct gradcheck_case *gc, struct gradcheck_result *r, struct err *err);
/* The same and bwd, all gradients wanted. */
int gradcheck_backward(const struct gradcheck_case *gc, struct gradcheck_result *r,
                       struct err *err);
void gradcheck_free(struct gradcheck_result *r); /* idempotent */

/* Everything above, and: finite differences, each wanted gradient alone, din_add, output in the
 * place of input 0 where the row allows it, channels-last against plain where it takes any. */
void gradcheck_run(const struct gradcheck_case *gc);

/* Fails unless the n values agree: |got - want| <= tol * (1 + |want|); NaN agrees with NaN. */
void gradcheck_near(const char *what, const float *got, const double *want, size_t n, double tol);

#endif
