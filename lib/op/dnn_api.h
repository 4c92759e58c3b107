/* dnn_api.h - the calls of oneDNN that differ between its versions 2 and 3, in one form.
 *
 * dnn_v2.h and dnn_v3.h each define:
 *   dnn_md                 a layout of the library; belongs to the caller of dnn_md_new(), or to the primitive
 *                          descriptor that a query returned it from
 *   dnn_md_new(), dnn_md_free()
 *   dnn_append_sum()       lets a primitive accumulate into its output
 *   dnn_pd_new()           creates the primitive descriptor of an operation; implementation: 0 for the first choice
 *                          of the library, 1 for the second; fwd: of the forward operation, for a gradient
 */
#ifndef OP_DNN_API_H
#define OP_DNN_API_H

#include <stdbool.h>
#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>

/* The layout of an array of `n` axes. */
struct dnn_layout {
    int n;
    dnnl_dims_t dim, stride; /* in elements */
    dnnl_data_type_t type;
    bool is_open; /* the library chooses the layout; `stride` is not read */
};

enum dnn_kind {
    DNN_REORDER, /* no operation: one layout to another */
    DNN_MATMUL,
    DNN_CONV,
    DNN_CONV_DX,
    DNN_CONV_DW,
    DNN_POOL, /* max pooling that records the position of each maximum */
    DNN_POOL_INFERENCE,
    DNN_POOL_DX,
};

/* A window in the library's terms. */
struct dnn_slide {
    dnnl_dims_t kernel, stride, pad_lo, pad_hi;
    dnnl_dims_t dilate; /* 0: dense */
};

/* The operands as the primitive reads and writes them; a gradient has the layout of its operand, apart from dw. */
struct dnn_op {
    enum dnn_kind kind;
    struct dnn_layout x, w, dw, bias, y;
    bool has_bias;
    struct dnn_slide slide;
};

#if DNNL_VERSION_MAJOR == 2
#include "op/dnn_v2.h"
#elif DNNL_VERSION_MAJOR == 3
#include "op/dnn_v3.h"
#else
#error "oneDNN 2 or 3 is needed"
#endif

#endif
