/* sdpa.cuh - cuDNN's fused attention: y = softmax(scale q k^T (+ bias), causal or not) v without the matrix
 * of scores in memory, and its gradients.
 *
 * The library knows no such operation; it recognizes graphs of products, sums and maxima that come to one
 * (version 9.19 was asked, without a GPU: test/true). What it takes:
 *   - bfloat16 and float16; d and dv multiples of 8, at most 256 (on compute capability 8.0 backward 128);
 *   - columns side by side (of others it dies), everything else in any order. Steps and addresses that are
 *     not multiples of 16 bytes it would take and misread: sdpa_fits();
 *   - a bias of float32 that is added to the scaled scores, broadcast along all axes but that of keys.
 *     Masks of bool it does not compile.
 * Backward is made of the graph in which dq is a product of its own, which the library computes with
 * t * s numbers of 16 bits in scratch, in a fixed order; the other one, without, adds up dq by atomics,
 * which its notes on engines do not tell. To bound the scratch, backward goes over batch and heads in
 * parts. */
#ifndef OP_ATTENTION_SDPA_CUH
#define OP_ATTENTION_SDPA_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

/* Tensors: matrices of [batch, heads]. Gradients lie as what they are of.
 *   Q [t, d]  K [s, d]  V [s, dv]  Y [t, dv]
 *   BIAS      float32, some axes broadcast
 *   STATS     float32 [batch, heads, t], densely: the logarithm of each row's sum of exponentials;
 *             forward writes it, backward reads it */
enum sdpa_operand { SDPA_Q, SDPA_K, SDPA_V, SDPA_Y, SDPA_BIAS, SDPA_STATS, SDPA_DY, SDPA_DQ, SDPA_DK, SDPA_DV,
                    SDPA_OPERANDS };
enum { SDPA_LAID = SDPA_BIAS + 1 };

struct sdpa_spec {
    enum tensor_dtype type; /* of q, k, v and y */
    int64_t batch, heads, t, s, d, dv;
    struct {
        int64_t batch, head, row; /* steps in elements; of BIAS 0: broadcast */
    } at[SDPA_LAID];
    float scale;
    bool has_bias;
    bool is_causal; /* row i sees keys 0 to i */
    bool backward;  /* and not forward */
};

struct sdpa;

/* Can the operands lie so? Only then: */
bool sdpa_fits(const struct sdpa_spec *spec);
/* Errors: ERR_UNSUPPORTED (no engine for it), ERR_DEVICE, ERR_NOMEM. */
int sdpa_open(const struct sdpa_spec *spec, struct sdpa **out, struct err *err);
void sdpa_close(struct sdpa *s); /* NULL is fine */
size_t sdpa_scratch_bytes(const struct sdpa *s); /* NULL: 0 */
/* at: addresses, multiples of 16 (of a bias and of stats: 4) as scratch is; NULL where the direction has none. */
int sdpa_run(struct sdpa *s, void *const at[SDPA_OPERANDS], void *scratch, cudaStream_t stream, struct err *err);

#endif
