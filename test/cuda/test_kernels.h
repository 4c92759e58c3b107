/* test_kernels.h - launches the kernels of test_kernels.cu from C programs. */
#ifndef CUDA_TEST_KERNELS_H
#define CUDA_TEST_KERNELS_H

#include <stdint.h>

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = a * x[i] + y[i] */
void launch_axpy(uint32_t n, float a, const float *x, float *y, cudaStream_t stream);
/* *out = sum of x, integers, by shuffles in a warp, shared memory in a block, an atomic in the grid */
void launch_sum(uint32_t n, const float *x, int *out, cudaStream_t stream);
/* y [columns, rows] = x [rows, columns] transposed, through a tile of shared memory */
void launch_transpose(uint32_t rows, uint32_t columns, const float *x, float *y,
                      cudaStream_t stream);
/* x[i] = i * factor for i < n */
void launch_fill(uint32_t n, float factor, float *x, cudaStream_t stream);
/* counts[i % 4] += 1 with each of the integer atomics; see the kernel */
void launch_atomics(uint32_t n, unsigned int *counts, unsigned long long *sum, int *bounds,
                    cudaStream_t stream);
/* y[i] = results of every kind of shuffle and vote for lane i; 8 values for each of n threads */
void launch_warp(uint32_t n, int *y, cudaStream_t stream);
/* order[k] = index of the k-th block to run, written by the first thread of each block */
void launch_order(uint32_t blocks, unsigned int *next, unsigned int *order, cudaStream_t stream);
/* reverses x through `bytes` of dynamic shared memory; with_attribute: calls cudaFuncSetAttribute()
 * first */
cudaError_t launch_reverse(uint32_t n, size_t bytes, int with_attribute, const float *x, float *y,
                           cudaStream_t stream);
/* converts to bfloat16 and half, and back */
void launch_round(uint32_t n, const float *x, float *bf16, float *half, cudaStream_t stream);
/* y = contents of unwritten shared arrays, static and dynamic */
void launch_unwritten(float *y, cudaStream_t stream);
/* y[index of each thread in a 3-dimensional grid and block] += that index */
void launch_position(dim3 grid, dim3 block, unsigned int *y, cudaStream_t stream);

/* Kernels with deliberate mistakes. */
enum launch_mistake {
    MISTAKE_RETURN_BEFORE_BARRIER,
    MISTAKE_TWO_BARRIERS,
    MISTAKE_SHUFFLE_OF_HALF,
    MISTAKE_NOT_IN_MASK,
    MISTAKE_BLOCK_TOO_LARGE,
    MISTAKE_GRID_TOO_LARGE,
    MISTAKE_SHARED_TOO_LARGE,
    MISTAKE_BEYOND_END,
    MISTAKE_INTO_SLACK,
};
void launch_mistake(enum launch_mistake which, float *x, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
