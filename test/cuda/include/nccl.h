/* nccl.h - the part of NCCL 2.28 that trainerd uses, between emulated GPUs of one host.
 *
 * Names, signatures and constants are NCCL's. Processes are connected by TCP, over the interface
 * named by NCCL_SOCKET_IFNAME or the loopback, through a thread (the hub) of the process that
 * created the unique id. Sums are in the order of the ranks. As in the real library:
 *   - a non-blocking communicator is first ncclInProgress, and is so again after its first
 *     collective and after its first group of sends and receives; a call that uses it meanwhile returns ncclInvalidArgument;
 *   - after a peer process ended, ncclCommGetAsyncError() returns ncclRemoteError; work on a stream
 *     that waits for the peer continues to wait until the communicator is aborted, and then leaves
 *     undefined results;
 *   - a rank that never joins is not reported;
 *   - ranks of different versions, or with different numbers of ranks, get ncclInvalidUsage;
 *   - ranks on one GPU of one host (identified by NCCL_HOSTID) get ncclInvalidUsage, and the other
 *     ranks of the communicator wait;
 *   - neither the end nor the abort of a communicator returns before the graphs with captured sums
 *     of it are destroyed and their launches are done;
 *   - RAS answers at NCCL_RAS_ADDR (ip:port; without it, RAS is off), from the first communicator
 *     on.
 * Some uses are undefined in NCCL and end the process here: ranks pass different counts to a sum;
 * a rank receives another number of floats than the peer sends; some ranks capture an operation and
 * others do not, or capture it at another position; a communicator is destroyed while an operation of
 * it is on a stream.
 * Some uses are not emulated and end the process too: sends and receives outside a group, by some
 * ranks alone, of several communicators or streams in one group, twice with a peer, among more than
 * 64 ranks; a group of other operations.
 *
 * Environment
 *   EMULATED_NCCL_VERSION=N    default 22809
 *   EMULATED_NCCL_FAULT=WHAT   init: the ranks of this process never join; abort: ncclCommAbort()
 *                              never returns; sum:N: the N-th operation of each of its communicators does
 *                              not end before the abort; error:N: likewise, and ncclSystemError is
 *                              reported
 *   EMULATED_NCCL_TRAFFIC=FILE each communicator appends a line to FILE when it ends: its rank, and the
 *                              bytes that it has sent to other ranks in groups of sends and receives
 *   NCCL_HOSTID=TEXT, NCCL_RAS_ADDR=IP:PORT    as in the real library */
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
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

#ifdef __cplusplus
}
#endif

#endif
