/* nccl.h - the part of NCCL 2.28 that trainerd uses, between emulated GPUs of one host.
 *
 * Names, signatures and numbers are NCCL's. Processes are really connected, by TCP over the interface that
 * NCCL_SOCKET_IFNAME names or the loopback, by way of
 * a thread of whoever made the unique id; sums are in the order of the ranks. As with the true one:
 * - a communicator that is not blocking is first ncclInProgress, and is so again after its first
 *   collective; whoever uses it meanwhile gets ncclInvalidArgument;
 * - a peer whose process ended is ncclRemoteError of ncclCommGetAsyncError(); what waits for it on a
 *   stream waits on until the communicator is aborted, and then leaves garbage;
 * - a rank that never comes is never reported;
 * - ranks of different versions, or that disagree on how many they are, get ncclInvalidUsage;
 * - ranks on one GPU of one host (NCCL_HOSTID says which it is) get ncclInvalidUsage, the others of their
 *   communicator wait;
 * - neither the end of a communicator nor its abort comes before graphs with captured sums of it are
 *   destroyed, and what was launched of them is over;
 * - RAS answers at NCCL_RAS_ADDR (ip:port; none without), from the first communicator on.
 * Different counts of the ranks in a sum, a sum that some ranks captured and others did not, or captured
 * at another time, and a communicator destroyed while a sum of it is on a stream, are undefined with NCCL:
 * here they end the process.
 *
 * Environment
 *   EMULATED_NCCL_VERSION=N    default 22809
 *   EMULATED_NCCL_FAULT=WHAT   init: this process's ranks never check in; abort: ncclCommAbort() never
 *                              returns; sum:N: the N-th sum of each of its communicators does not end before
 *                              the abort; error:N: likewise, and ncclSystemError is reported
 *   NCCL_HOSTID=TEXT, NCCL_RAS_ADDR=IP:PORT    as the true one */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;
typedef enum { ncclFloat32 = 7 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;

typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking; /* must be 0 */
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                    \
    {                                                                                              \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT                 \
    }

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

#ifdef __cplusplus
}
#endif

#endif
