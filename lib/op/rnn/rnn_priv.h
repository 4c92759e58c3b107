/* rnn_priv.h - recurrent networks: the settled attributes of a node, and the step of a cell.
 *
 * Of one direction, with T steps, batch B, I inputs, H hidden, and G gates:
 *   gates [T, B, G H] = x W^T + bias, for all steps in one product; then step by step the cell adds
 *   h R^T and computes the next h. Backward walks the steps in reverse and replaces the gates by
 *   the gradients of the inputs of their functions; the gradients of x, W, R and the biases are
 *   then one product each.
 * GRU takes its gates in two parts, as the second one depends on the first. */
#ifndef OP_RNN_RNN_PRIV_H
#define OP_RNN_RNN_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/op.h"

enum { RNN_X, RNN_W, RNN_R, RNN_B, RNN_LENGTHS, RNN_H, RNN_C, RNN_PEEPHOLES };
enum { RNN_PARTS = 2 };

enum { RNN_ACTS = 3, RNN_ROW = 6 /* rows of H in rnn_step.row */ };

struct rnn_param;
struct rnn_step;

/* ---- the functions of the gates: function.c ---- */

struct rnn_function;

/* DO_(enumerator, formula of rnn_formula.h) for each function. */
#define RNN_EACH_FUNCTION(DO_)                                                                     \
    DO_(RNN_SIGMOID, sigmoid)                                                                      \
    DO_(RNN_TANH, tanh)                                                                            \
    DO_(RNN_RELU, relu)                                                                            \
    DO_(RNN_LEAKY, leaky)                                                                          \
    DO_(RNN_THRESHOLDED, thresholded)                                                              \
    DO_(RNN_SCALED_TANH, scaled_tanh)                                                              \
    DO_(RNN_HARD, hard)                                                                            \
    DO_(RNN_ELU, elu)                                                                              \
    DO_(RNN_SOFTSIGN, softsign)                                                                    \
    DO_(RNN_SOFTPLUS, softplus)                                                                    \
    DO_(RNN_AFFINE, affine)

#define RNN_ENUMERATOR(enumerator_, id_) enumerator_,
enum rnn_function_id { RNN_EACH_FUNCTION(RNN_ENUMERATOR) }; /* by which GPUs find the function */

struct rnn_act {
    const struct rnn_function *f;
    enum rnn_function_id id;
    float alpha, beta;
    bool clips;         /* x is clipped to -clip .. clip first */
    float clip, lo, hi; /* lo, hi: the values at -clip and clip */
};

/* Finds the function of ONNX's name. A function with an alpha consumes the next number of that
 * list, or has ONNX's default if the list is used up; beta likewise. Errors: ERR_UNSUPPORTED,
 * ERR_INPUT. */
struct rnn_numbers {
    const float *at;
    size_t n;
};
int rnn_act_init(const struct op_infer *f, const char *name, struct rnn_numbers *alpha,
                 struct rnn_numbers *beta, struct rnn_act *a, struct err *err);
void rnn_act_clip(struct rnn_act *a, float clip);
/* Replaces x [n] by y. */
void rnn_act_run(const struct rnn_act *a, float *x, size_t n);
/* Computes slope [n] = dy / dx from y. */
void rnn_act_slope(const struct rnn_act *a, const float *y, float *slope, size_t n);

/* ---- */

struct rnn_cell {
    uint32_t gates;             /* G */
    uint32_t part[RNN_PARTS];   /* gates of each part; 0: no such part */
    bool has_c;                 /* a second state */
    bool has_e;                 /* keeps one more value per hidden unit (GRU) */
    int (*fwd)(const struct rnn_step *s, struct err *err);
    int (*bwd)(const struct rnn_step *s, struct err *err);
    /* Called after the last step of backward: dp [3, H] (+)= the gradients of the peepholes. gates
     * [T B, 4 H] as bwd leaves them, c_prev and c [T B, H]. NULL: the cell has no peepholes. */
    void (*peepholes)(const struct rnn_param *p, const float *gates, const float *c_prev,
                      const float *c, float *dp, bool add);
};

struct rnn_param {
    const struct rnn_cell *cell;
    size_t steps, batch, inputs, hidden; /* T, B, I, H */
    uint32_t dirs;
    bool reverse;      /* the first direction walks from the last step to the first */
    bool batch_first;  /* layout 1: x [B, T, I], y [B, T, D, H], states [B, D, H] */
    bool reset_after;  /* GRU: linear_before_reset */
    bool coupled;      /* LSTM: f = 1 - i */
    struct rnn_act act[2][RNN_ACTS]; /* of each direction: f, g, h */
};

/* The kernels of a part, i.e. of some rows of W and R; they serve all steps and directions.
 * k: the part's gates times H. */
struct rnn_product {
    size_t first, k;                     /* rows of W and R */
    struct dnn *x;                       /* gates [T B, k] = x W^T + bias */
    struct dnn *h_pack, *h;              /* [B, k] (+)= h [B, H] R^T */
    struct dnn *dh_pack, *dh;            /* [B, H] (+)= gates [B, k] R */
    struct dnn *dx, *dx_add;             /* [T B, I] (+)= gates W */
    struct dnn *dw, *dr;                 /* [k, I] = gates^T x, [k, H] = gates^T h */
};

struct rnn_at { /* the kept values of step t; see rnn_at_step() */
    size_t t;
    float *gates[RNN_PARTS];      /* [B, k] */
    float *e;                     /* [B, H]; GRU */
    const float *h_prev, *c_prev; /* [B, H] */
    float *h, *c;                 /* [B, H] */
};

/* One step of a whole batch. Rows of the batch whose sequence has ended are not live: their states
 * stay, and the gradients of their gates are 0. */
struct rnn_step {
    const struct rnn_param *p;
    const struct rnn_product *product; /* [RNN_PARTS] */
    void *const *packed;               /* [RNN_PARTS]: R for h, or for dh in backward */
    struct rnn_at at;
    const int32_t *length;             /* [B]; NULL: all T */
    const float *bias_e;               /* [H]; GRU with reset_after and biases */
    const struct rnn_act *act;         /* [RNN_ACTS] */
    const float *peephole;             /* [3, H]: of i, o, f; NULL. LSTM */
    float *dh, *dc;                    /* [B, H]: of h and c; backward leaves those of h_prev and
                                          c_prev there */
    float *spare;                      /* [B, H] */
    float *row;                        /* [RNN_ROW, H]; backward */
    void *scratch;                     /* the kernels' */
};

static inline bool rnn_live(const struct rnn_step *s, size_t row)
{
    return s->length == NULL || s->at.t < (size_t)s->length[row];
}

/* y (+)= h R^T, or dh (+)= gates R, of a part; the kernel knows whether to add. */
int rnn_run_h(const struct rnn_step *s, uint32_t part, const float *h, float *y, struct err *err);
int rnn_run_dh(const struct rnn_step *s, uint32_t part, const float *gates, float *dh,
               struct err *err);

extern const struct rnn_cell rnn_lstm, rnn_gru, rnn_plain;

int rnn_cpu_plan(struct op_plan *p, struct err *err);
int rnn_cpu_fwd(const struct op_call *c, struct err *err);
int rnn_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err); /* a length */
int rnn_cpu_bwd(const struct op_call *c, struct err *err);
void rnn_cpu_free(void *state);

#endif
