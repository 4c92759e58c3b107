/* copy.cuh - converts the operands of a convolution to the form that cuDNN supports, and results
 * back: other strides, another element type, zero padding. */
#ifndef OP_CONV_COPY_CUH
#define OP_CONV_COPY_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

enum { CONV_AXES = 5 };

/* Type, sizes and strides of a tensor [n, c, space..] of five axes. */
struct conv_form {
    enum tensor_dtype dtype;
    int64_t size[CONV_AXES], step[CONV_AXES]; /* elements */
};

/* Returns the contiguous form in this layout. */
struct conv_form conv_form_of(enum tensor_dtype dtype, enum tensor_layout layout,
                              const int64_t *size);
/* true if the bytes are identical */
bool conv_form_equal(const struct conv_form *a, const struct conv_form *b);
size_t conv_form_bytes(const struct conv_form *f);

/* to[i] = from[i + shift], or += ; elements outside of `from` are 0. The types are equal, or one is
 * float32. Errors: ERR_DEVICE. */
int conv_copy(const struct conv_form *from, const void *src, const int64_t shift[CONV_AXES],
              const struct conv_form *to, void *dst, bool add, cudaStream_t s, struct err *err);

/* y [rows, o] += bias [o]; y has the type `dtype`, bias is float32. Errors: ERR_DEVICE. */
int conv_add_bias(void *y, enum tensor_dtype dtype, size_t rows, size_t o, const float *bias,
                  cudaStream_t s, struct err *err);

#endif
