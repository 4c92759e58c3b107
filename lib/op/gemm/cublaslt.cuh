/* cublaslt.cuh - one matrix product of NVIDIA's library (cuBLASLt 13, C API), made ready for fixed shapes.
 * cublaslt.cu alone knows its types.
 *
 * Types: a and b of one type, float32, bfloat16 or float16; y of the same or float32. Sums are float32; of
 * float32 the products are too, unless tf32 allows that factors are rounded to 10 bits of fraction first.
 * Bits: the algorithm is chosen when the product is made, once for addresses that are multiples of 16 bytes
 * and once for any. Sums in parts are float32 in scratch and added in a fixed order, so the bits depend on
 * the shapes, the GPU's model and the library alone.
 * Threads: one at a time for each struct lt, working on the GPU that it was made on. */
#ifndef OP_GEMM_CUBLASLT_CUH
#define OP_GEMM_CUBLASLT_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

struct lt;

enum { LT_A, LT_B, LT_Y, LT_OPERANDS };

/* A matrix among `batch` of one kind. Steps in elements, from one row, column, matrix to the next. */
struct lt_operand {
    enum tensor_dtype type;
    int64_t row, col, batch;
};

/* What is done to a product before it is stored. The library's Gelu is the one with tanh. Aux, [m, n] in an
 * order that is the library's, is lt_aux_bytes() long, 16-byte aligned, and kept from the one to the other. */
enum lt_tail {
    LT_PLAIN,
    LT_GELU, LT_RELU,   /* the function of what would be stored; aux: what its slope is known by is written */
    LT_DGELU, LT_DRELU, /* times the slope of the function at aux */
    LT_SUMS,            /* nothing; but the sums of b's columns are written where a bias would stand: [n], of
                           y's type */
};

/* y [m, n] = alpha a [m, k] b [k, n] (+ y) (+ bias [n], of y's type), `batch` times. All at least 1. */
struct lt_problem {
    int64_t batch, m, n, k;
    struct lt_operand at[LT_OPERANDS]; /* each lt_fits(); with a bias y's columns lie side by side */
    bool bias;         /* not of a slope, nor of sums */
    bool tf32;         /* a and b are float32, and may be rounded to TF32 */
    enum lt_tail tail; /* of one product alone; but for sums y's columns lie side by side, and nothing adds */
};

size_t lt_aux_bytes(enum lt_tail tail, int64_t m, int64_t n, enum tensor_dtype y); /* 64-byte aligned */

/* Can the library take [rows, cols] where they lie: one step is 1, the other leads past those? */
bool lt_fits(const struct lt_operand *o, int64_t rows, int64_t cols);

/* On failure *out is untouched. Errors: ERR_UNSUPPORTED (the library has no algorithm for this), ERR_NOMEM,
 * ERR_DEVICE. */
int lt_open(const struct lt_problem *p, struct lt **out, struct err *err);
void lt_close(struct lt *l); /* NULL is fine */
size_t lt_scratch_bytes(const struct lt *l); /* 64-byte aligned */

/* bias: 16-byte aligned; LT_SUMS writes there. Puts the product on the stream. */
int lt_run(struct lt *l, const void *a, const void *b, void *y, const void *bias, void *aux, float alpha, bool add,
           void *scratch, cudaStream_t stream, struct err *err);

#endif
