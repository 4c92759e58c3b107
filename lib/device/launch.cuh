/* launch.cuh - macros that launch a kernel and declare dynamic shared memory.
 *
 * nvcc compiles them to CUDA's syntax. g++ with CUDA_EMULATED compiles them to calls of the
 * emulator in test/cuda, whose cuda_runtime.h lists what a kernel may use. Put a kernel name that
 * contains commas in parentheses: CUDA_LAUNCH((add<float, 4>), grid, block, 0, stream, n, x, y).
 * cudaGetLastError() reports a failed launch. */
#ifndef DEVICE_LAUNCH_CUH
#define DEVICE_LAUNCH_CUH

#include <cuda_runtime.h>

#ifdef CUDA_EMULATED
#define CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    emulated_launch(#kernel, kernel, grid, block, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)
#define CUDA_SHARED(type, name) type *const name = static_cast<type *>(emulated_now.shared)
#else
#define CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
/* All names and types in a file refer to the same array. */
#define CUDA_SHARED(type, name)                                                                    \
    extern __shared__ __align__(16) unsigned char cuda_shared_bytes[];                             \
    type *const name = reinterpret_cast<type *>(cuda_shared_bytes)
#endif

#endif
