/* cuda_runtime.h - the part of the CUDA runtime that trainerd uses, computed on the CPU.
 *
 * The .cu files of lib/ are compiled by nvcc against NVIDIA's headers into trainerd-cuda.so, and by
 * g++ with -DCUDA_EMULATED against this header into emulated/trainerd-cuda.so, which behaves like
 * the plugin on a machine with GPUs. Names, signatures and constants are those of CUDA 13.0.
 * Functions that are missing here are not emulated, and calls of them do not compile.
 *
 * Rules for kernels
 *   - A kernel is launched by CUDA_LAUNCH; dynamic shared memory is declared by CUDA_SHARED
 *     (device/launch.cuh), static by __shared__. Arguments are copied at the launch.
 *   - Available are threadIdx, blockIdx, blockDim, gridDim, warpSize; __syncthreads, __syncwarp,
 *     __shfl_*sync, __ballot_sync, __any_sync, __all_sync; atomics of integers; __ldg; the vector types; bf16
 *     and half; math functions of C and of CUDA (all in cuda_kernel.h).
 *   - The threads of a block run one after another, each until it reaches a barrier, in ascending
 *     or descending order; blocks run one after another in an order shuffled by EMULATED_SEED. A
 *     result that depends on the order is a bug, and another seed reveals it.
 *   - Shared memory is NaN at the start of a block; device memory is NaN after cudaMalloc.
 *   - Behaviour that CUDA leaves undefined ends the process with the name of the kernel and the
 *     reason: a barrier that only some threads reach (also because the others have returned),
 *     barriers on different lines, a shuffle by a lane that is absent in its mask, more than 1024
 *     threads, 65535 in grid.y or z, or 48 KiB of shared memory without cudaFuncSetAttribute (227
 *     KiB with it). A shuffle that reads a lane which does not participate reads NaN.
 *   - Loads and stores beyond an allocation hit a guard page at its end (rounded up to 256 bytes);
 *     cudaFree detects a store into the rounding.
 *
 * Rules for host code
 *   - Only kernels and copies can access device memory: it is not mapped otherwise.
 *   - Work on a stream waits until it is forced: by a synchronize of its stream, event or device,
 *     by cudaFree, by a query (which executes one item and returns cudaErrorNotReady), or by a
 *     forced stream that waits for it. Therefore, work that streams and events do not order runs in
 *     the wrong order, and a host buffer that is read or reused too early has wrong contents
 *     (pageable memory, too: stricter than CUDA, which copies some of it at once).
 *   - The default stream is not emulated: work on it ends the process. cudaMemcpy first forces all
 *     streams that are not cudaStreamNonBlocking.
 *   - Any thread may use streams and events. A kernel or copy runs in the thread that forces it. A
 *     host function may not call CUDA.
 *   - A kernel is launched on a stream of the current device and accesses only memory of that
 *     device. cuda*Peer functions are not emulated.
 *
 * Environment
 *   EMULATED_GPUS=N        devices (default 2; 0: cudaErrorNoDevice; at most 16)
 *   EMULATED_MEMORY=BYTES  memory per device (default 2 GiB)
 *   EMULATED_SEED=N        order of blocks, threads and graph nodes. With 1, the default, a stream
 *                          executes only what is forced; with other seeds, streams also run ahead
 *                          at random, which reveals a buffer that is written while another stream
 *                          may still read it. Try several
 *   EMULATED_DRIVER=N      version of the driver (default 13000); below 13000 every call returns
 *                          cudaErrorInsufficientDriver
 *   EMULATED_CAPABILITY=N  10 * major + minor of the compute capability (default 90)
 *   EMULATED_NAMES=A,B,..  names of the devices; the last one also of all devices after it (default
 *                          "emulated GPU")
 *   EMULATED_FAULT=WHAT@N  launch@N: the Nth launch of the process has an illegal address, and
 *                          every later call on its device fails. hang@N: it never ends. malloc@N:
 *                          the Nth cudaMalloc fails.
 *   A process that exits without freeing device memory reports it on standard error. */
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_vectors.h>

#ifdef __cplusplus
#define EMULATED_DEFAULT(value) = value
extern "C" {
#else
#define EMULATED_DEFAULT(value)
#endif

#define CUDART_VERSION 13000

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalState = 401,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureMerge = 902,
    cudaErrorStreamCaptureUnmatched = 903,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
    cudaErrorStreamCaptureWrongThread = 908,
    cudaErrorUnknown = 999,
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef void (*cudaHostFn_t)(void *data);

/* ---- devices, versions, errors ---- */

typedef struct CUuuid_st {
    char bytes[16];
} cudaUUID_t;
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    size_t sharedMemPerMultiprocessor;
    int regsPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int maxThreadsPerMultiProcessor;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int major, minor; /* compute capability */
    int multiProcessorCount;
    int l2CacheSize;
    int memoryBusWidth;
    int asyncEngineCount;
    int integrated;
    int ECCEnabled;
    int concurrentKernels;
    int pciDomainID, pciBusID, pciDeviceID;
};
#ifndef __cplusplus
typedef struct cudaDeviceProp cudaDeviceProp;
#endif

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer); /* always 0 */
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetLastError(void); /* of this thread; clears it, except a sticky error */
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

/* ---- memory ---- */

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged,
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
};
#ifndef __cplusplus
typedef struct cudaPointerAttributes cudaPointerAttributes;
#endif

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory); /* waits for the device */
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream EMULATED_DEFAULT(0));
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes,
                            cudaStream_t stream EMULATED_DEFAULT(0));

/* ---- streams and events ---- */

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaGraphInstantiateFlagUseNodePriority 0x08

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream); /* its work is still executed */
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags EMULATED_DEFAULT(0));
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream EMULATED_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end); /* host clock */

/* ---- graphs ---- */

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed,
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated,
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
/* nodes NULL: only sets *n */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags EMULATED_DEFAULT(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* ---- kernels ---- */

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);

#ifdef __cplusplus
}
#include <cuda_kernel.h>
#endif

#endif
