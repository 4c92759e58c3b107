/* product.cuh - y = alpha a b (+ y) (+ bias) over any axes with steps, as products of cuBLASLt.
 *
 * Beside m, n and k there may be axes of a batch. A step of 0 in a or b repeats that operand, one in y adds
 * up. Axes that continue m, n or k become part of them; of the rest the longest is the library's batch, and
 * the others are one call each: those that add up one behind the other, so the order of every sum is fixed.
 * Rows of 16-bit numbers that begin at any address, as those of an odd length do, keep the library from its fast
 * kernels: where the product is worth it, they are laid out in scratch with room behind each.
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

/* Rows that are laid out again: n of `inner` numbers, `step` apart where they are, `wide` in scratch. */
struct product_rows {
    int64_t n, inner, step, wide; /* wide 0: they stay as they are */
};

/* What becomes of such rows of this type, each number of which is in `each` products. */
struct product_rows product_rows_of(enum tensor_dtype type, int64_t n, int64_t inner, int64_t step, int64_t each);
size_t product_rows_bytes(const struct product_rows *r); /* 64-byte aligned */
/* from (any float) -> to, of 16-bit `type`; back: the other way, both of that type. */
int product_rows_run(const struct product_rows *r, const void *from, enum tensor_dtype from_type, void *to,
                     enum tensor_dtype type, bool back, cudaStream_t stream, struct err *err);

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
    enum lt_tail tail; /* LT_SUMS: of a y that is float32; all others: of a y without a sum over axes */
};

struct product;

/* Sizes may be 0: no elements, or sums of nothing. Then, and where calls add up to a y that is not float32,
 * y's elements lie densely. Errors: those of lt_open(); ERR_UNSUPPORTED also for a tail that cannot be: of
 * nothing, of several products. */
int product_open(const struct product_problem *p, struct product **out, struct err *err);
/* With the sums of b's columns over k, where the library makes them; *sums tells. */
int product_open_sums(const struct product_problem *p, struct product **out, bool *sums, struct err *err);
void product_close(struct product *p); /* NULL is fine */
size_t product_scratch_bytes(const struct product *p); /* 64-byte aligned; 0 for NULL */
int product_run(struct product *p, const void *a, const void *b, void *y, const float *bias, float alpha,
                bool add, void *scratch, cudaStream_t stream, struct err *err);
/* Of one with a tail. sums: [n], stored or added to; NULL for the other tails. */
int product_run_tail(struct product *p, const void *a, const void *b, void *y, const float *bias, void *aux,
                     float *sums, bool adds_sums, float alpha, bool add, void *scratch, cudaStream_t stream,
                     struct err *err);

#endif
