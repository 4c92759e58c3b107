/* copy.cuh - brings the operands of a convolution into the form that cuDNN takes, and results back: other
 * strides, another type of numbers, zeros around. */
#ifndef OP_CONV_COPY_CUH
#define OP_CONV_COPY_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

enum { CONV_AXES = 5 };

/* How a tensor [n, c, space..] of five axes lies in memory. */
struct conv_form {
    enum tensor_dtype dtype;
    int64_t size[CONV_AXES], step[CONV_AXES]; /* elements */
};

/* Packed, in this layout. */
struct conv_form conv_form_of(enum tensor_dtype dtype, enum tensor_layout layout, const int64_t *size);
bool conv_form_equal(const struct conv_form *a, const struct conv_form *b); /* the same bytes */
size_t conv_form_bytes(const struct conv_form *f);

/* to[i] = from[i + shift], or += ; 0 stands outside of `from`. Types: the same, or one is float32. */
int conv_copy(const struct conv_form *from, const void *src, const int64_t shift[CONV_AXES],
              const struct conv_form *to, void *dst, bool add, cudaStream_t s, struct err *err);

/* y [rows, o] += bias [o], of `dtype` and float32 */
int conv_add_bias(void *y, enum tensor_dtype dtype, size_t rows, size_t o, const float *bias, cudaStream_t s,
                  struct err *err);

#endif
