/* cuda_emulated.h - the functions of the emulator (block.c) that cuda_kernel.h uses. */
#ifndef CUDA_EMULATED_H
#define CUDA_EMULATED_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The emulated thread that runs in this host thread. */
struct emulated_now {
    struct uint3 thread, block, block_dim, grid_dim;
    unsigned int index; /* index of the thread in its block, x fastest */
    void *shared;       /* dynamic shared memory */
};
extern __thread struct emulated_now emulated_now;

/* Enqueues the launch on the stream. `invoke` runs the kernel for emulated_now; `args` are
 * copied. */
void emulated_launch_kernel(const char *name, const void *kernel, void (*invoke)(const void *args),
                            const void *args, size_t args_bytes, const unsigned int grid[3],
                            const unsigned int block[3], size_t shared, cudaStream_t stream);

/* Barrier of all threads of the block. */
void emulated_syncthreads(const char *file, int line);

/* Barrier of the lanes of `mask`. SHUFFLE: returns the value of lane `source`; VOTE: a bit for each
 * lane whose value is not 0. */
enum emulated_meeting { EMULATED_SHUFFLE, EMULATED_VOTE };
uint64_t emulated_meet(enum emulated_meeting what, unsigned int mask, int source, uint64_t value,
                       const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
