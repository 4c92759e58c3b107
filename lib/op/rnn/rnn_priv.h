/* rnn_priv.h - recurrent networks: what their nodes settle, and the step of a cell.
 *
 * Of one direction, with T steps, batch B, I inputs, H hidden, and G gates:
 *   gates [T, B, G H] = x W^T + bias, for all steps in one product; then step by step the cell adds
 *   h R^T and makes h of it. Backward goes the way back, leaves the gradient of what went into the
 *   gates in their place, and the gradients of x, W, R and the biases are one product each.
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

struct rnn_step;

/* ---- the functions of the gates: function.c ---- */

struct rnn_function;

enum rnn_function_id { /* what GPUs know it by */
    RNN_SIGMOID,
    RNN_TANH,
    RNN_RELU,
    RNN_LEAKY,
    RNN_THRESHOLDED,
    RNN_SCALED_TANH,
    RNN_HARD,
    RNN_ELU,
    RNN_SOFTSIGN,
    RNN_SOFTPLUS,
    RNN_AFFINE,
};

struct rnn_act {
    const struct rnn_function *f;
    enum rnn_function_id id;
    float alpha, beta;
    bool clips; /* what goes in, to clip on either side of 0 */
    float clip, lo, hi; /* lo, hi: what comes out there */
};

/* By ONNX's name, with the alpha and beta that the operator of that name has, unless these lists
 * have more: each function takes the next one if it has one. ERR_UNSUPPORTED, ERR_INPUT. */
struct rnn_numbers {
    const float *at;
    size_t n;
};
int rnn_act_init(const struct op_infer *f, const char *name, struct rnn_numbers *alpha,
                 struct rnn_numbers *beta, struct rnn_act *a, struct err *err);
void rnn_act_clip(struct rnn_act *a, float clip);
/* x [n] becomes y. */
void rnn_act_run(const struct rnn_act *a, float *x, size_t n);
/* slope [n] becomes dy / dx, as it follows from y. */
void rnn_act_slope(const struct rnn_act *a, const float *y, float *slope, size_t n);

/* ---- */

struct rnn_cell {
    uint32_t gates;             /* G */
    uint32_t part[RNN_PARTS];   /* gates of each part; 0: there is none */
    bool has_c;                 /* a second state */
    bool has_e;                 /* a value per hidden unit is kept beside the gates (GRU) */
    int (*fwd)(const struct rnn_step *s, struct err *err);
    int (*bwd)(const struct rnn_step *s, struct err *err);
};

struct rnn_param {
    const struct rnn_cell *cell;
    size_t steps, batch, inputs, hidden; /* T, B, I, H */
    uint32_t dirs;
    bool reverse;      /* the first direction is */
    bool batch_first;  /* layout 1: x [B, T, I], y [B, T, D, H], states [B, D, H] */
    bool reset_after;  /* GRU: linear_before_reset */
    bool coupled;      /* LSTM: f = 1 - i */
    struct rnn_act act[2][RNN_ACTS]; /* of each direction: f, g, h */
};

/* Rows of W and R that go together; each kernel is made once and serves all steps and directions.
 * k: the part's gates times H. */
struct rnn_product {
    size_t first, k;                     /* rows of W and R */
    struct dnn *x;                       /* gates [T B, k] = x W^T + bias */
    struct dnn *h_pack, *h;              /* [B, k] (+)= h [B, H] R^T */
    struct dnn *dh_pack, *dh;            /* [B, H] (+)= gates [B, k] R */
    struct dnn *dx, *dx_add;             /* [T B, I] (+)= gates W */
    struct dnn *dw, *dr;                 /* [k, I] = gates^T x, [k, H] = gates^T h */
};

/* One step of a whole batch. Rows of the batch whose sequence is over are not live: their states
 * stay, their gates have gradient 0. */
struct rnn_step {
    const struct rnn_param *p;
    const struct rnn_product *product; /* [RNN_PARTS] */
    void *const *packed;               /* [RNN_PARTS]: R for h, or for dh in backward */
    size_t t;
    const int32_t *length;             /* [B]; NULL: all T */
    float *gates[RNN_PARTS];           /* [B, k] of this step */
    float *e;                          /* [B, H]; GRU */
    const float *bias_e;               /* [H]; GRU with reset_after and biases */
    const struct rnn_act *act;         /* [RNN_ACTS] */
    const float *peephole;             /* [3, H]: of i, o, f; NULL. LSTM */
    const float *h_prev, *c_prev;      /* [B, H] */
    float *h, *c;                      /* [B, H] */
    float *dh, *dc;                    /* [B, H]: of h and c; backward leaves those of h_prev and
                                          c_prev there */
    float *spare;                      /* [B, H] */
    float *row;                        /* [RNN_ROW, H]; backward */
    void *scratch;                     /* the kernels' */
};

static inline bool rnn_live(const struct rnn_step *s, size_t row)
{
    return s->length == NULL || s->t < (size_t)s->length[row];
}

/* y (+)= h R^T or gates R of a part, as its kernel was made. */
int rnn_run_h(const struct rnn_step *s, uint32_t part, const float *h, float *y, struct err *err);
int rnn_run_dh(const struct rnn_step *s, uint32_t part, const float *gates, float *dh,
               struct err *err);

/* LSTM, when all steps are walked: dp [3, H] (+)= the gradients of the peepholes. gates [T B, 4 H]
 * as backward leaves them, c_prev and c [T B, H]. */
void rnn_lstm_peepholes(const struct rnn_param *p, const float *gates, const float *c_prev,
                        const float *c, float *dp, bool add);

extern const struct rnn_cell rnn_lstm, rnn_gru, rnn_plain;

int rnn_cpu_plan(struct op_plan *p, struct err *err);
int rnn_cpu_fwd(const struct op_call *c, struct err *err);
int rnn_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err); /* a length */
int rnn_cpu_bwd(const struct op_call *c, struct err *err);
void rnn_cpu_free(void *state);

#endif
