/* product.cuh - y = alpha a b (+ y) (+ bias) over any axes with steps, as products of cuBLASLt.
 *
 * Beside m, n and k there may be axes of a batch. A step of 0 in a or b repeats that operand, one in y adds
 * up. Axes that continue m, n or k become part of them; of the rest the longest is the library's batch, and
 * the others are one call each: those that add up one behind the other, so the order of every sum is fixed.
 * Types: each operand float32, bfloat16 or float16. What is multiplied is of one type: where a, b and y are
 * not all float32, a float32 factor (a parameter) is rounded into scratch first. y is rounded once, also
 * when calls add up. float32 factors are multiplied in full, or as TF32 if tf32 says so.
 * A bias is float32 [n], where y's columns lie side by side; it too is rounded to y's type first, as the
 * library wants it. */
#ifndef OP_GEMM_PRODUCT_CUH
#define OP_GEMM_PRODUCT_CUH

#include "op/gemm/cublaslt.cuh"
#include "op/op_cuda.cuh"

enum { PRODUCT_AXES = 16 };

struct product_axis {
    int64_t size, step[LT_OPERANDS]; /* in elements */
};

struct product_problem {
    int64_t m, n, k;
    struct {
        enum tensor_dtype type;
        int64_t row, col; /* a [m, k], b [k, n], y [m, n]: lt_fits() */
    } at[LT_OPERANDS];
    uint32_t n_axes;
    struct product_axis axis[PRODUCT_AXES];
    bool bias;
    bool tf32; /* as op_plan.tf32 */
};

struct product;

/* Sizes may be 0: no elements, or sums of nothing. Then, and where calls add up to a y that is not float32,
 * y's elements lie densely. Errors: those of lt_open(). */
int product_open(const struct product_problem *p, struct product **out, struct err *err);
void product_close(struct product *p); /* NULL is fine */
size_t product_scratch_bytes(const struct product *p); /* 64-byte aligned; 0 for NULL */
int product_run(struct product *p, const void *a, const void *b, void *y, const float *bias, float alpha,
                bool add, void *scratch, cudaStream_t stream, struct err *err);

#endif
