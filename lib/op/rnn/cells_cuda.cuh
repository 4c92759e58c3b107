/* cells_cuda.cuh - the cells of LSTM, GRU and RNN without their products, a step of a whole batch at a time. */
#ifndef OP_RNN_CELLS_CUDA_CUH
#define OP_RNN_CELLS_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/rnn/rnn_priv.h"
}

struct rnn_here { /* the GPU's counterpart of rnn_step */
    uint32_t batch, hidden;
    size_t steps;
    struct rnn_at at;
    const int32_t *length;            /* [B]; NULL: all steps */
    struct rnn_act act[RNN_ACTS];
    const float *peephole;            /* [3, H]: of i, o, f; NULL. LSTM */
    float *dh, *dc, *spare;           /* [B, H] */
    float *y;                         /* y of this step, or its gradient; NULL: absent */
    size_t y_step;                    /* floats from one row of the batch to the next */
    bool coupled, reset_after;
};

/* Called after h R^T was added to gates[0]: compute the states and y of a step. y is 0 after the end of a
 * sequence, and NaN in every step of a sequence with an invalid length. */
int rnn_lstm_forward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_plain_forward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
/* GRU: the first computes the gates z and r, and e = r h_prev unless the reset comes after; the second, called
 * after the product of part 1, computes the state. */
int rnn_gru_gates(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_gru_forward(const struct rnn_here *s, cudaStream_t stream, struct err *err);

/* dh is the gradient of h from the next step; the gradient of y is added. The gates are replaced by the
 * gradients of the inputs of their functions, dh and dc by the parts of the gradients of h_prev and c_prev that
 * do not pass through R. */
int rnn_lstm_backward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_plain_backward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
/* GRU: the same; with the reset first, rnn_gru_reset() completes the gate r once spare is the gradient of e. */
int rnn_gru_backward(const struct rnn_here *s, cudaStream_t stream, struct err *err);
int rnn_gru_reset(const struct rnn_here *s, cudaStream_t stream, struct err *err);

#endif
