/* test_kernels.cu - kernels for the tests of the emulator. nvcc compiles them, too. */
#include "cuda/test_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "device/launch.cuh"

enum { BLOCK = 256, TILE = 16, WARP = 32 };

static unsigned int blocks_for(uint32_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static __global__ void axpy(uint32_t n, float a, const float *x, float *y)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        y[i] = a * __ldg(&x[i]) + y[i];
}

void launch_axpy(uint32_t n, float a, const float *x, float *y, cudaStream_t stream)
{
    CUDA_LAUNCH(axpy, blocks_for(n), BLOCK, 0, stream, n, a, x, y);
}

static __device__ float warp_sum(float x)
{
    for (int delta = WARP / 2; delta > 0; delta /= 2)
        x += __shfl_down_sync(0xffffffff, x, delta);
    return x;
}

static __global__ void sum(uint32_t n, const float *x, int *out)
{
    __shared__ float of_warp[BLOCK / WARP];
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = warp_sum(i < n ? x[i] : 0.0f);

    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    if (threadIdx.x < WARP) {
        v = warp_sum(threadIdx.x < BLOCK / WARP ? of_warp[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0)
            atomicAdd(out, static_cast<int>(v));
    }
}

void launch_sum(uint32_t n, const float *x, int *out, cudaStream_t stream)
{
    CUDA_LAUNCH(sum, blocks_for(n), BLOCK, 0, stream, n, x, out);
}

static __global__ void transpose(uint32_t rows, uint32_t columns, const float *x, float *y)
{
    __shared__ float tile[TILE][TILE + 1];
    uint32_t r = blockIdx.y * TILE + threadIdx.y, c = blockIdx.x * TILE + threadIdx.x;

    if (r < rows && c < columns)
        tile[threadIdx.y][threadIdx.x] = x[r * columns + c];
    __syncthreads();
    r = blockIdx.y * TILE + threadIdx.x;
    c = blockIdx.x * TILE + threadIdx.y;
    if (r < rows && c < columns)
        y[c * rows + r] = tile[threadIdx.x][threadIdx.y];
}

void launch_transpose(uint32_t rows, uint32_t columns, const float *x, float *y,
                      cudaStream_t stream)
{
    CUDA_LAUNCH(transpose, dim3((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE),
                dim3(TILE, TILE), 0, stream, rows, columns, x, y);
}

template <typename T, int STEP> static __global__ void fill(uint32_t n, T factor, T *x)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += STEP * blockDim.x)
        x[i] = static_cast<T>(i) * factor;
}

void launch_fill(uint32_t n, float factor, float *x, cudaStream_t stream)
{
    CUDA_LAUNCH((fill<float, 2>), 2, BLOCK, 0, stream, n, factor, x);
}

static __global__ void atomics(uint32_t n, unsigned int *counts, unsigned long long *total,
                               int *bounds)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    atomicAdd(&counts[i % 4], 1u);
    atomicAdd(total, static_cast<unsigned long long>(i));
    atomicMin(&bounds[0], -static_cast<int>(i));
    atomicMax(&bounds[1], static_cast<int>(i));
    atomicOr(&bounds[2], 1 << i % 8);
    while (atomicCAS(&bounds[3], 0, 1) != 0) /* a lock */
        ;
    bounds[4]++;
    atomicExch(&bounds[3], 0);
}

void launch_atomics(uint32_t n, unsigned int *counts, unsigned long long *total, int *bounds,
                    cudaStream_t stream)
{
    CUDA_LAUNCH(atomics, blocks_for(n), BLOCK, 0, stream, n, counts, total, bounds);
}

static __global__ void warp(int *y)
{
    int i = static_cast<int>(threadIdx.x), lane = i % WARP;
    int *out = y + i * 8;
    unsigned int odd = 0xaaaaaaaa;

    out[0] = __shfl_sync(0xffffffff, i, 3);
    out[1] = __shfl_up_sync(0xffffffff, i, 1);
    out[2] = __shfl_down_sync(0xffffffff, i, 2, 8);
    out[3] = __shfl_xor_sync(0xffffffff, i, 5);
    out[4] = static_cast<int>(__ballot_sync(0xffffffff, lane % 3 == 0));
    out[5] = __any_sync(0xffffffff, lane == 40) + 2 * __all_sync(0xffffffff, lane < 40);
    /* Half of the lanes meet several times, while the others are elsewhere. */
    if (lane % 2 != 0)
        for (int k = 0; k < 3; k++)
            out[6] = __shfl_sync(odd, i + k, 1);
    else
        out[6] = -1;
    __syncwarp();
    out[7] = static_cast<int>(__shfl_sync(0xffffffff, 1000000007ll * i, 31, 16) / 1000000007ll);
}

