/* dnn.h - the CPU kernel library (oneDNN 2 or 3, C API). Only dnn.c and dnn_make.c use its types, and
 * dnn_api.h hides the differences between its versions.
 *
 * A `struct dnn` is one kernel, compiled for fixed shapes. Creating a kernel is slow (it generates
 * code) and belongs into `plan`; dnn_run() only computes. If the library needs weights in its own
 * layout, the call converts them in scratch. Types: TENSOR_F32 (or 0) or TENSOR_BF16, for each
 * operand as the caller stores it. A kernel with a bfloat16 operand multiplies bfloat16 and sums in
 * float32. The other operand may be float32 if it is the weights; the call converts it. Requires
 * dnn_has_bfloat16(). Reproducibility: kernels use one thread, so the order of every sum depends
 * only on the shapes and the instruction set. Threads: one call at a time per struct dnn. The
 * caller owns scratch. */
#ifndef OP_DNN_H
#define OP_DNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct dnn;
struct err;
struct op_window;

enum { DNN_ARGS = 4 };

const char *dnn_id(void);    /* for example "onednn 2.6.3 avx512_core_amx"; never NULL */
bool dnn_has_bfloat16(void); /* true if the CPU has the instructions; emulation does not count */
void dnn_thread_init(void);  /* makes the calling thread create and run kernels on one thread */

/* Each constructor returns a kernel in *out, which the caller frees with dnn_free(). On failure
 * *out is unchanged. Errors: ERR_UNSUPPORTED (the library has no such kernel), ERR_NOMEM,
 * ERR_DEVICE. */

/* y [batch, m, n] = a [batch, m, k] b [batch, k, n] (+ bias [n]). trans_a: a is stored as [batch,
 * k, m]; trans_b: b is stored as [batch, n, k]. add: accumulates into y. packed: b has the layout
 * written by dnn_matmul_pack(), which pays if one b serves many products; requires batch 1 and
 * float32. The bias is float32. At most one of a and b is float32 if the other is bfloat16.
 * Arguments of dnn_run(): a, b, y, bias. */
struct dnn_matmul {
    int64_t batch, m, n, k;
    bool trans_a, trans_b, bias, add, packed;
    enum tensor_dtype a, b, y;
};
int dnn_matmul(const struct dnn_matmul *s, struct dnn **out, struct err *err);
/* Converts b of a packed product to the layout of the library, dnn_arg_bytes(d, 1) bytes. Arguments
 * of dnn_run(): b, packed. */
int dnn_matmul_pack(const struct dnn_matmul *s, struct dnn **out, struct err *err);

/* Convolution. x [n, c, in..] and y [n, o, out..] have the layout `layout` and the type `images`; w
 * [o, c / group, kernel..], bias [o] and their gradients are plain and float32. Arguments of
 * dnn_run(): fwd: x, w, y, bias; bwd_x: dy, w, dx; bwd_w: x, dy, dw, dbias. */
struct dnn_conv {
    const struct op_window *window;
    enum tensor_layout layout;
    enum tensor_dtype images;
    int64_t n, c, o, group;
    bool bias;
};
int dnn_conv_fwd(const struct dnn_conv *s, struct dnn **out, struct err *err);
int dnn_conv_bwd_x(const struct dnn_conv *s, struct dnn **out, struct err *err);
int dnn_conv_bwd_w(const struct dnn_conv *s, struct dnn **out, struct err *err);

/* Max pool. x [n, c, in..] and y [n, c, out..] have the layout `layout`. Padding is never the
 * maximum. The workspace (dnn_arg_bytes(d, 2) of the forward kernel) records the position of each
 * maximum. Arguments of dnn_run(): fwd: x, y, workspace if training; bwd: dy, dx, workspace. */
struct dnn_pool {
    const struct op_window *window;
    enum tensor_layout layout;
    enum tensor_dtype images;
    int64_t n, c;
    bool training;
};
int dnn_max_pool_fwd(const struct dnn_pool *s, struct dnn **out, struct err *err);
int dnn_max_pool_bwd(const struct dnn_pool *s, struct dnn **out, struct err *err);

/* Converts between two layouts of one shape (rank >= 3) and one type. Arguments of dnn_run(): from,
 * to. */
int dnn_reorder(const struct tensor *from, const struct tensor *to, struct dnn **out,
                struct err *err);

size_t dnn_scratch_bytes(const struct dnn *d);         /* 64-byte aligned; 0 for NULL */
size_t dnn_arg_bytes(const struct dnn *d, uint32_t i); /* size of argument i */

/* args: addresses in the order given above. If an operand of the kernel has no elements, stores
 * zeros to the outputs (or adds nothing). Errors: ERR_DEVICE. */
int dnn_run(struct dnn *d, void *const args[DNN_ARGS], void *scratch, struct err *err);
void dnn_free(struct dnn *d); /* NULL is allowed */

#endif
