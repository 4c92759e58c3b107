/* launch.cuh - how a .cu file launches a kernel and declares dynamic shared memory.
 *
 * nvcc makes of it what CUDA calls it; g++ with CUDA_EMULATED a call of the emulator in test/cuda,
 * whose cuda_runtime.h says what a kernel may use. A kernel with commas in its name goes in
 * parentheses: CUDA_LAUNCH((add<float, 4>), grid, block, 0, stream, n, x, y). What went wrong is in
 * cudaGetLastError(), as ever. */
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
/* One array under all names and types of a file. */
#define CUDA_SHARED(type, name)                                                                    \
    extern __shared__ __align__(16) unsigned char cuda_shared_bytes[];                             \
    type *const name = reinterpret_cast<type *>(cuda_shared_bytes)
#endif

#endif
