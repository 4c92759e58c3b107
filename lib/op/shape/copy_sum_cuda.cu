/* copy_sum_cuda.cu - copies with a stride of 0 in `to` along some axes: y[to] = or += the sum of x
 * over them.
 *
 * The summands of an element of y are divided into chunks. A thread sums a chunk in order; if
 * the summands are contiguous in x, a warp does: its lanes take the summands in turn, and their
 * sums are combined as a tree. If there are few elements with long sums, the sums of chunks are
 * stored in scratch [chunk, element], and a second launch adds them up. */
#include "op/shape/copy_cuda.cuh"

namespace {

constexpr size_t MAX_CHUNKS = 1024;

struct sum_plan {
    size_t kept, summed;
    size_t chunks, each; /* number of chunks, and of summands per chunk */
    bool by_warps;
};

/* c: sorted by `to`, innermost first, so the summed axes come first. */
struct sum_plan plan_of(const struct copy *c)
{
    struct sum_plan p = { 1, 1, 1, 1, false };
    size_t least = SIZE_MAX, enough, shortest;

    for (uint32_t k = 0; k < c->n; k++) {
        size_t from = (size_t)(c->axis[k].from < 0 ? -c->axis[k].from : c->axis[k].from);

        *(c->axis[k].to == 0 ? &p.summed : &p.kept) *= c->axis[k].size;
        if (from < least) {
            least = from;
            p.by_warps = c->axis[k].to == 0;
        }
    }
    p.by_warps = p.by_warps && p.summed >= 32;
    shortest = p.by_warps ? 256 : 32;
    enough = (p.by_warps ? (size_t)1 << 13 : (size_t)1 << 18) / p.kept;
    p.chunks = (p.summed + shortest - 1) / shortest;
    p.chunks = p.chunks > enough ? enough : p.chunks;
    p.chunks = p.chunks > MAX_CHUNKS ? MAX_CHUNKS : p.chunks < 1 ? 1 : p.chunks;
    p.each = (p.summed + p.chunks - 1) / p.chunks;
    p.chunks = (p.summed + p.each - 1) / p.each;
    return p;
}

/* y: the destination, or, if there are several chunks, [chunk, element]. */
__global__ void copy_sum(struct copy_walk kept, struct copy_walk summed, struct sum_plan p,
                         bool add, const float *x, float *y)
{
    size_t lanes = p.by_warps ? 32 : 1, lane = p.by_warps ? threadIdx.x % 32 : 0;
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes, first = blockIdx.y * p.each;
    size_t end = first + p.each < p.summed ? first + p.each : p.summed;
    int64_t from = 0, to = 0, nothing = 0;
    float sum = 0;

    if (i >= p.kept) /* whole warps return */
        return;
    copy_place(kept, i, &from, &to);
#pragma unroll 4
    for (size_t k = first + lane; k < end; k += lanes) {
        int64_t at = from;

        copy_place(summed, k, &at, &nothing);
        sum += x[at];
    }
    if (p.by_warps)
        sum = op_warp_sum(sum);
    if (lane > 0)
        return;
    if (p.chunks > 1)
        y[blockIdx.y * p.kept + i] = sum;
    else
        y[to] = add ? y[to] + sum : sum;
}

void launch(cudaStream_t s, const struct copy *c, const struct sum_plan *p, bool add,
            const float *x, float *y)
{
    struct copy_walk kept = {}, summed = {};
    size_t threads = p->kept * (p->by_warps ? 32 : 1);
    dim3 grid((unsigned)((threads + OP_THREADS - 1) / OP_THREADS), (unsigned)p->chunks);

    for (uint32_t k = 0; k < c->n; k++)
        copy_walk_add(c->axis[k].to == 0 ? &summed : &kept, &c->axis[k], 1);
    CUDA_LAUNCH(copy_sum, grid, OP_THREADS, 0, s, kept, summed, *p, add, x, y);
}

} // namespace

size_t copy_cuda_scratch(const struct copy *c)
{
    struct sum_plan p = plan_of(c);

    return p.summed > 1 && p.chunks > 1 ? p.chunks * p.kept * sizeof(float) : 0;
}

int copy_cuda_sum(cudaStream_t s, const struct copy *c, const float *x, float *y, bool add,
                  void *scratch, struct err *err)
{
    struct sum_plan p = plan_of(c), join = p;
    struct copy sums = { .n = 0, .from = 0, .to = c->to, .is_empty = false };
    ptrdiff_t step = 1;

    x += c->from;
    if (p.chunks == 1) {
        launch(s, c, &p, add, x, y + c->to);
        return cuda_launched(err);
    }
    launch(s, c, &p, false, x, (float *)scratch);
    sums.axis[sums.n++] = copy_axis{ p.chunks, (ptrdiff_t)p.kept, 0 };
    for (uint32_t k = 0; k < c->n; k++) {
        if (c->axis[k].to == 0)
            continue;
        sums.axis[sums.n++] = copy_axis{ c->axis[k].size, step, c->axis[k].to };
        step *= (ptrdiff_t)c->axis[k].size;
    }
    join.summed = join.each = p.chunks;
    join.chunks = 1;
    join.by_warps = p.chunks >= 32;
    launch(s, &sums, &join, add, (const float *)scratch, y + c->to);
    return cuda_launched(err);
}
