/* cudnn_priv.h - descriptors (cudnn.c), what they come to (cudnn_settle.c), what is then computed
 * (cudnn_conv.c). */
#ifndef CUDA_CUDNN_PRIV_H
#define CUDA_CUDNN_PRIV_H

#include <stdbool.h>

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

/* ---- descriptors ---- */

#define CONV(kind_) CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind_##_DESCRIPTOR
#define TENSOR CUDNN_BACKEND_TENSOR_DESCRIPTOR
#define WINDOW CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
#define HEUR CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR
#define PLAN CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
#define GRAPH CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR
#define PACK CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR

enum { COUNT_MAX = 8, ATTRIBUTES_MAX = 8 };

struct attribute {
    int name, type;
    int64_t count;
    union {
        int64_t ints[COUNT_MAX];
        void *pointers[COUNT_MAX];
        struct descriptor *descriptors[COUNT_MAX]; /* a reference to each */
        int enums[COUNT_MAX];
        float floats[COUNT_MAX];
    } is;
};

struct descriptor {
    int type;
    bool is_finalized;
    unsigned int references;
    struct attribute attributes[ATTRIBUTES_MAX];
    int n;
    struct emulated_tensor tensor; /* of a tensor */
    struct emulated_conv conv;     /* of what is made of an operation, down to a plan */
    int engine;                    /* of a configuration, an engine, a plan */
};

/* The status; the text is what cudnnGetLastErrorString() tells. */
cudnnStatus_t dnn_fail(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const struct attribute *dnn_find(const struct descriptor *d, int name); /* NULL: not set */
const struct attribute *dnn_required(const struct descriptor *d, int n); /* the nth that it must have */

cudnnStatus_t dnn_settle(struct descriptor *d); /* all attributes are set */
int dnn_engines(const struct descriptor *heur, int *first); /* that are proposed: how many from there */
const int *dnn_notes(int engine, int *n);

#endif
