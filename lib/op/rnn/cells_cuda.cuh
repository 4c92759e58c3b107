/* cells_cuda.cuh - what the cells of LSTM, GRU and RNN compute beside their products, a step of a whole batch
 * at a time: lstm.c, gru.c and plain.c have the formulas. */
#ifndef OP_RNN_CELLS_CUDA_CUH
#define OP_RNN_CELLS_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/rnn/rnn_priv.h"
}

struct rnn_here { /* rnn_step of the GPU */
    uint32_t batch, hidden;
    size_t t, steps;
    const int32_t *length;            /* [B]; NULL: all steps */
    float *gates[RNN_PARTS];          /* [B, k] of this step */
    float *e;                         /* [B, H]; GRU */
    struct rnn_act act[RNN_ACTS];
    const float *peephole;            /* [3, H]: of i, o, f; NULL. LSTM */
    const float *h_prev, *c_prev;     /* [B, H] */
    float *h, *c;                     /* [B, H] */
    float *dh, *dc, *spare;           /* [B, H] */
    float *y;                         /* of this step, or its gradient; NULL: nobody reads or gave it */
    size_t y_step;                    /* from one of the batch to the next */
    bool coupled, reset_after;
};

/* The states and y of a step, when h R^T is added to gates[0]. y is 0 behind the end of a sequence, and NaN
 * all along for a length that is none. */
int rnn_lstm_forward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_plain_forward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
/* GRU: the gates z and r, and e = r h_prev unless the reset is after; then, when the product of part 1 is
 * done too, the state. */
int rnn_gru_gates(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_gru_forward(const struct rnn_here *s, cudaStream_t stream, struct err *err);

/* dh is the gradient of h as it comes from the step after, y's gradient is added. Leaves the gradient of
 * what went into the gates in their place, and in dh and dc what h_prev and c_prev get at once. */
int rnn_lstm_backward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_plain_backward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
/* GRU: everything; with the reset first all but the gate r, which waits for spare = the gradient of e. */
int rnn_gru_backward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_gru_reset(const struct rnn_here *s, cudaStream_t stream, struct err *err);

#endif
