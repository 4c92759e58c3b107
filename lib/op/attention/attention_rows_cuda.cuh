/* attention_rows_cuda.cuh - what happens to a group of scores between its products: attention_rows.c's work
 * on a GPU. */
#ifndef OP_ATTENTION_ATTENTION_ROWS_CUDA_CUH
#define OP_ATTENTION_ATTENTION_ROWS_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/attention/attention.h"
}

struct attention_rows_here {
    struct {
        enum attention_kind kind;
        float number;
        const void *mask;
        ptrdiff_t row, batch[TENSOR_MAX_RANK]; /* its steps, in elements */
    } step[ATTENTION_STEPS];
    uint32_t n_steps, rank;
    int64_t batch[TENSOR_MAX_RANK];
    int64_t matrix, matrices, t, s; /* the group: first, how many; rows and columns of each */
    bool has_band, zero_empty, has_cap;    /* as struct attention's */
    int64_t lower, upper;
    float *max, *scale;             /* [n, t] of the whole call; NULL: nobody wants them */
    struct dropout dropout;
    uint32_t stream;
    const struct op_run *there;
};

/* scores [matrices, t, s] before the steps; weights: the softmax after them, times what dropout makes of it,
 * of `type`. Of float32 they may be in the place of the scores, which are used up. */
int attention_rows_here_fwd(const struct attention_rows_here *r, float *scores, void *weights,
                            enum tensor_dtype type, cudaStream_t stream, struct err *err);
/* The same scores and dp, the gradient of the weights: weights again, and slopes, the gradient of the scores
 * before the steps. slopes of float32 may be in the place of dp; scores and dp are used up. */
int attention_rows_here_bwd(const struct attention_rows_here *r, float *scores, float *dp, void *weights,
                            void *slopes, enum tensor_dtype type, cudaStream_t stream, struct err *err);

#endif
