/* cuda_emulated.h - what cuda_kernel.h asks of the emulator (block.c). */
#ifndef CUDA_EMULATED_H
#define CUDA_EMULATED_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The thread of the grid that runs here. */
struct emulated_now {
    struct uint3 thread, block, block_dim, grid_dim;
    unsigned int index; /* of the thread in its block, x fastest */
    void *shared;       /* dynamic shared memory */
};
extern __thread struct emulated_now emulated_now;

/* Puts the launch on the stream. `invoke` runs the body for emulated_now; `args` are copied. */
void emulated_launch_kernel(const char *name, const void *kernel, void (*invoke)(const void *args),
                            const void *args, size_t args_bytes, const unsigned int grid[3],
                            const unsigned int block[3], size_t shared, cudaStream_t stream);

/* All threads of the block meet. */
void emulated_syncthreads(const char *file, int line);

/* The lanes of `mask` meet. SHUFFLE: the value of lane `source`; VOTE: a bit of each lane whose
 * value is not 0. */
enum emulated_meeting { EMULATED_SHUFFLE, EMULATED_VOTE };
uint64_t emulated_meet(enum emulated_meeting what, unsigned int mask, int source, uint64_t value,
                       const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
