/* cublaslt.cuh - a matrix product of NVIDIA's library (cuBLASLt 13, C API), prepared for fixed
 * shapes. Only cublaslt.cu uses its types.
 *
 * Types: a and b of one type, float32, bfloat16 or float16; y of the same type or float32. Sums are
 * float32; products of float32 are, too, unless tf32 permits rounding the factors to 10 bits of
 * fraction.
 * Reproducibility: the algorithm is selected when the product is created, once for addresses that
 * are multiples of 16 bytes and once for any. Partial sums are float32 in scratch and added in a
 * fixed order, so the bits depend only on the shapes, the GPU model and the library.
 * Threads: one at a time per struct lt, on the GPU on which it was created. */
#ifndef OP_GEMM_CUBLASLT_CUH
#define OP_GEMM_CUBLASLT_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

struct lt;

enum { LT_A, LT_B, LT_Y, LT_OPERANDS };

/* A matrix of a batch: strides in elements between rows, columns and matrices. */
struct lt_operand {
    enum tensor_dtype type;
    int64_t row, col, batch;
};

/* The epilogue: an operation on a product before it is stored. The library's Gelu is the tanh
 * approximation. Aux holds [m, n] in an order of the library's, lt_aux_bytes() long, 16-byte
 * aligned; the caller keeps it from the forward to the derivative. */
enum lt_tail {
    LT_PLAIN,
    LT_GELU, LT_RELU,   /* applies the function; writes to aux what the derivative needs */
    LT_DGELU, LT_DRELU, /* multiplies by the derivative of the function at aux */
    LT_SUMS,            /* none; but writes the sums of b's columns to the position of a bias: [n],
                           of y's type */
};

/* y [m, n] = alpha a [m, k] b [k, n] (+ y) (+ bias [n], of y's type), `batch` times. All sizes are
 * at least 1. */
struct lt_problem {
    int64_t batch, m, n, k;
    struct lt_operand at[LT_OPERANDS]; /* lt_fits() holds for each; with a bias y's columns are
                                          contiguous */
    bool bias;         /* not with a derivative or sums */
    bool tf32;         /* a and b are float32 and may be rounded to TF32 */
    enum lt_tail tail; /* requires batch 1; except for LT_SUMS, y's columns are contiguous and
                          nothing accumulates into y */
};

/* 64-byte aligned */
size_t lt_aux_bytes(enum lt_tail tail, int64_t m, int64_t n, enum tensor_dtype y);

/* Returns true if the library supports the strides: one is 1, and the other skips at least the
 * elements of that axis. */
bool lt_fits(const struct lt_operand *o, int64_t rows, int64_t cols);

/* Creates a product. On failure *out is unchanged. Errors: ERR_UNSUPPORTED (no algorithm),
 * ERR_NOMEM, ERR_DEVICE. */
int lt_open(const struct lt_problem *p, struct lt **out, struct err *err);
void lt_close(struct lt *l);                 /* NULL is allowed */
size_t lt_scratch_bytes(const struct lt *l); /* 64-byte aligned */

/* Enqueues the product. bias: 16-byte aligned; LT_SUMS writes to it. Errors: ERR_DEVICE. */
int lt_run(struct lt *l, const void *a, const void *b, void *y, const void *bias, void *aux,
           float alpha, bool add, void *scratch, cudaStream_t stream, struct err *err);

#endif
