/* product.cuh - y = alpha a b (+ y) (+ bias) over any axes with strides, as products of cuBLASLt.
 *
 * Beside m, n and k there may be batch axes. A stride of 0 in a or b repeats that operand, a stride
 * of 0 in y sums over the axis. Axes that continue m, n or k are merged into them. Of the other
 * axes, the longest is the library's batch, and the rest are separate calls; calls that add to the
 * same y run in sequence, so the order of every sum is fixed. Alignment: rows of 16-bit numbers
 * that are not aligned, such as those of odd length, prevent the library from using its fast
 * kernels. If the product is large enough, such rows are copied to scratch with padding. Types:
 * each operand float32, bfloat16 or float16. All factors have one type: unless a, b and y are all
 * float32, a float32 factor (a parameter) is rounded into scratch first. y is rounded once, even if
 * several calls add to it. float32 factors are multiplied exactly, or as TF32 if tf32 is set. A
 * bias is float32 [n] and requires contiguous columns of y; it is rounded to y's type first, as the
 * library requires. */
#ifndef OP_GEMM_PRODUCT_CUH
#define OP_GEMM_PRODUCT_CUH

#include "op/gemm/cublaslt.cuh"
#include "op/op_cuda.cuh"

enum { PRODUCT_AXES = 16 };

/* Rows that are copied to aligned rows: n rows of `inner` numbers with the stride `step`, `wide` in
 * scratch. */
struct product_rows {
    int64_t n, inner, step, wide; /* wide 0: not copied */
};

/* Decides about rows of this type; each number is a factor of `each` products. */
struct product_rows product_rows_of(enum tensor_dtype type, int64_t n, int64_t inner, int64_t step,
                                    int64_t each);
size_t product_rows_bytes(const struct product_rows *r); /* 64-byte aligned */
/* Copies from (any float type) -> to, which has the 16-bit type `type`; back: in the other
 * direction, both of that type. Errors: ERR_DEVICE. */
int product_rows_run(const struct product_rows *r, const void *from, enum tensor_dtype from_type,
                     void *to, enum tensor_dtype type, bool back, cudaStream_t stream,
                     struct err *err);

struct product_axis {
    int64_t size, step[LT_OPERANDS]; /* strides in elements */
};

struct product_problem {
    int64_t m, n, k;
    struct {
        enum tensor_dtype type;
        int64_t row, col; /* strides of a [m, k], b [k, n], y [m, n]: lt_fits() must hold */
    } at[LT_OPERANDS];
    uint32_t n_axes;
    struct product_axis axis[PRODUCT_AXES];
    bool bias;
    bool tf32; /* as op_plan.tf32 */
    enum lt_tail tail; /* LT_SUMS: requires float32 y; others: y without a summed axis */
};

struct product;

/* Creates a product. Sizes may be 0: no elements, or empty sums. In that case, and if calls add to
 * a y that is not float32, y must be contiguous. Errors: those of lt_open(); ERR_UNSUPPORTED also
 * for an epilogue that is impossible: of an empty product, of several products. */
int product_open(const struct product_problem *p, struct product **out, struct err *err);
/* Creates a product with the column sums of b over k, if the library can compute them; *sums returns whether
 * it does. */
int product_open_sums(const struct product_problem *p, struct product **out, bool *sums,
                      struct err *err);
void product_close(struct product *p);                 /* NULL is allowed */
size_t product_scratch_bytes(const struct product *p); /* 64-byte aligned; 0 for NULL */
int product_run(struct product *p, const void *a, const void *b, void *y, const float *bias,
                float alpha, bool add, void *scratch, cudaStream_t stream, struct err *err);
/* Enqueues a product with an epilogue. sums [n]: stored or accumulated; NULL for other
 * epilogues. */
int product_run_tail(struct product *p, const void *a, const void *b, void *y, const float *bias,
                     void *aux, float *sums, bool adds_sums, float alpha, bool add, void *scratch,
                     cudaStream_t stream, struct err *err);

#endif