void launch_warp(uint32_t n, int *y, cudaStream_t stream)
{
    CUDA_LAUNCH(warp, 1, n, 0, stream, y);
}

static __global__ void order(unsigned int *next, unsigned int *first)
{
    if (threadIdx.x == 0)
        first[atomicAdd(next, 1u)] = blockIdx.x;
}

void launch_order(uint32_t blocks, unsigned int *next, unsigned int *first, cudaStream_t stream)
{
    CUDA_LAUNCH(order, blocks, WARP, 0, stream, next, first);
}

static __global__ void reverse(uint32_t n, const float *x, float *y)
{
    CUDA_SHARED(float, copy);

    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        copy[i] = x[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        y[i] = copy[n - 1 - i];
}

cudaError_t launch_reverse(uint32_t n, size_t bytes, int with_attribute, const float *x, float *y,
                           cudaStream_t stream)
{
    cudaError_t rc = cudaSuccess;

    if (with_attribute)
        rc = cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes));
    if (rc == cudaSuccess)
        CUDA_LAUNCH(reverse, 1, BLOCK, bytes, stream, n, x, y);
    return rc;
}

static __global__ void round_trip(uint32_t n, const float *x, float *bf16, float *half_)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) {
        __nv_bfloat162 pair = __float22bfloat162_rn(make_float2(x[i], 0.0f));

        bf16[i] = __bfloat162float(pair.x);
        half_[i] = __half2float(__float2half_rn(x[i]));
    }
}

void launch_round(uint32_t n, const float *x, float *bf16, float *half_, cudaStream_t stream)
{
    CUDA_LAUNCH(round_trip, blocks_for(n), BLOCK, 0, stream, n, x, bf16, half_);
}

static __global__ void unwritten(float *y)
{
    __shared__ float fixed[BLOCK];
    CUDA_SHARED(float, dynamic);

    y[threadIdx.x] = fixed[threadIdx.x];
    y[BLOCK + threadIdx.x] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
}

void launch_unwritten(float *y, cudaStream_t stream)
{
    CUDA_LAUNCH(unwritten, 4, BLOCK, BLOCK * sizeof(float), stream, y);
}

static __global__ void position(unsigned int *y)
{
    unsigned int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned int at = block * blockDim.x * blockDim.y * blockDim.z + thread;

    atomicAdd(&y[at], at);
}

void launch_position(dim3 grid, dim3 block, unsigned int *y, cudaStream_t stream)
{
    CUDA_LAUNCH(position, grid, block, 0, stream, y);
}

/* ---- deliberate mistakes ---- */

static __global__ void mistaken(int which, float *x)
{
    switch (which) {
    case MISTAKE_RETURN_BEFORE_BARRIER:
        if (threadIdx.x >= 40)
            return;
        __syncthreads();
        break;
    case MISTAKE_TWO_BARRIERS:
        if (threadIdx.x < WARP)
            __syncthreads();
        else
            __syncthreads();
        break;
    case MISTAKE_SHUFFLE_OF_HALF:
        if (threadIdx.x % 2 == 0)
            x[0] = __shfl_sync(0xffffffff, x[0], 0);
        __syncthreads();
        break;
    case MISTAKE_NOT_IN_MASK:
        __syncwarp(0x0000ffff);
        break;
    case MISTAKE_BEYOND_END:
        x[64] = 1.0f;
        break;
    case MISTAKE_INTO_SLACK:
        x[8] = 1.0f;
        break;
    default:
        break;
    }
}

void launch_mistake(enum launch_mistake which, float *x, cudaStream_t stream)
{
    dim3 grid = which == MISTAKE_GRID_TOO_LARGE ? dim3(1, 65536) : dim3(1);
    unsigned int block = which == MISTAKE_BLOCK_TOO_LARGE ? 1025 : 64;
    size_t shared = which == MISTAKE_SHARED_TOO_LARGE ? (48 << 10) + 1 : 0;

    CUDA_LAUNCH(mistaken, grid, block, shared, stream, static_cast<int>(which), x);
}
