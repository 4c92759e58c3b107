/* sdpa.cuh - cuDNN's fused attention: y = softmax(scale q k^T (+ bias), optionally causal) v
 * without storing the matrix of scores, and its gradients.
 *
 * cuDNN has no such operation; it recognizes graphs of products, sums and maxima that are
 * equivalent to one (determined with version 9.19, without a GPU: test/true). It supports:
 *   - bfloat16 and float16; d and dv multiples of 8, at most 256 (on compute capability 8.0
 *     backward 128);
 *   - contiguous columns (it crashes on others), and any order of the other axes. It accepts
 *     strides and addresses that are not multiples of 16 bytes, but computes wrong results: see
 *     sdpa_fits();
 *   - a float32 bias added to the scaled scores, broadcast along any axes except keys. It does not
 *     compile bool masks.
 * Backward uses the graph in which dq is a separate product. The library then needs t * s numbers
 * of 16 bits in scratch and sums in a fixed order. The graph without it sums dq by atomics,
 * although the notes of its engines do not say so. To bound the scratch, backward runs over parts
 * of batch and heads. */
#ifndef OP_ATTENTION_SDPA_CUH
#define OP_ATTENTION_SDPA_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

/* Tensors: matrices of [batch, heads]. A gradient has the strides of its operand.
 *   Q [t, d]  K [s, d]  V [s, dv]  Y [t, dv]
 *   BIAS      float32, some axes broadcast
 *   STATS     float32 [batch, heads, t], contiguous: the logarithm of the sum of exponentials of
 *             each row; forward writes it, backward reads it */
enum sdpa_operand { SDPA_Q, SDPA_K, SDPA_V, SDPA_Y, SDPA_BIAS, SDPA_STATS, SDPA_DY, SDPA_DQ, SDPA_DK, SDPA_DV,
                    SDPA_OPERANDS };
enum { SDPA_LAID = SDPA_BIAS + 1 };

struct sdpa_spec {
    enum tensor_dtype type; /* type of q, k, v and y */
    int64_t batch, heads, t, s, d, dv;
    struct {
        int64_t batch, head, row; /* strides in elements; BIAS: 0 is broadcast */
    } at[SDPA_LAID];
    float scale;
    bool has_bias;
    bool is_causal; /* row i sees keys 0 to i */
    bool backward;  /* the backward graph instead of the forward graph */
};

struct sdpa;

/* Returns true if the strides of the operands are supported. Required for sdpa_open(): */
bool sdpa_fits(const struct sdpa_spec *spec);
/* Creates the kernel. Errors: ERR_UNSUPPORTED (no engine), ERR_DEVICE, ERR_NOMEM. */
int sdpa_open(const struct sdpa_spec *spec, struct sdpa **out, struct err *err);
void sdpa_close(struct sdpa *s);                 /* NULL is allowed */
size_t sdpa_scratch_bytes(const struct sdpa *s); /* NULL: 0 */
/* Enqueues the kernel. at: addresses, multiples of 16 (bias and stats: 4), as is scratch; NULL for
 * operands that the direction does not have. Errors: ERR_DEVICE. */
int sdpa_run(struct sdpa *s, void *const at[SDPA_OPERANDS], void *scratch, cudaStream_t stream,
             struct err *err);

#endif
