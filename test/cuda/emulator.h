/* emulator.h - what the emulated libraries (cuBLASLt, cuDNN, NCCL, NVML) and the tests need of the
 * emulated CUDA runtime beyond <cuda_runtime.h>, which has the contract.
 *
 * Threads: any. */
#ifndef CUDA_EMULATOR_H
#define CUDA_EMULATOR_H

#include <cuda_runtime.h>

/* What `run` below answers. */
enum { EMULATED_DONE, EMULATED_NOT_YET };

/* Puts an operation on a stream as a library does: it runs when the stream is forced, or becomes a
 * node of the graph that the stream captures (and then runs at every launch, with the same args).
 * `args` are copied now (at most 64 KiB, aligned to 16 bytes); `run` is called in any thread, without
 * a lock, with the memory of the stream's device open (of no other: see emulated_open). EMULATED_NOT_YET: it waits for another
 * stream or thread (a collective for its peers) and will be called again with the same copy;
 * meanwhile other streams go on. It may not call the runtime. Returns at once, with the error of the runtime. */
cudaError_t emulated_enqueue(cudaStream_t stream, const char *name, int (*run)(void *args),
                             const void *args, size_t bytes);

/* Lets this process touch the memory of another device than the one that runs, as NCCL does between
 * peers. Calls are counted. */
void emulated_open(int device);
void emulated_close(int device);

/* Device that owns the allocation with all of [p, p + bytes), or -1. bytes 0 counts as 1. */
int emulated_owner(const void *p, size_t bytes);

/* Ends the process after telling why and what was running: for what CUDA leaves undefined. */
void emulated_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* cudaErrorInsufficientDriver, cudaErrorNoDevice, a sticky error of the current device, or
 * cudaSuccess: what every call of a library begins with. */
cudaError_t emulated_enter(void);

size_t emulated_live_bytes(void);  /* device memory that was not freed, of all devices */
uint64_t emulated_launches(void);  /* kernels launched so far, captured ones included */
uint64_t emulated_products(uint32_t epilogue); /* of cuBLASLt with this one, put on streams so far */

#endif
