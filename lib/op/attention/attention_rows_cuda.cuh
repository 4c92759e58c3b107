/* attention_rows_cuda.cuh - the softmax of a group of scores on a GPU; the counterpart of
 * attention_rows.c. */
#ifndef OP_ATTENTION_ATTENTION_ROWS_CUDA_CUH
#define OP_ATTENTION_ATTENTION_ROWS_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/attention/attention.h"
}

struct attention_rows_device {
    struct {
        enum attention_kind kind;
        float number;
        const void *mask;
        ptrdiff_t row, batch[TENSOR_MAX_RANK]; /* strides of its mask, in elements */
    } step[ATTENTION_STEPS];
    uint32_t n_steps, rank;
    int64_t batch[TENSOR_MAX_RANK];
    int64_t matrix, matrices, t, s; /* the group: first matrix, number of matrices; rows and columns
                                       of each */
    bool has_band, zero_empty, has_cap;    /* as in struct attention */
    int64_t lower, upper;
    float *max, *scale;             /* [n, t] of the whole call; NULL: not requested */
    struct dropout dropout;
    uint32_t stream;
    const struct op_run *device;
};

/* Input: scores [matrices, t, s] before the steps. Output: weights, the softmax multiplied by the
 * dropout mask, of type `type`. float32 weights may replace the scores, which are overwritten.
 * Errors: ERR_DEVICE. */
int attention_rows_device_fwd(const struct attention_rows_device *r, float *scores, void *weights,
                              enum tensor_dtype type, cudaStream_t stream, struct err *err);
/* Input: the same scores, and dp, the gradient of the weights. Output: the weights again, and
 * slopes, the gradient of the scores before the steps. float32 slopes may replace dp; scores and dp
 * are overwritten. Errors: ERR_DEVICE. */
int attention_rows_device_bwd(const struct attention_rows_device *r, float *scores, float *dp,
                              void *weights, void *slopes, enum tensor_dtype type,
                              cudaStream_t stream, struct err *err);

#endif
