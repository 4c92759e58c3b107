/* graph.cuh - cuDNN's graph API, in which everything is a descriptor that is made, given attributes and
 * finalized:
 *
 *   tensors -> operations -> a graph
 *   graph -> heuristics -> engine configurations, best first -> plan (which knows its scratch)
 *   plan, addresses of tensors and scratch (a variant pack) -> execute
 *
 * Who describes operations (op/conv/cudnn.cu, op/attention/sdpa.cu) makes descriptors in a row of calls, of
 * which the first that goes wrong is kept and those behind it do nothing; cudnn_graph_settle() tells.
 * Descriptors belong to their graph. The library compiles kernels of its own for some graphs when they are
 * settled, which can take half a second; running one only launches.
 * Threads: any; a graph is made by one thread, and used with its GPU entered. */
#ifndef OP_CUDNN_GRAPH_CUH
#define OP_CUDNN_GRAPH_CUH

#include <cudnn.h>

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

enum { CUDNN_AXES = 5, CUDNN_OPERANDS = 16 /* tensors with an address, of a graph */ };

struct cudnn_graph;

struct cudnn_tensor {
    cudnnDataType_t type;
    int64_t uid;   /* names it in cudnn_graph_run(); not 0, and no other's */
    int64_t align; /* bytes that its address is a multiple of; 0: 16 */
    int axes;
    int64_t size[CUDNN_AXES], step[CUDNN_AXES]; /* in elements */
    bool is_virtual;                            /* between operations, without an address */
    bool is_number;                             /* read by the host, when it is run */
};

/* Of the GPU that is entered. what: for messages; copied. */
int cudnn_graph_open(const char *what, struct cudnn_graph **out, struct err *err);
void cudnn_graph_close(struct cudnn_graph *g); /* NULL is fine */
/* Equal layers need the library's kernels once. Settled graphs that were shared are found by their `what`,
 * which then has to tell all that decides; they are closed by each who opened or found them. *out NULL: there
 * is none for this GPU. */
int cudnn_graph_find(const char *what, struct cudnn_graph **out, struct err *err);
void cudnn_graph_share(struct cudnn_graph *g);

/* ---- its making ---- */

cudnnDataType_t cudnn_type(enum tensor_dtype t); /* of floats */
cudnnBackendDescriptor_t cudnn_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type);
void cudnn_set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t n, const void *values);
void cudnn_set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                          cudnnBackendDescriptor_t value);
void cudnn_finish(struct cudnn_graph *g, cudnnBackendDescriptor_t d, const char *doing);
cudnnBackendDescriptor_t cudnn_tensor(struct cudnn_graph *g, const struct cudnn_tensor *t);
/* Finishes an operation, which is one of the graph's from here on. */
void cudnn_operation(struct cudnn_graph *g, cudnnBackendDescriptor_t d);

/* Chooses an engine: the first of those that the heuristics propose which gives the same bits every time,
 * adds up in float32, computes sums of the products themselves, and takes no more scratch than that; without
 * tensor_cores also none that would round float32.
 * Errors: ERR_UNSUPPORTED (no engine for it), ERR_DEVICE, ERR_NOMEM; the text has `what` and cuDNN's
 * version. */
int cudnn_graph_settle(struct cudnn_graph *g, bool tensor_cores, int64_t scratch_max, struct err *err);

/* ---- its use ---- */

size_t cudnn_graph_scratch_bytes(const struct cudnn_graph *g); /* NULL: 0 */
/* at[i]: of the tensor uids[i]; a number's is in the host's memory. scratch: a multiple of 16. */
int cudnn_graph_run(struct cudnn_graph *g, int n, const int64_t *uids, void *const *at, void *scratch,
                    cudaStream_t s, struct err *err);

/* For tests where no GPU is: from here on graphs are settled for one with these properties (a JSON object,
 * as cuDNN 9.8 and later write it), and cannot run. To be called before all else. */
int cudnn_pretend(const char *properties, struct err *err);

#endif
