/* cudnn_priv.h - what cudnn.c settles and cudnn_conv.c computes. */
#ifndef CUDA_CUDNN_PRIV_H
#define CUDA_CUDNN_PRIV_H

#include <cudnn.h>

enum { EMULATED_AXES = 5 };

struct emulated_tensor {
    cudnnDataType_t type;
    int64_t uid, align, axes;
    int64_t size[EMULATED_AXES], step[EMULATED_AXES]; /* [n, c, space..]; step in elements */
    void *at;
};

enum { EMULATED_BWD_DATA, EMULATED_BWD_FILTER, EMULATED_FORWARD };

/* What an engine does wrong. */
enum { EMULATED_ANYHOW = 1, EMULATED_TRUNCATED = 2, EMULATED_INEXACT = 4 };

struct emulated_conv {
    int computed, flaws;
    struct emulated_tensor x, w, y;
    int64_t space, pad[3], stride[3], dilation[3];
    double alpha, beta;
    unsigned char *workspace;
    size_t workspace_bytes;
};

int emulated_conv_run(void *conv); /* for emulated_enqueue() */
size_t emulated_type_bytes(cudnnDataType_t type); /* 0: not one of those that convolutions take */

#endif
