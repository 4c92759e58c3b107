/* cudnn_priv.h - shared by the files of the emulated cuDNN: cudnn.c has the descriptors,
 * cudnn_select.c evaluates them, cudnn_conv.c and cudnn_sdpa.c compute. */
#ifndef CUDA_CUDNN_PRIV_H
#define CUDA_CUDNN_PRIV_H

#include <stdbool.h>

#include <cudnn.h>

enum { EMULATED_AXES = 5 };

struct emulated_tensor {
    cudnnDataType_t type;
    int64_t uid, align, axes;
    int64_t size[EMULATED_AXES], step[EMULATED_AXES]; /* [n, c, space..]; strides in elements */
    bool is_virtual, is_number;
    double number;
    void *at;
};

enum { EMULATED_BWD_DATA, EMULATED_BWD_FILTER, EMULATED_FORWARD }; /* what is computed: x, w or y */

/* Faults of an engine. */
enum { EMULATED_ANYHOW = 1, EMULATED_TRUNCATED = 2, EMULATED_INEXACT = 4 };

struct emulated_conv {
    int computed, flaws;
    struct emulated_tensor x, w, y;
    int64_t space, pad[3], stride[3], dilation[3];
    double alpha, beta;
    unsigned char *workspace;
    size_t workspace_bytes;
};

int emulated_conv_run(void *conv);                /* passed to emulated_enqueue() */
size_t emulated_type_bytes(cudnnDataType_t type); /* 0: not an emulated type */
/* element i of the tensor at t->at */
double emulated_load(const struct emulated_tensor *t, int64_t i);
void emulated_store(const struct emulated_tensor *t, int64_t i, double v);
double emulated_round(cudnnDataType_t type, double v); /* rounds v as if it were stored */

/* ---- graphs of attention ---- */

enum { FUSED_TENSORS = 64, FUSED_STEPS = 32 };

struct emulated_step { /* what: a letter, see cudnn_sdpa.c */
    char what;
    int axis, x, b, t, y; /* tensor indices; -1: none */
};

struct emulated_fused {
    int n_tensors, n_steps; /* n_steps 0: not a supported graph */
    struct emulated_tensor tensors[FUSED_TENSORS];
    struct emulated_step steps[FUSED_STEPS];
    bool anyhow;
    unsigned char *workspace;
    size_t workspace_bytes;
};

struct descriptor;
cudnnStatus_t dnn_fuse(const struct descriptor *graph, struct emulated_fused *out);
int emulated_fused_run(void *fused); /* passed to emulated_enqueue() */

/* ---- descriptors ---- */

#define CONV(kind_) CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind_##_DESCRIPTOR
#define TENSOR CUDNN_BACKEND_TENSOR_DESCRIPTOR
#define WINDOW CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
#define HEUR CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR
#define PLAN CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
#define GRAPH CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR
#define PACK CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
#define EACH CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR
#define PRODUCT CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR
#define REDUCE CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
#define VIEW CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR

enum { COUNT_MAX = 32, ATTRIBUTES_MAX = 8 };

struct attribute {
    int name, type;
    int64_t count;
    union {
        int64_t ints[COUNT_MAX];
        void *pointers[COUNT_MAX];
        struct descriptor *descriptors[COUNT_MAX]; /* owns a reference to each */
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
    struct emulated_tensor tensor; /* for a tensor */
    struct emulated_conv conv;     /* for an operation and the objects derived from it, up to a
                                      plan */
    struct descriptor *graph;      /* a reference; for objects derived from a graph of attention, up
                                      to a plan */
    struct emulated_fused *fused;  /* for such a graph; owned */
    int engine;                    /* for a configuration, an engine, a plan */
};

/* Returns the status, and sets the text of cudnnGetLastErrorString(). */
cudnnStatus_t dnn_fail(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const struct attribute *dnn_find(const struct descriptor *d, int name); /* NULL: not set */
/* the nth required attribute */
const struct attribute *dnn_required(const struct descriptor *d, int n);

cudnnStatus_t dnn_settle(struct descriptor *d); /* called when all attributes are set */
/* returns the number of proposed engines; they are consecutive */
int dnn_engines(const struct descriptor *heur, int *first);
const int *dnn_notes(int engine, int *n);

#endif
