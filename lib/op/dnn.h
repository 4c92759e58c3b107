/* dnn.h - the kernel library (oneDNN 2.6, C API). dnn.c and dnn_make.c alone know its types;
 * another version of the library is another pair of them.
 *
 * A `struct dnn` is one kernel made for fixed shapes. Making it is slow (code is generated) and
 * belongs into `plan`; dnn_run() only computes. Where the library wants weights in a layout of its
 * own, they are converted inside the call, in scratch.
 * Types: TENSOR_F32 (or 0) or TENSOR_BF16 for each operand as the caller has it. A kernel with a
 * bfloat16 operand multiplies bfloat16 and sums in float32; a float32 operand beside it, which only
 * weights may be, is converted inside the call. Needs dnn_has_bfloat16().
 * Bits: kernels are made for one thread, so the order of every sum follows from the shapes and the
 * instruction set.
 * Threads: one at a time for each struct dnn; scratch is the caller's. */
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

const char *dnn_id(void);   /* "onednn 2.6.3 avx512_core_amx"; never NULL */
bool dnn_has_bfloat16(void); /* instructions, not emulation */
void dnn_thread_init(void); /* the calling thread makes and runs kernels without helpers */

/* Each maker hands over *out, ended with dnn_free(); on failure *out is untouched.
 * Errors: ERR_UNSUPPORTED (the library has no kernel for this), ERR_NOMEM, ERR_DEVICE. */

/* y [batch, m, n] = a [batch, m, k] b [batch, k, n] (+ bias [n]). With trans_a, a is [batch, k, m]
 * in memory; with trans_b, b is [batch, n, k]. add: onto what is in y. packed: b comes as
 * dnn_matmul_pack() left it, which pays where one b serves many products; batch 1, float32 only.
 * The bias is float32; one of a and b at most is float32 beside bfloat16.
 * run: a, b, y, bias. */
struct dnn_matmul {
    int64_t batch, m, n, k;
    bool trans_a, trans_b, bias, add, packed;
    enum tensor_dtype a, b, y;
};
int dnn_matmul(const struct dnn_matmul *s, struct dnn **out, struct err *err);
/* b of a packed product into the library's own layout, dnn_arg_bytes(d, 1) bytes. run: b, packed */
int dnn_matmul_pack(const struct dnn_matmul *s, struct dnn **out, struct err *err);

/* x [n, c, in..], y [n, o, out..] in `layout`, both of type `images`; w [o, c / group, kernel..] and
 * bias [o] plain and float32, like their gradients.
 *   fwd: x, w, y, bias   bwd_x: dy, w, dx   bwd_w: x, dy, dw, dbias */
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

/* x [n, c, in..], y [n, c, out..] in `layout`. Padding never wins. The workspace (its size is
 * dnn_arg_bytes(d, 2) of the forward) remembers who won.
 *   fwd: x, y, workspace if training   bwd: dy, dx, workspace */
struct dnn_pool {
    const struct op_window *window;
    enum tensor_layout layout;
    enum tensor_dtype images;
    int64_t n, c;
    bool training;
};
int dnn_max_pool_fwd(const struct dnn_pool *s, struct dnn **out, struct err *err);
int dnn_max_pool_bwd(const struct dnn_pool *s, struct dnn **out, struct err *err);

/* from and to: one shape of rank >= 3 and one type, each in its own layout. run: from, to. */
int dnn_reorder(const struct tensor *from, const struct tensor *to, struct dnn **out,
                struct err *err);

size_t dnn_scratch_bytes(const struct dnn *d);        /* 64-byte aligned; 0 for NULL */
size_t dnn_arg_bytes(const struct dnn *d, uint32_t i); /* of argument i */

/* args: addresses in the order given above. A kernel with an operand without elements stores zeros
 * to its outputs (or adds them). Errors: ERR_DEVICE. */
int dnn_run(struct dnn *d, void *const args[DNN_ARGS], void *scratch, struct err *err);
void dnn_free(struct dnn *d); /* NULL is fine */

#endif
