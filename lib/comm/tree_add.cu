/* tree_add.cu - see tree_add.cuh. A thread reads its elements of every vector once, and keeps the partial
 * sums on a stack of its own. */
#include "comm/tree_add.cuh"

namespace {

constexpr unsigned THREADS = 256, BLOCKS_MAX = 2048;

template <unsigned N> struct alignas(N * sizeof(float)) pack {
    float v[N];
};

/* A thread adds N neighbouring elements at a time; t.n is a multiple of N. */
template <unsigned N> __global__ void add_tree(const cuda_tree t)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < t.n / N; i += step) {
        pack<N> stack[CUDA_TREE_DEPTH], sum = {};
        unsigned top = 0;

        for (uint32_t k = 0; k < t.world; k++) {
            const float *from =
                k == t.self ? t.own : t.others + t.stride * (k < t.self ? k : k - 1);

            sum = ((const pack<N> *)from)[i];
            for (unsigned m = t.merges[k]; m > 0; m--) {
                pack<N> left = stack[--top];

#pragma unroll
                for (unsigned j = 0; j < N; j++)
                    sum.v[j] = left.v[j] + sum.v[j];
            }
            if (k + 1 < t.world)
                stack[top++] = sum;
        }
        ((pack<N> *)t.own)[i] = sum;
    }
}

bool is_aligned(const cuda_tree *t)
{
    return ((uintptr_t)t->own | (uintptr_t)t->others) % sizeof(pack<4>) == 0 &&
           t->stride % 4 == 0 && t->n % 4 == 0;
}

}

int comm_tree_add(const struct cuda_tree *t, struct cuda_stream *s, struct err *err)
{
    size_t threads = is_aligned(t) ? t->n / 4 : t->n, blocks = (threads + THREADS - 1) / THREADS;
    unsigned grid = (unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);

    if (t->n == 0)
        return 0;
    if (is_aligned(t))
        CUDA_LAUNCH(add_tree<4>, grid, THREADS, 0, cuda_stream_of(s), *t);
    else
        CUDA_LAUNCH(add_tree<1>, grid, THREADS, 0, cuda_stream_of(s), *t);
    return cuda_launched(err);
}
