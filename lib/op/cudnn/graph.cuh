/* graph.cuh - cuDNN's graph API, in which every object is a descriptor that is created, given
 * attributes and finalized:
 *
 *   tensors -> operations -> a graph
 *   graph -> heuristics -> engine configurations, best first -> plan (has the size of its scratch)
 *   plan, addresses of tensors and scratch (a variant pack) -> execute
 *
 * The callers (op/conv/cudnn.cu, op/attention/sdpa.cu) describe operations in a sequence of calls.
 * The first failure is recorded, and later calls do nothing; cudnn_graph_select() returns the
 * failure. The graph owns its descriptors. For some graphs cudnn_graph_select() compiles kernels,
 * which can take half a second; running only launches.
 * Threads: any; one thread builds a graph, and one thread at a time uses it, with its GPU
 * current. */
#ifndef OP_CUDNN_GRAPH_CUH
#define OP_CUDNN_GRAPH_CUH

#include <cudnn.h>

#include "device/device_cuda.cuh"

extern "C" {
#include "tensor/tensor.h"
}

enum { CUDNN_AXES = 5, CUDNN_OPERANDS = 16 /* tensors of a graph that have an address */ };

struct cudnn_graph;

struct cudnn_tensor {
    cudnnDataType_t type;
    int64_t uid;   /* unique id, not 0; identifies the tensor in cudnn_graph_run() */
    int64_t align; /* alignment of its address in bytes; 0: 16 */
    int axes;
    int64_t size[CUDNN_AXES], step[CUDNN_AXES]; /* in elements */
    bool is_virtual;                            /* an intermediate tensor without an address */
    bool is_number;                             /* a number in host memory, read when the graph
                                                   runs */
};

/* Creates a graph for the current GPU. what: name for error messages; copied. */
int cudnn_graph_open(const char *what, struct cudnn_graph **out, struct err *err);
void cudnn_graph_close(struct cudnn_graph *g); /* NULL is allowed */
/* Sharing: equal layers need the kernels of the library only once. cudnn_graph_find() returns a
 * settled graph that was shared under the same `what`, which therefore must describe everything
 * that determines the graph; *out NULL: there is none for this GPU. Each caller that opened or
 * found a graph closes it. */
int cudnn_graph_find(const char *what, struct cudnn_graph **out, struct err *err);
void cudnn_graph_share(struct cudnn_graph *g);

/* ---- building ---- */

cudnnDataType_t cudnn_type(enum tensor_dtype t); /* cuDNN's type for a float type */
cudnnBackendDescriptor_t cudnn_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type);
void cudnn_set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t n, const void *values);
void cudnn_set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
                          cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value);
void cudnn_finish(struct cudnn_graph *g, cudnnBackendDescriptor_t d, const char *doing);
cudnnBackendDescriptor_t cudnn_tensor(struct cudnn_graph *g, const struct cudnn_tensor *t);
/* Finalizes an operation and adds it to the graph. */
void cudnn_operation(struct cudnn_graph *g, cudnnBackendDescriptor_t d);

/* Selects the engine: the first one proposed by the heuristics that is deterministic, accumulates
 * in float32, sums the products themselves (no FFT or Winograd), and needs at most scratch_max
 * bytes; without tensor_cores also none that would round float32.
 * Errors: ERR_UNSUPPORTED (no engine), ERR_DEVICE, ERR_NOMEM; the message has `what` and cuDNN's
 * version. */
int cudnn_graph_select(struct cudnn_graph *g, bool tensor_cores, int64_t scratch_max,
                       struct err *err);

/* ---- running ---- */

size_t cudnn_graph_scratch_bytes(const struct cudnn_graph *g); /* NULL: 0 */
/* Enqueues the graph. at[i]: address of the tensor uids[i]; the address of a number is in host
 * memory. scratch: a multiple of 16. Errors: ERR_DEVICE. */
int cudnn_graph_run(struct cudnn_graph *g, int n, const int64_t *uids, void *const *at,
                    void *scratch, cudaStream_t s, struct err *err);

/* For tests without a GPU: later graphs are settled for a GPU with these properties (a JSON object
 * as written by cuDNN 9.8 and later), and cannot run. Call it before any other function. */
int cudnn_mock_device(const char *properties, struct err *err);

#endif
