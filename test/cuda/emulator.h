/* emulator.h - functions of the emulated CUDA runtime, beyond <cuda_runtime.h> (which has the
 * contract), for the emulated libraries (cuBLASLt, cuDNN, NCCL, NVML) and the tests.
 *
 * Threads: any. */
#ifndef CUDA_EMULATOR_H
#define CUDA_EMULATOR_H

#include <cuda_runtime.h>

/* Results of `run` below. */
enum { EMULATED_DONE, EMULATED_NOT_YET };

/* Enqueues an operation on a stream, as a library does: it runs when the stream is forced, or
 * becomes a node of the graph that the stream captures (and then runs at every launch, with the
 * same args). `args` are copied by this call (at most 64 KiB, aligned to 16 bytes). `run` is called
 * in any thread, without a lock, with the memory of the stream's device open (and of no other: see
 * emulated_open). EMULATED_NOT_YET: the operation waits for another stream or thread (a collective
 * for its peers); `run` is called again later with the same copy, and other streams continue. `run`
 * may not call the runtime. The call returns at once, with the error of the runtime. */
cudaError_t emulated_enqueue(cudaStream_t stream, const char *name, int (*run)(void *args),
                             const void *args, size_t bytes);

/* Opens the memory of another device than the running one to this process, as NCCL does between
 * peers. Calls are counted. */
void emulated_open(int device);
void emulated_close(int device);

/* Returns the device that owns the allocation containing all of [p, p + bytes), or -1. bytes 0
 * counts as 1. */
int emulated_owner(const void *p, size_t bytes);

/* Ends the process with a message and the running operation: for behaviour that CUDA leaves
 * undefined. */
void emulated_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Every call of a library calls it first. Returns cudaErrorInsufficientDriver, cudaErrorNoDevice, a
 * sticky error of the current device, or cudaSuccess. */
cudaError_t emulated_enter(void);

size_t emulated_live_bytes(void); /* device memory that is not freed, all devices */
uint64_t emulated_launches(void); /* kernels launched so far, including captured ones */
uint64_t emulated_products(uint32_t epilogue); /* cuBLASLt products with this epilogue enqueued so
                                                  far */

#endif
